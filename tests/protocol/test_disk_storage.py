"""Tables whose large columns lie on disk: they behave as tables in memory do, come back from files, and refuse what
does not fit."""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import replay_server as rs

PLAIN = {"image": rs.Column("uint8", (50, 90)), "vector": rs.Column("float32", (30,)), "number": rs.Column("int64")}
RAGGED = {"tokens": rs.Column("int32", (None,), max_length=3000), "number": rs.Column("int64")}
WINDOWS = {
    "frame": rs.Column("uint8", (60, 60), step_only=True),
    "stack": rs.Window("frame", length=4),
    "next": rs.Window("frame", length=4, offset=1),
    "number": rs.Column("int64"),
}


def rows(signature: dict[str, Any], numbers: np.ndarray) -> dict[str, Any]:
    """Items that their numbers determine."""
    if signature is RAGGED:
        return {"tokens": [np.arange(n, n + n * 37 % 3000, dtype=np.int32) for n in numbers], "number": numbers}
    image = (np.arange(50 * 90).reshape(50, 90) + numbers[:, None, None]).astype(np.uint8)
    vector = (np.arange(30) * 0.5 + numbers[:, None]).astype(np.float32)
    return {"image": image, "vector": vector, "number": numbers}


def same(left: rs.Batch, right: rs.Batch) -> None:
    """But for ids: which slot an item gets is another matter on disk."""
    assert np.allclose(left.probabilities, right.probabilities, rtol=1e-12)
    for name, column in left.data.items():
        other = right.data[name]
        if isinstance(column, rs.Ragged):
            assert column.values.tobytes() == other.values.tobytes()
            assert column.offsets.tobytes() == other.offsets.tobytes()
        else:
            assert column.tobytes() == other.tobytes()


def check_contents(batch: rs.Batch, signature: dict[str, Any]) -> None:
    expected = rows(signature, batch.data["number"])
    for name, column in batch.data.items():
        if isinstance(column, rs.Ragged):
            for i, row in enumerate(expected[name]):
                assert np.array_equal(column[i], row)
        else:
            assert np.array_equal(column, expected[name])


@pytest.mark.parametrize("signature", [PLAIN, RAGGED], ids=["plain", "ragged"])
@pytest.mark.parametrize("seed", [1, 2])
def test_equals_a_table_in_memory(server: rs.Server, client: rs.Client, signature: dict[str, Any], seed: int) -> None:
    """The same random operations give the same answers, and samples show items that are there."""
    random = np.random.default_rng(seed)
    tables = [f"model_{storage}_{seed}_{'tokens' in signature}" for storage in rs.table.STORAGES]
    for name, storage in zip(tables, rs.table.STORAGES, strict=True):
        client.create_table(rs.Table(name, 300, signature, seed=7, storage=storage))
    numbers = itertools.count()
    known: list[tuple[int, int]] = []
    live: dict[int, int] = {}
    for _ in range(150):
        kind, n = random.integers(6), int(random.integers(1, 80))
        if kind <= 1 or len(known) < 100:
            data = rows(signature, np.array(list(itertools.islice(numbers, n)), np.int64))
            priorities = random.random(n) + 0.1
            first, second = (client.add(name, data, priorities) for name in tables)
            known = [*known, *zip(first.tolist(), second.tolist(), strict=True)]
            live |= dict(zip(second.tolist(), data["number"].tolist(), strict=True))
            known, live = known[-300:], {each[1]: live[each[1]] for each in known[-300:]}
        elif kind == 2:
            for name in tables:
                check_contents(batch := client.sample(name, n, beta=0.4), signature)
                assert set(batch.data["number"]) <= set(live.values())
        elif kind == 3:
            chosen, priorities = random.choice(known, n), random.random(n)
            answers = [
                client.update_priorities(name, np.ascontiguousarray(ids, np.uint64), priorities)
                for name, ids in zip(tables, chosen.T, strict=True)
            ]
            assert answers[0] == answers[1]
        elif kind == 4:
            gone = [known[i] for i in random.choice(len(known), 3, replace=False)]
            for name, ids in zip(tables, zip(*gone, strict=True), strict=True):
                assert client.delete(name, list(ids)) == 3
            known = [each for each in known if each not in gone]
            live = {each[1]: live[each[1]] for each in known}
        else:
            chosen = random.choice(known[-100:], n)
            same(
                *(
                    client.get(name, np.ascontiguousarray(ids, np.uint64))
                    for name, ids in zip(tables, chosen.T, strict=True)
                )
            )
    for name in tables:
        check_contents(client.sample(name, 200), signature)
    first, second = (client.info(name) for name in tables)
    assert [first["storage"], second["storage"]] == ["memory", "disk"]
    assert first["disk_bytes"] == 0 < second["disk_bytes"]
    for name in ("size", "bytes", "added", "sampled", "removed", "stale_updates", "free_slots"):
        assert first[name] == second[name], name
    for name in tables:
        client.drop_table(name)


@pytest.mark.parametrize("compression", ["none", "lz4"])
def test_windows_equal_those_in_memory(server: rs.Server, client: rs.Client, compression: str) -> None:
    """Steps that are written once, compressed or not, with windows over them."""
    random = np.random.default_rng(3)
    tables = [f"windows_{storage}_{compression}" for storage in rs.table.STORAGES]
    writers = []
    for name, storage in zip(tables, rs.table.STORAGES, strict=True):
        client.create_table(rs.Table(name, 200, WINDOWS, seed=7, compression=compression, storage=storage))
        writers.append(client.writer(name))
    frames = random.integers(0, 4, (900, 60, 60)).astype(np.uint8)
    for step in range(900):
        for writer in writers:
            writer.append({"frame": frames[step]})
            if step % 100 >= 1:
                writer.create_item(1.0 + step % 7, at=-2, columns={"number": step - 1})
            if step % 100 == 99:
                writer.end_episode()
    for writer in writers:
        writer.close()
    for name in (*tables, *tables):
        batch = client.sample(name, 200)
        at = batch.data["number"]
        for i in range(4):
            shown = np.maximum(at - 3 + i, at // 100 * 100)
            assert np.array_equal(batch.data["stack"][:, i], frames[shown])
        assert np.array_equal(batch.data["next"][:, 3], frames[at + 1])
    first, second = (client.info(name) for name in tables)
    assert first["step_bytes"] == second["step_bytes"]
    assert second["disk_bytes"] > 0
    for name in tables:
        client.drop_table(name)


@pytest.mark.parametrize("signature", [PLAIN, RAGGED], ids=["plain", "ragged"])
def test_comes_back_from_a_snapshot(tmp_path: Path, signature: dict[str, Any]) -> None:
    table = rs.Table("t", 400, signature, storage="disk", seed=5)
    with rs.Server([table], directory=tmp_path) as server, rs.Client(server.url) as client:
        ids = client.add("t", rows(signature, np.arange(400)), np.arange(400) + 1.0)
        client.add("t", rows(signature, np.arange(400, 500)))
        client.checkpoint()
    with rs.Server([table], directory=tmp_path, restore="latest") as server, rs.Client(server.url) as client:
        info = client.info("t")
        assert (info["size"], info["storage"]) == (400, "disk")
        assert info["disk_bytes"] > 0
        check_contents(client.sample("t", 300), signature)
        assert client.get("t", ids[100:]).data["number"].tolist() == list(range(100, 400))
        client.add("t", rows(signature, np.arange(500, 600)))
        check_contents(client.sample("t", 300), signature)


def test_comes_back_from_the_log_after_a_kill(tmp_path: Path) -> None:
    table = rs.Table("t", 400, PLAIN, storage="disk")
    settings = {"appendonly": "yes", "appendfsync": "always"}
    with rs.Server([table], directory=tmp_path, config=settings) as server, rs.Client(server.url) as client:
        for first in range(0, 600, 100):
            ids = client.add("t", rows(PLAIN, np.arange(first, first + 100)))
        os.kill(server.pid, 9)
    with rs.Server([table], directory=tmp_path, config=settings) as server, rs.Client(server.url) as client:
        assert client.info("t")["size"] == 400
        assert client.get("t", ids).data["number"].tolist() == list(range(500, 600))
        check_contents(client.sample("t", 300), PLAIN)


def test_a_replica_has_it_on_its_own_disk(tmp_path: Path) -> None:
    folders = [tmp_path / "a", tmp_path / "b"]
    for folder in folders:
        folder.mkdir()
    table = rs.Table("t", 300, PLAIN, storage="disk")
    with (
        rs.Server([table], directory=folders[0]) as primary,
        rs.Server(directory=folders[1]) as replica,
        rs.Client(primary.url) as client,
        rs.Client(replica.url) as reader,
    ):
        client.add("t", rows(PLAIN, np.arange(200)))
        host, port = primary.url.removeprefix("redis://").split(":")
        reader.redis.execute_command("REPLICAOF", host, port)
        ids = client.add("t", rows(PLAIN, np.arange(200, 400)))
        assert client.redis.wait(1, 20000) == 1
        assert reader.info("t")["size"] == 300
        assert reader.info("t")["storage"] == "disk"
        assert np.array_equal(reader.get("t", ids).data["image"], rows(PLAIN, np.arange(200, 400))["image"])


def test_leaves_nothing_in_the_folder(tmp_path: Path) -> None:
    table = rs.Table("t", 300, PLAIN, storage="disk")
    with rs.Server([table], directory=tmp_path) as server, rs.Client(server.url) as client:
        client.add("t", rows(PLAIN, np.arange(200)))
        assert not list(tmp_path.iterdir())
        client.drop_table("t")
        client.create_table(table)
        assert client.info("t")["size"] == 0
        client.add("t", rows(PLAIN, np.arange(200)))
        client.reset("t")
        client.add("t", rows(PLAIN, np.arange(50)))
        check_contents(client.sample("t", 30), PLAIN)


def test_refusals_say_what_to_do(client: rs.Client) -> None:
    with pytest.raises(rs.SchemaError, match="memory, disk"):
        rs.Table("t", 10, PLAIN, storage="tape")
    with pytest.raises(rs.SchemaError, match="at least 64 bytes"):
        rs.Table("t", 10, {"x": rs.Column("float32", (2,))}, storage="disk")
    with pytest.raises(rs.SchemaError, match="needs a server"):
        rs.Buffer(rs.Table("t", 10, PLAIN, storage="disk"))
    spec = rs.Table("t", 10, PLAIN).to_spec()
    with pytest.raises(rs.SchemaError, match=r"storage: expected .*disk"):
        client.create_table(_WithStorage(spec, "tape"))
    client.create_table(rs.Table("kept", 10, PLAIN))
    with pytest.raises(rs.ReplayError, match="another spec"):
        client.create_table(rs.Table("kept", 10, PLAIN, storage="disk"))
    client.drop_table("kept")


class _WithStorage(rs.Table):
    """A table whose spec names any storage."""

    def __init__(self, spec: dict[str, Any], storage: str) -> None:
        made = rs.Table.from_spec(spec)
        self.__dict__.update(made.__dict__)
        self.__dict__["storage"] = storage


def test_a_sample_whose_items_would_be_pinned_beyond_the_limit_is_refused(client: rs.Client) -> None:
    signature = {"row": rs.Column("uint8", (64,))}
    client.create_table(rs.Table("many", 10_000, signature, storage="disk"))
    client.add("many", {"row": np.zeros((10_000, 64), np.uint8)})
    with pytest.raises(rs.LimitExceeded, match="at most 8192 items of table 'many', which is on disk, got 8193"):
        client.sample("many", 8193, replace=False, timeout=0.0)
    assert len(client.sample("many", 8192, replace=False).ids) == 8192
    assert len(client.sample("many", 20_000).ids) == 20_000
    client.drop_table("many")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 8 MB."""
    if os.geteuid() != 0 or not shutil.which("mount"):
        pytest.skip("only root may mount a small file system")
    mounted = tmp_path / "small"
    mounted.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", mounted], check=False).returncode:
        pytest.skip("this container may not mount")
    yield mounted
    subprocess.run(["umount", mounted], check=True)


@pytest.mark.parametrize("signature", [PLAIN, RAGGED], ids=["plain", "ragged"])
def test_a_full_disk_refuses_adds_and_serves_on(small_disk: Path, signature: dict[str, Any]) -> None:
    table = rs.Table("t", 50_000, signature, storage="disk")
    with rs.Server([table], directory=small_disk) as server, rs.Client(server.url) as client:
        added: list[int] = []

        def fill() -> None:
            for first in range(0, 50_000, 100):
                added.extend(client.add("t", rows(signature, np.arange(first, first + 100))).tolist())

        with pytest.raises(rs.LimitExceeded, match=r"no space on disk.*No space left"):
            fill()
        assert 300 < len(added) < 3000
        assert client.info("t")["size"] == len(added)
        check_contents(client.sample("t", 200), signature)
        client.delete("t", added[:200])
        client.add("t", rows(signature, np.arange(100)))  # in slots that others have left
        check_contents(client.sample("t", 200), signature)
        assert server.running


def fill_disk(folder: Path) -> None:
    """Takes all of its space."""
    with contextlib.suppress(OSError), (folder / "filler").open("wb", buffering=0) as filler:
        while filler.write(b"x" * 4096):
            pass


@pytest.mark.parametrize("remover", [rs.Fifo(), rs.Uniform()], ids=["fifo", "uniform"])
def test_a_full_disk_takes_adds_that_evict_as_many(small_disk: Path, remover: rs.Selector) -> None:
    table = rs.Table("t", 1000, PLAIN, storage="disk", remover=remover)
    with rs.Server([table], directory=small_disk) as server, rs.Client(server.url) as client:
        client.add("t", rows(PLAIN, np.arange(1000)))
        fill_disk(small_disk)
        for first in range(1000, 5000, 1000):
            ids = client.add("t", rows(PLAIN, np.arange(first, first + 1000)))
            assert client.info("t")["size"] == 1000
            check_contents(client.get("t", ids), PLAIN)
        for first in range(5000, 8000, 600):
            client.add("t", rows(PLAIN, np.arange(first, first + 600)))
            check_contents(client.sample("t", 200), PLAIN)
        assert client.info("t")["size"] == 1000


SHIM = r"""
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>
int fallocate(int descriptor, int mode, off_t from, off_t bytes) {
    int failed = (int)syscall(SYS_fallocate, descriptor, mode, from, bytes), error = errno;
    int told = failed ? open(getenv("TEST_REFUSED"), O_WRONLY | O_APPEND | O_CREAT, 0600) : -1;
    if (told >= 0 && write(told, "x", 1) == 1) close(told);
    errno = error;
    return failed;
}
int fallocate64(int descriptor, int mode, off_t from, off_t bytes) { return fallocate(descriptor, mode, from, bytes); }
"""


def test_a_full_disk_is_not_asked_for_space_at_each_add(
    shim: str, small_disk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LD_PRELOAD", shim)
    monkeypatch.setenv("TEST_REFUSED", str(tmp_path / "refused"))
    table = rs.Table("t", 50_000, PLAIN, storage="disk")
    with rs.Server([table], directory=small_disk) as server, rs.Client(server.url) as client:
        fill_disk(small_disk)
        refused = 0
        while refused < 400:
            try:
                client.add("t", rows(PLAIN, np.arange(10)))
            except rs.LimitExceeded:
                refused += 1
        assert 0 < len((tmp_path / "refused").read_bytes()) < 200
        (small_disk / "filler").unlink()
        deadline = time.monotonic() + 60
        while True:  # it is asked again, if not at once
            try:
                client.add("t", rows(PLAIN, np.arange(10)))
                break
            except rs.LimitExceeded:
                assert time.monotonic() < deadline


def test_a_folder_that_is_full_or_unwritable_refuses_the_table(small_disk: Path) -> None:
    with rs.Server(directory=small_disk) as server, rs.Client(server.url) as client:
        (small_disk / "filler").write_bytes(b"x" * (8 << 20))
        with pytest.raises(rs.ReplayError, match="no space on disk"):
            client.create_table(rs.Table("t", 100, PLAIN, storage="disk"))
        (small_disk / "filler").unlink()
        subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)
        with pytest.raises(rs.ReplayError, match=r"storage can be made.*Read-only"):
            client.create_table(rs.Table("t", 100, PLAIN, storage="disk"))
        subprocess.run(["mount", "-o", "remount,rw", small_disk], check=True)
        client.create_table(rs.Table("t", 100, PLAIN, storage="disk"))
