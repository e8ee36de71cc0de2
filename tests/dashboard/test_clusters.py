"""A cluster is watched as one server, and each of its shards beside it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import redis
from looked_at import FakeApex, fill, prioritized

import replay_server as rs
from replay_server.dashboard.cluster_panels import shard_facts, shard_rows
from replay_server.dashboard.cluster_source import ClusterSource
from replay_server.dashboard.kinds import job_view
from replay_server.dashboard.server_panels import server_banner
from replay_server.dashboard.server_view import ServerView
from replay_server.dashboard.top import as_text
from replay_server.dashboard.watch import Watch


@pytest.fixture(scope="module")
def three() -> Iterator[rs.Cluster]:
    with rs.Cluster([prioritized("apex", 3000)], shards=3, password="a@b") as cluster:
        yield cluster


@pytest.fixture
def client(three: rs.Cluster) -> Iterator[rs.Client]:
    with rs.Client(three.url) as made:
        yield made
        made.reset("apex")
        made.redis.flushall()


def redirected(cluster: rs.Cluster) -> list[int]:
    """How often each shard has answered MOVED."""
    counts = []
    for server in cluster.servers:
        with redis.Redis.from_url(server.url) as one:
            counts.append(one.info("errorstats").get("errorstat_MOVED", {}).get("count", 0))
    return counts


def watched(url: str) -> tuple[Watch, ClusterSource]:
    watch = Watch([url], [])
    watch.look()
    (source,) = watch.servers
    assert isinstance(source, ClusterSource)
    return watch, source


def test_top_shows_a_cluster_of_which_it_knows_one_server(three: rs.Cluster, client: rs.Client) -> None:
    for server, count in zip(three.servers, (50, 30, 20), strict=True):
        with rs.Client(server.url) as one:
            fill(one, "apex", count, priority=2.0)
    client.sample("apex", 64)
    known = three.servers[1].url.replace("redis://", "redis+cluster://")
    seen = subprocess.run(
        [sys.executable, "-m", "replay_server", "top", "--once", "--json", "--url", known],
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert seen.returncode == 0, seen.stderr
    (found,) = json.loads(seen.stdout)["servers"]
    shards = [found["shards"][number] for number in "012"]
    assert [shard["items"] for shard in shards] == [50, 30, 20]
    assert [shard["share_of_items"] for shard in shards] == [0.5, 0.3, 0.2]
    assert sum(shard["share_of_priority"] for shard in shards) == pytest.approx(1.0)
    assert [shard["state"] for shard in shards] == ["up"] * 3
    assert sum(shard["slots"] for shard in shards) == 16384
    assert (found["topology_version"], found["moving_slots"]) == (three.topology.version, 0)
    about = client.info("apex")
    assert {name: found["tables"]["apex"][name] for name in ("size", "added", "sampled", "capacity")} == {
        name: about[name] for name in ("size", "added", "sampled", "capacity")
    }
    assert found["used_memory"] == sum(shard["used_memory"] for shard in shards)
    assert "a@b" not in seen.stdout
    assert "a%40b" not in seen.stdout


def test_every_shard_has_a_line_and_the_histogram_is_of_all(three: rs.Cluster, client: rs.Client) -> None:
    fill(client, "apex", 90, priority=1.0)
    fill(client, "apex", 30, priority=8.0)
    watch, source = watched(three.url)
    text = as_text(watch)
    assert f"{source.name} · up" in text
    assert "3 of 3 up" in text
    assert "table apex: 120 of 3,000 items" in text
    for row in shard_rows(source):
        assert f"shard {row['name']}: up, {row['items']} items ({row['share']})" in text
    assert dict(source.reading.tables["apex"]["priorities"]) == {0: 90, 3: 30}
    view = ServerView(source)
    assert all(panel.shown()[1] != "cannot be shown" for panel in view.panels)
    assert all(fact.detail != "cannot be shown" for tile in view.tiles if (fact := tile.shown()) is not None)
    watch.close()


def test_slots_that_move_are_shown_until_they_have_arrived(three: rs.Cluster) -> None:
    watch, source = watched(three.url)

    def push(topology) -> None:
        for number, server in enumerate(three.servers):
            with rs.Client(server.url) as one:
                one.command(*topology.arguments(number))
        watch.look()

    moving = three.topology.beginning(range(100), 2)
    push(moving)
    facts = shard_facts(source)
    assert source.moving_slots == 100
    assert [(each["slots_leaving"], each["slots_coming"]) for each in facts.values()] == [(100, 0), (0, 0), (0, 100)]
    assert "100 slots move" in as_text(watch)
    assert shard_rows(source)[0]["moving"] == "100 leave"
    before = [each["slots"] for each in facts.values()]
    push(moving.arrived(range(100)))
    assert [each["slots"] for each in shard_facts(source).values()] == [before[0] - 100, before[1], before[2] + 100]
    assert (source.moving_slots, f"version {moving.version + 1}" in as_text(watch)) == (0, True)
    watch.close()


def test_a_cluster_of_which_a_shard_does_not_answer_is_lost_and_says_which() -> None:
    with rs.Server([prioritized("apex")], config={"shard": 0}) as first:
        with rs.Server([prioritized("apex")], config={"shard": 1}) as second:
            url = "redis+cluster://" + ",".join(each.url.removeprefix("redis://") for each in (first, second))
            watch, source = watched(url)
            assert (source.state, source.topology) == ("up", None)
            port = int(second.url.rpartition(":")[2])
        watch.look()
        banner = server_banner(source)
        assert source.state == "lost"
        assert banner is not None
        assert "shard 1: " in banner.text
        assert [row["state"] for row in shard_rows(source)] == ["up", "lost"]
        assert "1 of 2 up" in as_text(watch)
        with rs.Server([prioritized("apex")], port=port, config={"shard": 1}):
            watch.look()
            assert [row["state"] for row in shard_rows(source)] == ["up", "up"]
            assert (source.state, len(source.restarts)) == ("up", 1)
        watch.close()


def test_what_was_sampled_and_not_used_is_shown_where_a_rate_limiter_counts_it() -> None:
    limiter = rs.SampleToInsertRatio(samples_per_insert=8.0, min_size_to_sample=10, error_buffer=10000.0)
    table = rs.Table("apex", 1000, {"x": rs.Column("float32", (2,))}, rate_limiter=limiter)
    with rs.Cluster([table], shards=2) as cluster, rs.Client(cluster.url) as client:
        client.add("apex", {"x": np.zeros((300, 2), np.float32)})
        watch, source = watched(cluster.url)
        assert all(each["surplus"] is None for each in shard_facts(source).values())
        assert "Surplus" not in as_text(watch)
        for _ in range(20):
            client.sample("apex", 64)
        watch.look()
        info = client.info("apex")
        assert info["unused"] > 0
        facts = shard_facts(source).values()
        assert sum(each["unused"] for each in facts) == info["unused"]
        assert "of what was sampled was not used" in as_text(watch)
        watch.close()


def test_a_job_on_shards_is_shown_with_all_its_reports(
    three: rs.Cluster, client: rs.Client, fake_apex: Callable[..., FakeApex]
) -> None:
    fill(client, "apex", 100)
    job = fake_apex(client, three.url.replace(":a%40b@", ""), actors=40)
    job.write_rows(3)
    job.report()
    before = redirected(three)
    watch = Watch([], [job.path], password="a@b")
    for _ in range(6):  # each finds at most 16 actors more
        watch.look()
    (source,) = watch.servers
    assert source.state == "up", source.error
    assert source.reading.learners["apex"]["updates"] == 1000
    assert sorted(source.reading.actors["apex"]) == list(range(40))
    (run,) = watch.runs
    assert watch.server_of(run) is source
    view = job_view(run, watch)
    assert all(panel.shown()[1] != "cannot be shown" for panel in view.panels)
    assert redirected(three) == before, "each shard is asked for keys of its own"
    watch.close()
