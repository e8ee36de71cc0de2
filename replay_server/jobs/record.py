"""What a job leaves in its run directory, and whether one of its stop conditions is met."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping
from typing import Any

import replay_server as rs
from replay_server.jobs.hung_parts import MAKES_NO_UPDATE, Silence
from replay_server.jobs.observer import Observer
from replay_server.learner.metrics import Metrics, read_metrics
from replay_server.rl.run_directory import BEST, RunDirectory, write_json
from replay_server.rl.settings import ApexSettings

STOP_CONDITIONS = ("minutes", "max_updates", "max_transitions", "target_score")
TABLE_CLOSED = "table closed"
ROW_EVERY_S = 10.0
DRAW_EVERY_S = 60.0


class JobRecord:
    """Looks at a job through an `Observer`, writes rows and scores, and at the end the summary.

    Of a run that is resumed the numbers go on: frames, transitions, restarts and minutes are of all sessions. `part`:
    the part that looks, whose own messages were said by itself.
    """

    def __init__(self, settings: ApexSettings, run_directory: RunDirectory, part: str = "") -> None:
        self.settings = settings
        self._part = part
        self.run_directory = run_directory
        self.evaluations: list[dict[str, Any]] = []
        self._good_evaluations = 0
        self.silences = {"learner": Silence(MAKES_NO_UPDATE)}
        """Of the parts that are watched, by their names."""
        self._drawn = float("-inf")
        self._row_at = time.monotonic() + ROW_EVERY_S
        self.observer = Observer(settings, self._earlier_sessions())
        self._played: set[int] = set()
        self._joined: set[int] = set()
        self.snapshot = self.observer.snapshot
        self.metrics = Metrics(run_directory.path, "progress")

    def look(self, client: rs.Client, say: Callable[[str], None], running: Mapping[str, bool] | None = None) -> None:
        """Brings the snapshot up to date, and takes and says what is new: silences, messages of parts, evaluations.

        `running`: whether the process of a part runs, by the part's name; one that is not there runs elsewhere.
        """
        self.observer.look(client)
        for name, silence in self.silences.items():
            if news := silence.look(time.monotonic(), self.snapshot.signs[name], (running or {}).get(name, True)):
                say(f"{name} {news}")
        self._tell_who_joined(say)
        for message in self.observer.new_messages(client):
            if message["part"] != self._part:
                say(f"{message['part']}: {message['text']}")
        for evaluation in self.observer.new_evaluations(client):
            self._take_evaluation(evaluation)
            self.draw(DRAW_EVERY_S)
            say(
                f"evaluation after {evaluation['version']} updates: {evaluation['score_mean']:.1f} "
                f"± {evaluation['score_std']:.1f} over {evaluation['episodes']} games"
            )

    def _tell_who_joined(self, say: Callable[[str], None]) -> None:
        """Actors beyond those that the run began with come and go as they like."""
        playing = {index for index, actor in self.snapshot.actors.items() if actor.alive}
        self._played |= playing
        joined = {index for index in playing if index >= self.settings.actors}
        for index in sorted(joined ^ self._joined):
            say(f"actor {index} has {'joined' if index in joined else 'left'}")
        self._joined = joined

    def met_condition(self) -> str:
        """The name of the setting whose limit is reached, "table closed" where somebody closed the table, "" else.

        The learner itself sees to `max_updates`.
        """
        settings, snapshot = self.settings, self.snapshot
        if snapshot.closed:
            return TABLE_CLOSED
        if self._good_evaluations >= settings.target_evaluations:
            return "target_score"
        played_s = snapshot.elapsed_s - self.observer.earlier["elapsed_s"]
        if settings.minutes is not None and played_s >= 60.0 * settings.minutes:
            return "minutes"
        if settings.max_transitions is not None and snapshot.transitions >= settings.max_transitions:
            return "max_transitions"
        return ""

    def write_row_if_due(self) -> bool:
        """Writes a row of progress every `ROW_EVERY_S`; whether it has."""
        if time.monotonic() < self._row_at:
            return False
        self._row_at = time.monotonic() + ROW_EVERY_S
        self.write_row()
        return True

    def write_row(self) -> None:
        snapshot = self.snapshot
        names = (
            "elapsed_s", "frames", "transitions", "frames_per_s", "transitions_per_s", "updates_per_s", "size",
            "samples_per_insert", "weight_staleness", "restarts",
        )  # fmt: skip
        values = {name: getattr(snapshot, name) for name in names}
        # One that has ended no game yet has no score: a row says nothing of it, not 0.
        scores = {
            f"actor_{index}_score": actor.score_mean for index, actor in snapshot.actors.items() if actor.episodes
        }
        self.metrics.write(snapshot.updates, {**values, **scores})

    def _take_evaluation(self, evaluation: dict[str, Any]) -> None:
        snapshot = self.snapshot
        evaluation = {
            "minutes": round(snapshot.elapsed_s / 60.0, 3),
            "transitions": snapshot.transitions,
            "frames": snapshot.frames,
            "updates": evaluation["version"],
            **evaluation,
        }
        self.evaluations.append(evaluation)
        snapshot.evaluation, snapshot.evaluations = evaluation, len(self.evaluations)
        target = self.settings.target_score
        good = target is not None and evaluation["score_mean"] >= target
        self._good_evaluations = self._good_evaluations + 1 if good else 0
        self.metrics.write(evaluation["updates"], evaluation, kind="evaluation")
        scores = {name: evaluation[f"score_{name}"] for name in ("mean", "std", "min", "max")}
        self.run_directory.append_score({**evaluation, **scores})

    def _earlier_sessions(self) -> dict[str, float]:
        """Totals that the last session of a resumed run left in metrics.jsonl and checkpoints, and its evaluations."""
        totals = {"elapsed_s": 0.0, "frames": 0, "transitions": 0, "restarts": 0}
        updates = 0
        if self.settings.resume:
            updates = max(self.run_directory.saved_steps(), default=0)
            self.evaluations = read_metrics(self.run_directory.path, "evaluation")
            rows = read_metrics(self.run_directory.path, "progress")
            if rows:
                totals = {name: rows[-1][name] for name in totals}
        return {**totals, "updates": updates}

    # -- what stays

    def final_games(self) -> str:
        """What is played at the end, for people."""
        which = "best" if (self.run_directory.checkpoints / BEST).exists() else "newest"
        return f"playing {self.settings.final_episodes} new games with the {which} network"

    def close(self, ended_by: str, final: dict[str, Any] | None) -> None:
        """Writes the last row and summary.json: `ended_by` names what ended the run, `final` the last evaluation.

        OSError where the disk does not take them; the summary is tried also where the row does not fit. A drawing that
        fails is only said.
        """
        with contextlib.ExitStack() as last:
            last.callback(self._write_summary, ended_by, final)
            last.callback(self.metrics.close)
            self.write_row()
        if ended_by != "interrupted":  # the drawing library alone takes a second to load
            try:
                self.draw(0.0)
            except (OSError, ValueError, TypeError) as error:  # of a row of scores that was cut short, too
                print(f"{self.run_directory.plot} is not drawn: {error}", flush=True)

    def _write_summary(self, ended_by: str, final: dict[str, Any] | None) -> None:
        settings, snapshot, earlier = self.settings, self.snapshot, self.observer.earlier
        played_s = max(snapshot.elapsed_s - earlier["elapsed_s"], 1e-9)
        frames = snapshot.frames - int(earlier["frames"])
        updates = snapshot.updates - int(earlier["updates"])
        empty = {"checkpoint": None, "checkpoint_step": None, "eval_episodes": 0, "eval_mean": None, "eval_std": None}
        summary = {
            "env": settings.env,
            "seed": settings.seed,
            "profile": settings.profile,
            "sticky_actions": settings.sticky_actions,
            "ended_by": ended_by,
            "minutes": snapshot.elapsed_s / 60.0,
            "frames": snapshot.frames,
            "transitions": snapshot.transitions,
            "updates": snapshot.updates,
            "actors_played": len(self._played),
            "frames_per_s": frames / played_s if snapshot.elapsed_s else 0.0,
            "updates_per_s": updates / played_s if snapshot.elapsed_s else 0.0,
            "restarts": snapshot.restarts,
            "batches_not_finite": snapshot.batches_not_finite,
            **self.run_directory.measured(),
            "eval_epsilon": settings.eval_epsilon,
            **empty,
            **(final or {}),
            "evaluations": self.evaluations,
        }
        write_json(self.run_directory.summary, summary)

    def draw(self, at_most_every_s: float) -> None:
        """Draws the scores so far."""
        now = time.monotonic()
        if now - self._drawn < at_most_every_s:
            return
        self._drawn = now
        settings = self.settings
        what = f"{settings.env}, seed {settings.seed}, profile {settings.profile}"
        self.run_directory.draw_scores(f"{what}, sticky actions {settings.sticky_actions:g}")
