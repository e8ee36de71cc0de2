"""The dueling network's size, outputs, initial weights, and its way through the weights codec."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from replay_server.rl.environment_spec import EnvironmentSpec
from replay_server.rl.networks import DuelingNetwork, check_network, make_acting_network, make_network
from replay_server.rl.observations import Leaf, atari_screens
from replay_server.rl.settings import ApexSettings
from replay_server.rl.weights import load_arrays, module_arrays

ATARI = EnvironmentSpec(atari_screens(4, 84), 4, frames_per_step=4)
CARTPOLE = EnvironmentSpec(Leaf((4,)), 2)


def test_four_actions_make_exactly_the_published_number_of_parameters() -> None:
    network = DuelingNetwork(atari_screens(4, 84), 4)
    assert sum(parameter.numel() for parameter in network.parameters()) == 3_292_837


def test_convolutions_of_2013_are_those_of_the_paper() -> None:
    """Mnih et al. 2013, section 4.1: 16 filters of 8×8 with stride 4, 32 of 4×4 with stride 2, 256 units."""
    network = make_network(ApexSettings(convolutions="mnih2013", hidden=256), ATARI)
    layers = [each for each in network.body if isinstance(each, torch.nn.Conv2d)]
    assert [(each.out_channels, each.kernel_size[0], each.stride[0]) for each in layers] == [(16, 8, 4), (32, 4, 2)]
    assert network.value[0].weight.shape == (256, 32 * 9 * 9)
    assert network(torch.zeros((2, 4, 84, 84), dtype=torch.uint8)).shape == (2, 4)


def test_bytes_go_in_and_come_out_scaled_by_255() -> None:
    network = make_network(ApexSettings(), ATARI)
    screens = torch.randint(0, 256, (3, 4, 84, 84), dtype=torch.uint8)
    before = screens.clone()
    q_values = network(screens)
    assert q_values.shape == (3, 4)
    assert torch.equal(screens, before)
    features = network.body(screens)
    torch.testing.assert_close(features, torch.nn.Sequential.forward(network.body, screens.float() / 255))
    advantage = network.advantage(features)
    expected = network.value(features) + advantage - advantage.mean(dim=1, keepdim=True)
    torch.testing.assert_close(q_values, expected, rtol=1e-4, atol=1e-5)


def test_float_screens_are_not_scaled_in_place() -> None:
    network = make_network(ApexSettings(), ATARI)
    screens = torch.full((1, 4, 84, 84), 255.0)
    network(screens)
    assert screens.max() == 255.0


def test_advantages_are_centred_on_the_value() -> None:
    network = make_network(ApexSettings(), CARTPOLE)
    observations = torch.randn(5, 4)
    mean = network(observations).mean(dim=1, keepdim=True)
    torch.testing.assert_close(mean, network.value(network.body(observations)), rtol=1e-4, atol=1e-5)


def test_every_part_of_a_run_starts_from_the_same_weights_and_seeds_nothing_else() -> None:
    torch.manual_seed(123)
    expected = torch.rand(3)
    torch.manual_seed(123)
    first, second = make_network(ApexSettings(seed=7), CARTPOLE), make_acting_network(ApexSettings(seed=7), CARTPOLE)
    assert torch.equal(torch.rand(3), expected)
    other = make_network(ApexSettings(seed=8), CARTPOLE)
    for name, array in module_arrays(first).items():
        np.testing.assert_array_equal(array, module_arrays(second)[name])
    assert any((array != module_arrays(other)[name]).any() for name, array in module_arrays(first).items())


@pytest.mark.parametrize("spec", [ATARI, CARTPOLE], ids=["atari", "cartpole"])
def test_weights_survive_the_way_through_arrays_and_memory_formats(spec: EnvironmentSpec) -> None:
    source = make_network(ApexSettings(seed=1), spec)
    target = make_acting_network(ApexSettings(seed=2), spec)
    arrays = {name: array.copy() for name, array in module_arrays(source).items()}
    for array in arrays.values():
        assert array.flags.c_contiguous
        array.flags.writeable = False
    load_arrays(target, arrays)
    observations = torch.from_numpy(spec.observation.random(np.random.default_rng(0), 2))
    torch.testing.assert_close(target(observations), source(observations), rtol=1e-4, atol=1e-5)


def test_weights_of_another_network_are_refused_before_anything_is_changed() -> None:
    network = make_network(ApexSettings(), CARTPOLE)
    before = {name: array.copy() for name, array in module_arrays(network).items()}
    wider = module_arrays(make_network(ApexSettings(hidden=64), CARTPOLE))
    with pytest.raises(ValueError, match="expected shape"):
        load_arrays(network, wider)
    with pytest.raises(ValueError, match="missing"):
        load_arrays(network, {})
    for name, array in module_arrays(network).items():
        np.testing.assert_array_equal(array, before[name])


class Wide(torch.nn.Module):
    """A network of a user's own."""

    def __init__(self, observation_shape: tuple[int, ...], num_actions: int, hidden: int) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(observation_shape[0], num_actions)
        self.hidden = hidden

    def forward(self, observations: torch.Tensor) -> torch.Tensor:
        return self.layer(observations)


def with_one_value(observation_shape: tuple[int, ...], num_actions: int, hidden: int) -> torch.nn.Module:
    return torch.nn.Linear(observation_shape[0], 1)


def broken(observation_shape: tuple[int, ...], num_actions: int, hidden: int) -> torch.nn.Module:
    raise KeyError("no such size")


def of_wrong_input(observation_shape: tuple[int, ...], num_actions: int, hidden: int) -> torch.nn.Module:
    return torch.nn.Linear(observation_shape[0] + 1, num_actions)


def test_a_network_of_ones_own_is_made_by_name_and_from_the_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "my_networks", sys.modules[__name__])
    settings = ApexSettings(network="my_networks:Wide", hidden=32)
    first, second = make_network(settings, CARTPOLE), make_acting_network(settings, CARTPOLE)
    assert type(first) is Wide
    assert first.hidden == 32
    for name, array in module_arrays(first).items():
        np.testing.assert_array_equal(array, module_arrays(second)[name])
    check_network(settings, CARTPOLE)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("no_such_module:Wide", "No module named 'no_such_module'; is the module's folder in PYTHONPATH"),
        ("my_networks:Nothing", "has no attribute 'Nothing'"),
        ("Wide", "expected module:name"),
        ("my_networks:with_one_value", r"expected values of shape \(2, 2\) for 2 observations, got \(2, 1\)"),
        ("my_networks:broken", r"my_networks:broken failed: KeyError: 'no such size' \(.*test_networks.py, line \d+\)"),
        (
            "my_networks:of_wrong_input",
            r"of_wrong_input failed: RuntimeError: mat1 and mat2 shapes",
        ),
    ],
)
def test_a_network_that_cannot_be_is_refused_by_name(monkeypatch: pytest.MonkeyPatch, name: str, message: str) -> None:
    monkeypatch.setitem(sys.modules, "my_networks", sys.modules[__name__])
    with pytest.raises(ValueError, match=message):
        check_network(ApexSettings(network=name), CARTPOLE)


def test_a_module_that_fails_as_it_is_imported_is_named_with_its_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "networks_that_fail.py").write_text("size = 3\nsize / 0\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ValueError, match=r"failed: ZeroDivisionError: division by zero \(.*_fail.py, line 2\)"):
        check_network(ApexSettings(network="networks_that_fail:Wide"), CARTPOLE)
