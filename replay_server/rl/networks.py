"""Networks of DQN (the dueling one, or the user's own) and of SAC (policy and critics), over the same bodies.

A body is convolutions for an image, a perceptron for vectors, both for a dict.
"""

from __future__ import annotations

import importlib
import math
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from replay_server.rl.actions import Branches
from replay_server.rl.environment_spec import EnvironmentSpec
from replay_server.rl.observations import Leaf, Observations, Tree, channels_first, leaves, map_tree
from replay_server.rl.settings import ApexSettings
from replay_server.rl.value_bins import HL_GAUSS, ValueBins

Module = TypeVar("Module", bound=nn.Module)
Convolutions = tuple[tuple[int, int, int], ...]
"""Of each layer: channels that it makes, side of its kernel, stride."""
CONVOLUTIONS: dict[str, Convolutions] = {
    "mnih2015": ((32, 8, 4), (64, 4, 2), (64, 3, 1)),
    "mnih2013": ((16, 8, 4), (32, 4, 2)),
}
NATURE_SIDE = 36
"""Of an image, in pixels: the least that the convolutions of Mnih et al. 2015 leave something of."""
LARGEST_SIDE = 128
"""What larger images are brought down to."""
SMALL_SIDE = 8
SMALL_CHANNELS = (16, 32, 32)
CRITICS_SEED = 0xC717
"""Mixed into the seed of the critics, which else would begin with the policy's weights."""


class VectorBody(nn.Sequential):
    """Two layers of `hidden` units over all numbers of an observation."""

    def __init__(self, size: int, hidden: int) -> None:
        super().__init__(nn.Linear(size, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU())
        self.features = hidden

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(_as_vectors(input))


class ImageBody(nn.Sequential):
    """Convolutions by the size of an image, which is scaled here, so that tables hold bytes.

    - From 36×36 pixels: `kind`, those of Mnih et al. 2015 or, with a third of the arithmetic, of Mnih et al. 2013.
    - Smaller ones: three of 3×3, of stride 2 while a side is longer than 8, so that what is next to each other stays
      apart.
    - With a side above 128 pixels, means of squares take the pixels' place first.
    """

    def __init__(self, leaf: Leaf, kind: str = "mnih2015") -> None:
        channels, height, width = leaf.picture
        shrink = max(1, math.ceil(max(height, width) / LARGEST_SIDE))
        height, width = math.ceil(height / shrink), math.ceil(width / shrink)
        if min(height, width) >= NATURE_SIDE:
            layers = _layers(channels, CONVOLUTIONS[kind])
            features = CONVOLUTIONS[kind][-1][0] * math.prod(
                _convolved(side, CONVOLUTIONS[kind]) for side in (height, width)
            )
        else:
            layers, height, width = _small(channels, height, width)
            features = SMALL_CHANNELS[-1] * height * width
        super().__init__(*layers, nn.Flatten())
        self.features = features
        self._scale, self._shrink = leaf.scale, shrink
        self._axes = len(leaf.shape)
        self._is_channels_last = self._axes > 2 and not channels_first(leaf.shape[-3:])

    def forward(self, input: Tensor) -> Tensor:
        inputs = input.float()
        if self._scale != 1.0:
            inputs = inputs.mul_(self._scale) if inputs is not input else inputs * self._scale
        if self._axes == 2:
            inputs = inputs.unsqueeze(1)
        if self._is_channels_last:
            inputs = inputs.movedim(-1, -3)
        if self._axes == 4:
            inputs = inputs.flatten(1, 2)
        if self._shrink > 1:
            inputs = nn.functional.avg_pool2d(inputs, self._shrink, ceil_mode=True)
        return super().forward(inputs)


class JoinedBody(nn.Module):
    """The features of an observation of several leaves: a body for each image, and one for all vectors together."""

    def __init__(self, observation: dict[str, Leaf], hidden: int, convolutions: str = "mnih2015") -> None:
        super().__init__()
        self._images = [path for path, leaf in observation.items() if leaf.is_image]
        self._vectors = [path for path, leaf in observation.items() if not leaf.is_image]
        bodies: list[ImageBody | VectorBody] = [ImageBody(observation[path], convolutions) for path in self._images]
        if self._vectors:
            bodies.append(VectorBody(sum(observation[path].size for path in self._vectors), hidden))
        self.bodies = nn.ModuleList(bodies)
        self.features = sum(body.features for body in bodies)

    def forward(self, observations: dict[str, Tensor]) -> Tensor:
        inputs = [observations[path] for path in self._images]
        if self._vectors:
            inputs.append(torch.cat([_as_vectors(observations[path]) for path in self._vectors], dim=1))
        return torch.cat([body(each) for body, each in zip(self.bodies, inputs, strict=True)], dim=1)


def make_body(observation: Tree[Leaf], hidden: int, convolutions: str = "mnih2015") -> Any:
    """What turns observations into `features` numbers."""
    if isinstance(observation, dict):
        return JoinedBody(observation, hidden, convolutions)
    return ImageBody(observation, convolutions) if observation.is_image else VectorBody(observation.size, hidden)


class Stream(nn.Sequential):
    """A hidden layer, then outputs in float32 in any case: what tells actions apart is small beside their value."""

    def __init__(self, features: int, hidden: int, outputs: int) -> None:
        super().__init__(nn.Linear(features, hidden), nn.ReLU(), nn.Linear(hidden, outputs))

    def forward(self, input: Tensor) -> Tensor:
        first, then, last = self
        hidden = then(first(input))
        with torch.autocast(hidden.device.type, enabled=False):
            return last(hidden.float())


class DuelingNetwork(nn.Module):
    """Q(s, a) = V(s) + A(s, a) − mean over a of A(s, a) (Wang et al. 2016, equation 9).

    Features are those of the bodies above, `convolutions` for large images. Each stream has its own hidden layer:
    4×84×84 with 4 actions makes 3,292,837 parameters. Branches of an action share V, and each has its own mean
    (Tavakoli et al. 2018, equation 1). With `bins` the streams, and so Q, are logits of bins, as in Rainbow.
    """

    def __init__(
        self,
        observation: Tree[Leaf],
        num_actions: int,
        hidden: int = 512,
        branches: Branches = (),
        convolutions: str = "mnih2015",
        bins: ValueBins | None = None,
    ) -> None:
        super().__init__()
        self.body = make_body(observation, hidden, convolutions)
        features, self.bins = self.body.features, bins
        outputs = 1 if bins is None else bins.number
        self.value = Stream(features, hidden, outputs)
        self.advantage = Stream(features, hidden, num_actions * outputs)
        self.branches = list(branches or (num_actions,))

    def forward(self, observations: Observations) -> Tensor:
        """Observations (B, *shape), or a dict of these by path → Q values (B, num_actions)."""
        outputs = self.outputs(observations)
        return outputs if self.bins is None else self.bins.values(outputs)

    def outputs(self, observations: Observations) -> Tensor:
        """What is learned: Q values (B, num_actions), or logits of their bins (B, num_actions, bins)."""
        features = self.body(observations)
        value, advantages = self.value(features), self.advantage(features)
        if self.bins is not None:
            value, advantages = value.unsqueeze(1), advantages.unflatten(1, (-1, self.bins.number))
        advantages = advantages.split(self.branches, dim=1)
        q_values = [value + advantage - advantage.mean(dim=1, keepdim=True) for advantage in advantages]
        return q_values[0] if len(q_values) == 1 else torch.cat(q_values, dim=1)


LOG_STD_LEAST, LOG_STD_MOST = -20.0, 2.0
"""Of a policy before it is squashed, as in the code of Haarnoja et al. 2018."""
ACTION_PATH = "*action"
"""Of the action among the leaves that a critic sees. No key of an observation is quoted to a name like it."""


class GaussianPolicy(nn.Module):
    """The parameters of a `replay_server.rl.distributions.SquashedGaussian` over actions of `size` numbers."""

    def __init__(self, observation: Tree[Leaf], size: int, hidden: int, convolutions: str = "mnih2015") -> None:
        super().__init__()
        self.body = make_body(observation, hidden, convolutions)
        self.head = _head(observation, self.body.features, hidden, 2 * size)

    def forward(self, observations: Observations) -> Tensor:
        """Observations (B, *shape), or a dict of these by path → means, then logs of deviations, (B, 2·size)."""
        mean, log_std = self.head(self.body(observations)).chunk(2, dim=1)
        return torch.cat([mean, log_std.clamp(LOG_STD_LEAST, LOG_STD_MOST)], dim=1)


class Critics(nn.Module):
    """Two Q(s, a), which learn apart: the smaller one is believed (Fujimoto et al. 2018). An action is a vector that
    they see beside the observation's."""

    def __init__(self, observation: Tree[Leaf], size: int, hidden: int, convolutions: str = "mnih2015") -> None:
        super().__init__()
        seen = {**leaves(observation), ACTION_PATH: Leaf((size,))}
        self.bodies = nn.ModuleList(make_body(seen, hidden, convolutions) for _ in range(2))
        features = [int(body.features) for body in self.bodies]  # pyright: ignore[reportArgumentType]
        self.heads = nn.ModuleList(_head(observation, each, hidden, 1) for each in features)

    def forward(self, observations: Observations, actions: Tensor) -> Tensor:
        """Observations (B, *shape), or a dict of these by path, and actions (B, size) from −1 to 1 → (B, 2)."""
        seen = {**leaves(observations), ACTION_PATH: actions}
        return torch.cat([head(body(seen)) for body, head in zip(self.bodies, self.heads, strict=True)], dim=1)


def _head(observation: Tree[Leaf], features: int, hidden: int, outputs: int) -> nn.Module:
    """Of SAC's networks: a layer; after convolutions, which only look, a hidden one before it."""
    if not any(leaf.is_image for leaf in leaves(observation).values()):
        return nn.Linear(features, outputs)
    return nn.Sequential(nn.Linear(features, hidden), nn.ReLU(), nn.Linear(hidden, outputs))


def _as_vectors(observations: Tensor) -> Tensor:
    return observations.float().reshape(len(observations), -1)


def _layers(channels: int, convolutions: Convolutions) -> list[nn.Module]:
    layers: list[nn.Module] = []
    for made, kernel, stride in convolutions:
        layers += [nn.Conv2d(channels, made, kernel_size=kernel, stride=stride), nn.ReLU()]
        channels = made
    return layers


def _small(channels: int, height: int, width: int) -> tuple[list[nn.Module], int, int]:
    """The layers for a small image, and the sides that they leave of it."""
    layers: list[nn.Module] = []
    for made in SMALL_CHANNELS:
        stride = 2 if max(height, width) > SMALL_SIDE else 1
        layers += [nn.Conv2d(channels, made, kernel_size=3, stride=stride, padding=1), nn.ReLU()]
        channels, height, width = made, math.ceil(height / stride), math.ceil(width / stride)
    return layers, height, width


def _convolved(side: int, convolutions: Convolutions) -> int:
    """Side length that convolutions leave of an image side of `side` pixels."""
    for _, kernel, stride in convolutions:
        side = (side - kernel) // stride + 1
    return side


def network_maker(name: str) -> Callable[[Tree[tuple[int, ...]], int, int], nn.Module]:
    """What ``module:name`` names: it makes a network from an observation's shape (or a dict of shapes by path), the
    number of actions and the width. ValueError where there is none of that name, or its module fails."""
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
    """Makes the user's network, if the settings name one, and asks it for two observations' values. ValueError where
    they do not fit, or it fails: of its own code the message names the line. So for a loss that the network has no
    outputs for."""
    if settings.loss == HL_GAUSS:
        _check_value_bins(settings, spec)
    if settings.network is None:
        return
    if spec.bounds is not None:
        raise ValueError(f"--network {settings.network}: SAC makes its own networks; leave it out")
    observations = map_tree(
        lambda leaf: torch.zeros((2, *leaf.shape), dtype=getattr(torch, leaf.dtype)), spec.observation
    )
    network_maker(settings.network)
    try:
        network = make_acting_network(settings, spec)
        with torch.inference_mode():
            shape = tuple(network(observations).shape)
    except Exception as error:
        raise ValueError(_failure(settings.network, error)) from error
    if shape != (2, spec.num_actions):
        raise ValueError(
            f"--network {settings.network}: expected values of shape (2, {spec.num_actions}) for 2 observations, "
            f"got {shape}"
        )


def _check_value_bins(settings: ApexSettings, spec: EnvironmentSpec) -> None:
    if spec.bounds is not None:
        raise ValueError(f"--loss {HL_GAUSS}: SAC learns values, not their bins; take squared or huber")
    if settings.network is not None:
        raise ValueError(
            f"--network {settings.network}: --loss {HL_GAUSS} makes its own network; give --loss squared beside "
            "--network"
        )
    ValueBins(settings.value_bins, settings.value_limit)


def _failure(name: str, error: Exception) -> str:
    """Of a user's network: what went wrong, and where in code that is neither torch nor the import system."""
    others = ("<frozen", str(Path(torch.__file__).parent))
    frames = [each for each in traceback.extract_tb(error.__traceback__) if not each.filename.startswith(others)]
    place = f"{frames[-1].filename}, line {frames[-1].lineno}"
    return f"--network {name} failed: {type(error).__name__}: {error} ({place})"


def make_network(settings: ApexSettings, spec: EnvironmentSpec) -> nn.Module:
    """What plays an environment, initialised from ``settings.seed`` (torch's global generator is left as it was): a
    Q-network, or a policy where actions are continuous.

    Every part of a run that calls this holds the same initial weights. Images get channels_last weights, which large
    batches prefer on CPU and GPU alike; `make_acting_network` suits small ones.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(settings.seed)
        if spec.bounds is not None:
            network: nn.Module = GaussianPolicy(
                spec.observation, spec.bounds.size, settings.hidden, settings.convolutions
            )
        elif settings.network is None:
            bins = ValueBins(settings.value_bins, settings.value_limit) if settings.loss == HL_GAUSS else None
            network = DuelingNetwork(
                spec.observation, spec.num_actions, settings.hidden, spec.branches, settings.convolutions, bins
            )
        else:
            network = network_maker(settings.network)(spec.observation_shape, spec.num_actions, settings.hidden)
    return _formatted(network, torch.channels_last) if spec.has_images else network


def make_critics(settings: ApexSettings, spec: EnvironmentSpec) -> Critics:
    """SAC's critics, as `make_network` makes its policy, from other random numbers."""
    assert spec.bounds is not None
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(np.random.SeedSequence([settings.seed, CRITICS_SEED]).generate_state(1)[0]))
        critics = Critics(spec.observation, spec.bounds.size, settings.hidden, settings.convolutions)
    return _formatted(critics, torch.channels_last) if spec.has_images else critics


def make_acting_network(settings: ApexSettings, spec: EnvironmentSpec) -> nn.Module:
    """As `make_network`, for forward passes over the few observations of an actor's environments on one core.

    There, with Atari screens, contiguous weights are about a quarter faster than channels_last.
    """
    return _formatted(make_network(settings, spec), torch.contiguous_format).eval()


def _formatted(network: Module, memory_format: torch.memory_format) -> Module:
    return network.to(memory_format=memory_format)  # pyright: ignore[reportCallIssue]  (torch's stubs lack it)
