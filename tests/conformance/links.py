"""Primaries, replicas, and links between them that can be cut."""

from __future__ import annotations

import contextlib
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
import redis.sentinel

import replay_server

PATIENCE_S = 240.0  # a loaded machine takes many times as long as a quiet one


def eventually(holds: Callable[[], Any], what: str) -> Any:
    """The first true answer."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        with contextlib.suppress(redis.RedisError):
            if answer := holds():
                return answer
        assert time.monotonic() < deadline, f"{what} did not come about in {PATIENCE_S:.0f} s"
        time.sleep(0.02)


class Link:
    """A port that leads to another one, until it is cut. Once it is mended, who connects gets through again."""

    def __init__(self, port: int) -> None:
        self.target = port
        self.whole = True
        self.alter: Callable[[bytes], bytes] = bytes
        """What becomes of the bytes that come from either side."""
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            if not self.whole:
                near.close()
                continue
            try:
                far = socket.create_connection(("127.0.0.1", self.target))
            except OSError:
                near.close()
                continue
            self._pairs.append((near, far))
            for source, sink in ((near, far), (far, near)):
                threading.Thread(target=self._carry, args=(source, sink), daemon=True).start()

    def _carry(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                sink.sendall(self.alter(data))
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def cut(self, *, mend: bool = True) -> None:
        """Ends every connection in the midst of whatever it carries."""
        self.whole = mend
        pairs, self._pairs = self._pairs, []
        for pair in pairs:
            for end in pair:
                with contextlib.suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)
                end.close()

    def mend(self) -> None:
        self.whole = True

    def close(self) -> None:
        self.cut(mend=False)
        self._listener.close()


class Member:
    """A server that takes part in replication: `client` is for database 0, `port` is on this host."""

    def __init__(self, name: str, port: int, process: subprocess.Popen[bytes] | None = None) -> None:
        self.name = name
        self.port = port
        self.client: redis.Redis[bytes] = redis.Redis(port=port)
        self.process = process

    def replication(self) -> dict[str, Any]:
        return self.client.info("replication")

    def follow(self, port: int) -> None:
        self.client.execute_command("REPLICAOF", "127.0.0.1", port)

    def is_up(self) -> bool:
        return self.replication().get("master_link_status") == "up"


def redis_program() -> str:
    program = shutil.which("redis-server")
    if program is None:
        pytest.skip("needs redis-server 7.0: apt-get install redis-server")
    return program


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


@contextlib.contextmanager
def start(name: str, folder: Path, *options: str) -> Iterator[Member]:
    """A server: "ours" or "redis", with settings as pairs of words."""
    folder.mkdir(parents=True, exist_ok=True)
    if name == "ours":
        config = {"enable-debug-command": "yes"} | dict(zip(options[::2], options[1::2], strict=True))
        with replay_server.Server([], directory=folder, config=config) as server:
            yield Member(name, int(server.url.rpartition(":")[2]))
        return
    port = free_port()
    words = [word for i, word in enumerate(options) for word in ((f"--{word}",) if i % 2 == 0 else word.split())]
    command = [
        redis_program(),
        "--port",
        str(port),
        "--dir",
        str(folder),
        "--save",
        "",
        "--enable-debug-command",
        "yes",
    ]
    with open(folder / "log", "wb") as log:
        process = subprocess.Popen([*command, *words], stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        member = Member(name, port, process)
        eventually(member.client.ping, "an answer of redis-server")
        yield member
    finally:
        process.terminate()
        process.wait(timeout=60)


def settled(primary: Member, replica: Member) -> None:
    """Waits until the replica has all that the primary has written."""

    def same() -> bool:
        told = primary.replication()["master_repl_offset"]
        return replica.is_up() and replica.replication()["slave_repl_offset"] >= told

    eventually(same, f"{replica.name} has all of {primary.name}")


SENTINEL = """port {port}
dir {folder}
sentinel monitor mine 127.0.0.1 {primary} 1
sentinel down-after-milliseconds mine 600000
sentinel failover-timeout mine 10000
"""


@contextlib.contextmanager
def sentinel_of(primary: int, folder: Path) -> Iterator[redis.sentinel.Sentinel]:
    """Redis's Sentinel, which watches the primary on this port as "mine"."""
    port, file = free_port(), folder / "sentinel.conf"
    file.write_text(SENTINEL.format(port=port, folder=folder, primary=primary))
    with open(folder / "sentinel.log", "wb") as log:
        command = [redis_program(), str(file), "--sentinel"]
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        yield redis.sentinel.Sentinel([("127.0.0.1", port)])
    finally:
        process.terminate()
        process.wait(timeout=60)


def fail_over(sentinel: redis.sentinel.Sentinel, kill: Callable[[], object], successor: int) -> None:
    """Kills the primary and waits until Sentinel has put the server on this port in its place.

    Only meanwhile is a server that is silent for a second dead to Sentinel: on a loaded machine all of them are.
    """

    def believe_after(milliseconds: int) -> None:
        sentinel.sentinels[0].sentinel_set("mine", "down-after-milliseconds", milliseconds)

    believe_after(1000)
    kill()
    eventually(lambda: sentinel.discover_master("mine") == ("127.0.0.1", successor), "a failover")
    believe_after(600_000)
