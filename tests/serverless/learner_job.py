"""A job of asynchronous learners on a real server: its actors here, its functions where a test wants them."""

from __future__ import annotations

import dataclasses
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

import replay_server as rs
from replay_server.actors.fragments import FragmentCollector
from replay_server.learner.algorithms import algorithm_of
from replay_server.learner.gradient_function import compute_gradients
from replay_server.learner.impact import ImpactSettings
from replay_server.learner.parameter_function import apply_gradients, report
from replay_server.learner.ppo import PpoSettings
from replay_server.learner.published_state import fetch_state, initialise, read_note, restored_learner, state_arrays
from replay_server.rl.fragments import fragment_table
from replay_server.rl.function_context import FunctionContext
from replay_server.rl.function_contract import GradientRequest, Names, ParameterRequest
from replay_server.rl.gradient_queue import GradientQueue
from replay_server.rl.policy_networks import make_policy_network
from replay_server.rl.policy_spec import policy_spec
from replay_server.rl.weights import load_arrays

ENVIRONMENTS = 4
PPO = PpoSettings(env="Pendulum-v1", steps=32, hidden=16, iterations=3, minibatch_size=48, seed=5)
CLIPPED = dataclasses.replace(PPO, gradient_norm=0.5, entropy_coefficient=0.01)
IMPACT = ImpactSettings(
    env="CartPole-v1", steps=32, hidden=16, minibatch_size=48, seed=5, passes=3, target_update_every=3
)
SPECS = {settings.env: policy_spec(settings) for settings in (PPO, IMPACT)}
Settings = PpoSettings | ImpactSettings


class Job:
    """A job on the server, its actors in this process, and its functions where a test wants them."""

    def __init__(self, client: rs.Client, name: str, settings: Settings, **learning: Any) -> None:
        self.client, self.settings, self.names = client, settings, Names(name, "run")
        self.spec, self.learning = SPECS[settings.env], {"learners": 1, "patience_s": 0.5, **learning}
        client.create_table(fragment_table(self.names.fragments, settings, self.spec, 8 * ENVIRONMENTS))
        initialise(settings, self.spec, client, self.names)
        self.queue = GradientQueue(client, self.names)
        self.collector = FragmentCollector(settings, self.spec, ENVIRONMENTS, [settings.seed, 0])
        self.round = 1

    def act(self) -> np.ndarray:
        """One fragment of each environment with the newest policy; their ids."""
        found = self.client.fetch_weights(self.names.policy)
        assert found is not None
        network = make_policy_network(self.settings, self.spec)
        load_arrays(network, found[1])
        return self.client.add(self.names.fragments, self.collector.collect(network, found[0]).fragments, timeout=0)

    def common(self) -> dict[str, Any]:
        return {
            "server_url": self.client.url, "job": self.names.job, "run": self.names.run, "round": self.round,
            "settings": dataclasses.asdict(self.settings), "algorithm": algorithm_of(self.settings), "version": 0,
            "learning": self.learning,
        }  # fmt: skip

    def gradient_request(self, ids: np.ndarray, learner: int = 0) -> GradientRequest:
        return GradientRequest(
            request=f"r{self.round}-learner-{learner}", fragments=ids.astype("<u8").tobytes(), learner=learner,
            **self.common(),
        )  # fmt: skip

    def parameter_request(self, serve_s: float = 60.0, suffix: str = "") -> ParameterRequest:
        return ParameterRequest(request=f"r{self.round}-parameter{suffix}", serve_s=serve_s, **self.common())

    def compute(self, request: GradientRequest) -> dict[str, Any]:
        return compute_gradients(request, FunctionContext(request, self.client))

    def apply(self, request: ParameterRequest) -> dict[str, Any]:
        return apply_gradients(request, FunctionContext(request, self.client))

    def play(self, ids: np.ndarray) -> tuple[list[dict[str, Any]], dict[str, Any]]:
        """One round: its learners in threads beside the parameter function; their results."""
        learners = self.learning["learners"]
        with ThreadPoolExecutor(learners + 1) as pool:
            serving = pool.submit(self.apply, self.parameter_request())
            requests = [self.gradient_request(part, each) for each, part in enumerate(np.array_split(ids, learners))]
            answers = list(pool.map(self.compute, requests))
            self.queue.end_round(self.round, report(answers))
            result = serving.result()
        self.round += 1
        return answers, result

    def state(self) -> dict[str, np.ndarray]:
        return fetch_state(self.client, self.names)[1]


def vector_of(job: Job, seed: int) -> np.ndarray:
    """A gradient of the right size."""
    size = sum(each.numel() for each in make_policy_network(job.settings, job.spec).parameters())
    return np.random.default_rng(seed).normal(size=size).astype(np.float32)


def raise_version(made: Job, version: int, **asynchronous: Any) -> None:
    """The state as it is, under a later version; `asynchronous`: fields of its `ParameterState` that are others."""
    _, arrays = fetch_state(made.client, made.names)
    note = read_note(arrays)
    learner = restored_learner(made.settings, arrays, note)
    learner.version = version
    note = dataclasses.replace(note, counters=learner.counters(), asynchronous={**note.asynchronous, **asynchronous})
    made.client.publish_weights(made.names.learner, state_arrays(learner, note), version)
