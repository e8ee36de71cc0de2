"""CleanRL's buffer over a table: what it shows, beside the original's where there is a checkout, and what is saved."""

from __future__ import annotations

import copy
import importlib.util
import itertools
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from example_environments import CLEANRL

gym: Any = pytest.importorskip("gymnasium")
torch = pytest.importorskip("torch")

from gymnasium import spaces  # noqa: E402

import replay_server as rs  # noqa: E402
from replay_server.adapters.cleanrl import ReplayServerBuffer  # noqa: E402

ENVS = 2
BOX = spaces.Box(-np.inf, np.inf, (3,), np.float32)
DICT = spaces.Dict({"arm": BOX, "eye": spaces.Dict({"pixel": spaces.Box(0, 255, (1,), np.uint8)})})
ACTIONS = spaces.Discrete(4)
numbers = itertools.count()


@pytest.fixture(scope="module")
def server() -> Iterator[rs.Server]:
    with rs.Server() as running:
        yield running


@pytest.fixture(params=["in process", "on a server"])
def make(request: pytest.FixtureRequest) -> Callable[..., ReplayServerBuffer]:
    """`ReplayServerBuffer`, with a new table at each call."""

    def made(*arguments: Any, **options: Any) -> ReplayServerBuffer:
        options["table"] = f"cleanrl-{next(numbers)}"
        if request.param == "on a server":
            options["url"] = request.getfixturevalue("server").url
        return ReplayServerBuffer(*arguments, device="cpu", n_envs=ENVS, **options)

    return made


def steps(count: int) -> Iterator[tuple[Any, ...]]:
    """Arguments of `add`; a step's observation, number `k` of an environment, is all `k`."""
    for t in range(count):
        k = np.array([t, 100 + t])
        obs, after = (np.repeat(each[:, None], 3, 1).astype(np.float32) for each in (k, k + 1))
        done = np.array([t % 5 == 4, t % 5 == 4])
        infos = [{"TimeLimit.truncated": True} if done[0] else {}, {}]
        yield obs, after, k % 4, k.astype(np.float64), done, infos


def as_dict(obs: np.ndarray) -> dict[str, Any]:
    return {"arm": obs, "eye": {"pixel": obs[:, :1].astype(np.uint8)}}


TUPLE = spaces.Tuple(
    (BOX, spaces.Tuple((spaces.Discrete(200), spaces.Dict({"pixel": spaces.Box(0, 255, (1,), np.uint8)}))))
)


def as_tuple(obs: np.ndarray) -> tuple[Any, ...]:
    return obs, (obs[:, 0].astype(np.int64), {"pixel": obs[:, :1].astype(np.uint8)})


def filled(buffer: ReplayServerBuffer, count: int = 20) -> ReplayServerBuffer:
    for obs, after, *rest in steps(count):
        buffer.add(as_dict(obs), as_dict(after), *rest)
    return buffer


def rows(samples: Any) -> set[tuple[float, ...]]:
    parts = [part.numpy().reshape(len(part), -1).astype(np.float64) for part in samples]
    return {tuple(row) for row in np.concatenate(parts, axis=1)}


def flat(samples: Any) -> set[tuple[float, ...]]:
    """The transitions of a batch with dict observations."""
    seen, after = samples.observations, samples.next_observations
    return rows((seen["arm"], seen["eye"]["pixel"], after["arm"], after["eye"]["pixel"], *samples[1:2], *samples[3:]))


@pytest.mark.parametrize(
    ("space", "actions"),
    [(BOX, ACTIONS), (spaces.Discrete(200), ACTIONS), (BOX, spaces.Box(-1, 1, (2, 2), np.float64))],
)
def test_transitions_equal_those_of_cleanrl(make: Callable[..., Any], space: Any, actions: Any) -> None:
    """Discrete observations came without their last dimension, and actions were not flattened."""
    if not CLEANRL.exists():
        pytest.skip("there is no checkout of CleanRL: see example_environments.py")
    spec: Any = importlib.util.spec_from_file_location("buffers", CLEANRL / "cleanrl_utils" / "buffers.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    original = module.ReplayBuffer(1000, space, actions, "cpu", n_envs=ENVS)
    buffer = make(1000, space, actions)
    for obs, after, action, *rest in steps(20):
        if isinstance(space, spaces.Discrete):
            obs, after = obs[:, 0].astype(np.int64), after[:, 0].astype(np.int64)
        if isinstance(actions, spaces.Box):
            action = action[:, None, None] / np.array([[4.0, 5.0], [6.0, 7.0]])
        for each in (original, buffer):
            each.add(obs, after, action, *rest)
    own, others = buffer.sample(2000), original.sample(2000)
    assert [(part.dtype, part.shape) for part in own] == [(part.dtype, part.shape) for part in others]
    assert rows(own) == rows(others)
    assert len(rows(own)) == 20 * ENVS


def test_observations_may_be_dicts(make: Callable[..., Any]) -> None:
    buffer = filled(make(1000, DICT, ACTIONS))
    samples = buffer.sample(2000)
    seen, after = samples.observations, samples.next_observations
    k = seen["arm"][:, 0]
    assert set(k.tolist()) == {*range(20), *range(100, 120)}
    assert seen["eye"]["pixel"].dtype == torch.uint8
    assert torch.equal(seen["eye"]["pixel"][:, 0], k.to(torch.uint8))
    assert torch.equal(after["arm"], seen["arm"] + 1)
    assert torch.equal(after["eye"]["pixel"][:, 0], (k + 1).to(torch.uint8))
    assert torch.equal(samples.actions[:, 0], k.long() % 4)
    # The first environment's episodes end by a time limit, the second's by themselves.
    assert torch.equal(samples.dones[:, 0] == 1, (k >= 100) & (k % 5 == 4))


def test_observations_may_be_tuples(make: Callable[..., Any]) -> None:
    buffer = make(1000, TUPLE, ACTIONS)
    for obs, after, *rest in steps(20):
        buffer.add(as_tuple(obs), as_tuple(after), *rest)
    for each in (buffer, pickle.loads(pickle.dumps(buffer))):  # noqa: S301
        samples = each.sample(2000)
        for seen, behind in ((samples.observations, 0), (samples.next_observations, 1)):
            arm, (number, eye) = seen
            k = arm[:, 0] - behind
            assert set(k.tolist()) == {*range(20), *range(100, 120)}
            assert (number.dtype, number.shape, eye["pixel"].dtype) == (torch.int64, (2000, 1), torch.uint8)
            assert torch.equal(number[:, 0] - behind, k.long())
            assert torch.equal(eye["pixel"][:, 0] - behind, k.to(torch.uint8))
            assert torch.equal(samples.actions[:, 0], k.long() % 4)


def test_wrong_part_of_a_tuple_is_named(make: Callable[..., Any]) -> None:
    buffer = make(100, TUPLE, ACTIONS)
    good = as_tuple(np.zeros((ENVS, 3), np.float32))
    for wrong, told in (
        (good[:1], r"obs: expected a tuple of 2, got a tuple of 1"),
        (good[0], r"obs: expected a tuple of 2, got a ndarray"),
        ((good[0], good[0]), r"obs\[1\]: expected a tuple of 2, got a ndarray"),
        ((np.zeros((ENVS, 4)), good[1]), r"obs\[0\]: expected shape \(2, 3\), got \(2, 4\)"),
        ((good[0], (good[1][0], {})), r"obs\[1\]\[1\]: expected a dict with the keys \['pixel'\]"),
    ):
        with pytest.raises(ValueError, match=told):
            buffer.add(**(STEP | {"obs": wrong, "next_obs": good}))
    buffer.add(**(STEP | {"obs": good, "next_obs": good}))
    assert buffer.size() == ENVS


def test_buffer_on_a_cluster_is_saved_by_its_url(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its URL was taken for a wrong one when it was saved."""
    monkeypatch.setenv("REPLAY_SERVER_PASSWORD", "secret")
    with rs.Cluster(shards=2, password="secret") as cluster:
        with pytest.raises(ValueError, match="REPLAY_SERVER_PASSWORD"):
            pickle.dumps(ReplayServerBuffer(1000, DICT, ACTIONS, url=cluster.url))
        buffer = ReplayServerBuffer(1000, DICT, ACTIONS, n_envs=ENVS, url=cluster.url.replace(":secret@", ""))
        again = pickle.loads(pickle.dumps(filled(buffer)))  # noqa: S301
        assert again.size() == 20 * ENVS


def test_saved_buffer_has_the_transitions(make: Callable[..., Any]) -> None:
    """Its lock could not be pickled."""
    buffer = filled(make(1000, DICT, ACTIONS))
    again = pickle.loads(pickle.dumps(buffer))  # noqa: S301
    assert again.size() == buffer.size() == 20 * ENVS
    assert flat(again.sample(2000)) == flat(buffer.sample(2000))
    assert len(flat(filled(again, 30).sample(4000))) == 30 * ENVS


def test_copy_in_a_process_is_a_buffer_of_its_own() -> None:
    buffer = filled(ReplayServerBuffer(1000, DICT, ACTIONS, n_envs=ENVS))
    again = copy.deepcopy(buffer)
    again.reset()
    assert (again.size(), buffer.size()) == (0, 20 * ENVS)


def test_saved_buffer_has_no_password() -> None:
    with rs.Server(password="secret") as server:
        buffer = ReplayServerBuffer(10, BOX, ACTIONS, url=server.url)
        with pytest.raises(ValueError, match="REPLAY_SERVER_PASSWORD"):
            pickle.dumps(buffer)


def test_sampling_an_empty_buffer_in_a_process_is_an_error() -> None:
    """It waited for ever, since nobody else could add."""
    with pytest.raises(rs.Timeout):
        ReplayServerBuffer(10, BOX, ACTIONS).sample(1)


def test_space_without_columns_is_refused() -> None:
    with pytest.raises(ValueError, match="space of arrays"):
        ReplayServerBuffer(10, spaces.Dict({"words": spaces.Text(5)}), ACTIONS)


@pytest.mark.parametrize("actions", [spaces.Dict({"a": ACTIONS}), spaces.Tuple((ACTIONS, ACTIONS))])
def test_action_space_without_a_column_is_refused(actions: Any) -> None:
    """It became a column of float64, which no action fitted."""
    with pytest.raises(ValueError, match=r"expected actions of one array, got (Dict|Tuple)"):
        ReplayServerBuffer(10, BOX, actions)


STEP = {
    "obs": np.zeros((ENVS, 3)),
    "next_obs": np.zeros((ENVS, 3)),
    "action": np.zeros(ENVS, np.int64),
    "reward": np.zeros(ENVS),
    "done": np.zeros(ENVS, bool),
    "infos": [{}] * ENVS,
}


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"obs": np.zeros((ENVS, 4))}, r"obs: expected shape \(2, 3\), got \(2, 4\)"),
        ({"next_obs": np.zeros((3, ENVS))}, r"next_obs: expected shape \(2, 3\), got \(3, 2\)"),
        ({"obs": [[0.0], [0.0, 1.0]]}, r"obs: expected an array of shape \(2, 3\), got what cannot become one"),
        ({"obs": np.full((ENVS, 3), "a")}, "obs: expected numbers that float32 holds, got <U1"),
        ({"action": np.zeros(1, np.int64)}, r"action: expected shape \(2, 1\), got \(1,\)"),
        ({"action": np.full(ENVS, 0.5)}, "action: expected numbers that int64 holds, got others, of float64"),
        ({"action": np.full(ENVS, np.nan)}, "action: expected numbers that int64 holds, got others, of float64"),
        ({"reward": np.zeros(3)}, r"reward: expected shape \(2, 1\), got \(3,\)"),
        ({"done": np.zeros((ENVS, ENVS), bool)}, r"done: expected shape \(2, 1\), got \(2, 2\)"),
        ({"infos": [{}]}, "infos: expected 2, one of each environment, got 1"),
    ],
)
def test_wrong_step_is_refused_and_leaves_the_others(
    make: Callable[..., Any], wrong: dict[str, Any], told: str
) -> None:
    """It was kept, and every later sample raised an error until all steps were thrown away."""
    buffer = make(100, BOX, ACTIONS)
    buffer.add(**STEP)
    with pytest.raises(ValueError, match=told):
        buffer.add(**(STEP | wrong))
    buffer.add(**STEP)
    assert buffer.size() == 2 * ENVS
    assert buffer.sample(3).observations.shape == (3, 3)


def test_wrong_part_of_a_dict_is_named(make: Callable[..., Any]) -> None:
    buffer = make(100, DICT, ACTIONS)
    good = as_dict(np.zeros((ENVS, 3), np.float32))
    for wrong, told in (
        (
            good | {"eye": {"pixel": np.full((ENVS, 1), 256)}},
            r"obs\['eye'\]\['pixel'\]: expected numbers that uint8 holds",
        ),
        (good | {"eye": {}}, r"obs\['eye'\]: expected a dict with the keys \['pixel'\], got a dict without"),
        (good["arm"], r"obs: expected a dict with the keys \['arm', 'eye'\], got a ndarray without"),
    ):
        with pytest.raises(ValueError, match=told):
            buffer.add(**(STEP | {"obs": wrong, "next_obs": good}))
    buffer.add(**(STEP | {"obs": good, "next_obs": good}))
    assert buffer.size() == ENVS


def test_step_of_one_environment_needs_no_dimension_for_it() -> None:
    buffer = ReplayServerBuffer(100, BOX, ACTIONS)
    buffer.add(np.arange(3.0), np.arange(3.0), 1, 2.0, True, [{}])
    samples = buffer.sample(1)
    assert [part.tolist() for part in samples] == [[[0, 1, 2]], [[1]], [[0, 1, 2]], [[1]], [[2]]]


def test_step_is_copied() -> None:
    """CleanRL's scripts hand over arrays that the environments write to again."""
    buffer = ReplayServerBuffer(100, BOX, ACTIONS, n_envs=ENVS)
    step = {name: np.array(value) if name != "infos" else value for name, value in STEP.items()}
    step |= {"obs": np.zeros((ENVS, 3), np.float32), "reward": np.zeros(ENVS, np.float32)}
    buffer.add(**step)
    step["obs"] += 1
    step["reward"] += 1
    samples = buffer.sample(1)
    assert not samples.observations.any()
    assert not samples.rewards.any()
