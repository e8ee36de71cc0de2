"""The Ape-X learner of discrete actions: one dueling double DQN update, readable from top to bottom.

Horgan et al. 2018 (Distributed Prioritized Experience Replay), Wang et al. 2016 (dueling), van Hasselt et al. 2016
(double), Schaul et al. 2016 (prioritized replay).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from replay_server.learner.replay_learner import Loss, ReplayLearner, td_losses
from replay_server.rl.actions import Branches
from replay_server.rl.observations import from_columns
from replay_server.rl.settings import ApexSettings
from replay_server.rl.value_bins import HL_GAUSS, ValueBins


@torch.no_grad()
def double_dqn_targets(
    online: nn.Module, target: nn.Module, batch: Mapping[str, Tensor], branches: Branches = ()
) -> Tensor:
    """Returns what Q(s, a) is to become for each transition of a batch (as in `double_dqn_loss`): float32 (batch,).

    The online network chooses the next action, the target network says what it is worth.
    """
    next_obs = from_columns("next_obs", batch)
    bootstrap = target(next_obs).float().gather(1, _best_places(online(next_obs), branches)).mean(dim=1)
    return batch["reward"] + batch["discount"] * bootstrap


def double_dqn_loss(
    online: Any,
    target: nn.Module,
    batch: Mapping[str, Tensor],
    weights: Tensor,
    kind: str = "squared",
    branches: Branches = (),
    targets: Tensor | None = None,
) -> Loss:
    """Returns the importance-weighted double DQN loss of one batch.

    `batch` holds obs and next_obs (batch, *shape), action int64 (batch,), reward float32 (batch,): the n-step return,
    and discount float32 (batch,): γ^m·(1 − terminated), so that a window cut short or ended needs no special case.
    Observations of several leaves have a column for each: obs/path and next_obs/path. `weights` float32 (batch,) are
    the importance-sampling weights. `kind`: "squared" is ½δ², "huber" has δ = 1, "hl-gauss" is the cross-entropy of
    the targets' bins and those of `online`, a `DuelingNetwork` with bins. `targets`: where `double_dqn_targets` has
    computed them already.

    With `branches`, action is int64 (batch, branches). All branches have one target, whose bootstrap is the mean of
    theirs, and the loss is the mean over them (Tavakoli et al. 2018, equations 5 and 6).
    """
    if targets is None:
        targets = double_dqn_targets(online, target, batch, branches)
    obs, places, targets = from_columns("obs", batch), _places(batch["action"], branches), targets.unsqueeze(1)
    if kind == HL_GAUSS:
        bins: ValueBins = online.bins
        logits = online.outputs(obs).gather(1, places.unsqueeze(2).expand(-1, -1, bins.number))
        q, loss = bins.values(logits.detach()), bins.losses(logits, targets)
    else:
        q = online(obs).float().gather(1, places)
        loss = td_losses(q, targets, kind)
    td_error = (targets - q).detach()
    td_error = td_error.abs().mean(dim=1) if branches else td_error.squeeze(1)
    rows = weights * loss.mean(dim=1)
    return Loss(total=rows.mean(), td_error=td_error, q=q.detach().mean(dim=1), rows=rows.detach())


def _places(action: Tensor, branches: Branches) -> Tensor:
    """Where the values of the actions are in a network's rows: int64 (batch, branches), or (batch, 1)."""
    if not branches:
        return action.unsqueeze(1)
    # Numbers, not a tensor of them: that would be copied to the device, which would wait for it.
    firsts = itertools.accumulate(branches[:-1], initial=0)
    return torch.stack([places + first for places, first in zip(action.unbind(1), firsts, strict=True)], dim=1)


def _best_places(q_values: Tensor, branches: Branches) -> Tensor:
    """Where the largest value of each branch is."""
    if not branches:
        return q_values.argmax(dim=1, keepdim=True)
    return _places(torch.stack([part.argmax(dim=1) for part in q_values.split(branches, dim=1)], dim=1), branches)


class Dqn(ReplayLearner):
    """Online network and target network. `branches`: of an action, where it is no single number."""

    def __init__(
        self,
        settings: ApexSettings,
        make_network: Callable[[], nn.Module],
        device: torch.device,
        precision: str = "float32",
        branches: Branches = (),
    ) -> None:
        self.branches = branches
        self.online = make_network().to(device)
        modules = {"network": self.online, "target": make_network().to(device)}
        super().__init__(settings, device, precision, modules, self.online, [self.online.parameters()])

    def targets(self, batch: Mapping[str, Tensor]) -> Tensor:
        return double_dqn_targets(self.online, self.target, batch, self.branches)

    def loss(self, batch: Mapping[str, Tensor], weights: Tensor, targets: Tensor) -> Loss:
        return double_dqn_loss(self.online, self.target, batch, weights, self.settings.loss, self.branches, targets)
