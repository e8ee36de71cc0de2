"""Recurrent Q-learning from replayed sequences, as R2D2 has it, on a CartPole that hides its velocities.

    python examples/r2d2_sequences.py --seed 1 [--summary summary.json]

Kapturowski et al. 2019 (Recurrent Experience Replay in Distributed Reinforcement Learning): sequences that overlap, the
recurrent state stored with each, a burn-in, n-step double Q-learning with rescaled values, and sequence priorities
η·max|δ| + (1 − η)·mean|δ|. Steps are stored once: a sequence is an item that shows the last `length` steps, or as many
as the episode has, through ragged windows, so overlapping sequences cost little. Needs `pip install '.[rl]'`.
"""

from __future__ import annotations

import copy
import json
import time
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from dqn import mix, settings_from_arguments
from torch import Tensor, nn

import replay_server as rs

SEEN = np.array([4.0, 0.0, 20.0, 0.0], np.float32)
"""Position and angle alone, so large that what changes within a step can be told from them."""


@dataclass
class Settings:
    """What the command line can change."""

    env: str = "CartPole-v1"
    steps: int = 30_000
    """Steps of the environment, at most; the learning rate falls to 0 over them."""
    seed: int = 1
    target: float = 450.0
    """Mean return of an evaluation with which it ends."""
    length: int = 32
    """Steps of a sequence."""
    burn_in: int = 8
    """Of them, those that only bring the recurrent state up to date."""
    stride: int = 8
    """Steps from one sequence to the next."""
    n_step: int = 3
    capacity: int = 10_000
    """Sequences."""
    batch_size: int = 64
    """Sequences."""
    learning_starts: int = 100
    """Sequences."""
    update_every: int = 4
    """Steps of the environment for each update."""
    evaluate_every: int = 2_500
    """Steps of the environment."""
    discount: float = 0.95
    """With higher ones all values are large, and rescaled values of good and bad actions hardly differ."""
    learning_rate: float = 1e-3
    target_mix: float = 0.02
    eta: float = 0.9
    exploration_steps: int = 10_000
    """Over which ε falls from 1 to 0.05."""
    summary: str = ""
    """A file for the result, as JSON: all evaluations, and 100 fresh episodes of the network with the best one."""


class RecurrentQ(nn.Module):
    """Q values of all actions at each step: float32 (batch, steps, observation) → (batch, steps, actions), state."""

    def __init__(self, inputs: int, actions: int, hidden: int = 64) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(inputs, hidden), nn.ReLU())
        self.recurrent = nn.GRU(hidden, hidden, batch_first=True)
        self.head = nn.Linear(hidden, actions)
        self.hidden = hidden

    def forward(self, obs: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """The state, float32 (1, batch, hidden), is zeros where an episode begins."""
        features, state = self.recurrent(self.body(obs), state)
        return self.head(features), state

    def unroll(self, obs: Tensor, state: Tensor, burn_in: int) -> Tensor:
        """Q values of whole sequences; no gradient passes from the steps after the burn-in back into it."""
        before, state = self(obs[:, :burn_in], state)
        after, _ = self(obs[:, burn_in:], state.detach())
        return torch.cat([before, after], dim=1)


class Player:
    """Plays with a network, of which it keeps the recurrent state; velocities are hidden."""

    def __init__(self, env_id: str, network: RecurrentQ, seed: int) -> None:
        self.env, self.network = gym.make(env_id), network
        self.random = np.random.default_rng(seed)
        self.begin(seed)

    def begin(self, seed: int | None = None) -> None:
        """A new episode."""
        self.obs = (self.env.reset(seed=seed)[0] * SEEN)[::2].copy()
        self.state = torch.zeros(1, 1, self.network.hidden)

    @torch.no_grad()
    def step(self, epsilon: float) -> tuple[int, float, bool, bool]:
        """Acts ε-greedily: action, reward, terminated, truncated."""
        q, self.state = self.network(torch.from_numpy(self.obs)[None, None], self.state)
        explores = self.random.random() < epsilon
        action = int(self.random.integers(q.shape[-1])) if explores else int(q.argmax())
        obs, reward, terminated, truncated, _ = self.env.step(action)
        self.obs = (obs * SEEN)[::2].copy()
        return action, float(reward), terminated, truncated


def make_table(settings: Settings, network: RecurrentQ) -> rs.Table:
    """Steps, stored once, and sequences that show up to `length` of them."""
    length = settings.length
    signature = {
        "obs": rs.Column("float32", (2,), step_only=True),
        "action": rs.Column("int64", step_only=True),
        "reward": rs.Column("float32", step_only=True),
        "discount": rs.Column("float32", step_only=True),
        "sequence": {
            "obs": rs.Window("obs", max_length=length),
            "action": rs.Window("action", max_length=length),
            "reward": rs.Window("reward", max_length=length),
            "discount": rs.Window("discount", max_length=length),
        },
        "state": rs.Column("float32", (network.hidden,)),  # before the first step of the sequence
        "from_start": rs.Column("bool"),  # whether the first step is the episode's first: its state is exact
    }
    sampler = rs.Prioritized(priority_exponent=0.9)
    return rs.Table("sequences", settings.capacity, signature, sampler=sampler, seed=settings.seed)


def rescale(x: Tensor) -> Tensor:
    """h(x) = sign(x)(√(|x| + 1) − 1) + εx, which keeps large values within reach of the network."""
    return x.sign() * ((x.abs() + 1).sqrt() - 1) + 1e-3 * x


def unrescale(x: Tensor) -> Tensor:
    """h⁻¹."""
    return x.sign() * ((((1 + 4e-3 * (x.abs() + 1 + 1e-3)).sqrt() - 1) / 2e-3).square() - 1)


def sequence_errors(
    online: RecurrentQ, target: RecurrentQ, data: dict[str, Any], settings: Settings
) -> tuple[Tensor, Tensor]:
    """n-step double Q-learning's δ at each step, float32 (batch, length), and which of the steps count, bool."""
    length, n = settings.length, settings.n_step
    sequences = {name: torch.from_numpy(rows.padded(length=length)) for name, rows in data["sequence"].items()}
    obs, action, reward, discount = (sequences[name] for name in ("obs", "action", "reward", "discount"))
    steps = torch.from_numpy(data["sequence"]["obs"].lengths)[:, None]
    state, from_start = torch.from_numpy(data["state"])[None], torch.from_numpy(data["from_start"])
    position = torch.arange(length)[None]
    real = position < steps

    q = online.unroll(obs, state, settings.burn_in)
    with torch.no_grad():
        q_target = target.unroll(obs, state, settings.burn_in)
        best = unrescale(q_target.gather(2, q.argmax(2, keepdim=True))[..., 0])
        later = nn.functional.pad  # values of n steps later; beyond the sequence all are 0
        reward, discount = later(reward, (0, n)), later(discount, (0, n))
        returns = later(best, (0, n))[:, n:]
        for i in reversed(range(n)):
            returns = reward[:, i : i + length] + discount[:, i : i + length] * returns
        ends = discount.gather(1, steps - 1) == 0  # in a terminal state: the last steps need no successor
        counts = real & ((position + n < steps) | ends)
        counts &= (position >= settings.burn_in) | from_start[:, None]
    return rescale(returns) - q.gather(2, action[..., None])[..., 0], counts


def evaluate(network: RecurrentQ, env_id: str, episodes: int = 10, seed: int = 10_000) -> np.ndarray:
    """Returns of the greedy policy, float64 (episodes,)."""
    player, scores = Player(env_id, network, seed), np.zeros(episodes)
    for episode in range(episodes):
        player.begin(seed + episode)
        ended = False
        while not ended:
            _, reward, terminated, truncated = player.step(0.0)
            scores[episode] += reward
            ended = terminated or truncated
    return scores


def train(settings: Settings) -> float:
    """Plays and learns; the best mean return of an evaluation."""
    torch.manual_seed(settings.seed)
    online = RecurrentQ(2, 2)
    target = copy.deepcopy(online)
    optimizer = torch.optim.Adam(online.parameters(), lr=settings.learning_rate)
    buffer = rs.Buffer(make_table(settings, online))
    writer = buffer.writer(flush_steps=settings.stride)
    player = Player(settings.env, online, settings.seed)
    states: deque[np.ndarray] = deque(maxlen=settings.length)
    in_episode, updates, best, kept = 0, 0, -np.inf, target
    evaluations: list[dict[str, Any]] = []
    begin = time.monotonic()

    for step in range(1, settings.steps + 1):
        obs = player.obs
        states.append(player.state[0, 0].numpy())
        action, reward, terminated, truncated = player.step(max(0.05, 1 - step / settings.exploration_steps))
        discount = 0.0 if terminated else settings.discount
        writer.append({"obs": obs, "action": action, "reward": reward, "discount": discount})
        in_episode += 1
        ended = terminated or truncated
        if in_episode % settings.stride == 0 or ended:
            newest = slice(-settings.length, None)
            own = {"state": states[0], "from_start": in_episode <= settings.length}
            writer.create_item(columns={"sequence": newest, **own})
        if ended:
            writer.end_episode()
            player.begin()
            states.clear()
            in_episode = 0

        if step % settings.update_every == 0 and len(buffer) >= settings.learning_starts:
            batch = buffer.sample(settings.batch_size, importance_sampling_exponent=0.6)
            errors, counts = sequence_errors(online, target, batch.data, settings)
            number = counts.sum(1).clamp(min=1)
            loss = (torch.from_numpy(batch.weights) * (0.5 * errors.square() * counts).sum(1) / number).mean()
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(online.parameters(), 10.0)
            optimizer.param_groups[0]["lr"] = settings.learning_rate * (1 - step / settings.steps)
            optimizer.step()
            mix(target, online, settings.target_mix)
            size = errors.detach().abs() * counts
            priorities = settings.eta * size.amax(1) + (1 - settings.eta) * size.sum(1) / number
            buffer.update_priorities(batch.ids, priorities.double().numpy() + 1e-3)
            updates += 1

        if step % settings.evaluate_every == 0 or step == settings.steps:
            scores = evaluate(target, settings.env)  # an average of networks, which wavers less
            score = float(scores.mean())
            if score > best:
                best, kept = score, copy.deepcopy(target)
            info = buffer.info()
            print(
                f"step {step} updates {updates} sequences {info['size']} over {info['steps']} steps score {score:.1f}",
                flush=True,
            )
            told = {"score_mean": score, "score_std": float(scores.std()), "episodes": len(scores)}
            minutes = (time.monotonic() - begin) / 60
            evaluations.append({"minutes": minutes, "transitions": step, "updates": updates, **told})
            if score >= settings.target:
                break
    if settings.summary:
        Path(settings.summary).write_text(json.dumps(summary(settings, kept, evaluations), indent=2) + "\n")
    return best


def summary(settings: Settings, network: RecurrentQ, evaluations: list[dict[str, Any]]) -> dict[str, Any]:
    """The result of a run by the names of an Ape-X run's summary.json. The network plays 100 fresh episodes."""
    fresh, last = evaluate(network, settings.env, 100, seed=20_000), evaluations[-1]
    return {
        "env": settings.env,
        "seed": settings.seed,
        "ended_by": "target_score" if last["score_mean"] >= settings.target else "steps",
        "minutes": last["minutes"],
        "transitions": last["transitions"],
        "updates": last["updates"],
        "eval_episodes": len(fresh),
        "eval_mean": float(fresh.mean()),
        "eval_std": float(fresh.std()),
        "eval_scores": fresh.tolist(),
        "evaluations": evaluations,
    }


if __name__ == "__main__":
    torch.set_num_threads(1)
    chosen = settings_from_arguments(Settings, __doc__)
    print(f"reached {train(chosen):.1f} on {chosen.env}")
