"""Observations of any kind: what tables and networks have of them, and that they mean the same in both."""

from __future__ import annotations

import sys
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete, Graph, MultiBinary, MultiDiscrete, Sequence, Space, Text, Tuple
from gymnasium.spaces import Dict as DictSpace

torch = pytest.importorskip("torch")

from replay_server.rl.environment_spec import EnvironmentSpec  # noqa: E402
from replay_server.rl.networks import DuelingNetwork, ImageBody, check_network, make_network  # noqa: E402
from replay_server.rl.observations import (  # noqa: E402
    MAX_LEAVES,
    Leaf,
    ObservationReader,
    columns,
    from_columns,
    leaves,
    map_tree,
    observation_tree,
)
from replay_server.rl.settings import ApexSettings  # noqa: E402
from replay_server.rl.tables import apex_table  # noqa: E402

BYTE = 1.0 / 255.0
SPACES: list[tuple[Space[Any], Any]] = [
    (Box(-1, 1, (3,), np.float64), Leaf((3,))),
    (Box(0, 255, (128,), np.uint8), Leaf((128,))),
    (Box(-1, 1, (3, 4)), Leaf((3, 4))),
    (Box(-1, 1, ()), Leaf(())),
    (Box(0, 255, (3, 32, 32), np.uint8), Leaf((3, 32, 32), "uint8", is_image=True, scale=BYTE)),
    (Box(0, 255, (84, 84), np.uint8), Leaf((84, 84), "uint8", is_image=True, scale=BYTE)),
    (Box(0, 255, (210, 160, 3), np.uint8), Leaf((210, 160, 3), "uint8", is_image=True, scale=BYTE)),
    (Box(0, 255, (4, 32, 32, 3), np.uint8), Leaf((4, 32, 32, 3), "uint8", is_image=True, scale=BYTE)),
    (Box(0, 10, (7, 7, 3), np.int64), Leaf((7, 7, 3), "uint8", is_image=True, scale=0.1)),
    (Box(0, 1, (1, 20, 30)), Leaf((1, 20, 30), is_image=True)),
    (Box(-np.inf, np.inf, (5, 12, 12)), Leaf((5, 12, 12), is_image=True)),
    (Box(0, 255, (3, 3, 3), np.uint8), Leaf((3, 3, 3))),
    (Discrete(5, start=3), Leaf((5,), "uint8")),
    (MultiBinary((2, 3)), Leaf((6,), "uint8")),
    (MultiDiscrete([3, 4]), Leaf((7,), "uint8")),
    (
        DictSpace({"b": Tuple([Discrete(2), Box(0, 255, (8, 8, 3), np.uint8)]), "a c": Box(-1, 1, (2,))}),
        {
            "a%20c": Leaf((2,)),
            "b/0": Leaf((2,), "uint8"),
            "b/1": Leaf((8, 8, 3), "uint8", is_image=True, scale=BYTE),
        },
    ),
    (Tuple([Box(-1, 1, (1,))]), {"0": Leaf((1,))}),
]
IDS = [str(space) for space, _ in SPACES]


@pytest.mark.parametrize(("space", "tree"), SPACES, ids=IDS)
def test_a_space_has_these_leaves_and_a_table_columns_for_them(space: Space[Any], tree: Any) -> None:
    assert observation_tree(space) == tree
    settings = ApexSettings(capacity=10, min_size_to_sample=1)
    signature = apex_table(settings, EnvironmentSpec(tree, 3)).leaves
    suffixes = [f"/{path}" if path else "" for path in leaves(tree)]
    assert set(signature) == {"action", "reward", "discount"} | {
        f"{name}{suffix}" for name in ("step_obs", "obs", "next_obs") for suffix in suffixes
    }


@pytest.mark.parametrize(("space", "tree"), SPACES, ids=IDS)
def test_what_an_environment_gives_gets_to_its_row_and_a_network_takes_it(space: Space[Any], tree: Any) -> None:
    space.seed(1)
    reader = ObservationReader(space)
    observations, given = reader.empty(4), [space.sample() for _ in range(4)]
    for row, each in enumerate(given):
        reader.take(observations, row, each)

    def part(observation: Any, path: str) -> tuple[Any, Any]:
        found, inner = observation, space
        for key in filter(None, path.split("/")):
            is_dict = isinstance(inner, DictSpace)
            key = {"a%20c": "a c"}.get(key, key) if is_dict else int(key)
            found, inner = found[key], inner[key]
        return found, inner

    for path, array in leaves(observations).items():
        for row in range(4):
            value, inner = part(given[row], path)
            expected = np.asarray(gymnasium.spaces.flatten(inner, value)).ravel()
            np.testing.assert_array_equal(array[row].ravel(), expected.astype(array.dtype))

    spec = EnvironmentSpec(tree, 3)
    network = make_network(ApexSettings(hidden=8), spec)
    q_values = network(map_tree(torch.from_numpy, observations))
    assert q_values.shape == (4, 3)
    assert torch.isfinite(q_values).all()
    assert len({tuple(row) for row in q_values.tolist()}) > 1, "the values depend on the observation"
    for row in range(4):  # one at a time, and all together
        alone = network(map_tree(lambda leaf, row=row: torch.from_numpy(leaf[row : row + 1]), observations))
        torch.testing.assert_close(alone, q_values[row : row + 1], rtol=1e-4, atol=1e-5)


def test_a_single_array_is_the_tree_of_one_leaf_and_is_not_copied() -> None:
    array = np.zeros((2, 4, 84, 84), np.uint8)
    assert columns("obs", array)["obs"] is array
    assert from_columns("obs", {"obs": array, "next_obs": array + 1}) is array
    tree = {"image": array, "hand/place": array}
    assert columns("obs", tree) == {"obs/image": array, "obs/hand/place": array}
    assert from_columns("obs", {**columns("obs", tree), "obs2/x": array, "action": array}) == tree


def test_text_is_told_by_its_letters() -> None:
    space = Text(6)
    reader = ObservationReader(space)
    observations = reader.empty(1)
    reader.take(observations, 0, "abc")
    np.testing.assert_array_equal(observations[0], gymnasium.spaces.flatten(space, "abc"))


@pytest.mark.parametrize(
    ("space", "words"),
    [
        (Sequence(Discrete(3)), "the observation: expected a space of one fixed size, got Sequence"),
        (DictSpace({"a": Graph(Box(-1, 1, (2,)), None)}), "observation 'a': expected a space of one fixed size"),
        (DictSpace({}), f"1 to {MAX_LEAVES} arrays, got 0"),
        (DictSpace({str(i): Discrete(2) for i in range(MAX_LEAVES + 1)}), f"1 to {MAX_LEAVES} arrays, got"),
        (DictSpace({"": Discrete(2), "a": Discrete(2)}), "none of them empty"),
        (DictSpace({"x": Box(0, 1, (2, 0))}), "observation 'x': expected a space with no side of 0"),
    ],
)
def test_an_observation_that_no_table_can_have_is_refused(space: Space[Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        observation_tree(space)


# ---- networks --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("side", [5, 17, 32, 48, 200])
def test_an_image_means_the_same_with_its_channels_first_or_last(side: int) -> None:
    first = Leaf((3, side, side + 2), "uint8", is_image=True, scale=BYTE)
    last = Leaf((side, side + 2, 3), "uint8", is_image=True, scale=BYTE)
    assert first.picture == last.picture == (3, side, side + 2)
    one, other = ImageBody(first), ImageBody(last)
    other.load_state_dict(one.state_dict())
    images = torch.from_numpy(first.random(np.random.default_rng(0), 2))
    before = images.clone()
    features = one(images)
    assert features.shape == (2, one.features)
    torch.testing.assert_close(features, other(images.movedim(1, 3).contiguous()), rtol=1e-4, atol=1e-5)
    assert torch.equal(images, before)


def test_a_stack_of_colour_images_is_one_image_of_all_their_channels() -> None:
    stack = Leaf((4, 32, 30, 3), "uint8", is_image=True, scale=BYTE)
    merged = Leaf((12, 32, 30), "uint8", is_image=True, scale=BYTE)
    one, other = ImageBody(stack), ImageBody(merged)
    other.load_state_dict(one.state_dict())
    images = torch.from_numpy(stack.random(np.random.default_rng(0), 2))
    torch.testing.assert_close(one(images), other(images.movedim(4, 2).flatten(1, 2)), rtol=1e-4, atol=1e-5)


def test_images_larger_than_any_screen_make_networks_of_a_bounded_size() -> None:
    network = DuelingNetwork(Leaf((1080, 1920, 3), "uint8", is_image=True, scale=BYTE), 4, hidden=16)
    assert network.body.features <= 64 * 12 * 12


def by_path(observation_shape: dict[str, tuple[int, ...]], num_actions: int, hidden: int) -> Any:
    assert observation_shape == {"image": (3, 8, 8), "place": (2,)}

    class Joined(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(3 * 8 * 8 + 2, num_actions)

        def forward(self, observations):
            return self.layer(torch.cat([observations["image"].float().flatten(1), observations["place"]], 1))

    return Joined()


def test_a_network_of_ones_own_gets_shapes_and_observations_by_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "joined_networks", sys.modules[__name__])
    tree = {"image": Leaf((3, 8, 8), "uint8", is_image=True, scale=BYTE), "place": Leaf((2,))}
    check_network(ApexSettings(network="joined_networks:by_path"), EnvironmentSpec(tree, 5))
    with pytest.raises(ValueError, match=r"(?s)by_path failed: AssertionError.*test_observations.py, line \d+"):
        check_network(ApexSettings(network="joined_networks:by_path"), EnvironmentSpec(Leaf((2,)), 5))
