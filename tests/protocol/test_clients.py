"""Clients that misbehave and servers that go away: who is told what, and what is left behind."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import threading
import time

import numpy as np
import pytest

import replay_server as rs
from replay_server.codec import encode_command, pack

PASSWORD = "open sesame/%"
FRAMES = {"obs": rs.Column("uint8", (4, 84, 84))}


def request(*arguments) -> bytes:
    return b"".join(bytes(part) for part in encode_command(arguments))


# ---- clients that stall or vanish ------------------------------------------------------------------------------------


@pytest.mark.parametrize("share", [0.01, 0.3, 0.99])
def test_a_client_that_vanishes_in_mid_add_stores_nothing(client, raw, make_table, eventually, share):
    name = make_table(100, FRAMES)
    frames = np.zeros((64, 4, 84, 84), np.uint8)
    whole = request("REPLAY.ADD", name, 64, b"", "COLUMNS", 1, "obs", frames.data)
    raw.send(whole[: int(len(whole) * share)])
    if share < 0.9:
        eventually(lambda: client.info(name)["reserved_slots"] == 64, "the server reserves slots")
    raw.close()
    eventually(lambda: client.info(name)["reserved_slots"] == 0, "the reservation is given back")
    assert client.info(name)["size"] == 0
    assert len(client.add(name, {"obs": frames})) == 64


def test_a_client_that_stops_reading_delays_nobody_and_its_pins_are_given_back(client, raw, make_table, eventually):
    name = make_table(512, FRAMES, sampler=rs.Uniform())
    client.add(name, {"obs": np.zeros((512, 4, 84, 84), np.uint8)})
    raw.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    for _ in range(4):
        raw.send(request("REPLAY.SAMPLE", name, 512))
    eventually(lambda: client.info(name)["pinned_slots"] > 0, "the reply waits for its reader")
    for _ in range(3):
        assert len(client.sample(name, 512)) == 512
        client.add(name, {"obs": np.ones((64, 4, 84, 84), np.uint8)})
    assert client.info(name)["size"] == 512
    raw.close()
    eventually(lambda: client.info(name)["pinned_slots"] == 0, "the pins are given back")


def test_what_is_read_late_is_what_was_sampled(client, raw, make_table, eventually):
    # Slots of a reply in flight are not overwritten, though their items have long left the table.
    name = make_table(512, FRAMES, sampler=rs.Fifo())
    frames = np.arange(512, dtype=np.uint16).astype(np.uint8)[:, None, None, None] * np.ones((1, 4, 84, 84), np.uint8)
    client.add(name, {"obs": frames})
    raw.send(request("REPLAY.SAMPLE", name, 512))  # 14 MB, more than the sockets hold
    eventually(lambda: client.info(name)["pinned_slots"] > 0, "the reply waits for its reader")
    for _ in range(3):
        client.add(name, {"obs": np.full((512, 4, 84, 84), 255, np.uint8)})
    assert client.info(name)["pinned_slots"] > 0
    reply = raw.reply()
    assert isinstance(reply, list)
    np.testing.assert_array_equal(np.frombuffer(reply[4], np.uint8).reshape(frames.shape), frames)


def test_a_client_that_vanishes_while_it_waits_is_forgotten(client, raw, table, items, eventually):
    raw.send(request("REPLAY.SAMPLE", table, 1, "BLOCK", 0))
    eventually(lambda: client.info(table)["waiting"] == 1, "the client waits")
    raw.close()
    eventually(lambda: client.info(table)["waiting"] == 0, "the server forgets it")
    client.add(table, items(1))
    assert client.info(table)["sampled"] == 0


def test_commands_sent_behind_a_wait_are_answered_after_it(client, raw, table, items, eventually):
    raw.send(request("REPLAY.SAMPLE", table, 1, "BLOCK", 0) + request("PING"))
    eventually(lambda: client.info(table)["waiting"] == 1, "the client waits")
    client.add(table, items(5))
    assert np.frombuffer(raw.reply()[6], "<i8").tolist() == [5]
    assert raw.reply() == "PONG"


def _send_plain(connection: socket.socket) -> int:
    connection.sendall(b"PING\r\n")
    return 1


def _send_more_than_a_read_takes(connection: socket.socket) -> int:
    count = (2 << 16) // len(b"PING\r\n") + 1
    connection.sendall(b"PING\r\n" * count)
    return count


def _send_around_a_byte_out_of_band(connection: socket.socket) -> int:
    connection.sendall(b"PING\r\n")
    connection.send(b"!", socket.MSG_OOB)
    connection.sendall(b"PING\r\n")
    return 2


@pytest.mark.skipif("REPLAY_TEST_SERVER" in os.environ, reason="stacks in user space know nothing out of band")
@pytest.mark.parametrize("send", [_send_plain, _send_more_than_a_read_takes, _send_around_a_byte_out_of_band])
@pytest.mark.parametrize("ends", [False, True], ids=["stays", "ends"])
def test_all_that_lies_in_the_socket_is_read_though_one_event_told_of_it(server, raw, send, ends):
    raw.send(request("PING"))
    assert raw.reply() == "PONG"
    os.kill(server.pid, signal.SIGSTOP)
    try:
        count = send(raw.socket)
        if ends:
            raw.socket.shutdown(socket.SHUT_WR)
    finally:
        os.kill(server.pid, signal.SIGCONT)
    assert [raw.reply() for _ in range(count)] == ["PONG"] * count
    if ends:
        assert raw.socket.recv(1) == b""


# ---- servers that go away --------------------------------------------------------------------------------------------


def small_table() -> rs.Table:
    return rs.Table("t", 100, {"k": rs.Column("int64")})


def test_a_killed_server_is_connection_lost_for_every_command():
    with rs.Server([small_table()]) as server, rs.Client(server.url, reconnect_timeout=0.2) as client:
        client.add("t", {"k": [1]})
        os.kill(server.pid, signal.SIGKILL)
        while server.running:
            time.sleep(0.005)
        for call in (
            lambda: client.add("t", {"k": [1]}),
            lambda: client.sample("t", 1),
            lambda: client.info("t"),
            lambda: client.fetch_weights("w"),
            lambda: client.publish_weights("w", {"a": [1.0]}),
        ):
            with pytest.raises(rs.ConnectionLost, match=r"redis://127\.0\.0\.1"):
                call()
        assert server.returncode == -signal.SIGKILL


def test_a_server_killed_under_a_wait_is_noticed():
    with rs.Server([small_table()]) as server, rs.Client(server.url, reconnect_timeout=0.2) as client:
        outcome: list[BaseException] = []

        def wait() -> None:
            try:
                client.sample("t", 1)
            except rs.ReplayError as error:
                outcome.append(error)

        waiter = threading.Thread(target=wait)
        waiter.start()
        with rs.Client(server.url) as watcher:
            while watcher.info("t")["waiting"] == 0:
                time.sleep(0.005)
        os.kill(server.pid, signal.SIGKILL)
        waiter.join(60)
        assert [type(error) for error in outcome] == [rs.ConnectionLost]


def test_a_client_goes_on_with_a_server_that_came_back(free_port):
    with rs.Server([small_table()], port=free_port) as server, rs.Client(server.url) as client:
        client.add("t", {"k": [1, 2]})
        assert client.info("t")["size"] == 2
        server.stop()
        with rs.Server([small_table()], port=free_port):
            # The dead connection is seen before anything is sent, so even an add is safe.
            client.add("t", {"k": [7]})
            assert client.sample("t", 2).data["k"].tolist() == [7, 7]


def test_a_client_tells_of_a_connection_that_broke_while_it_was_idle(free_port):
    with rs.Server(port=free_port) as server, rs.Client(server.url) as client:
        client.tables()
        assert client.lost_connections == 0
        server.stop()
        assert client.lost_connections == 1
        with rs.Server(port=free_port):
            client.tables()
            assert client.lost_connections == 1


def test_reads_wait_for_a_server_that_comes_back_later(free_port):
    with rs.Client(f"redis://127.0.0.1:{free_port}", reconnect_timeout=30) as client:
        results: list[list[str]] = []
        reader = threading.Thread(target=lambda: results.append(client.tables()))
        reader.start()
        with rs.Server([small_table()], port=free_port):
            reader.join(60)
            assert results == [["t"]]


def interrupted(listener: socket.socket, answers: list[bytes]) -> threading.Thread:
    """A server that answers HELLO, then reads one command, closes, and so on for each of `answers`."""

    def serve() -> None:
        for answer in answers:
            connection, _ = listener.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(b"%0\r\n")
                connection.recv(65536)
                connection.sendall(answer)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    return thread


def test_a_read_that_was_cut_off_is_repeated():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        interrupted(listener, [b"", b"*1\r\n$1", b"*1\r\n$1\r\nt\r\n"])
        with rs.Client(f"redis://127.0.0.1:{listener.getsockname()[1]}") as client:
            assert client.tables() == ["t"]
            assert client.lost_connections >= 2


def test_an_add_that_was_cut_off_is_not_repeated():
    spec = pack({**small_table().to_spec(), "incarnation": 1})
    with socket.create_server(("127.0.0.1", 0)) as listener:
        interrupted(listener, [b"$%d\r\n%s\r\n" % (len(spec), spec), b"", b"$8\r\n12345678\r\n"])
        with rs.Client(f"redis://127.0.0.1:{listener.getsockname()[1]}") as client:
            client.table("t")
            with pytest.raises(rs.ConnectionLost, match="add of 1 to 't'"):
                client.add("t", {"k": [1]})


class LostAnswers:
    """Stands before a server; of the first connection over which `command` goes, its answer is lost with it."""

    def __init__(self, server: rs.Server, command: bytes) -> None:
        self._server, self._command = server, command
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.lost = 0
        threading.Thread(target=self._serve, daemon=True).start()

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self._listener.getsockname()[1]}"

    def close(self) -> None:
        self._listener.close()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                threading.Thread(target=self._relay, args=(near,), daemon=True).start()

    def _relay(self, near: socket.socket) -> None:
        far = socket.create_connection(("127.0.0.1", int(self._server.url.rpartition(":")[2])))
        loses = False
        with near, far, contextlib.suppress(OSError):
            while True:
                for side in select.select([near, far], [], [])[0]:
                    data = side.recv(65536)
                    if not data or (loses and side is far):
                        self.lost += loses
                        return
                    if side is near and self._command in data and not self.lost:
                        loses = True
                    (far if side is near else near).sendall(data)


@pytest.fixture
def lossy():
    with rs.Server([small_table()]) as server, contextlib.closing(LostAnswers(server, b"WEIGHTS.PUBLISH")) as relay:
        yield relay


def test_weights_whose_answer_was_lost_are_published_once(lossy):
    with rs.Client(lossy.url) as client:
        assert client.publish_weights("w", {"a": np.ones(3)}, version=7) == 7
        assert lossy.lost == 1
        assert client.fetch_weights("w")[0] == 7


def test_weights_of_no_version_whose_answer_was_lost_are_not_sent_again(lossy):
    with rs.Client(lossy.url) as client:
        with pytest.raises(rs.ConnectionLost, match="publication of weights 'w'"):
            client.publish_weights("w", {"a": np.ones(3)})
        assert lossy.lost == 1
        assert client.fetch_weights("w")[0] == 1


def test_what_is_no_replay_server_is_a_clear_error():
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            connection, _ = listener.accept()
            connection.recv(65536)
            connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            connection.close()

        threading.Thread(target=serve, daemon=True).start()
        client = rs.Client(f"redis://127.0.0.1:{listener.getsockname()[1]}", reconnect_timeout=0)
        with pytest.raises(rs.ServerError, match="is this the address of a replay server"):
            client.tables()


def test_no_server_is_a_clear_error(free_port, tmp_path):
    for url in (f"redis://127.0.0.1:{free_port}", f"unix://{tmp_path}/none.sock"):
        with pytest.raises(rs.ConnectionLost, match=r"cannot connect to .*Is the server running"):
            rs.Client(url, reconnect_timeout=0.05).tables()


def test_a_silent_server_is_given_up():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client = rs.Client(f"redis://127.0.0.1:{listener.getsockname()[1]}", socket_timeout=0.1, reconnect_timeout=0)
        with pytest.raises(rs.ConnectionLost, match="no progress in time"):
            client.tables()


# ---- passwords and unix sockets --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def guarded(tmp_path_factory):
    path = tmp_path_factory.mktemp("guarded") / "replay.sock"
    with rs.Server([small_table()], password=PASSWORD, unix=path) as server:
        yield server
        assert server.stop() == 0
    assert not path.exists()


def test_a_password_travels_in_the_url(guarded):
    assert PASSWORD not in repr(guarded)
    for url in (guarded.url, guarded.unix_url):
        with rs.Client(url) as client:
            assert "sesame" not in repr(client)
            client.add("t", {"k": [1]})
            assert client.redis.ping()


def test_a_password_is_not_on_the_command_line(guarded):
    with open(f"/proc/{guarded.pid}/cmdline", "rb") as file:
        assert b"sesame" not in file.read()
    with open(f"/proc/{guarded.pid}/environ", "rb") as file:
        assert b"sesame" not in file.read()


@pytest.mark.parametrize("credentials", ["", ":wrong@", "someone:open%20sesame%2F%25@"])
def test_without_the_password_nothing_is_told(guarded, credentials):
    url = guarded.url.rpartition("@")[2]
    with rs.Client(f"redis://{credentials}{url}", reconnect_timeout=0.1) as client:
        with pytest.raises(rs.ServerError) as caught:
            client.tables()
        assert caught.value.code in ("NOAUTH", "WRONGPASS")


def test_strangers_may_only_authenticate(guarded, open_raw):
    raw = open_raw(f"redis://{guarded.url.rpartition('@')[2]}")
    for arguments in (("REPLAY.LIST",), ("GET", "x"), ("REPLAY.SAMPLE", "t", 1), ("CONFIG", "GET", "*")):
        reply = raw.command(*arguments)
        assert isinstance(reply, rs.ServerError)
        assert reply.code == "NOAUTH"
    assert raw.command("AUTH", "wrong").code == "WRONGPASS"
    assert raw.command("AUTH", PASSWORD) == "OK"
    assert raw.command("REPLAY.LIST") == [b"t"]


def test_strangers_cannot_make_the_server_hold_much(guarded, open_raw):
    address = f"redis://{guarded.url.rpartition('@')[2]}"
    for start in (b"*11\r\n", b"*2\r\n$4\r\nECHO\r\n$16385\r\n"):
        raw = open_raw(address)
        raw.send(start)
        assert "unauthenticated" in str(raw.reply())
        assert raw.closed()


def test_batches_pass_through_a_unix_socket(guarded, tmp_path):
    with rs.Server([rs.Table("f", 200, FRAMES)], port=-1, unix=tmp_path / "s") as server:
        assert server.url == server.unix_url == f"unix://{tmp_path}/s"
        with rs.Client(server.url) as client:
            frames = np.random.default_rng(0).integers(0, 256, (150, 4, 84, 84), np.uint8)
            ids = client.add("f", {"obs": frames})
            np.testing.assert_array_equal(client.get("f", ids).data["obs"], frames)
    assert not (tmp_path / "s").exists()
