"""The learner function: the same bits wherever it runs, and nothing changed where it fails."""

from __future__ import annotations

import dataclasses
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import replay_server as rs  # noqa: E402
from replay_server.actors.fragments import FragmentCollector  # noqa: E402
from replay_server.bench.training import train  # noqa: E402
from replay_server.learner import function, published_state  # noqa: E402
from replay_server.learner.algorithms import Settings, algorithm_of, make_learner  # noqa: E402
from replay_server.learner.circular_buffer import CircularBufferSettings, circular_buffer  # noqa: E402
from replay_server.learner.impact import ImpactSettings  # noqa: E402
from replay_server.learner.impala import ImpalaSettings  # noqa: E402
from replay_server.learner.policy_checkpoint import read_policy_checkpoint  # noqa: E402
from replay_server.learner.ppo import PpoSettings  # noqa: E402
from replay_server.learner.published_state import StateError, initialise, save_checkpoint  # noqa: E402
from replay_server.rl.fragments import fragment_table  # noqa: E402
from replay_server.rl.function_context import DeadlineOver, FunctionContext  # noqa: E402
from replay_server.rl.function_contract import (  # noqa: E402
    ContractError,
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
IMPALA = ImpalaSettings(env="CartPole-v1", steps=32, hidden=16, minibatch_size=64, seed=5, buffer_batches=2, passes=2)
SPECS = {settings.env: policy_spec(settings) for settings in (PPO, IMPACT)}


class Job:
    """A job on the server whose actor is a collector in this process, acting with what was published."""

    def __init__(self, client: rs.Client, name: str, settings: Settings) -> None:
        self.client, self.settings, self.names = client, settings, Names(name)
        self.spec = SPECS[settings.env]
        if isinstance(settings, CircularBufferSettings):
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
        if isinstance(self.settings, CircularBufferSettings):
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
    warm_statistics = [warm.round()[0] for _ in range(3)]
    # An interpreter for each would take long; one, between others that have kept nothing, says it all.
    cold_statistics = [each_cold.round(run)[0] for run in (forgetful, cold, forgetful)]
    assert warm_statistics == cold_statistics
    same(warm.state(), each_cold.state())
    curve = train(PPO, ENVIRONMENTS, rounds=3, episodes=1).curve
    assert [{name: row[name] for name in warm_statistics[0]} for row in curve] == warm_statistics


@pytest.mark.parametrize("settings", [IMPACT, IMPALA], ids=["impact", "impala"])
def test_passes_over_the_buffer_are_those_of_training_in_one_process_warm_or_not(job, settings):
    warm, other = job(settings), job(settings)
    warm_statistics = [warm.round() for _ in range(3)]
    assert [other.round(forgetful) for _ in range(3)] == warm_statistics
    same(warm.state(), other.state())
    assert warm.version == 6
    curve = train(settings, ENVIRONMENTS, rounds=3, episodes=1).curve
    last = [each[-1] for each in warm_statistics]
    assert [{name: row[name] for name in last[0]} for row in curve] == last


# ---- what counts, and what does not ----------------------------------------------------------------------------------


def test_a_request_that_comes_again_is_the_same_work_even_where_its_response_was_lost(job, client):
    one = job()
    request = one.request(fragments=one.act())
    first = function.learn(request, one.context(request))
    state = client.fetch_weights(one.names.learner)[1]
    again = function.learn(request, one.context(request))
    assert again == first
    same(client.fetch_weights(one.names.learner)[1], state)


def test_a_function_that_was_killed_after_its_commit_has_its_policy_published_by_the_next_attempt(job, client):
    one = job()
    request = one.request(fragments=one.act())

    class Killed(BaseException):
        pass

    class Client:
        """The server is real; the process ends between the two publications."""

        def __getattr__(self, name: str) -> Any:
            return getattr(client, name)

        def publish_weights(self, key: str, *arguments: Any) -> int:
            if key == one.names.policy:
                raise Killed
            return client.publish_weights(key, *arguments)

    context = one.context(request)
    context.client = Client()  # type: ignore[assignment]
    with pytest.raises(Killed):
        function.learn(request, context)
    assert client.fetch_weights(one.names.policy)[0] == 0
    function._warm.clear()
    response = decode_response(handle(encode_request(request)))
    assert response.failure is None
    assert response.result is not None
    assert response.result["version"] == 1
    assert response.result["statistics"][0]["samples"] == ENVIRONMENTS * PPO.steps
    version, arrays = client.fetch_weights(one.names.policy)
    assert version == 1
    same(arrays, published_state.policy_arrays(client.fetch_weights(one.names.learner)[1]))
    one.version = 1
    one.round()


def test_another_request_for_a_version_that_has_passed_is_refused(job):
    one = job()
    one.round()
    request = one.request(request="late", version=0, fragments=one.act())
    with pytest.raises(StateError, match="at version 0 for 'late', and its learner is at version 1, made by 'learn-0'"):
        function.learn(request, one.context(request))


def test_a_state_made_by_the_same_request_of_another_run_is_no_answer(job):
    one = job()
    ids = one.act()
    killed, resumed = (one.request(fragments=ids, run=run) for run in ("killed", "resumed"))
    function.learn(killed, one.context(killed))
    with pytest.raises(StateError, match="learner is at version 1, made by 'killed:learn-0'"):
        function.learn(resumed, one.context(resumed))


def test_the_slower_of_two_attempts_answers_what_the_faster_one_did(job, client, monkeypatch):
    one = job()
    request = one.request(fragments=one.act())
    first = function.learn(request, one.context(request))
    function._warm.clear()
    state, really = client.fetch_weights(one.names.learner)[1], function.fetch_state
    # It had fetched its state before the faster one was done.
    other = job()
    stale = [really(client, other.names)]
    monkeypatch.setattr(function, "fetch_state", lambda *given: stale.pop() if stale else really(*given))
    assert function.learn(request, one.context(request)) == first
    same(client.fetch_weights(one.names.learner)[1], state)


def test_without_one_of_its_fragments_nothing_is_learned(job, client):
    one = job()
    ids = one.act()
    client.delete(one.names.fragments, np.frombuffer(ids, "<u8")[:1])
    before = one.state()
    response = decode_response(handle(encode_request(one.request(fragments=ids))))
    assert response.failure is not None
    assert (response.failure.type, response.failure.retry) == ("FragmentsMissing", False)
    assert "of 3 fragments not all are in" in response.failure.message
    same(one.state(), before)
    twice = one.request(fragments=ids[8:16] * 2)
    with pytest.raises(ContractError, match="expected each fragment once"):
        function.learn(twice, one.context(twice))
    response = decode_response(handle(encode_request(one.request(fragments=ids[8:]))))
    assert response.failure is None


def test_a_deadline_that_passes_in_the_middle_changes_nothing(job, monkeypatch):
    one, undisturbed = job(), job()
    ids = one.act()
    request = one.request(fragments=ids, updates=3)
    context = one.context(request)
    checks: list[int] = []

    def late() -> None:
        checks.append(1)
        if len(checks) == 3:
            raise DeadlineOver("now")

    monkeypatch.setattr(context, "check_deadline", late)
    before = one.state()
    with pytest.raises(DeadlineOver):
        function.learn(request, context)
    same(one.state(), before)
    # The learner that had made two updates for nothing is not the one that goes on.
    result = function.learn(request, one.context(request))
    other = undisturbed.request(fragments=undisturbed.act(), updates=3)
    assert result == function.learn(other, undisturbed.context(other))


def test_a_sample_that_does_not_come_by_the_deadline_is_given_up(job):
    one = job(IMPACT)
    request = one.request(sample=ENVIRONMENTS, deadline=time.time() + 0.2)
    response = decode_response(handle(encode_request(request)))
    assert response.failure is not None
    assert response.failure.type == "DeadlineOver"
    assert one.state()


def test_what_is_not_finite_is_not_kept(job, client):
    one = job()
    version, network = one.policy()
    fragments = one.collector.collect(network, version).fragments
    fragments["reward"][0, 3] = np.nan
    ids = client.add(one.names.fragments, fragments, timeout=0).tobytes()
    request = one.request(fragments=ids)
    with pytest.raises(function.Diverged, match="loss is nan: nothing was kept"):
        function.learn(request, one.context(request))
    assert all(np.isfinite(array).all() for array in one.state().values())
    one.round()


def test_weights_that_are_not_finite_are_not_kept_whatever_the_statistics_say(job):
    """Such as those of another library's update, which tells of a loss that is fine."""
    one = job()
    request = one.request(fragments=one.act())

    def update(learner, fragments):
        statistics = function.own_update(learner, fragments)
        with torch.no_grad():
            next(learner.network.parameters()).fill_(float("inf"))
        return statistics

    with pytest.raises(function.Diverged, match="is not finite: nothing was kept"):
        function.learn(request, one.context(request), update)
    assert all(np.isfinite(array).all() for array in one.state().values())
    one.round()


def test_bytes_and_phases_are_counted(job):
    one = job()
    for expected in ("cold", "warm"):
        ids = one.act()
        request = one.request(fragments=ids, request=f"learn-{expected}")
        context = one.context(request)
        one.version = function.learn(request, context)["version"]
        assert context.phases.keys() == {"fetch_state", "fetch_fragments", "learn", "publish"}
        fragment = 3 * sum(
            np.prod(c.shape) * np.dtype(c.dtype).itemsize
            for c in one.client.table(one.names.fragments).signature.values()
        )
        state = sum(array.nbytes for array in one.client.fetch_weights(one.names.learner)[1].values())
        policy = sum(array.nbytes for array in one.client.fetch_weights(one.names.policy)[1].values())
        assert context.bytes_out == state + policy
        # A warm one has the state already; the first one has no optimiser's yet.
        assert context.bytes_in == fragment if expected == "warm" else fragment < context.bytes_in < fragment + state


# ---- what a warm function keeps --------------------------------------------------------------------------------------


def test_a_job_begun_anew_under_its_old_name_is_not_gone_on_with_from_a_warm_learner():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with rs.Server(port=port) as server, rs.Client(server.url) as client:
        old = Job(client, "job", PPO)
        old.round()
        warm = dict(function._warm)
    # The same address, name, settings and version, but it has seen other fragments.
    with rs.Server(port=port) as server, rs.Client(server.url) as client:
        new = Job(client, "job", PPO)
        new.collector.collect(*reversed(new.policy()))
        new.round()
        _, arrays = published_state.fetch_state(client, new.names)
        function._warm.update(warm)
        request = new.request(fragments=new.act())
        function.learn(request, new.context(request))
        expected = published_state.restored_learner(PPO, arrays, published_state.read_note(arrays))
        expected.update(client.get(new.names.fragments, np.frombuffer(request.fragments, "<u8")).data)
        same(client.fetch_weights(new.names.policy)[1], function.module_arrays(expected.network))
    for each in (old, new):
        each.collector.close()


def test_other_settings_are_not_learned_with_by_a_warm_learner(job):
    one, other = job(), job()
    one.round(), other.round(forgetful)
    for each, run in ((one, handle), (other, forgetful)):
        each.settings = dataclasses.replace(PPO, learning_rate=1e-2)
        each.round(run)
    same(one.state(), other.state())


def test_a_warm_function_keeps_the_learners_of_a_few_jobs_only(job):
    for _ in range(function.WARM_LEARNERS + 2):
        job().round()
    assert len(function._warm) == function.WARM_LEARNERS


def test_the_number_of_threads_is_the_requests_or_the_environments_or_one(job, monkeypatch):
    seen = []
    one = job()
    really = torch.set_num_threads
    monkeypatch.setattr(torch, "set_num_threads", lambda count: seen.append(count) or really(count))
    before = torch.get_num_threads()
    for given, threads in (("", 0), ("2", 0), ("2", 1), ("nonsense", 0)):
        monkeypatch.setenv("OMP_NUM_THREADS", given)
        with function.threads(threads):
            pass
    assert seen[::2] == [1, 2, 1, 1]
    assert torch.get_num_threads() == before
    one.round()


# ---- the first state, and checkpoints --------------------------------------------------------------------------------


def test_a_job_is_begun_once(job, client):
    one = job()
    version, network = one.policy()
    assert version == 0
    fresh = make_learner(PPO, one.spec)
    same(function.module_arrays(network), function.module_arrays(fresh.network))
    with pytest.raises(StateError, match=r"expected no job .* give this one another name"):
        initialise(PPO, one.spec, client, one.names)


def test_a_learner_without_a_first_state_says_so(client):
    request = LearnerRequest("l", client.url, "nobody", dataclasses.asdict(PPO), "ppo", 1, 0, fragments=b"\0" * 8)
    with pytest.raises(StateError, match=r"job 'nobody' has no learner's state on .*: publish the first"):
        function.learn(request, FunctionContext(request, client))


def test_a_state_of_another_algorithm_or_network_is_refused(job):
    one = job()
    ids = one.act()
    for settings, message in (
        (dataclasses.replace(PPO, hidden=8), "weights of another network"),
        (dataclasses.replace(IMPACT, env="Pendulum-v1"), "expected the state of a learner of impact, got one of ppo"),
    ):
        request = one.request(fragments=ids, settings=dataclasses.asdict(settings), algorithm=algorithm_of(settings))
        with pytest.raises(StateError, match=message):
            function.learn(request, one.context(request))
    one.round()


@pytest.mark.parametrize("settings", [PPO, IMPACT, IMPALA], ids=["ppo", "impact", "impala"])
def test_a_job_goes_on_from_a_checkpoint_as_it_would_have(job, client, settings, tmp_path):
    one = job(settings)
    one.round()
    path = save_checkpoint(settings, client, one.names, tmp_path, {"round": 1})
    assert path.name == f"step_{one.version}"
    learner = make_learner(settings, one.spec)
    assert read_policy_checkpoint(path, learner)["round"] == 1
    names = Names(f"{one.names.job}-resumed")
    assert initialise(settings, one.spec, client, names, path) == one.version
    resumed = Job.__new__(Job)
    resumed.__dict__.update(one.__dict__, names=names)
    client.create_table(dataclasses.replace(client.table(one.names.fragments), name=names.fragments))
    same(resumed.state(), one.state())
    # Both learn from the same fragments.
    version, network = one.policy()
    fragments = one.collector.collect(network, version).fragments
    for each in (one, resumed):
        ids = client.add(each.names.fragments, fragments, timeout=0).tobytes()
        request = each.request(fragments=ids)
        each.version = function.learn(request, each.context(request))["version"]
    same(resumed.state(), one.state())
