"""Batches whose pages are not in memory: readers bring them in while the server serves others, in order, and nothing is
left of a client that goes."""

from __future__ import annotations

import contextlib
import ctypes
import os
import struct
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import replay_server as rs

SIGNATURE = {
    "image": rs.Column("uint8", (100, 100)),
    "small": rs.Column("float32", (50,)),
    "number": rs.Column("int64"),
}
TABLE = rs.Table("t", 4000, SIGNATURE, storage="disk", sampler=rs.Uniform())

# Between the server and the system: what is to be read waits while the file named by TEST_HOLD is there.
SHIM = r"""
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/mman.h>
#include <unistd.h>
int madvise(void *from, size_t bytes, int advice) {
    const char *hold = getenv("TEST_HOLD");
    while (advice == 22 && hold && access(hold, F_OK) == 0) usleep(1000);
    return (int)syscall(SYS_madvise, from, bytes, advice);
}
"""
PIDFD_OPEN, PROCESS_MADVISE, MADV_PAGEOUT = 434, 440, 21


def evict(pid: int) -> int:
    """Has the system put out what a server has mapped of its tables' files; how many bytes."""
    libc = ctypes.CDLL(None, use_errno=True)
    os.sync()
    process = libc.syscall(PIDFD_OPEN, pid, 0)
    if process < 0:
        pytest.skip("needs a system with pidfd_open")
    gone = 0
    for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
        if " rw-s " not in line or "(deleted)" not in line or "memfd" in line:
            continue
        at, end = (int(part, 16) for part in line.split()[0].split("-"))
        while at < end:
            vector = struct.pack("QQ", at, end - at)
            moved = libc.syscall(PROCESS_MADVISE, process, ctypes.c_char_p(vector), 1, MADV_PAGEOUT, 0)
            if moved <= 0:
                os.close(process)
                pytest.skip(f"may not evict pages of another process: {os.strerror(ctypes.get_errno())}")
            at, gone = at + moved, gone + moved
    os.close(process)
    return gone


def data_of(numbers: np.ndarray) -> dict[str, Any]:
    image = (np.arange(100 * 100).reshape(100, 100) * 7 + numbers[:, None, None]).astype(np.uint8)
    return {"image": image, "small": np.repeat(numbers[:, None], 50, 1).astype(np.float32), "number": numbers}


def check(batch: rs.Batch) -> None:
    for name, column in data_of(batch.data["number"]).items():
        if name in batch.data:
            assert np.array_equal(batch.data[name], column), name


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """On a disk: pages of tmpfs cannot be put out."""
    kind = subprocess.run(
        ["stat", "-f", "-c", "%T", tmp_path], capture_output=True, text=True, check=True
    ).stdout.strip()
    if kind in ("tmpfs", "ramfs"):
        pytest.skip("the folder for tests is in memory")
    return tmp_path


@pytest.fixture
def serve(shim: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., rs.Server]:
    """Starts servers that read from disk only while the folder has no file "hold"."""
    (folder / "data").mkdir()

    def start(*tables: rs.Table, **options: Any) -> rs.Server:
        with monkeypatch.context() as environment:
            environment.setenv("LD_PRELOAD", shim)
            environment.setenv("TEST_HOLD", str(folder / "hold"))
            return rs.Server(list(tables), directory=folder / "data", **options)

    return start


def fill(client: rs.Client, count: int = 3000) -> None:
    for first in range(0, count, 500):
        client.add("t", data_of(np.arange(first, first + 500)))


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


@pytest.mark.parametrize("shared", [True, False], ids=["shared memory", "sockets"])
def test_what_was_put_out_is_read_and_counted(folder: Path, shared: bool) -> None:
    with rs.Server([TABLE], directory=folder) as server, rs.Client(server.url, shared_memory=shared) as client:
        fill(client)
        assert client.info("t")["cold_pages"] == 0
        check(client.sample("t", 500))
        assert client.info("t")["cold_pages"] == 0, "all was in memory"
        evict(server.pid)
        check(batch := client.sample("t", 500))
        cold = client.info("t")["cold_pages"]
        different = len(set(batch.ids.tolist()))
        assert 2 * different <= cold <= 6 * different
        check(client.get("t", batch.ids))
        assert client.info("t")["cold_pages"] == cold, "they stay in memory"
        evict(server.pid)
        check(client.get("t", batch.ids))
        assert client.info("t")["cold_pages"] >= cold + 2 * different


def test_large_samples_of_small_columns(folder: Path) -> None:
    """More items than a client may pin: in parts, each of which is read first."""
    with rs.Server([TABLE], directory=folder) as server, rs.Client(server.url) as client:
        fill(client)
        evict(server.pid)
        check(client.sample("t", 10_000, columns=["small", "number"]))
        assert client.info("t")["cold_pages"] > 100
        ids = client.sample("t", 2000).ids
        evict(server.pid)
        reply = client.redis.execute_command("REPLAY.GET", "t", np.tile(ids, 5).tobytes(), "COLUMNS", 1, "small")
        small = np.frombuffer(reply[-1], np.float32).reshape(10_000, 50)
        assert np.array_equal(small[:2000, 7], client.get("t", ids).data["number"])
        assert np.array_equal(small[:2000], small[8000:])
        assert client.info("t")["pinned_slots"] == 0


@pytest.mark.parametrize("compression", ["none", "lz4"])
def test_windows_and_ragged_columns(folder: Path, compression: str) -> None:
    windows = {
        "frame": rs.Column("uint8", (84, 84), step_only=True),
        "stack": rs.Window("frame", length=4),
        "number": rs.Column("int64"),
    }
    ragged = {"tokens": rs.Column("int32", (None,), max_length=5000), "number": rs.Column("int64")}
    frames = np.random.default_rng(0).integers(0, 4, (600, 84, 84)).astype(np.uint8)
    tables = [
        rs.Table("w", 1000, windows, compression=compression, storage="disk"),
        rs.Table("r", 1000, ragged, storage="disk"),
    ]
    with rs.Server(tables, directory=folder) as server, rs.Client(server.url) as client:
        with client.writer("w") as writer:
            for step in range(600):
                writer.append({"frame": frames[step]})
                writer.create_item(1.0, columns={"number": step})
        numbers = np.arange(500)
        client.add("r", {"tokens": [np.arange(n * 9, n * 18, dtype=np.int32) for n in numbers], "number": numbers})
        for _ in range(2):
            evict(server.pid)
            batch = client.sample("w", 200)
            shown = np.maximum(batch.data["number"][:, None] - 3 + np.arange(4), 0)
            assert np.array_equal(batch.data["stack"], frames[shown])
            batch = client.sample("r", 200)
            for i, n in enumerate(batch.data["number"]):
                assert np.array_equal(batch.data["tokens"][i], np.arange(n * 9, n * 18))
        assert client.info("w")["cold_pages"] > 100
        assert client.info("r")["cold_pages"] > 100


def test_others_are_served_and_replies_keep_their_order(serve: Callable[..., rs.Server], folder: Path) -> None:
    with serve(TABLE) as server, rs.Client(server.url) as client, rs.Client(server.url) as other:
        fill(client)
        ids = client.sample("t", 300).ids
        evict(server.pid)
        (folder / "hold").touch()
        pipe = client.redis.pipeline(transaction=False)
        pipe.execute_command("REPLAY.GET", "t", ids.tobytes(), "COLUMNS", 1, "number")  # in memory
        pipe.execute_command("REPLAY.GET", "t", ids.tobytes(), "COLUMNS", 2, "image", "number")
        pipe.execute_command("ECHO", "after")
        done: list[Any] = []
        thread = _Background(lambda: done.extend(pipe.execute()))
        wait_until(lambda: other.info("t")["pinned_slots"] > 0)
        started = time.monotonic()
        for _ in range(100):
            assert other.redis.ping()
        other.add("t", data_of(np.arange(3000, 3100)))
        other.update_priorities("t", ids, np.full(300, 2.0))
        assert time.monotonic() - started < 30
        assert not done
        (folder / "hold").unlink()
        thread.join()
        assert done[2] == b"after"
        assert done[0][-1] == done[1][-1]
        images = np.frombuffer(done[1][-3], np.uint8).reshape(300, 100, 100)
        numbers = np.frombuffer(done[1][-1], np.int64)
        assert np.array_equal(images, data_of(numbers)["image"])


def test_a_client_that_leaves_meanwhile_leaves_nothing(serve: Callable[..., rs.Server], folder: Path) -> None:
    with serve(TABLE) as server, rs.Client(server.url) as client:
        fill(client)
        evict(server.pid)
        (folder / "hold").touch()
        connected = len(client.redis.client_list())
        leaving = [client.redis.connection_pool.make_connection() for _ in range(3)]
        for connection, n in zip(leaving, (200, 300, 10_000), strict=True):
            columns = "small" if n > 1000 else "image"
            connection.send_command("REPLAY.SAMPLE", "t", n, "COLUMNS", 1, columns)
        wait_until(lambda: client.redis.info("clients")["blocked_clients"] == 3)
        wait_until(lambda: client.info("t")["pinned_slots"] > 1000)
        for connection in leaving:
            connection.disconnect()
        client.drop_table("t")  # while readers are still at it
        client.create_table(TABLE)
        assert client.redis.ping()
        (folder / "hold").unlink()
        wait_until(lambda: client.redis.info("clients")["blocked_clients"] == 0)
        wait_until(lambda: len(client.redis.client_list()) == connected)
        fill(client)
        check(client.sample("t", 300))
        assert server.stop() == 0, server.log()


def test_a_server_that_stops_meanwhile_ends(serve: Callable[..., rs.Server], folder: Path) -> None:
    with serve(TABLE) as server, rs.Client(server.url) as client, rs.Client(server.url) as other:
        fill(client)
        evict(server.pid)
        (folder / "hold").touch()
        thread = _Background(lambda: other.sample("t", 200))
        wait_until(lambda: client.redis.info("clients")["blocked_clients"] == 1)
        releasing = _Background(lambda: (time.sleep(0.5), (folder / "hold").unlink()))
        assert server.stop() == 0, server.log()
        releasing.join()
        thread.join()


def test_snapshots_and_adds_of_what_was_put_out(folder: Path) -> None:
    with rs.Server([TABLE], directory=folder) as server, rs.Client(server.url) as client:
        fill(client, 4000)
        evict(server.pid)
        client.checkpoint()
        evict(server.pid)
        for first in range(4000, 8000, 500):  # into slots that others have left
            client.add("t", data_of(np.arange(first, first + 500)))
        check(client.sample("t", 500))
        with client.redis.pipeline(transaction=True) as pipe:  # in a transaction the disk is waited for
            evict(server.pid)
            pipe.execute_command("REPLAY.SAMPLE", "t", 10, "COLUMNS", 1, "image")
            assert len(pipe.execute()[0][-1]) == 10 * 100 * 100
    with rs.Server([TABLE], directory=folder, restore="latest") as server, rs.Client(server.url) as client:
        assert client.info("t")["size"] == 4000
        check(client.sample("t", 500))


def read_by_the_loop(server: rs.Server) -> int:
    """Bytes that the thread which serves has had to wait for, from the disk."""
    told = Path(f"/proc/{server.pid}/task/{server.pid}/io").read_text()
    return int(told.partition("\nread_bytes: ")[2].split()[0])


def test_adds_of_ragged_rows_do_not_wait_for_what_the_items_before_left(folder: Path) -> None:
    table = rs.Table("t", 1000, {"tokens": rs.Column("int32", (None,), max_length=5000)}, storage="disk")
    with rs.Server([table], directory=folder) as server, rs.Client(server.url) as client:

        def add(first: int, last: int) -> None:
            for n in range(first, last, 20):
                client.add(
                    "t", {"tokens": [np.arange(k, k + 1500 + k * 7 % 1000, dtype=np.int32) for k in range(n, n + 20)]}
                )

        add(0, 1000)
        evict(server.pid)
        before = read_by_the_loop(server)
        add(1000, 4000)
        assert read_by_the_loop(server) - before < 1 << 20
        tokens = client.sample("t", 200).data["tokens"]
        for row in (tokens[i] for i in range(200)):
            assert np.array_equal(row, np.arange(row[0], row[0] + 1500 + row[0] * 7 % 1000))
        assert client.info("t")["disk_bytes"] < 80 << 20


def test_compressed_steps_do_not_wait_for_what_the_steps_before_left(folder: Path) -> None:
    columns = {"frame": rs.Column("uint8", (84, 84), step_only=True), "stack": rs.Window("frame", length=2)}
    table = rs.Table("t", 1000, columns, compression="lz4", storage="disk")
    frames = np.random.default_rng(0).integers(0, 6, (4000, 84, 84)).astype(np.uint8)
    frames[:, 0, 0] = 0
    with (
        rs.Server([table], directory=folder) as server,
        rs.Client(server.url) as client,
        client.writer("t") as writer,
    ):

        def write(first: int, last: int) -> None:
            for step in range(first, last):
                writer.append({"frame": frames[step]})
                writer.create_item()
                if step % 50 == 49:
                    writer.flush()

        write(0, 1000)
        evict(server.pid)
        before = read_by_the_loop(server)
        write(1000, 4000)
        assert read_by_the_loop(server) - before < 32 << 10
        stack = client.sample("t", 200).data["stack"]
        shown = {frame.tobytes() for frame in frames}
        assert all(frame.tobytes() in shown for frame in stack.reshape(-1, 84, 84))


class _Background:
    """A call on another thread; whatever it raises is dropped."""

    def __init__(self, call: Callable[[], Any]) -> None:
        def run() -> None:
            with contextlib.suppress(rs.ReplayError, OSError):
                call()

        self._thread = threading.Thread(target=run, daemon=True)
        self._thread.start()

    def join(self) -> None:
        self._thread.join(60)
        assert not self._thread.is_alive()
