"""A job from its first policy to its end, with real functions in worker processes and a real server."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import replay_server as rs
from replay_server.actors.rollout import run_actor
from replay_server.learner.loop import run_learner
from replay_server.rl.function_contract import ActorRequest, LearnerRequest, Names
from replay_server.rl.run_directory import RunDirectory
from replay_server.rl.settings import ApexSettings
from replay_server.serverless import job_name_claim
from replay_server.serverless.backends.backend import FunctionLost
from replay_server.serverless.cost import Bill
from replay_server.serverless.invocation_log import read_invocations
from replay_server.serverless.job_name_claim import JobInUse
from replay_server.serverless.orchestrator import Orchestrator
from replay_server.serverless.prices import load_prices
from replay_server.serverless.rounds import TrainingFailed
from replay_server.serverless.run_log import read_rounds
from replay_server.serverless.settings import TrainSettings

STEPS, ENVIRONMENTS = 8, 2


class Steps:
    """A scaler with a list of counts; its state is how many of them were given."""

    probes: dict[str, Any] = {}  # noqa: RUF012

    def __init__(self, *counts: int) -> None:
        self.counts, self.given = counts, 0

    def actors(self, before: Any) -> int:
        self.given += 1
        return self.counts[self.given - 1]

    def state(self) -> dict[str, Any]:
        return {"given": self.given}

    def restore(self, state: Any) -> None:
        self.given = int(state["given"])


def settings_of(path: Path, **given: Any) -> TrainSettings:
    small: dict[str, Any] = {
        "env": "CartPole-v1", "steps": STEPS, "environments": ENVIRONMENTS, "actors": 2, "actors_max": 3, "rounds": 3,
        "concurrency": 2, "setting": {"hidden": 8, "iterations": 1}, "final_episodes": 0, "logdir": str(path),
    }  # fmt: skip
    return TrainSettings(**{**small, **given})


def orchestrator(path: Path, platform: Any, scaler: Any = None, **given: Any) -> Orchestrator:
    settings = settings_of(path, **given)
    directory = RunDirectory(path)
    directory.create(settings)
    return Orchestrator(settings, directory, platform=platform, scaler=scaler)


def test_rounds_learn_from_what_was_accepted_and_leave_an_empty_table(tmp_path, platform, server, client):
    learned: list[tuple[int, int]] = []

    def note_fragments(request):
        if isinstance(request, LearnerRequest):
            batch = client.get(request.names.fragments, memoryview(request.fragments).cast("Q").tolist())
            learned.extend(zip(batch.data["environment"].tolist(), batch.data["sequence"].tolist()))

    platform.before = note_fragments
    job = orchestrator(tmp_path, platform, Steps(1, 3, 2), server=server.url, job="accepted", keep=True)
    assert job.run() == "rounds"
    records = read_rounds(tmp_path)
    assert [record.round for record in records] == [1, 2, 3]
    assert [record.version for record in records] == [1, 2, 3]
    assert [(record.actors, record.arrived) for record in records] == [(1, 1), (3, 3), (2, 2)]
    assert [record.total_steps for record in records] == [16, 64, 96]
    # Actors carry their own number of fragments on, whichever rounds they are in.
    environments = {actor: [2 * actor, 2 * actor + 1] for actor in range(3)}
    played = {0: 3, 1: 2, 2: 1}
    expected = [(each, n) for actor in range(3) for each in environments[actor] for n in range(played[actor])]
    assert sorted(learned) == sorted(expected)
    assert client.info("accepted:fragments")["size"] == 0
    found = client.fetch_weights("accepted:policy")
    assert found is not None
    assert found[0] == 3
    client.drop_table("accepted:fragments")


def test_the_bill_is_that_of_the_written_invocations(tmp_path, platform, server):
    job = orchestrator(tmp_path, platform, rounds=2, server=server.url, final_episodes=2)
    job.run()
    invocations = read_invocations(tmp_path)
    assert sorted(each.request for each in invocations if each.kind != "evaluation") == [
        "r1-a0", "r1-a1", "r1-learner", "r2-a0", "r2-a1", "r2-learner",
    ]  # fmt: skip
    assert [each.kind for each in invocations].count("evaluation") == 1
    bill = Bill(load_prices(), "lambda")
    bill.add(*invocations)
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["cost"] > 0
    assert summary["cost"] == pytest.approx(bill.dollars, abs=1e-12)
    assert read_rounds(tmp_path)[-1].cost == pytest.approx(summary["cost"], abs=1e-12)
    assert summary["eval_episodes"] == 2


def test_a_late_actor_is_left_out_and_goes_on_from_where_it_stood(tmp_path, platform, server, client):
    late = threading.Event()

    def hold_one(request):
        if isinstance(request, ActorRequest) and request.request == "r2-a1":
            time.sleep(max(0.0, request.deadline - time.time()) + 0.2)
            late.set()

    platform.before = hold_one
    platform.prewarm(2)  # what begins may take longer than the deadline
    job = orchestrator(
        tmp_path, platform, rounds=3, server=server.url, job="late", keep=True, deadline_s=6.0, timeout_s=30.0
    )
    job.run()
    assert late.is_set()
    assert [record.arrived for record in read_rounds(tmp_path)] == [2, 1, 2]
    assert read_rounds(tmp_path)[-1].total_steps == 5 * STEPS * ENVIRONMENTS
    counters = json.loads((tmp_path / "checkpoints" / "step_3" / "counters.json").read_text())
    assert counters["sequences"] == [[0, 3], [1, 2]]
    assert client.info("late:fragments")["size"] == 0
    client.drop_table("late:fragments")


def test_a_round_without_a_quorum_asks_again_and_then_gives_up(tmp_path, platform, server, client):
    asked = []

    def lose_all(request):
        asked.append(request.request)
        raise FunctionLost("lost on purpose")

    platform.before = lose_all
    job = orchestrator(tmp_path, platform, server=server.url, job="lost", retries=0)
    with pytest.raises(TrainingFailed, match="at least 1 of 2 actors, 0 arrived after asking 3 times"):
        job.run()
    assert sorted(asked) == ["r1-a0", "r1-a0-2", "r1-a0-3", "r1-a1", "r1-a1-2", "r1-a1-3"]
    assert json.loads((tmp_path / "summary.json").read_text())["ended_by"] == "failure"
    assert not [name for name in client.tables() if name.startswith("lost:")]


def test_a_name_in_use_is_refused_and_its_job_goes_on(tmp_path, platform, server, client):
    client.redis.set("taken:lease", "somebody")
    client.redis.set("taken:anything", "theirs")
    job = orchestrator(tmp_path, platform, server=server.url, job="taken")
    with pytest.raises(JobInUse, match="job name 'taken' to be free"):
        job.run()
    assert client.redis.get("taken:anything") == b"theirs"
    client.redis.delete("taken:lease", "taken:anything")


def test_a_job_whose_name_has_passed_to_another_ends_and_leaves_it_alone(
    tmp_path, platform, server, client, monkeypatch
):
    monkeypatch.setattr(job_name_claim, "CLAIM_S", 1)

    def lose_the_name(request):
        if request.request == "r2-a0":
            client.redis.set("passed:lease", "another")

    platform.before = lose_the_name
    job = orchestrator(tmp_path, platform, rounds=10_000, server=server.url, job="passed")
    with pytest.raises(JobInUse, match="another job has that name now"):
        job.run()
    assert client.redis.get("passed:lease") == b"another"
    assert "passed:fragments" in client.tables()
    # What is under its name is the other's: it saves none of that as its own.
    assert job.progress.round >= 1
    assert all(int(path.name[5:]) % 10 == 0 for path in (tmp_path / "checkpoints").glob("step_*"))
    client.redis.delete("passed:lease")
    job_name_claim.JobNameClaim(client, job.names).close()  # so that the next tests find nothing of it


def test_a_claim_that_was_lost_with_its_server_is_made_again(client):
    with job_name_claim.JobNameClaim(client, Names("claimed")) as claim:
        client.redis.delete("claimed:lease")
        claim.renew()
        claim.check()
        assert client.redis.ttl("claimed:lease") > 0
    assert not client.redis.exists("claimed:lease")


def test_a_job_that_lost_its_name_while_it_removed_leaves_the_next_owners_keys(client, monkeypatch):
    """The claim passes to another between the removal of the table and that of the keys."""
    claim = job_name_claim.JobNameClaim(client, Names("late"))
    client.redis.mset({"late:one": "ours", "late:two": "ours"})
    removal = job_name_claim._removal

    def pass_the_name_on(*arguments, **options):
        for command in removal(*arguments, **options):
            if command[0] == "DEL":
                client.redis.set("late:lease", "another")
                client.redis.set("late:one", "theirs")
            yield command

    monkeypatch.setattr(job_name_claim, "_removal", pass_the_name_on)
    claim.close()
    assert client.redis.mget("late:lease", "late:one") == [b"another", b"theirs"]
    client.redis.delete("late:lease", "late:one", "late:two")


def test_a_claim_is_renewed_while_the_removal_lasts(client, monkeypatch):
    claim = job_name_claim.JobNameClaim(client, Names("slow"))
    client.redis.set("slow:one", "ours")
    client.redis.expire("slow:lease", 1)
    removal = job_name_claim._removal

    def wait_for_a_renewal(*arguments, **options):
        claim.renew()  # As the thread does that renews.
        assert client.redis.ttl("slow:lease") > 1
        yield from removal(*arguments, **options)

    monkeypatch.setattr(job_name_claim, "_removal", wait_for_a_renewal)
    claim.close()
    assert not claim._renewing.is_alive()
    assert not client.redis.exists("slow:lease", "slow:one")


def test_a_name_that_was_given_back_is_not_claimed_again_by_a_late_renewal(client):
    claim = job_name_claim.JobNameClaim(client, Names("back"))
    claim.close()
    claim.renew()
    assert not client.redis.exists("back:lease")


def test_a_job_takes_away_what_is_its_own_and_nothing_else(tmp_path, platform, server, client):
    client.publish_weights("other:policy", {"x": [1.0]})
    client.redis.set("otherwise", "stays")
    tables, weights = client.tables(), client.redis.execute_command("WEIGHTS.LIST")
    orchestrator(tmp_path, platform, rounds=1, server=server.url, job="clean").run()
    assert client.tables() == tables
    assert not list(client.redis.scan_iter(match="clean:*"))
    assert sorted(client.redis.execute_command("WEIGHTS.LIST")) == sorted(weights)
    assert client.redis.get("otherwise") == b"stays"


def test_a_resumed_job_goes_on_from_its_checkpoint(tmp_path, platform, server):
    orchestrator(tmp_path, platform, Steps(1, 2, 1), rounds=2, server=server.url).run()
    scaler = Steps(1, 2, 1)
    job = orchestrator(tmp_path, platform, scaler, rounds=3, resume=True, server=server.url)
    assert job.run() == "rounds"
    assert scaler.given == 3
    records = read_rounds(tmp_path)
    assert [(record.round, record.version, record.actors) for record in records] == [(1, 1, 1), (2, 2, 2), (3, 3, 1)]
    assert records[-1].total_steps == 4 * STEPS * ENVIRONMENTS
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert (summary["rounds"], summary["updates"], summary["frames"]) == (3, 3, 64)
    counters = json.loads((tmp_path / "checkpoints" / "step_3" / "counters.json").read_text())
    assert counters["sequences"] == [[0, 3], [1, 1]]


def test_a_round_that_was_cut_off_is_decided_on_once(tmp_path, platform, server):
    """The scaler had moved on when the round failed, and what was saved had it decide on that round twice."""

    def refuse(request: Any) -> None:
        if isinstance(request, LearnerRequest) and request.round == 2:
            raise FunctionLost("its machine is gone")

    platform.before = refuse
    with pytest.raises(TrainingFailed):
        orchestrator(tmp_path, platform, Steps(1, 2, 1, 3), server=server.url, retries=0).run()
    platform.before = lambda request: None
    scaler = Steps(1, 2, 1, 3)
    assert orchestrator(tmp_path, platform, scaler, resume=True, server=server.url).run() == "rounds"
    assert [record.actors for record in read_rounds(tmp_path)] == [1, 2, 1]
    assert scaler.given == 3


@pytest.mark.parametrize("algorithm", ["impact", "impala"])
def test_off_policy_actors_are_kept_in_flight_and_the_buffer_is_learned_from(tmp_path, platform, server, algorithm):
    setting = {"hidden": 8, "passes": 2, "buffer_batches": 2}
    job = orchestrator(tmp_path, platform, rounds=4, server=server.url, algo=algorithm, setting=setting)
    assert job.run() == "rounds"
    records = read_rounds(tmp_path)
    assert [record.version for record in records] == [2, 4, 6, 8]
    assert [record.steps for record in records] == [2 * STEPS * ENVIRONMENTS] * 4
    assert all(record.statistics["staleness"] >= 0 for record in records)
    names = [each.request for each in read_invocations(tmp_path) if each.kind == "actor" and each.outcome == "ok"]
    assert len(names) == len(set(names)) >= 8


def test_impact_goes_on_where_a_lost_learner_has_used_up_its_sample(tmp_path, platform, server, client):
    batch, passes = 2 * ENVIRONMENTS, 2

    def use_up(request):
        if request.request == "r2-learner":
            for _ in range(passes):
                client.sample(request.names.fragments, batch, timeout=0)

    platform.before = use_up
    setting = {"hidden": 8, "passes": passes, "buffer_batches": 1}
    job = orchestrator(tmp_path, platform, rounds=3, server=server.url, algo="impact", setting=setting)
    assert job.run() == "rounds"
    assert [record.version for record in read_rounds(tmp_path)] == [2, 4, 6]


@pytest.mark.parametrize(
    ("given", "ended_by"), [({"target_score": 1.0, "eval_every": 1, "eval_episodes": 1}, "target_score"),
                            ({"budget": 1e-9}, "budget")],
)  # fmt: skip
def test_a_job_ends_when_its_target_or_its_budget_is_reached(tmp_path, platform, server, given, ended_by):
    job = orchestrator(tmp_path, platform, rounds=9, server=server.url, **given)
    assert job.run() == ended_by
    assert len(read_rounds(tmp_path)) == 1


def test_a_job_ends_with_the_round_that_spends_its_budget(tmp_path, platform, server):
    orchestrator(tmp_path / "one", platform, rounds=1, server=server.url, job="one").run()
    budget = 2.5 * read_rounds(tmp_path / "one")[0].cost
    job = orchestrator(tmp_path / "many", platform, rounds=30, server=server.url, job="many", budget=budget)
    assert job.run() == "budget"
    *before, last = [record.cost for record in read_rounds(tmp_path / "many")]
    assert all(cost < budget for cost in before)
    assert last >= budget


def test_a_server_that_dies_ends_the_job_and_is_told_as_lost(tmp_path, platform):
    server = rs.Server()

    def stop_in_round_2(request):
        if request.request.startswith("r2-"):
            server.stop(timeout=1.0)

    platform.before = stop_in_round_2
    job = orchestrator(tmp_path, platform, server=server.url, retries=0, timeout_s=20.0)
    with pytest.raises(rs.ConnectionLost):
        job.run()
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert (summary["ended_by"], summary["rounds"]) == ("server lost", 1)


def test_an_apex_job_and_a_serverless_job_on_one_server_leave_each_other_alone(tmp_path, platform, server, client):
    def policy_after(job: str) -> dict[str, Any]:
        given = {"rounds": 6, "server": server.url, "job": job, "keep": True}
        assert orchestrator(tmp_path / job, platform, **given).run() == "rounds"
        version, arrays = client.fetch_weights(f"{job}:policy") or (0, {})
        assert version == 6
        return arrays

    alone = policy_after("alone")
    settings = ApexSettings(
        env="CartPole-v1", actors=1, envs_per_actor=2, hidden=8, batch_size=16, min_size_to_sample=100,
        capacity=100_000, optimizer="adam", publish_every=5, push_every=10, samples_per_insert=None, learner_threads=1,
    )  # fmt: skip
    stop = threading.Event()
    parts = [
        threading.Thread(target=run_learner, args=(settings, server.url, tmp_path / "apex", stop, False)),
        threading.Thread(target=run_actor, args=(settings, server.url, 0, stop)),
    ]
    try:
        for part in parts:
            part.start()
        give_up = time.monotonic() + 60
        while client.fetch_weights("apex", newer_than=0) is None:
            assert time.monotonic() < give_up
            time.sleep(0.02)
        before, keys = client.info("apex"), set(client.redis.scan_iter(match="apex*"))
        (first, _) = client.fetch_weights("apex") or (0, {})
        beside = policy_after("beside")
        after = client.info("apex")
        (last, _) = client.fetch_weights("apex") or (0, {})
    finally:
        stop.set()
        for part in parts:
            part.join(60)
    # The serverless job: to the last bit what it is without the other one.
    assert beside.keys() == alone.keys()
    for name, array in beside.items():
        np.testing.assert_array_equal(array, alone[name])
    # The Ape-X job: it went on all the while, and nothing but it put anything in or took anything out.
    assert after["added"] > before["added"]
    assert last > first
    info = client.info("apex")
    assert info["removed"] == 0
    assert info["size"] == info["added"] == int(client.redis.hget("apex:actor:0", "transitions"))
    version, _ = client.fetch_weights("apex") or (0, {})
    assert version == int(client.redis.hget("apex:learner", "updates"))
    assert keys <= set(client.redis.scan_iter(match="apex*"))
    with pytest.raises(JobInUse, match="'apex' to be free on this server, and a table has it"):
        orchestrator(tmp_path / "taken", platform, server=server.url, job="apex").run()
    for name in ("apex", "alone:fragments", "beside:fragments"):
        client.drop_table(name)
