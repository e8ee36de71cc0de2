"""CartPole learned by PPO, IMPACT and IMPALA, through the tables that carry fragments, within a minute on one core.

A policy that keeps the pole up sees nothing else, and may forget: it is judged by several rounds in a row, then by
fresh games. Six rounds, since a round's score is of the games that happened to end in it.
"""

from __future__ import annotations

import collections

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from replay_server.bench.training import train  # noqa: E402
from replay_server.learner.algorithms import make_settings  # noqa: E402

ROUNDS_MAX = 60
IN_A_ROW = 6


@pytest.mark.slow
@pytest.mark.learning
@pytest.mark.parametrize(("algorithm", "given"), [("ppo", {}), ("impact", {}), ("impala", {"learning_rate": 5e-4})])
def test_cartpole_is_learned(algorithm, given):
    recent: collections.deque[float] = collections.deque(maxlen=IN_A_ROW)

    def good_enough(row: dict[str, float]) -> bool:
        if "score" in row:
            recent.append(row["score"])
        return len(recent) == IN_A_ROW and min(recent) >= 450

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        settings = make_settings(algorithm, "default", env="CartPole-v1", steps=128, seed=1, **given)
        trained = train(settings, environments=8, rounds=ROUNDS_MAX, on_round=good_enough)
    finally:
        torch.set_num_threads(threads)
    cpu_s = trained.acting_cpu_s + trained.learning_cpu_s
    print(f"{algorithm}: {np.mean(trained.scores):.0f} after {len(trained.curve)} rounds, {cpu_s:.0f} CPU-s")
    assert len(trained.curve) < ROUNDS_MAX, [row.get("score") for row in trained.curve]
    assert np.mean(trained.scores) >= 400
