"""The metrics port when it is crowded, when what it tells of changes meanwhile, and when names are made to confuse."""

from __future__ import annotations

import contextlib
import resource
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pytest

import replay_server as rs

parser = pytest.importorskip("prometheus_client.parser", reason="prometheus-client is not installed (extra dev)")
HEALTHY = b"GET /healthz HTTP/1.1\r\n\r\n"
ANSWERED = b"HTTP/1.1 200"
PLACES = 16


@pytest.fixture
def server(tmp_path: Path) -> Iterator[rs.Server]:
    with rs.Server(directory=tmp_path, config={"metrics-port": 0}) as server:
        yield server


def address_of(server: rs.Server) -> tuple[str, int]:
    address = urlsplit(server.metrics_url or "")
    assert address.port
    return str(address.hostname), address.port


def connect(server: rs.Server) -> socket.socket:
    return socket.create_connection(address_of(server), timeout=60)


def ask(server: rs.Server, path: bytes = b"/healthz") -> bytes:
    with connect(server) as one:
        one.sendall(b"GET " + path + b" HTTP/1.0\r\n\r\n")
        return b"".join(iter(lambda: one.recv(1 << 16), b""))


def heard(one: socket.socket) -> bytes:
    """What comes next; nothing where the server has closed it."""
    with contextlib.suppress(ConnectionResetError):
        return one.recv(1 << 16)
    return b""


def wait_for(condition: Callable[[], Any], seconds: float = 60) -> Any:
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return found


def samples(server: rs.Server) -> list[tuple[str, tuple[tuple[str, str], ...]]]:
    text = ask(server, b"/metrics").split(b"\r\n\r\n", 1)[1].decode()
    found = parser.text_string_to_metric_families(text)
    return [(one.name, tuple(sorted(one.labels.items()))) for family in found for one in family.samples]


# ---- crowds ----------------------------------------------------------------------------------------------------------


def test_who_has_just_come_does_not_make_way_for_the_next_while_others_are_idle(server):
    with contextlib.ExitStack() as stack:
        for _ in range(PLACES):  # kept open between two requests, as Prometheus does it
            idle = stack.enter_context(connect(server))
            idle.sendall(HEALTHY)
            assert heard(idle).startswith(ANSWERED)
        came = [stack.enter_context(connect(server)) for _ in range(PLACES // 2)]
        assert ask(server).endswith(b"ok\n")
        for one in came:
            one.sendall(HEALTHY)
            assert heard(one).startswith(ANSWERED)


def test_half_sent_requests_keep_nobody_out(server):
    with contextlib.ExitStack() as stack:
        half = [stack.enter_context(connect(server)) for _ in range(PLACES)]
        for one in half:
            one.sendall(HEALTHY[:-4])
        with rs.Client(server.url) as client:
            assert client.redis.ping()  # behind them
        for _ in range(3):
            assert ask(server).endswith(b"ok\n")
        # The ones that began first made way.
        half[-1].sendall(HEALTHY[-4:])
        assert heard(half[-1]).startswith(ANSWERED)
        assert heard(half[0]) == b""


def test_answers_that_are_not_taken_keep_nobody_out():
    tables = [rs.Table(f"{i:0200}", 10, {"k": rs.Column("int64")}) for i in range(200)]
    with rs.Server(tables, config={"metrics-port": 0}) as server, contextlib.ExitStack() as stack:
        for _ in range(PLACES):
            slow = stack.enter_context(socket.socket())
            slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            slow.connect(address_of(server))
            slow.sendall(b"GET /metrics HTTP/1.1\r\n\r\n" * 20)  # more than buffers hold
        with rs.Client(server.url) as client:
            assert client.redis.ping()  # behind them
        told = []

        def is_healthy() -> bool:
            with contextlib.suppress(ConnectionResetError):
                told.append(ask(server))
            return bool(told) and told[-1].endswith(b"ok\n")

        wait_for(is_healthy, seconds=40)  # a minute, and they would have been given up anyway
        assert all(one == b"" or b"503" in one.split(b"\r\n")[0] for one in told[:-1]), told


def test_who_came_while_there_were_no_descriptors_is_answered_when_there_are(server):
    with contextlib.ExitStack() as stack:
        before = resource.prlimit(server.pid, resource.RLIMIT_NOFILE)
        with connect(server) as first:  # so that what an answer needs is open
            first.sendall(HEALTHY)
            assert heard(first).startswith(ANSWERED)
        resource.prlimit(server.pid, resource.RLIMIT_NOFILE, (4, before[1]))
        late = stack.enter_context(connect(server))
        late.sendall(HEALTHY)
        late.settimeout(0.5)
        with pytest.raises(TimeoutError):
            late.recv(1)
        resource.prlimit(server.pid, resource.RLIMIT_NOFILE, before)
        late.settimeout(60)
        assert heard(late).startswith(ANSWERED)  # without anybody else coming


# ---- what is told ----------------------------------------------------------------------------------------------------


def test_no_two_names_are_told_as_one(server):
    names = [
        b"a\xff",
        b"a\\xff",
        b"a\\x5cxff",
        b"a\\\xff",
        b"a\\\\xff",
        b"a\x01",
        b"a\\x01",
        b"a\n",
        b"a\\n",
        b"a\\",
        b'a"',
    ]
    with rs.Client(server.url) as client:
        for name in names:
            client.redis.execute_command("WEIGHTS.PUBLISH", name, "*", b"blob")
    found = [labels for name, labels in samples(server) if name == "replay_server_weights_version"]
    assert len(set(found)) == len(found) == len(names)


def test_a_key_that_goes_and_comes_again_while_a_page_is_written_is_not_told_twice(server):
    """Of thousands of keys a page is written in many slices; those at its beginning go to the end meanwhile."""
    keys = [f"key{i:05}" for i in range(4000)]
    with rs.Client(server.url) as client:
        pipeline = client.redis.pipeline(transaction=False)
        for key in keys:
            pipeline.execute_command("WEIGHTS.PUBLISH", key, "*", b"b")
        pipeline.execute()
        for first in range(0, 400, 20):
            with connect(server) as one:
                one.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
                for key in keys[first : first + 20]:
                    client.redis.execute_command("WEIGHTS.DEL", key)
                    client.redis.execute_command("WEIGHTS.PUBLISH", key, "*", b"b")
                answer = b"".join(iter(lambda: one.recv(1 << 20), b""))
            told = [
                line.rsplit(b" ", 1)[0] for line in answer.splitlines() if line.startswith(b"replay_server_weights")
            ]
            assert len(told) == len(set(told)) > 7000


def test_times_are_told_to_the_millisecond_and_the_start_does_not_move(server):
    def told(name: str) -> str:
        lines = ask(server, b"/metrics").decode().splitlines()
        return next(line.split()[1] for line in lines if line.startswith(name + " "))

    start = told("process_start_time_seconds")
    assert abs(float(start) - time.time()) < 600
    assert len(start.partition(".")[2]) <= 3
    with rs.Client(server.url) as client:
        client.checkpoint("kept")
        info = client.redis.info("persistence")
    assert int(float(told("replay_server_snapshot_last_time_seconds"))) == info["rdb_last_save_time"]
    assert told("process_start_time_seconds") == start


def test_sums_are_told_with_all_their_digits():
    big = 123456789012.5
    tables = [rs.Table("t", 10, {"k": rs.Column("int64")}, sampler=rs.Prioritized(1.0))]
    with rs.Server(tables, config={"metrics-port": 0}) as server, rs.Client(server.url) as client:
        client.add("t", {"k": np.arange(1)}, [big])
        assert f'replay_server_table_max_priority{{table="t"}} {big}\n'.encode() in ask(server, b"/metrics")
