"""Who is turned away and who is closed: other hosts while there is no password, clients that let replies pile up, users
who lose rights; and commands that have another name, or none."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from against_redis import Pair

import replay_server

MB = 1 << 20
WAIT_S = 60.0


def wait_for_clients(admin: redis.Redis, count: int) -> None:
    """Until so many connections are left: who is to be closed is not read from meanwhile."""
    deadline = time.monotonic() + WAIT_S
    while len(admin.client_list()) != count:
        assert time.monotonic() < deadline, admin.client_list()
        time.sleep(0.05)


def address_of_this_host() -> str:
    """One that is not loopback; skips where there is none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe, contextlib.suppress(OSError):
        probe.connect(("192.0.2.1", 9))  # sends nothing
        if not (address := probe.getsockname()[0]).startswith("127."):
            return str(address)
    pytest.skip("needs a network interface besides loopback")


# ---- protected mode ---------------------------------------------------------------------------------------------


def test_other_hosts_are_refused_while_there_is_no_password() -> None:
    address = address_of_this_host()
    with replay_server.Server([], host="0.0.0.0", password="first") as server:
        port = int(server.url.rpartition(":")[2])

        def answer(request: bytes = b"PING\r\n") -> bytes:
            with socket.create_connection((address, port), WAIT_S) as connected:
                connected.sendall(request)
                return connected.recv(1000)

        assert answer().startswith(b"-NOAUTH")
        with redis.Redis.from_url(server.url) as admin:
            admin.config_set("requirepass", "")
            assert answer().startswith(b"-DENIED Redis is running in protected mode")
            assert admin.ping()
            admin.config_set("protected-mode", "no")
            assert answer() == b"+PONG\r\n"
            admin.config_set("protected-mode", "yes")
            admin.acl_setuser("default", enabled=True, passwords=["+word"])
            assert answer(b"AUTH word\r\n") == b"+OK\r\n"


# ---- limits of output -------------------------------------------------------------------------------------------


@pytest.fixture
def default_limits(pair: Pair) -> Iterator[None]:
    before = [peer.run(b"CONFIG", b"GET", b"client-output-buffer-limit")[1][1][1] for peer in (pair.redis, pair.ours)]
    yield
    for peer, value in zip((pair.redis, pair.ours), before, strict=True):
        assert peer.run(b"CONFIG", b"SET", b"client-output-buffer-limit", value) == ("+", b"OK")


@pytest.mark.usefixtures("default_limits")
def test_limits_of_output_are_set_and_shown_as_in_redis(pair: Pair) -> None:
    name = b"client-output-buffer-limit"
    for value in (
        b"normal 1mb 2mb 60 slave 3mb 4gb 5 pubsub 6kb 0 0", b"normal 0 0 0", b"replica 1 2 3", b"pubsub 1k 1kb 1",
        b"normal 1", b"normal 1 2", b"normal 1 2 3 pubsub", b"master 1 2 3", b"nobody 1 2 3", b"normal x 2 3",
        b"normal 1 x 3", b"normal 1 2 x", b"normal 1 2 -3", b"normal -1 2 3", b"PUBSUB 5 6 7",
    ):  # fmt: skip
        pair.run((b"CONFIG", b"SET", name, value), (b"CONFIG", b"GET", name))


def test_a_subscriber_that_does_not_read_is_closed_and_others_hear_on() -> None:
    config = {"client-output-buffer-limit": "pubsub 2mb 0 0"}
    with replay_server.Server([], config=config) as server, redis.Redis.from_url(server.url) as speaker:
        port = int(server.url.rpartition(":")[2])
        with socket.create_connection(("127.0.0.1", port)) as deaf, redis.Redis.from_url(server.url).pubsub() as ears:
            deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            deaf.sendall(b"SUBSCRIBE news\r\n")
            ears.subscribe("news")
            assert ears.get_message(timeout=WAIT_S)["type"] == "subscribe"  # type: ignore[index]
            while speaker.pubsub_numsub("news")[0][1] < 2:
                time.sleep(0.01)
            for number in range(64):
                speaker.publish("news", bytes([number]) * MB)
                message = ears.get_message(timeout=WAIT_S)
                assert message is not None
                assert message["data"] == bytes([number]) * MB
            wait_for_clients(speaker, 2)


def test_a_client_above_the_soft_limit_is_closed_after_its_time() -> None:
    config = {"client-output-buffer-limit": "normal 0 1mb 1"}
    with replay_server.Server([], config=config) as server, redis.Redis.from_url(server.url) as admin:
        admin.rpush("list", *[b"x" * 1000] * 5000)
        port = int(server.url.rpartition(":")[2])
        with (
            socket.create_connection(("127.0.0.1", port)) as deaf,
            socket.create_connection(("127.0.0.1", port)) as ears,
        ):
            deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            for connected in (deaf, ears):
                connected.sendall(b"LRANGE list 0 -1\r\n" * 4)
            ears.settimeout(WAIT_S)
            wanted = 4 * (7 + 5000 * (7 + 1000 + 2))
            while wanted > 0:
                received = len(ears.recv(1 << 20))
                assert received > 0
                wanted -= received
            wait_for_clients(admin, 2)


def test_no_limit_is_no_limit() -> None:
    config = {"client-output-buffer-limit": "normal 0 0 0"}
    with replay_server.Server([], config=config) as server, redis.Redis.from_url(server.url) as client:
        client.set("value", b"x" * 15_000)  # small enough to be copied into the reply
        pipeline = client.pipeline(transaction=False)
        for _ in range(2000):
            pipeline.get("value")
        assert pipeline.execute() == [b"x" * 15_000] * 2000


# ---- rights that are taken away ---------------------------------------------------------------------------------


def test_rights_count_when_a_transaction_runs(pair: Pair, peers: Any) -> None:
    pair.words("ACL SETUSER alice on nopass +@all ~* &*")
    visitor = Pair(peers, 2)
    try:
        for line in ("AUTH alice x", "MULTI", "SET a 1", "GET b", "PUBLISH c d", "DEL a", "INCR n"):
            visitor.words(line)
        pair.words("ACL SETUSER alice -del resetkeys ~a resetkeys ~n resetchannels")
        visitor.words("EXEC")
        pair.words("ACL SETUSER alice -exec")
        for line in ("MULTI", "PING", "EXEC", "PING"):
            visitor.words(line)
    finally:
        visitor.close()
        pair.words("ACL DELUSER alice")
        pair.words("FLUSHALL")


def test_rights_count_when_a_paused_request_runs(pair: Pair, peers: Any) -> None:
    pair.words("ACL SETUSER alice on nopass +@all ~* &*")
    visitor = Pair(peers, 2)
    try:
        for line in ("AUTH alice x", "MULTI", "SET a 1"):
            visitor.words(line)
        other = Pair(peers, 2)
        other.words("AUTH alice x")
        pair.words("CLIENT PAUSE 100000 WRITE")
        for connection in (other.redis, other.ours):
            connection.send((b"SET", b"b", b"1"), (b"PING",))
        for connection in (visitor.redis, visitor.ours):
            connection.send((b"EXEC",), (b"PING",))
        for server in (pair.redis, pair.ours):
            while server.run(b"INFO", b"clients")[1].find(b"blocked_clients:2") < 0:
                time.sleep(0.01)
        pair.words("ACL SETUSER alice -set -exec")
        pair.words("CLIENT UNPAUSE")
        for waiting in (visitor, other):
            assert waiting.ours.read() == waiting.redis.read()
            assert waiting.ours.read() == waiting.redis.read()
        pair.words("EXISTS a b")
        visitor.words("PING")
        other.close()
    finally:
        visitor.close()
        pair.words("CLIENT UNPAUSE")
        pair.words("ACL DELUSER alice")
        pair.words("FLUSHALL")


def test_a_right_that_is_granted_while_a_request_arrives_comes_too_late_for_it(pair: Pair, our_peer: Any) -> None:
    """Its large argument was not kept, since nobody might have asked for it."""
    visitor = our_peer.connect(2)
    try:
        for begin in ((), (b"MULTI",)):
            pair.words("ACL SETUSER alice on nopass +ping +multi +discard -set ~*")
            visitor.run(b"AUTH", b"alice", b"x")
            if begin:
                visitor.run(*begin)
            half = b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$20000\r\n" + b"v" * 10_000
            visitor.socket.sendall(half)
            while b" qbuf=%d " % len(half) not in pair.ours.run(b"CLIENT", b"LIST")[1]:
                time.sleep(0.01)
            pair.words("ACL SETUSER alice +set")
            visitor.socket.sendall(b"v" * 10_000 + b"\r\n")
            kind, text = visitor.read()
            assert kind == "-"
            assert text.startswith(b"NOPERM"), text
            assert visitor.run(b"PING") == ("+", b"QUEUED" if begin else b"PONG")
            if begin:
                visitor.run(b"DISCARD")
            assert visitor.run(b"SET", b"k", b"v" * 20_000) == ("+", b"OK")
            pair.words("FLUSHALL")
    finally:
        visitor.close()
        pair.words("ACL DELUSER alice")


def test_subscribers_without_the_right_to_their_channels_are_closed(pair: Pair, peers: Any) -> None:
    pair.words("ACL SETUSER alice on nopass +@all ~* resetchannels &news.* &one")
    for line, stays in (
        ("SUBSCRIBE news.a", True),
        ("SUBSCRIBE one", False),
        ("PSUBSCRIBE news.*", True),
        ("PSUBSCRIBE one", False),
    ):
        pair.words("ACL SETUSER alice resetchannels &news.* &one")
        visitor = Pair(peers, 3)
        for connection in (visitor.redis, visitor.ours):
            connection.run(b"AUTH", b"alice", b"x")
            connection.run(*line.encode().split())
        pair.words("ACL SETUSER alice resetchannels &news.*")
        for connection in (visitor.redis, visitor.ours):
            if stays:
                assert connection.run(b"PING") == ("+", b"PONG"), line
            else:
                with pytest.raises((ConnectionError, OSError)):
                    connection.run(b"PING")
        visitor.close()
    pair.words("ACL DELUSER alice")


# ---- commands by other names ------------------------------------------------------------------------------------


def test_commands_are_renamed_and_taken_away(tmp_path: Path) -> None:
    config = {"rename-command": 'FLUSHALL "" config settings keys find-keys', "appendonly": "yes"}
    with (
        replay_server.Server([], config=config, directory=tmp_path) as server,
        redis.Redis.from_url(server.url) as client,
    ):
        client.set("a", 1)
        for line in ("FLUSHALL", "CONFIG GET port", "KEYS *"):
            with pytest.raises(redis.ResponseError, match="unknown command"):
                client.execute_command(*line.split())
        assert client.execute_command("find-keys", "*") == [b"a"]
        assert client.execute_command("Settings", "GET", "maxclients")
        client.acl_setuser("alice", enabled=True, nopass=True, commands=["+config|get", "-keys"], keys=["*"])
        with redis.Redis.from_url(server.url, username="alice", password="x") as alice:
            assert alice.execute_command("SETTINGS", "GET", "maxclients")
            with pytest.raises(redis.exceptions.NoPermissionError):
                alice.execute_command("find-keys", "*")


def test_renames_that_make_no_sense_stop_the_start() -> None:
    for pairs, complaint in (("nope x", "no command 'nope'"), ("get set", "'set' already"), ("get", "expected pairs")):
        with pytest.raises(replay_server.ServerError, match=complaint):
            replay_server.Server([], config={"rename-command": pairs})
