"""Servers that share no data, and replicas that start without a primary: epochs do not count, nobody may write."""

from __future__ import annotations

import contextlib
import shutil
import time
from pathlib import Path

import pytest
from links import Link, eventually
from replica_tables import TABLE, Member, serve, settle
from test_fencing import KEPT, epochs, has_its_file, meet, refusals, url_of
from test_table_log import batch

import replay_server as rs


def origin(member: Member) -> str:
    return member.redis.info("replication")["master_origin"]


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
