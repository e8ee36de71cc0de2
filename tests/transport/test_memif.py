"""A server and the load client, both on DPDK's net_memif: what goes one way and the other, byte by byte."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import load_client
import numpy as np
import pytest

import replay_server as rs
from replay_server.bench.client import request
from replay_server.server import find_executable, find_program

pytestmark = pytest.mark.dpdk

Ask = Callable[..., list[Any]]
ITEMS = 300
SIGNATURE = {"obs": rs.Column("uint8", (4, 84, 84)), "action": rs.Column("int64")}


JUMBO = ",bsize=16398,rsize=6"


@pytest.fixture(params=["", JUMBO], ids=["ethernet", "jumbo"])
def buffers(request: pytest.FixtureRequest) -> str:
    """Of memif, which frames are as long as."""
    return request.param


@pytest.fixture
def device(tmp_path: Path, buffers: str) -> str:
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("needs two processors: both sides poll")
    try:
        find_executable("dpdk")
    except rs.ServerError as error:
        pytest.skip(str(error))
    return f"id=0,socket-abstract=no,socket={tmp_path}/memif{buffers}"


def start(device: str, tmp_path: Path) -> rs.Server:
    config = {
        "dpdk-device": f"net_memif0,role=server,{device}",
        "dpdk-address": "10.9.0.1/24",
        "dpdk-lcore": min(os.sched_getaffinity(0)),
        "protected-mode": "no",
    }
    table = rs.Table("atari", capacity=1000, signature=SIGNATURE)
    try:
        return rs.Server([table], transport="dpdk", port=6379, unix=tmp_path / "unix", config=config)
    except rs.ServerError as error:
        if "no port for" not in str(error):
            raise
        pytest.skip(f"DPDK has no net_memif: {error}")


@pytest.fixture
def server(device: str, tmp_path: Path) -> Iterator[rs.Server]:
    with start(device, tmp_path) as started:
        yield started


@pytest.fixture
def ask(device: str, tmp_path: Path) -> Ask:
    """Sends requests over memif, each in a turn of its own, once; the replies."""

    def send(*commands: list[Any], connect: str = "10.9.0.1:6379", patience_s: int = 20, mtu: str = "0") -> list[Any]:
        program = find_program("replay-bench-client-dpdk")
        own = [f"net_memif0,role=client,{device}", "10.9.0.2/24", mtu]
        requests = [request(command) for command in commands]
        command = load_client.command(program, own, connect, requests, tmp_path, patience_s)
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
        if done.returncode:
            raise RuntimeError(done.stderr)
        return parse((tmp_path / "kept").read_bytes())

    return send


def parse(data: bytes) -> list[Any]:
    """Replies of RESP2, one after another."""
    at = 0

    def one() -> Any:
        nonlocal at
        line, _, _ = data[at:].partition(b"\r\n")
        at += len(line) + 2
        if line[:1] == b"*":
            return [one() for _ in range(int(line[1:]))]
        if line[:1] == b"$":
            begin, at = at, at + int(line[1:]) + 2
            return data[begin : at - 2]
        return line

    replies = []
    while at < len(data):
        replies.append(one())
    return replies


@pytest.mark.parametrize("mtu", ["0", "1400"])  # of the client: its own, or less than the server's
def test_what_is_set_over_memif_is_what_is_got(server: rs.Server, ask: Ask, buffers: str, mtu: str) -> None:
    small, large = os.urandom(64), os.urandom(3_000_000)
    commands = [["PING", small], ["SET", "small", small], ["GET", "small"], ["SET", "large", large], ["GET", "large"]]
    assert ask(*commands, mtu=mtu) == [small, b"+OK", small, b"+OK", large]
    with rs.Client(str(server.unix_url)) as client:
        assert client.redis.get("large") == large
        told: Any = client.redis.info("transport")
        assert told["transport_mtu"] == (16384 if buffers else 1500)
        assert told["transport_malformed"] == told["transport_bad_checksums"] == 0
        frames = told["transport_frames_in"] + told["transport_frames_out"]
        is_jumbo = buffers and mtu == "0"
        assert (frames < 2 * len(large) // 1500) == bool(is_jumbo)
    assert ask(["GET", "large"]) == [large]  # the next client takes the first one's place


def test_what_is_pushed_over_memif_is_what_is_sampled(server: rs.Server, ask: Ask) -> None:
    observations = np.random.default_rng(1).integers(0, 256, (ITEMS, 4, 84, 84), np.uint8)
    actions = np.arange(ITEMS, dtype=np.int64)
    columns = ["COLUMNS", 2, "obs", observations.tobytes(), "action", actions.tobytes()]
    added, sampled = ask(["REPLAY.ADD", "atari", ITEMS, "", *columns], ["REPLAY.SAMPLE", "atari", 512])
    ids = np.frombuffer(added, np.uint64)
    assert len(ids) == ITEMS
    found = dict(zip(sampled[3::2], sampled[4::2], strict=True))
    which = np.frombuffer(found[b"action"], np.int64)
    assert len(which) == 512
    assert np.array_equal(np.frombuffer(sampled[0], np.uint64), ids[which])
    assert np.array_equal(np.frombuffer(found[b"obs"], np.uint8).reshape(512, 4, 84, 84), observations[which])


def test_a_port_where_nobody_listens_is_told_of(server: rs.Server, ask: Ask) -> None:
    with pytest.raises(RuntimeError, match="the server does not answer, or refuses it"):
        ask(["PING"], connect="10.9.0.1:6380")
    with pytest.raises(RuntimeError, match="the server does not answer"):
        ask(["PING"], connect="10.9.0.77:6379", patience_s=1)
    assert ask(["PING"]) == [b"+PONG"]


@pytest.mark.parametrize(
    ("settings", "buffers", "needed"),
    [({"dpdk-mtu": 9000}, "", 9014), ({"dpdk-mtu": 9000}, ",bsize=4096", 9014), ({}, ",bsize=500", 590)],
    indirect=["buffers"],
)
def test_frames_longer_than_memifs_buffers_are_refused(
    device: str, settings: dict[str, Any], buffers: str, needed: int
) -> None:
    config = {"dpdk-device": f"net_memif0,role=server,{device}", "dpdk-address": "10.9.0.1/24", **settings}
    config["protected-mode"] = "no"
    with pytest.raises(rs.ServerError, match=f"expected bsize={needed} or more in its arguments"):
        rs.Server(transport="dpdk", config=config)


def test_frames_that_wait_for_a_link_are_not_counted_with_every_poll(server: rs.Server) -> None:
    """Nobody is on the other side: the server's own announcement waits."""
    with rs.Client(str(server.unix_url)) as client:
        while True:
            told: Any = client.redis.info("transport")
            if told["transport_polls"] > 100_000:
                break
    assert told["transport_link"] == "down"
    assert told["transport_device_full"] < told["transport_polls"] // 100


@pytest.mark.parametrize("buffers", [""], indirect=True)
def test_a_socket_file_that_is_in_the_way_is_told_of(server: rs.Server, device: str, tmp_path: Path, ask: Ask) -> None:
    """That of a running server, which does not mind, and that of one that was killed. A stopped one leaves none."""
    (tmp_path / "other").mkdir()
    with pytest.raises(rs.ServerError, match=r"socket=.*/memif: the file is there already: remove it"):
        start(device, tmp_path / "other")
    assert ask(["PING"]) == [b"+PONG"]
    os.kill(server.pid, signal.SIGKILL)
    server.stop()
    with pytest.raises(rs.ServerError, match="the file is there already"):
        start(device, tmp_path)
    (tmp_path / "memif").unlink()
    for _ in range(2):
        with start(device, tmp_path):
            assert ask(["PING"]) == [b"+PONG"]
