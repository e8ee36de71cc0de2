"""DQN on CartPole with prioritized replay from a `replay_server.Buffer`, in this process: no server, no sockets.

    python examples/dqn.py --seed 1

Double DQN (van Hasselt et al. 2016) with prioritized replay (Schaul et al. 2016). It ends when the greedy policy
reaches `target` in an evaluation, or after `steps` steps. Needs `pip install '.[rl]'`.
"""

from __future__ import annotations

import argparse
import copy
from dataclasses import dataclass, fields
from typing import Any, TypeVar

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor, nn

import replay_server as rs

T = TypeVar("T", bound=Any)


@dataclass
class Settings:
    """What the command line can change: `--learning-rate 0.001`."""

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
    """Steps of the environment for each update."""
    target_mix: float = 0.02
    """How far the target network moves to the online one with each update."""
    evaluate_every: int = 1_000
    """Steps of the environment."""
    discount: float = 0.99
    learning_rate: float = 1e-3
    exploration_steps: int = 8_000
    """Over which ε falls from 1 to 0.05."""


def settings_from_arguments(kind: type[T], about: str | None) -> T:
    """A dataclass of settings from the command line: an option for each field."""
    parser = argparse.ArgumentParser(
        description=(about or "").partition("\n")[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    for field in fields(kind):
        option = f"--{field.name.replace('_', '-')}"
        parser.add_argument(option, type=type(field.default), default=field.default, help=" ")
    return kind(**vars(parser.parse_args()))


def make_table(name: str, env: gym.Env, capacity: int, seed: int, **parts) -> rs.Table:
    """A prioritized table of single transitions."""
    signature = {
        "obs": rs.Column("float32", env.observation_space.shape),
        "action": rs.Column("int64"),
        "reward": rs.Column("float32"),
        "next_obs": rs.Column("float32", env.observation_space.shape),
        "discount": rs.Column("float32"),  # γ, or 0 where the episode ended in next_obs
    }
    return rs.Table(name, capacity, signature, sampler=rs.Prioritized(priority_exponent=0.6), seed=seed, **parts)


def make_network(env: gym.Env) -> nn.Sequential:
    """Q values of all actions: float32 (batch, *observation) → (batch, actions)."""
    assert isinstance(env.action_space, gym.spaces.Discrete), f"expected discrete actions, got {env.action_space}"
    inputs, actions = int(np.prod(env.observation_space.shape or ())), int(env.action_space.n)
    return nn.Sequential(nn.Linear(inputs, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, actions))


@torch.no_grad()
def act(network: nn.Module, obs: np.ndarray, epsilon: float, random: np.random.Generator) -> int:
    """The ε-greedy action for one observation."""
    q = network(torch.from_numpy(obs)[None])[0]
    return int(random.integers(len(q))) if random.random() < epsilon else int(q.argmax())


def td_errors(online: nn.Module, target: nn.Module, data: dict[str, np.ndarray]) -> Tensor:
    """Double DQN's target − Q(s, a) of a batch, float32 (batch,), with Q's gradient."""
    batch = {name: torch.from_numpy(array) for name, array in data.items()}
    with torch.no_grad():
        best = online(batch["next_obs"]).argmax(1, keepdim=True)
        value = batch["reward"] + batch["discount"] * target(batch["next_obs"]).gather(1, best)[:, 0]
    return value - online(batch["obs"]).gather(1, batch["action"][:, None])[:, 0]


@torch.no_grad()
def mix(target: nn.Module, online: nn.Module, share: float) -> None:
    """Moves the target network's parameters by a share of the way to the online network's."""
    for old, new in zip(target.parameters(), online.parameters(), strict=True):
        old.lerp_(new, share)


def huber(errors: Tensor) -> Tensor:
    """½δ² where |δ| ≤ 1, else |δ| − ½."""
    return nn.functional.smooth_l1_loss(errors, torch.zeros_like(errors), reduction="none")


def evaluate(network: nn.Module, env_id: str, episodes: int = 10, seed: int = 10_000) -> float:
    """Mean return of the greedy policy, in episodes that are the same each time."""
    env, random, total = gym.make(env_id), np.random.default_rng(seed), 0.0
    for episode in range(episodes):
        obs, _ = env.reset(seed=seed + episode)
        ended = False
        while not ended:
            obs, reward, terminated, truncated, _ = env.step(act(network, obs, 0.0, random))
            total, ended = total + float(reward), terminated or truncated
    return total / episodes


def train(settings: Settings) -> float:
    """Plays and learns; the best mean return of an evaluation."""
    torch.manual_seed(settings.seed)
    random = np.random.default_rng(settings.seed)
    env = gym.make(settings.env)
    buffer = rs.Buffer(make_table("transitions", env, settings.capacity, settings.seed))
    online = make_network(env)
    target = copy.deepcopy(online)
    optimizer = torch.optim.Adam(online.parameters(), lr=settings.learning_rate)
    best, updates = -np.inf, 0

    obs, _ = env.reset(seed=settings.seed)
    for step in range(1, settings.steps + 1):
        action = act(online, obs, max(0.05, 1.0 - step / settings.exploration_steps), random)
        next_obs, reward, terminated, truncated, _ = env.step(action)
        discount = 0.0 if terminated else settings.discount
        transition = {"obs": obs, "action": action, "reward": reward, "next_obs": next_obs, "discount": discount}
        # Without a priority of its own an item gets the largest there is: it is sampled soon.
        buffer.add({name: [value] for name, value in transition.items()})
        obs = env.reset()[0] if terminated or truncated else next_obs

        if step >= settings.learning_starts and step % settings.update_every == 0:
            beta = 0.4 + 0.6 * step / settings.steps
            batch = buffer.sample(settings.batch_size, importance_sampling_exponent=beta)
            errors = td_errors(online, target, batch.data)
            loss = (torch.from_numpy(batch.weights) * huber(errors)).mean()
            optimizer.param_groups[0]["lr"] = settings.learning_rate * (1 - step / settings.steps)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(online.parameters(), 10.0)
            optimizer.step()
            buffer.update_priorities(batch.ids, errors.detach().abs().double().numpy() + 1e-3)
            mix(target, online, settings.target_mix)
            updates += 1

        if step % settings.evaluate_every == 0 or step == settings.steps:
            score = evaluate(online, settings.env)
            best = max(best, score)
            print(f"step {step} updates {updates} items {len(buffer)} score {score:.1f}", flush=True)
            if score >= settings.target:
                break
    return best


if __name__ == "__main__":
    torch.set_num_threads(1)
    chosen = settings_from_arguments(Settings, __doc__)
    print(f"reached {train(chosen):.1f} on {chosen.env}")
