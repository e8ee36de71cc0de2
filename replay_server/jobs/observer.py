"""How an Ape-X job goes, as its server tells: what its parts report there, and the state of its table."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable
from typing import Any

import replay_server as rs
from replay_server.jobs.progress import ActorState, Rate, Snapshot
from replay_server.rl.settings import ApexSettings
from replay_server.rl.shared_settings import incarnations_key

SILENT_S = 10.0
"""An actor that has reported nothing for so long does not play."""


class Observer:
    """Brings `snapshot` up to date, one `look` after the other.

    Args:
        settings: of the job.
        earlier: totals of earlier sessions that this one goes on with (elapsed_s, frames, transitions, updates,
            restarts); they stand in the snapshot from the start.
        alone: the id of the one actor whose reports are read; None = those of all, also of actors that have joined.
    """

    def __init__(
        self,
        settings: ApexSettings,
        earlier: dict[str, float] | None = None,
        alone: Callable[[], int] | None = None,
    ) -> None:
        totals = ("elapsed_s", "frames", "transitions", "updates", "restarts")
        self.settings = settings
        self.earlier = {name: (earlier or {}).get(name, 0.0) for name in totals}
        self.snapshot = Snapshot(
            elapsed_s=self.earlier["elapsed_s"],
            frames=int(self.earlier["frames"]),
            transitions=int(self.earlier["transitions"]),
            updates=int(self.earlier["updates"]),
            restarts=int(self.earlier["restarts"]),
            capacity=settings.capacity,
        )
        self._alone = alone
        self._actors: dict[int, _ActorReports] = {}
        self._rates = {name: Rate() for name in ("frames", "transitions", "updates")}
        self._first_step: float | None = None
        self._added, self._sampled = _Counter(), _Counter()
        self._frames_before = 0
        self._seen: dict[str, list[bytes]] = {"evaluations": [], "messages": []}

    def begin_after(self, client: rs.Client) -> None:
        """What the server has now is of a session before this one: it is not counted again.

        Reports and lists may outlive the table.
        """
        with contextlib.suppress(rs.TableNotFound):
            info = client.info(self.settings.table)
            self._added.begin_after(int(info["added"]))
            self._sampled.begin_after(int(info["sampled"]))
        *_, actors = self._reports(client)
        self._frames_before = sum(actor.frames for actor in actors.values())
        for name in self._seen:
            there: Any = client.redis.lrange(f"{self.settings.table}:{name}", 0, -1)
            self._seen[name] = there

    def look(self, client: rs.Client) -> None:
        """Asks the server. Raises TableNotFound while there is no table, and what a lost server raises."""
        settings, snapshot, now = self.settings, self.snapshot, time.monotonic()
        info = client.info(settings.table)
        learner, evaluator, snapshot.actors = self._reports(client)
        frames = sum(actor.frames for actor in snapshot.actors.values()) - self._frames_before
        added, sampled = self._added.count(int(info["added"])), self._sampled.count(int(info["sampled"]))
        if self._first_step is None and (frames or added):
            self._first_step = now
        if learner:
            snapshot.learner = learner
            snapshot.updates = int(learner["updates"])
            snapshot.batches_not_finite = int(learner.get("batches_not_finite", 0))
        snapshot.elapsed_s = self.earlier["elapsed_s"] + (now - self._first_step if self._first_step else 0.0)
        snapshot.frames = int(self.earlier["frames"]) + frames
        snapshot.transitions = int(self.earlier["transitions"]) + added
        snapshot.size, snapshot.capacity = int(info["size"]), int(info["capacity"])
        snapshot.closed = bool(info["closed"])
        snapshot.waiting, snapshot.waiting_add = str(info["reason"]), str(info["reason_add"])
        # A replay that was there from the start has warmed up before.
        after_warm_up = min(added, int(info["added"]) - settings.min_size_to_sample)
        snapshot.samples_per_insert = sampled / after_warm_up if after_warm_up > 0 else 0.0
        snapshot.frames_per_s = self._rates["frames"].add(now, snapshot.frames)
        snapshot.transitions_per_s = self._rates["transitions"].add(now, snapshot.transitions)
        if learner:
            snapshot.updates_per_s = self._rates["updates"].add(now, snapshot.updates)
        snapshot.signs = {
            "learner": None if snapshot.waiting else (snapshot.updates, snapshot.batches_not_finite),
            "evaluator": evaluator.get("updated_at", 0.0),
            **{f"actor {index}": actor.updated_at or None for index, actor in snapshot.actors.items()},
        }

    def _reports(self, client: rs.Client) -> tuple[dict[str, float], dict[str, float], dict[int, ActorState]]:
        """What the learner, the evaluator and each actor reported last."""
        self._find_actors(client)
        ids = sorted(self._actors)
        asked = client.redis.pipeline(transaction=False)
        for part in ("learner", "evaluator", *(f"actor:{index}" for index in ids)):
            asked.hgetall(f"{self.settings.table}:{part}")
        learner, evaluator, *actors = (_numbers(report) for report in asked.execute())
        now = time.monotonic()
        states = {index: self._actors[index].state(report, now) for index, report in zip(ids, actors, strict=True)}
        return learner, evaluator, states

    def _find_actors(self, client: rs.Client) -> None:
        """The run's own, and those that have joined it since."""
        if self._alone is not None:
            ids = {self._alone()}
        else:
            ids = {*range(self.settings.actors), *map(int, client.redis.hkeys(incarnations_key(self.settings.table)))}
        for index in ids - self._actors.keys():
            self._actors[index] = _ActorReports()

    def new_messages(self, client: rs.Client) -> list[dict[str, Any]]:
        """What parts said since the last call."""
        return self._new(client, "messages")

    def new_evaluations(self, client: rs.Client) -> list[dict[str, Any]]:
        """The evaluations since the last call, oldest first."""
        return self._new(client, "evaluations")

    def _new(self, client: rs.Client, name: str) -> list[dict[str, Any]]:
        """Rows of a list that were not there before. A server that came back has an older list, or begins a new one."""
        key, seen = f"{self.settings.table}:{name}", self._seen[name]
        there: Any = client.redis.lrange(key, max(0, len(seen) - 1), -1)
        if seen and there[:1] != seen[-1:]:
            there = client.redis.lrange(key, 0, -1)
            same = next((at for at, (old, new) in enumerate(zip(seen, there, strict=False)) if old != new), None)
            known = min(len(seen), len(there)) if same is None else same
            rows, self._seen[name] = there[known:], there
        else:
            rows = there[1:] if seen else there
            seen += rows
        return [json.loads(row) for row in rows]


class _Counter:
    """A count of a server's table since `begin_after`. It goes on where the server came back empty, or with less."""

    def __init__(self) -> None:
        self._before = self._newest = 0

    def begin_after(self, told: int) -> None:
        self._before = self._newest = told

    def count(self, told: int) -> int:
        self._before -= max(0, self._newest - told)
        self._newest = told
        return told - self._before


class _ActorReports:
    """One actor's reports. Its frames begin at 0 with each life of its process; here they are of all its lives."""

    def __init__(self) -> None:
        self._life = self._frames = self._frames_before = self._updated_at = 0.0
        self._heard_at: float | None = None
        self._looked = False

    def state(self, report: dict[str, float], now: float) -> ActorState:
        life = report.get("started_at", self._life)  # a server that came back empty has no report at first
        if life < self._life:
            report, life = {}, self._life  # and one that came back with a snapshot may have that of an earlier life
        if life != self._life:
            self._frames_before += self._frames
            self._life = life
        self._frames = report.get("frames", self._frames)
        updated_at = report.get("updated_at", self._updated_at)
        if updated_at != self._updated_at:
            # What is there at first may be of an actor that has gone long since.
            self._updated_at, self._heard_at = updated_at, now if self._looked else None
        self._looked = True
        return ActorState(
            frames=int(self._frames_before + self._frames),
            episodes=int(report.get("episodes", 0)),
            score_mean=report.get("score_mean", 0.0),
            version=int(report.get("version", -1)),
            alive=self._heard_at is not None and now - self._heard_at < SILENT_S,
            updated_at=self._updated_at,
        )


def _numbers(fields: Any) -> dict[str, float]:
    """A hash of decimal strings as numbers."""
    return {name.decode(): float(value) for name, value in fields.items()}
