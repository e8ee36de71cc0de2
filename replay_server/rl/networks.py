"""The dueling Q-network: Nature convolutions for images, a two-layer perceptron for vectors; or the user's own."""

from __future__ import annotations

import importlib
import traceback
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

from replay_server.rl.environment_spec import EnvironmentSpec
from replay_server.rl.settings import ApexSettings


class DuelingNetwork(nn.Module):
    """Q(s, a) = V(s) + A(s, a) − mean over a of A(s, a) (Wang et al. 2016, equation 9).

    Images (uint8, channels first, at least 36×36) pass the convolutions of Mnih et al. 2015 and are scaled by 1/255
    here, so that tables hold bytes; vectors pass two layers of `hidden` units. Each stream has its own hidden layer:
    4×84×84 with 4 actions makes 3,292,837 parameters.
    """

    def __init__(self, observation_shape: tuple[int, ...], num_actions: int, hidden: int = 512) -> None:
        super().__init__()
        self.is_image = len(observation_shape) == 3
        if self.is_image:
            channels, height, width = observation_shape
            self.body = nn.Sequential(
                nn.Conv2d(channels, 32, kernel_size=8, stride=4), nn.ReLU(),
                nn.Conv2d(32, 64, kernel_size=4, stride=2), nn.ReLU(),
                nn.Conv2d(64, 64, kernel_size=3, stride=1), nn.ReLU(),
                nn.Flatten(),
            )  # fmt: skip
            features = 64 * _convolved(height) * _convolved(width)
        elif len(observation_shape) == 1:
            self.body = nn.Sequential(
                nn.Linear(observation_shape[0], hidden), nn.ReLU(),
                nn.Linear(hidden, hidden), nn.ReLU(),
            )  # fmt: skip
            features = hidden
        else:
            raise ValueError(f"expected observations of 1 (vector) or 3 (image) dimensions, got {observation_shape}")
        self.value = nn.Sequential(nn.Linear(features, hidden), nn.ReLU(), nn.Linear(hidden, 1))
        self.advantage = nn.Sequential(nn.Linear(features, hidden), nn.ReLU(), nn.Linear(hidden, num_actions))

    def forward(self, observations: Tensor) -> Tensor:
        """observations (B, C, H, W) uint8 or (B, F) float32 → Q values (B, num_actions)."""
        inputs = observations.float()
        if self.is_image:
            inputs = inputs.mul_(1.0 / 255.0) if inputs is not observations else inputs * (1.0 / 255.0)
        features = self.body(inputs)
        advantage = self.advantage(features)
        return self.value(features) + advantage - advantage.mean(dim=1, keepdim=True)


def _convolved(size: int) -> int:
    """Side length that the three convolutions leave of an image side of `size` pixels."""
    for kernel, stride in ((8, 4), (4, 2), (3, 1)):
        size = (size - kernel) // stride + 1
    if size < 1:
        raise ValueError("expected images of at least 36×36 pixels for the Nature convolutions")
    return size


def network_maker(name: str | None) -> Callable[[tuple[int, ...], int, int], nn.Module]:
    """What makes a network from an observation's shape, the number of actions and the width: `DuelingNetwork`, or what
    ``module:name`` names. ValueError where there is none of that name, or its module fails."""
    if name is None:
        return DuelingNetwork
    module, colon, attribute = name.partition(":")
    if not colon:
        raise ValueError(f"--network: expected module:name, got {name!r}")
    try:
        return getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise ValueError(
            f"--network {name}: {str(error).rstrip('.')}; is the module's folder in PYTHONPATH?"
        ) from error
    except Exception as error:
        raise ValueError(_failure(name, error)) from error


def check_network(settings: ApexSettings, spec: EnvironmentSpec) -> None:
    """Makes the network of `settings` and asks it for two observations' values. ValueError where they do not fit, or it
    fails: of its own code the message names the line."""
    observations = torch.zeros((2, *spec.observation_shape), dtype=getattr(torch, spec.observation_dtype))
    network_maker(settings.network)
    try:
        network = make_acting_network(settings, spec)
        with torch.inference_mode():
            shape = tuple(network(observations).shape)
    except Exception as error:
        if settings.network is None:
            raise
        raise ValueError(_failure(settings.network, error)) from error
    if shape != (2, spec.num_actions):
        raise ValueError(
            f"--network {settings.network}: expected values of shape (2, {spec.num_actions}) for 2 observations, "
            f"got {shape}"
        )


def _failure(name: str, error: Exception) -> str:
    """Of a user's network: what went wrong, and where in code that is neither torch nor the import system."""
    others = ("<frozen", str(Path(torch.__file__).parent))
    frames = [each for each in traceback.extract_tb(error.__traceback__) if not each.filename.startswith(others)]
    place = f"{frames[-1].filename}, line {frames[-1].lineno}"
    return f"--network {name} failed: {type(error).__name__}: {error} ({place})"


def make_network(settings: ApexSettings, spec: EnvironmentSpec) -> nn.Module:
    """The network for an environment, initialised from ``settings.seed`` (torch's global generator is left as it was).

    Every part of a run that calls this holds the same initial weights. Images get channels_last weights, which large
    batches prefer on CPU and GPU alike; `make_acting_network` suits small ones.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(settings.seed)
        network = network_maker(settings.network)(spec.observation_shape, spec.num_actions, settings.hidden)
    return _formatted(network, torch.channels_last) if spec.is_image else network


def make_acting_network(settings: ApexSettings, spec: EnvironmentSpec) -> nn.Module:
    """As `make_network`, for forward passes over the few observations of an actor's environments on one core.

    There, with Atari screens, contiguous weights are about a quarter faster than channels_last.
    """
    return _formatted(make_network(settings, spec), torch.contiguous_format).eval()


def _formatted(network: nn.Module, memory_format: torch.memory_format) -> nn.Module:
    return network.to(memory_format=memory_format)  # pyright: ignore[reportCallIssue]  (torch's stubs lack it)
