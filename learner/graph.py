"""Learner steps replayed as one CUDA graph: the host launches an update once, and not each of its hundreds of kernels.

Why the updates stay the same: a graph does what was recorded, on the memory that it was recorded with. All that changes
from update to update lies on the device at a fixed place: the batch and the learning rate, which are copied there
before, and networks and optimizer, which change in place. What the host decides, the count of steps and whether the
target network is due, is not recorded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from replay_server.learner.replay_learner import ReplayLearner, Update, Values
from replay_server.torch.device_batches import tensor_over

WARM_UP = 3
"""Updates that are done plainly first, in which libraries choose their kernels and the optimizer makes its state."""


class GraphedLearner:
    """Updates of `learner`, which goes on to be the one that is published and checkpointed.

    What an update returns is overwritten by the next one. On the CPU, which has no graphs, what would be recorded is
    done each time.

    Raises ValueError for a learner whose updates the host has to look at, such as RMSProp's
    (`ReplayLearner.device_looks`).
    """

    def __init__(self, learner: ReplayLearner) -> None:
        self._learner = learner
        self._warm = 0
        self._data: dict[str, Tensor] = {}
        self._weights = torch.empty(0)
        self._replay: Callable[[], Update] | None = None
        if learner.device.type != "cuda":
            return
        if not learner.device_looks:
            raise ValueError(
                f"a CUDA graph needs an optimizer that checks the loss itself: adam, not {learner.optimizer}"
            )
        for group in learner.optimizer.param_groups:
            rate = torch.as_tensor(group["lr"], dtype=torch.float32)
            group.update(lr=rate.to(learner.device), capturable=True)

    def update(self, data: Mapping[str, Values], weights: Values) -> Update:
        """As `ReplayLearner.update`. A batch of another shape than the first ones' is computed plainly."""
        learner = self._learner
        if self._warm < WARM_UP:
            self._warm += 1
            return self._beside(lambda: learner.update(data, weights))
        batch, weights = {name: _tensor(values) for name, values in data.items()}, _tensor(weights)
        if self._replay is None:
            self._data = {name: tensor.to(learner.device, copy=True) for name, tensor in batch.items()}
            self._weights = weights.to(learner.device, copy=True)
            learner.set_learning_rate()
            self._replay = self._recorded()
        if _kinds(batch, weights) != _kinds(self._data, self._weights):
            return learner.update(data, weights)
        for name, tensor in batch.items():
            self._data[name].copy_(tensor, non_blocking=True)
        self._weights.copy_(weights, non_blocking=True)
        learner.set_learning_rate()
        return learner.count(self._replay())

    def _change(self) -> Update:
        return self._learner.change(self._learner.prepare(self._data, self._weights))

    def _recorded(self) -> Callable[[], Update]:
        """What does `_change` once more."""
        if self._learner.device.type != "cuda":
            return self._change
        graph = torch.cuda.CUDAGraph()
        # Other threads, such as a sampler's, may allocate pinned memory meanwhile.
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            found = self._change()

        def replay() -> Update:
            graph.replay()
            return found

        return replay

    def _beside(self, work: Callable[[], Update]) -> Update:
        """Does it in another stream, as what is recorded later will be; the present one waits for it."""
        if self._learner.device.type != "cuda":
            return work()
        present: Any = torch.cuda.current_stream(self._learner.device)
        other: Any = torch.cuda.Stream(self._learner.device)
        other.wait_stream(present)
        with torch.cuda.stream(other):
            done = work()
        present.wait_stream(other)
        return done


def _tensor(values: Values) -> Tensor:
    return values if isinstance(values, Tensor) else tensor_over(values)


def _kinds(batch: Mapping[str, Tensor], weights: Tensor) -> dict[str, Any]:
    """What must be the same for a batch to be copied to the place of another one."""
    return {name: (tensor.shape, tensor.dtype) for name, tensor in {**batch, "": weights}.items()}
