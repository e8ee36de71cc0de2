"""Actor functions through the handler, on a real server: the same fragments whoever plays them."""

from __future__ import annotations

import dataclasses
import itertools
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
gymnasium = pytest.importorskip("gymnasium")

import replay_server as rs  # noqa: E402
from replay_server.actors import function  # noqa: E402
from replay_server.actors.fragments import FragmentCollector, evaluate_policy  # noqa: E402
from replay_server.learner.ppo import PpoSettings  # noqa: E402
from replay_server.rl.fragments import fragment_signature, fragment_table  # noqa: E402
from replay_server.rl.function_context import FunctionContext  # noqa: E402
from replay_server.rl.function_contract import (  # noqa: E402
    ActorRequest,
    EvaluationRequest,
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


# ---- policies -------------------------------------------------------------------------------------------------------


def test_a_policy_that_must_be_exact_is_refused_once_there_is_a_newer_one(make_job):
    job = make_job()
    job.publish(1)
    job.publish(2, seed=9)
    response = call(job.request(version=1))
    assert response.failure is not None
    assert (response.failure.type, response.failure.retry) == ("StalePolicy", False)
    assert "expected the policy of version 1, the server has 2" in response.failure.message
    assert job.size() == 0


def test_a_policy_that_need_not_be_exact_is_the_newest(make_job):
    job = make_job()
    job.publish(1)
    assert done(job.request(version=1, exact=False)).result["version"] == 1
    newest = job.publish(3, seed=9)
    response = done(job.request(version=1, exact=False))
    assert response.result["version"] == 3
    collector = FragmentCollector(job.settings, job.spec, 2, [3, 2], first_environment=4)
    assert_same_fragments(job.fragments(response), collector.collect(newest, 3).fragments)
    # None is newer than what it has: it need not be sent again.
    again = done(job.request(version=2, exact=False))
    assert (again.result["version"], again.measured.bytes_in < response.measured.bytes_in) == (3, True)


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("before", [None, 1])
def test_a_policy_that_is_about_to_come_is_waited_for(make_job, exact, before):
    job = make_job()
    if before is not None:
        job.publish(1)
        done(job.request())
    later = threading.Timer(0.2, lambda: job.publish(2, seed=9))
    later.start()
    response = done(job.request(version=2, exact=exact, actor=5))
    later.join()
    assert response.result["version"] == 2


def test_a_policy_that_does_not_come_is_a_timeout_that_may_be_tried_again(make_job, monkeypatch):
    monkeypatch.setattr(function, "POLICY_WAIT_S", 0.1)
    job = make_job()
    failure = call(job.request()).failure
    assert (failure.type, failure.retry) == ("Timeout", True)
    assert f"published under {job.names.policy!r}" in failure.message


# ---- states, deadlines, settings ------------------------------------------------------------------------------------


def test_a_state_that_is_gone_is_said_to_be(make_job):
    job = make_job()
    job.publish(1)
    state = done(job.request()).result["state"]
    forget()
    job.client.redis.delete(state)
    failure = call(job.request(sequence=1, state=state)).failure
    assert failure.type == "StateLost"
    assert "begin with new environments" in failure.message


def test_a_state_after_another_number_of_fragments_is_refused(make_job):
    job = make_job()
    job.publish(1)
    state = done(job.request()).result["state"]
    failure = call(job.request(sequence=5, state=state)).failure
    assert failure.type == "ContractError"
    assert "expected the state after 5 fragments" in failure.message
    assert job.size() == 2


def test_an_attempt_that_does_not_count_takes_back_its_fragments_and_its_state(make_job, server):
    job = make_job()
    job.publish(1)
    request = job.request()
    context = FunctionContext(request, job.client)
    result = function.act(request, context)
    assert job.size() == 2
    assert context.bytes_in > 0
    assert context.bytes_out > job.settings.steps * 2
    context.discard()
    assert job.size() == 0
    assert job.client.redis.get(result["state"]) is None
    # What the instance holds is not what the next request may name: it is played from the kept state, or not at all.
    assert done(job.request()).result["state"] != result["state"]


def test_nothing_is_added_after_the_deadline(make_job):
    job = make_job(env="CartPole-v1")
    job.publish(1)
    done(job.request())
    request = job.request(
        deadline=time.time() + 0.05, settings={**dataclasses.asdict(job.settings), "steps": 10_000_000}
    )
    response = call(request)
    assert response.failure.type == "DeadlineOver"
    assert response.measured.ended < request.deadline + 100
    assert "push" not in response.measured.phases
    assert job.size() == 2
    # The instance does not go on from the middle of what it gave up.
    assert done(job.request(actor=6)).result["steps"] == 40


def test_a_table_that_lets_nothing_in_is_waited_for_no_longer_than_the_deadline(make_job, client):
    job = make_job()
    job.publish(1)
    client.drop_table(job.names.fragments)
    client.create_table(fragment_table(job.names.fragments, job.settings, job.spec, 2))
    done(job.request())
    request = job.request(deadline=time.time() + 1.0)
    failure = call(request).failure
    assert (failure.type, failure.retry) == ("Timeout", True)
    assert time.time() < request.deadline + 100
    assert len(client.redis.keys(job.names.state("*"))) == 1


def test_settings_of_the_algorithm_are_passed_over_and_an_actors_must_all_be_there(make_job):
    job = make_job()
    job.publish(1)
    settings = dataclasses.asdict(job.settings)
    misspelt = {("hiden" if name == "hidden" else name): value for name, value in settings.items()}
    failure = call(job.request(settings=misspelt)).failure
    assert failure.type == "ContractError"
    assert "missing: hidden" in failure.message
    done(job.request(settings={**settings, "of_another_algorithm": 3}))


def test_an_evaluation_plays_what_evaluate_policy_plays(make_job):
    job = make_job()
    network = job.publish(4)
    request = job.request(EvaluationRequest, version=4, episodes=3, seed=11)
    response = done(request)
    assert response.result == {"scores": evaluate_policy(network, job.settings, job.spec, 3, 11), "version": 4}
    assert call(job.request(EvaluationRequest, version=3)).failure.type == "StalePolicy"
    late = call(job.request(EvaluationRequest, version=4, episodes=100_000, deadline=time.time() + 0.2))
    assert late.failure.type == "DeadlineOver"


def test_an_environment_without_a_state_is_refused_before_it_is_played(make_job):
    job = make_job(env="Unsaved-v0")
    job.publish(1)
    response = call(job.request())
    assert response.failure.type == "StateUnsupported"
    assert "act" not in response.measured.phases


class Unsaved(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1, 1, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        return np.zeros(1, np.float32), {}

    def step(self, action):
        return np.zeros(1, np.float32), 0.0, False, False, {}


gymnasium.register("Unsaved-v0", Unsaved)


# ---- start-up -------------------------------------------------------------------------------------------------------

NOT_NEEDED = (
    *("ale_py", "cv2", "mujoco", "glfw", "imageio", "pygame"),
    *("replay_server.learner", "replay_server.jobs", "replay_server.bench", "replay_server.buffer"),
    *("tensorboard", "matplotlib", "rich", "pandas", "scipy", "safetensors"),
    *("torch._dynamo", "torch._inductor", "sympy", "redis.asyncio", "redis.cluster", "uvloop"),
)

STARTUP = f"""
import sys
import replay_server.serverless.function
import replay_server.actors.function
from replay_server.rl.policy_settings import PolicySettings
from replay_server.rl.policy_spec import policy_spec
from replay_server.rl.policy_networks import make_policy_network
def loaded(*allowed):
    return [name for name in {NOT_NEEDED!r} if name in sys.modules and name.partition('.')[0] not in allowed]
print(loaded())
settings = PolicySettings(env=sys.argv[1])
make_policy_network(settings, policy_spec(settings))
print(loaded(*sys.argv[2:]))
"""


@pytest.mark.parametrize(
    ("env", "needed"),
    [("Hopper-v5", ("mujoco", "glfw", "imageio")), ("ALE/Qbert-v5", ("ale_py",))],
)
def test_an_actor_function_imports_nothing_that_it_does_not_need(env, needed, tmp_path):
    pytest.importorskip("mujoco")
    command = [sys.executable, "-c", STARTUP, env, *needed]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=tmp_path, check=True)
    assert result.stdout.split("\n")[:2] == ["[]", "[]"]
