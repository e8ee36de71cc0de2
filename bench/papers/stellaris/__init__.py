"""Asynchronous learners against synchronous ones: reward by time and cost, staleness, and what each part is worth.

    replay-server bench stellaris --env CartPole-v1 --actors 8 --steps 128 --rounds 20 --seeds 1 2 3 4 5
    replay-server bench stellaris --env Hopper-v5 Walker2d-v5 --folder cells --delays 0 1 3 8 --json stellaris.json
    replay-server bench stellaris --env CartPole-v1 --scaling 1 2 4 8

Learning is real, in this process; every time and every dollar is simulated: each actor and each learner has a processor
of its own (`simulated_learners.py`). So a learner's gradients are as stale as they would be on a platform with that
many, whatever else this machine does, and the same seed gives the same numbers. All methods have the same samples,
minibatches and passes. PAR-RL is not reproduced.
"""

from replay_server.bench.papers.stellaris.command import main

__all__ = ["main"]
