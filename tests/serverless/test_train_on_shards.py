"""A job on shards, of its own or shared with others: real functions, real shards."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import replay_server as rs
from replay_server.cluster_address import slot_of
from replay_server.rl.function_contract import Names
from replay_server.rl.run_directory import RunDirectory
from replay_server.serverless import job_name_claim
from replay_server.serverless.job_name_claim import JobInUse, JobNameClaim
from replay_server.serverless.orchestrator import Orchestrator
from replay_server.serverless.run_log import read_rounds
from replay_server.serverless.settings import TrainSettings
from replay_server.serverless.train import main_train

STEPS, ENVIRONMENTS, ACTORS = 16, 2, 2
SIGNATURE = {"x": rs.Column("int64")}
ONE_LEARNER = {"learners": 1, "actors_ahead": 0}
"""Asynchronous learners whose results do not depend on who is faster."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[rs.Cluster]:
    """Two shards that the module's tests share."""
    with rs.Cluster(shards=2, pin=False, password="a/secret") as running:
        yield running
        assert not running.restarts


@pytest.fixture
def client(cluster: rs.Cluster) -> Iterator[rs.Client]:
    """A client of the shards, which the test must leave empty."""
    with rs.Client(cluster.url) as client:
        yield client
        assert client.tables() == []
        assert keys_on(cluster) == []


def keys_on(cluster: rs.Cluster) -> list[str]:
    """Keys, of weights and gradients, too, on all shards."""
    found: list[str] = []
    for server in cluster.servers:
        with rs.Client(server.url) as one:
            of_weights: Any = one.redis.execute_command("WEIGHTS.LIST")
            found += [key.decode() for key in itertools.chain(one.redis.scan_iter(), of_weights)]
            found += one.gradient_keys()
    return sorted(found)


def job_on(path: Path, platform: Any, url: str, **given: Any) -> Orchestrator:
    small: dict[str, Any] = {
        "env": "CartPole-v1", "steps": STEPS, "environments": ENVIRONMENTS, "actors": ACTORS, "rounds": 3,
        "setting": {"hidden": 8, "iterations": 2}, "final_episodes": 0, "learner_threads": 1,
        "job": "shared", "server": url, "logdir": str(path),
    }  # fmt: skip
    settings = TrainSettings(**{**small, **given})
    directory = RunDirectory(path)
    directory.create(settings)
    return Orchestrator(settings, directory, platform=platform)


def remove(client: rs.Client, job: str) -> None:
    JobNameClaim(client, Names(job, shards=True)).close()


@pytest.mark.parametrize("learning", [{}, {"learners": "async", "learner_option": ONE_LEARNER}], ids=["sync", "async"])
def test_a_job_on_shards_learns_what_it_learns_on_one_server(learning, tmp_path, platform, server, cluster, client):
    found = []
    for url, shards in ((server.url, False), (cluster.url, True)):
        path = tmp_path / ("shards" if shards else "one")
        assert job_on(path, platform, url, keep=True, **learning).run() == "rounds"
        with rs.Client(url) as one:
            weights = one.fetch_weights(Names("shared", shards=shards).policy)
        assert weights is not None
        found.append(weights)
    assert found[0][0] == found[1][0]
    assert found[0][1].keys() == found[1][1].keys()
    for name, array in found[0][1].items():
        np.testing.assert_array_equal(array, found[1][1][name], err_msg=name)
    assert {slot_of(key) for key in keys_on(cluster)} == {slot_of("shared")}
    assert [name.rpartition(":")[0] for name in client.tables()] == ["{shared}:fragments"]
    remove(client, "shared")
    with rs.Client(server.url) as one:
        JobNameClaim(one, Names("shared")).close()


def test_two_jobs_with_asynchronous_learners_share_shards_and_leave_nothing(tmp_path, platform, cluster, client):
    options = {"learners": "async", "learner_option": {"learners": 2}}
    other = Names("other", "run", shards=True)
    with JobNameClaim(client, other):
        client.create_table(rs.Table(other.fragments, 10, SIGNATURE))
        client.publish_weights(other.policy, {"x": [1.0]})
        client.push_gradient(other.gradients, 1, "1:0:r1-learner-0", np.ones(3, np.float32))
        theirs = keys_on(cluster)
        assert job_on(tmp_path, platform, cluster.url, **options).run() == "rounds"
        assert keys_on(cluster) == theirs
        assert client.tables() == [other.fragments]
    records = read_rounds(tmp_path)
    assert [record.statistics["gradients"] for record in records] == [4, 4, 4]
    assert [record.arrived for record in records] == [2, 2, 2]


@pytest.mark.parametrize(
    "where", [["--replay-shards", "2"], ["--server", "URL", "--job", "typed"]], ids=["own", "shared"]
)
def test_train_takes_asynchronous_learners_over_shards(where, tmp_path, cluster, client, capsys, signals):
    run = tmp_path / "run"
    words = [
        "--env", "CartPole-v1", "--actors", "2", "--steps", "16", "--environments", "2", "--setting", "hidden=8",
        "--final-episodes", "2", "--concurrency", "4", "--learners", "async", "--learner-option", "learners=2",
        "--logdir", str(run), *(cluster.url if word == "URL" else word for word in where),
    ]  # fmt: skip
    assert main_train([*words, "--rounds", "2"]) == 0, capsys.readouterr().out
    summary = json.loads((run / "summary.json").read_text())
    assert (summary["ended_by"], summary["rounds"], summary["steps"]) == ("rounds", 2, 128)
    assert "secret" not in (run / "config.json").read_text()


def test_shards_without_a_topology_are_refused_by_name(tmp_path, capsys, signals):
    with rs.Server(config={"shard": 0}) as first, rs.Server(config={"shard": 1}) as second:
        url = "redis+cluster://" + ",".join(each.url.removeprefix("redis://") for each in (first, second))
        assert main_train(["--env", "CartPole-v1", "--server", url, "--logdir", str(tmp_path / "run")]) == 1
    assert "expected shards with a topology" in capsys.readouterr().out


def test_shards_that_end_end_the_job_and_are_told_as_lost(tmp_path, platform):
    with rs.Cluster(shards=2, pin=False) as mortal:

        def stop_in_round_2(request: Any) -> None:
            if request.request == "r2-a0":
                mortal.stop(timeout=1.0)

        platform.before = stop_in_round_2
        with pytest.raises(rs.ConnectionLost):
            job_on(tmp_path, platform, mortal.url, retries=0, timeout_s=30.0).run()
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert (summary["ended_by"], summary["rounds"]) == ("server lost", 1)


# ---- the claim -------------------------------------------------------------------------------------------------------


def leave(client: rs.Client, names: Names) -> None:
    """What a job has that was killed."""
    client.create_table(rs.Table(names.fragments, 10, SIGNATURE))
    client.publish_weights(names.policy, {"x": [1.0]})
    client.publish_weights(names.history(3), {"x": [1.0]})
    client.push_gradient(names.gradients, 1, "one", np.ones(3, np.float32))
    client.redis.set(names.done("r1-learner"), b"answer")
    client.redis.set(names.state("a0"), b"state")


def test_a_job_removes_what_a_killed_one_of_its_name_has_left(client, cluster):
    leave(client, Names("killed", "before", shards=True))
    leave(client, Names("bystander", "run", shards=True))
    with JobNameClaim(client, Names("killed", "now", shards=True), keep=True):
        left = [key for key in keys_on(cluster) if "killed" in key]
        assert left == ["{killed}:lease"]
        assert client.tables() == ["{bystander}:fragments:run"]
    assert len(keys_on(cluster)) == 5
    remove(client, "bystander")


def test_a_name_in_use_on_shards_is_refused(tmp_path, platform, cluster, client):
    names = Names("shared", "theirs", shards=True)
    with JobNameClaim(client, names):
        leave(client, names)
        theirs = keys_on(cluster)
        with pytest.raises(JobInUse, match="job name 'shared' to be free"):
            job_on(tmp_path, platform, cluster.url).run()
        assert keys_on(cluster) == theirs
        assert client.tables() == [names.fragments]


def test_a_claim_on_shards_that_was_lost_is_made_again(client):
    with JobNameClaim(client, Names("again", "run", shards=True)) as claim:
        client.redis.delete("{again}:lease")
        claim.renew()
        claim.check()
        assert client.redis.ttl("{again}:lease") > 0


@pytest.mark.parametrize("late", [False, True], ids=["before the look", "after the look"])
def test_a_job_that_lost_its_name_while_it_removed_leaves_the_next_owners_table(late, client, monkeypatch):
    """Tables are on all shards, and no step of one shard drops one only while the claim holds."""
    ours, theirs = (Names("late", run, shards=True) for run in ("ours", "theirs"))
    claim = JobNameClaim(client, ours)
    client.create_table(rs.Table(ours.fragments, 10, SIGNATURE))
    removal = job_name_claim._removal

    def pass_the_name_on() -> None:
        client.redis.set("{late}:lease", "another")
        client.create_table(rs.Table(theirs.fragments, 10, SIGNATURE))
        client.redis.set(theirs.done("r1-learner"), "theirs")

    def with_another_owner(*arguments: Any, **options: Any) -> Iterator[Any]:
        if not late:
            pass_the_name_on()
        yield from removal(*arguments, **options)
        if late:
            pass_the_name_on()

    monkeypatch.setattr(job_name_claim, "_removal", with_another_owner)
    claim.close()
    assert sorted(client.tables()) == ([] if late else [ours.fragments]) + [theirs.fragments]
    assert client.redis.mget("{late}:lease", theirs.done("r1-learner")) == [b"another", b"theirs"]
    monkeypatch.undo()
    client.redis.delete("{late}:lease")
    remove(client, "late")
