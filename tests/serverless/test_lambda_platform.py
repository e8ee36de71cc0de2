"""The platform of AWS Lambda: the real botocore and the real `awslambdaric` runtime, with an emulator between them."""

from __future__ import annotations

import base64
import os
import signal
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

pytest.importorskip("aiohttp")
pytest.importorskip("botocore")
pytest.importorskip("awslambdaric")

from lambda_emulator import HANDLER, Function, LambdaEmulator, Refused

from replay_server.rl.function_contract import LearnerRequest, Response, WarmRequest, decode_response, encode_request
from replay_server.serverless import entry_lambda
from replay_server.serverless.backends.aws_lambda import LambdaPlatform
from replay_server.serverless.backends.backend import (
    Backend,
    FunctionError,
    FunctionFailed,
    FunctionLost,
    FunctionTimeout,
    make_platform,
)

FOLDER = Path(__file__).parent
LIMIT_S = 120.0


@pytest.fixture(autouse=True)
def credentials(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What botocore finds by itself; nothing of this machine's."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "emulated")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "emulated")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")


@pytest.fixture(scope="module")
def emulator() -> Iterator[LambdaEmulator]:
    with LambdaEmulator() as emulator:
        yield emulator


@pytest.fixture
def make(emulator: LambdaEmulator) -> Iterator[Callable[..., LambdaPlatform]]:
    """Platforms of the emulated functions, closed after the test."""
    made = []

    def platform(function, **options) -> LambdaPlatform:
        made.append(
            make_platform("lambda", function=function, region="eu-central-1", endpoint_url=emulator.url, **options)
        )
        return made[-1]

    yield platform
    for each in made:
        each.close()


def misbehaving(emulator: LambdaEmulator, name: str, **options) -> Function:
    environment = {"PYTHONPATH": str(FOLDER)}
    return emulator.deploy(name, handler=f"misbehaving_functions.{name}", environment=environment, **options)


def warm(**options) -> bytes:
    return encode_request(WarmRequest(**{"work": (), **options}))


def call(platform: LambdaPlatform, payload: bytes = warm()) -> Response:
    return decode_response(platform.invoke(payload, LIMIT_S))


def test_a_warm_instance_answers_again_and_says_that_it_did(emulator, make):
    function = emulator.deploy("again", memory_mb=1792)
    platform = make("again")
    first, second = call(platform), call(platform)
    assert (first.result, first.request) == ({}, "warm")
    assert (first.measured.cold, second.measured.cold) == (True, False)
    assert first.measured.instance == second.measured.instance
    assert first.measured.startup_s > 0 == second.measured.startup_s
    assert [each.cold for each in function.reports] == [True, False]
    assert platform.memory_mb == 1792


def test_passwords_of_netrc_are_not_sent(emulator, make, monkeypatch, tmp_path):
    (tmp_path / "netrc").write_text("default login somebody password secret\n")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    emulator.deploy("signed")
    assert call(make("signed")).request == "warm"


def test_invocations_that_the_environment_sends_through_a_proxy_go_there(emulator, make, monkeypatch):
    emulator.deploy("behind-a-proxy")
    platform = make("behind-a-proxy")
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")  # nobody listens there
    with pytest.raises(FunctionLost):
        call(platform)
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    assert call(platform).request == "warm"


def test_invocations_one_after_the_other_use_one_connection(emulator, make):
    emulator.deploy("kept")
    platform = make("kept")
    before = emulator.connections
    for _ in range(4):
        call(platform)
    assert emulator.connections == before + 1


def test_a_backend_waits_for_functions_without_a_thread_for_each(emulator, make):
    emulator.deploy("many", concurrency=8)
    with Backend(make("many"), concurrency=6) as backend:
        futures = [backend.submit(warm(request=f"w{number}", hold_s=0.3)) for number in range(6)]
        ours = [thread for thread in threading.enumerate() if thread.name.startswith("lambda")]
        assert len(ours) == 1
        assert all(decode_response(future.result(LIMIT_S)).result == {} for future in futures)


def test_what_is_no_request_comes_back_as_a_failure_with_its_traceback(emulator, make):
    emulator.deploy("garbage")
    for payload in (b"\x00\xff garbage", b""):
        failure = call(make("garbage"), payload).failure
        assert failure.type == "ContractError"
        assert "Traceback" in failure.traceback
        assert not failure.retry


def test_an_event_of_another_shape_is_answered_as_a_bad_request():
    class Context:
        def get_remaining_time_in_millis(self) -> int:
            return 60_000

    for event in ({"payload": "not base64!"}, {"other": 1}, [1, 2], None):
        answer = entry_lambda.decode_event(entry_lambda.lambda_handler(event, Context()))
        assert decode_response(answer).failure.type == "ContractError"


def test_invocations_at_the_same_time_have_an_instance_each(emulator, make):
    function = emulator.deploy("parallel")
    platform = make("parallel")
    with ThreadPoolExecutor(3) as pool:
        found = list(pool.map(lambda i: call(platform, warm(hold_s=0.5)), range(3)))
    assert len({each.measured.instance for each in found}) == 3
    assert len(function.pids()) == 3


def test_prewarming_makes_as_many_instances_as_are_asked_for_and_a_limit_does_not_stop_it(emulator, make):
    function = emulator.deploy("prewarmed", concurrency=3)
    platform = make("prewarmed")
    platform.prewarm(2, work=())
    assert len(function.pids()) == 2
    assert not call(platform).measured.cold
    platform.prewarm(4, work=())
    assert len(function.pids()) == 3


def test_each_kind_goes_to_its_own_function(emulator, make):
    actor, learner = emulator.deploy("kind-actor"), emulator.deploy("kind-learner", memory_mb=3008)
    platform = make({"actor": "kind-actor:live", "learner": learner.arn})
    platform.prewarm(1, work=())
    call(platform, b"no request")
    assert (len(actor.reports), len(learner.reports)) == (2, 0)
    platform.invoke(warm(work=("learner",)), LIMIT_S)
    assert (len(actor.reports), len(learner.reports)) == (2, 1)
    assert [platform.memory_mb_of(kind) for kind in ("actor", "evaluation", "learner")] == [1024, 1024, 3008]
    platform.invoke(warm(work=("gradient",)), LIMIT_S)  # a learner's, where it has no function of its own
    platform.invoke(warm(work=("parameter",)), LIMIT_S)
    assert (len(actor.reports), len(learner.reports)) == (2, 3)
    assert [platform.memory_mb_of(kind) for kind in ("gradient", "parameter")] == [3008, 3008]
    with pytest.raises(ValueError, match='expected a function for the kind "actor"'):
        make({"learner": "kind-learner"})


def test_a_function_that_hangs_is_ended_by_its_timeout_and_the_next_start_is_cold(emulator, make):
    function = misbehaving(emulator, "hang", timeout_s=0.5)
    platform = make("hang")
    for _ in range(2):
        with pytest.raises(FunctionTimeout, match=r"Task timed out after 0\.50 seconds"):
            platform.invoke(warm(), LIMIT_S)
    assert [each.cold for each in function.reports] == [True, True]
    assert function.pids() == []


def test_the_time_limit_of_an_attempt_holds_before_that_of_the_function(emulator, make):
    misbehaving(emulator, "hang", timeout_s=100)
    with pytest.raises(FunctionTimeout, match="gave no answer in time"):
        make("hang").invoke(warm(), 0.2)


def test_the_deadline_of_a_request_is_no_later_than_the_functions_own(emulator, make):
    function = emulator.deploy("bounded", timeout_s=1)
    response = call(make("bounded"), warm(hold_s=60, deadline=time.time() + 3600))
    assert response.result == {}
    assert function.reports[0].duration_ms < 1000


def test_a_function_that_ends_its_process_is_lost(emulator, make):
    misbehaving(emulator, "leave")
    with pytest.raises(FunctionLost, match=r"Runtime\.ExitError.*exit status 3"):
        make("leave").invoke(warm(), LIMIT_S)


def test_a_killed_instance_is_lost_and_another_one_answers(emulator, make, eventually):
    function = emulator.deploy("killed")
    platform = make("killed")
    call(platform)
    with ThreadPoolExecutor(1) as pool:
        lost = pool.submit(platform.invoke, warm(hold_s=20), LIMIT_S)
        eventually(lambda: function.pids(busy=True), "it is called")
        os.kill(function.pids()[0], signal.SIGKILL)
        with pytest.raises(FunctionLost, match="signal: kill"):
            lost.result(LIMIT_S)
    assert call(platform).measured.cold


def test_an_error_that_the_handler_did_not_catch_is_told(emulator, make):
    misbehaving(emulator, "fail")
    with pytest.raises(FunctionLost, match="LookupError: nothing here"):
        make("fail").invoke(warm(), LIMIT_S)


@pytest.mark.parametrize("handler", ["replay_server.nowhere.handler", "replay_server.serverless.entry_lambda.nothing"])
def test_a_function_that_cannot_be_started_is_no_case_for_another_attempt(emulator, make, handler):
    emulator.deploy("unstartable", handler=handler)
    with pytest.raises(FunctionError, match=r"Runtime\.(ImportModuleError|HandlerNotFound)") as caught:
        make("unstartable").invoke(warm(), LIMIT_S)
    assert type(caught.value) is FunctionError


def test_throttled_invocations_wait_their_turn_within_their_time_limit(emulator, make):
    function = emulator.deploy("throttled", concurrency=1)
    platform = make("throttled")
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda i: call(platform, warm(hold_s=0.1)), range(4)))
    assert {each.measured.instance for each in found} == {found[0].measured.instance}
    assert sum(each.cold for each in function.reports) == 1


def test_what_says_later_is_asked_again_whatever_its_status(emulator, make, monkeypatch):
    emulator.deploy("later")
    platform, invoke = make("later"), emulator._invoke
    refusals = [Refused(502, "EC2ThrottledException", "later"), Refused(409, "ResourceConflictException", "later")]

    def refuse_first(*arguments):
        if refusals:
            raise refusals.pop()
        return invoke(*arguments)

    monkeypatch.setattr(emulator, "_invoke", refuse_first)
    assert call(platform).measured.invocation == 1
    assert not refusals


def test_an_invocation_throttled_for_all_its_time_is_lost(emulator, make, eventually):
    function = emulator.deploy("busy", concurrency=1)
    platform = make("busy")
    call(platform)
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(platform.invoke, warm(hold_s=1.5), LIMIT_S)
        eventually(lambda: function.pids(busy=True), "it is called")
        with pytest.raises(FunctionLost, match=r"TooManyRequestsException.*for 0\.8 s: raise"):
            platform.invoke(warm(), 0.8)
        first.result(LIMIT_S)


def test_payloads_over_the_limit_are_refused_before_they_are_sent_and_before_they_are_answered(
    emulator, make, monkeypatch
):
    function = emulator.deploy("large")
    with pytest.raises(FunctionError, match="more than the 6291456 that Lambda takes"):
        make("large").invoke(bytes(4_718_593), LIMIT_S)
    assert function.reports == []
    assert call(make("large"), bytes(4_700_000)).failure.type == "ContractError"
    misbehaving(emulator, "answer_too_much")
    with pytest.raises(FunctionError, match=r"Function\.ResponseSizeTooLarge"):
        make("answer_too_much").invoke(warm(), LIMIT_S)
    monkeypatch.setattr(entry_lambda, "PAYLOAD_LIMIT_BYTES", 100)

    class Context:
        def get_remaining_time_in_millis(self) -> int:
            return 60_000

    answer = entry_lambda.lambda_handler({"payload": base64.b64encode(warm()).decode()}, Context())
    failure = decode_response(entry_lambda.decode_event(answer)).failure
    assert failure.type == "TooLarge"
    assert "more than the 100 that Lambda returns" in failure.message


def test_the_emulator_refuses_what_is_larger_than_lambda_takes(emulator, make, monkeypatch):
    emulator.deploy("refusing")
    platform = make("refusing")
    monkeypatch.setattr("replay_server.serverless.backends.aws_lambda.PAYLOAD_LIMIT_BYTES", 1 << 30)
    with pytest.raises(FunctionError, match="must be smaller than 6291456"):
        platform.invoke(bytes(4_718_593), LIMIT_S)


def test_what_another_function_answers_is_told_apart(emulator, make):
    misbehaving(emulator, "answer_something")
    with pytest.raises(FunctionError, match=r"got hello: is it replay_server\.serverless\.entry_lambda"):
        make("answer_something").invoke(warm(), LIMIT_S)


def test_a_function_that_is_not_there_and_one_without_credentials_are_told(emulator, make, monkeypatch):
    with pytest.raises(FunctionError, match=r"ResourceNotFoundException.*Function not found: absent"):
        make("absent", memory_mb=1024, function_timeout_s=60).invoke(warm(), LIMIT_S)
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    with pytest.raises(FunctionError, match="Unable to locate credentials"):
        make("absent", memory_mb=1024, function_timeout_s=60).invoke(warm(), LIMIT_S)


def test_memory_and_timeout_must_be_given_where_they_may_not_be_read(emulator, make):
    emulator.deploy("private", readable=False)
    with pytest.raises(FunctionError, match="give memory_mb and function_timeout_s, or the right to read it"):
        make("private")
    platform = make("private", memory_mb=2048, function_timeout_s=60)
    assert platform.memory_mb == 2048
    assert call(platform).result == {}


def test_an_endpoint_that_does_not_answer_is_a_lost_invocation(make):
    platform = LambdaPlatform(
        "f", region="eu-central-1", endpoint_url="http://127.0.0.1:9", memory_mb=1024, function_timeout_s=60
    )
    with pytest.raises(FunctionLost, match=r"127\.0\.0\.1:9"):
        platform.invoke(warm(), LIMIT_S)
    platform.close()


def test_closing_gives_up_what_runs_and_what_waits_for_its_turn(emulator, make, eventually):
    function = emulator.deploy("closing", concurrency=1)
    platform = make("closing")
    call(platform)
    ended: list[Future[bytes]] = []
    with ThreadPoolExecutor(2) as pool:
        ended.append(pool.submit(platform.invoke, warm(hold_s=3), LIMIT_S))
        eventually(lambda: function.pids(busy=True), "it is called")
        ended.append(pool.submit(platform.invoke, warm(), LIMIT_S))
        time.sleep(0.2)
        platform.close()
        for each in ended:
            with pytest.raises(FunctionLost, match="closed"):
                each.result(LIMIT_S)
    with pytest.raises(FunctionLost, match="closed"):
        platform.invoke(warm(), LIMIT_S)


def test_the_emulator_freezes_idle_instances_and_ends_all_when_it_is_closed(eventually):
    with LambdaEmulator() as emulator:
        function = emulator.deploy("frozen")
        platform = LambdaPlatform("frozen", region="eu-central-1", endpoint_url=emulator.url)
        call(platform)
        (pid,) = function.pids()

        def state() -> str:
            return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]

        eventually(lambda: state() == "T", "it is stopped")
        assert call(platform).measured.invocation == 2
        platform.close()
        threads = threading.active_count()
    assert not Path(f"/proc/{pid}").exists()
    eventually(lambda: threading.active_count() <= threads, "its threads have ended")


def test_the_emulator_takes_no_request_without_a_signature(emulator):
    emulator.deploy("unsigned")
    request = urllib.request.Request(f"{emulator.url}/2015-03-31/functions/unsigned/invocations", b"{}", method="POST")
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(request, timeout=60)
    caught.value.close()
    assert caught.value.code == 403


def test_the_function_sees_what_lambda_gives_it_and_nothing_of_the_shell(emulator, make, monkeypatch):
    monkeypatch.setenv("ONLY_IN_THIS_SHELL", "1")
    function = emulator.deploy("seen", memory_mb=1536, environment={"OF_THE_FUNCTION": "2"})
    call(make("seen"))
    (pid,) = function.pids()
    pairs = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    environment = dict(pair.decode().split("=", 1) for pair in pairs if pair)
    assert environment["AWS_LAMBDA_FUNCTION_MEMORY_SIZE"] == "1536"
    assert environment["_HANDLER"] == HANDLER
    assert environment["OF_THE_FUNCTION"] == "2"
    assert "ONLY_IN_THIS_SHELL" not in environment


def test_prewarming_tells_that_an_actor_cannot_be_imported(emulator, make, tmp_path):
    (tmp_path / "gymnasium.py").write_text("raise ImportError('left out of the image')")
    emulator.deploy("unwarmable", environment={"PYTHONPATH": str(tmp_path)})
    with pytest.raises(FunctionFailed, match=r"an instance cannot be made warm: .*left out of the image"):
        make("unwarmable").prewarm(1)


def test_what_is_named_is_imported_at_the_start_and_no_invocation_of_a_provisioned_instance_is_cold(emulator, make):
    imports = {entry_lambda.IMPORTS: "actor evaluation"}
    emulator.deploy("eager", environment=imports)
    cold = call(make("eager"), warm(work=("actor",))).measured
    assert cold.cold
    assert cold.import_s < cold.startup_s, "what was imported at the start takes no second time"
    emulator.deploy("provisioned", environment={**imports, entry_lambda.INITIALIZATION: "provisioned-concurrency"})
    first = call(make("provisioned"), warm(work=("actor",))).measured
    assert (first.cold, first.startup_s, first.import_s) == (False, 0.0, 0.0)


def test_the_backend_records_each_kinds_memory_and_tries_nothing_twice_that_stays_wrong(emulator, make):
    learner = emulator.deploy("record-learner", memory_mb=3008)
    emulator.deploy("record-actor", memory_mb=1024)
    seen = []
    platform = make({"actor": "record-actor", "learner": "record-learner"})
    with Backend(platform, concurrency=2, retries=2, on_invocation=seen.append) as backend:
        names = {"server_url": "redis://127.0.0.1:9", "job": "j", "settings": {}, "algorithm": "ppo", "round": 1}
        request = LearnerRequest("learn-1", version=0, sample=1, deadline=time.time() - 1, **names)
        assert decode_response(backend.submit(warm()).result(LIMIT_S)).result == {}
        with pytest.raises(FunctionTimeout):
            backend.submit(encode_request(request)).result(LIMIT_S)
        request = LearnerRequest("learn-2", version=0, sample=1, **names)
        with pytest.raises(FunctionFailed, match="learn-2"):
            backend.submit(encode_request(request), retries=0).result(LIMIT_S)
        emulator.deploy("record-learner", handler="replay_server.nowhere.handler")
        with pytest.raises(FunctionError, match="ImportModuleError"):
            backend.submit(encode_request(request)).result(LIMIT_S)
    assert [(each.kind, each.memory_mb, each.outcome, each.cold) for each in seen] == [
        ("warm", 1024, "ok", True),
        ("learner", 3008, "failed", True),
        ("learner", 3008, "lost", False),
    ]
    assert [each.cold for each in learner.reports] == [True]
