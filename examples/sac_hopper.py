"""Soft actor-critic on Hopper with a uniform `replay_server.Buffer`.

    python examples/sac_hopper.py --seed 1

Haarnoja et al. 2018 (Soft Actor-Critic Algorithms and Applications): two critics, a squashed Gaussian policy, and an
entropy temperature that is learned. Needs `pip install '.[rl,mujoco]'`.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass

import gymnasium as gym
import numpy as np
import torch
from dqn import mix, settings_from_arguments
from torch import Tensor, nn

import replay_server as rs


@dataclass
class Settings:
    """What the command line can change."""

    env: str = "Hopper-v5"
    steps: int = 40_000
    """Steps of the environment, at most; after the first `learning_starts`, one update for each."""
    seed: int = 1
    target: float = 1_000.0
    """Mean return of an evaluation with which it ends."""
    capacity: int = 1_000_000
    batch_size: int = 256
    learning_starts: int = 1_000
    """Steps with random actions."""
    evaluate_every: int = 2_500
    """Steps."""
    discount: float = 0.99
    learning_rate: float = 1e-3
    target_mix: float = 0.005
    hidden: int = 256


class Actor(nn.Module):
    """A Gaussian over actions, squashed by tanh into [−1, 1]."""

    def __init__(self, inputs: int, actions: int, hidden: int) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU())
        self.mean, self.log_deviation = nn.Linear(hidden, actions), nn.Linear(hidden, actions)

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        """A drawn action, float32 (batch, actions), and its log probability, float32 (batch,); both differentiable."""
        features = self.body(obs)
        log_deviation = self.log_deviation(features).clamp(-5, 2)
        normal = torch.distributions.Normal(self.mean(features), log_deviation.exp())
        drawn = normal.rsample()
        # log |d tanh(x) / dx| in a form that does not run out of digits
        slope = 2 * (np.log(2) - drawn - nn.functional.softplus(-2 * drawn))
        return drawn.tanh(), (normal.log_prob(drawn) - slope).sum(1)

    @torch.no_grad()
    def act(self, obs: np.ndarray, greedy: bool = False) -> np.ndarray:
        """One action for one observation, float32 (actions,)."""
        batch = torch.from_numpy(obs.astype(np.float32))[None]
        return (self.mean(self.body(batch)).tanh() if greedy else self(batch)[0])[0].numpy()


class Critics(nn.Module):
    """Two Q functions side by side: (batch, inputs), (batch, actions) → float32 (2, batch)."""

    def __init__(self, inputs: int, actions: int, hidden: int) -> None:
        super().__init__()
        sizes = ((inputs + actions, hidden), (hidden, hidden), (hidden, 1))
        one = [[nn.Linear(*size) for size in sizes] for _ in range(2)]
        # One batched product for both instead of two: small networks spend their time on calls.
        self.weights = nn.ParameterList(torch.stack([a.weight.T, b.weight.T]).detach() for a, b in zip(*one))
        self.biases = nn.ParameterList(torch.stack([a.bias, b.bias])[:, None].detach() for a, b in zip(*one))

    def forward(self, obs: Tensor, action: Tensor) -> Tensor:
        """The values of actions."""
        x = torch.cat([obs, action], dim=1).expand(2, -1, -1)
        for index, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            x = torch.baddbmm(bias, x if index == 0 else x.relu(), weight)
        return x[..., 0]


class Sac:
    """The networks and their update."""

    def __init__(self, env: gym.Env, settings: Settings) -> None:
        inputs, actions = (int(np.prod(space.shape or ())) for space in (env.observation_space, env.action_space))
        self.settings = settings
        self.actor = Actor(inputs, actions, settings.hidden)
        self.critics = Critics(inputs, actions, settings.hidden)
        self.target = copy.deepcopy(self.critics)
        self.log_temperature = torch.zeros(1, requires_grad=True)
        self.target_entropy = -float(actions)
        groups = (self.actor.parameters(), self.critics.parameters(), [self.log_temperature])
        self.optimizers = [torch.optim.Adam(group, lr=settings.learning_rate, fused=True) for group in groups]

    def _step(self, which: int, loss: Tensor) -> None:
        self.optimizers[which].zero_grad()
        loss.backward()
        self.optimizers[which].step()

    def update(self, data: dict[str, np.ndarray]) -> None:
        """One step of the critics, the actor and the temperature."""
        batch = {name: torch.from_numpy(array) for name, array in data.items()}
        temperature = self.log_temperature.detach().exp()
        with torch.no_grad():
            next_action, log_probability = self.actor(batch["next_obs"])
            next_value = self.target(batch["next_obs"], next_action).amin(0) - temperature * log_probability
            value = batch["reward"] + batch["discount"] * next_value
        self._step(1, 0.5 * (self.critics(batch["obs"], batch["action"]) - value).square().mean(1).sum())

        action, log_probability = self.actor(batch["obs"])
        self.critics.requires_grad_(False)
        self._step(0, (temperature * log_probability - self.critics(batch["obs"], action).amin(0)).mean())
        self.critics.requires_grad_(True)
        self._step(2, -(self.log_temperature * (log_probability.detach() + self.target_entropy)).mean())
        mix(self.target, self.critics, self.settings.target_mix)


def evaluate(actor: Actor, env_id: str, episodes: int = 10, seed: int = 10_000) -> float:
    """Mean return of the mean action."""
    env, total = gym.make(env_id), 0.0
    for episode in range(episodes):
        obs, _ = env.reset(seed=seed + episode)
        ended = False
        while not ended:
            obs, reward, terminated, truncated, _ = env.step(actor.act(obs, greedy=True))
            total, ended = total + float(reward), terminated or truncated
    return total / episodes


def train(settings: Settings) -> float:
    """Plays and learns; the best mean return of an evaluation."""
    torch.manual_seed(settings.seed)
    env = gym.make(settings.env)
    env.action_space.seed(settings.seed)
    assert isinstance(env.action_space, gym.spaces.Box), f"expected continuous actions, got {env.action_space}"
    assert np.all(env.action_space.high == 1), (
        "actions are expected within [−1, 1]: wrap it in gym.wrappers.RescaleAction"
    )
    shapes = env.observation_space.shape, env.action_space.shape
    signature = {
        "obs": rs.Column("float32", shapes[0]),
        "action": rs.Column("float32", shapes[1]),
        "reward": rs.Column("float32"),
        "next_obs": rs.Column("float32", shapes[0]),
        "discount": rs.Column("float32"),
    }
    buffer = rs.Buffer(rs.Table("hopper", settings.capacity, signature, sampler=rs.Uniform(), seed=settings.seed))
    agent, best = Sac(env, settings), -np.inf

    obs, _ = env.reset(seed=settings.seed)
    for step in range(1, settings.steps + 1):
        action = env.action_space.sample() if step <= settings.learning_starts else agent.actor.act(obs)
        next_obs, reward, terminated, truncated, _ = env.step(action)
        discount = 0.0 if terminated else settings.discount
        values = (obs, action, reward, next_obs, discount)
        buffer.add({name: np.asarray([value], np.float32) for name, value in zip(signature, values, strict=True)})
        obs = env.reset()[0] if terminated or truncated else next_obs
        if step > settings.learning_starts:
            agent.update(buffer.sample(settings.batch_size).data)
        if step % settings.evaluate_every == 0 or step == settings.steps:
            score = evaluate(agent.actor, settings.env)
            best = max(best, score)
            print(f"step {step} temperature {agent.log_temperature.exp().item():.3f} score {score:.1f}", flush=True)
            if score >= settings.target:
                break
    return best


if __name__ == "__main__":
    torch.set_num_threads(1)
    chosen = settings_from_arguments(Settings, __doc__)
    print(f"reached {train(chosen):.1f} on {chosen.env}")
