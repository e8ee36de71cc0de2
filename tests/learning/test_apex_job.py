"""The whole job on one machine: how it ends, what it leaves, what it survives."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("torch")

import gymnasium
from apex_job import LONGEST_S, Job, address_of, alive, gone, processes_of, wait_for_updates, wait_until
from safetensors.torch import load_file

import replay_server as rs
from replay_server.jobs.apex import ApexJob
from replay_server.jobs.hung_parts import MAKES_NO_UPDATE, Silence
from replay_server.jobs.supervisor import Deaths
from replay_server.learner.metrics import Metrics
from replay_server.rl.run_directory import RunDirectory
from replay_server.rl.settings import ApexSettings


def test_job_ends_at_its_limit_with_a_summary_and_can_be_resumed(start):
    job = start("--max-updates", "600", "--precision", "auto")
    assert job.wait() == 0, job.text
    summary = job.summary()
    names = "env seed frames updates frames_per_s updates_per_s eval_episodes eval_mean eval_std restarts"
    assert set(names.split()) | {"sticky_actions", "profile", "evaluations"} <= summary.keys()
    assert summary["updates"] == 600
    assert summary["eval_episodes"] == 2
    assert summary["frames"] >= summary["transitions"] - 100
    assert (job.run / "checkpoints" / "step_600" / "network.safetensors").exists()
    config = json.loads((job.run / "config.json").read_text())
    assert config["hidden"] == 16
    assert config["precision"] == "auto"
    assert {**summary, **config["measured"]} == summary
    assert f"learner: updates run in {summary['precision']}, 1 thread" in job.text
    # Of as many rows as there is time for on this machine; what is given up comes last.
    assert re.search(r"\(measured with batches of (2|8|32|128): .*\bfloat32, 1 thread", job.text)
    assert not list(job.temporary.glob("replay-server*"))

    # In a folder whose sockets would have paths that are too long.
    resumed = start("--resume", "--max-updates", "800", temporary="long" * 20)
    assert resumed.wait() == 0, resumed.text
    assert resumed.summary()["updates"] == 800
    assert resumed.summary()["frames"] > summary["frames"]
    assert len(resumed.summary()["evaluations"]) >= len(summary["evaluations"])


def test_a_job_whose_table_somebody_closes_ends_in_order(start):
    job = start("--samples-per-insert", "8")
    address = job.wait_for(r"server redis://(\S+)").group(1)
    with rs.Client(f"redis://{address}") as client:
        job.wait_for(r"updates [1-9]")
        client.close_table("apex", "the machine is needed")
        assert job.wait() == 0, job.text
    assert "ending (table closed)" in job.text
    assert job.summary()["ended_by"] == "table closed"
    assert job.summary()["restarts"] == 0


def test_a_job_that_nohup_started_outlives_its_terminal(start):
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does before it starts a command
    try:
        job = start()
    finally:
        signal.signal(signal.SIGHUP, before)
    wait_for_updates(job)
    os.killpg(job.process.pid, signal.SIGHUP)
    wait_for_updates(job)
    job.process.send_signal(signal.SIGTERM)
    assert job.wait() == 130, job.text
    assert job.summary()["restarts"] == 0


def test_an_actor_with_nothing_but_the_url_joins_a_job_is_counted_and_ends_with_it(start, tmp_path):
    # Its server waits for actors from elsewhere, as long as that takes on this machine.
    job = start("--samples-per-insert", "8", constants={"replay_server.jobs.apex.STOP_GRACE_S": LONGEST_S})
    address = job.wait_for(r"server redis://(\S+)").group(1)
    joined, refused = tmp_path / "joined", tmp_path / "refused"
    command = [sys.executable, "-m", "replay_server", "actor", "--server", f"redis://{address}"]
    with open(joined, "wb") as output:
        actor = subprocess.Popen(command, stdout=output, stderr=output, cwd=tmp_path)
    try:
        job.wait_for("actor 2 has joined")
        assert "actor 2 of the run at table apex" in joined.read_text(), "0 and 1 are the job's, whoever is first"
        with open(refused, "wb") as output:
            other = subprocess.run(
                [*command, "--n-step", "5"], stdout=output, stderr=output, cwd=tmp_path, timeout=LONGEST_S
            )
        assert other.returncode == 1
        assert "--n-step 3 there, 5 here" in refused.read_text()
        job.wait_for(r"actor scores \S+ \S+ \S+ ·")
        job.process.send_signal(signal.SIGTERM)
        assert job.wait() == 130
        assert actor.wait(LONGEST_S) == 0, joined.read_text()
    finally:
        actor.kill()
        actor.wait()
    assert "actor 2 ends: table 'apex' is closed: the job ended (interrupted)" in joined.read_text()
    assert job.summary()["actors_played"] == 3
    rows = [json.loads(line) for line in (job.run / "metrics.jsonl").read_text().splitlines()]
    assert rows[-1]["frames"] == job.summary()["frames"]


def test_totals_survive_a_resumed_session_that_ends_at_once(tmp_path, monkeypatch):
    monkeypatch.setattr(signal, "signal", lambda *_: None)  # pytest's own handlers stay
    settings = ApexSettings(env="Nothing-v0", logdir=str(tmp_path))
    directory = RunDirectory(tmp_path)
    directory.create(settings)
    totals = {"elapsed_s": 60.0, "frames": 400, "transitions": 100, "restarts": 2}
    metrics = Metrics(tmp_path, "progress", tensorboard=False)
    metrics.write(25, totals)
    metrics.close()
    (directory.checkpoints / "step_25").mkdir(parents=True)
    settings.resume = True
    for _ in range(2):
        with pytest.raises(gymnasium.error.Error):  # before there is a server
            ApexJob(settings, directory, {}).run()
        summary = json.loads(directory.summary.read_text())
        assert {name: summary[name] for name in ("minutes", "frames", "transitions", "restarts", "updates")} == {
            "minutes": 1.0, "frames": 400, "transitions": 100, "restarts": 2, "updates": 25,
        }  # fmt: skip
        assert summary["frames_per_s"] == summary["updates_per_s"] == 0
        assert summary["ended_by"] == "failure"


def test_killed_actor_is_started_again_and_an_interrupt_ends_everything_and_leaves_no_process_and_no_socket(start):
    job = start()
    wait_for_updates(job, 1)
    assert len(job.children()) == 5  # server, learner, two actors, evaluator
    assert list(job.temporary.rglob("server.sock"))
    killed = processes_of(job, "actor-0")
    os.kill(killed[0], signal.SIGKILL)
    job.wait_for(r"actor 0 ended \(-9\): starting it again")
    wait_until(lambda: processes_of(job, "actor-0") not in ([], killed))
    children = job.children()
    os.kill(job.process.pid, signal.SIGINT)
    assert job.wait() == 130
    assert not any(alive(pid) for pid in children)
    assert not list(job.temporary.glob("replay-server*"))
    assert job.summary()["ended_by"] == "interrupted"
    assert job.summary()["restarts"] == 1
    assert "go on with: replay-server apex --resume" in job.text


def test_interrupt_while_parts_are_starting_leaves_no_process(start):
    job = start()
    job.wait_for(r"server redis://")
    time.sleep(0.3)
    children = job.children()
    os.kill(job.process.pid, signal.SIGINT)
    assert job.wait() == 130
    assert not any(alive(pid) for pid in children)
    assert not list(job.temporary.glob("replay-server*"))


def is_there(job: Job, name: str) -> bool:
    """Whether the job has a process of that name, as `top` shows it."""
    assert job.process.poll() is None, job.text
    names = [Path(f"/proc/{pid}/comm") for pid in job.children()]
    return f"{name}\n" in [path.read_text() for path in names if path.exists()]


def test_interrupt_while_the_machine_is_measured_leaves_no_process_and_no_run(start):
    job = start("--precision", "auto")
    wait_until(lambda: is_there(job, "plan"))
    children = job.children()
    os.kill(job.process.pid, signal.SIGINT)
    assert job.wait() == 130
    assert gone(children)
    assert job.text == "interrupted: nothing was started\n"
    assert not job.run.exists()


def test_interrupt_during_the_final_games_leaves_no_process_and_a_summary_without_them(start):
    job = start("--max-updates", "50", "--final-episodes", "100000")
    job.wait_for("playing 100000 new games with the newest network\n")  # none was evaluated
    wait_until(lambda: is_there(job, "final games"))
    children = job.children()
    os.kill(job.process.pid, signal.SIGINT)
    assert job.wait() == 130
    assert not any(alive(pid) for pid in children)
    assert "interrupted: ending the run" in job.text
    assert "Traceback" not in job.text
    summary = job.summary()
    assert (summary["ended_by"], summary["updates"], summary["eval_mean"]) == ("interrupted", 50, None)


def test_interrupt_while_parts_are_ending_leaves_no_process(start):
    job = start("--max-transitions", "1000")
    wait_until(lambda: processes_of(job, "evaluator") != [])  # the last that is started
    children = job.children()
    (stuck,) = processes_of(job, "evaluator")
    os.kill(stuck, signal.SIGSTOP)
    job.wait_for(r"ending \(max_transitions\)")
    time.sleep(0.3)
    os.kill(job.process.pid, signal.SIGINT)
    assert job.wait() == 130
    assert not any(alive(pid) for pid in children)
    assert not list(job.temporary.glob("replay-server*"))


def test_two_jobs_do_not_work_in_one_run_directory(start):
    """Both would write its checkpoints, metrics and replay."""
    job = start()
    wait_for_updates(job, 1)
    config = (job.run / "config.json").read_bytes()
    second = start("--resume", "--minutes", "1")
    assert second.wait() == 2
    assert f"{job.run}: another process is at work in it: end that, or give another --logdir" in second.text
    assert (job.run / "config.json").read_bytes() == config
    wait_for_updates(job)
    children = job.children()
    job.process.kill()  # the lock goes with it
    job.process.wait()
    assert gone(children)
    resumed = start("--resume", "--max-updates", "1")
    assert resumed.wait() == 0, resumed.text


def test_a_disk_that_takes_nothing_more_is_told_and_the_job_ends_in_order(start, tmp_path):
    folder = tmp_path / "run"
    (folder / "summary.json" / "in the way").mkdir(parents=True)
    (folder / "metrics.jsonl").symlink_to("/dev/full")
    constants = {
        "replay_server.jobs.record.ROW_EVERY_S": 0.0,
        "replay_server.jobs.supervisor.RESTARTS_PER_MINUTE": 0,
        "replay_server.learner.loop.REPORT_EVERY_S": 0.0,
    }
    job = start("--max-updates", "100", constants=constants)
    job.wait_for(r"cannot write to the run directory: \[Errno 28\]")
    assert job.wait() == 1, job.text
    assert "learner: cannot write to the run directory: [Errno 28]" in job.text  # and goes on
    assert "summary.json" in job.text.partition("ending (max_updates)")[2]
    assert (folder / "checkpoints" / "step_100").is_dir()
    assert "Traceback" not in job.text


def test_killed_job_takes_its_parts_with_it(start):
    job = start()
    wait_for_updates(job, 1)
    children = job.children()
    job.process.kill()
    job.process.wait()
    assert gone(children)


class Watched:
    """A part that is looked at each second."""

    def __init__(self, silence: Silence) -> None:
        self.silence, self.told, self.now = silence, [], 1_000.0

    def look(self, seconds: int, sign: object, running: bool = True) -> None:
        for _ in range(seconds):
            self.now += 1.0
            self.told.append(self.silence.look(self.now, sign, running))


def test_part_that_is_silent_is_named_and_so_is_its_return():
    part = Watched(Silence(MAKES_NO_UPDATE))
    part.look(1_000, None)  # the table fills
    part.look(30, 0)
    assert not any(part.told)
    part.look(60, 0)
    assert [text for text in part.told if text] == [
        "has made no update for 30 s, though there are items to sample"
    ]  # once
    assert part.silence.told() == "has made no update for 89 s, though there are items to sample"
    part.now += 1_000.0  # the server was away, which counts as 5 s at most
    part.look(1, 0)
    assert part.silence.silent_s == 94.0
    part.look(1, 1)
    assert part.told[-1] == "goes on after 94 s"
    part.look(20, 1)
    part.look(1, 1, running=False)  # it died, and is started again
    part.look(29, 1)
    assert not any(part.told[-50:])
    part.look(1, 1)
    assert part.told[-1] == "has made no update for 30 s, though there are items to sample"


def test_actor_that_makes_its_environment_is_not_silent_yet():
    part = Watched(Silence(from_start=False))
    part.look(1_000, None)
    part.look(30, 7.0)
    assert not any(part.told)
    part.look(60, 7.0)
    assert [text for text in part.told if text] == ["has reported nothing for 30 s"]
    part.look(1, 7.0, running=False)
    part.look(1_000, 7.0)  # what it reported before
    part.look(30, 9.0)
    assert not any(part.told[-1_031:])
    part.look(1, 9.0)
    assert part.told[-1] == "has reported nothing for 30 s"


@pytest.mark.parametrize(
    ("part", "told"),
    [
        ("actor 0", r"has reported nothing for \d+ s"),
        ("evaluator", r"has reported nothing for \d+ s"),
        ("learner", r"has made no update for \d+ s, though there are items to sample"),
    ],
)
def test_part_that_hangs_is_killed_and_started_again(start, part, told):
    job = start(
        constants={"replay_server.jobs.hung_parts.SILENT_S": 5.0, "replay_server.jobs.apex.KILLED_AFTER_S": 20.0}
    )
    wait_for_updates(job, 1)
    log = part.replace(" ", "-")
    (stopped,) = processes_of(job, log)
    os.kill(stopped, signal.SIGSTOP)
    job.wait_for(rf"{part} {told}\n")
    job.wait_for(rf"{part} {told}: killing it; log in \S+{log}\.log")
    job.wait_for(rf"{part} ended \(-9\): starting it again")
    wait_until(lambda: processes_of(job, log) not in ([], [stopped]))
    wait_for_updates(job)
    os.kill(job.process.pid, signal.SIGINT)
    assert job.wait() == 130, job.text
    assert job.summary()["restarts"] == 1


@pytest.mark.slow
def test_learner_that_was_stopped_is_named_while_the_job_waits_for_it(start):
    job = start()
    job.wait_for(r"updates [1-9]")
    (stopped,) = processes_of(job, "learner")
    os.kill(stopped, signal.SIGSTOP)
    job.wait_for(r"learner has made no update for 3\d s, though there are items to sample")
    os.kill(stopped, signal.SIGCONT)
    job.wait_for(r"learner goes on after \d+ s")
    os.kill(job.process.pid, signal.SIGINT)
    assert job.wait() == 130, job.text
    assert job.summary()["restarts"] == 0


def test_killed_learner_goes_on_from_its_checkpoint_with_the_replay_that_is_there(start):
    job = start("--checkpoint-every-s", "0.5", "--publish-every", "10")
    checkpoints = job.run / "checkpoints"
    wait_until(lambda: any(checkpoints.glob("step_[1-9]*")) or job.process.poll() is not None)
    steps = [int(path.name[5:]) for path in checkpoints.glob("step_*")]
    (killed,) = processes_of(job, "learner")
    os.kill(killed, signal.SIGKILL)
    from_step = int(job.wait_for(r"learner: goes on from \S+/step_(\d+)")[1])
    assert "learner ended (-9): starting it again" in job.text
    assert max(steps) <= from_step
    with rs.Client(address_of(job)) as client:
        assert client.info("apex")["size"] >= 200
    while wait_for_updates(job) <= from_step:
        pass
    os.kill(job.process.pid, signal.SIGINT)
    assert job.wait() == 130, job.text
    assert job.summary()["restarts"] == 1
    rows = [json.loads(line) for line in (job.run / "metrics.jsonl").read_text().splitlines()]
    versions = [row["version"] for row in rows if row["kind"] == "learner"]
    assert versions == sorted(versions)  # weights that actors hold are never newer than the published ones
    replay = [row["size"] for row in rows if row["kind"] == "progress"]
    assert replay == sorted(replay)
    assert all(row["updates_per_s"] >= 0 for row in rows if row["kind"] == "progress")


def test_learner_that_always_dies_ends_the_job_with_its_reason(start):
    """As many starts as an actor has; what repeats itself for sure is not tried again (the next test)."""
    job = start(constants={"replay_server.jobs.supervisor.RESTARTS_PER_MINUTE": 1})
    killed: set[int] = set()
    deadline = time.monotonic() + LONGEST_S
    while job.process.poll() is None and time.monotonic() < deadline:
        for pid in set(processes_of(job, "learner")) - killed:
            os.kill(pid, signal.SIGKILL)
            killed.add(pid)
        time.sleep(0.05)
    assert job.wait() == 1, job.text
    assert "learner died 2 times within a minute, the last time it was killed by signal 9" in job.text
    assert job.summary()["restarts"] == 1


def test_deaths_within_a_minute_are_counted_and_five_are_allowed(monkeypatch):
    now = 100.0
    monkeypatch.setattr("replay_server.jobs.supervisor.time", SimpleNamespace(monotonic=lambda: now))
    deaths = Deaths()
    assert [deaths.count() for _ in range(5)] == [None] * 5
    now += 59.0
    assert deaths.count() == 6
    now += 2.0  # the first five are more than a minute ago
    assert [deaths.count() for _ in range(5)] == [None] * 4 + [6]


def test_run_that_diverges_ends_with_its_reason_and_a_finite_checkpoint(start):
    job = start("--learning-rate", "1e38", "--checkpoint-every-s", "0")
    assert job.wait() == 1, job.text
    assert re.search(r"learner has diverged; its log is .*Diverged: .*not finite", job.text)
    assert job.summary()["restarts"] == 0
    assert job.summary()["ended_by"] == "diverged"
    assert "go on with: " not in job.text
    assert re.search(r"would diverge again.*--resume --logdir \S+ --learning-rate 2.5e\+37", job.text)
    for path in (job.run / "checkpoints").glob("step_*/*.safetensors"):
        assert all(bool(tensor.isfinite().all()) for tensor in load_file(path).values())


def test_a_port_that_another_process_has_is_told_by_the_exit_status(start):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        job = start("--port", str(taken.getsockname()[1]))
        assert job.wait() == 3, job.text
    assert re.search(r"the run failed: .*cannot listen on", job.text)


def test_device_that_is_not_there_is_told_before_anything_is_started(start):
    job = start("--device", "cuda:99", "--precision", "auto")
    assert job.wait() == 2
    assert re.search(r"measuring this machine failed with exit code 1: .*cuda:99", job.text)
    assert not job.run.exists()


def test_parts_outlive_the_process_that_they_were_forked_from_and_start_again_from_another(start):
    job = start()
    wait_for_updates(job, 1)
    parts = job.children()
    parents = {int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1]) for pid in parts}
    (forked_from,) = parents - {job.process.pid}
    (killed,) = processes_of(job, "actor-0")
    os.kill(forked_from, signal.SIGKILL)
    wait_for_updates(job)
    assert all(alive(pid) for pid in parts)
    os.kill(killed, signal.SIGKILL)
    job.wait_for(r"actor 0 ended \(255\): starting it again")
    wait_until(lambda: len(processes_of(job, "actor-0")) == 1)
    os.kill(job.process.pid, signal.SIGINT)
    assert job.wait() == 130, job.text
    assert job.summary()["restarts"] == 1
    assert gone(parts)
