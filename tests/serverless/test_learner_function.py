"""The learner function: the same bits wherever it runs, and nothing changed where it fails."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import replay_server as rs  # noqa: E402
from replay_server.actors.fragments import FragmentCollector  # noqa: E402
from replay_server.bench.training import train  # noqa: E402
from replay_server.learner import function, published_state  # noqa: E402
from replay_server.learner.algorithms import Settings, algorithm_of  # noqa: E402
from replay_server.learner.impact import ImpactSettings, circular_buffer  # noqa: E402
from replay_server.learner.ppo import PpoSettings  # noqa: E402
from replay_server.learner.published_state import initialise  # noqa: E402
from replay_server.rl.fragments import fragment_table  # noqa: E402
from replay_server.rl.function_context import FunctionContext  # noqa: E402
from replay_server.rl.function_contract import (  # noqa: E402
    LearnerRequest,
    Names,
    decode_response,
    encode_request,
)
from replay_server.rl.policy_networks import ActorCritic, make_policy_network  # noqa: E402
from replay_server.rl.policy_spec import policy_spec  # noqa: E402
from replay_server.rl.weights import load_arrays  # noqa: E402
from replay_server.serverless.function import handle  # noqa: E402

ENVIRONMENTS = 3
PPO = PpoSettings(env="Pendulum-v1", steps=32, hidden=16, iterations=2, minibatch_size=24, seed=5)
IMPACT = ImpactSettings(
    env="CartPole-v1", steps=32, hidden=16, minibatch_size=24, seed=5, buffer_batches=2, passes=2, target_update_every=3
)
SPECS = {settings.env: policy_spec(settings) for settings in (PPO, IMPACT)}


@pytest.fixture(scope="module")
def server() -> Iterator[rs.Server]:
    with rs.Server() as server:
        yield server


@pytest.fixture(scope="module")
def client(server: rs.Server) -> Iterator[rs.Client]:
    with rs.Client(server.url) as client:
        yield client


class Job:
    """A job on the server whose actor is a collector in this process, acting with what was published."""

    def __init__(self, client: rs.Client, name: str, settings: Settings) -> None:
        self.client, self.settings, self.names = client, settings, Names(name)
        self.spec = SPECS[settings.env]
        if isinstance(settings, ImpactSettings):
            table = circular_buffer(self.names.fragments, settings, self.spec, ENVIRONMENTS)
        else:
            table = fragment_table(self.names.fragments, settings, self.spec, 4 * ENVIRONMENTS)
        client.create_table(table)
        self.version = initialise(settings, self.spec, client, self.names)
        self.collector = FragmentCollector(settings, self.spec, ENVIRONMENTS, [settings.seed, 0])

    def policy(self) -> tuple[int, ActorCritic]:
        found = self.client.fetch_weights(self.names.policy)
        assert found is not None
        version, arrays = found
        network = make_policy_network(self.settings, self.spec)
        load_arrays(network, arrays)
        return version, network

    def act(self) -> bytes:
        version, network = self.policy()
        fragments = self.collector.collect(network, version).fragments
        return self.client.add(self.names.fragments, fragments, timeout=0).tobytes()

    def request(self, **changes: Any) -> LearnerRequest:
        values: dict[str, Any] = {
            "request": f"learn-{self.version}",
            "server_url": self.client.url,
            "job": self.names.job,
            "settings": dataclasses.asdict(self.settings),
            "algorithm": algorithm_of(self.settings),
            "round": 1,
            "version": self.version,
        }
        return LearnerRequest(**values | changes)

    def round(self, run: Callable[[bytes], bytes] = handle) -> list[dict[str, float]]:
        """One round as an orchestrator does it; the statistics of its updates."""
        ids = self.act()
        if isinstance(self.settings, ImpactSettings):
            request = self.request(sample=ENVIRONMENTS, updates=self.settings.passes)
        else:
            request = self.request(fragments=ids)
        response = decode_response(run(encode_request(request)))
        assert response.failure is None, response.failure.traceback
        assert response.result is not None
        self.version = response.result["version"]
        if request.fragments:
            self.client.delete(self.names.fragments, np.frombuffer(ids, "<u8"))
        return response.result["statistics"]

    def state(self) -> dict[str, np.ndarray]:
        """All tensors of the learner."""
        version, arrays = published_state.fetch_state(self.client, self.names)
        assert version == self.version
        return {name: array for name, array in arrays.items() if name != published_state.NOTE}

    def context(self, request: LearnerRequest) -> FunctionContext:
        return FunctionContext(request, self.client)


@pytest.fixture
def job(client: rs.Client, request: pytest.FixtureRequest) -> Iterator[Callable[..., Job]]:
    made: list[Job] = []

    def make(settings: Settings = PPO) -> Job:
        made.append(Job(client, f"{request.node.name}-{len(made)}", settings))
        return made[-1]

    yield make
    for each in made:
        each.collector.close()


def cold(payload: bytes) -> bytes:
    """The handler in a process of its own."""
    code = (
        "import sys; from replay_server.serverless.function import handle; "
        "sys.stdout.buffer.write(handle(sys.stdin.buffer.read()))"
    )
    return subprocess.run([sys.executable, "-c", code], input=payload, stdout=-1, check=True, timeout=60).stdout


def forgetful(payload: bytes) -> bytes:
    """The handler in this process, which keeps no learner from one invocation to the next."""
    function._warm.clear()
    return handle(payload)


def same(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> None:
    assert one.keys() == other.keys()
    for name in one:
        np.testing.assert_array_equal(one[name], other[name], err_msg=name)


# ---- the same bits ---------------------------------------------------------------------------------------------------


def test_rounds_of_one_warm_process_are_those_of_cold_ones_and_of_training_in_one_process(job):
    warm, each_cold = job(), job()
    warm_statistics = [warm.round()[0] for _ in range(5)]
    # An interpreter for each of five rounds would take a quarter of a minute; from one to the next says it all.
    cold_statistics = [each_cold.round(run)[0] for run in (forgetful, cold, cold, forgetful, forgetful)]
    assert warm_statistics == cold_statistics
    same(warm.state(), each_cold.state())
    curve = train(PPO, ENVIRONMENTS, rounds=5, episodes=1).curve
    assert [{name: row[name] for name in warm_statistics[0]} for row in curve] == warm_statistics


def test_passes_of_impact_are_those_of_training_in_one_process_warm_or_not(job):
    warm, other = job(IMPACT), job(IMPACT)
    warm_statistics = [warm.round() for _ in range(4)]
    assert [other.round(forgetful) for _ in range(4)] == warm_statistics
    same(warm.state(), other.state())
    assert warm.version == 8
    curve = train(IMPACT, ENVIRONMENTS, rounds=4, episodes=1).curve
    last = [each[-1] for each in warm_statistics]
    assert [{name: row[name] for name in last[0]} for row in curve] == last
