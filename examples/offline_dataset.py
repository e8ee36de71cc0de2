"""Learning from a file: a dataset is loaded into a table, and the better its episodes, the more often they are cloned.

    python examples/offline_dataset.py                                # makes cartpole.npz first, where it is not there
    python examples/offline_dataset.py --dataset mine.npz

A dataset is an .npz of transitions in the order in which they were made, with the names of Minari's datasets:
observations (N, …), actions (N,), rewards, terminations and truncations (N,). The one made here is of a controller that
acts at random for a share of its steps, a different one in each episode. What is learned is behaviour cloning in which
the priority of each step is the return of its episode, so that the table's sampler does the weighing. Needs
`pip install '.[rl]'`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import gymnasium as gym
import numpy as np
import torch
from dqn import evaluate, make_network, settings_from_arguments
from torch import nn

import replay_server as rs


@dataclass
class Settings:
    """What the command line can change."""

    dataset: str = "cartpole.npz"
    """Path of an .npz; made where it is not there."""
    env: str = "CartPole-v1"
    steps: int = 30_000
    """Steps of the dataset that is made."""
    updates: int = 3_000
    """Of the network, at most."""
    seed: int = 1
    target: float = 475.0
    """Mean return of an evaluation with which it ends."""
    batch_size: int = 256
    exponent: float = 4.0
    """α: an episode twice as long is drawn 2^α times as often a step."""
    evaluate_every: int = 500
    """Updates."""
    learning_rate: float = 1e-3


def make_dataset(settings: Settings) -> dict[str, np.ndarray]:
    """Episodes of CartPole by a controller that acts at random for a share of its steps, drawn for each episode."""
    env, random = gym.make(settings.env), np.random.default_rng(settings.seed)
    rows: list[tuple] = []
    obs, _ = env.reset(seed=settings.seed)
    skill = random.random()
    while len(rows) < settings.steps or not (rows[-1][3] or rows[-1][4]):
        pushes = obs @ np.array([0.1, 0.3, 1.0, 0.5]) > 0
        action = int(pushes) if random.random() < skill else int(random.integers(2))
        next_obs, reward, terminated, truncated, _ = env.step(action)
        rows.append((obs, action, reward, terminated, truncated))
        obs = next_obs
        if terminated or truncated:
            obs, _ = env.reset()
            skill = random.random()
    names = ("observations", "actions", "rewards", "terminations", "truncations")
    return {name: np.array(values) for name, values in zip(names, zip(*rows, strict=True), strict=True)}


def episode_returns(dataset: dict[str, np.ndarray]) -> np.ndarray:
    """For each step the return of its whole episode, float64 (N,)."""
    ends = dataset["terminations"] | dataset["truncations"]
    episode = np.concatenate([[0], np.cumsum(ends)[:-1]])
    return np.bincount(episode, dataset["rewards"])[episode]


def load(dataset: dict[str, np.ndarray], settings: Settings) -> rs.Buffer:
    """A table of the dataset's steps, with the returns of their episodes as priorities."""
    observations, actions = dataset["observations"].astype(np.float32), dataset["actions"].astype(np.int64)
    signature = {"obs": rs.Column("float32", observations.shape[1:]), "action": rs.Column("int64")}
    sampler = rs.Prioritized(priority_exponent=settings.exponent)
    buffer = rs.Buffer(rs.Table("dataset", len(actions), signature, sampler=sampler, seed=settings.seed))
    priorities = np.maximum(episode_returns(dataset), 0)
    priorities /= priorities.max()  # to the power α it stays within the range of numbers
    for begin in range(0, len(actions), 10_000):
        part = slice(begin, begin + 10_000)
        buffer.add({"obs": observations[part], "action": actions[part]}, priorities[part])
    return buffer


def train(settings: Settings) -> float:
    """Loads and clones; the best mean return of an evaluation."""
    path = Path(settings.dataset)
    if not path.exists():
        print(f"{path} is not there: making one of {settings.steps} steps", flush=True)
        np.savez_compressed(path, allow_pickle=False, **make_dataset(settings))
    with np.load(path, allow_pickle=False) as file:
        dataset = {name: file[name] for name in file.files}
    returns = episode_returns(dataset)[dataset["terminations"] | dataset["truncations"]]
    print(f"{path}: {len(dataset['actions'])} steps, {len(returns)} episodes, mean return {returns.mean():.1f}")
    buffer = load(dataset, settings)

    torch.manual_seed(settings.seed)
    network, best = make_network(gym.make(settings.env)), -np.inf
    optimizer = torch.optim.Adam(network.parameters(), lr=settings.learning_rate)
    for update in range(1, settings.updates + 1):
        # β = 0: the weighing is the point, so it is not corrected for.
        batch = buffer.sample(settings.batch_size, importance_sampling_exponent=0.0)
        logits = network(torch.from_numpy(batch.data["obs"]))
        loss = nn.functional.cross_entropy(logits, torch.from_numpy(batch.data["action"]))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if update % settings.evaluate_every == 0 or update == settings.updates:
            score = evaluate(network, settings.env)
            best = max(best, score)
            print(f"update {update} loss {loss.item():.3f} score {score:.1f}", flush=True)
            if score >= settings.target:
                break
    return best


if __name__ == "__main__":
    torch.set_num_threads(1)
    chosen = settings_from_arguments(Settings, __doc__)
    print(f"reached {train(chosen):.1f} on {chosen.env}")
