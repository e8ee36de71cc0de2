"""Batches of no meaning, for what does not depend on it."""

from __future__ import annotations

import numpy as np

import replay_server as rs
from replay_server.rl.environment_spec import EnvironmentSpec
from replay_server.rl.observations import columns, map_tree


def make_batches(spec: EnvironmentSpec, number: int, rows: int) -> list[rs.Batch]:
    """`number` different batches of an environment's transitions, the same ones each time."""
    generator = np.random.default_rng(7)

    def observations(name: str) -> dict[str, np.ndarray]:
        return columns(name, map_tree(lambda leaf: leaf.random(generator, rows), spec.observation))

    return [
        rs.Batch(
            data={
                **observations("obs"), **observations("next_obs"), "action": spec.random_actions(generator, rows),
                "reward": generator.normal(size=rows).astype(np.float32), "discount": np.full(rows, 0.97, np.float32),
            },
            ids=np.arange(rows, dtype=np.uint64) + rows * turn, probabilities=np.full(rows, 0.5),
            weights=generator.uniform(0.2, 1.0, rows).astype(np.float32),
        )
        for turn in range(number)
    ]  # fmt: skip
