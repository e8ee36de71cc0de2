"""The learner of an Ape-X run: by the actions that its environment has."""

from __future__ import annotations

import functools

import torch

from replay_server.learner.dqn import Dqn
from replay_server.learner.replay_learner import ReplayLearner
from replay_server.learner.sac import Sac
from replay_server.rl.environment_spec import EnvironmentSpec
from replay_server.rl.networks import make_network
from replay_server.rl.settings import ApexSettings


def make_learner(
    settings: ApexSettings, spec: EnvironmentSpec, device: torch.device, precision: str = "float32"
) -> ReplayLearner:
    """A learner at step 0, whose weights follow from ``settings.seed``."""
    if spec.bounds is not None:
        return Sac(settings, spec, device, precision)
    return Dqn(settings, functools.partial(make_network, settings, spec), device, precision, spec.branches)
