"""Asynchronous learners on a simulated clock: gradients are real, and when each comes is an event of the clock.

On a machine of few cores, and with other work on it, how stale a gradient becomes is decided by the scheduler of the
operating system. Here every learner has a processor of its own, by the clock: it pulls the newest policy, its gradient
(really computed, of that policy) arrives when pulling, computing and pushing have taken their seconds, and the
parameter function takes its seconds for each flush. Rules, aggregation and truncation are those of the functions. The
same settings, seed and times give the same weights and the same clock. All times that come from here are simulated.
"""

from __future__ import annotations

import copy
import heapq
import itertools
import math
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from replay_server.bench.papers.stellaris.recorded_delays import RecordedDelays
from replay_server.learner import aggregation, staleness
from replay_server.learner.gradients import GradientLearner, all_minibatches, gradient, policy_kl, truncated
from replay_server.learner.parameter_function import end_round
from replay_server.learner.parameter_state import ParameterState
from replay_server.learner.sgd import Means
from replay_server.rl.asynchronous_learning import AsynchronousLearning
from replay_server.rl.fragments import Fragments, in_order, merged_moments
from replay_server.rl.function_contract import HISTORY
from replay_server.rl.policy_networks import ActorCritic


@dataclass(frozen=True)
class LearnerTimes:
    """What things take, in seconds of a learner's own processor."""

    start_s: float = 0.05
    """A learner function, from its submission to its first pull: platform, state and fragments."""
    pull_s: float = 0.004
    """The newest policy."""
    gradient_s: float = 0.02
    """One gradient of a whole minibatch; a smaller one takes its share."""
    push_s: float = 0.004
    other_policy_s: float = 0.008
    """Truncation: one of the others' policies, to fetch it and to compute a whole minibatch's ratios by it, which is a
    fifth of what a gradient takes (0.14 to 0.25 measured); 0 = for nothing."""
    step_s: float = 0.006
    """Of the parameter function: to take, apply and publish one flush; of aggregation=each, every gradient of it."""
    spread: float = 0.3
    """Standard deviation of the logarithm of what one gradient takes, drawn for each; 0 = all the same."""


@dataclass(frozen=True)
class LearnedRound:
    """One round's learning; simulated seconds."""

    learning_s: float
    """From the first learner's submission to the end of the last flush."""
    learner_s: tuple[float, ...]
    """Of each learner, submitted to answered: what is billed of it."""
    busy_s: float
    """Of all learners together, without waiting for their gradients to be applied."""
    statistics: Mapping[str, float] = field(repr=False)
    seen: tuple[ActorCritic, int] | None = field(default=None, repr=False)
    """The policy at the moment that was asked for, a copy, and its version; None where learning had ended by then."""


@dataclass
class _Learner:
    """One learner function of the round."""

    minibatches: Iterator[dict[str, Tensor]]
    fragments: Fragments
    samples: Mapping[str, Tensor]
    version: int
    """Of the policy that it has."""
    pushed: int = 0
    waiting: int = 0
    """Its gradients that are not applied."""
    idle: bool = False
    """It would go on if fewer of them waited, or if the others were further."""
    done_s: float | None = None


@dataclass(frozen=True)
class _Queued:
    learner: int
    version: int
    vector: np.ndarray = field(repr=False)


class SimulatedLearners:
    """Several learners of one policy, round by round.

    Args:
        learner: network, optimiser and counters; its weights are the newest policy.
        learning: as of `replay-server train --learners async`; `patience_s` and `gradient_dtype` mean nothing here.
        seed: of what gradients take, and of delays.
        delays: of learners' policies, beside `learning.delay` and what the clock itself makes; None = none.
    """

    def __init__(
        self,
        learner: GradientLearner,
        learning: AsynchronousLearning,
        times: LearnerTimes | None = None,
        seed: int = 1,
        delays: RecordedDelays | None = None,
    ) -> None:
        self.learner = learner
        self.learning = learning
        self.times = times or LearnerTimes()
        self.state = ParameterState()
        self._random = np.random.default_rng([seed, 0x57E1])
        self._delays, self._delay_random = delays, np.random.default_rng([seed, 0xDE1A])
        self._computing = copy.deepcopy(learner)
        """Computes gradients of other versions than the newest."""
        self._history: OrderedDict[int, ActorCritic] = OrderedDict()
        self._keep()

    def learn(self, fragments: Fragments, look_s: float | None = None) -> LearnedRound:
        """One round, of fragments that are divided among the learners, and its end.

        Args:
            look_s: when to look at the policy (`LearnedRound.seen`), from the round's beginning; None = not.
        """
        return _Round(self, in_order(fragments), look_s).played()

    def step(self, vectors: list[np.ndarray], stalenesses: list[int]) -> None:
        """Makes one version of gradients."""
        factors = [staleness.factor(each, self.learning.modulation_root) for each in stalenesses]
        optimizer, parameters = self.learner.optimizer, self.learner.parameters
        if self.learning.aggregation == "each":
            for vector, rate in zip(vectors, factors, strict=True):
                aggregation.step(optimizer, parameters, vector, rate)
        else:
            direction = aggregation.weighted_sum(vectors, aggregation.weights(factors))
            aggregation.step(optimizer, parameters, direction, math.fsum(factors) / len(factors))
        tally = self.state.tally
        tally.stalenesses += stalenesses
        tally.rates += math.fsum(factors)
        tally.flushes += 1
        self.learner.version += 1
        self._keep()

    def gradient(
        self, minibatch: dict[str, Tensor], version: int, others: set[int]
    ) -> tuple[np.ndarray, Any, float, int]:
        """Gradient of the policy of a version, what there is to log of it, the share of samples that were cut, and how
        many of the others' policies were looked at for that.

        Args:
            others: versions that the other learners have.
        """
        computing = self._computing
        computing.network.load_state_dict(self._history[version].state_dict())
        computing.kl_coefficient = self.learner.kl_coefficient
        share, kept = 0.0, list[ActorCritic]()
        if self.learning.truncation is not None:
            kept = [self._history[each] for each in sorted(others - {version}) if each in self._history]
            minibatch, share = truncated(computing.network, kept, minibatch, self.learning.truncation)
        return *gradient(computing, minibatch), share, len(kept)

    def pulled(self) -> int:
        """The version that a learner gets just now."""
        wanted = self.learner.version - self.learning.delay
        if self._delays is not None:
            wanted -= self._delays.draw(self.state.round + 1, self._delay_random)
        return next((each for each in self._history if each >= wanted), self.learner.version)

    def gradient_s(self, share: float) -> float:
        """What the next gradient takes, of so much of a whole minibatch."""
        noise = float(np.exp(self._random.normal(0.0, self.times.spread))) if self.times.spread else 1.0
        return self.times.gradient_s * share * noise

    def close(self, fragments: Fragments, kl: float) -> dict[str, float]:
        """Ends a round; its statistics."""
        limit = staleness.flush_limit(self.learning, self.state.bound, self.state.round + 1)
        found = self.state.close_round() | {"staleness_threshold": limit if math.isfinite(limit) else -1.0}
        moments = [merged_moments(fragments)] if self.learner.network.normalizes else []
        end_round(self.learner, self.state.round, kl, moments)
        self.learner.version += 1
        self._keep()
        return found

    def _keep(self) -> None:
        self._history[self.learner.version] = copy.deepcopy(self.learner.network)
        while len(self._history) > HISTORY:
            self._history.popitem(last=False)


class _Round:
    """One round's events: (time, order of coming, what, which learner)."""

    def __init__(self, learners: SimulatedLearners, fragments: Fragments, look_s: float | None) -> None:
        self._all = learners
        self._look_s = look_s
        self._seen: tuple[ActorCritic, int] | None = None
        self._fragments = fragments
        self._times, self._learning = learners.times, learners.learning
        self._events: list[tuple[float, int, str, int]] = []
        self._order = itertools.count()
        self._queue: list[_Queued] = []
        self._arriving: dict[int, _Queued] = {}
        self._flushing: list[_Queued] = []
        self._is_flushing = False
        self._now_s = self._busy_s = 0.0
        self._before = copy.deepcopy(learners.learner.network)
        self._means = Means()
        self._cut: list[float] = []
        count = min(self._learning.learners, len(fragments["sequence"]))
        parts = np.array_split(np.arange(len(fragments["sequence"])), count)
        self._learners = [self._learner(number, rows) for number, rows in enumerate(parts)]

    def _learner(self, number: int, rows: np.ndarray) -> _Learner:
        learner = self._all.learner
        share = {name: column[rows] for name, column in self._fragments.items()}
        samples = learner.samples(share)
        order = all_minibatches(learner, samples, self._all.state.round + 1, number)
        return _Learner(order, share, samples, self._all.pulled())

    def played(self) -> LearnedRound:
        for number in range(len(self._learners)):
            self._at(self._times.start_s, "pull", number)
        while self._events:
            self._now_s, _, what, number = heapq.heappop(self._events)
            self._look()
            if what == "pull":
                self._pull(number)
            elif what == "push":
                self._push(number)
            else:
                self._publish()
            self._flush_if_due()
        staleness_of_data = float(self._all.learner.version - self._fragments["policy_version"].mean())
        kls = [policy_kl(self._all.learner, each.fragments, each.samples) for each in self._learners]
        rows = [len(each.samples["advantage"]) for each in self._learners]
        kl = float(np.average(kls, weights=rows))
        kl_of_round = float(np.average([self._moved(each.samples) for each in self._learners], weights=rows))
        statistics = {
            **self._means.floats(),
            **self._all.close(self._fragments, kl),
            "kl": kl,
            "kl_of_round": kl_of_round,
            "staleness": staleness_of_data,
            "samples": float(sum(rows)),
            "truncated_fraction": float(np.mean(self._cut)),
            "learner_utilization": self._busy_s / (len(self._learners) * self._now_s),
        }
        ended = tuple(each.done_s if each.done_s is not None else self._now_s for each in self._learners)
        return LearnedRound(self._now_s, ended, self._busy_s, statistics, self._seen)

    @torch.no_grad()
    def _moved(self, samples: Mapping[str, Tensor]) -> float:
        """Mean KL(π_{k−1} ‖ π_k) over samples: how far this round's learning has moved the policy."""
        network = self._all.learner.network
        parts = samples["observation"].split(2048)
        return float(torch.cat([
            network.distribution.kl(self._before.policy(each), network.policy(each)) for each in parts
        ]).mean())  # fmt: skip

    def _look(self) -> None:
        """Before what happens now is played: the policy has been as it is since the last event."""
        if self._look_s is not None and self._seen is None and self._now_s >= self._look_s:
            self._seen = copy.deepcopy(self._all.learner.network), self._all.learner.version

    def _at(self, after_s: float, what: str, number: int = -1) -> None:
        heapq.heappush(self._events, (self._now_s + after_s, next(self._order), what, number))

    def _pull(self, number: int) -> None:
        """A learner takes the newest policy and computes: its gradient will arrive; or it has nothing more to do."""
        learner = self._learners[number]
        learner.idle = False
        minibatch = next(learner.minibatches, None)
        if minibatch is None:
            learner.done_s = self._now_s
            self._go_on()
            return
        learner.version = self._all.pulled()
        others = {each.version for each in self._learners if each is not learner and each.done_s is None}
        vector, logged, share, looked_at = self._all.gradient(minibatch, learner.version, others)
        self._means.add(logged)
        self._cut.append(share)
        self._arriving[number] = _Queued(number, learner.version, vector)
        whole = self._all.learner.settings.minibatch_size or len(minibatch["advantage"])
        part = len(minibatch["advantage"]) / whole
        takes_s = self._times.pull_s + self._all.gradient_s(part) + self._times.push_s
        takes_s += looked_at * part * self._times.other_policy_s
        self._busy_s += takes_s
        self._at(takes_s, "push", number)

    def _push(self, number: int) -> None:
        learner = self._learners[number]
        self._queue.append(self._arriving.pop(number))
        learner.waiting += 1
        learner.pushed += 1
        learner.idle = True
        self._go_on()

    def _go_on(self, first: Sequence[int] = ()) -> None:
        """Learners that wait pull again, where few enough of their gradients wait and they are not too far ahead.

        Args:
            first: those whose turn comes before the others'.
        """
        slack = self._learning.slack
        slowest = min((each.pushed for each in self._learners if each.done_s is None), default=0)
        for number in (*first, *range(len(self._learners))):
            learner = self._learners[number]
            ahead = slack is not None and learner.pushed - slowest > slack
            if learner.idle and learner.waiting < self._learning.ahead and not ahead:
                learner.idle = False
                self._at(0.0, "pull", number)

    def _flush_if_due(self) -> None:
        """The parameter function takes all that waits, if it is free and the rule holds."""
        if self._is_flushing or not self._queue:
            return
        version = self._all.learner.version
        running = sum(each.done_s is None for each in self._learners)
        limit = staleness.flush_limit(self._learning, self._all.state.bound, self._all.state.round + 1)
        stalenesses = [version - each.version for each in self._queue]
        nothing_comes = not self._arriving and not any(what == "pull" for _, _, what, _ in self._events)
        if nothing_comes or staleness.holds(stalenesses, limit, self._learning.flush_size(running)):
            self._flushing, self._queue = self._queue, []
            self._is_flushing = True
            steps = len(self._flushing) if self._learning.aggregation == "each" else 1
            self._at(steps * self._times.step_s, "publish")

    def _publish(self) -> None:
        """The flush is done: its version is there, and learners that waited for it go on."""
        version, most = self._all.learner.version, self._learning.max_staleness
        taken = [each for each in self._flushing if most is None or version - each.version <= most]
        self._all.state.tally.dropped += len(self._flushing) - len(taken)
        if taken:
            self._all.step([each.vector for each in taken], [version - each.version for each in taken])
        for each in self._flushing:
            learner = self._learners[each.learner]
            learner.waiting -= 1
            if learner.done_s is not None:
                learner.done_s = self._now_s
        self._go_on([each.learner for each in self._flushing])
        self._flushing, self._is_flushing = [], False
