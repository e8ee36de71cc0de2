"""Shards with replicas and their files: what a shard begins with that no replica can take the place of."""

from __future__ import annotations

import contextlib
import json
import shutil
import socket
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import redis
from links import eventually
from replicated_shards import (
    LOGGED,
    TABLE,
    about,
    add,
    add_to,
    chain_in,
    fail_over,
    is_settled,
    kill,
    kill_all,
    replicated,
    size,
    stopped,
    values,
)

import replay_server as rs
from replay_server.cluster_checkpoint import write_checkpoint
from replay_server.cluster_command import main
from replay_server.cluster_replicas import ShardFolders, ShardReplicas


@pytest.mark.parametrize("config", [None, LOGGED])
def test_a_shard_whose_servers_all_die_begins_with_its_files(config: dict[str, Any] | None, tmp_path: Path) -> None:
    with replicated(directory=tmp_path, config=config) as cluster:
        ids, replica = add_to(cluster.servers[0], 0), cluster.replicas[0][0]
        if config is None:
            with rs.Client(cluster.servers[0].url) as client:
                client.checkpoint()
        kill_all(cluster.servers[0], replica)
        eventually(lambda: cluster.restarts == 1 and is_settled(cluster), "the shard again")
        assert cluster.failovers == 0
        with rs.Client(cluster.servers[0].url) as client:
            assert values(client, ids) == list(range(10))
        ids += add_to(cluster.servers[0], 10)
        fail_over(cluster)
        with rs.Client(cluster.servers[0].url) as client:
            assert values(client, ids) == list(range(20))


@pytest.mark.parametrize("files", ["none", "older snapshot", "newer snapshot", "append-only file"])
def test_a_replica_that_was_left_behind_leads_only_where_no_file_has_more(files: str, tmp_path: Path) -> None:
    """It is silent while more comes than sockets hold, and reads what they held when its primary is gone."""
    config = LOGGED if files == "append-only file" else None
    with replicated(shards=1, directory=tmp_path, config=config) as cluster:
        server, (replica,), group = cluster.servers[0], cluster.replicas[0], cluster._groups[0]
        ids = add_to(server, 0)
        with rs.Client(server.url) as client, stopped(replica.pid):
            if files == "older snapshot":
                client.checkpoint()
                time.sleep(0.01)
            fill(client)
            ids += add(client, 10)
            end = about(server)["master_repl_offset"]
            eventually(lambda: ahead_of(group)[-1][0] >= end, "the group knows how far the shard is")
            if files == "newer snapshot":
                client.checkpoint()
            if files == "append-only file":
                eventually(lambda: group._told_at > ahead_of(group)[0][1] + 3.0, "some more seconds")
            kill(server)
            eventually(lambda: not server.running, "its end")
        eventually(lambda: cluster.failovers + cluster.restarts == 1 and is_settled(cluster), "the shard again")
        is_promoted = files in ("none", "older snapshot")
        assert cluster.failovers == is_promoted
        with rs.Client(cluster.url) as client:
            assert client.info("atari")["size"] == (10 if is_promoted else 20)
            assert values(client, ids[: 10 if is_promoted else 20]) == list(range(10 if is_promoted else 20))


def test_a_replica_that_was_left_behind_is_kept_where_files_cannot_be_read_and_somebody_may_promote_it(
    tmp_path: Path,
) -> None:
    manifest = tmp_path / "shard-0" / "appendonlydir" / "appendonly.aof.manifest"
    with replicated(shards=1, directory=tmp_path, config=LOGGED) as cluster:
        server, (replica,), group = cluster.servers[0], cluster.replicas[0], cluster._groups[0]
        ids = add_to(server, 0)
        with rs.Client(server.url) as client, stopped(replica.pid):
            fill(client)
            end = about(server)["master_repl_offset"]
            eventually(lambda: ahead_of(group)[-1][0] >= end, "the group knows how far the shard is")
            eventually(lambda: group._told_at > ahead_of(group)[0][1] + 3.0, "some more seconds")
            manifest.write_text("nothing that a server wrote")
            kill(server)
            eventually(lambda: not server.running, "its end")
        eventually(lambda: cluster.failing, "the files are tried")
        with redis.Redis.from_url(replica.url) as asked:
            asked.execute_command("REPLICAOF NO ONE")
        eventually(lambda: cluster.failovers == 1 and is_settled(cluster), "the replica leads")
        assert not cluster.failing
        with rs.Client(cluster.url) as client:
            assert values(client, ids) == list(range(10))
        eventually(lambda: chain_in(tmp_path) == [1], "files of what leads now")
        assert manifest.exists()


def ahead_of(group: ShardReplicas) -> list[tuple[int, float]]:
    return group._ahead.get(1) or [(0, 0.0)]


def fill(client: rs.Client) -> None:
    """More than sockets hold."""
    for number in range(64):
        client.redis.set(f"filler:{number}", b"0" * (1 << 20))


@pytest.mark.parametrize("replicas", [0, 1])
@pytest.mark.parametrize("config", [None, LOGGED])
def test_a_cluster_that_is_started_again_begins_with_the_files_of_what_led_last(
    replicas: int, config: dict[str, Any] | None, tmp_path: Path
) -> None:
    restore = None if config else "latest"
    with replicated(directory=tmp_path, config=config) as cluster:
        add_to(cluster.servers[0], 0)
        with rs.Client(cluster.servers[0].url) as client:
            client.checkpoint()
        fail_over(cluster)
        ids = add_to(cluster.servers[0], 10)
        with rs.Client(cluster.servers[0].url) as client:
            client.checkpoint()
        eventually(lambda: chain_in(tmp_path) == [1], "files of what leads now")
        slots, ports = [shard.slots for shard in cluster.topology.shards], cluster.topology.shards[0].id
    with (
        rs.Cluster([TABLE], directory=tmp_path, config=config, restore=restore, replicas=replicas) as cluster,
        rs.Client(cluster.url) as client,
    ):
        assert [shard.slots for shard in cluster.topology.shards] == slots
        assert cluster.topology.shards[0].id == ports
        assert size(cluster.servers[0]) == 20
        assert values(client, ids) == list(range(10, 20))


def test_files_of_before_a_failover_are_begun_with_as_long_as_there_are_no_newer_ones(tmp_path: Path) -> None:
    with replicated(shards=1, directory=tmp_path) as cluster:
        ids = add_to(cluster.servers[0], 0)
        with rs.Client(cluster.servers[0].url) as client:
            client.checkpoint()
        fail_over(cluster)
        add_to(cluster.servers[0], 10)
        assert chain_in(tmp_path) == [1, 0]
    with rs.Cluster([TABLE], shards=1, directory=tmp_path, restore="latest", replicas=1) as cluster:
        with rs.Client(cluster.servers[0].url) as client:
            assert values(client, ids) == list(range(10))
            assert client.info("atari")["size"] == 10
        assert chain_in(tmp_path) == [0]


def test_a_checkpoint_of_before_a_failover_is_restored_in_its_folder(tmp_path: Path) -> None:
    with replicated(directory=tmp_path) as cluster:
        with rs.Client(cluster.url) as client:
            add(client, 0, 100)
        cluster.checkpoint()
        eventually(lambda: is_settled(cluster), "replicas")
        fail_over(cluster)
        with rs.Client(cluster.url) as client:
            add(client, 100, 100)
    with rs.Cluster([TABLE], directory=tmp_path, restore="checkpoint", replicas=1) as cluster:
        with rs.Client(cluster.url) as client:
            assert client.info("atari")["size"] == 100
        manifest = cluster.checkpoint()
    with rs.Cluster([TABLE], shards=3, restore=manifest) as cluster, rs.Client(cluster.url) as client:
        assert client.info("atari")["size"] == 100


def test_snapshots_of_a_folder_that_is_used_no_more_go_unless_they_have_names(tmp_path: Path) -> None:
    with replicated(shards=1, directory=tmp_path) as cluster:
        cluster.checkpoint()
        for generation in (0, 1):
            with rs.Client(cluster.servers[0].url) as client:
                Path(client.checkpoint("mine")).with_name("half.snapshot.partial").touch()
                client.checkpoint()
            fail_over(cluster)
            former = Path(tmp_path / ("shard-0", "shard-0-1")[generation])
            assert list(former.glob("replay-*.snapshot"))
            with rs.Client(cluster.servers[0].url) as client:
                client.checkpoint()
            eventually(lambda generation=generation: len(chain_in(tmp_path)) == 1, "files of what leads now")
            named = {"mine.snapshot", *(["cluster-checkpoint-1.snapshot"] if generation == 0 else [])}
            eventually(lambda former=former, named=named: {file.name for file in former.iterdir()} == named, "room")


def test_files_that_a_shard_did_not_begin_again_with_are_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ShardReplicas, "_shorten_chain", lambda _: None)  # they die before it
    with replicated(shards=1, directory=tmp_path, config=LOGGED) as cluster:
        fail_over(cluster)
        eventually((tmp_path / "shard-0-1" / "appendonlydir" / "appendonly.aof.manifest").exists, "files of its own")
        assert chain_in(tmp_path) == [1, 0]
        ids = add_to(cluster.servers[0], 0)
        kill_all(cluster.servers[0], *cluster.replicas[0])
        eventually(lambda: cluster.restarts == 1 and is_settled(cluster), "the shard again")
        with rs.Client(cluster.url) as client:
            assert values(client, ids) == list(range(10))
        assert chain_in(tmp_path) == [1]
        assert not (tmp_path / "shard-0" / "appendonlydir").exists()


def test_a_folder_without_a_file_that_is_somebodys_goes(tmp_path: Path) -> None:
    folders = ShardFolders(tmp_path, 3, "log", "name.aof", [0])
    for name in ("replay-20261120-195712-345.snapshot", "log/name.aof.manifest"):
        (tmp_path / "shard-3" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "shard-3" / name).touch()
    folders.remove_files(0, ())
    assert [file.name for file in (tmp_path / "shard-3").iterdir()] == ["replay-20261120-195712-345.snapshot"]
    folders.remove_files(0, folders.snapshots())
    assert not (tmp_path / "shard-3").exists()


def test_a_checkpoint_needs_the_folder_of_what_leads_alone(tmp_path: Path) -> None:
    with replicated(shards=1, directory=tmp_path) as cluster:
        fail_over(cluster)
        shutil.rmtree(tmp_path / "shard-0")
        assert "shard-0-1" in cluster.checkpoint().read_text()
        assert main(["checkpoint", "--server", cluster.url]) == 0


def test_a_restore_whose_replica_has_no_port_leaves_nothing_behind(tmp_path: Path) -> None:
    with rs.Cluster([TABLE], shards=1, directory=tmp_path / "old") as cluster, rs.Client(cluster.url) as client:
        add(client, 0)
        manifest = cluster.checkpoint()
    options: dict[str, Any] = {"shards": 1, "replicas": 2, "restore": manifest, "directory": tmp_path / "new"}
    with contextlib.ExitStack() as stack:
        port = free_ports(3, stack)[0]
        with pytest.raises(rs.ServerError, match="another server has it"):
            rs.Cluster([TABLE], port=port, **options)
    assert not list((tmp_path / "new").iterdir())
    with rs.Cluster([TABLE], **options) as cluster:
        assert size(cluster.servers[0]) == 10


def free_ports(count: int, stack: contextlib.ExitStack) -> range:
    """Ports in a row, of which the last one is taken."""
    while True:
        with contextlib.ExitStack() as taken, contextlib.suppress(OSError):
            first = taken.enter_context(socket.create_server(("127.0.0.1", 0))).getsockname()[1]
            for port in range(first + 1, first + count - 1):
                taken.enter_context(socket.create_server(("127.0.0.1", port)))
            stack.enter_context(socket.create_server(("127.0.0.1", first + count - 1)))
            return range(first, first + count)


def test_a_checkpoint_right_after_a_failover_names_files_that_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tell_place, manifests = ShardReplicas._tell_place, list[Path]()
    with replicated(shards=1, directory=tmp_path) as cluster:

        def then_checkpoint(self: ShardReplicas) -> None:
            tell_place(self)
            if cluster.failovers and not manifests:
                manifests.append(cluster.checkpoint())

        monkeypatch.setattr(ShardReplicas, "_tell_place", then_checkpoint)
        fail_over(cluster)
        eventually(lambda: cluster._groups[0]._settled, "files of what leads now")
        (name,) = json.loads(manifests[0].read_text())["snapshots"]
        assert (tmp_path / name).exists()


def test_a_checkpoint_goes_on_where_only_the_list_of_replicas_changes(tmp_path: Path) -> None:
    with replicated(shards=1, directory=tmp_path) as cluster:
        topology, urls, folders = cluster.topology, {0: cluster.servers[0].url}, {0: tmp_path / "shard-0"}
        (shard,) = topology.shards
        other_list = topology.with_shards([replace(shard, replicas=())])
        assert write_checkpoint(tmp_path, urls, folders, topology, lambda: other_list).exists()
        other_place = topology.with_shards([replace(shard, id="0" * 40)])
        with pytest.raises(rs.ServerError, match="it has changed"):
            write_checkpoint(tmp_path, urls, folders, topology, lambda: other_place)


def test_what_a_replica_was_made_to_save_is_not_begun_with(tmp_path: Path) -> None:
    with replicated(shards=1, directory=tmp_path) as cluster:
        with redis.Redis.from_url(cluster.replicas[0][0].url) as client:
            client.execute_command("REPLAY.SAVE")
        ids = add_to(cluster.servers[0], 0)
        with rs.Client(cluster.servers[0].url) as client:
            client.checkpoint()
        fail_over(cluster)
        eventually(lambda: list((tmp_path / "shard-0-1").glob("*.snapshot.of-replica")), "another name")
        kill(cluster.replicas[0][0])
        kill(cluster.servers[0])
        eventually(lambda: cluster.restarts + cluster.failovers >= 2 and is_settled(cluster), "the shard again")
        with rs.Client(cluster.servers[0].url) as client:
            assert values(client, ids) == list(range(10))


def test_the_folder_that_comes_first_and_has_whole_files_is_begun_with(tmp_path: Path) -> None:
    folders = ShardFolders(tmp_path, 3, "log", "name.aof", [2, 1, 0])
    for generation in range(3):
        folders.folder(generation).mkdir()
    assert folders.first_whole(()) is None
    (tmp_path / "shard-3" / "log").mkdir()
    (tmp_path / "shard-3" / "log" / "name.aof.manifest").touch()
    (tmp_path / "shard-3-2" / "log").mkdir()  # no manifest: its base is not whole
    assert folders.first_whole(()) == 0
    (tmp_path / "shard-3-1" / "a.snapshot").touch()
    assert folders.first_whole(folders.snapshots()) == 1
    assert folders.fresh([3]) == 4
    folders.put_first(1)
    assert folders.chain == [1, 2, 0]
