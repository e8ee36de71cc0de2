"""Old primaries that come back: they refuse writes once somebody who knows of a newer one has talked to them."""

from __future__ import annotations

import contextlib
import itertools
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import redis
from links import Link, eventually, fail_over, sentinel_of
from replica_tables import TABLE, Member, serve, settle
from test_table_log import batch

import replay_server as rs

KEPT = {"appendonly": "yes", "appendfsync": "always"}
WEIGHTS = {"w": np.ones(2, np.float32)}


def url_of(*members: Member) -> str:
    return "redis://" + ",".join(f"127.0.0.1:{member.port}" for member in members)


def epochs(member: Member) -> tuple[int, int, int]:
    told = member.redis.info("replication")
    return told["master_epoch"], told["master_newest_epoch"], told["master_fenced"]


def meet(*members: Member) -> None:
    """A client that has all of them in its URL connects."""
    with rs.Client(url_of(*members)) as client:
        client.tables()


def refusals(member: Member) -> list[str]:
    """What is told to those who write to its keys, tables, weights and gradients."""
    told = []
    ids = np.array([1], np.uint64)
    with rs.Client(member.server.url) as client:
        for write in (
            lambda: client.add("t", batch(range(3))),
            lambda: client.sample("t", 1),
            lambda: client.update_priorities("t", ids, np.ones(1)),
            lambda: client.create_table(rs.Table("other", 8, TABLE.signature)),
            lambda: client.publish_weights("w", WEIGHTS),
            lambda: client.command("GRAD.PUSH", "g", 1, "name", "float32", b"\0" * 4),
            lambda: client.command("SET", "k", "v"),
            lambda: client.command("EVAL", "return redis.call('SET', 'k', 'v')", 0),
        ):
            with pytest.raises(rs.ServerError) as refused:
                write()
            told.append(str(refused.value))
    return told


@contextlib.contextmanager
def after_a_failover(folder: Path) -> Iterator[tuple[Member, Member]]:
    """A primary that was killed and has come back from its files, and the replica that was promoted meanwhile."""
    with serve(folder / "old", TABLE, **KEPT) as killed, serve(folder / "new", **KEPT) as new:
        new.follow(killed.port)
        killed.client.add("t", batch(range(9)))
        killed.client.publish_weights("w", WEIGHTS)
        killed.redis.set("k", "before")
        settle(killed, new)
        killed.kill()
        new.promote()
        with serve(folder / "old", **KEPT) as old:
            yield old, new


# ---- clients of both ------------------------------------------------------------------------------------------------


def test_a_primary_that_was_killed_takes_no_writes_once_a_client_of_both_has_connected(tmp_path: Path) -> None:
    with after_a_failover(tmp_path) as (old, new):
        ids = old.client.add("t", batch(range(1)))  # nobody has told it yet
        with rs.Client(url_of(old, new)) as client:
            client.add("t", batch(range(5)))
        assert new.client.info("t")["size"] == 14
        newest = epochs(new)[0]
        assert epochs(new) == (newest, newest, 0)
        assert abs(newest - time.time() * 1000) < 120_000
        assert epochs(old) == (0, newest, 1)
        for told in refusals(old):
            assert f"this primary is of epoch 0, and one of epoch {newest} has taken its place" in told
        assert old.client.info("t")["size"] == 10
        assert old.client.get("t", ids).data["key"].tolist() == [0]
        assert old.redis.get("k") == b"before"
        assert (old.client.fetch_weights("w") or (0, {}))[1]["w"].tolist() == [1, 1]
        assert (old.redis.role()[0], old.redis.info("replication")["role"]) == (b"master", "master")
        with pytest.raises(redis.exceptions.ReadOnlyError):
            old.redis.set("k", "after")
        new.redis.set("k", "after")


def test_a_primary_that_was_told_still_refuses_after_a_restart(tmp_path: Path) -> None:
    with after_a_failover(tmp_path) as (old, new):
        meet(new, old)
        before = epochs(old)
        assert before[2] == 1
        files = [*(tmp_path / "old").rglob("*.incr.aof")]
        eventually(lambda: any(str(before[1]).encode() in file.read_bytes() for file in files), "the record of it")
        old.kill()
        with serve(tmp_path / "old", **KEPT) as again:
            assert epochs(again) == before
            assert all("READONLY" in told or "has taken its place" in told for told in refusals(again))
            again.redis.execute_command("BGREWRITEAOF")
            eventually(lambda: again.redis.info("persistence")["aof_rewrites"] > 0, "a rewrite")
            again.kill()
        with serve(tmp_path / "old", **KEPT) as again:
            assert epochs(again) == before


def test_a_client_that_writes_to_the_old_primary_goes_on_with_the_new_one(tmp_path: Path) -> None:
    with after_a_failover(tmp_path) as (old, new), contextlib.closing(Link(new.port)) as link:
        link.cut(mend=False)  # this client reaches the old one alone
        with rs.Client(f"redis://127.0.0.1:{old.port},127.0.0.1:{link.port}") as client:
            client.command("SET", "lost", 1)
            link.mend()
            meet(old, new)
            client.command("SET", "kept", 1)
            client.add("t", batch(range(1)))
        assert (old.redis.get("kept"), new.redis.get("kept")) == (None, b"1")
        assert new.client.info("t")["size"] == 10


def test_a_client_asks_all_hosts_when_it_has_lost_one(tmp_path: Path) -> None:
    with (
        serve(tmp_path / "old", TABLE, **KEPT) as killed,
        serve(tmp_path / "new") as new,
        contextlib.closing(Link(killed.port)) as link,
        rs.Client(f"redis://127.0.0.1:{link.port},127.0.0.1:{new.port}") as client,
    ):
        new.follow(killed.port)
        client.command("SET", "a", 1)
        settle(killed, new)
        killed.kill()
        new.promote()
        with serve(tmp_path / "old", **KEPT) as old:
            link.target = old.port
            link.cut()
            time.sleep(1.1)  # what it saw within a second is relied on
            client.command("SET", "b", 2)
            assert (old.redis.get("b"), new.redis.get("b")) == (None, b"2")
            assert epochs(old)[2] == 1


async def _write(url: str) -> None:
    async with rs.aio.Client(url) as client:
        await client.command("SET", "b", 2)


def test_the_asyncio_client_tells_too(tmp_path: Path) -> None:
    with after_a_failover(tmp_path) as (old, new):
        rs.aio.run(_write(url_of(old, new)))
        assert (old.redis.get("b"), new.redis.get("b")) == (None, b"2")
        assert epochs(old)[2] == 1


def test_a_host_that_says_nothing_costs_a_second(tmp_path: Path) -> None:
    with serve(tmp_path) as member, socket.create_server(("127.0.0.1", 0)) as silent:
        began = time.monotonic()
        with rs.Client(f"redis://127.0.0.1:{member.port},127.0.0.1:{silent.getsockname()[1]}") as client:
            client.command("SET", "a", 1)
        assert 0.9 < time.monotonic() - began < 4
        assert member.redis.get("a") == b"1"


@pytest.mark.parametrize("rights", ["+role", "+fence +role"])
def test_a_user_without_the_right_to_fence_goes_by_roles(tmp_path: Path, rights: str) -> None:
    with after_a_failover(tmp_path) as (old, new):
        for member in (old, new):
            member.redis.execute_command("ACL", "SETUSER", "actor", "on", ">x", "~*", "+hello", "+set", *rights.split())
        hosts = url_of(old, new).removeprefix("redis://")
        with rs.Client(f"redis://actor:x@{hosts}") as client:
            client.command("SET", "b", 2)
        tells = "+fence" in rights
        assert epochs(old)[2] == int(tells)
        assert (new if tells else old).redis.get("b") == b"2"


def test_where_only_an_older_primary_answers_the_error_says_so(tmp_path: Path) -> None:
    with after_a_failover(tmp_path) as (old, new):
        meet(old, new)
        new.kill()
        with (
            rs.Client(url_of(old, new), reconnect_timeout=0.2) as client,
            pytest.raises(rs.ConnectionLost, match=r"no primary answers: .* is a primary of epoch 0, and one of epoch"),
        ):
            client.tables()


# ---- what is refused, and its end -----------------------------------------------------------------------------------


def test_an_add_that_waits_ends_when_its_primary_is_told(tmp_path: Path) -> None:
    table = rs.Table("q", 8, TABLE.signature, sampler=rs.Fifo(), max_times_sampled=1, rate_limiter=rs.Queue(2))
    with serve(tmp_path, table) as member:
        member.client.add("q", batch(range(2)))
        told: list[BaseException] = []

        def wait() -> None:
            with rs.Client(member.server.url) as client:
                try:
                    client.add("q", batch(range(1)))
                except rs.ReplayError as error:
                    told.append(error)

        waiting = threading.Thread(target=wait)
        waiting.start()
        eventually(lambda: member.client.info("q")["waiting"], "an add that waits")
        assert member.redis.execute_command("FENCE", 5)[:3] == [b"master", 0, 5]
        waiting.join(30)
        assert len(told) == 1
        assert isinstance(told[0], rs.ServerError)
        assert told[0].code == "READONLY"
        assert member.client.info("q")["size"] == 2


def test_a_transaction_that_was_queued_before_is_refused_whole(tmp_path: Path) -> None:
    with serve(tmp_path) as member, member.redis.client() as writer:
        for words in (["MULTI"], ["SET", "a", 1], ["GET", "a"]):
            writer.execute_command(*words)
        member.redis.execute_command("FENCE", 5)
        with pytest.raises(redis.ResponseError, match="has taken its place"):
            writer.execute_command("EXEC")
        assert member.redis.get("a") is None
        assert member.redis.execute_command("FENCE")[:3] == [b"master", 0, 5]


def test_following_the_new_primary_ends_it(tmp_path: Path) -> None:
    with after_a_failover(tmp_path) as (old, new):
        meet(old, new)
        old.follow(new.port)
        assert epochs(old) == epochs(new)
        new.client.add("t", batch(range(2)))
        settle(new, old)
        new.kill()
        before = epochs(old)[0]
        old.promote()
        assert epochs(old)[0] > before
        assert epochs(old)[2] == 0
        old.client.add("t", batch(range(2)))


def test_an_operator_can_keep_the_old_primary_instead(tmp_path: Path) -> None:
    with after_a_failover(tmp_path) as (old, new):
        meet(old, new)
        before = epochs(new)[0]
        old.promote()
        own = epochs(old)[0]
        assert epochs(old) == (own, own, 0)
        assert own > before
        with rs.Client(url_of(new, old)) as client:
            client.add("t", batch(range(2)))
        assert old.client.info("t")["size"] == 11
        assert epochs(new) == (before, own, 1)
        assert "has taken its place" in refusals(new)[0]


def test_sentinel_has_an_old_primary_that_was_told_follow_the_new_one(tmp_path: Path) -> None:
    with serve(tmp_path / "old", TABLE, **KEPT) as killed, serve(tmp_path / "new") as new:
        new.follow(killed.port)
        with sentinel_of(killed.port, tmp_path) as sentinel:
            eventually(lambda: sentinel.discover_slaves("mine"), "the discovery of the replica")
            fail_over(sentinel, killed.kill, new.port)
            with rs.Server([], port=killed.port, directory=str(tmp_path / "old"), config=KEPT) as server:
                old = Member(server)
                with old.client:
                    meet(old, new)
                    with contextlib.suppress(rs.ServerError):  # or Sentinel was faster
                        old.client.add("t", batch(range(1)))
                    eventually(lambda: old.redis.info("replication")["role"] == "slave", "its new part")
                    eventually(lambda: epochs(old) == epochs(new), "the epoch of the new primary")
                    assert new.client.add("t", batch(range(1))).size == 1


@pytest.mark.parametrize(
    "words", [["-1"], ["x"], ["4611686018427387904"], ["1", "2"], ["1", "0" * 17], ["1", "0" * 16, "3"]]
)
def test_fence_refuses_what_is_no_epoch(tmp_path: Path, words: list[str]) -> None:
    with serve(tmp_path) as member:
        with pytest.raises(redis.ResponseError):
            member.redis.execute_command("FENCE", *words)
        assert epochs(member) == (0, 0, 0)


# ---- epochs ---------------------------------------------------------------------------------------------------------


def test_each_promotion_in_a_chain_is_newer_than_those_before(tmp_path: Path) -> None:
    with contextlib.ExitStack() as stack:
        members = [stack.enter_context(serve(tmp_path / str(number))) for number in range(4)]
        seen = [epochs(members[0])[0]]
        for primary, replica in itertools.pairwise(members):
            replica.follow(primary.port)
            assert epochs(replica) == epochs(primary)
            replica.promote()
            seen.append(epochs(replica)[0])
        assert seen[0] == 0
        assert seen == sorted(set(seen))
        meet(*reversed(members))
        assert [epochs(member)[2] for member in members] == [1, 1, 1, 0]


def test_replicas_of_replicas_learn_of_a_promotion(tmp_path: Path) -> None:
    with serve(tmp_path / "a") as first, serve(tmp_path / "b") as second, serve(tmp_path / "c") as third:
        second.follow(first.port)
        third.follow(second.port)
        second.promote()
        eventually(lambda: epochs(third) == epochs(second), "the epoch of the promotion")
        assert epochs(third)[0] > 0
        second.redis.set("a", 1)
        settle(second, third)


def test_a_failover_passes_the_epoch_on(tmp_path: Path) -> None:
    with serve(tmp_path / "a", TABLE) as first, serve(tmp_path / "b") as second:
        second.follow(first.port)
        settle(first, second)
        first.redis.execute_command("FAILOVER", "TO", "127.0.0.1", second.port)
        eventually(lambda: first.redis.info("replication").get("master_link_status") == "up", "the change of places")
        assert epochs(first) == epochs(second)
        between = epochs(second)[0]
        assert between > 0
        second.redis.execute_command("FAILOVER", "TO", "127.0.0.1", first.port)
        eventually(lambda: second.redis.info("replication").get("master_link_status") == "up", "the way back")
        assert epochs(first) == epochs(second)
        assert epochs(first)[0] > between
        meet(first, second)
        first.client.add("t", batch(range(1)))


@pytest.mark.parametrize("way", ["file", "rewritten file", "snapshot"])
def test_a_promoted_server_keeps_its_epoch_over_a_restart(tmp_path: Path, way: str) -> None:
    kept = {} if way == "snapshot" else KEPT
    with serve(tmp_path / "a", TABLE) as first, serve(tmp_path / "b", **kept) as second:
        second.follow(first.port)
        settle(first, second)
        if kept:
            eventually(lambda: second.redis.info("persistence")["aof_pending_rewrite"] == 0, "the base")
        second.promote()
        before = epochs(second)
        second.redis.set("k", 1)  # whoever keeps this keeps the epoch
        if way == "rewritten file":
            count = second.redis.info("persistence")["aof_rewrites"]
            second.redis.execute_command("BGREWRITEAOF")
            eventually(lambda: second.redis.info("persistence")["aof_rewrites"] > count, "a rewrite")
        if way == "snapshot":
            second.client.checkpoint()
        second.kill()
        restore = "latest" if way == "snapshot" else None
        with rs.Server([], directory=str(tmp_path / "b"), config=kept, restore=restore) as server:
            again = Member(server)
            with again.client:
                assert (epochs(again), again.redis.get("k")) == (before, b"1")
                meet(first, again)
                assert epochs(first) == (0, before[0], 1)


@pytest.mark.parametrize("way", ["replica", "fenced"])
def test_a_promotion_is_saved_where_there_are_only_snapshots(tmp_path: Path, way: str) -> None:
    with serve(tmp_path / "a", TABLE) as first, serve(tmp_path / "b") as second:
        first.client.add("t", batch(range(3)))
        if way == "replica":
            second.follow(first.port)
            settle(first, second)
        else:
            second.redis.execute_command("FENCE", 5)
        second.client.checkpoint()
        second.promote()
        told = epochs(second)
        eventually(lambda: second.redis.info("persistence")["snapshots_saved"] == 2, "another snapshot")
        second.kill()
        with rs.Server([], directory=str(tmp_path / "b"), restore="latest") as server:
            again = Member(server)
            with again.client:
                assert epochs(again) == told
                assert told[2] == 0
                again.redis.set("k", 1)


@pytest.mark.parametrize("turn", range(3))
def test_what_is_told_of_origin_and_epoch_is_on_the_disk(tmp_path: Path, turn: int) -> None:
    with serve(tmp_path / str(turn), **KEPT) as member:
        told = member.redis.execute_command("FENCE", 5)
        member.kill()
    with serve(tmp_path / str(turn), **KEPT) as member:
        assert (epochs(member), member.redis.execute_command("FENCE")) == ((0, 5, 1), told)
        member.promote()
        member.kill()
    with serve(tmp_path / str(turn), **KEPT) as member:
        own = epochs(member)[0]
        assert own > 5
        assert epochs(member) == (own, own, 0)


def test_an_epoch_that_is_told_amid_a_script_stands_behind_it_in_the_file(tmp_path: Path) -> None:
    script = "redis.call('SET', 'k1', 1) for i = 1, 3000000 do redis.call('GET', 'k1') end"
    with serve(tmp_path, **KEPT, busy_reply_threshold="1") as member:
        with rs.Client(member.server.url) as other:
            running = threading.Thread(target=lambda: other.command("EVAL", script, 0))
            running.start()

            def is_busy() -> bool:
                try:
                    member.redis.get("k1")
                except redis.ResponseError as error:
                    return "BUSY" in str(error)
                return False

            eventually(is_busy, "a script that holds the server")
            member.redis.execute_command("REPLCONF", "capa", "left-epoch=7")
            assert running.is_alive()
            running.join()
        told = epochs(member)
        assert told == (8, 8, 0)
        member.redis.set("k", 1)
        kept = b"".join(file.read_bytes() for file in tmp_path.rglob("*.incr.aof"))
        assert kept.index(b"MULTI") < kept.index(b"EXEC") < kept.index(b"FENCE")
        member.kill()
    with serve(tmp_path, **KEPT) as member:
        assert epochs(member) == told


def test_a_replica_keeps_the_epoch_of_its_primary_over_a_restart(tmp_path: Path) -> None:
    with serve(tmp_path / "a") as first, serve(tmp_path / "b") as second, serve(tmp_path / "c", **KEPT) as third:
        second.follow(first.port)
        second.promote()
        third.follow(second.port)
        before = epochs(second)
        eventually(lambda: third.redis.info("persistence")["aof_pending_rewrite"] == 0, "the base")
        third.kill()
        with serve(tmp_path / "c", **KEPT) as again:
            assert epochs(again) == (*before[:2], 1)


# ---- replicas -------------------------------------------------------------------------------------------------------


def test_a_replica_that_comes_back_to_an_older_primary_tells_it_and_keeps_its_data(tmp_path: Path) -> None:
    with (
        serve(tmp_path / "older", TABLE) as older,
        serve(tmp_path / "newer") as newer,
        serve(tmp_path / "replica") as replica,
    ):
        newer.follow(older.port)
        newer.promote()
        newer.redis.set("k", "kept")
        with contextlib.closing(Link(newer.port)) as link:
            replica.follow(link.port)
            link.target = older.port
            link.cut()
            eventually(lambda: epochs(older)[2] == 1, "the news")
            assert epochs(older)[1] == epochs(newer)[0]
            time.sleep(1.5)  # it has tried again
            assert replica.redis.get("k") == b"kept"
            assert replica.redis.info("replication")["master_link_status"] == "down"
            assert older.redis.info("stats")["sync_full"] == 1
            older.promote()
            eventually(lambda: replica.redis.info("replication")["master_link_status"] == "up", "the link")
            assert replica.redis.get("k") is None
            assert epochs(replica) == epochs(older)


def test_a_replica_follows_whom_replicaof_names(tmp_path: Path) -> None:
    with serve(tmp_path / "a", TABLE) as first, serve(tmp_path / "b") as second, serve(tmp_path / "c") as third:
        second.follow(first.port)
        second.promote()
        left = epochs(second)[0]
        third.follow(second.port)
        second.follow(first.port)  # it was a primary: the one that it follows is newer from then on
        assert epochs(first) == (left + 1, left + 1, 0)
        assert epochs(second) == epochs(first)
        meet(first, second)
        first.client.add("t", batch(range(1)))
        third.follow(first.port)  # it was none
        assert epochs(first) == epochs(third) == (left + 1, left + 1, 0)


def test_what_a_replica_was_told_of_others_does_not_stop_its_primary(tmp_path: Path) -> None:
    with (
        serve(tmp_path / "a", TABLE) as first,
        serve(tmp_path / "b") as second,
        contextlib.closing(Link(first.port)) as link,
    ):
        second.follow(link.port)
        assert second.redis.execute_command("FENCE", 5)[:3] == [b"slave", 0, 5]
        before = first.stats()
        link.cut()
        eventually(lambda: first.stats() != before and epochs(second) == (0, 0, 0), "the way back")
        meet(second, first)
        assert epochs(first) == (0, 0, 0)


def test_what_replicas_of_redis_are_told_is_as_before(tmp_path: Path) -> None:
    with serve(tmp_path / "a") as first, serve(tmp_path / "b") as second:
        second.follow(first.port)
        second.promote()
        answers: list[Any] = []
        for capabilities in (b"capa eof capa psync2", b"capa eof capa psync2 capa epoch=0"):
            with socket.create_connection(("127.0.0.1", second.port)) as replica, replica.makefile("rb") as reader:
                replica.sendall(b"REPLCONF " + capabilities + b"\r\nPSYNC ? -1\r\n")
                assert reader.readline() == b"+OK\r\n"
                while (line := reader.readline()) == b"\n":
                    continue
                answers.append(line.split())
        origin = str(second.redis.info("replication")["master_origin"]).zfill(16)  # a number where it has no letters
        assert len(answers[0]) == 3
        assert answers[1][3:] == [b"EPOCH", str(epochs(second)[0]).encode(), b"ORIGIN", origin.encode()]


# ---- who is not to be believed --------------------------------------------------------------------------------------


def has_its_file(member: Member) -> bool:
    told = member.redis.info("persistence")
    return (
        not told["aof_rewrite_in_progress"]
        and not told.get("aof_rewrite_scheduled")
        and not told["aof_pending_rewrite"]
    )


def test_a_replica_keeps_newer_data_from_the_older_primary_that_its_configuration_names(tmp_path: Path) -> None:
    with serve(tmp_path / "old", TABLE, **KEPT) as old:
        configured = {**KEPT, "replicaof": f"127.0.0.1 {old.port}"}
        with serve(tmp_path / "new", **configured) as new:
            eventually(lambda: new.redis.info("replication")["master_link_status"] == "up", "the first copy")
            eventually(lambda: has_its_file(new), "the first copy's file")
            new.promote()
            new.redis.set("k", "by the new one")
            epoch = epochs(new)[0]
            new.kill()
            with serve(tmp_path / "new", **configured) as again:
                eventually(lambda: epochs(old)[2] == 1, "the old one is told")
                assert epochs(again)[0] == epoch
                assert again.redis.get("k") == b"by the new one"


def test_naming_the_primary_that_is_configured_gives_the_newer_data_up(tmp_path: Path) -> None:
    with serve(tmp_path / "old", TABLE) as old, serve(tmp_path / "new", **KEPT) as new:
        new.follow(old.port)
        eventually(lambda: has_its_file(new), "the first copy's file")
        new.promote()
        new.redis.set("k", "by the new one")
        epoch = epochs(new)[0]
        new.kill()
        with serve(tmp_path / "new", **KEPT, replicaof=f"127.0.0.1 {old.port}") as again:
            eventually(lambda: epochs(old)[2] == 1, "the old one is told")
            again.follow(old.port)
            assert again.redis.get("k") is None
            assert epochs(old) == epochs(again) == (epoch + 1, epoch + 1, 0)
            old.client.add("t", batch(range(1)))


def test_naming_another_than_the_configured_primary_gives_the_newer_data_up(tmp_path: Path) -> None:
    with serve(tmp_path / "old", TABLE) as old, serve(tmp_path / "new", **KEPT) as new:
        new.follow(old.port)
        eventually(lambda: has_its_file(new), "the first copy's file")
        new.promote()
        epoch = epochs(new)[0]
        new.kill()
        old.redis.execute_command("FENCE", epoch)
        with serve(tmp_path / "new", **KEPT, replicaof="127.0.0.1 1") as again:
            again.follow(old.port)
            assert epochs(old) == epochs(again) == (epoch + 1, epoch + 1, 0)


def test_a_replica_that_follows_others_by_now_stops_no_primary_of_before(tmp_path: Path) -> None:
    with (
        serve(tmp_path / "a") as primary,
        serve(tmp_path / "b") as replica,
        serve(tmp_path / "c") as other,
        serve(tmp_path / "d") as promoted,
    ):
        replica.follow(primary.port)
        promoted.follow(other.port)
        promoted.promote()
        replica.follow(promoted.port)
        with rs.Client(url_of(primary, replica)) as client:
            client.command("SET", "k", "v")
        assert epochs(primary) == (0, 0, 0)
        assert primary.redis.get("k") == b"v"


def test_a_user_who_may_not_ask_for_epochs_finds_the_primary_by_its_refusals(tmp_path: Path) -> None:
    with serve(tmp_path / "old") as old, serve(tmp_path / "new") as new:
        new.follow(old.port)
        new.promote()
        for member in (old, new):
            member.redis.execute_command("ACL", "SETUSER", "actor", "on", ">x", "~*", "+hello", "+set", "+role")
        old.redis.execute_command("FENCE", epochs(new)[0])
        before = old.redis.info("stats")["total_connections_received"]
        with rs.Client(url_of(old, new).replace("//", "//actor:x@"), reconnect_timeout=5) as client:
            client.command("SET", "k", "v")
        assert new.redis.get("k") == b"v"
        assert old.redis.info("stats")["total_connections_received"] - before < 10


def test_an_epoch_is_read_back_however_great_it_is(tmp_path: Path) -> None:
    with serve(tmp_path / "a", **KEPT) as member:
        member.redis.execute_command("FENCE", 2**62 - 1)
        member.promote()
        member.redis.set("k", "v")
        told = epochs(member)
        assert told == (2**62, 2**62, 0)
        member.kill()
    with serve(tmp_path / "a", **KEPT) as member:
        assert epochs(member) == told
