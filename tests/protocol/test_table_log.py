"""Tables in the append-only file: what a killed server has when it comes back."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import redis

import replay_server as rs

COLUMNS = {"x": rs.Column("float32", (3,)), "key": rs.Column("int64", ())}
ALL = rs.Table("t", 64, COLUMNS, seed=7)
OF_THE_PROCESS = {"incarnation", "free_slots", "pinned_slots", "reserved_slots", "retired_slots", "waiting", "streams"}


@contextlib.contextmanager
def serve(
    folder: Path, *tables: rs.Table, policy: str = "always", **options: Any
) -> Iterator[tuple[rs.Server, rs.Client]]:
    config = {"appendonly": "yes", "appendfsync": policy, **options.pop("config", {})}
    with (
        rs.Server(list(tables), directory=str(folder), config=config, **options) as server,
        rs.Client(server.url) as client,
    ):
        yield server, client


def kill(server: rs.Server) -> None:
    os.kill(server.pid, signal.SIGKILL)
    server.stop()


def increment(folder: Path, number: int = 1) -> Path:
    return folder / f"appendonlydir/appendonly.aof.{number}.incr.aof"


def batch(keys: Any) -> dict[str, Any]:
    keys = np.asarray(keys, np.int64)
    return {"x": np.stack([keys, keys + 1, keys + 2], axis=-1).astype(np.float32), "key": keys}


def told(client: rs.Client, name: str = "t") -> dict[str, Any]:
    return {key: value for key, value in client.info(name).items() if key not in OF_THE_PROCESS}


def live_items(client: rs.Client, ids: Any, name: str = "t") -> dict[int, tuple[Any, ...]]:
    """Of the ids those that are live: what their items hold, and the probability that each is drawn next."""
    found: dict[int, tuple[Any, ...]] = {}
    for item in map(int, ids):
        with contextlib.suppress(rs.ReplayError):
            got = client.get(name, np.array([item], np.uint64))
            held = tuple(np.asarray(got.data[key]).tobytes() for key in sorted(got.data) if key != "rows")
            rows = got.data["rows"].values.tobytes() if "rows" in got.data else b""
            found[item] = (*held, rows, got.probabilities[0])
    return found


def use(client: rs.Client, table: rs.Table, rounds: int, rng: np.random.Generator) -> list[int]:
    """Adds, draws, updates and deletes; returns every id that was given out."""
    ids: list[int] = []
    for turn in range(rounds):
        n = int(rng.integers(1, 9))
        data = batch(np.arange(n) + 100 * turn)
        if "rows" in table.signature:
            data["rows"] = [rng.random((int(rng.integers(0, 2000)), 2)) for _ in range(n)]
        if "policy_version" in table.signature:
            data["policy_version"] = np.full(n, turn // 3)
        ids += client.add(table.name, data, priorities=rng.random(n), timeout=5).tolist()
        drawn = client.sample(table.name, min(n, 3), timeout=5)
        client.update_priorities(table.name, drawn.ids, rng.random(len(drawn.ids)))
        if turn % 5 == 4:
            client.delete(table.name, np.array(ids[-2:], np.uint64))
    return ids


KINDS = {
    "prioritized": ALL,
    "heaps": rs.Table("t", 16, COLUMNS, sampler=rs.MaxHeap(), remover=rs.MinHeap(), seed=1),
    "removed by chance": rs.Table("t", 16, COLUMNS, sampler=rs.Uniform(), remover=rs.Prioritized(0.5), seed=2),
    "sampled at most twice": rs.Table("t", 32, COLUMNS, max_times_sampled=2, seed=3),
    "a queue": rs.Table.queue("t", COLUMNS, 200),
    "a ratio": rs.Table("t", 500, COLUMNS, rate_limiter=rs.SampleToInsertRatio(1.0, 1, 500.0), seed=4),
    "stale items leave": rs.Table(
        "t", 64, {**COLUMNS, "policy_version": rs.Column("int64", ())}, max_staleness=2, seed=5
    ),
    "ragged": rs.Table(
        "t", 24, {**COLUMNS, "rows": rs.Column("float64", (None, 2), max_length=2000)}, max_bytes=400_000, seed=6
    ),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rewritten", [False, True], ids=["", "rewritten"])
def test_a_table_is_after_a_kill_what_it_was(tmp_path: Path, kind: str, rewritten: bool) -> None:
    table, rng = KINDS[kind], np.random.default_rng(len(kind))
    with serve(tmp_path, table) as (server, client):
        ids = use(client, table, 25, rng)
        if rewritten:
            rewrite(client)
            ids += use(client, table, 10, rng)
        before, items = told(client), live_items(client, ids)
        kill(server)
    with serve(tmp_path, table) as (server, client):
        assert told(client) == before
        assert live_items(client, ids) == items
        new = use(client, table, 5, rng)
        assert not set(new) & set(ids)
        before, items = told(client), live_items(client, ids + new)
        kill(server)
    with serve(tmp_path) as (_, client):  # what was recorded behind what was read
        assert told(client) == before
        assert live_items(client, ids + new) == items


def rewrite(client: rs.Client) -> None:
    count = client.redis.info("persistence")["aof_rewrites"]
    client.redis.execute_command("BGREWRITEAOF")
    wait_until(lambda: client.redis.info("persistence")["aof_rewrites"] > count)


def wait_until(holds: Any) -> None:
    deadline = time.monotonic() + 20
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_draws_go_on_as_they_would_have(tmp_path: Path) -> None:
    with rs.Server([ALL]) as server, rs.Client(server.url) as client:
        use(client, ALL, 12, np.random.default_rng(1))
        expected = client.sample("t", 32)
    with serve(tmp_path, ALL) as (server, client):
        use(client, ALL, 12, np.random.default_rng(1))
        kill(server)
    with serve(tmp_path) as (_, client):
        drawn = client.sample("t", 32)
    assert drawn.data["key"].tolist() == expected.data["key"].tolist()
    assert drawn.probabilities.tolist() == expected.probabilities.tolist()


def test_settings_a_reset_and_a_closed_table_are_kept(tmp_path: Path) -> None:
    others = [rs.Table(name, 64, COLUMNS) for name in ("reset", "dropped", "remade", "closed")]
    with serve(tmp_path, ALL, *others) as (server, client):
        for table in others:
            client.add(table.name, batch(range(50)))
        ids = client.add("t", batch(range(50)))
        client.configure("t", max_times_sampled=5, sampler=rs.Uniform(), remover=rs.Lifo(), max_bytes=40 * 20)
        client.reset("reset")
        client.redis.execute_command("REPLAY.DROP", "dropped")
        client.redis.execute_command("REPLAY.DROP", "remade")
        client.create_table(rs.Table("remade", 5, {"only": rs.Column("uint8", ())}))
        client.redis.execute_command("REPLAY.CLOSETABLE", "closed", "the day is over")
        names = [name.decode() for name in client.redis.execute_command("REPLAY.LIST")]
        before = {name: told(client, name) for name in names}
        items = live_items(client, ids)
        kill(server)
    assert 0 < before["t"]["size"] < 50
    with serve(tmp_path) as (_, client):
        assert {name.decode() for name in client.redis.execute_command("REPLAY.LIST")} == set(names)
        assert {name: told(client, name) for name in names} == before
        assert live_items(client, ids) == items
        assert before["closed"]["closed_reason"] == "the day is over"


def test_a_table_given_with_other_settings_takes_them_and_keeps_its_items(tmp_path: Path) -> None:
    with serve(tmp_path, ALL) as (server, client):
        client.add("t", batch(range(50)))
        kill(server)
    other = rs.Table("t", 64, COLUMNS, seed=7, max_bytes=20 * 20, sampler=rs.Uniform())
    with serve(tmp_path, other) as (server, client):
        wait_until(lambda: client.info("t")["size"] == 20)
        before = told(client)
        kill(server)
    with serve(tmp_path) as (_, client):
        assert told(client) == before


# ---- steps ------------------------------------------------------------------------------------------------------


def frames(compression: str) -> rs.Table:
    signature = {
        "frame": rs.Column("uint8", (84, 84), step_only=True),
        "action": rs.Column("int64", ()),
        "obs": rs.Window("frame", length=4, offset=0),
        "next_obs": rs.Window("frame", length=4, offset=3),
    }
    return rs.Table("t", 100, signature, compression=compression, seed=1)


def frame_of(step: int) -> np.ndarray:
    return np.random.default_rng(step).integers(0, 4, (84, 84), np.uint8) * (np.arange(84) < 20)


@pytest.mark.parametrize("compression", ["none", "lz4"])
def test_frames_survive_and_a_writer_goes_on(tmp_path: Path, compression: str, free_port: int) -> None:
    table = frames(compression)
    ids: list[int] = []
    before: dict[str, Any] = {}
    items: dict[int, tuple[Any, ...]] = {}
    with rs.Client(f"redis://127.0.0.1:{free_port}") as client:
        for part in range(3):
            with serve(tmp_path, table, port=free_port) as (server, watching):
                if part == 0:
                    writer = client.writer("t", flush_steps=8)
                else:
                    assert told(watching) == before
                    assert live_items(watching, ids) == items
                    with contextlib.suppress(rs.ConnectionLost):  # it finds that its streams are gone
                        writer.append({"frame": frame_of(part * 60), "action": part * 60})
                        writer.flush()
                for step in range(part * 60, part * 60 + 60):
                    writer.append({"frame": frame_of(step), "action": step})
                    if step >= 3:
                        writer.create_item(1.0 + step, at=-1)
                    if step % 25 == 24:
                        writer.append({"frame": frame_of(step)})
                        writer.end_episode()
                    if step == part * 60 + 30 and part == 1:
                        rewrite(watching)
                ids += [int(i) for i in writer.flush()]
                before, items = told(watching), live_items(watching, ids)
                kill(server)
    with serve(tmp_path) as (_, client):
        assert told(client) == before
        assert live_items(client, ids) == items
        sampled = client.sample("t", 64)
        for action, obs in zip(sampled.data["action"], sampled.data["obs"], strict=True):
            assert (obs[-1] == frame_of(int(action))).all()


@pytest.mark.parametrize("compression", ["none", "lz4"])
def test_a_batch_whose_new_steps_fill_several_records_is_read_back(tmp_path: Path, compression: str) -> None:
    """The server refused its own file: the first record counted the items of the others as well.

    A writer of many environments reaches that with its first transitions, of which each shows four new frames.
    """
    noise, environments = np.random.default_rng(1), 30
    with serve(tmp_path, frames(compression)) as (server, client):
        writer = client.vector_writer("t", environments, flush_steps=8)
        for step in range(4):
            frame = noise.integers(0, 256, (environments, 84, 84), np.uint8)  # 7 kB each, compressed, too
            writer.append({"frame": frame, "action": np.full(environments, step)})
            writer.create_items(np.full(environments, 1.0 + step), -1)
        writer.end_episode()
        ids = [int(i) for i in writer.flush()]
        before, items = told(client), live_items(client, ids)
        kill(server)
    with serve(tmp_path) as (_, client):
        assert told(client) == before
        assert live_items(client, ids) == items


def test_a_batch_of_large_items_is_read_back(tmp_path: Path) -> None:
    table = rs.Table("t", 100, {"x": rs.Column("uint8", (40_000,))})
    data = {"x": np.random.default_rng(1).integers(0, 256, (60, 40_000), np.uint8)}
    with serve(tmp_path, table) as (server, client):
        ids = client.add("t", data).tolist()
        before, items = told(client), live_items(client, ids)
        kill(server)
    with serve(tmp_path) as (_, client):
        assert told(client) == before
        assert live_items(client, ids) == items


# ---- order, transactions, opting out ----------------------------------------------------------------------------


def test_a_transaction_over_a_table_and_keys_is_whole_or_absent(tmp_path: Path) -> None:
    with serve(tmp_path, ALL) as (server, client):
        ids = client.add("t", batch(range(8)), priorities=np.ones(8))
        client.redis.set("key", "before")
        start = increment(tmp_path).stat().st_size
        pipe = client.redis.pipeline(transaction=True)
        pipe.set("key", "after")
        pipe.execute_command("REPLAY.UPDATE", "t", ids[:4].tobytes(), np.full(4, 9.0).tobytes())
        pipe.execute_command("REPLAY.DEL", "t", ids[4:].tobytes())
        pipe.rpush("list", "a")
        pipe.execute()
        kill(server)
    whole = increment(tmp_path).read_bytes()
    assert start < len(whole)
    seen = set()
    for cut in np.linspace(start, len(whole), 14).astype(int):
        folder = tmp_path / f"cut{cut}"
        shutil.copytree(tmp_path / "appendonlydir", folder / "appendonlydir")
        increment(folder).write_bytes(whole[:cut])
        with serve(folder) as (_, client):
            state = (
                client.redis.get("key"),
                client.info("t")["size"],
                client.info("t")["max_priority"],
                client.redis.llen("list"),
            )
        seen.add(state)
    assert seen == {(b"before", 8, 1.0, 0), (b"after", 4, 9.0, 1)}


def test_a_table_may_stay_out_of_the_file(tmp_path: Path) -> None:
    out = rs.Table("out", 64, COLUMNS, durable=False)
    with serve(tmp_path, ALL, out) as (server, client):
        client.add("t", batch(range(3)))
        size = increment(tmp_path).stat().st_size
        client.add("out", batch(range(60)))
        client.sample("out", 10)
        assert increment(tmp_path).stat().st_size == size
        rewrite(client)
        kill(server)
    with serve(tmp_path) as (_, client):
        assert client.redis.execute_command("REPLAY.LIST") == [b"t"]


def test_updates_of_priorities_may_stay_out_of_the_file(tmp_path: Path) -> None:
    table = rs.Table("t", 64, COLUMNS, log_priorities=False)
    with serve(tmp_path, table) as (server, client):
        ids = client.add("t", batch(range(3)), priorities=np.full(3, 2.0))
        client.update_priorities("t", ids, np.full(3, 8.0))
        ids = np.concatenate([ids, client.add("t", batch(range(3)), priorities=np.full(3, 4.0))])
        kill(server)
    with serve(tmp_path) as (_, client):
        assert client.info("t")["max_priority"] == 4.0
        assert client.info("t")["updates_applied"] == 3
        assert len(live_items(client, ids)) == 6


def test_a_file_begun_at_run_time_has_the_tables_that_were_there(tmp_path: Path) -> None:
    tables = [frames("lz4"), rs.Table("plain", 64, COLUMNS)]
    with rs.Server(tables, directory=str(tmp_path)) as server, rs.Client(server.url) as client:
        writer = client.writer("t")
        for step in range(40):
            writer.append({"frame": frame_of(step), "action": step})
            if step >= 3:
                writer.create_item(1.0, at=-1)
            if step == 20:
                ids = [int(i) for i in writer.flush()]
                client.redis.config_set("appendonly", "yes")
                client.redis.config_set("appendfsync", "always")
                wait_until(lambda: client.redis.info("persistence")["aof_pending_rewrite"] == 0)
        ids += [int(i) for i in writer.flush()]
        client.add("plain", batch(range(9)))
        before, items = told(client), live_items(client, ids)
        kill(server)
    with serve(tmp_path) as (_, client):
        assert told(client) == before
        assert live_items(client, ids) == items
        assert client.info("plain")["size"] == 9


def test_a_table_restored_while_serving_comes_into_the_file(tmp_path: Path) -> None:
    with serve(tmp_path, ALL) as (server, client):
        saved = client.add("t", batch(range(10)))
        path = client.checkpoint()
        client.add("t", batch(range(30)))
        client.redis.execute_command("REPLAY.RESTORE", Path(path).name)
        new = client.add("t", batch([77]))
        before, items = told(client), live_items(client, [*saved, *new])
        kill(server)
    with serve(tmp_path) as (_, client):
        assert told(client) == before
        assert live_items(client, [*saved, *new]) == items
        assert len(items) == 11


def test_a_kill_before_a_restored_table_is_in_the_file_brings_back_the_former(tmp_path: Path) -> None:
    with serve(tmp_path, ALL) as (server, client):
        client.add("t", batch(range(10)))
        path = client.checkpoint()
        ids = client.add("t", batch(range(30)))
        before, items = told(client), live_items(client, ids)
        in_the_way = tmp_path / "appendonlydir/appendonly.aof.1.base.snapshot.partial"
        in_the_way.mkdir()
        with pytest.raises(redis.ResponseError, match="restored, but are not in the append-only file"):
            client.redis.execute_command("REPLAY.RESTORE", Path(path).name)
        assert client.info("t")["size"] == 10
        with pytest.raises(rs.ReplayError, match="MISCONF Restored tables are not in the AOF file"):
            client.add("t", batch([77]))
        client.redis.set("k", "v")
        kill(server)
        in_the_way.rmdir()
    with serve(tmp_path) as (_, client):
        assert told(client) == before
        assert live_items(client, ids) == items
        assert client.redis.get("k") == b"v"


def test_the_file_counts_where_a_snapshot_is_restored_beside_it(tmp_path: Path) -> None:
    with serve(tmp_path, ALL) as (server, client):
        client.add("t", batch(range(10)))
        client.checkpoint()
        client.add("t", batch(range(30)))
        kill(server)
    with serve(tmp_path, restore="latest") as (server, client):
        assert client.info("t")["size"] == 40
        assert "table 't': 40 items of 40 added" in server.log()


# ---- damage -----------------------------------------------------------------------------------------------------


def test_a_changed_byte_within_a_batch_is_refused_with_its_place(tmp_path: Path) -> None:
    with serve(tmp_path, ALL) as (server, client):
        for start in range(5):
            client.add("t", batch(range(start, start + 10)))
        kill(server)
    file = increment(tmp_path)
    written = bytearray(file.read_bytes())
    written[len(written) // 2] ^= 1
    file.write_bytes(written)
    with pytest.raises(rs.ReplayError, match=rf"{file.name}, byte \d+"), serve(tmp_path):
        pass


def test_a_missing_record_is_noticed(tmp_path: Path) -> None:
    """Even where the checksums do not tell: they stand in the file, and this takes them out."""
    with serve(tmp_path, ALL) as (server, client):
        for start in range(5):
            client.add("t", batch(range(start, start + 10)))
        kill(server)
    file = increment(tmp_path)
    lines = rb"#(CRC|SYNCED):[0-9a-f:]+\r\n"
    commands = re.split(rb"(?=\*3\r\n\$12\r\nREPLAY\.APPLY)", re.sub(lines, b"", file.read_bytes()))
    assert len(commands) > 5
    file.write_bytes(b"".join(commands[:3] + commands[4:]))
    with pytest.raises(rs.ReplayError, match=r"expected its change 3, got 4"), serve(tmp_path):
        pass


# ---- kills during long work -----------------------------------------------------------------------------------------


def test_what_happens_during_a_reset_does_not_bring_items_back(tmp_path: Path) -> None:
    table = rs.Table("t", 1_000_000, {"key": rs.Column("int64", ())})
    with serve(tmp_path, table) as (server, client), rs.Client(server.url) as other:
        for first in range(0, 1_000_000, 100_000):
            ids = client.add("t", {"key": np.arange(first, first + 100_000)})

        def reset() -> None:
            with contextlib.suppress(rs.ReplayError):
                other.reset("t")

        resetting = threading.Thread(target=reset)
        resetting.start()
        wait_until(lambda: client.info("t")["size"] < 1_000_000)
        client.delete("t", ids[-5:])
        client.update_priorities("t", ids[:5], np.full(5, 9.0))
        kill(server)
        resetting.join()
    with serve(tmp_path) as (_, client):
        after = client.info("t")
        assert (after["size"], after["added"], after["removed"]) == (0, 1_000_000, 1_000_000)


def test_settings_that_the_priorities_in_the_file_would_not_allow(tmp_path: Path) -> None:
    table = rs.Table("t", 64, COLUMNS, log_priorities=False)
    with serve(tmp_path, table) as (server, client):
        ids = client.add("t", batch(range(10)), priorities=np.full(10, 1e200))
        client.update_priorities("t", ids, np.ones(10))
        client.configure("t", sampler=rs.Prioritized(3.0))
        kill(server)
    with serve(tmp_path) as (_, client):
        assert client.info("t")["size"] == 10
        assert set(client.sample("t", 5).ids.tolist()) <= set(ids.tolist())


@pytest.mark.parametrize("given", [{"durable": False}, {"log_priorities": False}])
def test_a_table_given_with_another_way_to_be_kept_is_refused_by_name(tmp_path: Path, given: dict[str, bool]) -> None:
    with serve(tmp_path, ALL) as (server, client):
        client.add("t", batch(range(3)))
        kill(server)
    name = next(iter(given))
    with (
        pytest.raises(rs.ServerError, match=f"{name}=False, which a live|{name}=False and log_priorities=True"),
        serve(tmp_path, rs.Table("t", 64, COLUMNS, seed=7, **given)),
    ):
        pass
