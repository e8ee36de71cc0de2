"""What a server's end leaves: the append-only file and what is read back from it."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import redis
from durable import INCREMENT, assert_same, contents, fill, kill, serve, wait_until

import replay_server as rs

Connect = Callable[[], "redis.Redis[bytes]"]


# ---- kill -9 ----------------------------------------------------------------------------------------------------


class Writer(threading.Thread):
    """Counts up in a key of its own; `acknowledged` are the writes that were replied to, and when."""

    def __init__(self, url: str, name: str) -> None:
        super().__init__()
        self.client = redis.Redis.from_url(url)
        self.key = name
        self.acknowledged = 0
        self.acknowledged_in_time = 0  # more than a second before now, as of the last reply
        self.times: list[float] = []

    def run(self) -> None:
        with contextlib.suppress(redis.RedisError):
            while True:
                self.client.rpush(self.key, self.acknowledged)
                self.acknowledged += 1
                self.times.append(time.monotonic())


def kill_under_load(folder: Path, policy: str, seconds: float, lost_s: float) -> None:
    """Every write that was acknowledged earlier than `lost_s` before the kill is there afterwards."""
    with serve(folder, policy) as (server, client):
        before = {key: client.llen(key) for key in client.scan_iter()}
        writers = [Writer(server.url, f"writer:{n}:{time.monotonic_ns()}") for n in range(6)]
        for writer in writers:
            writer.start()
        wait_until(lambda: all(writer.acknowledged for writer in writers))
        time.sleep(seconds)
        killed_at = time.monotonic()
        kill(server)
        for writer in writers:
            writer.join()
    with serve(folder, policy) as (_, client):
        for writer in writers:
            there = client.lrange(writer.key, 0, -1)
            safe = sum(at < killed_at - lost_s for at in writer.times) if lost_s else writer.acknowledged
            assert len(there) >= safe, f"{writer.key}: {safe} writes were safe, {len(there)} are there"
            assert len(there) <= writer.acknowledged + 1
            assert there == [str(n).encode() for n in range(len(there))]
        assert sum(writer.acknowledged for writer in writers) > 0
        assert {key: client.llen(key) for key in before} == before


def test_a_kill_under_load_loses_no_acknowledged_write_with_always(tmp_path: Path) -> None:
    for _ in range(3):
        kill_under_load(tmp_path, "always", 0.2, 0)


@pytest.mark.slow
def test_a_kill_under_load_loses_no_acknowledged_write_with_always_in_50_tries(tmp_path: Path) -> None:
    for _ in range(50):
        kill_under_load(tmp_path, "always", 0.3, 0)


def test_a_kill_under_load_loses_at_most_a_second_with_everysec(tmp_path: Path) -> None:
    kill_under_load(tmp_path, "everysec", 1.4, 1.0)


def test_many_writes_share_one_fsync_with_always(tmp_path: Path) -> None:
    with serve(tmp_path) as (_, client):
        pipeline = client.pipeline(transaction=False)
        for n in range(1000):
            pipeline.set(f"key:{n}", n)
        assert len(pipeline.execute()) == 1000
        assert client.info("persistence")["aof_fsyncs"] < 200


@pytest.mark.parametrize("in_transaction", [False, True])
def test_what_a_script_changed_is_on_the_disk_before_it_is_answered_however_much_garbage_it_left(
    tmp_path: Path, in_transaction: bool
) -> None:
    """With `always`. The garbage is collected in many turns of the loop, after the script has replied."""
    script = """
        redis.call('SET', KEYS[1], 'there')
        local garbage = {}
        for i = 1, 500000 do garbage[i] = 'x' .. i end
        return redis.call('GET', KEYS[1])
    """
    with serve(tmp_path) as (server, client):
        with client.pipeline(transaction=in_transaction) as pipeline:
            pipeline.eval(script, 1, "key")
            assert pipeline.execute() == [b"there"]
        kill(server)
    with serve(tmp_path) as (_, client):
        assert client.get("key") == b"there"
        assert client.eval("for i = 1, 5000000 do end; return 1", 0) == 1  # one that changes nothing waits for nothing


def test_a_transaction_whose_reply_is_above_the_output_limit_is_done_and_its_client_closed(
    tmp_path: Path,
) -> None:
    """With `always` nothing of the reply is sent before the end, so that the client cannot keep it small by reading."""
    with serve(tmp_path, client_output_buffer_limit="normal 1mb 0 0") as (server, client):
        client.rpush("list", *[b"x" * 1000] * 500)
        pipeline = client.pipeline()
        pipeline.incr("counter")
        for _ in range(20):
            pipeline.lrange("list", 0, -1)
        with pytest.raises(redis.ConnectionError):
            pipeline.execute()
        assert client.get("counter") == b"1"
        assert client.info("stats")["client_output_limit_closes"] == 1
        assert "more output waits for it than client-output-buffer-limit allows" in server.log()
        client.config_set("client-output-buffer-limit", "normal 0 0 0")
        pipeline.incr("counter")
        for _ in range(20):
            pipeline.lrange("list", 0, -1)
        assert pipeline.execute() == [2, *[[b"x" * 1000] * 500] * 20]


def test_what_changes_databases_as_a_whole_is_on_the_disk_with_always_before_it_is_answered(tmp_path: Path) -> None:
    with serve(tmp_path, "always") as (_, client):
        for n in range(1, 60):
            for words in (["SWAPDB", "0", "1"], ["FLUSHDB"], ["FLUSHALL"]):
                client.set("key", n)
                client.execute_command(*words)
                assert (tmp_path / INCREMENT).read_bytes().count(words[0].encode()) == n


def test_a_command_that_is_logged_as_several_is_whole_after_a_kill(tmp_path: Path) -> None:
    with serve(tmp_path, "always") as (server, client):
        client.sadd("numbers", *range(1000))
        assert len(client.spop("numbers", 300)) == 300
        assert all(client.spop("numbers") for _ in range(10))
        client.set("later", 1)
        before = contents(client)
        log = (tmp_path / INCREMENT).read_bytes()
        assert log.index(b"MULTI") < log.index(b"SREM") < log.index(b"EXEC") < log.index(b"later")
        kill(server)
    with serve(tmp_path, "always") as (_, client):
        assert_same(contents(client), before)


def test_weights_are_there_after_a_kill(tmp_path: Path) -> None:
    with serve(tmp_path) as (server, client):
        client.execute_command("WEIGHTS.PUBLISH", "policy", "*", b"w" * 300_000)
        client.execute_command("WEIGHTS.PUBLISH", "policy", 41, b"v" * 300_000)
        client.execute_command("WEIGHTS.PUBLISH", "policy", "*", b"u" * 300_000)
        client.execute_command("WEIGHTS.PUBLISH", "other", "*", b"")
        client.execute_command("WEIGHTS.DEL", "other")
        kill(server)
    with serve(tmp_path) as (_, client):
        assert client.execute_command("WEIGHTS.GET", "policy") == [42, b"u" * 300_000]
        assert client.execute_command("WEIGHTS.LIST") == [b"policy"]


def test_keys_whose_time_is_over_meanwhile_are_gone_after_a_restart(tmp_path: Path) -> None:
    with serve(tmp_path) as (server, client):
        client.set("soon", 1, px=300)
        client.execute_command("PEXPIREAT", "soon", int(time.time() * 1000) + 200)
        client.set("later", 1, ex=1000)
        with client.pipeline() as pipeline:  # at once: it has not run out in between
            pipeline.set("kept", 1, px=200)
            pipeline.persist("kept")
            pipeline.execute()
        kill(server)
    time.sleep(0.4)
    with serve(tmp_path) as (_, client):
        assert client.mget("soon", "kept") == [None, b"1"]
        assert 900 < client.ttl("later") <= 1000


# ---- files that are not as they were ------------------------------------------------------------------------------


def write_some(folder: Path) -> None:
    with serve(folder) as (server, client):
        for n in range(20):
            client.set(f"key:{n}", n)
        server.stop()


def refusal(folder: Path, **config: str) -> str:
    with pytest.raises(rs.ServerError) as caught, serve(folder, **config):
        pass
    return str(caught.value)


def test_a_tail_that_was_cut_off_is_repaired_and_said(tmp_path: Path) -> None:
    write_some(tmp_path)
    path = tmp_path / INCREMENT
    whole = path.read_bytes()
    for cut in (1, 14, 16, 40):
        path.write_bytes(whole[:-cut])
        with serve(tmp_path) as (server, client):
            assert client.dbsize() in (19, 20)
            assert "were cut off" in server.log()
            client.set("key:19", "again")
            kill(server)
        with serve(tmp_path) as (server, client):
            assert client.get("key:19") == b"again"
            assert "were cut off" not in server.log()


def test_an_entry_that_its_own_trimming_removed_does_not_come_back(tmp_path: Path) -> None:
    with serve(tmp_path) as (server, client):
        client.xadd("s", {"f": 1}, id="3", minid="8-10", approximate=True, limit=3)
        assert client.xlen("s") == 0
        kill(server)
    with serve(tmp_path) as (server, client):
        assert (client.exists("s"), client.xlen("s")) == (1, 0)


@pytest.mark.parametrize("policy", ["always", "everysec"])
def test_a_script_that_a_kill_ended_is_cut_off_whole(tmp_path: Path, policy: str) -> None:
    """It ran for longer than what is written at once, so checksums stand within it."""
    with serve(tmp_path, policy, busy_reply_threshold="50") as (server, client):
        client.set("before", 1)
        running = redis.Redis.from_url(server.url)
        script = "redis.call('SET', 'half', 1) while true do redis.call('INCR', 'half') end"

        def run() -> None:
            with contextlib.suppress(redis.ConnectionError):
                running.eval(script, 0)

        thread = threading.Thread(target=run)
        thread.start()
        path = tmp_path / INCREMENT
        while b"half" not in path.read_bytes():
            time.sleep(0.01)
        kill(server)
        thread.join()
        running.close()
    assert b"#CRC:" in path.read_bytes().partition(b"MULTI")[2]
    with serve(tmp_path) as (server, client):
        assert (client.get("before"), client.exists("half")) == (b"1", 0)
        assert "were cut off" in server.log()
        client.set("after", 1)
        kill(server)
    with serve(tmp_path) as (server, client):
        assert client.get("after") == b"1"


def test_a_tail_that_was_cut_off_is_refused_where_it_is_not_to_be_repaired(tmp_path: Path) -> None:
    write_some(tmp_path)
    path = tmp_path / INCREMENT
    path.write_bytes(path.read_bytes()[:-16])
    assert "aof-load-truncated yes" in refusal(tmp_path, aof_load_truncated="no")


def test_a_byte_in_the_middle_that_is_not_what_it_was_is_refused_with_its_place(tmp_path: Path) -> None:
    write_some(tmp_path)
    path = tmp_path / INCREMENT
    whole = bytearray(path.read_bytes())
    whole[whole.index(b"key:7") + 4] ^= 1
    path.write_bytes(whole)
    said = refusal(tmp_path)
    assert INCREMENT.rpartition("/")[2] in said
    assert "checksum does not agree" in said
    whole[whole.index(b"key:6") - 3] ^= 1
    path.write_bytes(whole)
    assert "byte" in refusal(tmp_path)


@pytest.mark.parametrize(
    "line", ["SHUTDOWN", "CONFIG SET appendonly no", "GET key", "REPLAY.SAVE x", "CLIENT KILL ID 1"]
)
def test_a_command_that_changes_no_key_is_refused(tmp_path: Path, line: str) -> None:
    write_some(tmp_path)
    request = redis.Connection().pack_command(*line.split())
    with open(tmp_path / INCREMENT, "ab") as file:
        file.write(b"".join(request))
    assert f"the command '{line.split()[0].lower()}" in refusal(tmp_path)


def test_a_manifest_that_names_what_is_not_there_is_refused(tmp_path: Path) -> None:
    write_some(tmp_path)
    (tmp_path / INCREMENT).unlink()
    assert "cannot open appendonly.aof.1.incr.aof" in refusal(tmp_path)


# ---- snapshots and rewrites ---------------------------------------------------------------------------------------


def test_a_snapshot_brings_back_keys_weights_and_tables(tmp_path: Path) -> None:
    table = rs.Table("t", capacity=10, signature={"x": rs.Column("float32", ())})
    with rs.Server([table], directory=str(tmp_path)) as server, rs.Client(server.url) as client:
        fill(client.redis)
        client.add("t", {"x": [1.0, 2.0]})
        before = contents(client.redis)
        assert client.redis.execute_command("SAVE") in (b"OK", True)
        client.redis.flushall()
        assert client.redis.execute_command("LASTSAVE")
    with rs.Server(directory=str(tmp_path), restore="latest") as server, rs.Client(server.url) as client:
        assert contents(client.redis) == before
        assert client.redis.execute_command("WEIGHTS.GET", "policy") == [7, b"w" * 700_000]
        assert client.info("t")["size"] == 2
        assert client.redis.info("persistence")["rdb_changes_since_last_save"] == 0
        client.add("t", {"x": [3.0]})
        unsaved = {"name": "t", "added": 1, "updated": 0, "removed": 0, "size": 3}
        assert client.redis.info("persistence")["unsaved_table0"] == unsaved


def test_a_snapshot_is_the_store_at_one_moment_whatever_is_written_meanwhile(tmp_path: Path) -> None:
    """Two keys that a transaction changes together are equal in every snapshot."""
    with rs.Server([], directory=str(tmp_path)) as server, redis.Redis.from_url(server.url) as client:
        fill(client, 60_000)
        client.execute_command("BGSAVE")
        count = 0
        while client.info("persistence")["rdb_bgsave_in_progress"] or count < 10:
            client.pipeline().set("first", count).rpush("large:list", count).set("second", count).execute()
            count += 1
        assert client.info("persistence")["rdb_last_bgsave_status"] == "ok"
    with (
        rs.Server([], directory=str(tmp_path), restore="latest") as server,
        redis.Redis.from_url(server.url) as client,
    ):
        assert client.get("first") == client.get("second")
        assert client.llen("large:list") == 60_000 + int(client.get("first") or -1) + 1
        assert client.scard("large:set") == client.zcard("large:zset") == client.hlen("large:hash") == 60_000


def test_a_rule_saves_after_so_many_changes(tmp_path: Path) -> None:
    with rs.Server([], directory=str(tmp_path), config={"save": "1 3"}) as server:
        client = redis.Redis.from_url(server.url)
        client.set("a", 1)
        client.set("b", 2)
        time.sleep(1.2)
        assert client.info("persistence")["snapshots_saved"] == 0
        client.set("c", 3)
        wait_until(lambda: client.info("persistence")["snapshots_saved"] == 1)
        assert client.info("persistence")["rdb_changes_since_last_save"] == 0
        with pytest.raises(redis.ResponseError, match="Invalid save parameters"):
            client.config_set("save", "1 x")


def test_a_rewrite_keeps_everything_and_what_is_written_meanwhile(tmp_path: Path) -> None:
    with serve(tmp_path) as (server, client):
        fill(client)
        for n in range(300):
            client.set("counter", n)
        before = contents(client)
        client.execute_command("BGREWRITEAOF")
        for n in range(300):
            client.rpush("later", n)
        wait_until(lambda: client.info("persistence")["aof_rewrites"] == 1)
        client.incr("last")
        assert sorted(path.name for path in (tmp_path / "appendonlydir").iterdir()) == [
            "appendonly.aof.1.base.snapshot",
            "appendonly.aof.2.incr.aof",
            "appendonly.aof.manifest",
        ]
        kill(server)
    with serve(tmp_path) as (_, client):
        assert client.lrange("later", 0, -1) == [str(n).encode() for n in range(300)]
        assert client.get("last") == b"1"
        client.delete("later", "last")
        assert contents(client) == before


def test_a_file_that_has_grown_is_written_anew_by_itself(tmp_path: Path) -> None:
    with serve(tmp_path, "no", auto_aof_rewrite_min_size="100000") as (_, client):
        for n in range(3000):
            client.set("key", f"{n:60}")
        wait_until(lambda: client.info("persistence")["aof_rewrites"] > 0)
        assert client.info("persistence")["aof_current_size"] < 200_000


def kill_while_rewriting(folder: Path, seconds: float) -> None:
    folder.mkdir()
    with serve(folder) as (server, client):
        fill(client, 20_000)
        writers = [Writer(server.url, f"writer:{n}:{time.monotonic_ns()}") for n in range(4)]
        for writer in writers:
            writer.start()
        wait_until(lambda: all(writer.acknowledged for writer in writers))
        client.execute_command("BGREWRITEAOF")
        time.sleep(seconds)
        kill(server)
        for writer in writers:
            writer.join()
    with serve(folder) as (_, client):
        for writer in writers:
            there = client.lrange(writer.key, 0, -1)
            assert writer.acknowledged <= len(there) <= writer.acknowledged + 1
            assert there == [str(n).encode() for n in range(len(there))]
        assert client.scard("large:set") == client.zcard("large:zset") == 20_000


def test_a_kill_at_any_moment_of_a_rewrite_loses_nothing(tmp_path: Path) -> None:
    for n in range(4):
        kill_while_rewriting(tmp_path / str(n), n * 0.02)


@pytest.mark.slow
def test_a_kill_at_any_moment_of_a_rewrite_loses_nothing_in_many_tries(tmp_path: Path) -> None:
    for n in range(40):
        kill_while_rewriting(tmp_path / str(n), n * 0.004)


def test_the_file_can_be_turned_on_and_off_while_serving(tmp_path: Path) -> None:
    with rs.Server([], directory=str(tmp_path)) as server, redis.Redis.from_url(server.url) as client:
        fill(client)
        client.config_set("appendonly", "yes")
        client.config_set("appendfsync", "always")
        wait_until(lambda: client.info("persistence")["aof_pending_rewrite"] == 0)
        client.set("on", 1)
        client.config_set("appendonly", "no")
        assert client.info("persistence")["aof_enabled"] == 0
        client.set("off", 1)
        client.config_set("appendonly", "yes")
        wait_until(lambda: client.info("persistence")["aof_pending_rewrite"] == 0)
        client.set("on again", 1)
        before = contents(client)
        kill(server)
    with serve(tmp_path) as (_, client):
        assert contents(client) == before


def test_what_was_restored_from_a_snapshot_goes_to_a_new_file(tmp_path: Path) -> None:
    with rs.Server([], directory=str(tmp_path)) as server, redis.Redis.from_url(server.url) as client:
        fill(client)
        before = contents(client)
        client.execute_command("SAVE")
    config = {"appendonly": "yes"}
    with (
        rs.Server([], directory=str(tmp_path), restore="latest", config=config) as server,
        redis.Redis.from_url(server.url) as client,
    ):
        assert contents(client) == before
        wait_until(lambda: client.info("persistence")["aof_pending_rewrite"] == 0)
        kill(server)
    with serve(tmp_path) as (_, client):
        assert contents(client) == before
