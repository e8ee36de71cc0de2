"""The gradients that wait for a parameter function, on the replay server: the one place that knows how they are kept.

A gradient has a name: round, sequence and learner (the name of its request). The same name is the same gradient, and of
several deliveries one counts (`GRAD.PUSH`). What was taken stays in the queue until weights are published that were
made of it, in one command (`GRAD.PUBLISH`): a parameter function that is killed loses nothing and applies nothing
twice. The server decides when the rule holds, and sums gradients up, so that one vector leaves it.

Beside the queue, which is the key `Names.gradients` of one run of a job, there are

    …:policies   hash   number of a running learner → "version:pushed": of the policy that it has, and how many
                        gradients it has pushed
    …:over:K     string what `end_round` said of round K
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import replay_server as rs
from replay_server.rl.function_contract import Names

KEPT_S = 3600
"""How long what was said of a round's end is kept."""


@dataclass(frozen=True)
class Gradient:
    """A gradient that waits."""

    version: int
    """That it was computed of."""
    round: int
    learner: str
    sequence: int
    """How many-th of its learner, from 0 on."""

    @property
    def name(self) -> str:
        return f"{self.round}:{self.sequence}:{self.learner}"

    @classmethod
    def named(cls, name: str, version: int) -> Gradient:
        """The gradient of that name. One that no learner gives is of round 0, which there is not."""
        parts = name.split(":", 2)
        if len(parts) == 3 and parts[0].isdecimal() and parts[1].isdecimal():
            gradient = cls(version, int(parts[0]), parts[2], int(parts[1]))
            if gradient.name == name:
                return gradient
        return _Foreign(version, 0, name, 0)


class _Foreign(Gradient):
    """A gradient whose name is none of a learner's."""

    @property
    def name(self) -> str:
        return self.learner


class GradientQueue:
    """One run's queue. Errors are the client's: ConnectionLost where the server is away.

    Args:
        client: of the server that has it.
        names: of the job, with its run.
    """

    def __init__(self, client: rs.Client, names: Names) -> None:
        self._client = client
        self._key = names.gradients

    # -- learners

    def push(self, gradient: Gradient, vector: np.ndarray, dtype: str | None = None) -> bool:
        """Puts a gradient, float32 (P,), into the queue; False where one of that name waits, or did: nothing changes.

        Args:
            dtype: "bfloat16" rounds it to that before it is sent.
        """
        return self._client.push_gradient(self._key, gradient.version, gradient.name, vector, dtype)

    def pushed(self, gradients: Sequence[Gradient]) -> int:
        """How many of a learner's gradients, the first ones, have been pushed by whichever attempt."""
        states = self._client.gradient_states(self._key, [each.name for each in gradients]) if gradients else []
        return next((count for count, state in enumerate(states) if state is None), len(states))

    def await_applied(self, gradients: Sequence[Gradient], at_most: int, timeout_s: float) -> bool:
        """Waits until at most `at_most` of a learner's gradients are in the queue; False where the time was over."""
        if not gradients:
            return True
        try:
            self._client.await_gradients(self._key, [each.name for each in gradients], at_most, timeout=timeout_s)
        except rs.Timeout:
            return False
        return True

    def hold(self, learner: int, version: int, pushed: int = 0) -> None:
        """Says that a learner runs, which version of the policy it has, and how many gradients it has pushed."""
        self._client.command("HSET", f"{self._key}:policies", learner, f"{version}:{pushed}", repeatable=True)

    def release(self, learner: int) -> None:
        """Says that a learner runs no more."""
        self._client.command("HDEL", f"{self._key}:policies", learner, repeatable=True)

    def held(self) -> dict[int, int]:
        """Number of each running learner → version that it has."""
        return {learner: version for learner, (version, _) in self._running().items()}

    def progress(self) -> dict[int, int]:
        """Number of each running learner → how many gradients it has pushed."""
        return {learner: pushed for learner, (_, pushed) in self._running().items()}

    def _running(self) -> dict[int, tuple[int, int]]:
        pairs = self._client.command("HGETALL", f"{self._key}:policies", repeatable=True)
        parts = {int(learner): bytes(text).partition(b":") for learner, text in pairs.items()}
        return {learner: (int(version), int(pushed)) for learner, (version, _, pushed) in parts.items()}

    # -- the parameter function

    def waiting(self) -> list[Gradient]:
        """What is in the queue, the oldest first."""
        with contextlib.suppress(rs.Timeout):
            found = self._client.gradient_headers(self._key, timeout=0)
            return [Gradient.named(*each) for each in zip(found.names, found.versions.tolist(), strict=True)]
        return []

    def await_rule(self, count: int, until: tuple[int, float] | None, timeout_s: float) -> None:
        """Waits until `count` gradients are in the queue or their mean staleness is small enough, or the time is over.

        Args:
            until: (current version, mean staleness); None = any gradient will do.
        """
        with contextlib.suppress(rs.Timeout):
            self._client.gradient_headers(self._key, count, until=until, timeout=timeout_s)

    def vectors(self, gradients: Sequence[Gradient]) -> list[np.ndarray]:
        """The vectors, float32 (P,) each, of the gradients that are the oldest in the queue, where they stay.

        Raises ValueError where others are.
        """
        found = self._client.take_gradients(self._key, len(gradients), timeout=0)
        _check(found.names, gradients)
        return found.vectors

    def summed(self, gradients: Sequence[Gradient], weights: np.ndarray) -> np.ndarray:
        """Σ w_i g_i, float32 (P,), of the gradients that are the oldest in the queue, where they stay.

        One vector leaves the server. Raises ValueError where others are the oldest.
        """
        found = self._client.take_gradients(self._key, len(gradients), weights=weights, timeout=0)
        _check(found.names, gradients)
        assert found.sum is not None
        return found.sum

    def publish(self, gradients: Sequence[Gradient], version: int, weights: Mapping[str, Mapping[str, Any]]) -> None:
        """Publishes key → arrays that were made of gradients, and takes these out: all at once, or nothing.

        Raises rs.StaleVersion or rs.GradientNotWaiting where somebody else was faster.
        """
        self._client.publish_applied(self._key, [each.name for each in gradients], version, weights)

    def drop(self, gradients: Sequence[Gradient]) -> None:
        """Removes gradients that are not to be applied."""
        if gradients:
            self._client.drop_gradients(self._key, [each.name for each in gradients])

    def duplicates(self) -> int:
        """Deliveries so far that were of a gradient known already, as the server counts since it began."""
        return int(self._client.gradient_info(self._key)["duplicates"])

    # -- rounds

    def end_round(self, number: int, report: bytes) -> None:
        """Says that no more gradients of a round come, and what its learners answered."""
        self._client.command("SET", f"{self._key}:over:{number}", report, "EX", KEPT_S, repeatable=True)

    def round_report(self, number: int) -> bytes | None:
        """What `end_round` said of a round; None while it is not over."""
        return self._client.command("GET", f"{self._key}:over:{number}", repeatable=True)


def _check(found: Sequence[str], expected: Sequence[Gradient]) -> None:
    names = [each.name for each in expected]
    if list(found) != names:
        raise ValueError(f"expected {len(names)} gradients from {names[0]!r} on as the oldest, got {list(found)[:3]}")
