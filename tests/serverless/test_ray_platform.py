"""Functions on Ray, on a real cluster of this host: instances, their ends, and what is left when it is closed."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from replay_server.rl import ray_cluster
from replay_server.rl.function_contract import ActorRequest, Response, decode_response, encode_request
from replay_server.serverless.backends.backend import FunctionLost, FunctionTimeout

pytest.importorskip("ray")

from replay_server.serverless.backends.ray import RayPlatform

GARBAGE = b"\x01"
TIMEOUT_S = 300.0
"""It only ends a test that hangs: on a loaded machine a process takes long to begin."""


@pytest.fixture(scope="module")
def platform() -> Iterator[RayPlatform]:
    with pytest.MonkeyPatch.context() as patch:
        # That of this process, which Ray reads but once: another process can join with it.
        patch.setenv("RAY_AUTH_TOKEN", ray_cluster._token)
        made = RayPlatform()
        yield made
        made.close()


def waiting_request(url: str) -> bytes:
    return encode_request(ActorRequest("wait", url, "job", {}, "ppo", round=1, version=1))


def answer(platform: Any, payload: bytes = GARBAGE) -> Response:
    return decode_response(platform.invoke(payload, TIMEOUT_S))


def instances() -> set[int]:
    return {pid for pid in descendants(os.getpid()) if _comm(pid).startswith("ray::Instance")}


def descendants(root: int) -> set[int]:
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if fields[0] not in "ZX":
                parents[int(entry.name)] = int(fields[1])
    found: set[int] = {root}
    while more := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= more
    return found - {root}


def _comm(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text()
    except OSError:
        return ""


def listening_addresses(pids: set[int]) -> set[str]:
    """Local addresses of the TCP sockets that any of these processes listens on, as the kernel writes them."""
    inodes = set()
    for pid in pids:
        for descriptor in Path(f"/proc/{pid}/fd").iterdir():
            try:
                target = os.readlink(descriptor)
            except OSError:
                continue
            if target.startswith("socket:["):
                inodes.add(target[len("socket:[") : -1])
    addresses = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in Path(table).read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and fields[9] in inodes:
                addresses.add(fields[1].partition(":")[0])
    return addresses


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, "it did not come about within 60 s"
        time.sleep(0.05)


def test_the_handler_answers_in_a_process_that_stays_warm(platform: RayPlatform) -> None:
    first, second = answer(platform), answer(platform)
    assert first.failure is not None
    assert first.failure.type == "ContractError"
    assert (first.measured.instance, first.measured.invocation, first.measured.cold) != ("", 0, False)
    assert second.measured.instance == first.measured.instance
    assert second.measured.invocation == first.measured.invocation + 1


def test_more_instances_than_cores_run_at_a_time(platform: RayPlatform, meeting: Callable[[int], str]) -> None:
    count = (os.cpu_count() or 1) + 1
    url = meeting(count)
    with ThreadPoolExecutor(count) as threads:
        answers = list(threads.map(lambda _: answer(platform, waiting_request(url)), range(count)))
    assert len({each.measured.instance for each in answers}) == count
    assert all("all are here" in str(each.failure) for each in answers)


def test_prewarmed_instances_are_there_before_they_are_asked_for(platform: RayPlatform) -> None:
    before = instances()
    platform.prewarm(len(before))
    assert instances() == before
    platform.prewarm(len(before) + 1)
    assert len(instances()) == len(before) + 1


def test_an_invocation_that_takes_too_long_is_ended_with_its_process(platform: RayPlatform, silent_url: str) -> None:
    platform.prewarm(1)
    before = instances()
    with pytest.raises(FunctionTimeout, match="1 s"):
        platform.invoke(waiting_request(silent_url), 1.0)
    wait_until(lambda: len(instances()) == len(before) - 1)
    assert answer(platform).failure is not None


def test_a_process_that_dies_is_a_lost_function(platform: RayPlatform, silent_url: str) -> None:
    answer(platform)
    outcomes: list[BaseException] = []

    def invoke() -> None:
        try:
            platform.invoke(waiting_request(silent_url), TIMEOUT_S)
        except Exception as error:
            outcomes.append(error)

    thread = threading.Thread(target=invoke)
    thread.start()
    time.sleep(0.5)
    for pid in instances():
        os.kill(pid, signal.SIGKILL)
    thread.join(TIMEOUT_S)
    assert [type(each) for each in outcomes] == [FunctionLost]


def test_an_idle_process_that_died_costs_one_lost_invocation_each(platform: RayPlatform) -> None:
    """What a backend tries again: the dead instances are not handed out for ever."""
    platform.prewarm(1)
    for pid in instances():
        os.kill(pid, signal.SIGKILL)
    for _ in range(20):
        try:
            assert answer(platform).measured.cold
            return
        except FunctionLost:
            continue
    pytest.fail("dead instances were handed out 20 times")


def test_ray_listens_on_loopback_only(platform: RayPlatform) -> None:
    answer(platform)
    addresses = listening_addresses(descendants(os.getpid()) | {os.getpid()})
    assert addresses
    loopback = {"0100007F", "0000000000000000FFFF00000100007F", "00000000000000000000000001000000"}
    assert addresses <= loopback


JOIN = """
import sys
from replay_server.serverless.backends.ray import RayPlatform
from replay_server.rl.function_contract import decode_response
platform = RayPlatform(sys.argv[1], num_cpus=0.5, memory_mb=64)
print(decode_response(platform.invoke(b"\\x01", 60.0)).failure.type)
platform.close()
"""


def test_a_cluster_that_was_joined_by_address_goes_on(platform: RayPlatform) -> None:
    there = answer(platform).measured.instance
    environment = {**os.environ, "RAY_AUTH_MODE": "token"}
    address = platform.address
    done = subprocess.run(
        [sys.executable, "-c", JOIN, address], env=environment, capture_output=True, text=True, timeout=120
    )
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, "ContractError", "")
    assert answer(platform).measured.instance == there
    with pytest.raises(ValueError, match="one only"):
        RayPlatform("127.0.0.1:1")


LIFE = """
import signal, sys
from replay_server.serverless.backends.ray import RayPlatform
signal.signal(signal.SIGTERM, signal.SIG_IGN)
platform = RayPlatform()
platform.invoke(b"\\x01", 60.0)
print("open", flush=True)
sys.stdin.readline()
platform.close()
print("closed", signal.getsignal(signal.SIGTERM) is signal.SIG_IGN, flush=True)
sys.stdin.readline()
"""


def test_nothing_is_said_and_nothing_is_left() -> None:
    """Of a whole life, with a process that dies: no line in the terminal, no process, no file, no signal handler."""
    home = Path(tempfile.mkdtemp(prefix="h", dir="/tmp"))
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    environment |= {"TMPDIR": str(home), "HOME": str(home)}
    with subprocess.Popen(
        [sys.executable, "-c", LIFE],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment,
    ) as process:  # fmt: skip
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        try:
            assert process.stdout.readline() == b"open\n", process.stderr.read().decode()
            processes = descendants(process.pid)
            (instance,) = [pid for pid in processes if _comm(pid).startswith("ray::Instance")]
            os.kill(instance, signal.SIGKILL)
            time.sleep(0.5)  # Ray hears of it
            process.stdin.write(b"\n")
            process.stdin.flush()
            assert process.stdout.readline() == b"closed True\n"
            left = {pid: _comm(pid) for pid in processes if Path(f"/proc/{pid}").exists()}
            assert not {pid for pid in left if "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2][:3]}
            rest, errors = process.communicate(b"\n", timeout=60)
            assert (rest, errors) == (b"", b"")
            assert list(home.iterdir()) == []
        finally:
            process.kill()
            shutil.rmtree(home)
