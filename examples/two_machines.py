"""An actor and a learner that share nothing but a replay server: two machines, emulated by two processes.

    python examples/two_machines.py                        # a server, an actor and a learner, all on this machine

On machines of their own it is the same program, with a server that both reach:

    replay-server serve --host 10.0.0.1                                   # with REPLAY_SERVER_PASSWORD set
    python examples/two_machines.py --role learner --server redis://:PASSWORD@10.0.0.1:6379
    python examples/two_machines.py --role actor   --server redis://:PASSWORD@10.0.0.1:6379

The actor plays with the newest weights and adds transitions; the learner samples, writes priorities back and publishes
weights. The table's rate limiter keeps the two in step however fast either machine is, so the result does not depend on
it. The learner ends the job by closing the table, which tells the actor, also one that waits. Needs
`pip install '.[rl]'`.
"""

from __future__ import annotations

import copy
import subprocess
import sys
import time
from dataclasses import dataclass

import gymnasium as gym
import numpy as np
import torch
from dqn import act, evaluate, huber, make_network, make_table, mix, settings_from_arguments, td_errors
from torch import nn

import replay_server as rs

TABLE, WEIGHTS, RESULT = "transitions", "policy", "result"
"""Names on the server; RESULT is an ordinary key, set at the learner's end."""


@dataclass
class Settings:
    """What the command line can change."""

    role: str = "both"
    """actor, learner, or both with a server."""
    server: str = ""
    """URL of the replay server."""
    env: str = "CartPole-v1"
    updates: int = 20_000
    """Of the learner, at most."""
    seed: int = 1
    target: float = 475.0
    """Mean return of an evaluation with which it ends."""
    capacity: int = 50_000
    batch_size: int = 128
    samples_per_insert: float = 64.0
    """How often a transition is sampled on average: with batches of 128, an update for each two transitions."""
    learning_starts: int = 1_000
    """Transitions before the first update."""
    push: int = 25
    """Transitions that the actor adds at once."""
    publish_every: int = 25
    """Updates."""
    target_mix: float = 0.02
    """How far the target network moves to the online one with each update."""
    evaluate_every: int = 1_250
    """Updates."""
    exploration_steps: int = 8_000
    """Of the actor, over which ε falls from 1 to 0.05."""
    discount: float = 0.99
    learning_rate: float = 1e-3


def to_arrays(network: nn.Module) -> dict[str, np.ndarray]:
    """A network's weights as they are published."""
    return {name: tensor.detach().numpy() for name, tensor in network.state_dict().items()}


def create_table(client: rs.Client, settings: Settings) -> None:
    """Makes the table; whoever comes second finds it."""
    limiter = rs.SampleToInsertRatio(
        settings.samples_per_insert,
        min_size_to_sample=settings.learning_starts,
        error_buffer=8 * max(settings.batch_size, settings.push * settings.samples_per_insert),
    )
    env = gym.make(settings.env)
    client.create_table(make_table(TABLE, env, settings.capacity, settings.seed, rate_limiter=limiter))


def run_actor(settings: Settings) -> None:
    """Plays until the learner has closed the table."""
    random = np.random.default_rng(settings.seed)
    env = gym.make(settings.env)
    network, version = make_network(env), None
    waiting: list[dict] = []
    steps, obs = 0, env.reset(seed=settings.seed)[0]
    with rs.Client(settings.server) as client:
        create_table(client, settings)
        while True:
            action = act(network, obs, max(0.05, 1.0 - steps / settings.exploration_steps), random)
            next_obs, reward, terminated, truncated, _ = env.step(action)
            discount = 0.0 if terminated else settings.discount
            waiting.append({"obs": obs, "action": action, "reward": reward, "next_obs": next_obs, "discount": discount})
            obs = env.reset()[0] if terminated or truncated else next_obs
            steps += 1
            if len(waiting) < settings.push:
                continue
            columns = {name: [transition[name] for transition in waiting] for name in waiting[0]}
            try:
                client.add(TABLE, columns)  # waits where the learner is behind
            except rs.TableClosed as end:
                print(f"actor: {steps} steps, weights of version {version}; {end}", flush=True)
                return
            waiting.clear()
            if newer := client.fetch_weights(WEIGHTS, newer_than=version):
                version, arrays = newer
                network.load_state_dict({name: torch.from_numpy(array) for name, array in arrays.items()})


def run_learner(settings: Settings) -> None:
    """Learns until the target or the last update; then leaves the best score under RESULT and closes the table."""
    torch.manual_seed(settings.seed)
    online = make_network(gym.make(settings.env))
    target = copy.deepcopy(online)
    optimizer = torch.optim.Adam(online.parameters(), lr=settings.learning_rate)
    best = -np.inf
    with rs.Client(settings.server) as client:
        create_table(client, settings)
        client.open_table(TABLE)  # on a server where a learner ended before
        client.publish_weights(WEIGHTS, to_arrays(online))
        with client.sampler(TABLE, settings.batch_size, prefetch=2) as batches:
            for update, batch in enumerate(batches, 1):
                errors = td_errors(online, target, batch.data)
                loss = (torch.from_numpy(batch.weights) * huber(errors)).mean()
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(online.parameters(), 10.0)
                optimizer.step()
                mix(target, online, settings.target_mix)
                client.update_priorities(TABLE, batch.ids, errors.detach().abs().double().numpy() + 1e-3)
                if update % settings.publish_every == 0:
                    client.publish_weights(WEIGHTS, to_arrays(online))
                if update % settings.evaluate_every == 0 or update == settings.updates:
                    score = evaluate(online, settings.env)
                    best = max(best, score)
                    added = client.info(TABLE)["added"]
                    print(f"learner: update {update} transitions {added} score {score:.1f}", flush=True)
                    if score >= settings.target or update == settings.updates:
                        break
        client.redis.set(RESULT, best)
        client.close_table(TABLE, f"the learner ended with {best:.1f}")


def run_both(settings: Settings) -> float:
    """A server, an actor and a learner, each a process; the best score."""
    with rs.Server(port=0) as server:
        print(f"server: {server.url}", flush=True)
        command = [sys.executable, __file__, *sys.argv[1:], "--server", server.url]
        parts = {role: subprocess.Popen([*command, "--role", role]) for role in ("learner", "actor")}
        try:
            codes: dict[str, int | None] = {"learner": None}
            while None in codes.values():
                time.sleep(0.1)
                codes = {role: part.poll() for role, part in parts.items()}
                for role, code in codes.items():
                    if code:
                        raise SystemExit(f"the {role} ended with exit code {code}")
        finally:
            for part in parts.values():
                part.kill()
        with rs.Client(server.url) as client:
            return float(client.command("GET", RESULT))


if __name__ == "__main__":
    torch.set_num_threads(1)
    chosen = settings_from_arguments(Settings, __doc__)
    if chosen.role == "actor":
        run_actor(chosen)
    elif chosen.role == "learner":
        run_learner(chosen)
    else:
        print(f"reached {run_both(chosen):.1f} on {chosen.env}")
