# /// script
# requires-python = ">=3.11"
# dependencies = ["replay-server", "torchrl==0.14.1", "torch==2.13.0", "gymnasium==1.4.0", "setuptools"]
# ///
"""TorchRL with the storage, sampler and writer of its replay buffer replaced.

    python examples/with_torchrl.py                                  # double DQN on CartPole
    python examples/with_torchrl.py --buffer redis://127.0.0.1:6379  # the same on a server
    python examples/with_torchrl.py --buffer original                # TorchRL's own storage, sampler and writer

The parts are those of TorchRL's tutorial "Get started with your own first training loop": environment, networks,
collector, loss and buffer; here the buffer is prioritized. TorchRL's own prioritized sampler needs its C++ extension,
which tests/examples/example_environments.py compiles, since that of its wheel does not load with every torch. The
replaced one does without. An own program imports the parts from `replay_server.adapters.torchrl`.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
import torch
from tensordict.nn import TensorDictModule, TensorDictSequential
from timing import Clock
from torchrl.collectors import Collector
from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer
from torchrl.data.replay_buffers import PrioritizedSampler
from torchrl.envs import GymEnv, StepCounter, TransformedEnv
from torchrl.envs.utils import ExplorationType, set_exploration_type
from torchrl.modules import MLP, EGreedyModule, QValueModule
from torchrl.objectives import DQNLoss, SoftUpdate

from replay_server.adapters.torchrl import table_parts

ALPHA, BETA = 0.6, 0.4
CAPACITY, BATCH, FRAMES, RANDOM_FRAMES, UPDATES = 20_000, 128, 100, 1_000, 20


def parts_of(buffer: str) -> dict[str, Any]:
    """Storage, sampler and writer of the replay buffer."""
    if buffer == "original":
        return {"storage": LazyTensorStorage(CAPACITY), "sampler": PrioritizedSampler(CAPACITY, ALPHA, BETA)}
    url = buffer if "://" in buffer else None
    return table_parts(CAPACITY, alpha=ALPHA, beta=BETA, url=url, table="torchrl-cartpole")


def train(buffer: str, seed: int, steps: int) -> None:
    """Trains double DQN on CartPole; everything but the buffer's parts is TorchRL's."""
    np.random.seed(seed)
    torch.manual_seed(seed)
    clock = Clock()
    env = TransformedEnv(GymEnv("CartPole-v1"), StepCounter())
    env.set_seed(seed)
    network = MLP(out_features=env.action_spec.shape[-1], num_cells=[128, 128])
    network(env.reset()["observation"])  # its first layer takes its size from what it sees
    values = TensorDictModule(network, in_keys=["observation"], out_keys=["action_value"])
    policy = TensorDictSequential(values, QValueModule(spec=env.action_spec))
    exploration = EGreedyModule(env.action_spec, annealing_num_steps=steps // 2, eps_init=1.0, eps_end=0.05)
    collector = Collector(
        env,
        TensorDictSequential(policy, exploration),
        frames_per_batch=FRAMES,
        total_frames=steps,
        init_random_frames=RANDOM_FRAMES,
        auto_register_policy_transforms=False,
    )
    kind: Any = clock.timed(TensorDictReplayBuffer, "extend", "sample", "update_tensordict_priority")
    replay = kind(**parts_of(buffer), batch_size=BATCH)
    loss = DQNLoss(value_network=policy, action_space=env.action_spec, delay_value=True, double_dqn=True)
    loss.make_value_estimator(gamma=0.99)
    target = SoftUpdate(loss, eps=0.99)
    optimizer = torch.optim.Adam(loss.parameters(), lr=1e-3)
    best, last = 0.0, steps // FRAMES
    for number, data in enumerate(collector, 1):
        replay.extend(data.exclude("collector"))
        exploration.step(data.numel())
        if number * FRAMES < RANDOM_FRAMES:
            continue
        for _ in range(UPDATES):
            sample = replay.sample()
            optimizer.zero_grad()
            loss(sample)["loss"].backward()  # weighed by priority_weight where the sample has it
            torch.nn.utils.clip_grad_norm_(loss.parameters(), 10.0)
            optimizer.step()
            target.step()
            replay.update_tensordict_priority(sample)
        if number % 25 == 0 or number == last:
            best = max(best, evaluated(policy, seed))
    collector.shutdown()
    print(f"{buffer}, seed {seed}, {steps} steps: {clock}")
    print(f"reached {best:.1f} on CartPole-v1")


def evaluated(policy: Any, seed: int, episodes: int = 5) -> float:
    """The mean return of the greedy policy."""
    env = TransformedEnv(GymEnv("CartPole-v1"), StepCounter())
    env.set_seed(seed + 1000)
    with torch.no_grad(), set_exploration_type(ExplorationType.DETERMINISTIC):
        returns = [float(env.rollout(500, policy)["next", "reward"].sum()) for _ in range(episodes)]
    return float(np.mean(returns))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--buffer", default="replay-server", help="replay-server, original, or the URL of a server")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--steps", type=int, default=20_000)
    torch.set_num_threads(1)
    train(**vars(parser.parse_args()))
