"""GRPO on a character model: rollouts by two processes, a learner, and a server that is killed while they are at work.

    python examples/grpo.py --seed 1

The model learns to count on: after `7:` it should write `8901`. Its reward is the share of digits that are one more
than the digit before. Group Relative Policy Optimization (Shao et al. 2024, https://arxiv.org/abs/2402.03300): each
prompt has a group of samples, and a sample's advantage is its reward, less the group's mean, over the group's standard
deviation.

The workers generate while the learner trains, with weights at most `max_staleness` versions old. Halfway, the server is
killed with SIGKILL and started again from its append-only file. The learner checks that each sample is of its group's
prompt and no older than the bound, and prints the largest staleness that it saw. Needs `pip install '.[rl]'`.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass

import numpy as np
import torch
from dqn import settings_from_arguments
from torch import Tensor, nn

import replay_server as rs

WEIGHTS, RESULT = "policy", "result"
"""Names on the server; RESULT is an ordinary key, set at the learner's end."""
LETTERS = "0123456789:"
DIGITS, ANSWER = 10, 4
"""Prompts are a digit and a colon, answers four letters."""


@dataclass
class Settings:
    """What the command line can change."""

    role: str = "all"
    """learner, worker, or all with a server."""
    server: str = ""
    """URL of the replay server."""
    updates: int = 150
    seed: int = 1
    group_size: int = 8
    """Samples of a prompt."""
    groups_per_batch: int = 16
    """Prompts of an update."""
    max_staleness: int = 1
    workers: int = 2
    kills: int = 1
    """How often the server is killed, evenly over the updates."""
    learning_rate: float = 1e-2
    clip: float = 0.2
    hidden: int = 64


def prompt_of(group: int, seed: int) -> list[int]:
    """The prompt of a group as tokens, whichever worker asks."""
    start = int(np.random.default_rng((seed, group)).integers(DIGITS))
    return [start, LETTERS.index(":")]


def reward_of(prompt: list[int], answer: np.ndarray) -> float:
    """The share of letters that are right, each judged by the one before it."""
    before = np.array([prompt[0], *answer[:-1]])
    return float(((before < DIGITS) & (answer == (before + 1) % DIGITS)).mean())


class Model(nn.Module):
    """A recurrent network over characters: tokens (N, T) → logits of the next ones (N, T, letters)."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(len(LETTERS), hidden)
        self.recurrent = nn.GRU(hidden, hidden, batch_first=True)
        self.head = nn.Linear(hidden, len(LETTERS))

    def forward(self, tokens: Tensor, state: Tensor | None = None) -> tuple[Tensor, Tensor]:
        output, after = self.recurrent(self.embedding(tokens), state)
        return self.head(output), after


@torch.inference_mode()
def generate(model: Model, prompt: list[int], count: int) -> tuple[np.ndarray, np.ndarray]:
    """Answers to a prompt: tokens int32 (count, ANSWER), and the log-probabilities with which they were drawn."""
    logits, state = model(torch.tensor([prompt]).expand(count, -1))
    tokens, log_probs = [], []
    for _ in range(ANSWER):
        drawn = torch.distributions.Categorical(logits=logits[:, -1])
        tokens.append(drawn.sample())
        log_probs.append(drawn.log_prob(tokens[-1]))
        logits, state = model(tokens[-1][:, None], state)
    return torch.stack(tokens, 1).int().numpy(), torch.stack(log_probs, 1).numpy()


def make_rollouts(client: rs.Client, settings: Settings) -> rs.Rollouts:
    """What workers and the learner share; whoever comes first makes it."""
    signature = {
        "prompt": rs.Column("int32", (None,), max_length=16),
        "answer": rs.Column("int32", (None,), max_length=16),
        "log_probs": rs.Column("float32", (None,), max_length=16),
        "reward": rs.Column("float32"),
    }
    return rs.Rollouts(
        client,
        "counting",
        signature,
        group_size=settings.group_size,
        groups_per_batch=settings.groups_per_batch,
        max_staleness=settings.max_staleness,
        lease_s=30.0,
    )


def run_worker(settings: Settings) -> None:
    """Makes samples with the newest weights, until the learner has made its last update."""
    model, version = Model(settings.hidden), -1
    with rs.Client(settings.server, reconnect_timeout=60) as client:
        rollouts = make_rollouts(client, settings)
        torch.manual_seed(settings.seed + os.getpid())
        while version < settings.updates:
            if newer := client.fetch_weights(WEIGHTS, newer_than=version):
                version, arrays = newer
                model.load_state_dict({name: torch.from_numpy(array) for name, array in arrays.items()})
            elif version < 0:
                time.sleep(0.05)
                continue
            try:
                leases = rollouts.lease(settings.group_size, version, timeout=1)
            except (rs.StaleVersion, rs.Timeout):
                continue  # newer weights are there, or soon will be
            for group in sorted({lease.group for lease in leases}):
                own = [lease for lease in leases if lease.group == group]
                prompt = prompt_of(group, settings.seed)
                answers, log_probs = generate(model, prompt, len(own))
                rewards = [reward_of(prompt, answer) for answer in answers]
                samples = {"prompt": [prompt] * len(own), "answer": answers, "log_probs": log_probs, "reward": rewards}
                try:
                    rollouts.submit_samples(own, samples)
                except rs.LeaseExpired as error:
                    print(f"worker: {len(error.lost)} samples of group {group} were lost to other workers", flush=True)


def loss_of(model: Model, batch: rs.RolloutBatch, settings: Settings) -> Tensor:
    """GRPO's clipped surrogate, over the tokens of the answers."""
    rewards = torch.from_numpy(batch.data["reward"]).view(-1, settings.group_size)
    advantages = (rewards - rewards.mean(1, keepdim=True)) / (rewards.std(1, keepdim=True) + 1e-4)
    prompts, answers = batch.data["prompt"].padded(), batch.data["answer"].padded()
    tokens = torch.from_numpy(np.concatenate([prompts, answers], 1)).long()  # prompts are of one length here
    logits, _ = model(tokens[:, :-1])
    drawn = torch.distributions.Categorical(logits=logits[:, prompts.shape[1] - 1 :])
    log_probs = drawn.log_prob(tokens[:, prompts.shape[1] :])
    ratio = (log_probs - torch.from_numpy(batch.data["log_probs"].padded())).exp()
    clipped = ratio.clamp(1 - settings.clip, 1 + settings.clip)
    advantage = advantages.view(-1, 1)
    mask = torch.from_numpy(batch.data["answer"].mask)
    return -torch.min(ratio * advantage, clipped * advantage)[mask].mean()


def run_learner(settings: Settings) -> None:
    """Trains on one batch after another; leaves the mean reward of the last ten under RESULT."""
    torch.manual_seed(settings.seed)
    model = Model(settings.hidden)
    optimizer = torch.optim.Adam(model.parameters(), lr=settings.learning_rate)
    rewards: list[float] = []
    stalest = 0
    with rs.Client(settings.server, reconnect_timeout=60) as client:
        rollouts = make_rollouts(client, settings)
        for version in range(settings.updates + 1):
            weights = {name: tensor.detach().numpy() for name, tensor in model.state_dict().items()}
            client.publish_weights(WEIGHTS, weights, version)
            if version == settings.updates:
                break
            batch = rollouts.take(version)
            expected = [prompt_of(group, settings.seed) for group in batch.groups.tolist()]
            assert np.array_equal(batch.data["prompt"].padded(), expected)
            assert batch.staleness <= settings.max_staleness
            stalest = max(stalest, batch.staleness)
            rewards.append(float(batch.data["reward"].mean()))
            loss = loss_of(model, batch, settings)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            if (version + 1) % 10 == 0 or version + 1 == settings.updates:
                mean = np.mean(rewards[-10:])
                print(f"update {version + 1} reward {mean:.3f} largest staleness {stalest}", flush=True)
        client.command("SET", RESULT, f"{np.mean(rewards[-10:]):.3f}")


def run_all(settings: Settings) -> str:
    """A server, a learner and workers, each a process; the server is killed and started again meanwhile."""
    with tempfile.TemporaryDirectory() as folder:
        return run_parts(settings, folder)


def run_parts(settings: Settings, folder: str) -> str:
    """The same, with the server's files in a folder."""
    config = {"appendonly": "yes", "appendfsync": "always"}
    server = rs.Server([], directory=folder, config=config)
    port = int(server.url.rpartition(":")[2])
    command = [sys.executable, __file__, *sys.argv[1:], "--server", server.url]
    roles = ["learner", *["worker"] * settings.workers]
    parts = [subprocess.Popen([*command, "--role", role]) for role in roles]
    kills = [settings.updates * (kill + 1) // (settings.kills + 1) for kill in range(settings.kills)]
    try:
        with rs.Client(server.url, reconnect_timeout=60) as client:
            rollouts = make_rollouts(client, settings)
            while any(part.poll() is None for part in parts):
                for role, part in zip(roles, parts, strict=True):
                    if part.poll():
                        raise SystemExit(f"a {role} ended with exit code {part.poll()}")
                version = rollouts.info()["policy_version"]
                if kills and version >= kills[0]:
                    os.kill(server.pid, signal.SIGKILL)
                    server.stop()
                    server = rs.Server([], port=port, directory=folder, config=config)
                    print(f"the server was killed at version {version} and is back", flush=True)
                    kills.pop(0)
                time.sleep(0.02)
            return client.command("GET", RESULT).decode()
    finally:
        for part in parts:
            part.kill()
        server.stop()


if __name__ == "__main__":
    torch.set_num_threads(1)
    chosen = settings_from_arguments(Settings, __doc__)
    if chosen.role == "worker":
        run_worker(chosen)
    elif chosen.role == "learner":
        run_learner(chosen)
    else:
        print(f"reached {run_all(chosen)} on counting")
