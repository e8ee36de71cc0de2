"""One round of actor functions, played event by event in simulated time, and the platform that it is played on.

What takes time: an instance's place under the concurrency cap, its start-up, its share of a processor (or, on one host,
of all its cores), and its turn at the replay server, which serves one at a time.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from replay_server.serverless.backends.backend import Invocation

VCPU_MB = 1769
"""Memory at which an AWS Lambda function has one whole vCPU (AWS Lambda, "Configure Lambda function memory")."""
PLATFORM = "simulated"
"""The platform that simulated invocations name."""


def cpu_share(memory_mb: int) -> float:
    """vCPUs of a Lambda function of that memory: in proportion; 1,024 MB have 0.58."""
    if memory_mb < 1:
        raise ValueError(f"expected at least 1 MB of memory, got {memory_mb}")
    return memory_mb / VCPU_MB


@dataclass(frozen=True)
class Host:
    """What functions run on."""

    concurrency: int
    """Invocations at a time; more wait in order."""
    cpu_share: float = 1.0
    """Processors that an instance gets; a function of one thread gains nothing by more than 1."""
    cores: int | None = None
    """Of the one host that all instances share; None = a platform on which each has its own."""


@dataclass(frozen=True)
class Stage:
    """Where and on what rounds are played.

    Args:
        memory_mb: of an actor function; `host.cpu_share` is usually `cpu_share(memory_mb)`.
        learner_memory_mb: of a learner function, for its price.
        learner_speed: 1 = this machine's processor; what a GPU would be is a guess unless it was measured.
        warm: instances that are there before the first round.
        cold_wait_s: of a cold start, until its process begins (image, network); none of it is measured here.
        keeps_instances: whether instances stay warm from one round to the next.
    """

    host: Host
    memory_mb: int = 1024
    learner_memory_mb: int = 1769
    learner_speed: float = 1.0
    warm: int = 0
    cold_wait_s: float = 0.0
    keeps_instances: bool = True

    def invocation(
        self, kind: str, number: int, index: int, now: float, queued: float, started: float, ended: float, cold: bool
    ) -> Invocation:
        """Of round `number`; its times are seconds after `now`."""
        return Invocation(
            request=f"{PLATFORM}:{number}:{kind}:{index}",
            kind=kind,
            round=number,
            attempt=1,
            platform=PLATFORM,
            queued=now + queued,
            started=now + started,
            ended=now + ended,
            outcome="ok",
            cold=cold,
            instance="",
            memory_mb=self.memory_mb if kind == "actor" else self.learner_memory_mb,
            bytes_in=0,
            bytes_out=0,
            measured=None,
        )


@dataclass(frozen=True)
class ActorWork:
    """What one actor function has to do, in seconds."""

    act_cpu_s: float
    """Processor time."""
    platform_s: float = 0.0
    """Handing the invocation over and its answer back."""
    cold_wait_s: float = 0.0
    """Of a cold start: until its process begins, such as fetching its image."""
    cold_cpu_s: float = 0.0
    """Of a cold start: processor time of start and imports."""
    fetch_s: float = 0.0
    """How long the server is busy with sending it the weights."""
    ingest_s: float = 0.0
    """How long the server is busy with taking in its fragments."""


@dataclass(frozen=True)
class ActorTimes:
    """When it happened, in seconds from the round's beginning."""

    queued: float
    started: float
    fetched: float
    acted: float
    ended: float
    cold: bool


class _Processors:
    """Processors shared evenly: of k functions at work each gets the same, at most its share.

    As all run equally fast at any time, work is counted on one clock that runs at that speed: a function that has w to
    do, and joins when it shows v, is done when it shows v + w.
    """

    def __init__(self, host: Host) -> None:
        self._share = min(1.0, host.cpu_share)
        self._cores = host.cores
        self._now = 0.0
        self._clock = 0.0
        self._working: list[tuple[float, int]] = []

    def _speed(self) -> float:
        if self._cores is None:
            return self._share
        return min(self._share, self._cores / len(self._working))

    def _advance(self, now: float) -> None:
        if self._working:
            self._clock += (now - self._now) * self._speed()
        self._now = now

    def add(self, now: float, work: float, actor: int) -> None:
        self._advance(now)
        heapq.heappush(self._working, (self._clock + work, actor))

    def next_time(self) -> float:
        """When the first is done, if none joins before."""
        if not self._working:
            return float("inf")
        return self._now + max(0.0, self._working[0][0] - self._clock) / self._speed()

    def pop(self, now: float) -> int:
        self._advance(now)
        done, actor = heapq.heappop(self._working)
        self._clock = max(self._clock, done)  # against the rounding of times
        return actor


def play_actors(works: Sequence[ActorWork], host: Host, *, warm: int = 0, dispatch_s: float = 0.0) -> list[ActorTimes]:
    """Submits all, one after the other, and plays until the last has ended.

    Args:
        warm: instances that are there at the beginning; one that has ended is warm for the next.
        dispatch_s: between one submission and the next.

    Returns:
        The times of each, in the order of `works`.
    """
    return _Round(works, host, warm, dispatch_s).play()


class _Round:
    def __init__(self, works: Sequence[ActorWork], host: Host, warm: int, dispatch_s: float) -> None:
        if host.concurrency < 1:
            raise ValueError(f"expected a concurrency of at least 1, got {host.concurrency}")
        if not host.cpu_share > 0:
            raise ValueError(f"expected a share of a processor above 0, got {host.cpu_share}")
        self._works = works
        self._places = host.concurrency
        self._warm = warm
        self._processors = _Processors(host)
        self._server_free = 0.0
        self._waiting: deque[int] = deque()
        count = len(works)
        self._queued = [actor * dispatch_s for actor in range(count)]
        self._started, self._fetched, self._acted, self._ended = ([0.0] * count for _ in range(4))
        self._cold = [False] * count
        self._is_starting = [False] * count
        self._events = [(time, actor, "queued") for actor, time in enumerate(self._queued)]

    def play(self) -> list[ActorTimes]:
        heapq.heapify(self._events)
        while True:
            event_time = self._events[0][0] if self._events else float("inf")
            work_time = self._processors.next_time()
            if event_time == work_time == float("inf"):
                break
            if work_time <= event_time:
                self._on_work_done(work_time, self._processors.pop(work_time))
            else:
                time, actor, what = heapq.heappop(self._events)
                getattr(self, f"_on_{what}")(time, actor)
        columns = (self._queued, self._started, self._fetched, self._acted, self._ended, self._cold)
        return [ActorTimes(*times) for times in zip(*columns, strict=True)]

    def _after(self, time: float, actor: int, what: str) -> None:
        heapq.heappush(self._events, (time, actor, what))

    def _on_queued(self, time: float, actor: int) -> None:
        if self._places:
            self._start(time, actor)
        else:
            self._waiting.append(actor)

    def _start(self, time: float, actor: int) -> None:
        self._places -= 1
        self._started[actor] = time
        cold = self._cold[actor] = self._warm == 0
        work = self._works[actor]
        if not cold:
            self._warm -= 1
        self._after(time + work.platform_s + (work.cold_wait_s if cold else 0.0), actor, "there")

    def _on_there(self, time: float, actor: int) -> None:
        if self._cold[actor] and self._works[actor].cold_cpu_s:
            self._is_starting[actor] = True
            self._processors.add(time, self._works[actor].cold_cpu_s, actor)
        else:
            self._fetch(time, actor)

    def _fetch(self, time: float, actor: int) -> None:
        self._after(self._served(time, self._works[actor].fetch_s), actor, "fetched")

    def _served(self, time: float, busy_s: float) -> float:
        """When the server is done with a request that comes now."""
        self._server_free = max(self._server_free, time) + busy_s
        return self._server_free

    def _on_fetched(self, time: float, actor: int) -> None:
        self._fetched[actor] = time
        self._processors.add(time, self._works[actor].act_cpu_s, actor)

    def _on_work_done(self, time: float, actor: int) -> None:
        if self._is_starting[actor]:
            self._is_starting[actor] = False
            self._fetch(time, actor)
        else:
            self._acted[actor] = time
            self._after(self._served(time, self._works[actor].ingest_s), actor, "ended")

    def _on_ended(self, time: float, actor: int) -> None:
        self._ended[actor] = time
        self._places += 1
        self._warm += 1
        if self._waiting:
            self._start(time, self._waiting.popleft())
