"""Writers of n-step transitions: bit for bit what looking each one up in its whole episode gives."""

from __future__ import annotations

import contextlib
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import replay_server as rs

FRAME = (2,)


def table(n_step: int = 3, length: int | None = None, dtype: str = "float32", **parts: Any) -> rs.Table:
    signature = {
        "frame": rs.Column("int32", FRAME, step_only=True),
        "obs": rs.Window("frame", length),
        "key": rs.Column("int64"),
        "reward": rs.Column(dtype),
        "discount": rs.Column(dtype),
        "next_obs": rs.Window("frame", length, offset=n_step),
    }
    parts = {"sampler": rs.Prioritized(1.0), "seed": 1, **parts}
    return rs.Table("t", parts.pop("capacity", 5000), parts.pop("signature", signature), **parts)


def frame(value: int) -> np.ndarray:
    return np.full(FRAME, value, np.int32)


# ---- the reference ---------------------------------------------------------------------------------------------------


@dataclass
class Episode:
    """What one environment went through: observations o_0 … o_T, and the rewards of the actions in between.

    `final` False: the last observation was never seen, and the action that led to it counts only where it terminated.
    """

    first: int
    rewards: list[float]
    terminated: bool
    final: bool = True

    def transitions(self, n_step: int, discount: float, length: int | None, dtype: str) -> dict[int, tuple[Any, ...]]:
        """By the number of its first observation: the windows, the return and the discount, as bytes."""
        actions = len(self.rewards) if self.final or self.terminated else len(self.rewards) - 1
        newest = len(self.rewards) if self.final else len(self.rewards) - 1

        def shown(t: int) -> bytes:
            t = min(t, newest)
            times = [t] if length is None else [max(0, t - back) for back in reversed(range(length))]
            return np.stack([frame(self.first + time) for time in times]).tobytes()

        found = {}
        for start in range(actions):
            m = min(n_step, actions - start)
            reward = 0.0
            for k in range(m):
                reward += discount**k * self.rewards[start + k]
            bootstrap = 0.0 if self.terminated and start + m == actions else discount**m
            numbers = np.array([reward, bootstrap], dtype).tobytes()
            found[self.first + start] = (shown(start), shown(start + m), numbers)
        return found


def stored(buffer: rs.Buffer, ids: np.ndarray) -> dict[int, tuple[Any, ...]]:
    """All items, in the reference's form."""
    data = buffer.get(ids).data
    numbers = [np.array([data["reward"][i], data["discount"][i]]).tobytes() for i in range(len(ids))]
    keys = data["key"].tolist()
    assert len(set(keys)) == len(keys), "a transition was stored twice"
    return {key: (data["obs"][i].tobytes(), data["next_obs"][i].tobytes(), numbers[i]) for i, key in enumerate(keys)}


REWARDS = st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=9)
ENDS = ["terminated", "truncated", "both", "alone", "end_episode", "terminated, end_episode", "close"]


@dataclass
class Script:
    """What one environment does: its episodes' rewards, and how each ends."""

    environment: int
    episodes: list[tuple[list[float], str]]
    waits: list[bool]
    done: list[Episode] = field(default_factory=list)
    moment: int = 0
    due: str = ""
    """"final": the final observation comes next. "end": end_episode does."""

    def next(self) -> tuple[dict[str, Any], str] | None:
        """The next call and its arguments; None when there is no more."""
        if self.due:
            kind, self.due = self.due, ""
            last = self.done[-1].first + len(self.done[-1].rewards)
            return {"frame": frame(last)}, kind
        if not self.episodes:
            return None
        rewards, end = self.episodes[0]
        if self.moment == 0:
            self.done.append(Episode(1000 * (100 * self.environment + len(self.done)), [], False))
        episode, last = self.done[-1], self.moment == len(rewards) - 1
        number = episode.first + self.moment
        call = {"frame": frame(number), "key": number, "reward": rewards[self.moment]}
        call |= {"terminated": False, "truncated": False}
        episode.rewards.append(rewards[self.moment])
        self.moment += 1
        if not last:
            return call, "step"
        self.episodes.pop(0)
        self.moment = 0
        episode.terminated = end in ("terminated", "both", "terminated, end_episode")
        episode.final = end in ("terminated", "truncated", "both", "alone")
        self.due = {"end_episode": "end", "terminated, end_episode": "end", "close": ""}.get(end, "final")
        if end == "close":
            self.episodes = []
        flags = {"terminated": episode.terminated, "truncated": end in ("truncated", "both")}
        return {**call, **flags}, "step"


@settings(max_examples=120, deadline=None)
@given(
    scripts=st.lists(
        st.tuples(
            st.lists(st.tuples(REWARDS, st.sampled_from(ENDS)), max_size=5),
            st.lists(st.booleans(), min_size=1, max_size=5),
        ),
        min_size=1,
        max_size=4,
    ),
    n_step=st.integers(1, 5),
    discount=st.sampled_from([0.99, 0.9, 1.0, 0.0, 1 / 3]),
    length=st.sampled_from([None, 1, 4]),
    dtype=st.sampled_from(["float16", "float32", "float64"]),
    flush_steps=st.integers(1, 4),
)
def test_items_are_what_looking_back_over_whole_episodes_gives(scripts, n_step, discount, length, dtype, flush_steps):
    buffer = rs.Buffer(table(n_step, length, dtype))
    count = len(scripts)
    players = [Script(e, [*episodes], waits) for e, (episodes, waits) in enumerate(scripts)]
    ids = []
    with buffer.vector_writer(count, n_step=n_step, discount=discount, flush_steps=flush_steps) as writer:
        for turn in range(500):
            calls = {
                player.environment: call
                for player in players
                if (turn >= 200 or not player.waits[turn % len(player.waits)]) and (call := player.next())
            }
            for kind, names in (("step", ("frame", "key", "reward")), ("final", ("frame",)), ("end", ())):
                mask = [e in calls and calls[e][1] == kind for e in range(count)]
                if not any(mask):
                    continue
                if kind == "end":
                    writer.end_episode(mask)
                    continue
                rows = [calls[e][0] if mask[e] else {} for e in range(count)]
                blank = {"frame": frame(-1), "key": -1, "reward": float("nan")}  # not looked at
                step = {name: np.array([row.get(name, blank[name]) for row in rows]) for name in names}
                ends = {
                    name: [row.get(name, True) for row in rows]
                    for name in ("terminated", "truncated")
                    if kind == "step"
                }
                writer.append(step, mask=mask, **ends)
        ids.append(writer.flush())
        writer.end_episode()
        ids.append(writer.flush())
    expected: dict[int, tuple[Any, ...]] = {}
    for player in players:
        for episode in player.done:
            expected |= episode.transitions(n_step, discount, length, dtype)
    assert stored(buffer, np.concatenate(ids)) == expected


@settings(max_examples=60, deadline=None)
@given(
    episodes=st.lists(st.tuples(REWARDS, st.sampled_from(ENDS)), max_size=6),
    n_step=st.integers(1, 5),
    length=st.sampled_from([None, 3]),
)
def test_a_writer_of_one_environment_does_the_same(episodes, n_step, length):
    buffer = rs.Buffer(table(n_step, length, "float64"))
    player = Script(0, [*episodes], [False])
    writer = buffer.writer(n_step=n_step, discount=0.97)
    while (call := player.next()) is not None:
        step, kind = call
        if kind == "end":
            writer.end_episode()
        else:
            ends = {name: step.pop(name) for name in ("terminated", "truncated") if name in step}
            writer.append(step, **ends)
    writer.end_episode()
    ids = writer.flush()
    writer.close()
    expected: dict[int, tuple[Any, ...]] = {}
    for episode in player.done:
        expected |= episode.transitions(n_step, 0.97, length, "float64")
    assert stored(buffer, ids) == expected


# ---- environments that reset themselves ------------------------------------------------------------------------------


class Counting(gymnasium.Env):
    """Observations count up from a number of the episode's own; ends by itself after a number of steps drawn anew."""

    observation_space = gymnasium.spaces.Box(-(2**31), 2**31 - 1, FRAME, np.int32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, environment: int) -> None:
        self.random = np.random.default_rng(environment)
        self.episodes: list[Episode] = []
        self.environment = environment

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict]:
        self.episodes.append(Episode(1000 * (1000 * self.environment + len(self.episodes)), [], False, False))
        self.left = int(self.random.integers(1, 9))
        return frame(self.episodes[-1].first), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        episode = self.episodes[-1]
        episode.rewards.append(float(self.random.normal()))
        self.left -= 1
        ended, kind = self.left == 0, self.random.integers(3)
        episode.terminated = bool(ended and kind != 0)
        observation = frame(episode.first + len(episode.rewards))
        return observation, episode.rewards[-1], episode.terminated, bool(ended and kind != 1), {}


@pytest.mark.parametrize("mode", ["next_step", "same_step", "disabled"])
def test_vectorised_environments_are_seen_as_they_played(mode: str) -> None:
    from gymnasium.vector import AutoresetMode, SyncVectorEnv

    count, n_step = 4, 3
    envs = SyncVectorEnv([lambda e=e: Counting(e) for e in range(count)], autoreset_mode=AutoresetMode[mode.upper()])
    buffer = rs.Buffer(table(n_step, 2, "float64"))
    options = {"autoreset": "next_step"} if mode == "next_step" else {}
    with buffer.vector_writer(count, n_step=n_step, discount=0.9, **options) as writer:
        obs, _ = envs.reset()
        for _ in range(200):
            key = obs[:, 0].astype(np.int64)
            next_obs, rewards, terminated, truncated, infos = envs.step(np.zeros(count, np.int64))
            step = {"frame": obs, "key": key, "reward": rewards}
            writer.append(step, terminated=terminated, truncated=truncated)
            ended = terminated | truncated
            if mode == "same_step" and ended.any():
                final = [one if one is not None else frame(0) for one in infos["final_obs"]]
                writer.append({"frame": np.stack(final)}, mask=ended)
            if mode == "disabled" and ended.any():
                writer.append({"frame": next_obs}, mask=ended)
                next_obs, _ = envs.reset(options={"reset_mask": ended})
            obs = next_obs.copy()
        writer.append({"frame": obs})  # to know what the last actions led to
        ids = writer.flush()
    episodes = [episode for env in envs.envs for episode in env.unwrapped.episodes]
    expected: dict[int, tuple[Any, ...]] = {}
    for episode in episodes:
        episode.final = True
        expected |= episode.transitions(n_step, 0.9, 2, "float64")
    assert len(expected) > 500
    assert len(episodes) > 80
    assert {episode.terminated for episode in episodes} == {True, False}
    assert stored(buffer, ids) == expected


# ---- what a user meets -----------------------------------------------------------------------------------------------


def play(writer: Any, rewards: list[float], first: int = 0, **end: bool) -> None:
    """One episode, and its final observation."""
    for t, reward in enumerate(rewards):
        ends = end if t == len(rewards) - 1 else {}
        writer.append({"frame": frame(first + t), "key": first + t, "reward": reward}, **ends)
    writer.append({"frame": frame(first + len(rewards))})


def test_ten_steps_give_ten_items_and_the_last_have_discount_0():
    """Windows over steps alone, as the examples had them, gave seven items, none of them of the terminal state."""
    buffer = rs.Buffer(table(3))
    with buffer.writer(n_step=3, discount=0.5) as writer:
        play(writer, [1.0] * 10, terminated=True)
        data = buffer.get(writer.flush()).data
    order = np.argsort(data["key"])
    assert data["reward"][order].tolist() == [1.75] * 8 + [1.5, 1.0]
    assert data["discount"][order].tolist() == [0.125] * 7 + [0.0] * 3
    assert data["next_obs"][order][:, 0].tolist() == [3, 4, 5, 6, 7, 8, 9, 10, 10, 10]


def test_truncation_bootstraps_from_the_final_observation():
    buffer = rs.Buffer(table(3))
    with buffer.writer(n_step=3, discount=0.5) as writer:
        play(writer, [1.0] * 4, truncated=True)
        play(writer, [1.0] * 2, first=100)  # an observation alone in the middle of an episode truncates it
        data = buffer.get(writer.flush()).data
    order = np.argsort(data["key"])
    assert data["discount"][order].tolist() == [0.125, 0.125, 0.25, 0.5, 0.25, 0.5]
    assert data["next_obs"][order][:, 0].tolist() == [3, 4, 4, 4, 102, 102]


def test_an_action_whose_outcome_is_not_known_makes_no_item():
    buffer = rs.Buffer(table(2))
    with buffer.writer(n_step=2, discount=0.5) as writer:
        for t in range(3):
            writer.append({"frame": frame(t), "key": t, "reward": 1.0})
        assert writer.waiting == 1
        writer.end_episode()
        data = buffer.get(writer.flush()).data
        assert (data["key"].tolist(), data["discount"].tolist()) == ([0, 1], [0.25, 0.5])
        writer.append({"frame": frame(9), "key": 9, "reward": 7.0}, terminated=True)
        writer.end_episode()  # its final observation is not needed: nothing is bootstrapped from it
        data = buffer.get(writer.flush()).data
        assert (data["reward"].tolist(), data["discount"].tolist()) == ([7.0], [0.0])


def test_observations_before_the_first_step_are_seen_and_make_no_item():
    buffer = rs.Buffer(table(1, length=3))
    with buffer.writer(n_step=1, discount=0.5) as writer:
        writer.append({"frame": frame(50)})
        writer.append({"frame": frame(51)})
        play(writer, [1.0], first=1, terminated=True)
        data = buffer.get(writer.flush()).data
    assert data["obs"][:, :, 0].tolist() == [[50, 51, 1]]
    assert data["next_obs"][:, :, 0].tolist() == [[51, 1, 2]]


def test_values_give_the_priorities_of_the_n_step_error():
    """|R + discount · V(successor) − Q(o, a)|, not its Huber loss; a terminal state has no value."""
    buffer = rs.Buffer(table(2))
    with buffer.vector_writer(2, n_step=2, discount=0.5, priority_epsilon=0.125) as writer:
        rewards = np.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
        for t in range(3):
            step = {"frame": np.stack([frame(t), frame(10 + t)]), "key": np.array([t, 10 + t]), "reward": rewards[t]}
            ends = {"terminated": [t == 2, False], "truncated": [False, t == 2]}
            writer.append(step, **ends, action_value=np.array([t, 30.0]), state_value=np.array([8.0, 16.0 + t]))
        writer.append({"frame": np.zeros((2, *FRAME), np.int32)}, state_value=np.array([1e6, 100.0]))
        batch = buffer.get(writer.flush())
    raw = batch.probabilities * buffer.info()["total_priority"]
    found = {key: raw[i] for i, key in enumerate(batch.data["key"].tolist())}
    assert found == pytest.approx({
        0: abs(1 + 0.5 * 3 + 0.25 * 8 - 0) + 0.125,
        1: abs(3 + 0.5 * 5 - 1) + 0.125,
        2: abs(5 - 2) + 0.125,
        10: abs(2 + 0.5 * 4 + 0.25 * 18 - 30) + 0.125,
        11: abs(4 + 0.5 * 6 + 0.25 * 100 - 30) + 0.125,
        12: abs(6 + 0.5 * 100 - 30) + 0.125,
    })  # fmt: skip


def test_a_reward_column_that_windows_see_has_rewards_in_steps_and_returns_in_items():
    signature = {**table(2).signature, "rewards": rs.Window("reward", length=3, offset=2)}
    buffer = rs.Buffer(table(signature=signature))
    with buffer.writer(n_step=2, discount=0.5) as writer:
        play(writer, [1.0, 2.0, 4.0], terminated=True)
        data = buffer.get(writer.flush()).data
    order = np.argsort(data["key"])
    assert data["reward"][order].tolist() == [2.0, 4.0, 4.0]
    assert data["rewards"][order].tolist() == [[1.0, 2.0, 4.0], [2.0, 4.0, 0.0], [2.0, 4.0, 0.0]]


def test_a_step_that_the_rate_limiter_held_back_is_appended_once():
    buffer = rs.Buffer(table(1, rate_limiter=rs.Queue(3), sampler=rs.Fifo(), max_times_sampled=1))
    seen: list[int] = []
    writer = buffer.writer(n_step=1, discount=1.0, flush_steps=2, timeout=0.0)

    def drain() -> None:
        batch = buffer.sample(len(buffer))
        assert (batch.data["next_obs"][:, 0] == batch.data["key"] + 1).all()
        seen.extend(batch.data["key"].tolist())

    waits = 0
    for t in range(40):
        step = {"frame": frame(t), "key": t, "reward": 1.0}
        try:
            writer.append(step)
        except rs.Timeout:
            waits += 1
            drain()
            writer.append(step)
    writer.append({"frame": frame(40)})
    while writer.waiting:
        if len(buffer):
            drain()
        try:
            writer.flush(timeout=0.0)
        except rs.Timeout:
            waits += 1
    drain()
    writer.close()
    assert waits > 5
    assert seen == list(range(40))


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"n_step": 2, "discount": 0.9}, r"n_step=2 needs a window of offset 2, .*'obs' has 0, 'next_obs' has 3"),
        ({"n_step": 0, "discount": 0.9}, "n_step must be a whole number from 1 to"),
        ({"n_step": True, "discount": 0.9}, "n_step must be a whole number"),
        ({"n_step": 3, "discount": 1.5}, "discount must be a number from 0 to 1, got 1.5"),
        ({"n_step": 3, "discount": float("nan")}, "discount must be a number from 0 to 1, got nan"),
        ({"n_step": 3}, "n_step and discount go together"),
        ({"discount": 0.9}, "n_step and discount go together"),
        ({"n_step": 3, "discount": 0.9, "reward_column": "return"}, "no column 'return' of items; reward_column="),
        ({"n_step": 3, "discount": 0.9, "discount_column": "key"}, "needs? a discount column"),
        ({"n_step": 3, "discount": 0.9, "discount_column": "reward"}, "the writer fills the discount column"),
        ({"n_step": 3, "discount": 0.9, "history": 3}, "history must be above n_step, 3, got 3"),
        ({"n_step": 3, "discount": 0.9, "autoreset": "same_step"}, 'autoreset must be "next_step", or None'),
        ({"n_step": 3, "discount": 0.9, "priority_epsilon": -1}, "priority_epsilon must be a number from 0"),
    ],
)
def test_a_table_or_a_number_that_does_not_fit_is_refused(options: dict[str, Any], told: str) -> None:
    buffer = rs.Buffer(table(3))
    with pytest.raises(rs.SchemaError, match=told):
        buffer.writer(**options)
    with pytest.raises(rs.SchemaError, match=told):
        buffer.vector_writer(2, **options)


def test_a_table_without_windows_is_told_which_it_needs():
    signature = {name: rs.Column("float32") for name in ("obs", "reward", "discount", "next_obs")}
    with pytest.raises(rs.SchemaError, match=r"next_obs=rs\.Window.*there are no windows"):
        rs.Buffer(rs.Table("t", 10, signature)).writer(n_step=3, discount=0.9)


STEP = {"frame": frame(5), "key": 5, "reward": 1.0}


@pytest.mark.parametrize(
    ("step", "more", "told"),
    [
        ({**STEP, "discount": 0.5}, {}, "'discount' is made by the writer"),
        ({"frame": frame(5), "key": 5}, {}, "got frame, key without 'reward': a step has"),
        ({"frame": frame(5), "reward": 1.0}, {}, "'key' is missing: a step has key, frame, reward; an observation"),
        ({"key": 5}, {}, "'frame' is missing"),
        ({**STEP, "other": 1}, {}, "'other' is not a column"),
        ({**STEP, "reward": float("nan")}, {}, "reward must be finite and at most 3.4e[+]38 in size, got nan"),
        ({**STEP, "reward": 1e39}, {}, "reward must be finite and at most"),
        ({**STEP, "reward": "much"}, {}, "reward must be float64 of shape"),
        ({**STEP, "frame": np.zeros(FRAME, np.int64)}, {}, "'frame' expects dtype int32, got int64"),
        ({"frame": frame(5)}, {"terminated": True}, "belong to the step whose action ended the episode"),
        (STEP, {"terminated": 1}, "terminated must be bool of shape"),
        (STEP, {"state_value": 1.0}, "with every step or with none, got state_value"),
        (STEP, {"state_value": 1.0, "action_value": 1.0}, "with every step or with none"),
        ({"frame": frame(5)}, {"action_value": 1.0}, "action_value belongs to a step"),
        ([1], {}, "expected a dict of columns"),
    ],
)
def test_a_wrong_step_is_refused_and_changes_nothing(step: Any, more: dict[str, Any], told: str) -> None:
    buffer = rs.Buffer(table(2))
    with buffer.writer(n_step=2, discount=1.0) as writer:
        for t in range(4):
            writer.append({"frame": frame(t), "key": t, "reward": 1.0})
            with pytest.raises(rs.SchemaError, match=told):
                writer.append(step, **more)
        writer.append({"frame": frame(4)})
        batch = buffer.get(writer.flush())
    assert batch.data["key"].tolist() == [0, 1, 2, 3]
    assert batch.data["next_obs"][:, 0].tolist() == [2, 3, 4, 4]


def test_a_final_observation_that_is_left_out_is_asked_for():
    buffer = rs.Buffer(table(3))
    with buffer.vector_writer(2, n_step=3, discount=1.0) as writer:
        both = {"frame": np.stack([frame(0), frame(1)]), "key": [0, 1], "reward": [0.0, 0.0]}
        writer.append(both, truncated=[False, True])
        with pytest.raises(
            rs.SchemaError, match=r"environment 1 has ended: append its final observation alone, \{'frame'"
        ):
            writer.append(both)
        writer.append({"frame": np.stack([frame(0), frame(9)])}, mask=[False, True])
        writer.append(both)
        data = buffer.get(writer.flush()).data
        assert (data["key"].tolist(), data["next_obs"][:, 0].tolist()) == ([1], [9])


def test_environments_that_do_not_reset_in_the_next_step_are_noticed():
    buffer = rs.Buffer(table(3))
    with buffer.vector_writer(1, n_step=3, discount=1.0, autoreset="next_step") as writer:
        step = {"frame": frame(0)[None], "key": [0], "reward": [1.0]}
        writer.append(step, terminated=[True])
        with pytest.raises(rs.SchemaError, match="shows its final observation: its reward is 0"):
            writer.append(step)
        with pytest.raises(rs.SchemaError, match="it ends nothing"):
            writer.append({**step, "reward": [0.0]}, terminated=[True])
        writer.append({**step, "reward": [0.0]})
        assert buffer.get(writer.flush()).data["discount"].tolist() == [0.0]


def test_rewards_are_summed_in_their_own_precision():
    """A reward that was rounded to the column's float32 first would give other sums."""
    sums = [0.1 + 0.1 * 0.2 + 0.1**2 * 0.3, 0.2 + 0.1 * 0.3, 0.3]
    for dtype in ("float64", "float32"):
        buffer = rs.Buffer(table(3, dtype=dtype))
        with buffer.writer(n_step=3, discount=0.1) as writer:
            play(writer, [0.1, 0.2, 0.3], terminated=True)
            data = buffer.get(writer.flush()).data
        assert data["reward"][np.argsort(data["key"])].tolist() == np.array(sums, dtype).tolist()


# ---- interrupts ------------------------------------------------------------------------------------------------------


class Interrupt:
    """Raises KeyboardInterrupt before the nth line of the writers' code, as Ctrl-C may."""

    def __init__(self, line: int) -> None:
        self.left = line
        self.raised = False

    def __enter__(self) -> None:
        sys.settrace(self._called)

    def __exit__(self, *exception: object) -> None:
        sys.settrace(None)

    def _called(self, frame: Any, event: str, argument: Any) -> Any:
        return self._traced if Path(frame.f_code.co_filename).name in ("n_step.py", "n_step_writer.py") else None

    def _traced(self, frame: Any, event: str, argument: Any) -> Any:
        if event == "line" and not self.raised:
            self.left -= 1
            if self.left < 0:
                self.raised = True
                raise KeyboardInterrupt
        return self._traced


CALLS = {
    "a step": lambda writer: writer.append({"frame": frame(4), "key": 4, "reward": 16.0}),
    "a last step": lambda writer: writer.append({"frame": frame(4), "key": 4, "reward": 16.0}, terminated=True),
    "a final observation": lambda writer: writer.append({"frame": frame(4)}),
    "an end": lambda writer: writer.end_episode(),
}


def interrupted(call: Any, line: int | None, goes_on: bool) -> tuple[list[list[float]], bool]:
    """All items after four steps, a call that was interrupted before a line, and what follows; whether it was."""
    buffer = rs.Buffer(table(3))
    with buffer.writer(n_step=3, discount=0.5) as writer:
        for t in range(4):
            writer.append({"frame": frame(t), "key": t, "reward": 2.0**t})
        interrupt = Interrupt(line if line is not None else 10**9)
        if line is not None or goes_on:
            with contextlib.suppress(KeyboardInterrupt), interrupt:
                call(writer)
        writer.end_episode()
        play(writer, [1.0] * 2, first=100, terminated=True)
        data = buffer.get(writer.flush()).data
    names = ("key", "reward", "discount")
    rows = [[float(data[name][i]) for name in names] + [float(data["next_obs"][i, 0])] for i in range(len(data["key"]))]
    return sorted(rows), interrupt.raised


@pytest.mark.parametrize("name", CALLS)
def test_an_interrupted_call_was_taken_whole_or_not_at_all(name: str) -> None:
    nothing, _ = interrupted(CALLS[name], None, False)
    whole, _ = interrupted(CALLS[name], None, True)
    line, seen = 0, []
    while True:
        rows, raised = interrupted(CALLS[name], line, True)
        assert rows in (nothing, whole), f"before line {line}"
        if not raised:
            break
        seen.append(rows)
        line += 1
    assert line > 15
    assert rows == whole
