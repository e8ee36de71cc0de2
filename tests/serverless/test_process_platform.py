"""Functions as processes of this host: started when needed, used again, ended when they must be, sharing nothing."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import pytest

from replay_server.rl.function_contract import ActorRequest, LearnerRequest, decode_response, encode_request
from replay_server.serverless.backends.backend import Backend, FunctionLost, FunctionTimeout, Invocation, make_platform
from replay_server.serverless.backends.process import ProcessPlatform

HERE = Path(__file__).resolve().parent
LIMIT_S = 120.0


def small_platform(**options: Any) -> ProcessPlatform:
    """A platform whose workers run tests/serverless/small_function.py."""
    environment = {"PYTHONPATH": str(HERE), **options.pop("environment", {})}
    return ProcessPlatform(handler="small_function:handle", environment=environment, **options)


@pytest.fixture
def platform() -> Iterator[ProcessPlatform]:
    with small_platform() as made:
        yield made


def request(**settings: Any) -> bytes:
    return encode_request(ActorRequest("r", "redis://127.0.0.1:1", "job", settings, "ppo", round=1, version=1))


def ask(platform: ProcessPlatform, timeout_s: float = LIMIT_S, **settings: Any) -> dict[str, Any]:
    result = decode_response(platform.invoke(request(**settings), timeout_s)).result
    assert result is not None
    return dict(result)


def eventually(condition: Callable[[], bool], limit_s: float = LIMIT_S) -> bool:
    give_up = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > give_up:
            return False
        time.sleep(0.01)
    return True


def alive(pid: int) -> bool:
    """Whether a process runs; one that nobody has waited for yet does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_a_worker_is_started_when_needed_and_used_again(platform: ProcessPlatform) -> None:
    assert platform.workers() == []
    first, second = ask(platform), ask(platform)
    assert (first["calls"], second["calls"]) == (1, 2)
    assert first["pid"] == second["pid"] != os.getpid()
    assert platform.workers() == [first["pid"]]


def test_invocations_at_the_same_time_have_a_process_each(platform: ProcessPlatform) -> None:
    with Backend(platform, concurrency=3) as functions:
        futures = [functions.submit(request(sleep_s=0.5)) for _ in range(3)]
        wait(futures, timeout=LIMIT_S)
        assert len({(decode_response(future.result()).result or {})["pid"] for future in futures}) == 3


def test_a_kind_of_request_goes_where_it_has_been_before(platform: ProcessPlatform) -> None:
    learner = LearnerRequest("r", "redis://127.0.0.1:1", "job", {}, "ppo", round=1, version=1, fragments=bytes(8))

    def learn() -> int:
        result = decode_response(platform.invoke(encode_request(learner), LIMIT_S)).result
        assert result is not None
        return result["pid"]

    def act_at_once() -> set[int]:
        with ThreadPoolExecutor(2) as threads:
            return {each["pid"] for each in threads.map(lambda _: ask(platform, sleep_s=0.5), range(2))}

    actors = act_at_once()
    learned = learn()  # on one of them: to start another would take longer than to import what it needs
    assert learned in actors
    # Whichever was used last, the learner that has imported all is taken again, and left free for that by an actor.
    assert ask(platform)["pid"] != learned
    assert learn() == learned
    assert act_at_once() == actors
    assert learn() == learned


def test_a_worker_inherits_no_file_no_variable_and_no_module(platform: ProcessPlatform) -> None:
    os.environ["REPLAY_TEST_SECRET"] = "x"
    try:
        with open(__file__) as held:
            os.set_inheritable(held.fileno(), True)
            found = ask(platform)
    finally:
        del os.environ["REPLAY_TEST_SECRET"]
    targets = {int(name): target for name, target in found["open"].items() if target}
    assert targets.pop(0) == "/dev/null"
    assert targets.pop(1) == targets.pop(2)  # where it prints
    listing = [number for number, target in targets.items() if target.endswith("/fd")]
    sockets = [number for number, target in targets.items() if target.startswith("socket:")]
    assert len(sockets) == 1
    assert set(targets) == {*listing, *sockets}
    assert "REPLAY_TEST_SECRET" not in found["environment"]
    assert not {"pytest", "torch", "gymnasium"} & set(found["loaded"])
    assert found["environment"]["OMP_NUM_THREADS"] == "1"


def test_a_worker_has_an_empty_directory_that_leaves_with_it(platform: ProcessPlatform) -> None:
    first = ask(platform, write=["file"])
    assert first["directory"] != os.getcwd()
    assert first["files"] == ["file"]
    assert os.path.exists(first["directory"])
    platform.close()
    assert not os.path.exists(first["directory"])
    assert not alive(first["pid"])


def test_what_takes_too_long_is_ended_and_replaced(platform: ProcessPlatform) -> None:
    before = ask(platform)
    with pytest.raises(FunctionTimeout, match=r"no answer within 0\.5 s"):
        platform.invoke(request(sleep_s=60), 0.5)
    assert not alive(before["pid"])
    assert ask(platform)["pid"] != before["pid"]


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"exit": 7, "print": "last words"}, r"exit status 7.*\nlast words"),
        ({"kill": True}, "SIGKILL"),
        ({"raise": "what went wrong"}, r"(?s)exit status 1.*what went wrong"),
        ({"garbage": b"HTTP/1.1 200 OK\r\n\r\n"}, "no answer.*HTTP"),
        ({"close": True}, "closed its worker's pipe|closed its pipe"),
    ],
)
def test_a_worker_that_dies_or_answers_nonsense_is_lost_and_replaced(
    platform: ProcessPlatform, settings: dict[str, Any], told: str
) -> None:
    before = ask(platform)
    with pytest.raises(FunctionLost, match=told) as lost:
        platform.invoke(request(**settings), LIMIT_S)
    assert lost.value.instance == before["environment"]["REPLAY_FUNCTION_INSTANCE"]
    assert not lost.value.cold
    assert not alive(before["pid"])
    assert ask(platform)["pid"] != before["pid"]


def test_a_worker_that_died_while_idle_is_replaced_unnoticed(platform: ProcessPlatform) -> None:
    before = ask(platform)
    death = os.pidfd_open(before["pid"])
    os.kill(before["pid"], signal.SIGKILL)
    assert select.select([death], [], [], LIMIT_S)[0], "all its threads have ended"
    os.close(death)
    assert ask(platform)["pid"] != before["pid"]


def test_printing_disturbs_nothing(platform: ProcessPlatform) -> None:
    assert ask(platform, print="x" * 300_000)["calls"] == 1
    assert ask(platform, print="y" * 300_000)["calls"] == 2


def test_children_end_with_their_worker(platform: ProcessPlatform) -> None:
    child = ask(platform, child=60, fork=60)["children"][0]
    assert alive(child)
    with pytest.raises(FunctionLost, match="exit status 3"):
        platform.invoke(request(exit=3), LIMIT_S)
    assert eventually(lambda: not alive(child))


def test_large_requests_and_answers_pass_and_their_size_is_bounded() -> None:
    with small_platform(answer_bytes=2**20) as platform:
        found = ask(platform, blob=900_000, padding=b"p" * 5_000_000)
        assert len(found["blob"]) == 900_000
        assert found["received"] > 5_000_000
        with pytest.raises(FunctionLost, match="more than the 1048576"):
            platform.invoke(request(blob=2_000_000), LIMIT_S)
        assert ask(platform)["calls"] == 1


def test_a_worker_is_replaced_after_so_many_invocations() -> None:
    with small_platform(invocations=2) as platform:
        assert [ask(platform)["calls"] for _ in range(5)] == [1, 2, 1, 2, 1]
        assert len(platform.workers()) == 1


def test_an_idle_worker_is_ended() -> None:
    with small_platform(idle_s=0.2) as platform:
        pid = ask(platform)["pid"]
        assert eventually(lambda: not platform.workers() and not alive(pid))
        assert ask(platform)["calls"] == 1


def test_memory_beyond_the_limit_is_refused() -> None:
    with small_platform(memory_limit_mb=512) as platform:
        assert ask(platform, allocate_mb=100)["calls"] == 1
        with pytest.raises(FunctionLost, match="MemoryError"):
            platform.invoke(request(allocate_mb=1000), LIMIT_S)


def test_warm_workers_are_there_before_they_are_asked(platform: ProcessPlatform) -> None:
    platform.prewarm(2)
    assert len(platform.workers()) == 2
    platform.prewarm(2)
    assert len(platform.workers()) == 2
    assert ask(platform)["calls"] == 2


def test_closing_ends_what_runs() -> None:
    records: list[Invocation] = []
    threads = threading.active_count()
    platform = small_platform(idle_s=60)
    functions = Backend(platform, concurrency=2, on_invocation=records.append)
    warm = decode_response(functions.submit(request()).result(LIMIT_S))
    futures = [functions.submit(request(sleep_s=60)) for _ in range(3)]
    assert eventually(lambda: len(platform.workers()) == 2)
    pids = platform.workers()
    functions.close()
    assert [isinstance(each.exception(0), FunctionLost) for each in futures[:2]] == [True, True]
    assert futures[2].cancelled()
    assert not any(map(alive, pids))
    assert threading.active_count() == threads
    assert [record.outcome for record in records] == ["ok", "lost", "lost"]
    assert warm.measured.instance == records[0].instance
    with pytest.raises(FunctionLost, match="closed"):
        platform.invoke(request(), 1)


def test_workers_end_with_their_parent_however_it_ends(tmp_path: Path) -> None:
    code = f"""
import sys, time; sys.path.insert(0, {str(HERE)!r})
from test_process_platform import ask, request, small_platform
import threading
platform = small_platform()
first = ask(platform, child=60)
threading.Thread(target=platform.invoke, args=(request(sleep_s=60), 60), daemon=True).start()
time.sleep(0.2)
print(first["pid"], first["children"][0], first["directory"], flush=True)
time.sleep(60)
"""
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, cwd=tmp_path)
    try:
        assert parent.stdout is not None
        worker, child, directory = parent.stdout.readline().split()
        assert alive(int(worker))
        parent.kill()
        parent.wait()
        assert eventually(lambda: not alive(int(worker)) and not alive(int(child)))
        assert eventually(lambda: not os.path.exists(directory))
    finally:
        with contextlib.suppress(ProcessLookupError):
            parent.kill()
        parent.wait()
        if parent.stdout is not None:
            parent.stdout.close()


def test_a_command_that_cannot_run_is_a_loss() -> None:
    with (
        small_platform(command=["/no/such/program"]) as platform,
        pytest.raises(FunctionLost, match=r"cannot start a worker by /no/such/program"),
    ):
        platform.invoke(request(), LIMIT_S)


def test_arguments_are_checked() -> None:
    for wrong in ({"memory_mb": 0}, {"idle_s": -1.0}, {"invocations": 0}, {"answer_bytes": 0}, {"command": "nice"}):
        with pytest.raises(ValueError):
            ProcessPlatform(**wrong)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"no option 'memory'.*memory_mb"):
        make_platform("process", memory=2048)
    with pytest.raises(ValueError, match="unknown backend"):
        make_platform("abacus")
    with make_platform("process", memory_mb=2048) as made:  # type: ignore[attr-defined]
        assert (made.name, made.memory_mb) == ("process", 2048)
