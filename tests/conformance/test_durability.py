"""What a server's end leaves: the append-only file and what is read back from it."""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

import replay_server as rs

Connect = Callable[[], "redis.Redis[bytes]"]
INCREMENT = "appendonlydir/appendonly.aof.1.incr.aof"


@contextlib.contextmanager
def serve(folder: Path, policy: str = "always", **config: str) -> Iterator[tuple[rs.Server, redis.Redis[bytes]]]:
    """A server with an append-only file in the folder, and a client of it."""
    settings_ = {
        "appendonly": "yes",
        "appendfsync": policy,
        **{name.replace("_", "-"): v for name, v in config.items()},
    }
    with rs.Server([], directory=str(folder), config=settings_) as server:
        client = redis.Redis.from_url(server.url, socket_timeout=30)
        yield server, client
        client.close()


def kill(server: rs.Server) -> None:
    os.kill(server.pid, signal.SIGKILL)
    server.stop()


def lasting(info: Any) -> Any:
    """What XINFO STREAM FULL tells, without when consumers were seen and how blocks are laid out."""
    if isinstance(info, dict):
        left_out = {"seen-time", b"seen-time", "radix-tree-keys", "radix-tree-nodes"}
        return {name: lasting(part) for name, part in info.items() if name not in left_out}
    return [lasting(part) for part in info] if isinstance(info, list) else info


def contents(client: redis.Redis[bytes]) -> dict[Any, Any]:
    """Every key of every database: its type, value and whether it ends."""
    found: dict[Any, Any] = {}
    for database in range(16):
        client.execute_command("SELECT", database)
        for key in client.execute_command("KEYS", "*"):
            kind = client.type(key)
            readers: dict[bytes, Callable[[], Any]] = {
                b"string": lambda key=key: client.get(key),
                b"list": lambda key=key: client.lrange(key, 0, -1),
                b"hash": lambda key=key: client.hgetall(key),
                b"set": lambda key=key: client.smembers(key),
                b"zset": lambda key=key: client.zrange(key, 0, -1, withscores=True),
                b"stream": lambda key=key: lasting(client.xinfo_stream(key, full=True)),
            }
            found[database, key] = (kind, readers[kind](), client.execute_command("PEXPIRETIME", key))
    client.execute_command("SELECT", 0)
    return found


def assert_same(after: dict[Any, Any], before: dict[Any, Any]) -> None:
    assert after.keys() == before.keys()
    for key, (kind, value, ends) in before.items():
        assert after[key][:2] == (kind, value), key
        assert after[key][2] == ends, key


def send(url: str, *words: str) -> redis.Connection:
    connection = redis.Redis.from_url(url).connection_pool.get_connection()
    connection.send_command(*words)
    return connection


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


def fill(client: redis.Redis[bytes], large: int = 3000) -> None:
    """Values of every type, small and large, some that end."""
    numbers = [str(n) for n in range(large)]
    for prefix, some_ in (("small", numbers[:5]), ("large", numbers)):
        client.rpush(f"{prefix}:list", *some_)
        client.hset(f"{prefix}:hash", mapping={n: f"value {n}" for n in some_})
        client.sadd(f"{prefix}:integers", *some_)
        client.sadd(f"{prefix}:set", *(f"member {n}" for n in some_))
        client.zadd(f"{prefix}:zset", {f"member {n}": int(n) / 3 for n in some_})
        client.set(f"{prefix}:string", "x" * len(some_) * 500)
    client.set("ends", 1, ex=10_000)
    client.execute_command("SELECT", 7)
    client.set("elsewhere", b"\x00\xff\r\n")
    client.execute_command("SELECT", 0)
    client.execute_command("WEIGHTS.PUBLISH", "policy", 7, b"w" * 700_000)


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


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, "it did not come about"
        time.sleep(0.01)


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


# ---- disks that refuse --------------------------------------------------------------------------------------------


def limit_files(server: rs.Server, size: int) -> None:
    """No file of the server may be longer: writing fails as on a full disk."""
    hard = resource.prlimit(server.pid, resource.RLIMIT_FSIZE)[1]
    resource.prlimit(server.pid, resource.RLIMIT_FSIZE, (size, hard))


@pytest.mark.parametrize("policy", ["always", "everysec"])
def test_writes_are_refused_while_the_file_cannot_be_written_and_go_on_afterwards(tmp_path: Path, policy: str) -> None:
    with serve(tmp_path, policy) as (server, client):
        client.set("before", 1)
        wait_until(lambda: (tmp_path / INCREMENT).stat().st_size > 0)
        limit_files(server, (tmp_path / INCREMENT).stat().st_size + 10)
        with contextlib.suppress(redis.ConnectionError):  # with `always` nobody is told that this is on the disk
            client.set("unsure", "x" * 1000)
        wait_until(lambda: client.info("persistence")["aof_last_write_status"] == "err")
        with pytest.raises(redis.ResponseError, match="MISCONF Errors writing to the AOF file: cannot write"):
            client.set("refused", 1)
        assert client.get("before") == b"1"
        limit_files(server, resource.RLIM_INFINITY)
        wait_until(lambda: client.info("persistence")["aof_last_write_status"] == "ok")
        client.set("after", 1)
        wait_until(lambda: client.info("persistence")["aof_buffer_length"] == 0)
        time.sleep(0.1)
        kill(server)
    with serve(tmp_path, policy) as (server, client):
        assert client.mget("before", "unsure", "refused", "after") == [b"1", b"x" * 1000, None, b"1"]
        assert "cut off" not in server.log()


def test_a_rewrite_that_fails_leaves_the_old_file_in_place(tmp_path: Path) -> None:
    with serve(tmp_path) as (server, client):
        fill(client)
        for _ in range(3):
            client.set("key", "x" * 1_000_000)
            client.delete("key")
        limit_files(server, 500_000)
        client.execute_command("BGREWRITEAOF")
        wait_until(lambda: client.info("persistence")["aof_last_bgrewrite_status"] == "err")
        limit_files(server, resource.RLIM_INFINITY)
        client.set("after", 1)
        before = contents(client)
        kill(server)
    with serve(tmp_path) as (_, client):
        assert contents(client) == before


def test_writes_are_refused_while_saving_fails_if_rules_ask_for_it(tmp_path: Path) -> None:
    with rs.Server([], directory=str(tmp_path), config={"save": "3600 1"}) as server:
        client = redis.Redis.from_url(server.url)
        fill(client)
        limit_files(server, 100_000)
        with pytest.raises(redis.ResponseError):
            client.execute_command("SAVE")
        with pytest.raises(redis.ResponseError, match="MISCONF Redis is configured to save RDB snapshots"):
            client.set("refused", 1)
        client.config_set("stop-writes-on-bgsave-error", "no")
        client.set("allowed", 1)
        client.config_set("stop-writes-on-bgsave-error", "yes")
        limit_files(server, resource.RLIM_INFINITY)
        client.execute_command("SAVE")
        client.set("after", 1)


FAILING_SYNC = """
#include <errno.h>
#include <sys/syscall.h>
#include <unistd.h>
static int sync_unless_failing(long call, int descriptor) {
    if (access("fail", F_OK) != 0) return (int)syscall(call, descriptor);
    errno = EIO;
    return -1;
}
int fdatasync(int descriptor) { return sync_unless_failing(SYS_fdatasync, descriptor); }
int fsync(int descriptor) { return sync_unless_failing(SYS_fsync, descriptor); }
"""


@pytest.fixture
def failing_sync(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """While it is there every fsync and fdatasync of servers of its folder fails, also of a file written anew."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("needs a C compiler")
    library = tmp_path / "failing.so"
    build = [compiler, "-shared", "-fPIC", "-D_GNU_SOURCE", "-x", "c", "-", "-o", str(library)]
    subprocess.run(build, input=FAILING_SYNC, text=True, check=True)
    monkeypatch.setenv("LD_PRELOAD", str(library))
    return tmp_path / "fail"


def test_a_disk_that_fails_to_take_what_was_written_is_written_to_anew(tmp_path: Path, failing_sync: Path) -> None:
    with serve(tmp_path) as (server, client):
        client.set("key", "before")
        failing_sync.touch()
        with pytest.raises(redis.ConnectionError):  # nobody is told that this is on the disk
            send(server.url, "SET", "key", "unsure").read_response()
        failing_sync.unlink()
        assert client.get("key") == b"unsure", "reads are answered while the file is written anew"
        wait_until(lambda: client.info("persistence")["aof_last_write_status"] == "ok")
        assert client.get("key") == b"unsure", "and afterwards, before there is another write"
        client.set("after", 1)
        kill(server)
    with serve(tmp_path) as (_, client):
        assert client.mget("key", "after") == [b"unsure", b"1"]


def test_a_second_try_that_the_disk_fails_to_take_is_written_anew(tmp_path: Path, failing_sync: Path) -> None:
    with serve(tmp_path, "everysec") as (server, client):
        limit_files(server, 10)
        client.set("key", "x" * 1000)
        wait_until(lambda: client.info("persistence")["aof_last_write_status"] == "err")
        failing_sync.touch()
        limit_files(server, resource.RLIM_INFINITY)
        wait_until(lambda: "cannot bring to the disk" in client.info("persistence")["aof_last_write_error"])
        failing_sync.unlink()
        wait_until(lambda: client.info("persistence")["aof_last_write_status"] == "ok")
        client.set("after", 1)
        server.stop()
    with serve(tmp_path) as (_, client):
        assert client.mget("key", "after") == [b"x" * 1000, b"1"]


def test_a_transaction_in_whose_midst_the_disk_fails_is_not_told_that_it_is_there(tmp_path: Path) -> None:
    with serve(tmp_path) as (server, client):
        client.setrange("bits", 20_000_000, "x")
        executing, busy, other = (send(server.url, "PING") for _ in range(3))
        for connection in (executing, busy, other):
            connection.read_response()
        # It runs for some tenths of a second before it changes anything.
        for words in [("MULTI",), *[("BITCOUNT", "bits")] * 50, ("SET", "key", "of the transaction")]:
            executing.send_command(*words)
            executing.read_response()
        limit_files(server, (tmp_path / INCREMENT).stat().st_size)
        busy.send_command("BITCOUNT", "bits")
        other.send_command("SET", "other", 1)  # comes while the server counts, and so …
        executing.send_command("EXEC")  # … in one turn with this: before the disk has failed to take it
        with pytest.raises(redis.ConnectionError):
            other.read_response()
        with pytest.raises(redis.ConnectionError):
            executing.read_response()
        assert client.info("persistence")["aof_last_write_status"] == "err"
        assert client.get("key") == b"of the transaction", "it was run"
        kill(server)
    with serve(tmp_path) as (_, client):
        assert client.get("key") is None
        assert client.strlen("bits") == 20_000_001


def test_a_full_disk_is_reported_and_survived(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root, to mount a small disk")
    disk = tmp_path / "disk"
    disk.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(disk)]
    mounted = subprocess.run(command, capture_output=True, text=True)
    if mounted.returncode != 0:
        pytest.skip(f"cannot mount a small disk: {mounted.stderr.strip()}")
    try:
        with serve(disk) as (server, client):
            written = 0
            with contextlib.suppress(redis.RedisError):
                while written < 100 and client.set(f"key:{written}", "x" * 100_000):
                    written += 1
            assert written < 100
            with pytest.raises(redis.ResponseError, match=r"MISCONF .*No space left on device"):
                client.set("refused", 1)
            assert client.strlen("key:0") == 100_000
            kill(server)
        subprocess.run(["mount", "-o", "remount,size=8m", str(disk)], check=True)
        with serve(disk) as (_, client):
            assert client.exists(*(f"key:{n}" for n in range(written))) == written > 5
            client.set("after", 1)
    finally:
        subprocess.run(["umount", str(disk)], check=True)


# ---- stops --------------------------------------------------------------------------------------------------------


def snapshots_in(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir() if path.name.endswith(".snapshot")]


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT, None])
def test_a_stop_saves_first_where_there_are_rules(tmp_path: Path, how: signal.Signals | None) -> None:
    with rs.Server([], directory=str(tmp_path), config={"save": "3600 1000000"}) as server:
        client = redis.Redis.from_url(server.url)
        fill(client)
        before = contents(client)
        if how is None:
            client.shutdown()
        else:
            os.kill(server.pid, how)
        wait_until(lambda: snapshots_in(tmp_path) != [])
        assert server.stop() == 0
    with rs.Server([], directory=str(tmp_path), restore="latest") as server:
        assert_same(contents(redis.Redis.from_url(server.url)), before)
        assert server.stop() == 0
    assert len(snapshots_in(tmp_path)) == 1, "without rules nothing is saved"


def test_a_stop_whose_saving_fails_goes_on_serving(tmp_path: Path) -> None:
    with rs.Server([], directory=str(tmp_path), config={"save": "3600 1000000"}) as server:
        client = redis.Redis.from_url(server.url)
        client.set("key", "x" * 1_000_000)
        limit_files(server, 1000)
        os.kill(server.pid, signal.SIGTERM)
        wait_until(lambda: client.info("persistence")["snapshots_failed"] == 1)
        wait_until(lambda: "the server keeps running" in server.log())
        with pytest.raises(redis.ResponseError, match=r"Errors trying to SHUTDOWN. Check logs."):
            client.execute_command("SHUTDOWN")
        limit_files(server, resource.RLIM_INFINITY)
        client.execute_command("SAVE")
        client.set("key", "later")
        assert server.stop() == 0
    with rs.Server([], directory=str(tmp_path), restore="latest") as server:
        assert redis.Redis.from_url(server.url).get("key") == b"later"


@contextlib.contextmanager
def a_snapshot_that_waits(folder: Path, url: str) -> Iterator[Callable[[], None]]:
    """One is being written to a pipe, which nobody reads until the function is called: no other can begin."""
    os.mkfifo(folder / "slow.snapshot.partial")
    connection = redis.Redis.from_url(url).connection_pool.get_connection()
    connection.send_command("REPLAY.SAVE", "slow")
    client = redis.Redis.from_url(url)
    wait_until(lambda: client.info("persistence")["rdb_bgsave_in_progress"] == 1)
    client.close()

    def read_it() -> None:
        with open(folder / "slow.snapshot.partial", "rb") as pipe:
            while pipe.read(65536):
                pass

    yield read_it
    connection.disconnect()


def test_a_stop_that_saves_can_be_given_up_and_what_waited_runs(tmp_path: Path) -> None:
    with rs.Server([], directory=str(tmp_path)) as server:
        client = redis.Redis.from_url(server.url, socket_timeout=30)
        client.set("key", 0)
        with a_snapshot_that_waits(tmp_path, server.url) as read_it:
            stopping = send(server.url, "SHUTDOWN", "SAVE")
            wait_until(lambda: client.info("clients")["blocked_clients"] == 2)
            writing = send(server.url, "INCR", "key")
            wait_until(lambda: client.info("clients")["blocked_clients"] == 3)
            client.execute_command("CLIENT", "UNPAUSE")
            assert client.get("key") == b"0", "writes wait for the stop, not for a pause that a client may end"
            assert client.execute_command("SHUTDOWN", "ABORT") is True  # the answer is OK
            assert writing.read_response() == 1
            with pytest.raises(redis.ResponseError, match=r"Errors trying to SHUTDOWN. Check logs."):
                stopping.read_response()
            with pytest.raises(redis.ResponseError, match=r"No shutdown in progress."):
                client.execute_command("SHUTDOWN", "ABORT")
            read_it()
        assert client.incr("key") == 2


def test_a_stop_goes_on_when_who_asked_for_it_has_gone(tmp_path: Path) -> None:
    with rs.Server([], directory=str(tmp_path)) as server:
        client = redis.Redis.from_url(server.url, socket_timeout=30)
        client.set("key", 0)
        with a_snapshot_that_waits(tmp_path, server.url) as read_it:
            stopping = send(server.url, "SHUTDOWN", "SAVE")
            wait_until(lambda: client.info("clients")["blocked_clients"] == 2)
            stopping.disconnect()
            wait_until(lambda: client.info("clients")["blocked_clients"] == 1)
            writing = send(server.url, "INCR", "key")
            wait_until(lambda: client.info("clients")["blocked_clients"] == 2)
            read_it()
            with pytest.raises(redis.RedisError):
                writing.read_response()
        wait_until(lambda: snapshots_in(tmp_path) != [])
        assert server.stop() == 0
    with rs.Server([], directory=str(tmp_path), restore="latest") as server:
        assert redis.Redis.from_url(server.url).get("key") == b"0"
