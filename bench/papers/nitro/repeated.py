"""R measured twice: of two sets of trajectories of the same policies, round by round.

Whatever R says of a round's policy is in both; what differs is chance. Unless the two agree, rounds and runs whose R
differ cannot be told from the same one measured again.
"""

from __future__ import annotations

from replay_server.bench.papers.nitro.branches import Job
from replay_server.learner.curvature import CurvatureOptions

Pair = tuple[float | None, float | None]


def repeated_ratios(job: Job, rounds: int, curvature: CurvatureOptions) -> list[Pair]:
    """R after each of so many rounds: of what the round learned from, and of as much that it did not learn from.

    Both sets are of the policy before the round's update, as a round's are; the second is of new episodes. The job goes
    on as it would without the second.
    """
    found: list[Pair] = []
    for _ in range(rounds):
        both = job.act(2 * job.actors)
        own, other = ({name: column[part] for name, column in both.items()} for part in
                      (slice(None, job.actors), slice(job.actors, None)))  # fmt: skip
        job.learn(own)
        found.append((job.ratio(own, curvature), job.ratio(other, curvature)))
    return found
