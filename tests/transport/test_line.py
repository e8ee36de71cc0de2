"""The line between two hosts: frames take their time, no more go than its rate allows, faults hurt no content."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

import replay_server as rs
from replay_server.bench import client as load
from replay_server.bench.client import Measured, Role, request
from replay_server.bench.lab import Lab
from replay_server.bench.line import Line
from replay_server.bench.namespace import NamespaceError


class Hosts:
    """A server, its client, and between them the host that the line is laid on."""

    def __init__(self, lab: Lab, folder: Path) -> None:
        self.lab = lab
        self._folder = folder
        socket = lab.folder / "s"
        lab.serve(unix=socket)
        self.redis = redis.Redis(unix_socket_path=str(socket))

    def load(self, requests: dict[str, bytes], rounds: int) -> Measured:
        return load.run(
            f"{self.lab.address}:6379",
            [Role("client", requests, rounds=rounds)],
            self._folder,
            prefix=self.lab.client_command,
        )

    def line(self, **options: object) -> Line:
        return Line(self.lab.relay_command, **options)  # type: ignore[arg-type]


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[Hosts]:
    try:
        lab = Lab("kernel", relayed=True)
    except NamespaceError as error:
        pytest.skip(str(error))
    with lab:
        yield Hosts(lab, tmp_path)


def test_frames_are_carried_whole_and_counted(hosts: Hosts) -> None:
    blob = os.urandom(3_000_000)
    with hosts.line() as line:
        hosts.load({"set": request(["SET", "blob", blob]), "get": request(["GET", "blob"])}, rounds=2)
        told = line.end()
    assert hosts.redis.get("blob") == blob
    for side in ("from_client", "from_server"):
        assert told[side]["bytes"] > 2 * len(blob)
        assert not any(told[side][f"dropped_{why}"] for why in ("queue", "memory", "oversize", "send"))


def test_a_round_trip_takes_the_delay_twice(hosts: Hosts) -> None:
    with hosts.line(delay_us=20_000) as line:
        measured = hosts.load({"ping": request(["PING"])}, rounds=5)
        told = line.end()
    assert measured.latency_us("client", "ping", "min") >= 2 * 20_000
    assert told["late_us_p50"] >= 0


@pytest.mark.parametrize("direction", ["set", "get"])
def test_no_more_goes_through_than_the_rate_allows(hosts: Hosts, direction: str) -> None:
    size, rate_mbit = 1_000_000, 50
    hosts.redis.set("blob", bytes(size))
    sent = request(["SET", "blob", bytes(size)] if direction == "set" else ["GET", "blob"])
    with hosts.line(rate_mbit=rate_mbit):
        measured = hosts.load({"blob": sent}, rounds=2)
    assert measured.latency_us("client", "blob", "min") >= size * 8 / rate_mbit


def test_with_a_full_queue_frames_are_dropped_and_sent_again(hosts: Hosts) -> None:
    blob = os.urandom(2_000_000)
    with hosts.line(rate_mbit=200, queue_bytes=30_000) as line:
        measured = hosts.load({"set": request(["SET", "blob", blob])}, rounds=2)
        told = line.end()
    assert hosts.redis.get("blob") == blob
    assert told["from_client"]["dropped_queue"] > 0
    assert measured.content["retransmits"] >= told["from_client"]["dropped_queue"]


def test_faults_change_nothing_of_what_arrives(hosts: Hosts) -> None:
    blob = os.urandom(1_000_000)
    with hosts.line(faults="loss=0.01,duplicate=0.01,reorder=0.01,seed=7") as line:
        hosts.load({"set": request(["SET", "blob", blob]), "get": request(["GET", "blob"])}, rounds=3)
        told = line.end()
    assert hosts.redis.get("blob") == blob
    both = [told["from_client"], told["from_server"]]
    for fault in ("lost", "duplicated", "reordered"):
        assert sum(counted[fault] for counted in both) > 0


def test_a_line_that_cannot_be_laid_says_why(hosts: Hosts) -> None:
    with pytest.raises(RuntimeError, match="interface absent: no such interface"):
        Line(hosts.lab.relay_command, ("server", "absent"))
    with pytest.raises(RuntimeError, match="expected a probability"):
        hosts.line(faults="loss=2")


def test_larger_frames_than_the_line_takes_are_told(hosts: Hosts) -> None:
    with hosts.line(mtu=1000) as line:
        with pytest.raises(RuntimeError, match="nothing has moved"):
            load.run(
                f"{hosts.lab.address}:6379",
                [Role("client", {"set": request(["SET", "k", bytes(5000)])}, rounds=1)],
                hosts.lab.folder,
                prefix=hosts.lab.client_command,
                patience_s=0.5,
            )
        with pytest.raises(RuntimeError, match="segmentation offloads must be off"):
            line.end()


def test_a_server_reached_over_a_line_serves_a_table(hosts: Hosts) -> None:
    with rs.Client(f"unix://{hosts.lab.folder}/s") as client:
        client.create_table(rs.Table("t", 100, {"x": rs.Column("float32", (500,))}))
        add = request(["REPLAY.ADD", "t", 50, b"", "COLUMNS", 1, "x", os.urandom(50 * 2000)])
        with hosts.line(delay_us=1000):
            hosts.load({"add": add, "sample": request(["REPLAY.SAMPLE", "t", 64])}, rounds=2)
        assert client.info("t")["added"] == 100
