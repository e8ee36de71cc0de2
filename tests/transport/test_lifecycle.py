"""Servers over every transport that are killed, stopped under load, started again, full, and looked at from aside."""

from __future__ import annotations

import functools
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import redis

import replay_server as rs


def receive_all(connection: socket.socket) -> bytes:
    pieces = []
    while piece := connection.recv(1 << 20):
        pieces.append(piece)
    return b"".join(pieces)


def wait_for_exit(server: Any) -> int:
    end = time.monotonic() + 60
    while server.running:
        assert time.monotonic() < end, "it did not end"
        time.sleep(0.005)
    return server.returncode


def is_cut_off(connection: socket.socket) -> bool:
    try:
        connection.sendall(b"PING\r\n")
        return connection.recv(7) == b""
    except ConnectionError:
        return True


@contextmanager
def at_work(*jobs: Callable[[], None]) -> Iterator[list[threading.Thread]]:
    """Runs jobs in threads, and waits for them to end."""
    threads = [threading.Thread(target=job, daemon=True) for job in jobs]
    for thread in threads:
        thread.start()
    try:
        yield threads
    finally:
        for thread in threads:
            thread.join(60)
            assert not thread.is_alive()


# ---- where the data port is ------------------------------------------------------------------------------------------


def test_the_data_port_is_of_the_transport_and_the_admin_port_of_the_kernel(
    site: Any, server: Any, client: Any
) -> None:
    client.redis.set("where", bytes(1 << 20))
    with site.lab.on_server():
        admin = redis.Redis(port=int(server.admin_url.rpartition(":")[2]))
        information = admin.info("transport")
        listening = {
            int(row.split()[1].rpartition(":")[2], 16)
            for row in Path("/proc/thread-self/net/tcp").read_text().splitlines()[1:]
            if row.split()[3] == "0A"
        }
        admin_port = admin.info("server")["admin_port"]
        admin.close()
    if site.transport == "kernel":
        assert listening == {6379, admin_port}
    else:
        assert listening == {admin_port}
        assert site.transport in information.values()
        assert information["transport_link"] == "up"
        assert information["transport_bytes_in"] > 1 << 20
        assert information["transport_frames_in"] > (1 << 20) / site.lab.mtu
        assert information["transport_busy_us"] > 0


def test_the_admin_port_answers_while_the_data_port_is_busy(site: Any, server: Any, client: Any) -> None:
    client.redis.set("busy", bytes(8 << 20))
    stop = threading.Event()

    def stream() -> None:
        with redis.Redis(site.address, 6379) as own:
            while not stop.is_set():
                assert len(own.get("busy")) == 8 << 20  # type: ignore[arg-type]

    with at_work(stream, stream):
        with site.lab.on_server():
            admin = redis.Redis(port=int(server.admin_url.rpartition(":")[2]))
            admin.ping()
        for _ in range(100):
            assert admin.info("clients")["connected_clients"] >= 3
        assert admin.config_set("client-stall-timeout", 61)
        assert client.redis.config_get("client-stall-timeout") == {"client-stall-timeout": "61"}
        admin.config_set("client-stall-timeout", 60)
        stop.set()
        admin.close()
    client.redis.delete("busy")


def test_a_full_server_says_so_and_lets_the_administrator_in(site: Any) -> None:
    server = site.serve(config={"maxclients": 20})
    connections = [socket.create_connection((site.address, 6379), 60) for _ in range(20)]
    for connection in connections:
        connection.sendall(b"PING\r\n")
        assert connection.recv(7) == b"+PONG\r\n"
    with socket.create_connection((site.address, 6379), 60) as refused:
        refused.settimeout(60)
        assert b"max number of clients" in receive_all(refused)
    with site.lab.on_server(), redis.Redis(port=int(server.admin_url.rpartition(":")[2])) as admin:
        assert admin.info("clients")["connected_clients"] == 21
    for connection in connections:
        connection.close()
    end = time.monotonic() + 60
    while True:  # places become free
        try:
            with redis.Redis(site.address, 6379) as own:
                assert own.ping()
                break
        except redis.exceptions.RedisError:
            assert time.monotonic() < end
    assert server.stop() == 0


# ---- kill −9 ---------------------------------------------------------------------------------------------------------


def test_after_kill_9_a_new_server_serves_at_once_at_the_same_address(site: Any, own_server: Any) -> None:
    url = own_server.url
    table = rs.Table("t", 10, {"k": rs.Column("int64")})
    with rs.Client(url) as client, socket.create_connection((site.address, 6379), 60) as old:
        client.create_table(table)
        client.add("t", {"k": [1]})
        old.sendall(b"PING\r\n")
        assert old.recv(7) == b"+PONG\r\n"
        os.kill(own_server.pid, signal.SIGKILL)
        assert wait_for_exit(own_server) == -signal.SIGKILL
        with site.serve([table]) as again:
            with redis.Redis(site.address, 6379) as own:
                assert own.ping()
            # The stack knows nothing of the old connection, and says so.
            old.settimeout(60)
            assert is_cut_off(old)
            assert client.info("t")["size"] == 0
            assert len(client.add("t", {"k": [1, 2]})) == 2
            assert again.stop() == 0


# ---- stopping under load ---------------------------------------------------------------------------------------------


def test_a_stop_under_load_is_clean_and_tells_all_that_was_done(site: Any, own_server: Any) -> None:
    """Every increment that was made was told: no reply got lost between the last one written and the end."""
    connections = [socket.create_connection((site.address, 6379), 20) for _ in range(8)]
    told: list[int] = []
    torn: list[bytes] = []

    def increment(connection: socket.socket) -> None:
        pending = b""
        try:
            while True:
                connection.sendall(b"INCR n\r\n")
                while b"\n" not in pending:
                    piece = connection.recv(100)
                    if not piece:
                        raise ConnectionResetError
                    pending += piece
                line, _, pending = pending.partition(b"\n")
                told.append(int(line[1:]))
        except ConnectionError:
            torn.append(pending)

    with at_work(*(functools.partial(increment, connection) for connection in connections)):
        while len(told) < 2000:
            time.sleep(0.01)
        os.kill(own_server.pid, signal.SIGTERM)
        assert wait_for_exit(own_server) == 0
    for connection in connections:
        connection.close()
    assert torn == [b""] * 8
    assert sorted(told) == list(range(1, len(told) + 1))


def test_a_stop_finishes_the_replies_that_are_being_sent(site: Any, own_server: Any) -> None:
    value = np.random.default_rng(4).bytes(16 << 20)
    with redis.Redis(site.address, 6379) as client:
        client.set("large", value)
        client.execute_command(
            "REPLAY.CREATE", "t", rs.codec.pack({"capacity": 1, "signature": {"k": {"dtype": "int8"}}})
        )
    with (
        socket.create_connection((site.address, 6379), 60) as reader,
        socket.create_connection((site.address, 6379), 60) as waiting,
    ):
        waiting.sendall(b"REPLAY.SAMPLE t 1 BLOCK 0\r\n")
        reader.sendall(b"GET large\r\n")
        got = reader.recv(1)
        os.kill(own_server.pid, signal.SIGTERM)
        got += receive_all(reader)
        assert got == b"$%d\r\n%s\r\n" % (len(value), value)
        assert receive_all(waiting).startswith(b"-TIMEOUT")
    assert wait_for_exit(own_server) == 0


def test_a_stop_does_not_wait_for_who_does_not_read(site: Any, own_server: Any) -> None:
    with redis.Redis(site.address, 6379) as client:
        client.set("large", bytes(16 << 20))
    with socket.socket() as never:
        never.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8192)
        never.settimeout(60)
        never.connect((site.address, 6379))
        never.sendall(b"GET large\r\n" * 4)
        assert never.recv(1) == b"$"
        os.kill(own_server.pid, signal.SIGTERM)
        assert wait_for_exit(own_server) == 0


def test_shutdown_by_the_admin_port_ends_the_server(site: Any, own_server: Any) -> None:
    place = ("127.0.0.1", int(own_server.admin_url.rpartition(":")[2]))
    with site.lab.on_server(), socket.create_connection(place, 60) as admin:
        admin.sendall(b"SHUTDOWN NOSAVE\r\n")
        assert receive_all(admin) == b""
    assert wait_for_exit(own_server) == 0
