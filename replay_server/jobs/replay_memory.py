"""Whether a job's full replay fits in this machine's memory, told before anything is started."""

from __future__ import annotations

import replay_server as rs
from replay_server.jobs.job_server import snapshot_bytes, told_bytes
from replay_server.rl.machine import available_memory_bytes
from replay_server.rl.settings import ApexSettings

PARTS_BYTES = 2 << 30
"""Left for the learner, the actors and the evaluator, but never more than half of what is available."""


def fit_replay(settings: ApexSettings, table: rs.Table, given: bool, available_bytes: int | None = None) -> str:
    """Lowers a capacity that nobody gave to what fits in memory; returns a sentence for people, "" where all is well.

    Args:
        table: the run's.
        given: whether the user gave `settings.capacity` for this run or session.
        available_bytes: of memory; None = of this machine's.

    Raises:
        ValueError: the smallest replay that learning can begin with needs more than there is.
    """
    if settings.shards_on.startswith("ray:"):
        return ""  # it is on other machines
    if available_bytes is None and (available_bytes := available_memory_bytes()) is None:
        return ""
    held = min(settings.capacity, settings.max_transitions or settings.capacity)
    servers = 1 + settings.replicas
    needed = servers * snapshot_bytes(table) * held // settings.capacity
    room = max(available_bytes - PARTS_BYTES, available_bytes // 2)
    if needed <= room:
        return ""
    copies = f"{servers} servers with " if settings.replicas else ""
    there = f"of memory, and {told_bytes(available_bytes)} are available"

    def told(transitions: int) -> str:
        return f"{copies}{transitions} transitions need {told_bytes(needed * transitions // held)} {there}"

    words = told(held)
    if settings.compression != "none":
        return f"{words}: --compression {settings.compression} has to save the rest"
    if settings.resume:  # another capacity would begin with an empty replay
        return f"{words} for the whole job: free some before the replay is full"
    least = min(settings.min_size_to_sample, held)
    if needed * least // held > available_bytes:
        raise ValueError(
            f"--min-size-to-sample {settings.min_size_to_sample} is too large for this machine: {told(least)}"
        )
    fits = max(least, held * room // needed)
    if given:  # memory is taken as the replay fills
        return f"{words} for the whole job: with --capacity {fits} there would be enough"
    settings.capacity = fits
    return f"the replay holds {fits} transitions: {words} (--capacity N overrides)"
