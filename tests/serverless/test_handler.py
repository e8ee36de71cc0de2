"""The handler of functions: idempotent, never raising, and recovering by itself; on a real server."""

from __future__ import annotations

import dataclasses
import itertools
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("torch")

import replay_server as rs
from replay_server.learner.ppo import PpoSettings
from replay_server.learner.published_state import initialise
from replay_server.rl.fragments import fragment_table
from replay_server.rl.function_context import FunctionContext
from replay_server.rl.function_contract import (
    ActorRequest,
    LearnerRequest,
    Names,
    Request,
    Response,
    WarmRequest,
    decode_response,
    encode_request,
)
from replay_server.rl.policy_spec import policy_spec
from replay_server.serverless import function
from replay_server.serverless.function import handle

SETTINGS = PpoSettings(env="CartPole-v1", steps=16, hidden=8, iterations=1, seed=5)
ENVIRONMENTS = 2
Work = Callable[[Request, FunctionContext], Mapping[str, Any]]


@pytest.fixture
def names(request: pytest.FixtureRequest) -> Names:
    return Names(request.node.name)


@pytest.fixture
def job(client: rs.Client, names: Names) -> Names:
    """A job that actors can act for."""
    spec = policy_spec(SETTINGS)
    client.create_table(fragment_table(names.fragments, SETTINGS, spec, 10 * ENVIRONMENTS))
    initialise(SETTINGS, spec, client, names)
    return names


@pytest.fixture
def work(monkeypatch: pytest.MonkeyPatch) -> Callable[[Work], None]:
    """Has the handler do this in place of an actor's work: what is tested is what is around the work."""

    def replace(does: Work) -> None:
        monkeypatch.setattr(function, "_work", lambda kind: does)

    return replace


def actor(url: str, names: Names, **changes: Any) -> ActorRequest:
    values = dataclasses.asdict(SETTINGS)
    request = ActorRequest("act-1", url, names.job, values, "ppo", round=1, version=0, environments=ENVIRONMENTS)
    return dataclasses.replace(request, **changes)


def ask(request: Request) -> Response:
    return decode_response(handle(encode_request(request)))


def failed(response: Response, kind: str, retry: bool = False) -> str:
    """The failure's message, after a look at the rest of it."""
    assert response.failure is not None, response.result
    assert (response.failure.type, response.failure.retry) == (kind, retry), response.failure.traceback
    assert "Traceback (most recent call last)" in response.failure.traceback
    return response.failure.message


def done(response: Response) -> Mapping[str, Any]:
    assert response.failure is None, response.failure.traceback
    assert response.result is not None
    return response.result


# ---- errors as data --------------------------------------------------------------------------------------------------


@settings(deadline=None)
@given(st.binary(max_size=40))
def test_any_bytes_are_answered_with_a_failure(payload: bytes):
    response = decode_response(handle(payload))
    assert failed(response, "ContractError").startswith("expected a request")
    assert response.request == ""
    assert response.measured.bytes_in == len(payload)


@pytest.mark.parametrize("payload", [None, "text", 7])
def test_what_is_no_bytes_is_answered_with_a_failure(payload: Any):
    assert "as bytes, got" in failed(decode_response(handle(payload)), "ContractError")


class Silent(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (ValueError("wrong"), "wrong"),
        (SystemExit(3), "3"),
        (MemoryError(), ""),
        (Silent(), "(RuntimeError where the error was to be told)"),
        (OSError("file\udcff"), "file\\udcff"),
        (RecursionError("deep" * 20_000), f"{'deep' * 500} … {'deep' * 500}"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_the_work_raises_comes_back_with_its_traceback(server, names, work, error, message):
    taken_back = []

    def does(request, context):
        context.undo(lambda: taken_back.append("first"))
        context.undo(lambda: 1 / 0)
        context.undo(lambda: taken_back.append("last"))
        raise error

    work(does)
    assert failed(ask(actor(server.url, names)), type(error).__name__) == message
    assert taken_back == ["last", "first"]


@pytest.mark.parametrize("error", [rs.Timeout("queue full"), rs.ConnectionLost("gone"), ConnectionResetError("reset")])
def test_what_may_go_better_another_time_says_so(server, names, work, error):
    def does(request, context):
        raise error

    work(does)
    failed(ask(actor(server.url, names)), type(error).__name__, retry=True)


def test_an_interrupt_ends_the_caller_after_what_was_written_is_taken_back(server, names, work):
    taken_back = []

    def does(request, context):
        context.undo(lambda: taken_back.append(request.request))
        raise KeyboardInterrupt

    work(does)
    with pytest.raises(KeyboardInterrupt):
        ask(actor(server.url, names))
    assert taken_back == ["act-1"]
    work(lambda request, context: {})
    assert done(ask(actor(server.url, names))) == {}


def test_a_result_that_cannot_be_sent_is_a_failure_and_taken_back(server, names, work):
    taken_back = []

    def does(request, context):
        context.undo(lambda: taken_back.append(request.request))
        return {"weights": np.zeros(3)}

    work(does)
    assert "response.result.weights: expected plain data" in failed(ask(actor(server.url, names)), "ContractError")
    assert taken_back == ["act-1"]


def test_an_error_at_import_comes_back_as_data(server, names):
    """In a process that has no torch."""
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from replay_server.serverless.function import handle\n"
        "sys.stdout.buffer.write(handle(sys.stdin.buffer.read()))"
    )
    payload = encode_request(actor(server.url, names))
    answer = subprocess.run([sys.executable, "-c", code], input=payload, stdout=-1, check=True, timeout=60).stdout
    assert "torch" in failed(decode_response(answer), "ModuleNotFoundError")


def test_settings_that_an_algorithm_does_not_have_are_named(server, job):
    values = dataclasses.asdict(SETTINGS)
    request = LearnerRequest("l", server.url, job.job, values | {"clipp": 0.1}, "ppo", 1, 0, fragments=b"\0" * 8)
    assert "settings of ppo has no 'clipp'" in failed(ask(request), "ContractError")
    request = dataclasses.replace(request, settings=values | {"clip": "0.1"})
    assert "settings of ppo.clip: expected float, got '0.1'" in failed(ask(request), "ContractError")
    del values["clip"]
    request = dataclasses.replace(request, settings=values)
    assert "lack clip" in failed(ask(request), "ContractError")
    request = dataclasses.replace(request, algorithm="apex")
    assert "unknown algorithm 'apex': expected one of ppo, impact, impala" in failed(ask(request), "ContractError")


# ---- idempotency -----------------------------------------------------------------------------------------------------


def test_a_request_that_comes_again_is_answered_as_before_without_being_done(server, client, job):
    request = actor(server.url, job)
    first, second = ask(request), ask(dataclasses.replace(request, deadline=1.0))
    assert done(second) == done(first)
    assert (first.replayed, second.replayed) == (False, True)
    assert second.measured.invocation == first.measured.invocation + 1
    assert client.info(job.fragments)["added"] == ENVIRONMENTS


def test_what_was_done_for_another_run_of_the_job_is_no_answer(server, client, job):
    # A function of a run that was killed may still be at work somewhere when the job has been begun anew.
    before, after = (ask(actor(server.url, job, run=run)) for run in ("killed", "resumed"))
    assert not after.replayed
    assert done(after)["fragments"] != done(before)["fragments"]
    assert ask(actor(server.url, job, run="resumed")).replayed


def test_a_failed_request_is_done_when_it_comes_again(server, client, job):
    request = actor(server.url, job)
    failed(ask(dataclasses.replace(request, deadline=1.0)), "DeadlineOver")
    assert done(ask(request))["steps"] == ENVIRONMENTS * SETTINGS.steps


def test_of_the_same_request_in_two_processes_at_once_one_counts(server, client, job):
    code = (
        "import sys, struct\n"
        "from replay_server.serverless.function import handle\n"
        "from replay_server.rl.function_contract import WarmRequest, encode_request\n"
        "handle(encode_request(WarmRequest()))\n"
        "sys.stdout.buffer.write(b'.'); sys.stdout.buffer.flush()\n"
        "sys.stdout.buffer.write(handle(sys.stdin.buffer.read()))"
    )
    payload = encode_request(actor(server.url, job))
    processes = [subprocess.Popen([sys.executable, "-c", code], stdin=-1, stdout=-1) for _ in range(2)]
    try:
        for process in processes:
            assert process.stdout is not None
            assert process.stdout.read(1) == b"."
        for process in processes:
            assert process.stdin is not None
            process.stdin.write(payload)
            process.stdin.close()
        responses = [decode_response(process.stdout.read()) for process in processes if process.stdout]
    finally:
        for process in processes:
            process.kill()
            process.wait()
            if process.stdout:
                process.stdout.close()
    results = [done(response) for response in responses]
    assert results[0] == results[1]
    assert client.info(job.fragments)["size"] == ENVIRONMENTS
    ids = np.frombuffer(results[0]["fragments"], "<u8")
    assert len(client.get(job.fragments, ids).data["reward"]) == ENVIRONMENTS
    assert client.redis.exists(results[0]["state"])
    assert len(client.redis.keys(f"{job.job}:state:*")) == 1


def test_the_slower_of_two_attempts_takes_back_what_it_wrote(server, client, names, work):
    """Surely at the same time: the second is done while the first is at work."""

    def slow(request, context):
        client.redis.set("written-by-slow", 1)
        context.undo(lambda: client.redis.delete("written-by-slow"))
        kept = function.encode_response(Response(request.request, function.Measured(), result={"by": "fast"}))
        assert client.redis.set(request.names.done(request.request), kept, nx=True)
        return {"by": "slow"}

    work(slow)
    response = ask(actor(server.url, names))
    assert (done(response), response.replayed) == ({"by": "fast"}, True)
    assert not client.redis.exists("written-by-slow")


def test_an_attempt_whose_own_response_is_there_already_keeps_what_it_wrote(server, client, names, work, monkeypatch):
    """The client sends a command again whose answer was lost: the response is then there, and it is this attempt's."""
    work(lambda request, context: context.undo(lambda: taken_back.append(1)) or {"by": "me"})
    taken_back = []
    connected = function._instance.client(server.url)
    really = connected.command

    def twice(*arguments: Any, **options: Any) -> Any:
        if arguments[0] == "SET":
            really(*arguments, **options)
        return really(*arguments, **options)

    monkeypatch.setattr(connected, "command", twice)
    response = ask(actor(server.url, names))
    assert (done(response), response.replayed, taken_back) == ({"by": "me"}, False, [])


# ---- deadlines -------------------------------------------------------------------------------------------------------


BEGUN_WITHIN_S = 1.5
"""In which a request is begun, on a loaded machine too."""


def sleep_beyond(moment_s: float) -> None:
    while time.time() <= moment_s:
        time.sleep(0.01)


def test_a_request_whose_deadline_is_over_is_not_begun(server, client, names, work):
    work(lambda request, context: pytest.fail("it was begun"))
    request = actor(server.url, names, deadline=time.time() - 1)
    assert "its deadline has passed" in failed(ask(request), "DeadlineOver")
    assert not client.redis.exists(names.done("act-1"))


def test_work_that_ends_after_its_deadline_is_taken_back(server, client, names, work):
    taken_back = []

    def does(request, context):
        context.undo(lambda: taken_back.append(1))
        sleep_beyond(request.deadline)
        return {}

    work(does)
    failed(ask(actor(server.url, names, deadline=time.time() + BEGUN_WITHIN_S)), "DeadlineOver")
    assert taken_back == [1]
    assert not client.redis.exists(names.done("act-1"))


def test_work_that_was_committed_in_time_is_answered_after_its_deadline(server, names, work):
    taken_back = []

    def does(request, context):
        context.undo(lambda: taken_back.append(1))
        context.commit()
        sleep_beyond(request.deadline)
        return {"is": "done"}

    work(does)
    assert done(ask(actor(server.url, names, deadline=time.time() + BEGUN_WITHIN_S))) == {"is": "done"}
    assert taken_back == []


# ---- what an instance keeps ------------------------------------------------------------------------------------------


def test_a_warm_function_finds_a_server_again_that_was_restarted(names, free_port):
    spec = policy_spec(SETTINGS)
    for sequence in range(2):
        with rs.Server(port=free_port) as server, rs.Client(server.url) as client:
            client.create_table(fragment_table(names.fragments, SETTINGS, spec, 4))
            initialise(SETTINGS, spec, client, names)
            assert done(ask(actor(server.url, names, request=f"act-{sequence}")))["version"] == 0
            assert client.info(names.fragments)["size"] == ENVIRONMENTS


def test_a_server_that_is_away_is_a_failure_worth_another_attempt(names, monkeypatch, free_port):
    monkeypatch.setattr(function, "CONNECT_S", 0.1)
    url = f"redis://127.0.0.1:{free_port}"
    failed(ask(actor(url, names)), "ConnectionLost", retry=True)


def test_a_server_that_dies_under_the_work_leaves_a_failure_worth_another_attempt(names, work, monkeypatch):
    monkeypatch.setattr(function, "CONNECT_S", 0.1)
    with rs.Server() as server:

        def does(request, context):
            os.kill(server.pid, signal.SIGKILL)
            context.undo(lambda: context.client.redis.delete("x"))
            return {}

        work(does)
        failed(ask(actor(server.url, names)), "ConnectionLost", retry=True)


def test_a_warm_function_stays_connected_to_a_few_servers_only(monkeypatch):
    monkeypatch.setattr(function, "_instance", function._Instance())
    clients = [function._instance.client(f"redis://127.0.0.1:{port}") for port in range(1, function.WARM_CLIENTS + 3)]
    assert len(function._instance._clients) == function.WARM_CLIENTS
    with pytest.raises(rs.ConnectionLost, match="is closed"):
        clients[0].tables()
    assert function._instance.client(clients[-1].url) is clients[-1]


def test_a_warm_function_does_not_act_with_the_policy_of_another_run_of_its_job(server, client, job):
    def acted(run: str) -> np.ndarray:
        ids = done(ask(actor(server.url, job, request=f"act-{run}", run=run)))["fragments"]
        return client.get(job.fragments, np.frombuffer(ids, "<u8")).data["behaviour_parameters"][:, 0]

    first = acted("first")
    client.redis.execute_command("WEIGHTS.DEL", job.policy, job.learner)
    initialise(dataclasses.replace(SETTINGS, seed=6), policy_spec(SETTINGS), client, job)
    assert not np.array_equal(acted("second"), first)


# ---- one invocation at a time ----------------------------------------------------------------------------------------


def test_invocations_of_one_instance_run_one_after_the_other_and_are_billed_apart(server, names, work):
    running = []

    def does(request, context):
        running.append(request.request)
        assert len(running) == 1
        if request.request == "busy":
            began = time.process_time()
            while time.process_time() - began < 0.1:
                pass
        time.sleep(0.05)
        running.remove(request.request)
        return {}

    work(does)
    responses: dict[str, Response] = {}

    def call(name: str) -> None:
        responses[name] = ask(actor(server.url, names, request=name))

    threads = [threading.Thread(target=call, args=(name,)) for name in ("busy", "idle-1", "idle-2")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    for response in responses.values():
        done(response)
    spans = sorted((response.measured.started, response.measured.ended) for response in responses.values())
    assert all(ended <= began + 1e-3 for (_, ended), (began, _) in itertools.pairwise(spans))
    assert responses["busy"].measured.cpu_s >= 0.1
    assert max(responses[name].measured.cpu_s for name in ("idle-1", "idle-2")) < 0.1
    assert sorted(response.measured.waited_s > 0.04 for response in responses.values()) == [False, True, True]


def test_a_forked_child_is_another_instance():
    ask(WarmRequest(work=[]))
    before = function._instance.name
    read, write = os.pipe()
    with function._instance.busy:  # as if another thread were at work
        child = os.fork()
        if child == 0:
            response = ask(WarmRequest(work=[]))
            os.write(write, f"{response.measured.instance} {response.measured.invocation}".encode())
            os._exit(0)
    os.close(write)
    assert os.waitpid(child, 0)[1] == 0
    name, invocation = os.read(read, 1000).decode().split()
    os.close(read)
    assert name != before
    assert invocation == "1"


def test_warming_imports_what_is_asked_for_and_nothing_else():
    code = (
        "import sys\n"
        "from replay_server.serverless.function import handle\n"
        "from replay_server.rl.function_contract import WarmRequest, encode_request, decode_response\n"
        "assert 'torch' not in sys.modules\n"
        "assert decode_response(handle(encode_request(WarmRequest(work=['learner'])))).result == {}\n"
        "assert 'replay_server.learner.function' in sys.modules\n"
        "wrong = {'gymnasium', 'replay_server.actors.function', 'safetensors'} & sys.modules.keys()\n"
        "assert not wrong, wrong"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stderr
