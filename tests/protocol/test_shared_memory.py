"""Batches through shared memory: the same items, given back when nobody refers to them, whoever dies first."""

from __future__ import annotations

import asyncio
import copy
import gc
import mmap
import os
import pickle
import resource
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import replay_server as rs
from replay_server import commands
from replay_server.connection import Address, Connection, on_same_host

SIGNATURE = {
    "obs": rs.Column("uint8", (128, 128)),
    "reward": rs.Column("float32"),
    "state": rs.Column("float64", (16,)),
}
BATCH = 512  # "obs" is 8 MiB and "state" 64 KiB: both are shared; "reward" is not


def fill(client: rs.Client, name: str = "t", count: int = 1000) -> None:
    client.create_table(rs.Table(name, 2000, SIGNATURE, sampler=rs.Uniform()))
    for start in range(0, count, 250):
        reward = np.arange(start, start + 250, dtype=np.float32)
        obs = np.empty((250, 128, 128), np.uint8)
        obs[:] = (reward % 251).astype(np.uint8)[:, None, None]
        state = np.repeat(reward.astype(np.float64)[:, None], 16, axis=1)
        client.add(name, {"obs": obs, "reward": reward, "state": state})


def check(batch: rs.Batch) -> None:
    reward = batch.data["reward"]
    assert len(np.unique(reward)) > 100
    assert (batch.data["obs"] == (reward % 251).astype(np.uint8)[:, None, None]).all()
    assert (batch.data["state"] == reward.astype(np.float64)[:, None]).all()


def check_shown(shown: rs.Batch, out: rs.Batch) -> None:
    """The arrays of `out`, filled anew, in columns that cannot be written to."""
    assert {array.flags.writeable for array in shown.data.values()} == {False}
    assert all(np.shares_memory(array, out.data[name]) for name, array in shown.data.items())
    assert {array.flags.writeable for array in out.data.values()} == {True}
    check(shown)


def field(client: rs.Client, name: str) -> int:
    info: Any = client.redis.info("all")
    return int(info[name])


@pytest.fixture
def near(server: rs.Server) -> Iterator[rs.Client]:
    """A client that shares memory with the server, whose table "t" holds 1000 items."""
    with rs.Client(server.url, shared_memory=True) as made:
        fill(made)
        yield made
        made.drop_table("t")


# ---- the same items --------------------------------------------------------------------------------------------------


def test_large_columns_are_read_only_arrays_over_shared_memory(near, client):
    before = field(client, "shared_batches")
    batch = near.sample("t", BATCH)
    check(batch)
    for name, shared in (("obs", True), ("state", True), ("reward", False)):
        assert batch.lease.holds(batch.data[name]) is shared, name
        assert batch.data[name].dtype == SIGNATURE[name].dtype
    assert batch.data["obs"].shape == (BATCH, 128, 128)
    assert field(client, "shared_batches") == before + 1
    with pytest.raises(ValueError, match="read-only"):
        batch.data["obs"][0] = 1
    check(near.sample("t", BATCH, columns=["state", "reward", "obs"]))
    applied, stale = near.update_priorities("t", batch.ids, np.ones(BATCH))
    assert applied + stale == BATCH


@pytest.mark.parametrize("shares", [None, True, False])
def test_the_caller_chooses_whether_columns_can_be_written_to(server, client, shares):
    """It is the same where the server shares memory and where it does not."""
    fill(client)
    with rs.Client(server.url, shared_memory=shares) as chosen:
        for writable, expected in [(True, True), (False, False), (None, shares is not True)]:
            batch = chosen.sample("t", BATCH, writable=writable)
            assert {array.flags.writeable for array in batch.data.values()} == {expected}
            check(batch)
        out = chosen.sample("t", BATCH, writable=True)
        assert chosen.sample("t", BATCH, out=out) is out
        check_shown(chosen.sample("t", BATCH, out=out, writable=False), out)
        for options in ({}, {"writable": True}):
            with chosen.sampler("t", BATCH, **options) as batches:
                for _, batch in zip(range(6), batches, strict=False):  # more than are ahead: arrays are used again
                    assert {array.flags.writeable for array in batch.data.values()} == {bool(options)}
                    check(batch)

    async def work() -> None:
        async with rs.aio.Client(server.url, shared_memory=shares) as chosen:
            for writable, expected in [(True, True), (False, False), (None, shares is not True)]:
                batch = await chosen.sample("t", BATCH, writable=writable)
                assert {array.flags.writeable for array in batch.data.values()} == {expected}
                check(batch)
            out = await chosen.sample("t", BATCH, writable=True)
            check_shown(await chosen.sample("t", BATCH, out=out, writable=False), out)

    rs.aio.run(work())
    client.drop_table("t")


def test_out_and_small_batches_use_the_socket(near, client):
    before = field(client, "shared_batches")
    out = client.sample("t", BATCH)
    assert near.sample("t", BATCH, out=out) is out
    check(out)
    assert near.sample("t", 2).lease is None
    assert field(client, "shared_batches") == before
    with pytest.raises(rs.SchemaError, match="read-only"):
        near.sample("t", BATCH, out=near.sample("t", BATCH))


def test_a_sampler_reads_shared_memory(near, client):
    before = field(client, "shared_batches")
    with near.sampler("t", BATCH, prefetch=2) as batches:
        for _ in range(30):
            batch = next(batches)
            assert batch.lease is not None
            check(batch)
    check(batch)  # also after the sampler's connection has gone
    assert field(client, "shared_batches") >= before + 30


def test_by_unix_socket_too(tmp_path):
    with rs.Server(port=-1, unix=tmp_path / "s") as server, rs.Client(server.url, shared_memory=True) as client:
        fill(client)
        batch = client.sample("t", BATCH)
        check(batch)
        assert batch.lease is not None


@pytest.mark.parametrize("compression", ["none", "lz4"])
def test_windows_come_through_shared_memory_as_explicit_stacks(server, client, compression):
    """Episodes of 7 steps: the first windows of each repeat its first frame, the last ones its last."""
    signature = {
        "frame": rs.Column("uint8", (64, 64), step_only=True),
        "number": rs.Column("int64"),
        "obs": rs.Window("frame", length=4),
        "next_obs": rs.Window("frame", length=4, offset=3),
    }
    rng = np.random.default_rng(5)
    frames = np.repeat(rng.integers(0, 256, (350, 64, 8), np.uint8), 8, axis=2)
    client.create_table(rs.Table("w", 1000, signature, sampler=rs.Uniform(), compression=compression))
    with client.writer("w") as writer:
        for t, frame in enumerate(frames):
            writer.append({"frame": frame, "number": np.int64(t)}, final=t % 7 == 6)
            writer.create_item()
        writer.flush()
    with rs.Client(server.url, shared_memory=True) as near:
        batch = near.sample("w", 256)
    assert batch.lease.holds(batch.data["obs"])
    assert batch.lease.holds(batch.data["next_obs"])
    back = np.arange(3, -1, -1)
    for name, offset in (("obs", 0), ("next_obs", 3)):
        number = batch.data["number"]
        first = number // 7 * 7
        steps = np.maximum(np.minimum(number + offset, first + 6)[:, None] - back, first[:, None])
        np.testing.assert_array_equal(batch.data[name], frames[steps], err_msg=name)
    client.drop_table("w")


# ---- leases ----------------------------------------------------------------------------------------------------------


def test_a_lease_goes_back_when_the_last_view_of_it_has_gone(near, client):
    batch = near.sample("t", BATCH)
    column = batch.data["obs"][3:7].view(np.int8)[1:, ::2]
    kept = column.copy()
    del batch
    gc.collect()
    near.sample("t", 1)  # carries what was given back
    assert field(client, "shared_memory_leases") == 1
    for _ in range(100):
        near.sample("t", BATCH)
    assert (column == kept).all()
    del column
    gc.collect()
    near.sample("t", 1)
    assert field(client, "shared_memory_leases") == 0


def test_release_gives_memory_back_at_once(near, client):
    batch = near.sample("t", BATCH)
    batch.release()
    assert list(batch.data) == ["reward"]
    batch.release()
    near.sample("t", 1)
    assert field(client, "shared_memory_leases") == 0
    unshared = client.sample("t", 4)
    unshared.release()
    assert list(unshared.data) == list(SIGNATURE)


def test_a_learner_that_holds_batches_goes_on_over_the_socket():
    with (
        rs.Server(config={"shared-memory-client-limit": "20mb"}) as server,
        rs.Client(server.url, shared_memory=True) as near,
        rs.Client(server.url) as client,
    ):
        fill(near)
        held = [near.sample("t", BATCH) for _ in range(5)]
        assert [batch.lease is not None for batch in held] == [True, True, False, False, False]
        for batch in held:
            check(batch)
        assert field(client, "shared_batches_without_room") == 3
        del held[0], batch
        gc.collect()
        assert near.sample("t", BATCH).lease is not None


def test_clients_beyond_what_may_be_shared_use_the_socket():
    with (
        rs.Server(config={"shared-memory-limit": "20mb", "shared-memory-client-limit": "16mb"}) as server,
        rs.Client(server.url, shared_memory=True) as first,
        rs.Client(server.url, shared_memory=True) as second,
    ):
        fill(first)
        assert first.sample("t", BATCH).lease is not None
        batch = second.sample("t", BATCH)
        assert batch.lease is None
        check(batch)


def test_a_server_that_shares_nothing_is_used_over_the_socket():
    with (
        rs.Server(config={"shared-memory-limit": "0"}) as server,
        rs.Client(server.url, shared_memory=True) as client,
    ):
        fill(client)
        batch = client.sample("t", BATCH)
        assert batch.lease is None
        check(batch)


def test_threads_of_one_client_hold_batches_of_their_own(near):
    from concurrent.futures import ThreadPoolExecutor

    def work(_: int) -> None:
        kept = []
        for _ in range(10):
            kept = [*kept[-2:], near.sample("t", BATCH)]
            for batch in kept:
                check(batch)

    with ThreadPoolExecutor(3) as threads:
        list(threads.map(work, range(6)))


def test_the_asyncio_client_shares_memory_too(server, client):
    fill(client)
    before = field(client, "shared_batches")

    async def work() -> None:
        async with rs.aio.Client(server.url, shared_memory=True) as near:
            kept = await asyncio.gather(*(near.sample("t", BATCH) for _ in range(3)))
            for batch in kept:
                check(batch)
                assert batch.lease is not None
            del batch, kept
            gc.collect()
            async with near.sampler("t", BATCH) as batches:
                number = 0
                async for batch in batches:
                    check(batch)
                    number += 1
                    if number == 20:
                        break
            out = await near.sample("t", 2, writable=True)
            assert (await near.sample("t", 2, out=out)) is out

    rs.aio.run(work())
    assert field(client, "shared_batches") >= before + 20
    client.drop_table("t")


def test_the_asyncio_client_of_a_server_that_shares_nothing():
    async def work(url: str) -> None:
        async with rs.aio.Client(url, shared_memory=True) as client:
            batch = await client.sample("t", BATCH)
            check(batch)
            assert batch.lease is None

    with rs.Server(config={"shared-memory-limit": "0"}) as server:
        with rs.Client(server.url) as client:
            fill(client)
        rs.aio.run(work(server.url))


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda batch: pickle.loads(pickle.dumps(batch))])  # noqa: S301
def test_a_batch_in_shared_memory_can_be_copied_and_sent_to_another_process(near, copied):
    batch = near.sample("t", BATCH)
    other = copied(batch)
    ids = batch.ids.copy()
    del batch
    gc.collect()
    for _ in range(40):
        near.sample("t", BATCH)
    check(other)
    assert (other.ids == ids).all()
    del other
    gc.collect()
    near.sample("t", 1)
    assert field(near, "shared_memory_leases") == 0


def test_a_descriptor_that_did_not_arrive_leaves_the_client_on_the_socket(server, client, monkeypatch):
    """As where the process may open no more files: the kernel then drops what came."""
    fill(client)
    monkeypatch.setattr(Connection, "_receive_descriptors", lambda self, space: self._socket.recv_into(space))
    with rs.Client(server.url, shared_memory=True) as near:
        for _ in range(2):
            batch = near.sample("t", BATCH)
            assert batch.lease is None
            check(batch)

    async def work() -> None:
        async with rs.aio.Client(server.url, shared_memory=True) as near:
            for _ in range(2):
                check(await near.sample("t", BATCH))

    rs.aio.run(work())
    client.drop_table("t")


def test_a_limit_on_the_size_of_files_does_not_end_the_server_that_is_to_share_memory():
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, limits[1]))
    try:
        server = rs.Server()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    with server, rs.Client(server.url, shared_memory=True) as client:
        fill(client)
        batch = client.sample("t", BATCH)
        assert batch.lease is None
        check(batch)


# ---- who may come in -------------------------------------------------------------------------------------------------


def test_a_loopback_client_switches_to_the_unix_socket(near, client):
    near.sample("t", 1)
    peers = [peer["addr"] for peer in client.redis.client_list()]
    assert sum(peer.startswith("@replay-server-") for peer in peers) >= 1


def test_passwords_still_apply_on_the_unix_socket():
    with rs.Server(password="s3cret") as server:
        with rs.Client(server.url, shared_memory=True) as client:
            fill(client)
            batch = client.sample("t", BATCH)
            assert batch.lease is not None
            check(batch)
        tcp = Connection(Address.parse(server.url), 5, 5)
        name, _ = tcp.execute(commands.share_socket())
        stranger = Address("redis://127.0.0.1", abstract=name)
        with pytest.raises(rs.ServerError, match="password"):
            Connection(stranger, 5, 5)
        tcp.close()


def test_the_unix_socket_lets_nobody_in_without_the_nonce(server):
    address = Address.parse(server.url)
    tcp = Connection(address, 5, 5)
    name, nonce = tcp.execute(commands.share_socket())
    near = Connection(Address("redis://127.0.0.1", abstract=name), 5, 5)
    with pytest.raises(rs.ServerError, match=r"REPLAY\.PROVE"):
        near.execute(commands.tables())
    with pytest.raises(rs.ServerError, match="nonce"):
        near.execute(commands.prove("0" * len(nonce)))
    with pytest.raises(rs.ServerError, match=r"REPLAY\.PROVE"):
        near.execute(commands.share(0))
    near.execute(commands.prove(nonce))
    assert isinstance(near.execute(commands.tables()), list)
    again = Connection(Address("redis://127.0.0.1", abstract=name), 5, 5)
    with pytest.raises(rs.ServerError, match="nonce"):  # it was good for once
        again.execute(commands.prove(nonce))
    with pytest.raises(rs.ServerError, match=r"REPLAY\.PROVE"):
        again.execute(commands.tables())
    for connection in (again, near, tcp):
        connection.close()


def test_a_client_that_does_not_find_the_socket_stays_on_tcp(server, monkeypatch):
    """As behind a forwarded port, where the server takes a client of another host for one of its own."""
    address = Address.parse(server.url)
    tcp = Connection(address, 5, 5)
    monkeypatch.setattr(commands, "share_socket", lambda: _told("replay-server-of-another-host"))
    assert on_same_host(tcp, address, 5, 5) is tcp
    assert tcp.usable
    tcp.close()


def _told(name: str) -> commands.Command[tuple[str, str]]:
    return commands.plain("sharing memory", ("PING",), lambda _: (name, "0" * 32), True)


def test_the_client_cannot_write_what_the_server_shares(server, tmp_path):
    connection = Connection(Address.parse(server.url), 5, 5)
    connection = on_same_host(connection, Address.parse(server.url), 5, 5)
    connection._descriptors = []
    size = connection.execute(commands.share(1 << 20))
    (descriptor,) = connection._descriptors
    opened_to_write = os.open(f"/proc/self/fd/{descriptor}", os.O_RDWR)  # by the same user, or root
    for number, error in ((descriptor, OSError), (opened_to_write, PermissionError)):
        for write in (
            lambda number=number: mmap.mmap(number, size, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE),
            lambda number=number: os.pwrite(number, b"x", 0),
            lambda number=number: os.ftruncate(number, 0),
        ):
            with pytest.raises(error):
                write()
    os.close(opened_to_write)
    os.close(descriptor)
    connection.close()


# ---- either side dies ------------------------------------------------------------------------------------------------


def test_arrays_stay_readable_when_the_server_is_killed():
    with rs.Server() as server, rs.Client(server.url, shared_memory=True, reconnect_timeout=0.2) as client:
        fill(client)
        batch = client.sample("t", BATCH)
        os.kill(server.pid, signal.SIGKILL)
        server._process.wait(60)
        check(batch)
        with pytest.raises(rs.ConnectionLost):
            client.sample("t", BATCH)
        check(batch)


def test_a_client_that_is_killed_gives_everything_back(server, client, eventually):
    fill(client)
    program = (
        "import sys, replay_server as rs\n"
        "client = rs.Client(sys.argv[1], shared_memory=True)\n"
        "held = [client.sample('t', 512) for _ in range(3)]\n"
        "assert held[0].lease is not None\n"
        "print('holds', flush=True)\n"
        "while True: client.sample('t', 512)\n"
    )
    arenas = field(client, "shared_memory_clients")
    learner = subprocess.Popen([sys.executable, "-c", program, server.url], stdout=subprocess.PIPE)
    try:
        assert learner.stdout is not None
        assert learner.stdout.readline() == b"holds\n"
        assert field(client, "shared_memory_clients") == arenas + 1
        assert field(client, "shared_memory_leases") >= 3
    finally:
        learner.kill()
        learner.wait(60)
        assert learner.stdout is not None
        learner.stdout.close()
    eventually(lambda: field(client, "shared_memory_clients") == arenas, "the arena goes")
    eventually(lambda: client.info("t")["pinned_slots"] == 0, "the items are unpinned")
    check(client.sample("t", BATCH))
    client.drop_table("t")


def test_a_server_that_was_started_again_is_shared_with_anew(tmp_path, free_port):
    with rs.Server(port=free_port) as server:
        client = rs.Client(server.url, shared_memory=True)
        fill(client)
        old = client.sample("t", BATCH)
    with rs.Server(port=free_port):
        fill(client)
        new = client.sample("t", BATCH)
        check(old)
        check(new)
        assert new.lease is not None
    client.close()


def test_descriptors_do_not_pile_up(server, client):
    fill(client)

    def count() -> int:
        return len(list(Path("/proc/self/fd").iterdir()))

    def once() -> None:
        with rs.Client(server.url, shared_memory=True) as near:
            near.sample("t", BATCH)

    once()
    before = count()
    for _ in range(5):
        once()
    gc.collect()
    assert count() <= before
    client.drop_table("t")


def test_whoever_takes_no_descriptor_gets_none(server, open_raw):
    """A plain Redis client that asks for shared memory is answered, and its connection stays in step."""
    raw = open_raw(server.url)
    name, _, nonce = raw.command("REPLAY.SHARE")
    with socket.socket(socket.AF_UNIX) as plain:
        plain.connect(b"\0" + name)
        plain.sendall(b"REPLAY.PROVE " + nonce + b"\r\nREPLAY.SHARE 1048576\r\nPING\r\n")
        came = b""
        while not came.endswith(b"+PONG\r\n"):
            came += plain.recv(100)
        assert came == b"+OK\r\n:1048576\r\n+PONG\r\n"


# ---- what is counted ------------------------------------------------------------------------------------------------


def share(path: str, size: int) -> tuple[socket.socket, list[int], bytes]:
    """A connection that has asked for an arena; its descriptor, if it got one, and the answer."""
    connected = socket.socket(socket.AF_UNIX)
    connected.settimeout(60)
    connected.connect(path)
    connected.sendall(commands_of("REPLAY.SHARE", str(size)))
    answer, descriptors, _, _ = socket.recv_fds(connected, 4096, 4)
    return connected, descriptors, answer


def commands_of(*words: str) -> bytes:
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(word), word.encode()) for word in words)


def wait_for_field(client: rs.Client, name: str, value: int) -> None:
    deadline = time.monotonic() + 60
    while field(client, name) != value:
        assert time.monotonic() < deadline, (name, field(client, name))
        time.sleep(0.01)


def test_memory_that_a_client_keeps_counts_after_its_connection_has_closed(tmp_path):
    size, path = 1 << 20, str(tmp_path / "socket")
    settings = {"shared-memory-limit": 3 * size, "shared-memory-client-limit": size, "unixsocket": path}
    with rs.Server(config=settings) as server, rs.Client(server.url) as client:
        kept: list[Any] = []
        for count in range(1, 4):  # kept as a descriptor, as a mapping, as a descriptor that another process has
            connected, (descriptor,), answer = share(path, size)
            assert answer == b":%d\r\n" % size
            if count == 1:
                kept.append(descriptor)
            elif count == 2:
                kept.append(mmap.mmap(descriptor, size, mmap.MAP_SHARED, mmap.PROT_READ))
                os.close(descriptor)
            else:
                kept.append(subprocess.Popen(["sleep", "1000"], pass_fds=[descriptor]))
                os.close(descriptor)
            connected.close()
            wait_for_field(client, "used_memory_shared_left", count * size)
        connected, descriptors, answer = share(path, size)
        connected.close()
        assert not descriptors
        assert answer.startswith(b"-LIMIT ")
        assert b"3145728 of them through connections that have closed" in answer
        os.close(kept[0])
        wait_for_field(client, "used_memory_shared_left", 2 * size)
        kept[1].close()
        wait_for_field(client, "used_memory_shared_left", size)
        kept[2].kill()
        kept[2].wait()
        connected, (descriptor,), answer = share(path, size)  # asks anew who has still any
        assert answer == b":%d\r\n" % size
        os.close(descriptor)
        connected.close()
        wait_for_field(client, "used_memory_shared_left", 0)
        wait_for_field(client, "used_memory_shared", 0)


def test_arenas_take_descriptors_and_count_as_clients(tmp_path):
    size, path = 1 << 20, str(tmp_path / "socket")
    with rs.Server(config={"maxclients": 4, "unixsocket": path}) as server, rs.Client(server.url) as client:
        assert field(client, "connected_clients") == 1
        first, (descriptor,), _ = share(path, size)  # two clients, one arena
        second, none, answer = share(path, size)  # three clients, one arena
        assert not none
        assert answer.startswith(b"-LIMIT 3 clients and 1 arenas")
        with socket.socket(socket.AF_UNIX) as refused:
            refused.connect(path)
            refused.settimeout(60)
            assert refused.recv(100) == b"-ERR max number of clients reached\r\n"
        second.close()
        first.close()
        os.close(descriptor)
        wait_for_field(client, "used_memory_shared_left", 0)
        again, (descriptor,), _ = share(path, size)
        os.close(descriptor)
        again.close()
