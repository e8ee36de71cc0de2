"""A job whose server has replicas goes on when that is killed or stopped."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from apex_job import Job, address_of, alive, gone, processes_of, wait_for_updates, wait_until

import replay_server as rs
from replay_server.jobs.apex import main_apex


def primary_of(job: Job) -> int:
    """Process id of the primary, as the job told it last."""
    return int(re.findall(r"server redis://\S+ \(primary \S+, process (\d+); replicas ", job.text)[-1])


def others_of(job: Job) -> set[int]:
    """Process ids of the learner, the evaluator and the actors."""
    return {pid for part in ("learner", "evaluator", "actor-0", "actor-1") for pid in processes_of(job, part)}


def await_replica(client: rs.Client) -> None:
    """Until a replica has all that the table has now."""
    client.redis.set("mark", "set")
    wait_until(lambda: client.redis.wait(1, 1000) >= 1)


def updates_told(client: rs.Client) -> int:
    told: Any = client.redis.hget("apex:learner", "updates")
    return int(told or 0)


def test_a_job_whose_primary_is_killed_twice_goes_on_with_the_replay_and_ends_in_order(start):
    job = start("--replicas", "1", "--samples-per-insert", "8")
    wait_for_updates(job)
    parts = others_of(job)
    with rs.Client(address_of(job), reconnect_timeout=60.0) as client:
        for turn in (1, 2):
            await_replica(client)
            ids, added = client.sample("apex", 64).ids, client.info("apex")["added"]
            updates = updates_told(client)
            await_replica(client)
            os.kill(primary_of(job), signal.SIGKILL)
            wait_until(lambda turn=turn: job.text.count("is the primary now") == turn)
            assert len(client.get("apex", ids).ids) == 64
            assert client.info("apex")["added"] >= added >= 200
            assert updates_told(client) >= updates
            wait_until(lambda turn=turn: len(re.findall(r"\(primary ", job.text)) == turn + 1)
            if turn == 1:
                wait_for_updates(job)
                assert others_of(job) == parts
                told = json.loads((job.run / "job.json").read_text())["server"].removeprefix("redis://")
                assert job.text.count(f"{told} is the primary now") == 1
        before = updates_told(client)
        wait_until(lambda: updates_told(client) >= before + 50)
        client.close_table("apex", "enough")
    assert job.wait() == 0, job.text
    summary = job.summary()
    assert (summary["restarts"], summary["ended_by"]) == (2, "table closed")
    assert summary["updates"] >= before + 50
    rows = [json.loads(line) for line in (job.run / "metrics.jsonl").read_text().splitlines()]
    versions = [row["version"] for row in rows if row["kind"] == "learner"]
    assert versions == sorted(versions)
    assert [path.name for path in (job.run / "replay").iterdir()] == ["replay.snapshot"]


def test_a_job_whose_primary_is_stopped_goes_on_with_the_replica(start):
    constants = {"replay_server.jobs.job_replicas.REPLACE_AFTER_S": 2.0}
    job = start("--replicas", "1", "--samples-per-insert", "8", constants=constants)
    wait_for_updates(job)
    parts, hung = others_of(job), primary_of(job)
    with rs.Client(address_of(job), reconnect_timeout=60.0) as client:
        await_replica(client)
    os.kill(hung, signal.SIGSTOP)
    job.wait_for(r"has not answered for \d+ s: 127.0.0.1:\d+ is the primary now")
    with contextlib.suppress(ProcessLookupError):
        os.kill(hung, signal.SIGCONT)
    wait_for_updates(job)
    assert not alive(hung)
    assert others_of(job) == parts
    os.kill(job.process.pid, signal.SIGINT)
    assert job.wait() == 130, job.text


def test_a_job_whose_servers_all_die_goes_on_without_the_replay_if_that_is_not_saved(start):
    job = start("--replicas", "1", "--samples-per-insert", "8", "--checkpoint-replay", "off")
    wait_for_updates(job)
    replica = int(re.findall(r"; replicas (\d+)\)", job.text)[-1])
    for pid in (replica, primary_of(job)):
        os.kill(pid, signal.SIGKILL)
    wait_until(lambda: job.process.poll() is not None or len(re.findall(r"\(primary ", job.text)) == 2)
    wait_for_updates(job)
    os.kill(job.process.pid, signal.SIGINT)
    assert job.wait() == 130, job.text


def test_a_job_that_was_killed_after_a_failover_goes_on_with_what_the_new_primary_saved(start):
    job = start("--replicas", "1", "--samples-per-insert", "8", "--checkpoint-replay-every-s", "0.2")
    wait_for_updates(job)
    with rs.Client(address_of(job), reconnect_timeout=60.0) as client:
        await_replica(client)
        os.kill(primary_of(job), signal.SIGKILL)
        job.wait_for("is the primary now")
        size = client.info("apex")["size"]
    snapshot = job.run / "replay" / "replay.snapshot"
    for _ in range(2):  # the first may have begun before
        seen = stamp(snapshot)
        wait_until(lambda seen=seen: stamp(snapshot) != seen)
    processes = job.children()
    for pid in (job.process.pid, *processes):
        os.kill(pid, signal.SIGKILL)
    job.process.wait()
    assert gone(processes)
    resumed = start("--resume", "--max-updates", "2000")
    assert int(resumed.wait_for(r"with a replay of (\d+) transitions")[1]) >= size >= 200
    assert resumed.text.count("replicas ") == 1, "as before"
    wait_for_updates(resumed, 1)
    os.kill(resumed.process.pid, signal.SIGINT)
    assert resumed.wait() == 130, resumed.text
    assert [path.name for path in snapshot.parent.iterdir()] == ["replay.snapshot"]


def stamp(file: Path) -> int:
    return file.stat().st_mtime_ns if file.exists() else 0


@pytest.mark.parametrize(
    "words", [["-1"], ["9"], ["1", "--replay-shards", "2"], ["1", "--shards-on", "ray"], ["2", "--port", "65534"]]
)
def test_replicas_that_cannot_be_are_refused(words, capsys):
    with pytest.raises(SystemExit) as ending:
        main_apex(["--env", "CartPole-v1", "--replicas", *words])
    assert ending.value.code == 2
    assert "expected" in capsys.readouterr().err
