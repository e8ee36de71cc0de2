"""What the learner sees of an actor's frames: the stacks that the network saw, bit by bit, over lives and resets."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Discrete

import replay_server as rs
from replay_server.actors.envs import make_environments
from replay_server.actors.transitions import TransitionWriter, n_step_options
from replay_server.rl.environment_spec import EnvironmentSpec, environment_spec
from replay_server.rl.observations import Leaf, atari_screens
from replay_server.rl.settings import ApexSettings
from replay_server.rl.tables import apex_table


class Recorder:
    """Keeps whole observations, as a table of plain columns would, and makes transitions by looking back."""

    def __init__(self, n_step: int, discount: float) -> None:
        self.n_step, self.discount = n_step, discount
        self.moments: list[tuple[np.ndarray, ...]] = []

    def transitions(self, environment: int) -> list[dict[str, np.ndarray]]:
        found = []
        history = [tuple(array[environment] for array in moment) for moment in self.moments]
        for start, (obs, _, action, _, _, _, ignored) in enumerate(history):
            reward, discount, end = 0.0, 1.0, None
            for m in range(1, self.n_step + 1):
                if ignored or start + m >= len(history):
                    break
                _, _, _, gained, terminated, truncated, _ = history[start + m - 1]
                reward += discount * gained
                discount *= self.discount
                if terminated or truncated or m == self.n_step:
                    end, discount = start + m, 0.0 if terminated else discount
                    break
            if end is not None:
                found.append({"obs": obs, "action": action, "reward": np.float32(reward), "next_obs": history[end][0],
                              "discount": np.float32(discount)})  # fmt: skip
        return found


def compare(buffer: rs.Buffer, ids: np.ndarray, recorder: Recorder, environments: int) -> int:
    """Each recorded transition is an item of the buffer, and there are no others."""
    batch = buffer.get(ids)

    def key(obs: np.ndarray, next_obs: np.ndarray, action: int, reward: float, discount: float) -> tuple[object, ...]:
        return obs.tobytes(), next_obs.tobytes(), int(action), round(float(reward), 4), round(float(discount), 4)

    names = ("obs", "next_obs", "action", "reward", "discount")
    seen = sorted(key(*(batch.data[name][row] for name in names)) for row in range(len(ids)))
    expected = sorted(
        key(*(transition[name] for name in names))
        for environment in range(environments)
        for transition in recorder.transitions(environment)
    )
    assert len(seen) == len(expected)
    assert seen == expected
    return len(seen)


@pytest.mark.parametrize("compression", ["none", "lz4"])
@pytest.mark.parametrize("env", ["ALE/Breakout-v5", "CartPole-v1"])
def test_games_are_seen_as_they_were_played(env: str, compression: str) -> None:
    settings = ApexSettings(env=env, envs_per_actor=3, capacity=10_000, n_step=3, max_frames_per_episode=400)
    settings = dataclasses.replace(settings, min_size_to_sample=1, compression=compression)  # type: ignore[arg-type]
    spec = environment_spec(settings)
    environments = make_environments(settings, 3, np.random.SeedSequence(4))
    random = np.random.default_rng(4)
    buffer = rs.Buffer(apex_table(settings, spec))
    writer = buffer.vector_writer(3, **n_step_options(settings))
    transitions, recorder = TransitionWriter(writer, settings, spec), Recorder(3, settings.discount)
    observations = environments.reset()
    ends = lives = 0
    for _ in range(350):
        q_values = random.normal(size=(3, spec.num_actions))
        actions = environments.forced(random.integers(0, spec.num_actions, 3))
        step = environments.step(actions)
        terminated = step.terminated | step.lost_life
        moment = (observations, q_values, actions, step.rewards, terminated, step.truncated, step.ignored)
        transitions.step(*moment)
        recorder.moments.append(moment)
        ends += int((step.terminated | step.truncated).sum())
        lives += int(step.lost_life.sum())
        observations = step.observations
    environments.close()
    assert ends >= 5
    assert lives >= 5 or env == "CartPole-v1"
    assert compare(buffer, writer.flush(), recorder, 3) > 900
    info = buffer.info()
    assert info["steps"] < 350 * 3 + 8 * (ends + lives + 3), "a frame was kept more often than its windows need"


def test_a_first_stack_that_is_no_repetition_is_seen_whole() -> None:
    settings = ApexSettings(env="ALE/Breakout-v5", envs_per_actor=4, capacity=1_000, n_step=2, min_size_to_sample=1)
    spec = EnvironmentSpec(atari_screens(4, 84), 3)
    buffer = rs.Buffer(apex_table(settings, spec))
    writer = buffer.vector_writer(4, **n_step_options(settings))
    transitions, recorder = TransitionWriter(writer, settings, spec), Recorder(2, settings.discount)
    frames = [np.full((84, 84), value, np.uint8) for value in range(200)]
    first = [[0, 0, 0, 0], [0, 0, 0, 1], [0, 1, 1, 2], [3, 2, 1, 0]]
    stacks = [list(stack) for stack in first]
    no = np.zeros(4, bool)
    for t in range(30):
        lost = np.array([t == 10, t in (10, 11), t % 7 == 0, False])
        observations = np.stack([[frames[f] for f in stack] for stack in stacks])
        moment = (observations, np.zeros((4, 3)), np.zeros(4, np.int64), np.zeros(4), lost, no, no)
        transitions.step(*moment)
        recorder.moments.append(moment)
        stacks = [[*stack[1:], 10 + 4 * t + e] for e, stack in enumerate(stacks)]
    assert compare(buffer, writer.flush(), recorder, 4) > 100


class Blinker(gymnasium.Env):
    """A dict of an image, a number and a vector, none of which is ever the same twice; an episode is 7 steps long."""

    observation_space = gymnasium.spaces.Dict(
        {
            "eye": gymnasium.spaces.Box(0, 255, (3, 9, 9), np.uint8),
            "hand": gymnasium.spaces.Dict({"place": gymnasium.spaces.Box(-1, 1, (2,)), "holds": Discrete(3, start=1)}),
        }
    )
    action_space = gymnasium.spaces.MultiDiscrete([2, 3])

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        if seed is not None:
            self.observation_space.seed(seed)
        self.left = 7
        return self.observation_space.sample(), {}

    def step(self, action):
        self.left -= 1
        return self.observation_space.sample(), float(action[0] + 10 * action[1]), self.left == 0, False, {}


gymnasium.register("Blinker-v0", Blinker)


def test_a_dict_of_observations_is_seen_as_it_was_played() -> None:
    settings = ApexSettings(env="Blinker-v0", envs_per_actor=2, capacity=1_000, n_step=3, min_size_to_sample=1)
    spec = environment_spec(settings)
    buffer = rs.Buffer(apex_table(settings, spec))
    writer = buffer.vector_writer(2, **n_step_options(settings))
    transitions, recorders = TransitionWriter(writer, settings, spec), {}
    environments = make_environments(settings, 2, np.random.SeedSequence(3))
    random, observations = np.random.default_rng(3), environments.reset()
    for _ in range(60):
        q_values = random.normal(size=(2, 5))
        actions = random.integers((2, 3), size=(2, 2))
        step = environments.step(actions)
        rest = (q_values, actions, step.rewards, step.terminated, step.truncated, step.ignored)
        transitions.step(observations, *rest)
        for path, leaf in observations.items():
            recorders.setdefault(path, Recorder(3, settings.discount)).moments.append((leaf, *rest))
        observations = step.observations
    batch = buffer.get(writer.flush())
    assert set(recorders) == {"eye", "hand/holds", "hand/place"}
    assert batch.data["action"].shape == (len(batch), 2)
    for path, recorder in recorders.items():
        seen = {
            (batch.columns[f"obs/{path}"][i].tobytes(), batch.columns[f"next_obs/{path}"][i].tobytes(),
             batch.data["action"][i].tobytes(), round(float(batch.data["reward"][i]), 3))
            for i in range(len(batch))
        }  # fmt: skip
        made = {
            (
                each["obs"].tobytes(),
                each["next_obs"].tobytes(),
                each["action"].tobytes(),
                round(float(each["reward"]), 3),
            )
            for e in range(2)
            for each in recorder.transitions(e)
        }
        assert seen == made
    assert len(batch) > 90


def test_unprioritized_transitions_have_priority_one() -> None:
    settings = ApexSettings(env="CartPole-v1", envs_per_actor=1, capacity=100, n_step=1, min_size_to_sample=1)
    settings = dataclasses.replace(settings, prioritized=False)
    spec = EnvironmentSpec(Leaf((2,)), 3)
    buffer = rs.Buffer(apex_table(settings, spec))
    writer = buffer.vector_writer(1, **n_step_options(settings))
    transitions, no = TransitionWriter(writer, settings, spec), np.zeros(1, bool)
    for t in range(5):
        q_values = np.array([[0.0, 5.0, -5.0]])
        transitions.step(np.full((1, 2), t, np.float32), q_values, np.array([t % 3]), np.ones(1), no, no, no)
    writer.flush()
    assert buffer.info()["max_priority"] == 1.0
    assert buffer.info()["total_priority"] == pytest.approx(buffer.info()["size"])


@pytest.mark.parametrize("given_up_at", range(30, 42))
def test_a_write_that_was_given_up_leaves_no_wrong_transition(given_up_at: int) -> None:
    """An actor that was stopped while the rate limiter held it back made items of frames that were never appended."""
    settings = ApexSettings(env="ALE/Breakout-v5", envs_per_actor=2, capacity=1_000, n_step=2, min_size_to_sample=1)
    spec = EnvironmentSpec(atari_screens(4, 84), 3)
    buffer = rs.Buffer(apex_table(settings, spec))
    writer = buffer.vector_writer(2, **n_step_options(settings))
    calls = 0

    def patiently(call: Callable[[], None]) -> bool:
        nonlocal calls
        calls += 1
        if calls < given_up_at:
            call()
        return calls < given_up_at

    transitions, recorder = TransitionWriter(writer, settings, spec, patiently), Recorder(2, settings.discount)
    no = np.zeros(2, bool)
    for t in range(60):
        lost = np.array([t % 5 == 4, t % 3 == 2])
        observations = np.full((2, 4, 84, 84), np.arange(t, t + 4)[:, None, None], np.uint8)
        moment = (observations, np.zeros((2, 3)), np.zeros(2, np.int64), np.ones(2), lost, no, no)
        transitions.step(*moment)
        recorder.moments.append(moment)
        if calls >= given_up_at:
            break
    batch = buffer.get(writer.flush())
    made = {each["obs"].tobytes() + each["next_obs"].tobytes() for e in range(2) for each in recorder.transitions(e)}
    seen = {batch.data["obs"][i].tobytes() + batch.data["next_obs"][i].tobytes() for i in range(len(batch))}
    assert len(batch) > 5
    assert seen <= made
