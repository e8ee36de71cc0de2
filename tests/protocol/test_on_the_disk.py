"""What is on the disk when: a file is whole before it has its name, and the name is there before anyone is told. Which
of several snapshots is the newest, whatever the clock says."""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from links import eventually

import replay_server as rs

SIGNATURE = {"x": rs.Column("float32", (2,)), "k": rs.Column("int64")}

# Between the server and the system: writes down, in "calls", which file was written to, brought to the disk or renamed,
# and shifts the clock by the seconds in "clock", if that file is there.
SHIM = r"""
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>
static void note(const char *what, int folder, const char *from, const char *to) {
    char text[9000], where[4000] = "", link[64];
    ssize_t length = 0;
    if (folder != AT_FDCWD) {
        snprintf(link, sizeof link, "/proc/self/fd/%d", folder);
        length = readlink(link, where, sizeof where - 1);
    } else if (getcwd(where, sizeof where - 1)) {
        length = (ssize_t)strlen(where);
    }
    where[length > 0 ? length : 0] = 0;
    if (where[0] != '/') return;
    int size = from ? snprintf(text, sizeof text, "%s\t%s\t%s\t%s\n", what, where, from, to)
                    : snprintf(text, sizeof text, "%s\t%s\n", what, where);
    int file = (int)syscall(SYS_openat, AT_FDCWD, getenv("TEST_CALLS"), O_WRONLY | O_APPEND | O_CREAT, 0600);
    syscall(SYS_write, file, text, (size_t)size);
    syscall(SYS_close, file);
}
static int is_regular(int descriptor) {
    struct stat status;
    return fstat(descriptor, &status) == 0 && S_ISREG(status.st_mode);
}
ssize_t write(int descriptor, const void *bytes, size_t length) {
    if (is_regular(descriptor)) note("write", descriptor, NULL, NULL);
    return syscall(SYS_write, descriptor, bytes, length);
}
ssize_t writev(int descriptor, const struct iovec *vectors, int count) {
    if (is_regular(descriptor)) note("write", descriptor, NULL, NULL);
    return syscall(SYS_writev, descriptor, vectors, count);
}
int fsync(int descriptor) {
    int result = (int)syscall(SYS_fsync, descriptor);
    note("sync", descriptor, NULL, NULL);
    return result;
}
int fdatasync(int descriptor) {
    int result = (int)syscall(SYS_fdatasync, descriptor);
    note("sync", descriptor, NULL, NULL);
    return result;
}
int renameat(int from, const char *old, int to, const char *name) {
    note("rename", from, old, name);
    return (int)syscall(SYS_renameat2, from, old, to, name, 0);
}
int rename(const char *old, const char *name) {
    return renameat(AT_FDCWD, old, AT_FDCWD, name);
}
int clock_gettime(clockid_t clock, struct timespec *time) {
    const char *shift = getenv("TEST_CLOCK");
    int result = (int)syscall(SYS_clock_gettime, clock, time);
    if (clock == CLOCK_REALTIME && shift) time->tv_sec += atol(shift);
    return result;
}
"""


@pytest.fixture
def serve(shim: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., rs.Server]:
    """Starts servers in a folder, whose calls are written down beside it; the clock goes wrong by so many seconds."""
    (tmp_path / "data").mkdir()

    def start(clock_s: int = 0, **options: object) -> rs.Server:
        with monkeypatch.context() as environment:
            environment.setenv("LD_PRELOAD", shim)
            environment.setenv("TEST_CALLS", str(tmp_path / "calls"))
            environment.setenv("TEST_CLOCK", str(clock_s))
            return rs.Server(directory=tmp_path / "data", **options)  # pyright: ignore[reportArgumentType]

    return start


def calls_of(tmp_path: Path) -> list[list[str]]:
    """["write", path], ["sync", path], ["rename", path, path]"""
    calls = []
    for line in (tmp_path / "calls").read_text().splitlines():
        what, where, *names = line.split("\t")
        calls.append([what, *([os.path.join(where, name) for name in names] or [where])])
    return calls


def check_order(calls: list[list[str]]) -> set[str]:
    """Each file is on the disk before it is renamed, and its folder afterwards; returns the names that were given."""
    renamed = set()
    for place, (what, *paths) in enumerate(calls):
        if what != "rename":
            continue
        source, name = paths
        before = [call[0] for call in calls[:place] if call[1] == source]
        assert "write" in before, f"{source} was renamed, and never written"
        assert before[-1] == "sync", f"{source} was renamed before all of it was on the disk"
        assert ["sync", os.path.dirname(name)] in calls[place:], f"the folder was not synced after {name} got its name"
        renamed.add(os.path.basename(name))
    return renamed


# ---- order of calls -------------------------------------------------------------------------------------------------


def test_a_file_is_on_the_disk_before_it_has_its_name_and_its_folder_before_anyone_is_told(serve, tmp_path):
    settings = {"appendonly": "yes", "appendfsync": "always", "aclfile": str(tmp_path / "data" / "users")}
    (tmp_path / "data" / "users").write_text("user default on nopass ~* &* +@all\n")
    with serve(tables=[rs.Table("t", 10, SIGNATURE)], config=settings) as server, rs.Client(server.url) as client:
        client.add("t", {"x": np.ones((3, 2), np.float32), "k": np.arange(3)})
        for name in ("first", "first", "second"):
            client.checkpoint(name)
            assert f"{name}.snapshot" in check_order(calls_of(tmp_path))
        client.redis.execute_command("ACL", "SAVE")
        assert "users" in check_order(calls_of(tmp_path))
        client.redis.set("key", "value")
        assert calls_of(tmp_path)[-1][0] == "sync", "the change was answered before it was on the disk"
        client.redis.execute_command("BGREWRITEAOF")
        deadline = time.monotonic() + 60
        while client.redis.info("persistence")["aof_rewrites"] == 0:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        client.redis.execute_command("SAVE")
    renamed = check_order(calls_of(tmp_path))
    assert "appendonly.aof.manifest" in renamed
    assert any(name.startswith("appendonly.aof.") and name.endswith(".base.snapshot") for name in renamed)
    assert any(name.startswith("replay-") for name in renamed)


def test_what_a_replica_is_sent_waits_for_no_disk(serve, tmp_path):
    (tmp_path / "replica").mkdir()
    with (
        serve(tables=[rs.Table("t", 10, SIGNATURE)]) as server,
        rs.Server(directory=tmp_path / "replica") as second,
        rs.Client(server.url) as client,
        rs.Client(second.url) as replica,
    ):
        client.add("t", {"x": np.ones((3, 2), np.float32), "k": np.arange(3)})
        host, _, port = server.url.partition("//")[2].rpartition(":")
        replica.redis.execute_command("REPLICAOF", host, port)
        eventually(lambda: replica.redis.info("replication")["master_link_status"] == "up", "the copy")
        assert replica.info("t")["size"] == 3
    of_copy = [call[0] for call in calls_of(tmp_path) if os.path.basename(call[1]) == "sync.cut.partial"]
    assert "write" in of_copy
    assert of_copy[-1] == "rename"
    assert "sync" not in of_copy


# ---- which is the newest --------------------------------------------------------------------------------------------


def save(serve: Callable[..., rs.Server], value: int, clock_s: int = 0, name: str | None = None) -> Path:
    with serve(clock_s, tables=[rs.Table("t", 10, SIGNATURE)]) as server, rs.Client(server.url) as client:
        client.redis.set("v", value)
        return Path(client.checkpoint(name))


def latest(serve: Callable[..., rs.Server]) -> tuple[int, str]:
    with serve(restore="latest") as server, rs.Client(server.url) as client:
        return int(client.redis.get("v") or -1), server.log()


def test_the_newest_snapshot_is_the_one_that_was_saved_last_whatever_the_clock_said(serve):
    save(serve, 1, clock_s=7200)
    value, log = latest(serve)
    assert value == 1
    assert "s in the future of this clock" in log
    save(serve, 2)  # the clock was set right
    value, log = latest(serve)
    assert value == 2
    assert "in the future" not in log
    save(serve, 3, clock_s=-86400, name="a-name-of-its-own")
    assert latest(serve)[0] == 3


def test_too_many_snapshots_are_removed_in_the_order_in_which_they_were_saved(serve):
    paths = [save(serve, i, clock_s=-3600 * i) for i in range(5)]
    assert [path.exists() for path in paths] == [False, False, True, True, True]


def crc32c(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ 0x82F63B78 * (crc & 1)
    return crc ^ 0xFFFFFFFF


def make_older(path: Path) -> None:
    """As version 2 has it: a longer run id in the place of the number."""
    data = path.read_bytes()
    header = data[:8] + struct.pack("<I", 2) + data[12:48] + b"f" * 8 + data[56:60]
    path.write_bytes(header + struct.pack("<I", crc32c(header)) + data[64:])


def test_snapshots_of_before_there_were_numbers_are_read_and_are_older_than_others(serve):
    early, late = save(serve, 1, name="early"), save(serve, 2, clock_s=3600, name="late")
    make_older(early)
    make_older(late)
    assert latest(serve)[0] == 2  # among themselves the latest cut counts
    save(serve, 3, name="numbered")
    assert latest(serve)[0] == 3


# ---- how many -------------------------------------------------------------------------------------------------------


def test_clients_name_no_more_snapshots_than_they_may(tmp_path):
    settings = {"snapshot-named-limit": 3, "snapshot-keep": 2}
    with rs.Server(directory=tmp_path, config=settings) as server, rs.Client(server.url) as client:
        for name in ("a", "b.snapshot", "c", "a"):
            client.checkpoint(name)
        with pytest.raises(rs.LimitExceeded, match="snapshot-named-limit") as refused:
            client.checkpoint("d")
        assert "remove one" in str(refused.value)
        assert sorted(os.listdir(tmp_path)) == ["a.snapshot", "b.snapshot", "c.snapshot"]
        client.checkpoint("c")  # one that is there is replaced
        client.checkpoint()  # and those named by the server have a bound of their own
        client.redis.config_set("snapshot-named-limit", 4)
        client.checkpoint("d")
        assert client.redis.info("persistence")["snapshot_named_limit"] == 4
        (tmp_path / "a.snapshot").unlink()
        client.checkpoint("e")
        with pytest.raises(rs.LimitExceeded):
            client.checkpoint("f")
        assert client.redis.ping()


def test_a_name_for_which_there_is_no_room_is_no_failure_to_save(tmp_path):
    settings = {"snapshot-named-limit": 1, "save": "3600 1000000"}
    with rs.Server(directory=tmp_path, config=settings) as server, rs.Client(server.url) as client:
        client.checkpoint("a")
        with pytest.raises(rs.LimitExceeded):
            client.checkpoint("b")
        assert client.redis.set("key", 1)  # stop-writes-on-bgsave-error does not refuse it
        about = client.redis.info("persistence")
        assert (about["rdb_last_bgsave_status"], about["snapshots_failed"], about["snapshots_saved"]) == ("ok", 0, 1)
        assert sorted(os.listdir(tmp_path)) == ["a.snapshot"]
