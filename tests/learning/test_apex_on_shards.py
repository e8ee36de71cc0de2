"""A job whose replay is on several servers."""

from __future__ import annotations

import os
import signal

import pytest

pytest.importorskip("torch")

from apex_job import wait_for_updates

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


def test_a_shard_that_is_killed_comes_back_and_the_job_goes_on(start):
    job = start("--replay-shards", "2", "--samples-per-insert", "8", "--checkpoint-replay", "off")
    pid = int(job.wait_for(r"2 shards, processes \d+, (\d+)\)")[1])
    job.wait_for(r"updates [1-9]")
    os.kill(pid, signal.SIGKILL)
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
