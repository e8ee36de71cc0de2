"""Actor functions through the handler, on a real server: the same fragments whoever plays them."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("gymnasium")

import replay_server as rs  # noqa: E402
from replay_server.actors import function  # noqa: E402
from replay_server.actors.fragments import FragmentCollector  # noqa: E402
from replay_server.learner.ppo import PpoSettings  # noqa: E402
from replay_server.rl.fragments import fragment_signature  # noqa: E402
from replay_server.rl.function_contract import (  # noqa: E402
    ActorRequest,
    Names,
    Response,
    decode_response,
    encode_request,
)
from replay_server.rl.policy_networks import ActorCritic, make_policy_network  # noqa: E402
from replay_server.rl.policy_spec import PolicySpec, policy_spec  # noqa: E402
from replay_server.rl.weights import module_arrays  # noqa: E402
from replay_server.serverless.function import handle  # noqa: E402

_jobs = itertools.count()


class Job:
    """A job on the server: its table, a policy, and requests for it."""

    def __init__(self, server: rs.Server, client: rs.Client, env: str = "CartPole-v1", **changes: Any) -> None:
        self.url, self.client = server.url, client
        self.settings = PpoSettings(env=env, steps=20, hidden=8, seed=3, **changes)
        self.spec: PolicySpec = policy_spec(self.settings)
        self.network: ActorCritic = make_policy_network(self.settings, self.spec)
        self.names = Names(f"job-{next(_jobs)}")
        self.requests = itertools.count()
        client.create_table(
            rs.Table(
                self.names.fragments,
                capacity=50,
                signature=fragment_signature(self.settings, self.spec),
                sampler=rs.Fifo(),
                remover=rs.Fifo(),
            )
        )

    def publish(self, version: int, seed: int | None = None) -> ActorCritic:
        """The policy of that version: of the first seed, or another one's."""
        settings = dataclasses.replace(self.settings, seed=self.settings.seed if seed is None else seed)
        network = make_policy_network(settings, self.spec)
        self.client.publish_weights(self.names.policy, module_arrays(network), version=version)
        return network

    def request(self, kind: type[Any] = ActorRequest, **changes: Any) -> Any:
        values = {
            "request": f"request-{next(self.requests)}",
            "server_url": self.url,
            "job": self.names.job,
            "settings": dataclasses.asdict(self.settings),
            "algorithm": "ppo",
            "round": 0,
            "version": 1,
        }
        if kind is ActorRequest:
            values |= {"actor": 2, "environments": 2}
        return kind(**{**values, **changes})

    def fragments(self, response: Response) -> dict[str, np.ndarray]:
        assert response.result is not None, response.failure
        return self.client.get(self.names.fragments, np.frombuffer(response.result["fragments"], "<u8")).data

    def size(self) -> int:
        return self.client.info(self.names.fragments)["size"]


@pytest.fixture(scope="module")
def server() -> Iterator[rs.Server]:
    with rs.Server() as running:
        yield running
        assert running.running, f"the server died: {running.log()}"


@pytest.fixture
def client(server: rs.Server) -> Iterator[rs.Client]:
    with rs.Client(server.url) as made:
        yield made


@pytest.fixture
def make_job(server: rs.Server, client: rs.Client) -> Callable[..., Job]:
    return lambda **options: Job(server, client, **options)


@pytest.fixture(autouse=True)
def cold() -> None:
    """Every test begins as a process does that has played nothing yet."""
    forget()


def forget() -> None:
    function._warm = function._Warm()


def call(request: Any) -> Response:
    return decode_response(handle(encode_request(request)))


def done(request: Any) -> Response:
    response = call(request)
    assert response.failure is None, response.failure.traceback
    return response


def assert_same_fragments(fragments: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> None:
    assert set(fragments) == set(expected)
    for name, column in expected.items():
        np.testing.assert_array_equal(fragments[name], column, err_msg=name)


def test_an_actor_adds_the_fragments_that_a_collector_plays_and_answers_their_ids(make_job):
    job = make_job()
    network = job.publish(1)
    response = done(job.request())
    collector = FragmentCollector(job.settings, job.spec, 2, [3, 2], first_environment=4)
    expected = collector.collect(network, 1)
    assert_same_fragments(job.fragments(response), expected.fragments)
    assert response.result["version"] == 1
    assert (response.result["scores"], response.result["steps"]) == (expected.scores, 40)
    assert job.client.redis.get(response.result["state"]) == collector.state()
    assert 0 < job.client.redis.ttl(response.result["state"]) <= function.STATE_S
    assert job.size() == 2


@pytest.mark.parametrize("env", ["CartPole-v1", "Hopper-v5"])
@pytest.mark.parametrize("instances", ["warm", "cold", "another's"])
def test_rounds_on_any_instances_are_those_of_one_collector(make_job, monkeypatch, env, instances):
    """Warm: it holds the state already. Cold: all is made anew. Another's: warm with the state of another actor."""
    if env.startswith("Hopper"):
        pytest.importorskip("mujoco")
    if instances == "another's":
        monkeypatch.setattr(function, "WARM_COLLECTORS", 1)
    job = make_job(env=env)
    collector = FragmentCollector(job.settings, job.spec, 2, [3, 2], first_environment=4)
    state = None
    for version in (1, 2, 3):
        network = job.publish(version, seed=version)
        expected = collector.collect(network, version)
        if instances == "cold":
            forget()
        if instances == "another's":
            done(job.request(actor=7, version=version, round=version - 1))
        response = done(job.request(version=version, round=version - 1, sequence=version - 1, state=state))
        assert_same_fragments(job.fragments(response), expected.fragments)
        assert response.result["scores"] == expected.scores
        state = response.result["state"]
        phases = response.measured.phases
        assert {"act", "push"} <= set(phases)
        assert ("fetch_weights" in phases) == (instances != "another's")
        assert ("restore" in phases) == (version > 1 and instances != "warm")
    assert job.client.redis.get(state) == collector.state()
