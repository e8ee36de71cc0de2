"""Disks that refuse or fail, and stops that save first: what is said, and what is there afterwards."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import redis
from durable import INCREMENT, assert_same, contents, fill, kill, send, serve, wait_until
from redis.exceptions import ExecAbortError

import replay_server as rs

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
        client.execute_command("FENCE")  # the data have their origin, which a rewrite would add to the file
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


SHIM = """
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
def failing_sync(shim: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """While it is there every fsync and fdatasync of servers of its folder fails, also of a file written anew."""
    monkeypatch.setenv("LD_PRELOAD", shim)
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


def is_cut_off(server: rs.Server, increment: Path) -> bool:
    """Begins a transaction just before the disk fails; False: the failure was noticed before it began."""
    executing, busy, other = (send(server.url, "PING") for _ in range(3))
    for connection in (executing, busy, other):
        connection.read_response()
    # It runs for some tenths of a second before it changes anything.
    for words in [("MULTI",), *[("BITCOUNT", "bits")] * 50, ("SET", "key", "of the transaction")]:
        executing.send_command(*words)
        executing.read_response()
    limit_files(server, increment.stat().st_size)
    busy.send_command("BITCOUNT", "bits")
    other.send_command("SET", "other", 1)  # comes while the server counts, and so …
    executing.send_command("EXEC")  # … in one turn with this: before the disk has failed to take it
    with pytest.raises(redis.ConnectionError):
        other.read_response()
    try:
        executing.read_response()
    except redis.ConnectionError:
        return True
    except ExecAbortError:
        return False
    pytest.fail("the transaction was answered")


def test_a_transaction_in_whose_midst_the_disk_fails_is_not_told_that_it_is_there(tmp_path: Path) -> None:
    with serve(tmp_path) as (server, client):
        client.setrange("bits", 20_000_000, "x")
        for _ in range(50):
            if is_cut_off(server, tmp_path / INCREMENT):
                break
            limit_files(server, resource.RLIM_INFINITY)
            wait_until(lambda: client.info("persistence")["aof_last_write_status"] == "ok")
        else:
            pytest.fail("no transaction began before the failure was noticed")
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
