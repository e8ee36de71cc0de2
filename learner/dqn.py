"""The Ape-X learner's algorithm: one dueling double DQN update, readable from top to bottom.

Horgan et al. 2018 (Distributed Prioritized Experience Replay), Wang et al. 2016 (dueling), van Hasselt et al. 2016
(double), Schaul et al. 2016 (prioritized replay). Nothing here knows of servers or files: `replay_server.learner.loop`
feeds it batches.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

from replay_server.rl.actions import Branches
from replay_server.rl.device_copies import tensor_over
from replay_server.rl.observations import channels_first, from_columns
from replay_server.rl.settings import ApexSettings

Values: TypeAlias = np.ndarray | Tensor
"""Of a column: an array, or a tensor that is on the learner's device already."""


@dataclass
class Loss:
    """One batch's loss and what came out on the way. Tensors stay on the device, without gradient except `total`."""

    total: Tensor
    """Scalar, mean over the batch of w·½δ² (or w·Huber(δ)); carries the gradient."""
    td_error: Tensor
    """float32 (batch,), δ = target − Q(s, a); of several branches the mean of their |δ|."""
    q: Tensor
    """float32 (batch,), Q(s, a) of the online network; of several branches their mean."""
    rows: Tensor
    """float32 (batch,), what each row adds to the mean that `total` is."""


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
    online: nn.Module,
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
    the importance-sampling weights. `kind`: "squared" is ½δ², "huber" has δ = 1. `targets`: where `double_dqn_targets`
    has computed them already.

    With `branches`, action is int64 (batch, branches). All branches have one target, whose bootstrap is the mean of
    theirs, and the loss is the mean over them (Tavakoli et al. 2018, equations 5 and 6).
    """
    if targets is None:
        targets = double_dqn_targets(online, target, batch, branches)
    q = online(from_columns("obs", batch)).float().gather(1, _places(batch["action"], branches))
    targets = targets.unsqueeze(1)
    td_error = targets - q
    if kind == "squared":
        loss = 0.5 * td_error.square()
    elif kind == "huber":
        loss = nn.functional.huber_loss(q, targets.expand_as(q), reduction="none", delta=1.0)
    else:
        raise ValueError(f"expected loss 'squared' or 'huber', got {kind!r}")
    td_error = td_error.detach().abs().mean(dim=1) if branches else td_error.detach().squeeze(1)
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


def new_priorities(td_error: Tensor, settings: ApexSettings) -> Tensor:
    """Returns |δ| + ε as float32 (batch,), before the priority exponent; all ones in a run without prioritization."""
    if not settings.prioritized:
        return torch.ones_like(td_error)
    return td_error.abs() + settings.priority_epsilon


def least_for_the_guilty(priorities: Tensor, rows: Tensor, finite: Tensor, settings: ApexSettings) -> Tensor:
    """Returns the priorities with `priority_epsilon` for the rows that made a batch useless.

    They are hardly ever drawn again. Rows (`Loss.rows`) that are not finite are to blame; where all are finite and
    only the gradient is not, the whole batch is. `finite`: bool (), whether the batch's loss and gradient are.
    """
    guilty = ~torch.isfinite(rows)
    guilty = guilty | ~(finite | guilty.any())
    return torch.where(guilty, settings.priority_epsilon, priorities)


def make_optimizer(parameters: Any, settings: ApexSettings) -> torch.optim.Optimizer:
    """Returns the optimizer that the settings name: centred RMSProp (Ape-X), or Adam."""
    if settings.optimizer == "rmsprop":
        return torch.optim.RMSprop(
            parameters,
            lr=settings.learning_rate,
            alpha=settings.rmsprop_decay,
            eps=settings.optimizer_epsilon,
            centered=True,
        )
    if settings.optimizer == "adam":
        return torch.optim.Adam(parameters, lr=settings.learning_rate, eps=settings.optimizer_epsilon, fused=True)
    raise ValueError(f"expected optimizer 'rmsprop' or 'adam', got {settings.optimizer!r}")


def learning_rate_at(step: int, settings: ApexSettings) -> float:
    """Returns the learning rate of learner step `step` (the first is 0): constant, or falling linearly to its end."""
    if settings.learning_rate_end is None or settings.learning_rate_decay_updates <= 0:
        return settings.learning_rate
    done = min(1.0, step / settings.learning_rate_decay_updates)
    return settings.learning_rate + done * (settings.learning_rate_end - settings.learning_rate)


@dataclass
class Prepared:
    """A batch on the learner's device with the targets of its transitions."""

    batch: dict[str, Tensor]
    weights: Tensor
    targets: Tensor
    """float32 (batch,), see `double_dqn_targets`."""
    buffers: list[Tensor]
    """The online network's of before, such as running means; most networks have none."""


@dataclass
class Update:
    """What one learner step produced; tensors are on the learner's device and not yet waited for."""

    priorities: Tensor
    """float32 (batch,), to be written back under the batch's ids."""
    loss: Tensor
    mean_q: Tensor
    td_error: Tensor
    """Mean |δ|."""
    gradient_norm: Tensor
    """Global norm before clipping."""
    finite: Tensor
    """bool (), whether loss and gradient are. Where they are not, nothing was changed."""
    counted: bool
    """Whether it is counted in `step`; of one that only the device knows to be left out see `Dqn.settle`."""
    step: int
    """Learner steps done, this one included."""


class Dqn:
    """Online network, target network and optimizer, and the step that trains them.

    `step` counts learner steps from 0 and is what target updates, publishing and checkpoints go by. `precision` is that
    of the forward passes: float32, tf32 (which torch is told by `replay_server.learner.execution.Way.use`), or bfloat16
    by autocast; weights and losses are float32 in any case. `branches`: of
    an action, where it is no single number.

    A batch whose loss or gradient is not finite changes nothing: networks, optimizer and `step` stay as they were. On
    the CPU this is looked at before the optimizer's step. On a device the kernel of Adam looks by itself, and nothing
    waits for the device; RMSProp has no such kernel, and waits once for each update.
    """

    def __init__(
        self,
        settings: ApexSettings,
        make_network: Callable[[], nn.Module],
        device: torch.device,
        precision: str = "float32",
        branches: Branches = (),
    ) -> None:
        self.settings = settings
        self.branches = branches
        self.device = device
        self.precision = precision
        self.step = 0
        self.online = make_network().to(device)
        self.target = make_network().to(device).requires_grad_(False)
        self.target.load_state_dict(self.online.state_dict())
        self.parameters = list(self.online.parameters())
        self.optimizer = make_optimizer(self.parameters, settings)
        self.device_looks = device.type != "cpu" and bool(self.optimizer.defaults.get("fused"))
        """Whether the optimizer's kernel leaves out a step that is not finite."""

    def update(self, data: Mapping[str, Values], weights: Values) -> Update:
        """Does one learner step on a sampled batch (columns as in `double_dqn_loss`)."""
        return self.step_on(self.prepare(data, weights))

    def prepare(self, data: Mapping[str, Values], weights: Values) -> Prepared:
        """The half of a learner step that needs no gradient: the batch on the device, and its targets.

        Changes nothing, so it may run in another thread, until the next change of the weights.
        """
        buffers = [buffer.clone() for buffer in self.online.buffers()]
        batch = {name: self._to_device(values) for name, values in data.items()}
        with self._autocast():
            targets = double_dqn_targets(self.online, self.target, batch, self.branches)
        return Prepared(batch, self._to_device(weights), targets, buffers)

    def step_on(self, prepared: Prepared, before_change: Callable[[], object] = lambda: None) -> Update:
        """The other half: loss, gradient, optimizer and target network.

        `before_change` is called when the gradient is there and no weight has changed yet.
        """
        self.set_learning_rate()
        return self.count(self.change(prepared, before_change))

    def set_learning_rate(self) -> None:
        """To that of the next step; where it is a tensor on the device, it is filled there."""
        rate = learning_rate_at(self.step, self.settings)
        for group in self.optimizer.param_groups:
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(rate)
            else:
                group["lr"] = rate

    def change(self, prepared: Prepared, before_change: Callable[[], object] = lambda: None) -> Update:
        """What the device does of a step: all but for the target network. `count` must follow."""
        with self._autocast():
            loss = double_dqn_loss(
                self.online,
                self.target,
                prepared.batch,
                prepared.weights,
                self.settings.loss,
                self.branches,
                prepared.targets,
            )
        self.optimizer.zero_grad(set_to_none=True)
        loss.total.backward()
        gradient_norm = nn.utils.clip_grad_norm_(self.parameters, self.settings.gradient_norm)
        before_change()
        finite = torch.isfinite(loss.total.detach()) & torch.isfinite(gradient_norm.detach())
        for new, old in zip(self.online.buffers(), prepared.buffers, strict=True):
            new.copy_(torch.where(finite, new, old))
        self._apply(finite)
        priorities = new_priorities(loss.td_error, self.settings)
        return Update(
            priorities=least_for_the_guilty(priorities, loss.rows, finite, self.settings),
            loss=loss.total.detach(),
            mean_q=loss.q.mean(),
            td_error=loss.td_error.abs().mean(),
            gradient_norm=gradient_norm.detach(),
            finite=finite,
            counted=False,
            step=self.step,
        )

    def count(self, update: Update) -> Update:
        """What the host does of a step: counts it, and updates the target network where that is due."""
        counted = self.device_looks or bool(update.finite)
        if counted:
            self.step += 1
            if self.step % self.settings.target_update_every == 0:
                self.update_target(update.finite)
        return replace(update, counted=counted, step=self.step)

    def settle(self, update: Update) -> bool:
        """Whether an update was done: once for each, in their order. Waits for the device.

        One that the device left out is not counted any more.
        """
        done = bool(update.finite)
        if update.counted and not done:
            self.step -= 1
        return done

    def _apply(self, finite: Tensor) -> None:
        """Steps the optimizer, unless the gradient is not finite."""
        if self.device_looks:
            # As torch.amp.GradScaler tells it.
            self.optimizer.found_inf = (~finite).float()  # pyright: ignore[reportAttributeAccessIssue]
        elif not finite:
            return
        self.optimizer.step()

    @torch.no_grad()
    def update_target(self, finite: Tensor | None = None) -> None:
        """Moves the target network to the online one: a copy, or the share `target_mix` of the way.

        Where the update before was not `finite` (bool ()), it stays where it is.
        """
        share: float | Tensor = self.settings.target_mix
        if self.device_looks and finite is not None:
            share = share * finite.float()
        for old, new in zip(self.target.parameters(), self.parameters, strict=True):
            old.lerp_(new, share)
        for old, new in zip(self.target.buffers(), self.online.buffers(), strict=True):
            old.copy_(new)

    def _to_device(self, values: Values) -> Tensor:
        tensor = values if isinstance(values, Tensor) else tensor_over(values).to(self.device)
        if tensor.ndim == 4 and channels_first(tensor.shape[1:]):
            # Images meet channels-last weights; turning bytes over is a quarter of the work of turning floats over.
            tensor = tensor.contiguous(memory_format=torch.channels_last)
        return tensor

    def _autocast(self) -> contextlib.AbstractContextManager[Any]:
        if self.precision in ("float32", "tf32"):
            return contextlib.nullcontext()
        # Without the cache of casts: threads share it, and a forward pass casts each weight once anyway.
        return torch.autocast(self.device.type, dtype=getattr(torch, self.precision), cache_enabled=False)


def choose_device(name: str) -> torch.device:
    """Returns the device that a setting names; "auto" is cuda where there is one, else cpu.

    ValueError if it is absent.
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    device = torch.device(name)
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"device {name!r} was asked for, but torch finds no CUDA device: use --device cpu")
    return device
