"""A job whose replay is on several servers."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

import pytest

pytest.importorskip("torch")

from apex_job import LONGEST_S, Job, address_of, alive, gone, processes_of, wait_for_updates, wait_until

import replay_server as rs
from replay_server.jobs.apex import main_apex


def test_job_on_two_shards_learns_from_both_and_goes_on_with_what_both_have_saved(start):
    job = start("--replay-shards", "2", "--max-updates", "300")
    url = job.wait_for(r"server (redis\+cluster://\S+) \(2 shards, processes \d+, \d+\)")[1]
    with rs.Client(url) as client:
        client.await_items("apex", size=250, timeout=60.0)
        job.wait_for(r"updates [1-9]")
        shards = client.info("apex")["shards"]
        assert sorted(shards) == [0, 1]
        assert all(shard["added"] and shard["sampled"] for shard in shards.values())
    assert job.wait() == 0, job.text
    assert (job.summary()["updates"], job.summary()["restarts"]) == (300, 0)
    assert job.summary()["eval_episodes"] == 2
    assert all(list((job.run / "replay" / "shards" / f"shard-{number}").glob("*.snapshot")) for number in (0, 1))

    resumed = start("--resume", "--max-updates", "400")
    held = int(resumed.wait_for(r"shards, processes .* with a replay of (\d+) transitions")[1])
    assert held >= 250
    assert resumed.wait() == 0, resumed.text
    assert resumed.summary()["updates"] == 400
    assert resumed.summary()["transitions"] > held


def shards_of(job: Job) -> list[int]:
    """Process ids of the shards, as the job told them last."""
    job.wait_for(r"\(2 shards, processes \d+, \d+\)")
    return [int(pid) for pid in re.findall(r"\(2 shards, processes (\d+), (\d+)\)", job.text)[-1]]


def snapshots(job: Job) -> list[Path]:
    """Of each shard its only one, or more while a new one has just replaced it."""
    return sorted((job.run / "replay" / "shards").glob("shard-*/*.snapshot"))


def wait_for_snapshots(job: Job) -> int:
    """Waits until both shards have one that began after this call; how many transitions there were before."""
    with rs.Client(address_of(job), reconnect_timeout=LONGEST_S) as client:
        size = client.info("apex")["size"]
    for _ in range(2):  # the first may have begun before
        seen = set(snapshots(job))
        wait_until(lambda seen=seen: len({file.parent for file in set(snapshots(job)) - seen}) == 2)
    return size


SAVING = ("--replay-shards", "2", "--checkpoint-replay-every-s", "0.2", "--checkpoint-every-s", "0.5")


def test_killed_shards_and_a_killed_learner_come_back_with_what_was_saved_and_all_other_parts_wait_for_them(start):
    job = start(*SAVING)
    wait_for_updates(job)
    parts = {pid for pid in job.children() if pid not in shards_of(job)}
    for number in (0, 1):
        size, killed = wait_for_snapshots(job), shards_of(job)[number]
        os.kill(killed, signal.SIGKILL)
        wait_until(lambda killed=killed: killed not in shards_of(job))
        held = re.findall(r"shards, processes [^)]*\) with a replay of (\d+) transitions", job.text)
        assert int(held[-1]) >= size >= 200
        wait_for_updates(job)
        assert parts <= job.children().keys()
    assert job.text.count("a shard has ended, and was started again") == 2
    (learner,) = processes_of(job, "learner")
    os.kill(learner, signal.SIGKILL)
    job.wait_for(r"learner ended \(-9\): starting it again")
    wait_for_updates(job)
    with rs.Client(address_of(job)) as client:
        assert client.info("apex")["missing"] == []
    job.process.send_signal(signal.SIGINT)
    assert job.wait() == 130, job.text
    assert not any(alive(pid) for pid in shards_of(job))
    assert job.summary()["restarts"] == 3


def test_job_on_shards_whose_processes_were_all_killed_goes_on_but_for_a_part_that_is_damaged(start):
    job = start(*SAVING)
    wait_for_updates(job)
    size, processes = wait_for_snapshots(job), job.children()
    for pid in (job.process.pid, *processes):
        os.kill(pid, signal.SIGKILL)
    job.process.wait()
    assert gone(processes)
    damaged = snapshots(job)[-1]
    assert damaged.parent.name == "shard-1"
    content = bytearray(damaged.read_bytes())
    content[len(content) // 2] ^= 255
    damaged.write_bytes(content)

    resumed = start("--resume")
    resumed.wait_for(r"a part of the replay that was saved does not come back: shard 1: [\s\S]*is damaged")
    held = int(resumed.wait_for(r"shards, processes .* with a replay of (\d+) transitions")[1])
    assert 0 < held < size
    assert (resumed.run / "replay" / "refused-shards" / "shard-1" / damaged.name).exists()
    wait_for_updates(resumed)
    with rs.Client(address_of(resumed)) as client:
        assert all(shard["size"] for shard in client.info("apex")["shards"].values())
    resumed.process.send_signal(signal.SIGINT)
    assert resumed.wait() == 130, resumed.text


def test_a_shard_that_is_killed_without_any_snapshot_begins_empty_and_the_job_goes_on(start):
    job = start("--replay-shards", "2", "--samples-per-insert", "8", "--checkpoint-replay", "off")
    wait_for_updates(job)
    os.kill(shards_of(job)[1], signal.SIGKILL)
    job.wait_for("a shard has ended, and was started again")
    wait_for_updates(job)
    job.process.send_signal(signal.SIGINT)
    assert job.wait() == 130, job.text
    assert job.summary()["restarts"] >= 1


@pytest.mark.parametrize("words", [["0"], ["257"], ["2", "--port", "65535"], ["2", "--actors", "1"]])
def test_shards_that_cannot_be_are_refused(words, capsys):
    with pytest.raises(SystemExit) as ending:
        main_apex(["--env", "CartPole-v1", "--replay-shards", *words])
    assert ending.value.code == 2
    assert "expected" in capsys.readouterr().err
