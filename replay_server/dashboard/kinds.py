"""Kinds of jobs and their pages."""

from __future__ import annotations

from replay_server.dashboard.apex_view import ApexView
from replay_server.dashboard.job_view import JobView
from replay_server.dashboard.run_source import RunSource
from replay_server.dashboard.train_view import TrainView
from replay_server.dashboard.watch import Watch

VIEWS: dict[str, type[JobView]] = {"apex": ApexView, "train": TrainView}


def job_view(run: RunSource, watch: Watch, compare: RunSource | None = None) -> JobView:
    """The page of a run; one whose kind is not known is shown as Ape-X, whose rows others have, too."""
    return VIEWS.get(run.kind, ApexView)(run, watch, compare)
