"""CartPole learned by PPO and by IMPACT, through the tables that carry fragments, within a minute on one core."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from replay_server.bench.training import make_settings, train  # noqa: E402


@pytest.mark.slow
@pytest.mark.learning
@pytest.mark.timeout(300)
@pytest.mark.parametrize("algorithm", ["ppo", "impact"])
def test_cartpole_is_learned(algorithm):
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        settings = make_settings(algorithm, "default", env="CartPole-v1", steps=128, seed=1)
        trained = train(settings, environments=8, rounds=40)
    finally:
        torch.set_num_threads(threads)
    print(f"{algorithm}: {np.mean(trained.scores):.0f}, {trained.acting_cpu_s + trained.learning_cpu_s:.0f} CPU-s")
    assert len(trained.scores) == 20
    assert np.mean(trained.scores) >= 400
    assert np.isfinite([value for row in trained.curve for name, value in row.items() if "variance" not in name]).all()
