"""A snapshot that a primary sends is read while it comes: by halves, damaged, cut short, and whole."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

import replay_server as rs

ITEMS = 20_000
TABLE = rs.Table("t", ITEMS, {"x": rs.Column("float32", (64,))})
HISTORY = "a" * 40


@pytest.fixture(scope="module")
def snapshot(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """Of a full table and a key, 5 MB: several times what waits for the thread that reads."""
    folder = tmp_path_factory.mktemp("primary")
    with rs.Server([TABLE], directory=folder) as server, rs.Client(server.url) as client:
        client.redis.set("key", "theirs")
        client.add("t", {"x": np.arange(ITEMS * 64, dtype=np.float32).reshape(ITEMS, 64)})
        return Path(client.checkpoint()).read_bytes()


class Primary:
    """Greets one replica after the other, and lets a function send to each."""

    def __init__(self, *sends: Callable[[socket.socket], None]) -> None:
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = self._listening.getsockname()[1]
        self.histories: list[bytes] = []  # which each asked to go on with
        self._thread = threading.Thread(target=self._serve, args=(sends,), daemon=True)
        self._thread.start()

    def _serve(self, sends: tuple[Callable[[socket.socket], None], ...]) -> None:
        for send in sends:
            try:
                connection, _ = self._listening.accept()
            except OSError:  # it was closed
                return
            with connection, connection.makefile("rb") as words:
                while (word := words.readline().strip()) != b"PSYNC":
                    if word in (b"PING", b"REPLCONF"):
                        connection.sendall(b"+OK\r\n")
                words.readline()
                self.histories.append(words.readline().strip())
                connection.sendall(f"+FULLRESYNC {HISTORY} 100\r\n".encode())
                send(connection)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)  # ends an accept
        self._listening.close()
        self._thread.join(timeout=60)


@pytest.fixture
def replica(tmp_path: Path) -> Iterator[rs.Server]:
    """A server with a key and a table of its own."""
    (tmp_path / "replica").mkdir()
    with rs.Server([TABLE], directory=tmp_path / "replica") as server, rs.Client(server.url) as client:
        client.redis.set("key", "own")
        yield server


HEADER = b"$SNAPSHOT:0\r\n"
END = b"0\r\n"
SIGN_OF_LIFE = b"\n"


def part(data: bytes) -> bytes:
    return f"{len(data)}\r\n".encode() + data


def request(words: str) -> bytes:
    each = words.split()
    return f"*{len(each)}\r\n".encode() + b"".join(f"${len(word)}\r\n{word}\r\n".encode() for word in each)


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_what_comes_by_halves_is_served_when_all_of_it_has_come(replica: rs.Server, snapshot: bytes) -> None:
    half_came, go_on, done = threading.Event(), threading.Event(), threading.Event()

    def send(connection: socket.socket) -> None:
        announced = part(snapshot)
        connection.sendall(HEADER + announced[: len(announced) - len(snapshot) + len(snapshot) // 2])
        half_came.set()
        go_on.wait(60)
        connection.sendall(snapshot[len(snapshot) // 2 :] + END)
        done.wait(60)

    primary = Primary(send)
    with rs.Client(replica.url) as client:
        redis = client.redis
        redis.replicaof("127.0.0.1", str(primary.port))
        assert half_came.wait(60)
        until(lambda: redis.info("replication").get("master_sync_read_bytes") == len(snapshot) // 2)
        assert redis.get("key") == b"own"
        assert client.info("t")["size"] == 0
        go_on.set()
        until(lambda: redis.info("replication")["master_link_status"] == "up")
        assert redis.get("key") == b"theirs"
        assert client.info("t")["size"] == ITEMS
        assert redis.info("replication")["slave_repl_offset"] == 100
        assert list(Path(redis.config_get("dir")["dir"]).iterdir()) == []
    done.set()
    primary.close()


def test_parts_are_one_snapshot_however_they_come(replica: rs.Server, snapshot: bytes) -> None:
    done = threading.Event()

    def send(connection: socket.socket) -> None:
        pieces = [snapshot[:1], snapshot[1:100], snapshot[100:-7], snapshot[-7:]]
        words = HEADER + SIGN_OF_LIFE.join(map(part, pieces)) + SIGN_OF_LIFE + END
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for at in range(150):  # the lines come by single bytes, too
            connection.sendall(words[at : at + 1])
        connection.sendall(words[150:-20])
        for at in range(len(words) - 20, len(words)):
            connection.sendall(words[at : at + 1])
        done.wait(60)

    primary = Primary(send)
    with rs.Client(replica.url) as client:
        client.redis.replicaof("127.0.0.1", str(primary.port))
        until(lambda: client.redis.info("replication")["master_link_status"] == "up")
        assert client.redis.get("key") == b"theirs"
        assert client.info("t")["size"] == ITEMS
    done.set()
    primary.close()


@pytest.mark.parametrize(
    "what", ["cut short", "damaged", "no snapshot", "ends early", "ends late", "no number", "a long line"]
)
def test_what_is_not_whole_changes_nothing_and_is_asked_for_again(
    replica: rs.Server, snapshot: bytes, what: str
) -> None:
    again = threading.Event()
    middle = len(snapshot) // 2
    sent = {
        "cut short": part(snapshot)[:middle],
        "damaged": part(snapshot[:middle] + bytes([snapshot[middle] ^ 1]) + snapshot[middle + 1 :]) + END,
        "no snapshot": part(b"x" * len(snapshot)) + END,
        "ends early": part(snapshot[:middle]) + END,
        "ends late": part(snapshot) + part(b"x") + END,
        "no number": part(snapshot[:middle]) + b"-1\r\n",
        "a long line": part(snapshot[:middle]) + b"0" * 100,
    }[what]

    def send(connection: socket.socket) -> None:
        try:
            connection.sendall(HEADER + sent)
            if what != "cut short":
                while connection.recv(64):  # signs of life, until the replica hangs up
                    pass
        except ConnectionError:
            pass  # it has hung up before it had all

    primary = Primary(send, lambda _: again.set())
    with rs.Client(replica.url) as client:
        client.redis.replicaof("127.0.0.1", str(primary.port))
        assert again.wait(60)
        assert client.redis.get("key") == b"own"
        assert client.info("t")["size"] == 0
        assert client.redis.info("replication")["master_link_status"] == "down"
    told = {
        "cut short": "",
        "damaged": "what the primary has sent, byte ",
        "no snapshot": "what the primary has sent, byte 0: this is no snapshot",
        "ends early": "it is cut short",
        "ends late": "something follows the end",
        "no number": "has not said how long the next part of its data is",
        "a long line": "has not said how long the next part of its data is",
    }[what]
    assert told in replica.log()
    primary.close()


@pytest.mark.parametrize("ends", ["the link is cut", "REPLICAOF NO ONE", "REPLICAOF another"])
def test_after_one_that_was_given_up_the_next_is_whole(replica: rs.Server, snapshot: bytes, ends: str) -> None:
    """What was read of the first is freed beside the loop, and the next one waits for that."""
    half_came, go_on, done = threading.Event(), threading.Event(), threading.Event()

    def half(connection: socket.socket) -> None:
        connection.sendall(HEADER + part(snapshot[: len(snapshot) // 2]))
        half_came.set()
        go_on.wait(60)

    def whole(connection: socket.socket) -> None:
        connection.sendall(HEADER + part(snapshot) + END)
        done.wait(60)

    first, second = Primary(half, whole), Primary(whole)
    with rs.Client(replica.url) as client:
        redis = client.redis
        redis.replicaof("127.0.0.1", str(first.port))
        assert half_came.wait(60)
        until(lambda: redis.info("replication").get("master_sync_read_bytes") == len(snapshot) // 2)
        if ends == "REPLICAOF NO ONE":
            redis.replicaof("NO", "ONE")
            assert redis.get("key") == b"own"
            assert redis.set("key", "written")
            redis.replicaof("127.0.0.1", str(second.port))
        elif ends == "REPLICAOF another":
            redis.replicaof("127.0.0.1", str(second.port))
        go_on.set()
        until(lambda: redis.info("replication")["master_link_status"] == "up")
        assert redis.get("key") == b"theirs"
        assert client.info("t")["size"] == ITEMS
    done.set()
    for primary in (first, second):
        primary.close()


def test_a_primary_that_is_given_up_amid_a_transaction_is_asked_for_everything(tmp_path: Path, snapshot: bytes) -> None:
    """The transaction goes on to its end, so from an offset before it it would come a second time."""
    done = threading.Event()

    def send(connection: socket.socket) -> None:
        transaction = ["MULTI", "RPUSH list x", "CONFIG SET repl-timeout 1", "DEBUG SLEEP 6", "EXEC"]
        connection.sendall(HEADER + part(snapshot) + END + b"".join(map(request, transaction)))
        with contextlib.suppress(OSError):
            while connection.recv(4096):  # until the replica hangs up
                pass

    def nothing(_: socket.socket) -> None:
        done.wait(60)

    primary = Primary(send, nothing)
    with (
        rs.Server([TABLE], directory=tmp_path, config={"enable-debug-command": "yes"}) as replica,
        rs.Client(replica.url) as client,
    ):
        client.redis.replicaof("127.0.0.1", str(primary.port))
        until(lambda: len(primary.histories) == 2)
        assert client.redis.lrange("list", 0, -1) == [b"x"]
        assert primary.histories == [b"?", b"?"]
    done.set()
    primary.close()
