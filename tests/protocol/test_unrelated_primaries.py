"""Servers that share no data, and replicas that start without a primary: epochs do not count, nobody may write."""

from __future__ import annotations

import contextlib
import shutil
import time
from pathlib import Path

import pytest
from links import Link, eventually, start
from replica_tables import TABLE, Member, serve, settle
from test_fencing import KEPT, epochs, has_its_file, meet, refusals, url_of
from test_table_log import batch

import replay_server as rs

NONE = "0" * 16


def origin(member: Member) -> str:
    """Sixteen digits; redis-py takes those that are decimal for a number."""
    return str(member.redis.info("replication")["master_origin"]).zfill(16)


def has_refused(member: Member) -> bool:
    """It has answered a replica by an error."""
    return member.redis.info("commandstats").get("cmdstat_psync", {}).get("failed_calls", 0) > 0


def promoted(member: Member, other: Member) -> None:
    """Makes it a primary of an epoch, by way of a primary that has nothing to do with the test."""
    member.follow(other.port)
    member.promote()


# ---- two primaries --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("turn", [1, -1])
def test_a_promoted_primary_does_not_stop_one_of_other_data(tmp_path: Path, turn: int) -> None:
    with serve(tmp_path / "a", TABLE) as own, serve(tmp_path / "b") as other, serve(tmp_path / "c") as third:
        promoted(other, third)
        own.client.add("t", batch(range(3)))
        with (
            rs.Client(url_of(*[own, other][::turn]), reconnect_timeout=0.2) as client,
            pytest.raises(rs.ConnectionLost, match="several hosts are primaries, and none of them is the newest"),
        ):
            client.add("t", batch(range(3)))
        assert (epochs(own), epochs(other)[2]) == ((0, 0, 0), 0)
        assert origin(own) != origin(other)
        own.client.add("t", batch(range(3)))
        assert own.client.info("t")["size"] == 6


def test_a_primary_that_takes_no_writes_keeps_nobody_from_one_of_other_data(tmp_path: Path) -> None:
    with serve(tmp_path / "a") as fenced, serve(tmp_path / "b") as own:
        fenced.redis.execute_command("FENCE", 5)
        with rs.Client(url_of(fenced, own)) as client:
            client.command("SET", "k", 1)
        assert own.redis.get("k") == b"1"


def test_a_client_stays_with_the_data_that_it_knows(tmp_path: Path) -> None:
    with (
        serve(tmp_path / "a", TABLE) as own,
        serve(tmp_path / "b") as other,
        serve(tmp_path / "c") as third,
        contextlib.closing(Link(own.port)) as link,
    ):
        promoted(other, third)
        with contextlib.closing(Link(other.port)) as away:
            away.cut(mend=False)
            with rs.Client(f"redis://127.0.0.1:{away.port},127.0.0.1:{link.port}") as client:
                client.command("SET", "k", 1)
                away.mend()
                time.sleep(6)  # the one that said nothing is asked again
                link.cut()
                client.command("SET", "k", 2)
        assert (own.redis.get("k"), other.redis.get("k")) == (b"2", None)
        assert epochs(own) == (0, 0, 0)


def test_an_epoch_told_with_another_origin_is_passed_over(tmp_path: Path) -> None:
    with serve(tmp_path) as member:
        told = member.redis.execute_command("FENCE")
        assert told[:3] == [b"master", 0, 0]
        assert told[3].decode() == origin(member)
        assert member.redis.execute_command("FENCE", 7, "0" * 16)[:3] == [b"master", 0, 0]
        assert member.redis.execute_command("FENCE", 7, told[3])[:3] == [b"master", 0, 7]


# ---- replicas that come back ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("epoch", [False, True])
def test_a_replica_keeps_its_data_where_its_primary_became_one_of_other_data(tmp_path: Path, epoch: bool) -> None:
    with (
        serve(tmp_path / "a", TABLE) as primary,
        serve(tmp_path / "b") as other,
        serve(tmp_path / "c") as replica,
        contextlib.closing(Link(primary.port)) as link,
    ):
        if epoch:
            with serve(tmp_path / "d") as third:
                promoted(primary, third)
            primary.client.create_table(TABLE)
        primary.client.add("t", batch(range(5)))
        replica.follow(link.port)
        other.redis.set("k", "other")
        link.target = other.port
        link.cut()
        eventually(lambda: has_refused(other), "its return")
        assert replica.redis.info("replication")["master_link_status"] == "down"
        assert (replica.client.info("t")["size"], replica.redis.get("k")) == (5, None)
        assert epochs(other) == (0, 0, 0)
        other.redis.set("k", "again")
        replica.redis.execute_command("REPLICAOF", "127.0.0.1", link.port)  # now somebody says so
        eventually(lambda: replica.redis.get("k") == b"again", "the other data")
        assert origin(replica) == origin(other)


def test_a_replica_keeps_its_data_when_its_primary_comes_back_empty(tmp_path: Path) -> None:
    with (
        serve(tmp_path / "a", TABLE) as primary,
        serve(tmp_path / "b") as replica,
        contextlib.closing(Link(primary.port)) as link,
    ):
        replica.follow(link.port)
        primary.client.add("t", batch(range(5)))
        settle(primary, replica)
        primary.kill()
        with serve(tmp_path / "empty") as empty:
            link.target = empty.port
            link.cut()
            eventually(lambda: has_refused(empty), "its return")
            assert replica.client.info("t")["size"] == 5
            replica.promote()
            with rs.Client(url_of(replica)) as client:
                assert len(client.add("t", batch(range(1)))) == 1


def test_a_replica_goes_on_with_its_primary_that_comes_back_from_its_files(tmp_path: Path) -> None:
    with (
        serve(tmp_path / "a", TABLE, **KEPT) as primary,
        serve(tmp_path / "b") as replica,
        contextlib.closing(Link(primary.port)) as link,
    ):
        replica.follow(link.port)
        primary.client.add("t", batch(range(5)))
        before = origin(primary)
        primary.kill()
        with serve(tmp_path / "a", **KEPT) as again:
            link.target = again.port
            link.cut()
            eventually(lambda: replica.redis.info("replication")["master_link_status"] == "up", "the link")
            assert origin(again) == origin(replica) == before
            assert replica.client.info("t")["size"] == 5


def test_what_a_replica_gets_from_a_redis_is_of_no_origin_that_it_had(tmp_path: Path) -> None:
    with (
        serve(tmp_path / "a") as primary,
        serve(tmp_path / "b") as replica,
        serve(tmp_path / "c") as behind,
        start("redis", tmp_path / "redis", "repl-diskless-sync-delay", "0") as other,
    ):
        primary.redis.set("k", "own")
        other.client.set("k", "redis")
        replica.follow(primary.port)
        behind.follow(replica.port)
        assert origin(behind) == origin(replica) == origin(primary) != NONE
        replica.follow(other.port)
        eventually(lambda: behind.redis.get("k") == b"redis", "the data of the Redis")
        assert origin(replica) == NONE
        eventually(lambda: origin(behind) == NONE, "the news")
        replica.promote()
        assert origin(replica) not in (origin(primary), NONE)
        eventually(lambda: origin(behind) == origin(replica), "the origin of the promoted one")
        for members in ((primary, replica), (replica, primary)):
            with (
                rs.Client(url_of(*members), reconnect_timeout=0.2) as client,
                pytest.raises(rs.ConnectionLost, match="several hosts are primaries"),
            ):
                client.command("SET", "k", 1)
        assert epochs(primary) == (0, 0, 0)
        primary.redis.set("k", "still")


def test_a_replica_that_a_redis_lets_go_on_keeps_its_origin(tmp_path: Path) -> None:
    with (
        serve(tmp_path / "a") as primary,
        serve(tmp_path / "b") as replica,
        start("redis", tmp_path / "redis") as other,
    ):
        replica.follow(primary.port)
        other.follow(primary.port)
        eventually(other.is_up, "the link of the Redis")
        primary.redis.set("k", 1)
        settle(primary, replica)
        eventually(lambda: other.client.get("k") == b"1", "the key")
        other.client.execute_command("REPLICAOF", "NO", "ONE")
        replica.follow(other.port)
        assert other.replication()["connected_slaves"] == 1
        assert other.client.info("stats")["sync_partial_ok"] == 1
        assert origin(replica) == origin(primary) != NONE
        replica.promote()
        meet(primary, replica)
        assert epochs(primary)[1:] == (epochs(replica)[0], 1)


def test_a_replica_follows_its_primary_that_starts_from_a_snapshot_of_before(tmp_path: Path) -> None:
    with serve(tmp_path / "a") as primary, serve(tmp_path / "b") as replica:
        primary.redis.set("k", 1)
        primary.client.checkpoint()
        with contextlib.closing(Link(primary.port)) as link:
            replica.follow(link.port)
            before = origin(primary)
            primary.kill()
            with rs.Server([], directory=str(tmp_path / "a"), restore="latest") as server:
                again = Member(server)
                link.target = again.port
                link.cut()
                eventually(lambda: replica.redis.info("replication")["master_link_status"] == "up", "the link")
                assert origin(again) == origin(replica) == before
                with rs.Client(url_of(again, replica)) as client:
                    client.command("SET", "k", 2)


def test_an_origin_is_saved_where_there_may_be_a_snapshot_without_it(tmp_path: Path) -> None:
    with serve(tmp_path / "a", save="3600 1") as primary, serve(tmp_path / "b") as replica:
        primary.redis.set("k", 1)
        replica.follow(primary.port)
        before = origin(primary)
        eventually(lambda: primary.redis.info("persistence")["snapshots_saved"] == 1, "a snapshot")
        primary.kill()
        replica.promote()
        assert replica.redis.info("persistence")["snapshots_saved"] == 0
        with rs.Server([], directory=str(tmp_path / "a"), restore="latest") as server:
            assert origin(Member(server)) == before
    assert not [*(tmp_path / "b").iterdir()]


def test_an_empty_server_that_was_asked_for_its_origin_follows_a_primary(tmp_path: Path) -> None:
    with serve(tmp_path / "a", TABLE) as primary, serve(tmp_path / "b", **KEPT) as empty:
        primary.client.add("t", batch(range(3)))
        told = empty.redis.execute_command("FENCE")[3].decode()
        empty.kill()
        with serve(tmp_path / "b", **KEPT, replicaof=f"127.0.0.1 {primary.port}") as again:
            eventually(lambda: again.redis.info("replication")["master_link_status"] == "up", "the link")
            assert again.client.info("t")["size"] == 3
            assert origin(again) == origin(primary) != told


# ---- replicas that start without a primary --------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["file", "snapshot"])
def test_replicas_that_start_without_replicaof_take_no_writes_until_one_is_promoted(tmp_path: Path, way: str) -> None:
    kept = KEPT if way == "file" else {}
    restore = "latest" if way == "snapshot" else None
    with serve(tmp_path / "a", TABLE) as primary, contextlib.ExitStack() as stack:
        folders = [tmp_path / "b", tmp_path / "c"]
        for folder in folders:
            replica = stack.enter_context(serve(folder, **kept))
            replica.follow(primary.port)
            primary.client.add("t", batch(range(3)))
            settle(primary, replica)
            if kept:
                eventually(lambda replica=replica: has_its_file(replica), "the first copy's file")
            else:
                replica.client.checkpoint()
            replica.kill()
        primary.kill()
        members = [
            Member(stack.enter_context(rs.Server([], directory=str(folder), config=kept, restore=restore)))
            for folder in folders
        ]
        assert [epochs(member) for member in members] == [(0, 0, 1), (0, 0, 1)]
        for told in refusals(members[0]):
            assert "its data are a replica's" in told
        with (
            rs.Client(url_of(*members), reconnect_timeout=0.2) as client,
            pytest.raises(rs.ConnectionLost, match="no primary answers"),
        ):
            client.add("t", batch(range(1)))
        members[1].promote()
        with rs.Client(url_of(*members)) as client:
            client.add("t", batch(range(1)))
        assert [member.client.info("t")["size"] for member in members] == [3, 7]
        members[0].follow(members[1].port)
        assert epochs(members[0]) == epochs(members[1])


def test_a_replica_that_was_not_promoted_gives_its_older_data_to_nobody(tmp_path: Path) -> None:
    with contextlib.ExitStack() as stack:
        primary = stack.enter_context(serve(tmp_path / "a", TABLE))
        middle = stack.enter_context(serve(tmp_path / "b"))
        last = stack.enter_context(serve(tmp_path / "c"))
        link = stack.enter_context(contextlib.closing(Link(middle.port)))
        middle.follow(primary.port)
        last.follow(link.port)
        middle.client.checkpoint()
        primary.client.add("t", batch(range(3)))
        primary.redis.set("k", "newer")
        settle(primary, last)
        primary.kill()
        middle.kill()
        again = Member(stack.enter_context(rs.Server([], directory=str(tmp_path / "b"), restore="latest")))
        link.target = again.port
        link.cut()
        eventually(lambda: has_refused(again), "its return")
        assert epochs(again)[2] == 1
        assert (last.redis.get("k"), last.client.info("t")["size"]) == (b"newer", 3)
        last.promote()
        again.follow(last.port)
        assert again.redis.get("k") == b"newer"


def test_two_primaries_from_one_file_are_not_chosen_between(tmp_path: Path) -> None:
    with serve(tmp_path / "a", TABLE, **KEPT) as first, serve(tmp_path / "c") as third:
        third.follow(first.port)
        first.client.add("t", batch(range(3)))
        first.kill()
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    with serve(tmp_path / "a", **KEPT) as first, serve(tmp_path / "b", **KEPT) as second:
        assert origin(first) == origin(second)
        with (
            rs.Client(url_of(first, second), reconnect_timeout=0.2) as client,
            pytest.raises(rs.ConnectionLost, match="REPLICAOF"),
        ):
            client.add("t", batch(range(1)))
        second.follow(first.port)
        meet(first, second)
        with rs.Client(url_of(first, second)) as client:
            client.add("t", batch(range(1)))
        assert first.client.info("t")["size"] == 4
