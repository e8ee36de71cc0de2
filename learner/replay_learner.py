"""What Ape-X learners have in common: the step on a batch. An algorithm adds its networks, its targets and its losses.

Nothing here knows of servers or files: `replay_server.learner.loop` feeds a learner batches. The algorithms are in
`replay_server.learner.dqn` and `replay_server.learner.sac`.
"""

from __future__ import annotations

import abc
import contextlib
import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

from replay_server.rl.observations import channels_first
from replay_server.rl.settings import ApexSettings
from replay_server.torch.device_batches import tensor_over

LEARNING = "learning"
"""Name of the network that learns, in a checkpoint whose "network" is a mean."""
AVERAGE_EVERY = 10
"""Learner steps between two networks that are averaged: more would cost time, and are much alike."""
AVERAGED_SHARE = 0.2
"""Of all learner steps: so many at most are averaged, since the first networks play badly."""

Values: TypeAlias = np.ndarray | Tensor
"""Of a column: an array, or a tensor that is on the learner's device already."""


@dataclass
class Loss:
    """One batch's losses and what came out on the way. Tensors stay on the device; only losses have a gradient."""

    total: Tensor
    """Scalar, mean over the batch of w·½δ² (or w·Huber(δ)); carries the gradient of the first group of parameters."""
    td_error: Tensor
    """float32 (batch,), δ = target − Q(s, a); of several Q values the mean of their |δ|."""
    q: Tensor
    """float32 (batch,), Q(s, a) of the network that learns; of several Q values their mean."""
    rows: Tensor
    """float32 (batch,), what each row adds to the mean that `total` is."""
    others: Sequence[Tensor] = ()
    """Scalars: the losses of the other groups of parameters, in their order."""
    told: dict[str, Tensor] = field(default_factory=dict)
    """Scalars that the algorithm reports beside the loss, by name."""


def td_losses(q: Tensor, targets: Tensor, kind: str) -> Tensor:
    """½δ² ("squared"), or Huber with δ = 1 ("huber"), of each Q value: float32 (batch, Q values), as `q` is.

    `targets` float32 (batch, 1). ValueError for another kind.
    """
    if kind == "squared":
        return 0.5 * (targets - q).square()
    if kind == "huber":
        return nn.functional.huber_loss(q, targets.expand_as(q), reduction="none", delta=1.0)
    raise ValueError(f"expected loss 'squared' or 'huber', got {kind!r}")


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
    """float32 (batch,), what Q(s, a) is to become."""
    buffers: list[Tensor]
    """Those of the network that learns, of before, such as running means; most networks have none."""


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
    """Whether it is counted in `step`; of one that only the device knows to be left out see `ReplayLearner.settle`."""
    step: int
    """Learner steps done, this one included."""
    told: dict[str, Tensor]
    """See `Loss.told`."""


class ReplayLearner(abc.ABC):
    """Networks and an optimizer, and the step that trains them on a batch.

    `step` counts learner steps from 0 and is what target updates, publishing and checkpoints go by. `precision` is that
    of the forward passes: float32, tf32 (which torch is told by `replay_server.learner.execution_choice.Way.use`), or
    bfloat16 by autocast; weights and losses are float32 in any case.

    A batch whose loss or gradient is not finite changes nothing: networks, optimizer and `step` stay as they were. On
    the CPU this is looked at before the optimizer's step. On a device the kernel of Adam looks by itself, and nothing
    waits for the device; RMSProp has no such kernel, and waits once for each update.

    Args:
        modules: all that a checkpoint keeps, on the device, by the names of its files. "network" is what actors play
            with and what is published; "target" is the target network. With ``settings.average_updates``, "network"
            becomes the mean of what was given under that name, and that is called "learning".
        followed: what the target network follows.
        groups: the parameters that learn. Each group has a loss of its own (`Loss.total`, then `Loss.others`), and its
            gradient is clipped by itself.
    """

    def __init__(
        self,
        settings: ApexSettings,
        device: torch.device,
        precision: str,
        modules: Mapping[str, nn.Module],
        followed: nn.Module,
        groups: Sequence[Iterable[nn.Parameter]],
    ) -> None:
        self.settings = settings
        self.device = device
        self.precision = precision
        self.step = 0
        self.modules = dict(modules)
        self.averaged = self.modules["network"] if settings.average_updates else None
        """What `published` is the mean of; None where that is published as it is."""
        if self.averaged is not None:
            self.modules[LEARNING] = self.averaged
            self.modules["network"] = copy.deepcopy(self.averaged).requires_grad_(False)
        self.followed = followed
        self.target = self.modules["target"].requires_grad_(False)
        self.target.load_state_dict(followed.state_dict())
        self.groups = [list(group) for group in groups]
        self.parameters = [parameter for group in self.groups for parameter in group]
        self.optimizer = make_optimizer(self.parameters, settings)
        self.device_looks = device.type != "cpu" and bool(self.optimizer.defaults.get("fused"))
        """Whether the optimizer's kernel leaves out a step that is not finite."""

    @abc.abstractmethod
    def targets(self, batch: Mapping[str, Tensor]) -> Tensor:
        """What Q(s, a) is to become for each transition of a batch: float32 (batch,), without gradient."""

    @abc.abstractmethod
    def loss(self, batch: Mapping[str, Tensor], weights: Tensor, targets: Tensor) -> Loss:
        """The losses of a batch, whose means are weighted by `weights` float32 (batch,): one for each group."""

    @property
    def published(self) -> nn.Module:
        """What actors play with."""
        return self.modules["network"]

    def update(self, data: Mapping[str, Values], weights: Values) -> Update:
        """Does one learner step on a sampled batch.

        `data` holds obs and next_obs (batch, *shape), action as the table has it, reward float32 (batch,): the n-step
        return, and discount float32 (batch,): γ^m·(1 − terminated), so that a window cut short or ended needs no
        special case. Observations of several leaves have a column for each: obs/path and next_obs/path. `weights`
        float32 (batch,) are the importance-sampling weights.
        """
        return self.step_on(self.prepare(data, weights))

    def prepare(self, data: Mapping[str, Values], weights: Values) -> Prepared:
        """The half of a learner step that needs no gradient: the batch on the device, and its targets.

        Changes nothing, so it may run in another thread, until the next change of the weights.
        """
        buffers = [buffer.clone() for buffer in self.followed.buffers()]
        batch = {name: self._to_device(values) for name, values in data.items()}
        with self._autocast():
            targets = self.targets(batch)
        return Prepared(batch, self._to_device(weights), targets, buffers)

    def step_on(self, prepared: Prepared, before_change: Callable[[], object] = lambda: None) -> Update:
        """The other half: losses, gradients, optimizer and target network.

        `before_change` is called when the gradients are there and no weight has changed yet.
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
            loss = self.loss(prepared.batch, prepared.weights, prepared.targets)
        self.optimizer.zero_grad(set_to_none=True)
        totals = [loss.total, *loss.others]
        for total, group in zip(totals, self.groups, strict=True):
            torch.autograd.backward(total, inputs=group)
        norms = [nn.utils.clip_grad_norm_(group, self.settings.gradient_norm).detach() for group in self.groups]
        gradient_norm = norms[0] if len(norms) == 1 else torch.stack(norms).norm()
        before_change()
        finite = torch.isfinite(torch.stack([*(total.detach() for total in totals), gradient_norm])).all()
        for new, old in zip(self.followed.buffers(), prepared.buffers, strict=True):
            new.copy_(torch.where(finite, new, old))
        self._apply(finite)
        priorities = new_priorities(loss.td_error, self.settings)
        return Update(
            priorities=least_for_the_guilty(priorities, loss.rows, finite, self.settings),
            loss=loss.total.detach(),
            mean_q=loss.q.mean(),
            td_error=loss.td_error.abs().mean(),
            gradient_norm=gradient_norm,
            finite=finite,
            counted=False,
            step=self.step,
            told=loss.told,
        )

    def count(self, update: Update) -> Update:
        """What the host does of a step: counts it, and updates the target network where that is due."""
        counted = self.device_looks or bool(update.finite)
        if counted:
            self.step += 1
            if self.step % self.settings.target_update_every == 0:
                self.update_target(update.finite)
            if self.averaged is not None and self.step % AVERAGE_EVERY == 0:
                updates = min(self.settings.average_updates, AVERAGED_SHARE * self.step)
                self._follow(self.published, self.averaged, min(1.0, AVERAGE_EVERY / updates), update.finite)
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

    def update_target(self, finite: Tensor | None = None) -> None:
        """Moves the target network to the one that it follows: a copy, or the share `target_mix` of the way.

        Where the update before was not `finite` (bool ()), it stays where it is.
        """
        self._follow(self.target, self.followed, self.settings.target_mix, finite)

    @torch.no_grad()
    def _follow(self, follower: nn.Module, leader: nn.Module, share: float | Tensor, finite: Tensor | None) -> None:
        if self.device_looks and finite is not None:
            share = share * finite.float()
        for old, new in zip(follower.parameters(), leader.parameters(), strict=True):
            old.lerp_(new, share)
        for old, new in zip(follower.buffers(), leader.buffers(), strict=True):
            old.copy_(new)

    def _to_device(self, values: Values) -> Tensor:
        tensor = values if isinstance(values, Tensor) else tensor_over(values).to(self.device)
        if tensor.ndim == 4 and channels_first(tensor.shape[1:]):
            # Images meet channels-last weights; turning bytes over is a quarter of the work of turning floats over.
            tensor = _channels_last(tensor)
        return tensor

    def _autocast(self) -> contextlib.AbstractContextManager[Any]:
        if self.precision in ("float32", "tf32"):
            return contextlib.nullcontext()
        # Without the cache of casts: threads share it, and a forward pass casts each weight once anyway.
        return torch.autocast(self.device.type, dtype=getattr(torch, self.precision), cache_enabled=False)


def _channels_last(images: Tensor) -> Tensor:
    if images.device.type != "cpu":
        return images.contiguous(memory_format=torch.channels_last)
    turned = torch.empty_like(images, memory_format=torch.channels_last)
    for channel in range(images.shape[1]):  # half of the time of `contiguous`
        turned[:, channel] = images[:, channel]
    return turned


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
