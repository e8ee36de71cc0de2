"""Cells of a comparison: one method, delay, learning rate and seed, on one environment. Each is played once and kept.

A folder may hold the cells of any number of comparisons: a cell's name has all in it that it depends on. Whatever ends
a comparison, even a kill, leaves whole cells, and the same command goes on with those that are missing.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from replay_server.bench.papers.stellaris.crew import scheduler_name
from replay_server.bench.papers.stellaris.job import Clock, Played, play
from replay_server.bench.papers.stellaris.methods import Method, method
from replay_server.learner.algorithms import Settings
from replay_server.rl.run_directory import write_json


@dataclass(frozen=True)
class Cell:
    """One job to be played."""

    env: str
    method: str
    delay: int | str
    """Versions, or recorded:DIR."""
    rate: float | None
    """Learning rate; None = the profile's."""
    seed: int

    def told(self) -> str:
        rate = "" if self.rate is None else f"learning rate {self.rate:g}, "
        return f"{self.env} {self.method}, delay {self.delay}, {rate}seed {self.seed}"


@dataclass
class Cells:
    """Plays cells, and keeps them.

    Args:
        settings_of: (environment, seed, learning rate) → settings of the algorithm.
        folder: where cells are kept; None = only as long as this is.
    """

    settings_of: Callable[[str, int, float | None], Settings]
    learners: int
    actors: int
    rounds: int
    episodes: int
    clock: Clock
    folder: Path | None = None
    _played: dict[Cell, Played] = field(default_factory=dict)

    def play(self, wanted: Sequence[Cell], say: Callable[[str], None]) -> None:
        """Plays those that were not played yet, in their order, and says how each went and how long the rest may take.

        Raises ValueError, FileNotFoundError for what no job can be made of: before any is played.
        """
        missing = [cell for cell in dict.fromkeys(wanted) if self._kept(cell) is None]
        if kept := len(set(wanted)) - len(missing):
            say(f"{kept} of {len(set(wanted))} jobs were played before")
        began = time.perf_counter()
        for number, cell in enumerate(missing, 1):
            played = self._play(cell)
            left_s = (time.perf_counter() - began) / number * (len(missing) - number)
            say(
                f"{number}/{len(missing)} {cell.told()}: {played.final:.1f} after {played.rounds[-1]['time_s']:.1f} s; "
                f"about {left_s / 60:.1f} minutes left"
            )

    def played(self, cell: Cell) -> Played:
        """KeyError where it was not."""
        found = self._kept(cell)
        if found is None:
            raise KeyError(cell.told())
        return found

    def _kept(self, cell: Cell) -> Played | None:
        if cell not in self._played and (path := self._path(cell)) is not None and path.exists():
            content = json.loads(path.read_text())
            self._played[cell] = Played(tuple(content["rounds"]), tuple(content["final_scores"]))
        return self._played.get(cell)

    def _play(self, cell: Cell) -> Played:
        wall, processor = time.perf_counter(), time.process_time()
        played = play(
            self.settings_of(cell.env, cell.seed, cell.rate), self._method(cell), actors=self.actors,
            rounds=self.rounds, clock=self.clock, episodes=self.episodes,
        )  # fmt: skip
        self._played[cell] = played
        if (path := self._path(cell)) is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            took = {"wall_s": time.perf_counter() - wall, "cpu_s": time.process_time() - processor}
            content = {**dataclasses.asdict(cell), **took, "depends_on": self._depends_on(cell)}
            write_json(path, {**content, "final_scores": played.final_scores, "rounds": played.rounds})
        return played

    def _method(self, cell: Cell) -> Method:
        return method(cell.method, self.learners, cell.delay)

    def _depends_on(self, cell: Cell) -> dict[str, Any]:
        made = self._method(cell)
        return {
            "settings": dataclasses.asdict(self.settings_of(cell.env, cell.seed, cell.rate)),
            "learning": dataclasses.asdict(made.learning),
            "machines": made.machines,
            "scheduler": None if made.scheduler is None else scheduler_name(made.scheduler),
            "actors": self.actors,
            "rounds": self.rounds,
            "episodes": self.episodes,
            "clock": self._clock(made),
            **({"late": True} if made.late else {}),
            **({} if made.delays is None else {"recorded": made.delays.rounds}),
        }

    def _clock(self, made: Method) -> dict[str, Any]:
        """What its times depend on: without truncation nobody looks at others' policies, whatever that takes."""
        clock = dataclasses.asdict(self.clock)
        if made.learning.truncation is None or not self.clock.learner.other_policy_s:
            del clock["learner"]["other_policy_s"]
        return clock

    def _path(self, cell: Cell) -> Path | None:
        if self.folder is None:
            self._depends_on(cell)  # what it cannot be made of is told now
            return None
        told = hashlib.sha256(json.dumps(self._depends_on(cell), sort_keys=True).encode()).hexdigest()[:12]
        name = _file_name(f"{cell.method}.delay={cell.delay}.seed={cell.seed}")
        return self.folder / _file_name(cell.env) / f"{name}.{told}.json"


def _file_name(name: str) -> str:
    return "".join(each if each.isalnum() or each in "-_.=" else "_" for each in name)[-80:]
