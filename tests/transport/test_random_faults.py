"""Random faults on each device in user space, under AddressSanitizer: frames are lost, doubled, cut and reordered, the
link goes down and up, clients go in the middle of a reply, the device is taken away. No server crashes, no byte is
wrong, memory stays flat.

FAULT_SECONDS says how long on each device: make faults, which prints how far it is.
"""

from __future__ import annotations

import collections
import contextlib
import os
import random
import shutil
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import load_client
import numpy as np
import pytest
import redis

import replay_server as rs
from replay_server.bench.client import request
from replay_server.bench.lab import Lab, LabError, LabServer
from replay_server.bench.namespace import NamespaceError, program
from replay_server.server import find_executable

SECONDS = int(os.environ.get("FAULT_SECONDS", "60"))
SEED = int(os.environ.get("FAULT_SEED", str(time.time_ns() // 10**9)))
BOUT_SECONDS = 8.0
pytestmark = [pytest.mark.slow, pytest.mark.dpdk, pytest.mark.timeout(2 * SECONDS + 1200)]

REPOSITORY = Path(__file__).resolve().parents[2]
BUILD = REPOSITORY / "build" / "native-tests"
"""The C tests' own, so that little is compiled twice."""
BLOCK = np.random.default_rng(1).bytes(8 << 20)
FRAMES = np.random.default_rng(2).integers(0, 256, (64, 4, 84, 84), np.uint8)
TABLE = rs.Table("atari", capacity=500, signature={"k": rs.Column("int64"), "x": rs.Column("uint8", (4, 84, 84))})
SHARED_BYTES = 3 << 20
GONE = (rs.ConnectionLost, rs.Timeout, redis.ConnectionError, redis.TimeoutError, OSError)
"""What a client may meet when the link is down. Any other exception ends the test."""
FLAT = {"used_memory": 1 << 20, "transport_frames_free": 600, "transport_copies_free_bytes": 1 << 16, "rss": 64 << 20}
"""How far what is idle again may be from what was idle before; the device's rings keep some frames."""


def tell(line: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {line}", file=sys.stderr, flush=True)


@pytest.fixture(scope="module")
def sanitized() -> Path:
    """The folder of server and load client under sanitizers."""
    try:
        find_executable("dpdk")
    except rs.ServerError as error:
        pytest.skip(str(error))
    beside = Path(sys.executable).parent
    tools = {
        name: str(beside / name) if (beside / name).exists() else shutil.which(name) for name in ("cmake", "ninja")
    }
    if None in tools.values():
        pytest.skip("needs cmake and ninja (make setup installs them)")
    cmake = str(tools["cmake"])
    options = ["-DREPLAY_TESTS=ON", "-DREPLAY_WERROR=ON", "-DREPLAY_SANITIZE=ON", "-DCMAKE_BUILD_TYPE=Debug"]
    options += ["-DCMAKE_C_FLAGS=-O1", f"-DCMAKE_MAKE_PROGRAM={tools['ninja']}"]
    targets = ("replay-server-dpdk", "replay-bench-client-dpdk")
    for command in (
        [cmake, "-S", str(REPOSITORY / "native"), "-B", str(BUILD), "-G", "Ninja", *options],
        [cmake, "--build", str(BUILD), "-j", "2", "--target", *targets],
    ):
        built = subprocess.run(command, capture_output=True, text=True)
        assert built.returncode == 0, (built.stdout + built.stderr)[-6000:]
    return BUILD


@pytest.fixture(autouse=True)
def under_sanitizers(sanitized: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("REPLAY_SERVER_EXECUTABLE", str(sanitized / "replay-server-dpdk"))
    monkeypatch.setenv("ASAN_OPTIONS", "detect_leaks=1:abort_on_error=0:quarantine_size_mb=32")
    suppressions = tmp_path / "suppressions"
    suppressions.write_text("leak:xsk_umem__create\n")  # libxdp's own, where the interface is gone
    monkeypatch.setenv("LSAN_OPTIONS", f"suppressions={suppressions}:print_suppressions=0")
    monkeypatch.setenv("UBSAN_OPTIONS", "print_stacktrace=1:halt_on_error=1")


# ---- the server ------------------------------------------------------------------------------------------------------


def faults(source: random.Random) -> str:
    """Settings for a server's life."""
    chances = {name: source.choice([0, 0.002, 0.01, 0.03]) for name in ("loss", "duplicate", "reorder", "cut")}
    return ",".join([*(f"{name}={chance}" for name, chance in chances.items()), f"seed={source.randrange(1 << 32)}"])


def idle(server: LabServer) -> dict[str, int]:
    """What it holds once its clients are gone and the store is empty. Of clients whose last frame was lost it would
    learn after minutes."""
    end = time.monotonic() + 90
    with redis.Redis(unix_socket_path=str(server.unix_url).removeprefix("unix://")) as asking:
        asking.flushall()
        asking.set("shared", BLOCK[:SHARED_BYTES])
        asking.client_kill_filter(skipme=True)
        while True:
            told: dict[str, Any] = asking.info("everything")  # type: ignore[assignment]
            if told["connected_clients"] == 1 and told["transport_connections"] == 0 == told["transport_frames_held"]:
                break
            assert time.monotonic() < end, f"connections stay: {asking.client_list()}"
            time.sleep(0.1)
    status = Path(f"/proc/{server.pid}/status").read_text().splitlines()
    told["rss"] = next(int(line.split()[1]) << 10 for line in status if line.startswith("VmRSS"))
    return told


class Life:
    """A server's: what it held when it was idle first, and that it holds no more later."""

    def __init__(self, lab: Lab, source: random.Random) -> None:
        config = {"dpdk-faults": faults(source), "protected-mode": "no"}
        lcore = min(os.sched_getaffinity(0))
        self.server = lab.serve("dpdk", [TABLE], config, lcore=lcore, unix=lab.folder / "unix", start_timeout=60)
        self.first: dict[str, int] | None = None
        tell(f"server {self.server.pid}: {config['dpdk-faults']}")
        idle(self.server)

    def check(self) -> None:
        assert self.server.running, f"the server died: {self.server.log()}"
        now = idle(self.server)
        self.first = self.first or now
        for name, most in FLAT.items():
            more = now[name] - self.first[name]
            more = -more if "free" in name else more
            assert more <= most, f"{name} was {self.first[name]} when idle, and is {now[name]}"

    def end(self) -> None:
        """After its device has gone, or with clients at work."""
        assert self.server.running, f"the server died: {self.server.log()}"
        with redis.Redis(unix_socket_path=str(self.server.unix_url).removeprefix("unix://")) as asking:
            assert asking.ping()
            assert asking.get("shared") == BLOCK[:SHARED_BYTES]
        status = self.server.stop(timeout=60)
        said = self.server.log()
        assert status == 0, said
        assert "Sanitizer" not in said, said
        assert "runtime error" not in said, said


def lives() -> Iterator[int]:
    """For as long as is asked for: how many bouts a server's life has, each longer than the one before."""
    end, bouts = time.monotonic() + SECONDS, 2
    while (left := end - time.monotonic()) > 0:
        yield max(1, min(bouts, round(left / BOUT_SECONDS)))
        bouts *= 2


# ---- clients of the kernel -------------------------------------------------------------------------------------------


class Clients:
    """Threads at work on the client's side until they are stopped."""

    def __init__(self, address: str, source: random.Random) -> None:
        self.address = address
        self.done: collections.Counter[str] = collections.Counter()
        self.wrong: list[BaseException] = []
        self._stop = threading.Event()
        jobs = [self.values, self.values, self.batches, self.broken_off, self.broken_off, self.half_sent, self.echoes]
        self.threads = [
            threading.Thread(target=self._work, args=(job, random.Random(source.random())), daemon=True) for job in jobs
        ]
        for thread in self.threads:
            thread.start()

    def _work(self, job: Callable[[random.Random], None], source: random.Random) -> None:
        while not self._stop.is_set():
            try:
                job(source)
                self.done[job.__name__] += 1
            except GONE:
                self.done["lost connections"] += 1
                time.sleep(0.05)
            except BaseException as error:  # `stop` tells of it
                self.wrong.append(error)
                return

    def leave(self) -> None:
        """They end when they notice that nobody answers any more."""
        self._stop.set()
        if self.wrong:
            raise self.wrong[0]

    def stop(self) -> None:
        self._stop.set()
        for thread in self.threads:
            thread.join(200)
            assert not thread.is_alive(), f"a client stands still; done: {self.done}"
        self.leave()

    def connect(self) -> socket.socket:
        connection = socket.create_connection((self.address, 6379), 60)
        connection.settimeout(60)
        return connection

    def values(self, source: random.Random) -> None:
        """Values that can be told from their names."""
        with redis.Redis(self.address, 6379) as client:
            for _ in range(4):
                size = int(2 ** source.uniform(0, 22))
                begin = source.randrange(len(BLOCK) - size)
                name = f"{begin}:{size}"
                client.set(name, BLOCK[begin : begin + size], ex=30)
                got = client.get(name)
                assert got == BLOCK[begin : begin + size], f"another value of {name}"
                client.delete(name)

    def batches(self, source: random.Random) -> None:
        with rs.Client(f"redis://{self.address}:6379") as client:
            for _ in range(4):
                keys = np.array([source.randrange(1 << 40) for _ in range(source.choice([1, 20, 100]))])
                client.add("atari", {"k": keys, "x": FRAMES[keys % len(FRAMES)]}, timeout=60)
                batch = client.sample("atari", source.choice([1, 32, 256]), timeout=60)
                assert np.array_equal(batch.data["x"], FRAMES[batch.data["k"] % len(FRAMES)]), "another row"

    def broken_off(self, source: random.Random) -> None:
        """Reads replies of many megabytes as far as it likes, and goes in one of the ways that there are."""
        count = source.randrange(1, 6)
        reply = b"$%d\r\n%b\r\n" % (SHARED_BYTES, BLOCK[:SHARED_BYTES])
        with self.connect() as connection:
            connection.sendall(b"GET shared\r\n" * count)
            way = source.choice(["end", "close", "reset", "quietly"])
            if way == "quietly":
                connection.shutdown(socket.SHUT_WR)
            wanted = count * len(reply) if way in ("end", "quietly") else source.randrange(count * len(reply))
            at = 0
            while at < wanted:
                piece = connection.recv(min(1 << 18, wanted - at))
                if not piece:
                    raise ConnectionResetError
                place = at % len(reply)
                expected = (reply[place : place + len(piece)] + reply)[: len(piece)]
                assert piece == expected, f"other bytes between {at} and {at + len(piece)}"
                at += len(piece)
                if source.random() < 0.01:
                    time.sleep(0.05)
            if way == "reset":
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    def half_sent(self, source: random.Random) -> None:
        """Goes in the middle of what it sends."""
        size = source.randrange(1, 1 << 20)
        data = b"".join(
            [b"*3\r\n$3\r\nSET\r\n$4\r\nhalf\r\n$%d\r\n" % size, BLOCK[:size]],
        )
        with self.connect() as connection:
            connection.sendall(data[: source.randrange(len(data))])
            if source.random() < 0.5:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    def echoes(self, source: random.Random) -> None:
        with self.connect() as connection:
            for _ in range(100):
                words = [b"%08d" % source.randrange(10**8) for _ in range(source.choice([1, 1, 50]))]
                connection.sendall(b"".join(b"ECHO %b\r\n" % word for word in words))
                expected = b"".join(b"$8\r\n%b\r\n" % word for word in words)
                got = b""
                while len(got) < len(expected):
                    piece = connection.recv(len(expected) - len(got))
                    if not piece:
                        raise ConnectionResetError
                    got += piece
                assert got == expected


def shake(lab: Lab, source: random.Random, seconds: float) -> None:
    """Pulls the cable now and then, and plugs it in again."""
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        time.sleep(min(left, source.uniform(0.1, 4)))
        lab.set_link(False)
        time.sleep(source.choice([0.0, 0.01, 0.3, 1.5]))
        lab.set_link(True)


@contextlib.contextmanager
def off_the_server(lab: Lab) -> Iterator[None]:
    """This thread, and those that it starts, are on the client's side and leave the server its processor."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, before - {min(before)} or before)
    try:
        with lab.on_client():
            yield
    finally:
        os.sched_setaffinity(0, before)


@pytest.mark.parametrize(("device", "interface"), [("tap", "tap0"), ("af_xdp", "eth0"), ("af_packet", "eth0")])
def test_kernel_clients_get_no_wrong_byte(device: str, interface: str) -> None:
    if os.geteuid() != 0:
        pytest.skip("an ordinary user's thread cannot stand in a network namespace: run it as root")
    source = random.Random(SEED)
    tell(f"{device}: {SECONDS} s, FAULT_SEED={SEED}")
    for bouts in lives():
        try:
            lab = Lab(device)
        except (LabError, NamespaceError) as error:
            pytest.skip(str(error))
        with lab:
            life = Life(lab, source)
            for bout in range(bouts):
                with off_the_server(lab):
                    clients = Clients(lab.address, source)
                    shake(lab, source, BOUT_SECONDS)
                    if bout + 1 == bouts:
                        detach = [program("ip", "iproute2"), "link", "delete", interface]
                        subprocess.run([*lab.server_command, *detach], check=True)
                        life.end()
                        clients.leave()
                    else:
                        clients.stop()
                tell(f"bout {bout + 1} of {bouts}: {dict(clients.done)}")
                if bout + 1 < bouts:
                    life.check()


# ---- clients over memif ----------------------------------------------------------------------------------------------


class MemifClients:
    """Load clients, one after another: memif has one peer. Each is a device that comes and goes."""

    def __init__(self, lab: Lab, program_path: Path, folder: Path) -> None:
        self.done: collections.Counter[str] = collections.Counter()
        self._lab, self._program, self._folder = lab, program_path, folder

    def _start(self, requests: list[bytes]) -> subprocess.Popen[str]:
        prefix, own = self._lab.load["prefix"], self._lab.load["device"]
        (self._folder / "kept").unlink(missing_ok=True)
        command = load_client.command(self._program, own, f"{self._lab.address}:6379", requests, self._folder, 60)
        return subprocess.Popen(
            [*prefix, *command], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True
        )

    @staticmethod
    def _reply(size: int, begin: int) -> bytes:
        return b"$%d\r\n%b\r\n" % (size, BLOCK[begin : begin + size])

    def whole(self, source: random.Random) -> None:
        """All that it asks for comes, byte by byte, also if it stands still for a while."""
        requests, expected = [], b""
        for _ in range(6):
            size = int(2 ** source.uniform(0, 22))
            begin = source.randrange(len(BLOCK) - size)
            requests += [request(["SET", "memif", BLOCK[begin : begin + size]]), request(["GET", "memif"])]
            expected += b"+OK\r\n" + self._reply(size, begin)
        requests.append(request(["GET", "shared"]))
        expected += self._reply(SHARED_BYTES, 0)
        process = self._start(requests)
        for _ in range(2):
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(source.uniform(0.3, 1.5))
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGSTOP)
                time.sleep(source.choice([0.0, 0.05, 1.5]))
                os.killpg(process.pid, signal.SIGCONT)
        _, said = process.communicate(timeout=180)
        assert process.returncode == 0, said
        assert (self._folder / "kept").read_bytes() == expected, "other bytes over memif"
        self.done["whole"] += 1

    def killed(self, source: random.Random, first: Callable[[], None] = lambda: None) -> None:
        """Among replies of many megabytes, when `first` has been done."""
        process = self._start([request(["GET", "shared"])] * 200)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(source.uniform(0.3, 2.5))
        first()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        _, said = process.communicate(timeout=60)
        assert "Sanitizer" not in said, said
        self.done["killed"] += 1


def test_clients_over_memif_get_no_wrong_byte(sanitized: Path, tmp_path: Path) -> None:
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("needs two processors: both sides poll")
    source = random.Random(SEED)
    tell(f"memif: {SECONDS} s, FAULT_SEED={SEED}")
    for bouts in lives():
        try:
            lab = Lab("memif", mtu=source.choice([1500, 1500, 16370]))
        except (LabError, NamespaceError) as error:
            pytest.skip(str(error))
        with lab:
            life = Life(lab, source)
            clients = MemifClients(lab, sanitized / "replay-bench-client-dpdk", tmp_path)
            for bout in range(bouts):
                end = time.monotonic() + BOUT_SECONDS
                while time.monotonic() < end:
                    clients.whole(source)
                    clients.killed(source)
                tell(f"bout {bout + 1} of {bouts}: {dict(clients.done)}")
                if bout + 1 < bouts:
                    life.check()
            clients.killed(source, life.end)
