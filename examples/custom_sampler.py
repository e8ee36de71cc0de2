"""A sampler of one's own: emphasis on recent experience, by ids.

    python examples/custom_sampler.py --seed 1

A table's samplers are fixed (`rs.Prioritized`, `rs.Uniform`, …), but whoever keeps the ids that `add` returns can draw
them by any rule and `get` the items. The rule here is that of Wang & Ross 2019 (Boosting Soft Actor-Critic:
Emphasizing Recent Experience without Forgetting the Past): of N transitions, the update for the k-th step
of an episode of T draws uniformly from the newest N·η^(k·1000/T). Needs `pip install '.[rl]'`.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass

import gymnasium as gym
import numpy as np
import torch
from dqn import act, evaluate, huber, make_network, make_table, mix, settings_from_arguments, td_errors
from torch import nn

import replay_server as rs


@dataclass
class Settings:
    """What the command line can change."""

    env: str = "CartPole-v1"
    steps: int = 50_000
    """Steps of the environment, at most; the learning rate falls to 0 over them."""
    seed: int = 1
    target: float = 475.0
    """Mean return of an evaluation with which it ends."""
    capacity: int = 50_000
    batch_size: int = 128
    learning_starts: int = 1_000
    update_every: int = 2
    """Steps of the environment for each update; they are made after each episode."""
    eta: float = 0.996
    """η; 1 draws from all."""
    least: int = 2_500
    """Transitions that are always drawn from."""
    evaluate_every: int = 1_000
    """Steps of the environment."""
    discount: float = 0.99
    learning_rate: float = 1e-3
    target_mix: float = 0.02
    exploration_steps: int = 8_000
    """Over which ε falls from 1 to 0.05."""


class RecentSampler:
    """Draws the ids of recent items. The table must remove the oldest first, as `rs.Fifo()` does.

    Args:
        capacity: the table's.
        seed: of the draws.
    """

    def __init__(self, capacity: int, seed: int) -> None:
        self._ids = np.zeros(capacity, np.uint64)
        self._added = 0
        self._random = np.random.default_rng(seed)

    def __len__(self) -> int:
        return min(self._added, len(self._ids))

    def add(self, ids: np.ndarray) -> None:
        """Takes ids, uint64 (n,), as `add` returned them."""
        self._ids[(self._added + np.arange(len(ids))) % len(self._ids)] = ids
        self._added += len(ids)

    def sample(self, count: int, newest: int) -> np.ndarray:
        """`count` ids, uint64 (count,), drawn uniformly with replacement from the `newest` ones."""
        ages = self._random.integers(1, min(newest, len(self)) + 1, size=count)
        return self._ids[(self._added - ages) % len(self._ids)]


def train(settings: Settings) -> float:
    """Plays and learns; the best mean return of an evaluation."""
    torch.manual_seed(settings.seed)
    random = np.random.default_rng(settings.seed)
    env = gym.make(settings.env)
    buffer = rs.Buffer(make_table("transitions", env, settings.capacity, settings.seed))
    sampler = RecentSampler(settings.capacity, settings.seed)
    online = make_network(env)
    target = copy.deepcopy(online)
    optimizer = torch.optim.Adam(online.parameters(), lr=settings.learning_rate)
    best, step, evaluated = -np.inf, 0, 0

    while step < settings.steps and best < settings.target:
        obs, _ = env.reset(seed=settings.seed if step == 0 else None)
        episode: list[tuple] = []
        ended = False
        while not ended:
            action = act(online, obs, max(0.05, 1.0 - step / settings.exploration_steps), random)
            next_obs, reward, terminated, truncated, _ = env.step(action)
            episode.append((obs, action, reward, next_obs, 0.0 if terminated else settings.discount))
            obs, ended, step = next_obs, terminated or truncated, step + 1
        columns = zip(("obs", "action", "reward", "next_obs", "discount"), zip(*episode, strict=True), strict=True)
        sampler.add(buffer.add({name: list(values) for name, values in columns}))

        for update in range(len(episode) // settings.update_every if step >= settings.learning_starts else 0):
            share = settings.eta ** (update * settings.update_every * 1000 / len(episode))
            newest = max(settings.least, int(len(sampler) * share))
            batch = buffer.get(sampler.sample(settings.batch_size, newest))
            loss = huber(td_errors(online, target, batch.data)).mean()
            optimizer.param_groups[0]["lr"] = settings.learning_rate * max(0.0, 1 - step / settings.steps)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(online.parameters(), 10.0)
            optimizer.step()
            mix(target, online, settings.target_mix)

        if step - evaluated >= settings.evaluate_every or step >= settings.steps:
            evaluated = step
            score = evaluate(online, settings.env)
            best = max(best, score)
            print(f"step {step} items {len(buffer)} score {score:.1f}", flush=True)
    return best


if __name__ == "__main__":
    torch.set_num_threads(1)
    chosen = settings_from_arguments(Settings, __doc__)
    print(f"reached {train(chosen):.1f} on {chosen.env}")
