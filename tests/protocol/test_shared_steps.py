"""Tables that share the steps of another, against a plain-Python model: by every way to a server, through snapshots,
kills, rewritten files and replicas; that a step is stored once; and what is refused."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import shutil
import signal
import socket
import tempfile
import threading
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pytest
import redis
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule, run_state_machine_as_test
from links import eventually
from replica_tables import pair, settle

import replay_server as rs

MOST = 8
ALWAYS = {"appendonly": "yes", "appendfsync": "always"}
SIGNATURE = {
    "frame": rs.Column("uint8", (16, 16), step_only=True),
    "key": rs.Column("int64"),
    "obs": rs.Window("frame", length=3),
    "frames": rs.Window("frame", max_length=MOST),
}


def tables(compression: str = "none", capacity: int = 16, **owner: Any) -> tuple[rs.Table, rs.Table, rs.Table]:
    """The owner of the steps, a queue over them, and a table of another sampler."""
    one = rs.Table("t", capacity, SIGNATURE, compression=compression, **owner)
    queue = rs.Table("queue", 12, SIGNATURE, rs.Fifo(), compression=compression, max_times_sampled=1, steps_of="t")
    return one, queue, rs.Table("side", 10, SIGNATURE, rs.Uniform(), compression=compression, steps_of="t")


def frame(number: int) -> np.ndarray:
    made = np.full((16, 16), number % 7, np.uint8)
    made[0, :2] = number % 256, number // 256
    return made


def check(batch: rs.Batch, shown: dict[int, tuple[list[int], list[int]]]) -> None:
    """A batch's items by their keys: the numbers of the steps that each shows."""
    for place, key in enumerate(batch.data["key"].tolist()):
        obs, frames = shown[key]
        np.testing.assert_array_equal(batch.data["obs"][place], [frame(number) for number in obs])
        begin, end = batch.data["frames"].offsets[place : place + 2]
        rows = batch.data["frames"].values[begin:end]
        assert len(rows) == len(frames)
        assert all((row == frame(number)).all() for row, number in zip(rows, frames, strict=True))


class Machine(RuleBasedStateMachine):
    """Items of each table by key, in the order in which they leave, with the steps that they show."""

    compression = "none"
    unix = False
    appendonly = True

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="rs"))
        self.tables = tables(self.compression)
        self.live: dict[str, dict[int, tuple[list[int], list[int]]]] = {table.name: {} for table in self.tables}
        self.waiting: dict[str, dict[int, tuple[list[int], list[int]]]] = {table.name: {} for table in self.tables}
        self.saved: Any = None
        self.keys = itertools.count()
        self.steps = 0
        self.start()

    def start(self) -> None:
        config = ALWAYS if self.appendonly else {}
        self.server = rs.Server(
            list(self.tables), directory=str(self.folder), config=config, unix=str(self.folder / "socket")
        )
        self.client = rs.Client(f"unix://{self.folder / 'socket'}" if self.unix else self.server.url)
        self.begin()

    def begin(self) -> None:
        self.writer = self.client.writer("t", flush_steps=4, history=32, tables=["queue", "side"])
        self.first, self.episode, self.ended = self.steps, list[int](), False

    def settled(self) -> None:
        """All is sent, the writer is gone, and its streams are as well."""
        self.flush()
        self.writer.close(flush=False)
        eventually(lambda: self.client.info("t")["streams"] == 0, "the end of the streams")
        eventually(lambda: self.client.info("t")["steps"] == self.distinct(), "each step that an item shows, once")
        infos = {table.name: self.client.info(table.name) for table in self.tables}
        assert {name: info["size"] for name, info in infos.items()} == {n: len(items) for n, items in self.live.items()}
        assert infos["queue"]["steps"] == infos["side"]["steps"] == 0
        if self.compression == "none":
            assert infos["t"]["bytes"] == 256 * self.distinct() + 8 * len(self.live["t"])

    def distinct(self) -> int:
        items = [shown for table in self.live.values() for shown in table.values()]
        return len({number for obs, frames in items for number in (*obs, *frames)})

    @rule(count=st.integers(1, 12))
    def append(self, count: int) -> None:
        for _ in range(count):
            if self.ended:
                self.episode, self.ended = [], False
            self.writer.append({"frame": frame(self.steps)})
            self.episode.append(self.steps)
            self.steps += 1

    @rule()
    def end_episode(self) -> None:
        self.writer.end_episode()
        self.ended = True

    @precondition(lambda self: self.episode)
    @rule(names=st.lists(st.sampled_from(["t", "queue", "side"]), min_size=1, max_size=4), count=st.integers(0, MOST))
    def create_items(self, names: list[str], count: int) -> None:
        newest = self.episode[-1]
        obs = [max(newest - back, self.episode[0]) for back in (2, 1, 0)]
        for name in names:
            key = next(self.keys)
            columns = {"key": key, "frames": slice(len(self.episode) - count if count else 9999, None)}
            if count > len(self.episode):
                columns["frames"] = slice(-count, None)
            self.writer.create_item(1.0, columns=columns, table=None if name == "t" else name)
            self.waiting[name][key] = (obs, self.episode[-count:] if count else [])

    @rule()
    def flush(self) -> None:
        ids = self.writer.flush()
        assert len(ids) == len(self.waiting["t"])
        for table in self.tables:
            items = self.live[table.name]
            items |= self.waiting[table.name]
            self.waiting[table.name] = {}
            while len(items) > table.capacity:
                del items[next(iter(items))]

    @rule(count=st.integers(1, 4))
    def take_from_the_queue(self, count: int) -> None:
        self.flush()
        keys = list(self.live["queue"])[:count]
        if not keys:
            return
        batch = self.client.sample("queue", len(keys))
        assert batch.data["key"].tolist() == keys
        check(batch, self.live["queue"])
        for key in keys:
            del self.live["queue"][key]

    def all_of(self, name: str) -> rs.Batch:
        batch = self.client.sample(name, len(self.live[name]), replace=False)
        assert sorted(batch.data["key"].tolist()) == sorted(self.live[name])
        return batch

    @rule(name=st.sampled_from(["t", "side"]))
    def sample(self, name: str) -> None:
        self.flush()
        if self.live[name]:
            check(self.all_of(name), self.live[name])

    @rule(name=st.sampled_from(["t", "side"]), which=st.integers(0, 20), deletes=st.booleans())
    def delete_or_update(self, name: str, which: int, deletes: bool) -> None:
        self.flush()
        if not self.live[name]:
            return
        batch = self.all_of(name)
        place = which % len(batch.ids)
        if deletes:
            assert self.client.delete(name, batch.ids[place : place + 1]) == 1
            del self.live[name][int(batch.data["key"][place])]
        else:
            assert self.client.update_priorities(name, batch.ids[place : place + 1], np.array([3.0])) == (1, 0)

    @rule(name=st.sampled_from(["t", "queue", "side"]))
    def reset(self, name: str) -> None:
        self.flush()
        self.client.reset(name)
        self.live[name] = {}

    @rule()
    def save(self) -> None:
        self.flush()
        self.client.checkpoint("saved")
        self.saved = {name: dict(items) for name, items in self.live.items()}

    @precondition(lambda self: self.saved is not None)
    @rule()
    def restore(self) -> None:
        self.writer.close(flush=False)
        self.waiting = {name: {} for name in self.waiting}
        self.client.restore("saved")
        self.live = {name: dict(items) for name, items in self.saved.items()}
        self.begin()

    @precondition(lambda self: self.appendonly)
    @rule()
    def rewrite(self) -> None:
        count = self.client.redis.info("persistence")["aof_rewrites"]
        self.client.redis.execute_command("BGREWRITEAOF")
        eventually(lambda: self.client.redis.info("persistence")["aof_rewrites"] > count, "the rewritten file")

    @precondition(lambda self: self.appendonly)
    @rule(kills=st.booleans())
    def restart(self, kills: bool) -> None:
        self.flush()
        self.writer.close(flush=False)
        self.client.close()
        if kills:
            os.kill(self.server.pid, signal.SIGKILL)
        self.server.stop()
        self.start()

    @rule()
    def close_the_writer(self) -> None:
        self.settled()
        for name in ("t", "side"):
            if self.live[name]:
                check(self.all_of(name), self.live[name])
        self.begin()

    @rule()
    def drop_the_side(self) -> None:
        self.settled()
        self.client.drop_table("side")
        self.client.create_table(self.tables[2])
        self.live["side"] = {}
        if self.saved is not None:
            self.saved = None
        self.begin()

    def teardown(self) -> None:
        try:
            self.settled()
        finally:
            self.client.close()
            self.server.stop()
            shutil.rmtree(self.folder)


@pytest.mark.parametrize("kind", ["", "compressed", "shared memory", "without a file"])
def test_items_of_several_tables_show_what_was_appended(kind: str) -> None:
    made = type(
        "Made",
        (Machine,),
        {
            "compression": "lz4" if kind == "compressed" else "none",
            "unix": kind == "shared memory",
            "appendonly": kind != "without a file",
        },
    )
    run_state_machine_as_test(made, settings=settings(max_examples=8, stateful_step_count=30, deadline=None))


# ---- one at a time ---------------------------------------------------------------------------------------------------


@pytest.fixture
def client(tmp_path: Path):
    with rs.Server(list(tables(capacity=100)), directory=str(tmp_path)) as server, rs.Client(server.url) as made:
        yield made


def write(client: rs.Client, count: int, names: tuple[str, ...] = ("t", "side"), first: int = 0) -> dict[int, Any]:
    """Steps first, first + 1, …, an item in each table at each of them; what they show, by key."""
    with client.writer("t", tables=[name for name in names if name != "t"]) as writer:
        for step in range(first, first + count):
            writer.append({"frame": frame(step)})
            for name in names:
                writer.create_item(columns={"key": step, "frames": slice(-1, None)}, table=name)
    return {step: ([max(first, step - back) for back in (2, 1, 0)], [step]) for step in range(first, first + count)}


def test_steps_take_the_slots_and_the_bytes_of_one_table(client: rs.Client) -> None:
    shown = write(client, 10)
    one = client.info("t")
    assert (one["size"], one["steps"], one["bytes"]) == (10, 10, 10 * 256 + 10 * 8)
    side = client.info("side")
    assert (side["size"], side["steps"], side["bytes"], side["added"]) == (10, 0, 10 * 8, 10)
    check(client.sample("side", 50), shown)
    client.reset("t")
    assert client.info("t")["steps"] == 10
    check(client.sample("side", 50), shown)
    client.reset("side")
    eventually(lambda: client.info("t")["steps"] == 0, "no step")


def test_an_n_step_writer_makes_its_items_in_each_table(tmp_path: Path) -> None:
    signature = {
        "frame": rs.Column("float32", (4,), step_only=True),
        "obs": rs.Window("frame"),
        "next_obs": rs.Window("frame", offset=2),
        "action": rs.Column("int64"),
        "reward": rs.Column("float32"),
        "discount": rs.Column("float32"),
    }
    made = [rs.Table("t", 100, signature), rs.Table("queue", 100, signature, rs.Fifo(), steps_of="t")]
    with rs.Server(made, directory=str(tmp_path)) as server, rs.Client(server.url) as client:
        with client.writer("t", n_step=2, discount=0.5, tables=["queue"]) as writer:
            for step in range(8):
                writer.append({"frame": np.full(4, step, np.float32), "action": step, "reward": 1.0})
        assert client.info("t")["added"] == client.info("queue")["added"] > 0
        one, two = client.sample("t", 7, replace=False), client.sample("queue", 7)
        order = np.argsort(one.data["action"])
        for name in ("obs", "next_obs", "action", "reward", "discount"):
            np.testing.assert_array_equal(one.data[name][order], two.data[name])


def test_a_full_queue_holds_no_items_of_other_tables_back(tmp_path: Path) -> None:
    one, *_ = tables(capacity=100)
    queue = rs.Table.queue("queue", SIGNATURE, 2, steps_of="t")
    with rs.Server([one, queue], directory=str(tmp_path)) as server, rs.Client(server.url) as client:
        writer = client.writer("t", tables=["queue"], flush_steps=100)
        for step in range(6):
            writer.append({"frame": frame(step)})
            for table in ("queue", "t"):
                writer.create_item(columns={"key": step}, table=table)
        with pytest.raises(rs.Timeout, match="queue"):
            writer.flush(timeout=0.0)
        assert (client.info("t")["size"], client.info("queue")["size"], writer.waiting) == (6, 2, 4)
        keys: list[int] = []
        while len(keys) < 6:
            keys += client.sample("queue", 2).data["key"].tolist()
            with contextlib.suppress(rs.Timeout):
                writer.flush(timeout=0.0)
        assert keys == list(range(6)), "in order, none twice"
        writer.close()
        assert client.info("t")["size"] == 6


@pytest.fixture
def full_queue(tmp_path: Path):
    """A queue of two that owns the steps, and a table that shares them."""
    queue = rs.Table.queue("queue", SIGNATURE, 2)
    side = rs.Table("side", 100, SIGNATURE, steps_of="queue")
    with rs.Server([queue, side], directory=str(tmp_path)) as server, rs.Client(server.url) as made:
        yield made


def test_a_writer_that_waits_for_a_full_queue_has_sent_what_goes_to_other_tables(full_queue: rs.Client) -> None:
    writer = full_queue.writer("queue", tables=["side"], flush_steps=100)
    for step in range(6):
        writer.append({"frame": frame(step)})
        for table in ("queue", "side"):
            writer.create_item(columns={"key": step}, table=table)
    waits = threading.Thread(target=writer.flush, daemon=True)
    waits.start()
    eventually(lambda: full_queue.info("side")["size"] == 6, "the items of the other table")
    assert full_queue.info("queue")["size"] == 2
    keys = [full_queue.sample("queue", 2).data["key"].tolist() for _ in range(3)]
    assert keys == [[0, 1], [2, 3], [4, 5]]
    waits.join()
    writer.close()
    assert full_queue.info("side")["size"] == 6


def test_sends_that_are_due_do_not_wait_for_a_full_queue_of_an_earlier_one(full_queue: rs.Client) -> None:
    writer = full_queue.writer("queue", tables=["side"], flush_steps=1, in_flight=4)
    for step in range(6):
        writer.append({"frame": frame(step)})
        for table in ("queue", "side"):
            writer.create_item(columns={"key": step}, table=table)
        writer.flush(wait=False)
    eventually(lambda: full_queue.info("side")["size"] == 6, "the items of the other table")
    keys = [full_queue.sample("queue", 2).data["key"].tolist() for _ in range(3)]
    assert keys == [[0, 1], [2, 3], [4, 5]]
    writer.close()
    assert full_queue.info("side")["added"] == 6


def test_a_limit_of_one_table_leaves_the_batches_of_others_whole(tmp_path: Path) -> None:
    one = rs.Table("t", 100, SIGNATURE)
    side = rs.Table("side", 2, SIGNATURE, steps_of="t")

    def calls(client: rs.Client) -> int:
        return client.redis.info("commandstats")["cmdstat_replay.item"]["calls"]

    with rs.Server([one, side], directory=str(tmp_path)) as server, rs.Client(server.url) as client:
        writer = client.writer("t", tables=["side"], flush_steps=100)
        for step in range(8):
            writer.append({"frame": frame(step)})
            writer.create_item(columns={"key": step}, table="side")
        writer.flush()
        before = calls(client)
        assert before > 4, "eight were too many for the table at once"
        for step in range(8):
            writer.append({"frame": frame(step)})
            writer.create_item(columns={"key": step})
        writer.flush()
        assert calls(client) == before + 1
        writer.close()


def test_a_writer_goes_on_when_a_table_that_shares_was_made_anew(client: rs.Client) -> None:
    writer = client.writer("t", tables=["side"])
    writer.append({"frame": frame(0)})
    writer.create_item(columns={"key": 0}, table="side")
    writer.flush()
    client.drop_table("side")
    client.create_table(tables(capacity=100)[2])
    writer.create_item(columns={"key": 1}, table="side")
    with pytest.raises(rs.ConnectionLost, match="created again"):
        writer.flush()
    writer.create_item(columns={"key": 2}, table="side")
    writer.flush()
    writer.close()
    assert client.sample("side", 1).data["key"].tolist() == [2]


@pytest.mark.parametrize("compression", ["none", "lz4"])
def test_a_replica_has_the_steps_once_and_goes_on_with_all_tables(tmp_path: Path, compression: str) -> None:
    with pair(tmp_path, *tables(compression, capacity=100), appendonly="yes") as (primary, replica, link):
        for table in tables():
            replica.client.create_table(table)  # its own, which go
        write(replica.client, 9, first=100)
        shown = write(primary.client, 6)
        replica.follow(link.port)
        shown |= write(primary.client, 6, first=10)
        write(primary.client, 3, ("queue",), first=20)
        primary.client.create_table(rs.Table("late", 9, SIGNATURE, compression=compression, steps_of="t"))
        with primary.client.writer("t", tables=["late"]) as writer:
            writer.append({"frame": frame(30)})
            writer.create_item(columns={"key": 30, "frames": slice(-1, None)}, table="late")
        primary.client.reset("t")
        settle(primary, replica)
        eventually(lambda: primary.client.info("t")["steps"] == 12 + 3 + 1, "the steps that items show")
        assert replica.client.info("t")["steps"] == 12 + 3 + 1
        link.cut(mend=False)
        replica.promote()
        check(replica.client.sample("side", 10, replace=False), shown)
        check(replica.client.sample("late", 3), {30: ([30] * 3, [30])})
        assert replica.client.sample("queue", 3).data["key"].tolist() == [20, 21, 22]
        again = write(replica.client, 5, ("t", "side", "late"), first=40)
        check(replica.client.sample("t", 5, replace=False), again)
        check(replica.client.sample("late", 5), again | {30: ([30] * 3, [30])})


def test_a_replica_gives_up_all_tables_over_the_steps_of_a_record_that_it_cannot_apply(tmp_path: Path) -> None:
    with pair(tmp_path, *tables(capacity=100), rs.Table("apart", 10, SIGNATURE)) as (primary, replica, link):
        write(primary.client, 3)
        replica.follow(link.port)
        settle(primary, replica)

        def alter(data: bytes) -> bytes:
            altered = re.sub(rb"(?<=side\0).", b"\xff", data, flags=re.DOTALL)  # the number of the change
            link.whole = link.whole and altered == data  # it does not get another copy afterwards
            return altered

        link.alter = alter
        primary.client.reset("side")
        eventually(lambda: replica.client.tables() == ["apart"], "the end of the tables that show the steps")


def test_tables_come_back_after_a_kill_in_whichever_order_they_were_written(tmp_path: Path) -> None:
    made = tables(capacity=100)
    shown: dict[int, Any] = {}
    for round_ in range(4):
        server = rs.Server(list(made), directory=str(tmp_path), config=ALWAYS)
        with rs.Client(server.url) as client:
            shown |= write(client, 2, first=10 * round_)
            if round_ % 2:
                client.redis.execute_command("BGREWRITEAOF")
                eventually(lambda: client.redis.info("persistence")["aof_rewrites"] > 0, "the rewritten file")
            assert client.info("t")["size"] == client.info("side")["size"] == len(shown)
            check(client.sample("side", 20), shown)
            os.kill(server.pid, signal.SIGKILL)
        server.stop()


def test_a_kill_before_restored_tables_are_in_the_file_brings_back_the_former(tmp_path: Path) -> None:
    made = tables(capacity=100)
    server = rs.Server(list(made), directory=str(tmp_path), config=ALWAYS)
    with rs.Client(server.url) as client:
        write(client, 3)
        client.checkpoint("saved")
        shown = write(client, 10, first=10)
        in_the_way = tmp_path / "appendonlydir/appendonly.aof.1.base.snapshot.partial"
        in_the_way.mkdir()
        with pytest.raises(rs.ServerError, match="restored, but are not in the append-only file"):
            client.restore("saved")
        assert client.info("side")["size"] == client.info("t")["steps"] == 3
        os.kill(server.pid, signal.SIGKILL)
        server.stop()
        in_the_way.rmdir()
    with rs.Server(directory=str(tmp_path), config=ALWAYS) as server, rs.Client(server.url) as client:
        assert client.tables() == ["t", "queue", "side"]
        check(client.sample("side", 10, replace=False), shown)
        assert (client.info("t")["size"], client.info("t")["steps"]) == (13, 13)
        client.create_table(rs.Table("late", 10, SIGNATURE, steps_of="t"))
        check_goes_on(client, shown)


def test_what_shares_the_steps_of_a_table_whose_base_was_not_finished_is_passed_over_with_it(tmp_path: Path) -> None:
    made, folder = tables(capacity=100), tmp_path / "appendonlydir"
    server = rs.Server(list(made), directory=str(tmp_path), config=ALWAYS)
    with rs.Client(server.url) as client:
        write(client, 3)
        client.checkpoint("saved")
        shown = write(client, 10, first=10)
        first = (folder / "appendonly.aof.1.incr.aof").read_bytes()
        client.restore("saved")
        client.create_table(rs.Table("late", 10, SIGNATURE, steps_of="t"))
        write(client, 4, ("t", "side", "late"), first=200)
        os.kill(server.pid, signal.SIGKILL)
        server.stop()
    # As it was until the base was finished: the files before it count, and the increment behind it.
    (folder / "appendonly.aof.1.incr.aof").write_bytes(first)
    lines = [f"file appendonly.aof.{number}.incr.aof seq {number} type i\n" for number in (1, 2)]
    (folder / "appendonly.aof.manifest").write_text("".join(lines))
    with rs.Server(directory=str(tmp_path), config=ALWAYS) as server, rs.Client(server.url) as client:
        assert client.tables() == ["t", "queue", "side"]
        check(client.sample("side", 10, replace=False), shown)
        client.create_table(rs.Table("late", 10, SIGNATURE, steps_of="t"))
        check_goes_on(client, shown)


def test_a_file_is_read_beside_a_snapshot_whose_table_has_the_name_of_one_that_is_passed_over(tmp_path: Path) -> None:
    made, other = tables(capacity=100), tmp_path / "other"
    other.mkdir()
    with rs.Server([made[0]], directory=str(other), config=ALWAYS) as server, rs.Client(server.url) as client:
        client.checkpoint("saved")
        client.restore("saved")
        client.create_table(rs.Table("late", 10, SIGNATURE, steps_of="t"))
        write(client, 4, ("t", "late"))
    # The base that has the table was not finished, and nothing is before it.
    folder = tmp_path / "appendonlydir"
    folder.mkdir()
    shutil.copy(other / "appendonlydir/appendonly.aof.2.incr.aof", folder)
    (folder / "appendonly.aof.manifest").write_text("file appendonly.aof.2.incr.aof seq 2 type i\n")
    one = rs.Table("t", 100, {**SIGNATURE, "obs": rs.Window("frame", length=2)})
    with rs.Server([one], directory=str(tmp_path)) as server, rs.Client(server.url) as client:
        write(client, 3, ("t",))
        client.checkpoint()
    with (
        rs.Server(directory=str(tmp_path), config=ALWAYS, restore="latest") as server,
        rs.Client(server.url) as client,
    ):
        assert client.tables() == ["t"]
        assert client.info("t")["size"] == 3


def test_tables_come_from_a_snapshot_at_the_start_and_the_file_counts_beside_it(tmp_path: Path) -> None:
    made = tables(capacity=100)
    with rs.Server(list(made), directory=str(tmp_path)) as server, rs.Client(server.url) as client:
        shown = write(client, 6)
        client.checkpoint()
    for _ in range(2):
        server = rs.Server(list(made), directory=str(tmp_path), config=ALWAYS, restore="latest")
        with rs.Client(server.url) as client:
            eventually(lambda: client.redis.info("persistence")["aof_pending_rewrite"] == 0, "the file's base")
            check(client.sample("side", 20), shown)
            assert client.info("t")["steps"] == len(shown)
            shown |= write(client, 2, first=100 + len(shown))
        os.kill(server.pid, signal.SIGKILL)
        server.stop()


def check_goes_on(client: rs.Client, shown: dict[int, Any]) -> None:
    with client.writer("t", tables=["side", "late"]) as writer:
        writer.append({"frame": frame(999)})
        for name in ("side", "late"):
            writer.create_item(columns={"key": 999, "frames": slice(-1, None)}, table=name)
    shown = {**shown, 999: ([999] * 3, [999])}
    check(client.sample("side", 10, replace=False), shown)
    check(client.sample("late", 1), shown)


# ---- what is refused -------------------------------------------------------------------------------------------------


def test_the_owner_of_the_steps_goes_last(client: rs.Client) -> None:
    with pytest.raises(rs.ServerError, match="'t' cannot be dropped while table 'queue' shares its steps"):
        client.drop_table("t")
    write(client, 5)
    client.drop_table("queue")
    with pytest.raises(rs.ServerError, match="'t' cannot be dropped while table 'side' shares its steps"):
        client.drop_table("t")
    client.drop_table("side")
    client.drop_table("t")
    assert client.tables() == []


def test_steps_are_appended_to_their_owner(client: rs.Client) -> None:
    stream, flags = np.zeros(1, np.uint32).tobytes(), b""
    with pytest.raises(redis.ResponseError, match="table 'side' shares the steps of table 't'; append them there"):
        client.redis.execute_command(
            "REPLAY.APPEND", "side", 1, stream, flags, "COLUMNS", 1, "frame", frame(0).tobytes()
        )
    with pytest.raises(redis.ResponseError, match="stream 0 is not open"):
        client.redis.execute_command(
            "REPLAY.ITEM", "side", 1, stream, np.zeros(1, np.uint64).tobytes(), "",
            "COLUMNS", 2, "key", np.zeros(1, np.int64).tobytes(), "frames", np.zeros(2, np.uint64).tobytes(),
        )  # fmt: skip
    with pytest.raises(rs.SchemaError, match=r"make a writer to that one, with tables=\['side'\]"):
        client.writer("side")


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"steps_of": "nobody"}, "shares the steps of table 'nobody', which is not there"),
        ({"steps_of": "side"}, "'side', which shares those of 't'"),
        ({"signature": {**SIGNATURE, "obs": rs.Window("frame", length=2)}}, "the signature and the compression"),
        ({"compression": "lz4"}, "the signature and the compression"),
        ({"durable": False}, "expected durable as table 't' has it"),
        ({"capacity": 10_000_000}, "has room for the steps of"),
    ],
)
def test_a_table_that_does_not_fit_is_refused(client: rs.Client, changes: dict[str, Any], why: str) -> None:
    fields = {"name": "new", "capacity": 10, "signature": SIGNATURE, "steps_of": "t", **changes}
    before = client.tables()
    with pytest.raises(rs.ReplayError, match=why):
        client.create_table(rs.Table(**fields))
    assert client.tables() == before


def test_a_dropped_table_takes_its_room_until_its_last_reply_was_read(tmp_path: Path) -> None:
    signature = {"frame": rs.Column("uint8", (1 << 20,), step_only=True), "obs": rs.Window("frame", length=1)}
    sharing = [rs.Table(name, 100, signature, steps_of="t") for name in ("a", "b", "c")]
    with (
        rs.Server([rs.Table("t", 100, signature), *sharing], directory=str(tmp_path)) as server,
        rs.Client(server.url) as client,
    ):
        with pytest.raises(rs.SchemaError, match="each table has its capacity and 36864 slots more"):
            client.create_table(rs.Table("d", 100, signature, steps_of="t"))
        with client.writer("t", tables=["a"]) as writer:
            for _ in range(32):
                writer.append({"frame": np.zeros(1 << 20, np.uint8)})
                writer.create_item(table="a")
        address = client.redis.connection_pool.connection_kwargs
        with socket.create_connection((address["host"], address["port"])) as reader:
            reader.sendall(b"*3\r\n$13\r\nREPLAY.SAMPLE\r\n$1\r\na\r\n$2\r\n32\r\n")
            assert reader.recv(1) == b"*", "its beginning; more than the sockets hold is on its way"
            client.drop_table("a")
            with pytest.raises(rs.LimitExceeded, match="a dropped table still holds steps of table 't'"):
                client.create_table(sharing[0])

        def is_created() -> bool:
            with contextlib.suppress(rs.LimitExceeded):
                client.create_table(sharing[0])
            return "a" in client.tables()

        eventually(is_created, "the room of the table that went with its reply")


def test_spec_names_the_owner_and_the_same_table_again_is_success(client: rs.Client) -> None:
    assert msgpack.unpackb(client.redis.execute_command("REPLAY.SPEC", "side"))["steps_of"] == "t"
    client.create_table(tables(capacity=100)[2])
    with pytest.raises(rs.SchemaError, match="exists with another spec"):
        client.create_table(rs.Table("side", 10, SIGNATURE, rs.Uniform()))


def test_items_go_to_tables_that_the_writer_was_made_with(client: rs.Client) -> None:
    client.create_table(rs.Table("alone", 10, SIGNATURE))
    with pytest.raises(rs.SchemaError, match="'alone' does not share the steps of table 't'"):
        client.writer("t", tables=["alone"])
    with pytest.raises(rs.SchemaError, match="tables must be a list"):
        client.writer("t", tables="side")
    with pytest.raises(rs.SchemaError, match="each table once, got 'side' twice"):
        client.writer("t", tables=["side", "queue", "side"])
    with client.writer("t", tables=(name for name in ["side"])) as writer:
        writer.append({"frame": frame(0)})
        writer.create_item(columns={"key": 0}, table="side")
        with pytest.raises(rs.SchemaError, match="makes items in t, side, got 'queue'"):
            writer.create_item(columns={"key": 0}, table="queue")


def test_a_snapshot_without_a_table_that_shares_is_refused(client: rs.Client) -> None:
    for name in ("queue", "side"):
        client.drop_table(name)
    client.checkpoint("alone")
    client.create_table(tables(capacity=100)[2])
    shown = write(client, 5, ("t", "side"))
    with pytest.raises(rs.SchemaError, match="'side' shares the steps of table 't', which the snapshot has without it"):
        client.restore("alone")
    check(client.sample("side", 5), shown)


def test_whoever_shares_steps_may_write_their_owner(client: rs.Client) -> None:
    spec = rs.Table("other", 10, SIGNATURE, steps_of="t").pack()
    client.redis.execute_command("ACL", "SETUSER", "one", "on", ">word", "+@all", "~other")
    client.redis.execute_command("ACL", "SETUSER", "both", "on", ">word", "+@all", "~other", "~t")
    address = client.redis.connection_pool.connection_kwargs
    for user in ("one", "both"):
        with redis.Redis(address["host"], address["port"], username=user, password="word") as other:
            if user == "one":
                with pytest.raises(redis.exceptions.NoPermissionError, match="whose steps 'other' would share"):
                    other.execute_command("REPLAY.CREATE", "other", spec)
                assert "other" not in client.tables()
            else:
                assert other.execute_command("REPLAY.CREATE", "other", spec) == b"OK"
    with redis.Redis(address["host"], address["port"], username="one", password="word") as other:
        assert other.execute_command("REPLAY.CREATE", "other", spec) == b"OK", "it is there, with the same spec"


def test_shards_have_steps_of_their_own() -> None:
    one, queue, _ = tables()
    with pytest.raises(rs.SchemaError, match="on shards each has steps of its own"), rs.Cluster([one, queue], shards=2):
        pass
    with rs.Cluster([one], shards=2) as cluster, rs.Client(cluster.url) as client:
        with pytest.raises(rs.SchemaError, match="on shards each has steps of its own"):
            client.create_table(queue)
        with pytest.raises(rs.SchemaError, match="on a cluster no table shares"):
            client.writer("t", tables=["queue"])


def test_a_buffer_has_steps_of_its_own() -> None:
    one, queue, _ = tables()
    with pytest.raises(rs.SchemaError, match="needs a server"):
        rs.Buffer(queue)
    with pytest.raises(rs.SchemaError, match="a Buffer is one table"):
        rs.Buffer(one).writer(tables=["queue"])


def test_a_file_gives_a_buffer_the_owner_alone(client: rs.Client) -> None:
    shown = write(client, 5)
    path = client.checkpoint("both")
    buffer = rs.Buffer(tables(capacity=100)[0])
    buffer.restore(path)
    check(buffer.sample(20), shown)


def test_a_spec_that_cannot_be_is_refused_before_it_is_sent() -> None:
    columns = {"x": rs.Column("int64")}
    with pytest.raises(rs.SchemaError, match="has none"):
        rs.Table("new", 10, columns, steps_of="t")
    with pytest.raises(rs.SchemaError, match="of table 'new' itself"):
        rs.Table("new", 10, SIGNATURE, steps_of="new")
    with pytest.raises(rs.SchemaError, match="only tables in memory"):
        rs.Table("new", 10, SIGNATURE, steps_of="t", storage="disk")


def test_max_bytes_counts_what_others_show_and_says_so(tmp_path: Path) -> None:
    one, *_ = tables(capacity=100, max_bytes=64 * 256)
    side = rs.Table("side", 200, SIGNATURE, steps_of="t")
    with (
        rs.Server([one, side], directory=str(tmp_path)) as server,
        rs.Client(server.url) as client,
        client.writer("t", tables=["side"], history=4, flush_steps=1) as writer,
    ):

        def write_until_refused() -> None:
            for step in range(150):
                writer.append({"frame": frame(step)})
                writer.create_item(columns={"key": step, "frames": slice(-1, None)}, table="side")
                writer.flush()

        with pytest.raises(rs.LimitExceeded, match="items of the tables that share its steps, show those too"):
            write_until_refused()
        assert client.info("t")["size"] == 0
        client.reset("side")
        writer.flush()
