"""Policy and critic: two layers of tanh units for vectors, three convolutions for images; with the normalisation."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import Tensor, nn

from replay_server.rl.distributions import make_distribution
from replay_server.rl.environment_spec import SCREEN_SIZE
from replay_server.rl.moments import Moments
from replay_server.rl.policy_settings import PolicySettings
from replay_server.rl.policy_spec import PolicySpec

IMAGE_FEATURES = 256
NORMALIZATION_EPSILON = 1e-8
"""Added to variances."""


class ActorCritic(nn.Module):
    """An action distribution and a value for each observation.

    For vectors, policy and critic are two networks of the same shape. The moments that observations are normalised by
    are buffers of the module, so that they are published and saved with the parameters they belong to.
    """

    def __init__(self, settings: PolicySettings, spec: PolicySpec) -> None:
        super().__init__()
        self.distribution = make_distribution(spec)
        self.is_image = spec.is_image
        self.is_gaussian = not spec.is_discrete
        self.observation_clip = settings.observation_clip
        self.normalizes = settings.normalize_observations and not spec.is_image
        outputs = spec.action_size if self.is_gaussian else spec.num_actions
        body = _image_body if spec.is_image else _vector_body
        features = IMAGE_FEATURES if spec.is_image else settings.hidden
        self.policy_body = body(spec.observation_shape, settings.hidden)
        self.critic_body = None
        if not (spec.is_image and settings.share_convolutions):
            self.critic_body = body(spec.observation_shape, settings.hidden)
        self.policy_head = _orthogonal(nn.Linear(features, outputs), 0.01)
        self.critic_head = _orthogonal(nn.Linear(features, 1), 1.0)
        if self.is_gaussian:
            self.log_std = nn.Parameter(torch.full((outputs,), settings.initial_log_std))
        if self.normalizes:
            (width,) = spec.observation_shape
            self.register_buffer("moments_count", torch.zeros(1, dtype=torch.float64))
            self.register_buffer("moments_mean", torch.zeros(width, dtype=torch.float64))
            self.register_buffer("moments_squared_deviations", torch.zeros(width, dtype=torch.float64))

    def forward(self, observations: Tensor) -> tuple[Tensor, Tensor]:
        """Observations as `normalize` gives them → parameters (B, P), values (B,).

        They are float32 (B, F), or uint8 (B, C, H, W) for images.
        """
        inputs = self._inputs(observations)
        features = self.policy_body(inputs)
        seen_by_critic = features if self.critic_body is None else self.critic_body(inputs)
        return self._describe(features), self.critic_head(seen_by_critic).squeeze(-1)

    @property
    def shares_features(self) -> bool:
        """Whether policy and critic have one body: what one of them alone takes is hardly less than both do."""
        return self.critic_body is None

    def policy(self, observations: Tensor) -> Tensor:
        """The parameters (B, P) that `forward` gives, without the values."""
        return self._describe(self.policy_body(self._inputs(observations)))

    def values(self, observations: Tensor) -> Tensor:
        """The values (B,) that `forward` gives, without the parameters."""
        body = self.policy_body if self.critic_body is None else self.critic_body
        return self.critic_head(body(self._inputs(observations))).squeeze(-1)

    def _inputs(self, observations: Tensor) -> Tensor:
        return observations.float() * (1.0 / 255.0) if self.is_image else observations

    def _describe(self, features: Tensor) -> Tensor:
        parameters = self.policy_head(features)
        if not self.is_gaussian:
            return parameters
        return torch.cat([parameters, self.log_std.expand_as(parameters)], dim=-1)

    def policy_parameters(self) -> Iterator[nn.Parameter]:
        """The parameters that the action distribution depends on."""
        for name, parameter in self.named_parameters():
            if not name.startswith("critic_"):
                yield parameter

    # ---- normalisation ----

    @property
    def moments(self) -> Moments:
        """Those that observations are normalised by. Raises ValueError where they are not normalised."""
        if not self.normalizes:
            raise ValueError("this network takes observations as they are: it has no moments")
        mean, squares = self.get_buffer("moments_mean"), self.get_buffer("moments_squared_deviations")
        count = float(self.get_buffer("moments_count").item())
        return Moments(count, mean.cpu().numpy().copy(), squares.cpu().numpy().copy())

    @torch.no_grad()
    def set_moments(self, moments: Moments) -> None:
        """Normalises by these from now on."""
        self.get_buffer("moments_count").fill_(moments.count)
        self.get_buffer("moments_mean").copy_(torch.from_numpy(moments.mean))
        self.get_buffer("moments_squared_deviations").copy_(torch.from_numpy(moments.squared_deviations))

    def normalize(self, observations: np.ndarray) -> np.ndarray:
        """Observations of an environment (B, …) as this network takes them; float32 (B, F) for vectors."""
        return self.normalizer()(observations)

    def normalizer(self) -> Callable[[np.ndarray], np.ndarray]:
        """`normalize` by the moments as they are now, for many calls."""
        if not self.normalizes:
            return lambda observations: observations
        moments, most = self.moments, self.observation_clip
        mean, deviation = moments.mean, np.sqrt(moments.variance + NORMALIZATION_EPSILON)

        def normalize(observations: np.ndarray) -> np.ndarray:
            scaled = (observations - mean) / deviation
            return np.minimum(np.maximum(scaled, -most), most).astype(np.float32)

        return normalize


def _vector_body(observation_shape: tuple[int, ...], hidden: int) -> nn.Sequential:
    (width,) = observation_shape
    return nn.Sequential(
        _orthogonal(nn.Linear(width, hidden), math.sqrt(2.0)), nn.Tanh(),
        _orthogonal(nn.Linear(hidden, hidden), math.sqrt(2.0)), nn.Tanh(),
    )  # fmt: skip


def _image_body(observation_shape: tuple[int, ...], hidden: int) -> nn.Sequential:
    """16 8×8/4, 32 4×4/2, 256 11×11/1: the first two padded to 21×21 and 11×11, so that the last leaves one point."""
    channels, height, width = observation_shape
    if (height, width) != (SCREEN_SIZE, SCREEN_SIZE):
        raise ValueError(f"expected images of {SCREEN_SIZE}×{SCREEN_SIZE} pixels, got {height}×{width}")
    return nn.Sequential(
        nn.ZeroPad2d((2, 2, 2, 2)), _orthogonal(nn.Conv2d(channels, 16, 8, stride=4), math.sqrt(2.0)), nn.ReLU(),
        nn.ZeroPad2d((1, 2, 1, 2)), _orthogonal(nn.Conv2d(16, 32, 4, stride=2), math.sqrt(2.0)), nn.ReLU(),
        _orthogonal(nn.Conv2d(32, IMAGE_FEATURES, 11), math.sqrt(2.0)), nn.ReLU(), nn.Flatten(),
    )  # fmt: skip


def _orthogonal(layer: nn.Linear | nn.Conv2d, gain: float) -> nn.Linear | nn.Conv2d:
    nn.init.orthogonal_(layer.weight, gain)
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)
    return layer


def make_policy_network(settings: PolicySettings, spec: PolicySpec) -> ActorCritic:
    """The network for an environment, initialised from ``settings.seed`` (torch's global generator is left as it was).

    Every part of a run that calls this holds the same initial weights.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(settings.seed)
        return ActorCritic(settings, spec)
