"""What a job writes down while it runs: every invocation in invocations.jsonl, every round in metrics.jsonl."""

from __future__ import annotations

import dataclasses
import os
import threading
from pathlib import Path
from typing import Any

from replay_server.learner.metrics import Metrics, read_metrics
from replay_server.serverless.backends.backend import Invocation
from replay_server.serverless.cost import Bill
from replay_server.serverless.invocation_log import NAME, invocation_line, read_invocations
from replay_server.serverless.record import RoundRecord

ROUND = "round"
"""Kind of the rows of metrics.jsonl that are rounds."""
EVALUATION = "evaluation"


class RunLog:
    """Writes a job's records, and bills what it writes; what earlier sessions of the run wrote is billed first.

    Args:
        after: rounds above this number, of an earlier session, are played again: their records count no more.
    """

    def __init__(self, folder: Path, bill: Bill, after: int = 0) -> None:
        self.bill = bill
        self.attempts_lost = 0
        """Attempts that were lost or took too long, all sessions together."""
        self.recent: list[Invocation] = []
        """Those that have ended since the last round was added."""
        self._lock = threading.Lock()
        path = folder / NAME
        if path.exists():
            _end_with_a_whole_line(path)
            for invocation in read_invocations(path):
                self._count(invocation)
        self.rounds = [record for record in read_rounds(folder) if record.round <= after]
        evaluations = {
            (row["round"], row["final"]): row for row in read_metrics(folder, EVALUATION) if row["round"] <= after
        }
        self.evaluations = list(evaluations.values())
        if (metrics := folder / "metrics.jsonl").exists():
            _end_with_a_whole_line(metrics)
        self._metrics = Metrics(folder, ROUND)
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)

    def add(self, invocation: Invocation) -> None:
        """One attempt that has ended; called from any thread."""
        line = invocation_line(invocation).encode()
        with self._lock:
            if self._file >= 0:
                os.write(self._file, line)
                self._count(invocation)
                self.recent.append(invocation)

    def add_round(self, record: RoundRecord) -> None:
        """A round that is done."""
        with self._lock:
            self.recent.clear()
        self.rounds.append(record)
        self._metrics.write(record.round, {**dataclasses.asdict(record), "score": record.score})

    def add_evaluation(self, row: dict[str, Any]) -> None:
        """An evaluation: round, version, scores, and their mean and standard deviation."""
        self.evaluations.append(row)
        self._metrics.write(row["round"], row, kind=EVALUATION)

    def close(self) -> None:
        """Closes the files; safe to call twice."""
        with self._lock:
            if self._file >= 0:
                os.close(self._file)
                self._file = -1
        self._metrics.close()

    def _count(self, invocation: Invocation) -> None:
        self.attempts_lost += invocation.outcome in ("lost", "timeout")
        self.bill.add(invocation)


def read_rounds(folder: Path) -> list[RoundRecord]:
    """The rounds of a run directory in their order; of one that was played again after --resume, the last."""
    names = {field.name for field in dataclasses.fields(RoundRecord)}
    found: dict[int, RoundRecord] = {}
    for row in read_metrics(folder, ROUND):
        values = {name: value for name, value in row.items() if name in names}
        statistics = {name: float("nan") if value is None else value for name, value in values["statistics"].items()}
        record = RoundRecord(**{**values, "scores": tuple(values["scores"]), "statistics": statistics})
        found = {number: earlier for number, earlier in found.items() if number < record.round}
        found[record.round] = record
    return list(found.values())


def _end_with_a_whole_line(path: Path) -> None:
    """Cuts off what a writer that was killed did not finish: the next line is to stand by itself."""
    content = path.read_bytes()
    whole = content.rfind(b"\n") + 1
    if whole < len(content):
        os.truncate(path, whole)
