"""Tables, weights and gradients on replicas while they follow their primary."""

from __future__ import annotations

import contextlib
import resource
import threading
from pathlib import Path

import msgpack
import numpy as np
import pytest
import redis
from durable import assert_same as assert_same_keys
from durable import contents
from links import eventually, start
from replica_tables import TABLE, Member, assert_same, pair, serve, settle
from test_gradients import random_vectors
from test_table_log import COLUMNS, KINDS, batch, frame_of, frames, live_items, told, use

import replay_server as rs

# ---- the same table ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_a_replica_has_the_table_and_goes_on_with_it(tmp_path: Path, kind: str) -> None:
    table, rng = KINDS[kind], np.random.default_rng(len(kind))
    with pair(tmp_path, table) as (primary, replica, link):
        ids = use(primary.client, table, 12, rng)
        replica.follow(link.port)
        assert_same(primary, replica, ids)
        ids += use(primary.client, table, 20, rng)
        assert primary.redis.wait(1, 60_000) == 1
        assert_same(primary, replica, ids)
        link.cut(mend=False)
        replica.promote()
        assert_same(primary, replica, ids)
        if kind == "prioritized":
            expected, drawn = primary.client.sample("t", 20), replica.client.sample("t", 20)
            assert drawn.ids.tolist() == expected.ids.tolist(), "chance goes on as it would have"
            assert drawn.probabilities.tolist() == expected.probabilities.tolist()
        new = use(replica.client, table, 8, rng)
        assert not set(new) & set(ids)


@pytest.mark.parametrize("compression", ["none", "lz4"])
def test_a_replica_has_the_steps_that_items_see(tmp_path: Path, compression: str) -> None:
    table, ids = frames(compression), list[int]()
    with pair(tmp_path, table) as (primary, replica, link):
        writer = primary.client.writer("t", flush_steps=8)
        for step in range(300):
            writer.append({"frame": frame_of(step), "action": step})
            if step % 90 > 8:
                writer.create_item(1.0 + step, at=-1)
            if step == 100:
                replica.follow(link.port)
            if step % 90 == 89:
                writer.append({"frame": frame_of(step)})
                writer.end_episode()
        ids += [int(i) for i in writer.flush()]
        writer.close()
        eventually(lambda: primary.client.info("t")["streams"] == 0, "the end of the stream")
        settle(primary, replica)
        assert_same(primary, replica, ids)
        link.cut(mend=False)
        replica.promote()
        live = np.array(list(live_items(replica.client, ids)), np.uint64)
        want, got = primary.client.get("t", live), replica.client.get("t", live)
        assert len(live) > 90
        for column in ("obs", "next_obs", "action"):
            np.testing.assert_array_equal(got.data[column], want.data[column])
        with replica.client.writer("t") as again:
            for step in range(12):
                again.append({"frame": frame_of(step), "action": step})
                if step > 8:
                    again.create_item(1.0, at=-1)
        assert replica.client.info("t")["added"] == primary.client.info("t")["added"] + 3


def test_settings_resets_and_tables_that_come_and_go_reach_a_replica(tmp_path: Path) -> None:
    others = [rs.Table(name, 64, COLUMNS) for name in ("reset", "dropped", "remade", "closed")]
    with pair(tmp_path, TABLE, *others) as (primary, replica, link):
        client, ids = primary.client, {}
        for table in others:
            client.add(table.name, batch(range(30)))
        replica.follow(link.port)
        for table in (TABLE, *others):
            ids[table.name] = client.add(table.name, batch(range(50)))
        client.configure("t", max_times_sampled=5, sampler=rs.Uniform(), remover=rs.Lifo(), max_bytes=40 * 20)
        client.reset("reset")
        primary.redis.execute_command("REPLAY.DROP", "dropped")
        primary.redis.execute_command("REPLAY.DROP", "remade")
        client.create_table(rs.Table("remade", 5, {"only": rs.Column("uint8", ())}))
        client.create_table(rs.Table("new", 5, COLUMNS))
        client.add("new", batch(range(5)))
        primary.redis.execute_command("REPLAY.CLOSETABLE", "closed", "the day is over")
        settle(primary, replica)
        names = primary.redis.execute_command("REPLAY.LIST")
        assert sorted(replica.redis.execute_command("REPLAY.LIST")) == sorted(names)
        for name in map(bytes.decode, names):
            assert_same(primary, replica, ids.get(name, []), name)
        assert replica.client.info("closed")["closed_reason"] == "the day is over"
        assert primary.stats() == (1, 0), "all of it came in the stream"


@pytest.mark.parametrize("in_transaction", [False, True])
def test_what_comes_after_a_reset_of_a_large_table_waits_for_its_end(tmp_path: Path, in_transaction: bool) -> None:
    n = 100_000
    large = rs.Table("t", n, COLUMNS)
    with pair(tmp_path, large, rs.Table("beside", 64, COLUMNS)) as (primary, replica, link):
        client = primary.client
        client.add("t", batch(range(n)))
        replica.follow(link.port)
        settle(primary, replica)
        with client.redis.pipeline(transaction=in_transaction) as pipe:
            for sampler in ("max_heap", "uniform"):
                spec = msgpack.packb({"sampler": sampler})
                pipe.execute_command("REPLAY.CONFIG", "t", spec)
            pipe.execute_command("REPLAY.RESET", "t")
            pipe.set("key", "after the reset")
            pipe.execute(raise_on_error=False)
        ids = {name: client.add(name, batch(range(50))) for name in ("t", "beside")}
        assert primary.redis.wait(1, 60_000) == 1
        assert replica.client.info("t")["size"] == 50
        for name in ids:
            assert_same(primary, replica, ids[name], name)
        assert replica.redis.get("key") == b"after the reset"
        assert primary.stats() == (1, 0), "all of it came in the stream"
        link.cut(mend=False)
        replica.promote()
        assert replica.client.sample("t", 20).data["key"].max() < 50


def test_items_that_grow_too_old_leave_a_replica_when_the_primary_says_so(tmp_path: Path) -> None:
    """A new version makes 40,000 items too old, more than leave with one command."""
    columns = {"policy_version": rs.Column("int64", ())}
    table = rs.Table("t", 100_000, columns, sampler=rs.Uniform(), max_staleness=3)
    with pair(tmp_path, table) as (primary, replica, link):
        primary.client.add("t", {"policy_version": np.zeros(40_000, np.int64)})
        replica.follow(link.port)
        settle(primary, replica)
        for version in range(10, 14):
            primary.client.add("t", {"policy_version": np.full(10_000, version, np.int64)})
        eventually(lambda: primary.client.info("t")["size"] == 40_000, "the end of the old ones")
        settle(primary, replica)
        told = [member.client.info("t") for member in (primary, replica)]
        assert told[0]["size"] == told[1]["size"] == 40_000
        assert told[0]["stale_items"] == told[1]["stale_items"] == 40_000
        assert primary.stats() == (1, 0), "all of it came in the stream"


# ---- beside tables ----------------------------------------------------------------------------------------------


def test_weights_and_gradients_reach_a_replica(tmp_path: Path) -> None:
    with pair(tmp_path) as (primary, replica, link):
        client = primary.client
        old, new = random_vectors(2, 1000)
        client.publish_weights("before", {"w": np.arange(9.0)})
        client.push_gradient("g", 1, "old", old)
        replica.client.publish_weights("own", {"w": np.zeros(1)})
        replica.follow(link.port)
        assert replica.client.fetch_weights("own") is None, "what the primary does not have is gone"
        client.publish_weights("after", {"w": np.arange(100_000.0)})
        client.push_gradient("g", 1, "new", new)
        client.publish_applied("g", ["old"], 2, {"before": {"w": np.ones(3)}})
        primary.redis.execute_command("WEIGHTS.PUBLISH", "gone", "*", b"x")
        primary.redis.execute_command("WEIGHTS.DEL", "gone")
        settle(primary, replica)
        for key in ("before", "after"):
            want, got = client.fetch_weights(key), replica.client.fetch_weights(key)
            assert want is not None
            assert got is not None
            assert got[0] == want[0]
            np.testing.assert_array_equal(got[1]["w"], want[1]["w"])
        assert replica.client.fetch_weights("gone") is None
        assert replica.client.gradient_states("g", ["old", "new", "never"]) == ["applied", "waiting", None]
        taken = replica.client.take_gradients("g", 8, timeout=0)
        assert taken.names == ["new"]
        np.testing.assert_array_equal(taken.vectors, [new])


def test_a_transaction_over_keys_tables_and_weights_comes_whole(tmp_path: Path) -> None:
    with pair(tmp_path, TABLE) as (primary, replica, link):
        ids = primary.client.add("t", batch(range(4)))
        replica.follow(link.port)
        for turn in range(20):
            with primary.redis.pipeline(transaction=True) as pipe:
                pipe.set("turn", turn)
                priorities = np.full(4, turn + 1.0)
                pipe.execute_command("REPLAY.UPDATE", "t", ids.tobytes(), priorities.tobytes())
                pipe.execute_command("WEIGHTS.PUBLISH", "w", turn + 1, str(turn))
                pipe.incr("turns")
                pipe.execute()
        settle(primary, replica)
        assert_same(primary, replica, ids)
        assert replica.client.info("t")["max_priority"] == 20
        assert replica.redis.execute_command("WEIGHTS.GET", "w") == [20, b"19"]
        assert replica.redis.mget("turn", "turns") == [b"19", b"20"]


def test_a_sign_of_life_does_not_repeat_what_came_before_it(tmp_path: Path) -> None:
    with pair(tmp_path, TABLE, repl_ping_replica_period="1") as (primary, replica, link):
        replica.follow(link.port)
        for turn in range(1, 4):
            ids = primary.client.add("t", batch(range(4)))
            primary.redis.execute_command("WEIGHTS.PUBLISH", "w", "*", bytes(100))
            offset = primary.redis.info("replication")["master_repl_offset"]
            eventually(lambda o=offset: primary.redis.info("replication")["master_repl_offset"] > o, "a PING")  # pyright: ignore
            settle(primary, replica)
            assert replica.redis.execute_command("WEIGHTS.GET", "w")[0] == turn
            assert_same(primary, replica, ids)


def test_tables_that_are_not_durable_stay_where_they_are(tmp_path: Path) -> None:
    scratch = rs.Table("scratch", 8, COLUMNS, durable=False)
    with pair(tmp_path, TABLE, scratch) as (primary, replica, link):
        own = rs.Table("own", 8, COLUMNS, durable=False)
        replica.client.create_table(own)
        replica.client.create_table(rs.Table("durable", 8, COLUMNS))
        replica.client.add("own", batch(range(3)))
        replica.follow(link.port)
        primary.client.add("scratch", batch(range(5)))
        primary.client.add("t", batch(range(5)))
        settle(primary, replica)
        assert sorted(replica.redis.execute_command("REPLAY.LIST")) == [b"own", b"t"]
        assert replica.client.info("own")["size"] == 3
        for member, other in ((primary, "scratch"), (replica, "own")):
            lines = member.redis.info("replication")
            tables = {
                line["name"]: line["replicated"]
                for name, line in lines.items()
                if name.startswith("table")
                if isinstance(line, dict)
            }
            assert tables == {"t": "yes", other: "no"}
            assert lines["tables_replicated"] == 1


# ---- what a replica lets clients do -----------------------------------------------------------------------------


@pytest.mark.parametrize("read_only", ["yes", "no"])
def test_a_replica_reads_tables_and_refuses_to_change_them(tmp_path: Path, read_only: str) -> None:
    with pair(tmp_path, TABLE) as (primary, replica, link):
        ids = primary.client.add("t", batch(range(9)))
        replica.redis.config_set("replica-read-only", read_only)
        replica.follow(link.port)
        got = replica.client.get("t", ids)
        assert got.data["key"].tolist() == list(range(9))
        before = replica.client.info("t")
        for words in (
            ("REPLAY.SAMPLE", "t", 4),
            ("REPLAY.UPDATE", "t", ids.tobytes(), np.ones(9).tobytes()),
            ("REPLAY.DEL", "t", ids.tobytes()),
            ("REPLAY.RESET", "t"),
            ("REPLAY.DROP", "t"),
            ("WEIGHTS.PUBLISH", "w", 1, "x"),
            ("GRAD.DROP", "g", "name"),
        ):
            with pytest.raises(redis.ReadOnlyError):
                replica.redis.execute_command(*words)
        with pytest.raises(rs.ServerError, match="READONLY"):
            replica.client.add("t", batch([1]))
        with pytest.raises(redis.ResponseError, match="does not answer GET with CODED"):
            replica.redis.execute_command("REPLAY.GET", "t", ids.tobytes(), "CODED")
        assert replica.client.info("t") == before
        assert replica.redis.set("k", 1) if read_only == "no" else 1, "keys may be written where it says so"


def test_a_slow_reader_of_a_replica_does_not_hold_up_what_follows(tmp_path: Path) -> None:
    wide = rs.Table("t", 8, {"x": rs.Column("uint8", (1_000_000,))})
    with pair(tmp_path, wide, repl_backlog_size="64mb") as (primary, replica, link):
        ids = primary.client.add("t", {"x": np.full((8, 1_000_000), 1, np.uint8)})
        replica.follow(link.port)
        connection = replica.redis.connection_pool.get_connection()
        connection.send_command("REPLAY.GET", "t", ids.tobytes())
        for turn in range(2, 6):
            ids = primary.client.add("t", {"x": np.full((8, 1_000_000), turn, np.uint8)})
        settle(primary, replica)
        assert primary.stats() == (1, 0)
        seen = dict(zip(*[iter(connection.read_response()[3:])] * 2, strict=True))[b"x"]
        assert len(seen) == 8_000_000
        replica.redis.connection_pool.release(connection)
        assert replica.client.get("t", ids).data["x"].min() == 5


def test_a_snapshot_of_a_replica_shows_one_moment_while_it_follows(tmp_path: Path) -> None:
    n = 12  # of 20 kB: items that enter in one part, and so in one record
    wide = rs.Table("t", 200, {"x": rs.Column("uint8", (20_000,)), "key": rs.Column("int64", ())})
    with pair(tmp_path, wide) as (primary, replica, link):
        replica.follow(link.port)
        end = threading.Event()

        def add() -> None:
            with rs.Client(primary.server.url) as client:
                key = 0
                while not end.is_set():
                    keys = np.arange(key, key + n)
                    client.add("t", {"x": np.repeat(keys % 256, 20_000).reshape(n, -1).astype(np.uint8), "key": keys})
                    key += n

        adding = threading.Thread(target=add)
        adding.start()
        try:
            eventually(lambda: replica.client.info("t")["size"] == 200, "a full table")
            for _ in range(3):
                replica.redis.save()
        finally:
            end.set()
            adding.join()
        settle(primary, replica)
        assert primary.stats() == (1, 0), "it took every change"
        assert told(replica.client) == told(primary.client)
    with rs.Server(directory=str(tmp_path / "replica"), restore="latest") as server, rs.Client(server.url) as client:
        client.command("REPLICAOF", "NO", "ONE")  # it was a replica
        info, drawn = client.info("t"), client.sample("t", 100)
        assert (info["size"], info["added"] % n) == (200, 0)
        assert (drawn.data["x"] == (drawn.data["key"] % 256)[:, None]).all()


# ---- links ------------------------------------------------------------------------------------------------------


def test_a_replica_whose_link_was_cut_goes_on_where_it_was(tmp_path: Path) -> None:
    rng, ids = np.random.default_rng(1), list[int]()
    with pair(tmp_path, TABLE, repl_backlog_size="16mb") as (primary, replica, link):
        replica.follow(link.port)
        for turn in range(3):
            ids += use(primary.client, TABLE, 5, rng)
            link.cut(mend=False)
            ids += use(primary.client, TABLE, 10, rng)
            primary.client.publish_weights("w", {"w": np.full(4, turn)})
            link.mend()
            settle(primary, replica)
            assert_same(primary, replica, ids)
            fetched = replica.client.fetch_weights("w")
            assert fetched is not None
            assert fetched[1]["w"].tolist() == [turn] * 4
        assert primary.stats() == (1, 3)


def test_a_replica_that_missed_more_than_is_kept_is_sent_everything_again(tmp_path: Path) -> None:
    rng = np.random.default_rng(2)
    with pair(tmp_path, TABLE, repl_backlog_size="16384") as (primary, replica, link):
        replica.follow(link.port)
        link.cut(mend=False)
        ids = use(primary.client, TABLE, 40, rng)
        primary.redis.set("large", b"x" * 100_000)
        link.mend()
        eventually(lambda: primary.stats()[0] == 2, "a second copy")
        settle(primary, replica)
        ids += use(primary.client, TABLE, 10, rng)
        settle(primary, replica)
        assert_same(primary, replica, ids)


def test_clients_go_on_while_everything_is_sent(tmp_path: Path) -> None:
    big = rs.Table("t", 4000, {"x": rs.Column("uint8", (5000,)), "key": rs.Column("int64", ())}, seed=1)
    given: list[int] = []
    end = threading.Event()

    def write(url: str) -> None:
        rng = np.random.default_rng(3)
        with rs.Client(url) as client:
            while not end.is_set():
                keys = rng.integers(0, 256, 16)
                ids = client.add("t", {"x": np.repeat(keys, 5000).reshape(16, -1).astype(np.uint8), "key": keys})
                given.extend(ids.tolist())
                drawn = client.sample("t", 8)
                client.update_priorities("t", drawn.ids, rng.random(8))
                client.delete("t", drawn.ids[:1])

    with pair(tmp_path, big, repl_backlog_size="64mb") as (primary, replica, link):
        for _ in range(4):
            primary.client.add("t", {"x": np.zeros((1000, 5000), np.uint8), "key": np.zeros(1000, np.int64)})
        writing = threading.Thread(target=write, args=(primary.server.url,))
        writing.start()
        try:
            replica.follow(link.port)
            before = len(given)
            eventually(lambda: len(given) > before + 500, "more items")
        finally:
            end.set()
            writing.join()
        settle(primary, replica)
        assert told(replica.client) == told(primary.client)
        live = np.array([i for i in given[-400:] if i in live_items(primary.client, [i])], np.uint64)
        want, got = primary.client.get("t", live), replica.client.get("t", live)
        np.testing.assert_array_equal(got.data["x"], want.data["x"])
        np.testing.assert_array_equal(got.probabilities, want.probabilities)


def test_a_copy_that_the_disk_refuses_half_way_is_sent_again(tmp_path: Path) -> None:
    big = rs.Table("t", 4000, {"x": rs.Column("uint8", (5000,))}, seed=1)
    with pair(tmp_path, big) as (primary, replica, link):
        ids = np.concatenate([primary.client.add("t", {"x": np.full((1000, 5000), i, np.uint8)}) for i in range(4)])
        limits = resource.prlimit(primary.server.pid, resource.RLIMIT_FSIZE)
        resource.prlimit(primary.server.pid, resource.RLIMIT_FSIZE, (10_000_000, limits[1]))  # half of the snapshot
        replica.redis.execute_command("REPLICAOF", "127.0.0.1", link.port)
        eventually(lambda: "cannot write sync.cut.partial" in primary.server.log(), "a copy that failed")
        assert replica.redis.info("replication")["master_link_status"] == "down"
        assert primary.redis.ping()
        resource.prlimit(primary.server.pid, resource.RLIMIT_FSIZE, limits)
        eventually(lambda: replica.redis.info("replication")["master_link_status"] == "up", "a copy")
        assert told(replica.client) == told(primary.client)
        got = replica.client.get("t", ids[::7]).data["x"]
        np.testing.assert_array_equal(got, primary.client.get("t", ids[::7]).data["x"])
        eventually(lambda: not list((tmp_path / "primary").glob("sync*")), "the end of its file")


def test_a_copy_does_not_cut_short_a_file_that_may_still_be_read(tmp_path: Path) -> None:
    with pair(tmp_path, TABLE) as (primary, replica, link):
        primary.client.add("t", batch(range(9)))
        left = tmp_path / "primary" / "sync.cut.partial"
        left.write_bytes(b"another's")
        with left.open("rb") as file:
            replica.follow(link.port)
            assert file.read() == b"another's"
        assert told(replica.client) == told(primary.client)
        eventually(lambda: not list((tmp_path / "primary").glob("sync*")), "the end of its file")


def test_a_restored_table_is_sent_again(tmp_path: Path) -> None:
    with pair(tmp_path, TABLE) as (primary, replica, link):
        primary.client.add("t", batch(range(9)))
        path = primary.client.checkpoint()
        replica.follow(link.port)
        primary.client.add("t", batch(range(20)))
        primary.client.restore(Path(path).name)
        eventually(lambda: primary.stats()[0] == 2, "a second copy")
        new = primary.client.add("t", batch(range(5)))
        settle(primary, replica)
        assert told(primary.client)["size"] == 14
        assert_same(primary, replica, new)


# ---- Redis beside -----------------------------------------------------------------------------------------------


def test_a_redis_beside_has_the_keys_and_is_not_disturbed(tmp_path: Path) -> None:
    rng = np.random.default_rng(4)
    with pair(tmp_path, TABLE) as (primary, replica, link), start("redis", tmp_path / "redis") as other:
        ids = use(primary.client, TABLE, 5, rng)
        primary.redis.set("before", 1)
        other.follow(primary.port)
        eventually(other.is_up, "the copy of the Redis")
        errors = other.client.info("errorstats")
        replica.follow(link.port)
        for turn in range(10):
            ids += use(primary.client, TABLE, 3, rng)
            primary.client.publish_weights("w", {"w": np.arange(10_000)})
            with primary.redis.pipeline(transaction=True) as pipe:
                pipe.set(f"key{turn}", turn)
                pipe.execute_command(
                    "REPLAY.UPDATE", "t", np.array(ids[-1:], np.uint64).tobytes(), np.ones(1).tobytes()
                )
                pipe.execute_command("WEIGHTS.PUBLISH", "v", turn + 1, b"v")
                pipe.rpush("list", turn)
                pipe.execute()
        assert primary.redis.wait(2, 60_000) == 2
        assert other.client.info("errorstats") == errors
        assert_same_keys(contents(other.client), contents(primary.redis))
        assert replica.redis.execute_command("DEBUG DIGEST") == primary.redis.execute_command("DEBUG DIGEST")
        assert_same(primary, replica, ids)
        log = (tmp_path / "redis/log").read_text(errors="replace")
        assert "CRITICAL" not in log
        assert "WARNING" not in log.partition("Connecting to MASTER")[2]
        offset = primary.redis.info("replication")["master_repl_offset"]
        eventually(lambda: other.replication()["slave_repl_offset"] >= offset, "the same offset")


def test_tables_stay_with_a_replica_of_a_redis(tmp_path: Path) -> None:
    with start("redis", tmp_path / "redis") as primary, serve(tmp_path / "replica", TABLE) as replica:
        ids = replica.client.add("t", batch(range(5)))
        primary.client.set("k", 1)
        replica.follow(primary.port)
        assert replica.redis.get("k") == b"1"
        assert replica.client.get("t", ids).data["key"].tolist() == list(range(5))
        replica.promote()
        assert replica.client.sample("t", 3).ids.tolist()
        replica.client.add("t", batch(range(5)))
        assert replica.client.info("t")["size"] == 10


# ---- all of it, by chance ---------------------------------------------------------------------------------------

MIXED = {
    "t": KINDS["prioritized"],
    "few": rs.Table("few", 9, COLUMNS, sampler=rs.Uniform(), remover=rs.Prioritized(0.5), max_times_sampled=3, seed=1),
    "rows": rs.Table("rows", 20, KINDS["ragged"].signature, sampler=rs.MaxHeap(), remover=rs.Lifo(), seed=2),
    "scratch": rs.Table("scratch", 9, COLUMNS, durable=False),
}


def change(client: rs.Client, rng: np.random.Generator, ids: dict[str, list[int]]) -> None:
    """One change of something, by chance."""
    name = str(rng.choice(list(MIXED)))
    known = np.array(ids[name][-12:], np.uint64)
    match int(rng.integers(0, 12)):
        case 0 | 1 | 2 | 3:
            data = batch(rng.integers(0, 1000, int(rng.integers(1, 9))))
            n = len(data["key"])
            if name == "rows":
                data["rows"] = [rng.random((int(rng.integers(0, 300)), 2)) for _ in range(n)]
            ids[name] += client.add(name, data, priorities=rng.random(n)).tolist()
        case 4 | 5:
            with contextlib.suppress(rs.Timeout):  # nothing is there, or it was drawn as often as it may be
                client.sample(name, int(rng.integers(1, 6)), timeout=0)
        case 6 | 7:
            client.update_priorities(name, known, rng.random(len(known)))
        case 8:
            client.delete(name, known[:2])
        case 9:
            client.publish_weights(f"w{rng.integers(3)}", {"w": rng.random(int(rng.integers(1, 2000)))})
        case 10:
            client.push_gradient("g", 1, f"{rng.integers(40)}", rng.random(5).astype(np.float32))
            client.drop_gradients("g", [f"{rng.integers(40)}"])
        case _:
            if rng.random() < 0.2:
                client.reset(name)
            with client.redis.pipeline(transaction=True) as pipe:
                pipe.incr("turns")
                pipe.execute_command("REPLAY.DEL", name, known[-1:].tobytes())
                pipe.execute_command("WEIGHTS.PUBLISH", "counter", "*", rng.bytes(3))
                pipe.execute()


def assert_all_same(primary: Member, replica: Member, ids: dict[str, list[int]]) -> None:
    for name in MIXED:
        if MIXED[name].durable:
            assert_same(primary, replica, ids[name][-60:], name)
    for key in (*(f"w{n}" for n in range(3)), "counter"):
        words = ("WEIGHTS.GET", key)
        assert replica.redis.execute_command(*words) == primary.redis.execute_command(*words)
    names = [str(n) for n in range(40)]
    assert replica.client.gradient_states("g", names) == primary.client.gradient_states("g", names)
    assert replica.redis.execute_command("DEBUG DIGEST") == primary.redis.execute_command("DEBUG DIGEST")


@pytest.mark.parametrize("seed", range(3))
def test_random_changes_and_cuts_leave_both_with_the_same(tmp_path: Path, seed: int) -> None:
    """The backlog is small, so that sometimes everything is sent again. In the end they change places twice."""
    rng, ids = np.random.default_rng(seed), {name: list[int]() for name in MIXED}
    with pair(tmp_path, *MIXED.values(), repl_backlog_size="64kb") as (primary, replica, link):
        for member in (primary, replica):
            member.redis.config_set("repl-ping-replica-period", 1)
        for _ in range(60):
            change(primary.client, rng, ids)
        replica.follow(link.port)
        for _ in range(6):
            link.cut(mend=bool(rng.integers(2)))
            for _ in range(int(rng.integers(1, 80))):
                change(primary.client, rng, ids)
            link.mend()
            settle(primary, replica)
            assert_all_same(primary, replica, ids)
        full, partial = primary.stats()
        assert full + partial >= 7
        link.cut(mend=False)
        replica.promote()
        replica.client.create_table(MIXED["scratch"])
        primary.follow(replica.port)
        for _ in range(60):
            change(replica.client, rng, ids)
        settle(replica, primary)
        assert_all_same(replica, primary, ids)
        replica.redis.execute_command("FAILOVER", "TO", "127.0.0.1", primary.port)
        eventually(lambda: replica.redis.info("replication").get("master_link_status") == "up", "the change of places")
        for _ in range(60):
            change(primary.client, rng, ids)
        settle(primary, replica)
        assert_all_same(primary, replica, ids)
