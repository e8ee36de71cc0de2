"""``replay-server bench minions``: MinionsRL's learned scheduler against chance and fixed numbers; its figures 5 and 9.

Every scheduler plays whole jobs of the task that the first policy was trained on, to that training's target and within
its budget, with the same seeds. A job that was played is kept as JSON in the folder and never played again, so that the
comparison goes on where it was interrupted. Rewards and losses are of real learning; times and dollars are simulated
(`replay_server.serverless.job_clock`).

The best fixed number is the one with the greatest mean return over these very seeds, which favours it. Differences are
paired by seed. What training the scheduler cost, reference jobs included, is shown shared by 1, 10 and 100 jobs.

    replay-server bench minions --policy runs/scheduler-cartpole --folder runs/minions
    replay-server bench minions --figure 9 --scratch runs/scheduler-hopper --tuned runs/scheduler-hopper-tuned
"""

from replay_server.bench.papers.minions.command import main

__all__ = ["main"]
