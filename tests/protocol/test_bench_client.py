"""replay-bench-client against real servers: what it sends arrives, what it counts was answered."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import redis

import replay_server as rs
from replay_server.bench import client as load
from replay_server.bench.client import Role, request
from replay_server.server import find_program


def address_of(url: str) -> str:
    return url.partition("//")[2].rpartition("@")[2]


@pytest.fixture(params=["replay", "redis"])
def url(request: pytest.FixtureRequest, server: rs.Server, tmp_path: Path) -> Iterator[str]:
    """Of this server, and of the real Redis."""
    if request.param == "replay":
        rs.Client(server.url).redis.flushall()
        yield server.url
        return
    if shutil.which("redis-server") is None:
        pytest.skip("needs redis-server (apt-get install redis-server)")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    arguments = ["--port", str(port), "--save", "", "--appendonly", "no", "--dir", str(tmp_path)]
    process = subprocess.Popen(["redis-server", *arguments], stdout=subprocess.DEVNULL)
    try:
        client = redis.Redis(port=port)
        for _ in range(1200):
            try:
                client.ping()
                break
            except redis.ConnectionError:
                time.sleep(0.05)
        yield f"redis://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(timeout=60)


def test_every_request_of_every_round_arrives(url: str, tmp_path: Path) -> None:
    blob = os.urandom(1_000_000)
    roles = [
        Role("pusher", {"push": request(["RPUSH", "list", blob]), "count": request(["INCR", "pushes"])}, 3, rounds=5),
        Role("pipeline", {"both": request(["INCR", "a"], ["GET", "absent"], ["INCRBY", "a", 10])}, rounds=7),
    ]
    measured = load.run(address_of(url), roles, tmp_path, processor=0)
    client = redis.Redis.from_url(url)
    assert client.llen("list") == 15
    assert {client.lindex("list", i) == blob for i in range(15)} == {True}
    assert client.get("pushes") == b"15"
    assert client.get("a") == b"77"
    assert measured.request("pusher", "push")["count"] == 15
    assert measured.request("pipeline", "both")["replies_per_request"] == 3
    assert measured.count() == 15 + 15 + 7
    assert 0 < measured.latency_us("pusher", "push") <= measured.latency_us("pusher", "push", "max")
    assert list(tmp_path.glob("[0-9]*")) == []


def test_replies_are_followed_to_their_ends(url: str, tmp_path: Path) -> None:
    client = redis.Redis.from_url(url)
    values = [os.urandom(size) for size in (0, 1, 300_000, 2_000_000)]
    client.rpush("values", *values)
    client.set("blob", values[-1])
    pull = Role("learner", {"pull": request(["LRANGE", "values", 0, -1], ["GET", "blob"], ["PING"])}, 2, rounds=6)
    measured = load.run(address_of(url), [pull], tmp_path)
    made = measured.request("learner", "pull")
    # "*4", then "$0" and so on with the ends of lines, "+PONG".
    expected = 4 + 6 + 7 + 11 + 12 + sum(map(len, values)) + len(values[-1]) + 12 + 7
    assert made["count"] == 12
    assert abs(made["received_bytes"] / 12 - expected) < 10


def test_error_replies_are_told(url: str, tmp_path: Path) -> None:
    roles = [Role("wrong", {"incr": request(["SET", "text", "x"], ["INCR", "text"])}, rounds=3)]
    with pytest.raises(RuntimeError, match=r"wrong incr: ERR value is not an integer or out of range \(3 times\)"):
        load.run(address_of(url), roles, tmp_path)


def test_pauses_and_rates_hold_requests_back(url: str, tmp_path: Path) -> None:
    """Never more than the schedule allows; how much less depends on the machine."""
    ping = request(["PING"])
    roles = [Role("paused", {"ping": ping}, 2, pause_us=20_000), Role("scheduled", {"ping": ping}, 4, rate_per_s=80)]
    measured = load.run(address_of(url), roles, tmp_path, seconds=0.6)
    assert 0 < measured.request("paused", "ping")["count"] <= 2 * 31
    assert 0 < measured.request("scheduled", "ping")["count"] <= 4 * 13
    assert 0 < measured.rounds_per_s("paused") <= 100
    assert 0 < measured.rounds_per_s("scheduled") <= 84


def test_requests_of_a_round_are_spread_over_its_time(url: str, tmp_path: Path) -> None:
    """Ten rounds a second of ten requests: no request within the hundredth of a second after the one before."""
    names = [str(number) for number in range(10)]
    roles = [Role("a", {name: request(["PING"]) for name in names}, rate_per_s=10, rounds=3, spread=True)]
    begin = time.monotonic()
    measured = load.run(address_of(url), roles, tmp_path)
    assert time.monotonic() - begin >= 0.29
    assert [measured.request("a", name)["count"] for name in names] == [3] * 10


def test_what_the_warm_up_did_is_not_measured(url: str, tmp_path: Path) -> None:
    roles = [Role("counter", {"incr": request(["INCR", "n"])})]
    measured = load.run(address_of(url), roles, tmp_path, seconds=0.2, warm_up_s=0.2)
    answered = int(redis.Redis.from_url(url).get("n") or 0)  # type: ignore[arg-type]
    assert 0 < measured.count() < answered


@pytest.mark.parametrize("connections", [1, 2])
def test_a_spinning_client_measures_the_same_requests(url: str, tmp_path: Path, connections: int) -> None:
    measured = load.run(
        address_of(url), [Role("a", {"ping": request(["PING"])}, connections, rounds=20)], tmp_path, spin=True
    )
    assert measured.count() == 20 * connections


def test_a_password_is_said_first(tmp_path: Path) -> None:
    with rs.Server(password="secret") as server:
        roles = [Role("a", {"ping": request(["PING"])}, 3, rounds=2)]
        with pytest.raises(RuntimeError, match="NOAUTH"):
            load.run(address_of(server.url), roles, tmp_path)
        assert load.run(address_of(server.url), roles, tmp_path, first=request(["AUTH", "secret"])).count() == 6
        with pytest.raises(RuntimeError, match="the server refused first: WRONGPASS"):
            load.run(address_of(server.url), roles, tmp_path, first=request(["AUTH", "wrong"]))


def test_items_reach_a_table(tmp_path: Path) -> None:
    table = rs.Table("t", 1000, {"x": rs.Column("float32", (256,))})
    with rs.Server([table]) as server, rs.Client(server.url) as client:
        data = np.arange(20 * 256, dtype=np.float32).tobytes()
        add = request(["REPLAY.ADD", "t", 20, b"", "COLUMNS", 1, "x", data])
        roles = [Role("actor", {"add": add}, rounds=3)]
        load.run(address_of(server.url), roles, tmp_path)
        sample = Role("learner", {"sample": request(["REPLAY.SAMPLE", "t", 512, "BETA", "0.4"])}, rounds=4)
        measured = load.run(address_of(server.url), [sample], tmp_path)
        assert client.info("t")["added"] == 60
        assert client.info("t")["sampled"] == 4 * 512
        assert measured.request("learner", "sample")["received_bytes"] > 4 * 512 * 1024


def test_a_server_that_says_nothing_is_given_up(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        for connections in (1, 3):
            roles = [Role("a", {"ping": request(["PING"])}, connections, rounds=1)]
            with pytest.raises(RuntimeError, match="nothing has moved for"):
                load.run(address, roles, tmp_path, patience_s=0.3)


@pytest.mark.parametrize(("answer", "told"), [(b"", "the server closed it"), (b"HTTP/1.1\r\n", "does not speak RESP2")])
def test_a_lost_connection_and_a_foreign_protocol_are_told(tmp_path: Path, answer: bytes, told: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            accepted, _ = server.accept()
            accepted.recv(100)
            accepted.sendall(answer)
            accepted.close()

        thread = threading.Thread(target=serve)
        thread.start()
        with pytest.raises(RuntimeError, match=told):
            load.run(f"127.0.0.1:{server.getsockname()[1]}", [Role("a", {"p": request(["PING"])}, rounds=1)], tmp_path)
        thread.join(timeout=60)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--connect", "127.0.0.1:1"], "expected at least one --role"),
        (["--role", "a"], "expected --connect"),
        (["--request", "x"], "expected after --role"),
        (["--connect", "127.0.0.1"], "expected ADDRESS:PORT"),
        (["--connect", "127.0.0.1:1", "--role", "a", "--request", "HALF"], "it ends within one"),
        (["--connect", "127.0.0.1:1", "--role", "a", "--request", "WHOLE"], "when to end"),
        (["--connect", "127.0.0.1:1", "--seconds", "x"], "expected a number"),
        (
            ["--connect", "127.0.0.1:1", "--role", "a", "--spread", "--request", "WHOLE", "--rounds", "1"],
            "expected --rate",
        ),
        (["--connect", "127.0.0.1:1", "--bogus"], "--bogus: unknown"),
        (["--connect", "127.0.0.1:1", "--role", "a", "--request", "absent"], "No such file"),
    ],
)
def test_wrong_usage_is_refused_with_what_was_expected(tmp_path: Path, arguments: list[str], told: str) -> None:
    (tmp_path / "HALF").write_bytes(b"*1\r\n$4\r\nPI")
    (tmp_path / "WHOLE").write_bytes(b"PING\r\n")
    command = [str(find_program("replay-bench-client")), *arguments]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert told in done.stderr


def test_nobody_there_is_told(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    with pytest.raises(RuntimeError, match=f"cannot connect to {address}"):
        load.run(address, [Role("a", {"ping": request(["PING"])}, rounds=1)], tmp_path)
