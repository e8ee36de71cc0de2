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
