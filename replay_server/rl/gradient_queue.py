"""The gradients that wait for a parameter function, on the replay server: the one place that knows where they are kept.

A gradient is a float32 vector with a name: round, learner (the name of its request) and sequence. The same name is the
same gradient, and of several deliveries one counts. What was taken stays in the queue until it is taken out, so that a
parameter function that is killed loses nothing; what has been applied stands in the learner's state, published with the
new weights in one command (`replay_server.learner.parameter_state`), so that nothing is applied twice.

Keys, all of which begin with `Names.gradients` and belong to one run of a job:

    …:versions   hash   name → version that the gradient was computed of
    …:vectors    hash   name → float32 blob
    …:pushed     hash   learner → how many it has pushed: what a learner that comes again need not compute again
    …:policies   hash   number of a running learner → version of the policy that it has
    …:wake       list   has an element where the parameter function is to look again
    …:applied:L  list   has an element where learner L is to look again
    …:over:K     string what `end_round` said of round K
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

import replay_server as rs
from replay_server.rl.function_contract import Names

KEPT_S = 3600
"""How long what nobody takes out is kept: keys of rounds and of learners that are no more."""


@dataclass(frozen=True, order=True)
class Gradient:
    """A gradient that waits. They are ordered by version, then by name."""

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
        """The gradient of that name. ValueError where it is none."""
        number, sequence, learner = name.split(":", 2)
        return cls(version, int(number), learner, int(sequence))


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

    def push(self, gradient: Gradient, vector: np.ndarray) -> bool:
        """Puts a gradient into the queue; False where one of that name waits there: nothing is changed then.

        One that was applied already is taken in, and passed over by the parameter function.
        """
        blob = np.ascontiguousarray(vector, "<f4").tobytes()
        pipeline = self._client.redis.pipeline(transaction=True)
        pipeline.hsetnx(f"{self._key}:vectors", gradient.name, blob)
        pipeline.hsetnx(f"{self._key}:versions", gradient.name, gradient.version)
        pipeline.hset(f"{self._key}:pushed", gradient.learner, gradient.sequence + 1)
        pipeline.rpush(f"{self._key}:wake", b"")
        return bool(pipeline.execute()[0])

    def pushed(self, learner: str) -> int:
        """How many gradients a learner has pushed, all its attempts together."""
        return int(self._client.command("HGET", f"{self._key}:pushed", learner, repeatable=True) or 0)

    def await_applied(self, gradients: Sequence[Gradient], at_most: int, timeout_s: float) -> bool:
        """Waits until at most `at_most` of a learner's gradients are in the queue; False where the time was over."""
        give_up = time.monotonic() + timeout_s
        while gradients:
            found = self._client.command(
                "HMGET", f"{self._key}:versions", *(each.name for each in gradients), repeatable=True
            )
            if sum(each is not None for each in found) <= at_most:
                return True
            left_s = give_up - time.monotonic()
            if left_s <= 0:
                return False
            self._await(f"{self._key}:applied:{gradients[-1].learner}", min(left_s, 1.0))
        return True

    def hold(self, learner: int, version: int) -> None:
        """Says that a learner runs, and which version of the policy it has."""
        self._client.command("HSET", f"{self._key}:policies", learner, version, repeatable=True)

    def release(self, learner: int) -> None:
        """Says that a learner runs no more."""
        self._client.command("HDEL", f"{self._key}:policies", learner, repeatable=True)

    def held(self) -> dict[int, int]:
        """Number of each running learner → version that it has."""
        pairs = self._pairs(f"{self._key}:policies")
        return {int(learner): int(version) for learner, version in pairs.items()}

    # -- the parameter function

    def waiting(self) -> list[Gradient]:
        """What is in the queue, in order."""
        pairs = self._pairs(f"{self._key}:versions")
        return sorted(Gradient.named(name.decode(), int(version)) for name, version in pairs.items())

    def await_push(self, timeout_s: float) -> None:
        """Waits until something was pushed, or the round has ended, since `waiting` was asked; or the time is over."""
        self._await(f"{self._key}:wake", timeout_s)

    def vectors(self, gradients: Iterable[Gradient]) -> list[np.ndarray]:
        """Their vectors, float32 (P,) each, which stay in the queue. ValueError where one is not there any more."""
        names = [each.name for each in gradients]
        blobs = self._client.command("HMGET", f"{self._key}:vectors", *names, repeatable=True)
        if gone := [name for name, blob in zip(names, blobs, strict=True) if blob is None]:
            raise ValueError(f"gradient {gone[0]} is not in the queue any more")
        return [np.frombuffer(blob, "<f4") if len(blob) % 4 == 0 else np.empty(0, np.float32) for blob in blobs]

    def take_out(self, gradients: Sequence[Gradient]) -> None:
        """Removes gradients that were applied, or are not to be, and tells their learners."""
        if not gradients:
            return
        names = [each.name for each in gradients]
        pipeline = self._client.redis.pipeline(transaction=True)
        pipeline.hdel(f"{self._key}:versions", *names)
        pipeline.hdel(f"{self._key}:vectors", *names)
        for learner in sorted({each.learner for each in gradients}):
            pipeline.rpush(f"{self._key}:applied:{learner}", b"")
            pipeline.expire(f"{self._key}:applied:{learner}", KEPT_S)
        pipeline.execute()

    # -- rounds

    def end_round(self, number: int, report: bytes) -> None:
        """Says that no more gradients of a round come, and what its learners answered."""
        pipeline = self._client.redis.pipeline(transaction=True)
        pipeline.set(f"{self._key}:over:{number}", report, ex=KEPT_S)
        pipeline.rpush(f"{self._key}:wake", b"")
        pipeline.execute()

    def round_report(self, number: int) -> bytes | None:
        """What `end_round` said of a round; None while it is not over."""
        return self._client.command("GET", f"{self._key}:over:{number}", repeatable=True)

    def forget(self, learners: Iterable[str]) -> None:
        """Removes what is kept of learners that have answered and of their round."""
        names = list(learners)
        if names:
            self._client.redis.hdel(f"{self._key}:pushed", *names)
            self._client.redis.delete(*(f"{self._key}:applied:{name}" for name in names))

    def _pairs(self, key: str) -> dict[bytes, bytes]:
        """Of a hash."""
        return self._client.command("HGETALL", key, repeatable=True)

    def _await(self, key: str, timeout_s: float) -> None:
        """Until the list has an element; takes all of them."""
        if self._client.command("BLPOP", key, f"{max(0.001, timeout_s):.3f}") is not None:
            self._client.command("DEL", key, repeatable=True)
