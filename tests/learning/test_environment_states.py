"""Environments go on in another process, from their state, bit by bit as if they had never left."""

from __future__ import annotations

import itertools
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
gymnasium = pytest.importorskip("gymnasium")

from replay_server.actors.environment_states import StateUnsupported  # noqa: E402
from replay_server.actors.envs import AtariEnvironments, make_environments  # noqa: E402
from replay_server.actors.fragments import FragmentCollector  # noqa: E402
from replay_server.actors.state_codec import StateError, pack_state, unpack_state  # noqa: E402
from replay_server.rl.policy_networks import make_policy_network  # noqa: E402
from replay_server.rl.policy_settings import PolicySettings  # noqa: E402
from replay_server.rl.policy_spec import policy_spec  # noqa: E402

CLASSIC = ["CartPole-v1", "Acrobot-v1", "MountainCar-v0", "MountainCarContinuous-v0", "Pendulum-v1"]
MUJOCO = [
    *("Hopper-v5", "Walker2d-v5", "HalfCheetah-v5", "Humanoid-v5", "Ant-v5", "Reacher-v5"),
    *("Hopper-v4", "Humanoid-v4"),
]


@pytest.fixture(autouse=True)
def one_core() -> Iterator[None]:
    """Networks this small are only slowed down by threads that wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def environments(env: str, count: int = 2, seed: int = 3, stateful: bool = False, **changes: Any) -> Any:
    settings = PolicySettings(**{"env": env, **changes})
    return make_environments(settings, count, np.random.SeedSequence(seed), stateful)


def actions(env: str, made: Any, step: int) -> np.ndarray:
    """Those of a step, of themselves and not of what was played before."""
    drawn = np.random.default_rng(step)
    if made.num_actions:
        return drawn.integers(made.num_actions, size=made.num_envs)
    with gymnasium.make(env) as one:
        space = one.action_space
    return drawn.uniform(space.low, space.high, (made.num_envs, *space.shape)).astype(np.float32)


def play(made: Any, plan: list[np.ndarray]) -> list[np.ndarray]:
    """Steps with these actions: all that came, of all steps."""
    steps = [made.step(made.forced(each)) for each in plan]
    names = ("observations", "rewards", "terminated", "truncated", "lost_life", "ignored")
    return [np.stack([getattr(step, name) for step in steps]) for name in names]


def played_with_cuts(env: str, steps: int, cuts: int, **changes: Any) -> bool:
    """Plays straight, and with cuts at random steps after which newly made environments go on: all must be equal.

    Returns whether an episode ended.
    """
    straight = environments(env, **changes)
    plan = [actions(env, straight, step) for step in range(steps)]
    first = straight.reset()
    expected = play(straight, plan)
    straight.close()
    places = [0, *sorted(random.Random(env).sample(range(1, steps), cuts)), steps]
    made = environments(env, **changes)
    np.testing.assert_array_equal(made.reset(), first)
    parts = []
    for begin, end in itertools.pairwise(places):
        state = made.state()
        made.close()
        made = environments(env, seed=99, **changes)
        made.restore(state)
        parts.append(play(made, plan[begin:end]))
    made.close()
    for name, whole, pieces in zip(("observations", "rewards", "terminated", "truncated"), expected, zip(*parts)):
        np.testing.assert_array_equal(np.concatenate(pieces), whole, err_msg=name)
    return bool((expected[2] | expected[3]).any())


@pytest.mark.parametrize("env", CLASSIC)
def test_classic_control_goes_on_from_a_state_after_any_step(env):
    ended = played_with_cuts(env, steps=260, cuts=12)
    assert ended == (env in ("CartPole-v1", "MountainCar-v0", "Pendulum-v1")), "resets must be among what is shown"


@pytest.mark.parametrize("env", MUJOCO)
@pytest.mark.filterwarnings("ignore:.*out of date")
def test_mujoco_goes_on_from_a_state_after_any_step(env):
    """Contacts, the solver's warm start, positions that lag behind, generators: whatever differs shows within steps."""
    pytest.importorskip("mujoco")
    played_with_cuts(env, steps=100, cuts=3)


@pytest.mark.parametrize(
    ("env", "changes"),
    [
        ("ALE/Qbert-v5", {}),
        ("ALE/SpaceInvaders-v5", {"sticky_actions": 0.25}),
        ("ALE/Breakout-v5", {"frame_stack": 3, "max_frames_per_episode": 301}),
    ],
)
def test_atari_goes_on_from_a_state_after_any_step(env, changes):
    """Qbert: frames that are cut. Space Invaders: stickiness. Breakout: lost lives, FIRE, time limits."""
    ended = played_with_cuts(env, steps=120, cuts=2, stateful=True, **changes)
    assert ended == (env == "ALE/Breakout-v5")


@pytest.mark.parametrize("env", ["ALE/Breakout-v5", "ALE/Freeway-v5"])
def test_games_with_a_state_are_those_of_the_library(env):
    """Bit by bit, where there is no choice of no-ops; of the last frames of a game each makes another picture."""
    ours = environments(env, noop_max=1, max_frames_per_episode=600, stateful=True)
    theirs = environments(env, noop_max=1, max_frames_per_episode=600)
    plan = [actions(env, ours, step) for step in range(200)]
    np.testing.assert_array_equal(ours.reset(), theirs.reset())
    got, expected = play(ours, plan), play(theirs, plan)
    theirs.close()
    ends = expected[2] | expected[3]
    assert ends.any()
    np.testing.assert_array_equal(got[0][~ends], expected[0][~ends])
    for mine, other in zip(got[1:], expected[1:]):
        np.testing.assert_array_equal(mine, other)


def test_a_time_limit_counts_on_after_a_state():
    made = environments("Pendulum-v1", count=1)
    made.reset()
    plan = [np.zeros((1, 1), np.float32)] * 150
    play(made, plan)
    state = made.state()
    other = environments("Pendulum-v1", count=1)
    other.restore(state)
    _, _, _, truncated, _, _ = play(other, plan[:60])
    assert np.flatnonzero(truncated[:, 0]).tolist() == [49]


# ---- collectors -----------------------------------------------------------------------------------------------------

PLAY_ONE = """
import sys
from replay_server.actors.fragments import FragmentCollector
from replay_server.actors.state_codec import pack_state, unpack_state
from replay_server.rl.policy_networks import make_policy_network
from replay_server.rl.policy_settings import PolicySettings
from replay_server.rl.policy_spec import policy_spec
came = sys.stdin.buffer.read()
states = unpack_state(came) if came else {}
played = {}
for env in sys.argv[1:]:
    settings = PolicySettings(env=env, steps=40, hidden=8)
    spec = policy_spec(settings)
    made = FragmentCollector(settings, spec, 2, [1, 7], 4, state=states.get(env), stateful=True)
    rollout = made.collect(make_policy_network(settings, spec), 5)
    played[env] = (made.state(), rollout.fragments, rollout.scores)
sys.stdout.buffer.write(pack_state(played))
"""


def collector(env: str, state: bytes | None = None, seed: int = 1) -> FragmentCollector:
    settings = PolicySettings(env=env, steps=40, hidden=8)
    return FragmentCollector(
        settings, policy_spec(settings), 2, [seed, 7], first_environment=4, state=state, stateful=True
    )


def network(made: FragmentCollector) -> Any:
    return make_policy_network(made.settings, made.spec)


def assert_same_fragments(fragments: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> None:
    assert list(fragments) == list(expected)
    for name, column in expected.items():
        np.testing.assert_array_equal(fragments[name], column, err_msg=name)


def test_three_processes_play_what_one_plays_in_a_row(tmp_path):
    pytest.importorskip("mujoco")
    envs = ["Hopper-v5", "ALE/Qbert-v5"]
    single = {**os.environ, "OMP_NUM_THREADS": "1"}
    straight = {env: collector(env) for env in envs}
    state = b""
    for _ in range(3):
        command = [sys.executable, "-c", PLAY_ONE, *envs]
        result = subprocess.run(
            command, input=state, stdout=subprocess.PIPE, timeout=60, cwd=tmp_path, env=single, check=True
        )
        played = unpack_state(result.stdout)
        for env, one in straight.items():
            rollout = one.collect(network(one), 5)
            after, fragments, scores = played[env]
            assert_same_fragments(fragments, rollout.fragments)
            assert (after, scores) == (one.state(), rollout.scores)
        state = pack_state({env: after for env, (after, _, _) in played.items()})


@pytest.mark.parametrize("env", ["CartPole-v1", "Hopper-v5"])
def test_a_restored_collector_yields_the_same_fragments_whatever_it_played_before(env):
    if env.startswith("Hopper"):
        pytest.importorskip("mujoco")
    one, other = collector(env), collector(env, seed=2)
    policy = network(one)
    one.collect(policy, 1)
    other.collect(policy, 1)
    other.collect(policy, 1)
    other.restore(one.state())
    for _ in range(2):
        expected, got = one.collect(policy, 2), other.collect(policy, 2)
        assert (got.scores, got.steps) == (expected.scores, expected.steps)
        assert_same_fragments(got.fragments, expected.fragments)


# ---- refusals -------------------------------------------------------------------------------------------------------


class Own(gymnasium.Env):
    """Walks at random; says its own state where `says` is set."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (1,), np.float64)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.at = 0.0
        return np.array([self.at]), {}

    def step(self, action):
        self.at += float(self.np_random.normal()) + float(action)
        return np.array([self.at]), self.at, abs(self.at) > 9, False, {}


class Saying(Own):
    def state_dict(self):
        return {"at": self.at}

    def load_state_dict(self, values):
        self.at = values["at"]


gymnasium.register("Own-v0", Own)
gymnasium.register("Saying-v0", Saying)


def test_an_environment_that_cannot_give_its_state_is_refused_with_what_can():
    made = environments("Own-v0")
    made.reset()
    with pytest.raises(StateUnsupported, match=r"Own cannot give its state.*MuJoCo.*classic control.*state_dict\(\)"):
        made.state()


def test_an_environment_of_ones_own_joins_in_with_two_methods():
    played_with_cuts("Saying-v0", steps=200, cuts=9)


def test_wrappers_without_a_state_of_their_own_are_played_through():
    def made(**options):
        inner = gymnasium.make("Pendulum-v1", disable_env_checker=True, **options)
        one = np.ones(1, np.float32)
        return gymnasium.wrappers.FlattenObservation(gymnasium.wrappers.RescaleAction(inner, -one, one))

    gymnasium.register("Flattened-v0", made)
    played_with_cuts("Flattened-v0", steps=450, cuts=9)


def test_a_wrapper_that_is_not_known_is_refused():
    gymnasium.register(
        "Wrapped-v0",
        "gymnasium.envs.classic_control.cartpole:CartPoleEnv",
        additional_wrappers=(gymnasium.wrappers.NormalizeObservation.wrapper_spec(),),
    )
    made = environments("Wrapped-v0", count=1)
    made.reset()
    with pytest.raises(StateUnsupported, match="NormalizeObservation cannot give its state: expected only TimeLimit"):
        made.state()


def test_the_state_of_another_environment_is_refused():
    one, other = environments("CartPole-v1"), environments("Acrobot-v1")
    one.reset()
    with pytest.raises(StateError, match=r"expected a state of .*AcrobotEnv.*, got one of .*CartPoleEnv"):
        other.restore(one.state())
    with pytest.raises(StateError, match="of 3 environments, got those of 2"):
        environments("CartPole-v1", count=3).restore(one.state())
    with pytest.raises(StateError, match="expected a packed state, got 4 other bytes"):
        one.restore(b"\xc1abc")


def test_atari_as_ape_x_plays_it_says_that_it_has_no_state():
    made = AtariEnvironments(PolicySettings(env="ALE/Pong-v5"), 1, np.random.SeedSequence(1))
    with pytest.raises(StateUnsupported, match="stateful=True"):
        made.state()
    made.close()


def test_values_come_back_with_the_types_they_had():
    values = {
        "float32": np.float32(0.1),
        "float": 0.1,
        "tuple": (1, (2.5, None)),
        "large": [2**127 + 1, -(2**90), 2**64 - 1, -(2**63)],
        "empty": np.zeros((0, 3), np.int8),
        "array": np.arange(6, dtype=">i4").reshape(2, 3)[:, ::2],
        "flag": np.True_,
    }
    back = unpack_state(pack_state(values))
    assert list(back) == list(values)
    for name, value in values.items():
        assert type(back[name]) is type(value), name
        assert np.array_equal(back[name], value) if isinstance(value, np.ndarray) else back[name] == value, name
    assert back["float32"].dtype == np.float32
    assert back["array"].dtype == np.dtype(">i4")
    back["array"][:] = 0
    with pytest.raises(TypeError, match="got object"):
        pack_state({"x": object()})
