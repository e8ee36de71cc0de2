"""Functions on Ray: one process of a cluster is one warm instance; requests and responses are bytes.

On one host (no address) the cluster is ours and on loopback only; `replay_server.rl.ray_cluster` tells more. On others
(an address) every node needs this package and what its functions use: by the same environment on each, a container
image, or Ray's `runtime_env`; `serverless/deploy/README.md` tells how.
"""

from __future__ import annotations

import os
import threading
import time
import uuid
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayError

from replay_server.rl.function_contract import WarmRequest, encode_request
from replay_server.rl.ray_cluster import RayCluster
from replay_server.serverless.backends.backend import (
    WARM_S,
    Attempt,
    FunctionLost,
    FunctionTimeout,
    checked_warm,
    unrecorded,
)
from replay_server.serverless.function import INSTANCE

CLOSE_S = 5.0
"""Patience with invocations whose instances were ended."""


class Instance:
    """What runs in a process of the cluster; the name is that of its responses' measurements."""

    def __init__(self, name: str) -> None:
        os.environ[INSTANCE] = name

    def invoke(self, payload: bytes) -> bytes:
        """Runs the handler."""
        from replay_server.serverless.function import handle

        return handle(payload)


@dataclass(frozen=True, eq=False)
class _Placed:
    name: str
    process: Any
    """Ray's handle."""


class RayPlatform:
    """Functions as processes that Ray places.

    Args:
        address: of a Ray cluster, ``host:port`` or ``ray://host:port``; None = one of our own on this host.
        memory_mb: of an instance. Ray sets it aside on a cluster that was joined; it does not bound what is used.
        num_cpus: that Ray sets aside for an instance. None = 1 on a cluster that was joined, 0 on our own, where
            instances may be more than cores.
        runtime_env: Ray's environment of an instance's process.
    """

    name = "ray"

    def __init__(
        self,
        address: str | None = None,
        *,
        memory_mb: int = 1024,
        num_cpus: float | None = None,
        runtime_env: Mapping[str, Any] | None = None,
    ) -> None:
        self.memory_mb = memory_mb
        self._cluster = RayCluster(address, runtime_env)
        self._num_cpus = num_cpus if num_cpus is not None else (0.0 if self._cluster.own else 1.0)
        self._changed = threading.Condition()
        self._idle: list[_Placed] = []
        self._busy: set[_Placed] = set()
        self._closed = False

    @property
    def address(self) -> str:
        """Of the cluster, for other processes to join."""
        return self._cluster.address

    def invoke(self, payload: bytes, timeout_s: float) -> bytes:
        """Runs the function in an idle instance, or in a new one where none is.

        Raises:
            FunctionTimeout: no answer in time; the instance is ended. A new one's start is part of that time, and the
                wait for the cluster to have room for it.
            FunctionLost: the instance or its node died.
        """
        instance, cold = self._take()
        known = {"instance": instance.name, "cold": cold}
        kept = False
        try:
            answer: Any = ray.get(instance.process.invoke.remote(payload), timeout=timeout_s)
            kept = True
            return answer
        except GetTimeoutError:
            raise FunctionTimeout(
                f"no answer within {timeout_s:g} s: the instance is ended; give it more time, or see whether the "
                f"cluster has room for {self._num_cpus:g} processors more (`ray status`)",
                **known,
            ) from None
        except RayError as error:
            raise FunctionLost(f"Ray lost the instance: {type(error).__name__}: {error}", **known) from error
        except Exception as error:
            # Ray answers in many ways where it was ended under a waiting call.
            raise FunctionLost(f"Ray gave no answer: {type(error).__name__}: {error}", **known) from error
        finally:
            self._give_back(instance, kept)

    def prewarm(self, count: int, attempt: Attempt = unrecorded) -> None:
        """Starts instances until there are `count`, busy ones included; waits until they have imported an actor's work.

        FunctionTimeout where the cluster has no room for them.
        """
        payload = encode_request(WarmRequest())
        with self._changed:
            self._check_open()
            started = [self._place() for _ in range(count - len(self._idle) - len(self._busy))]
            self._busy.update(started)
        if started:
            with ThreadPoolExecutor(len(started)) as threads:
                warm = threads.map(
                    lambda each: attempt(payload, lambda: self._call_new(each, payload, len(started))), started
                )
                for answer in warm:
                    checked_warm(answer)

    def _call_new(self, instance: _Placed, payload: bytes, count: int) -> bytes:
        kept = False
        try:
            answer: Any = ray.get(instance.process.invoke.remote(payload), timeout=WARM_S)
            kept = True
            return answer
        except RayError as error:
            kind = FunctionTimeout if isinstance(error, GetTimeoutError) else FunctionLost
            raise kind(
                f"expected {count} more instances within {WARM_S:g} s: {type(error).__name__}: {error}; "
                "`ray status` tells what the cluster has room for",
                instance=instance.name,
                cold=True,
            ) from error
        finally:
            self._give_back(instance, kept)

    def close(self) -> None:
        """Ends every instance, running ones too, then a cluster of our own; one that was joined goes on."""
        with self._changed:
            if self._closed:
                return
            self._closed = True
            for each in [*self._idle, *self._busy]:
                ray.kill(each.process)
            self._idle.clear()
            deadline = time.monotonic() + CLOSE_S
            while self._busy and (left := deadline - time.monotonic()) > 0:
                self._changed.wait(left)
        self._cluster.close()

    def _place(self) -> _Placed:
        memory = 0 if self._cluster.own else self.memory_mb << 20
        name = uuid.uuid4().hex
        return _Placed(name, self._cluster.place(Instance, name, num_cpus=self._num_cpus, memory_bytes=memory))

    def _take(self) -> tuple[_Placed, bool]:
        """An instance, and whether it is a new one."""
        with self._changed:
            self._check_open()
            cold = not self._idle
            # The one that was used last: what is not needed stays idle.
            instance = self._place() if cold else self._idle.pop()
            self._busy.add(instance)
            return instance, cold

    def _give_back(self, instance: _Placed, keep: bool) -> None:
        with self._changed:
            self._busy.discard(instance)
            if keep and not self._closed:
                self._idle.append(instance)
            elif not self._closed:
                ray.kill(instance.process)
            self._changed.notify_all()

    def _check_open(self) -> None:
        if self._closed:
            raise FunctionLost("the platform is closed: make another one")
