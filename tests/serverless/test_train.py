"""`replay-server train` as it is typed: what it refuses, what it leaves behind, how it ends."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("torch")

import gymnasium
import numpy as np

import replay_server as rs
from replay_server.rl.run_directory import RunDirectory
from replay_server.rl.settings import ApexSettings
from replay_server.serverless.invocation_log import read_invocations
from replay_server.serverless.orchestrator import Progress
from replay_server.serverless.record import RoundRecord
from replay_server.serverless.run_log import read_rounds
from replay_server.serverless.settings import TrainSettings
from replay_server.serverless.train import main_train
from replay_server.serverless.train_view import plain_line

SMALL = [
    "--env", "CartPole-v1", "--actors", "2", "--steps", "16", "--environments", "2", "--setting", "hidden=8",
    "--final-episodes", "2", "--concurrency", "1",
]  # fmt: skip


class Forgetful(gymnasium.Env):
    """Cannot give its state."""

    observation_space = gymnasium.spaces.Box(-1, 1, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.observation_space.low, {}


gymnasium.register("Forgetful-v0", Forgetful)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--rounds", "0"], "--rounds: expected at least 1, got 0"),
        (["--scaler", "minions"], "--scaler minions needs --scaler-option policy=DIR"),
        (["--scaler", "adapt"], "--scaler adapt needs --target-score"),
        (["--scaler", "schedule"], "--scaler schedule needs --scaler-option counts=[8,16,...]"),
        (["--scaler", "schedule", "--scaler-option", "counts=[8,99]"], "has 99, more than --actors-max 32"),
        (["--scaler", "nitro", "--scaler-option", "dekay=0.9"], "--scaler-option: nitro does not take that"),
        (["--scaler", "nitro", "--scaler-option", "decay=2"], "expected a decay in (0, 1]"),
        (["--scaler", "nitro", "--scaler-option", 'curvature={"step":9}'], "probe curvature has no 'step'"),
        (["--learners", "async", "--algo", "impala"], "--learners async: expected --algo ppo or impact, got impala"),
        (["--learners", "async", "--learner-option", "learners=0"], "learners: expected at least 1, got 0"),
        (["--learners", "async", "--concurrency", "5"], "--concurrency: expected at least 6 with 4 asynchronous"),
        (["--learner-option", "learners=2"], "--learner-option learners needs --learners async"),
        (["--setting", "hiden=8"], "no setting 'hiden'"),
        (["--setting", "hidden=wide"], "hidden: expected int, got 'wide'"),
        (["--setting", "steps=8"], "use the option --steps"),
        (["--setting", "hidden"], "expected NAME=VALUE, got 'hidden'"),
        (["--profile", "papre"], "unknown profile 'papre'"),
        (["--price-profile", "free"], "no price profile 'free'"),
        (["--quorum", "1.5"], "--quorum: expected more than 0 and at most 1"),
        (["--job", "a*"], "--job: expected up to 100 letters"),
        (["--server", "redis+cluster://"], "--server: expected redis://[:password@]host:port"),
        (["--server", "redis+cluster://h:1", "--function-server", "redis://h:1"], "--function-server: expected the"),
        (["--server", "redis://h:1", "--function-server", "redis+cluster://h:1"], "--function-server: expected the"),
        (["--replay-shards", "0"], "--replay-shards: expected at least 1, got 0"),
        (["--replay-shards", "257"], "--replay-shards: expected at most 256, got 257"),
        (["--replay-shards", "2", "--server", "redis://h:1"], "--replay-shards does not go with --server"),
        (["--env", "Nothing-v0"], "--env Nothing-v0: Environment `Nothing` doesn't exist"),
        (["--env", "nowhere:Nothing-v0"], "is the module's folder in PYTHONPATH?"),
        (["--env", "FrozenLake-v1"], "gymnasium.wrappers.FlattenObservation makes vectors of them"),
        (["--env", "Forgetful-v0"], "cannot give its state"),
        (["--backend", "abacus"], "invalid choice: 'abacus'"),
        (["--resume"], "--resume needs --logdir"),
    ],
)
def test_wrong_usage_ends_with_2_and_leaves_nothing(words, told, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ending:
        main_train(["--env", "CartPole-v1", *words])
    assert ending.value.code == 2
    assert told in " ".join(capsys.readouterr().err.split())
    assert not list(tmp_path.iterdir())


def test_what_is_refused_is_told_in_a_line(tmp_path, monkeypatch, capsys):
    """A page of options above it is what nobody reads."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit):
        main_train(["--env", "FrozenLake-v1"])
    assert capsys.readouterr().err.count("\n") == 1


def test_a_run_of_another_command_is_not_gone_on_with(tmp_path, capsys):
    run = RunDirectory(tmp_path / "run")
    run.create(ApexSettings(env="CartPole-v1"))
    run.write_job("apex", "redis://127.0.0.1:1")
    with pytest.raises(SystemExit) as ending:
        main_train(["--resume", "--logdir", str(run.path)])
    assert ending.value.code == 2
    told = f"--resume: {run.path} holds a run of another command (replay-server apex): use that, or check --logdir"
    assert told in capsys.readouterr().err


def test_a_run_goes_on_with_its_own_scaler(tmp_path, capsys):
    """Another one was given its state, and the job ended in KeyError."""
    run = RunDirectory(tmp_path / "run")
    run.create(TrainSettings(env="CartPole-v1", scaler="hydrozoa", logdir=str(run.path)))
    (run.checkpoints / "step_3").mkdir(parents=True)
    with pytest.raises(SystemExit, match="2"):
        main_train(["--resume", "--logdir", str(run.path), "--scaler", "nitro"])
    assert f"--scaler nitro: the run in {run.path} uses hydrozoa" in capsys.readouterr().err


def test_a_job_leaves_a_complete_run_directory_and_can_be_resumed(tmp_path, capsys, signals):
    run = tmp_path / "run"
    assert main_train([*SMALL, "--rounds", "2", "--logdir", str(run)]) == 0
    told = capsys.readouterr().out
    assert re.search(r"round 2/2 · steps 128 · actors 2/2 · score .* · loss .* KL .* · \$0\.0", told)
    assert "ended (rounds) after 2 rounds, 128 steps" in told
    config = json.loads((run / "config.json").read_text())
    assert (config["env"], config["setting"], config["algo"]) == ("CartPole-v1", {"hidden": "8"}, "ppo")
    summary = json.loads((run / "summary.json").read_text())
    names = "env seed frames updates frames_per_s updates_per_s eval_episodes eval_mean eval_std restarts cost"
    assert set(names.split()) <= summary.keys()
    assert (summary["frames"], summary["updates"], summary["eval_episodes"], summary["restarts"]) == (128, 2, 2, 0)
    assert summary["frames_per_s"] > 0
    assert summary["cost"] > 0
    assert (run / "checkpoints" / "step_2" / "network.safetensors").exists()
    assert list((run / "tensorboard").iterdir())
    kinds = sorted(each.kind for each in read_invocations(run))
    assert kinds == ["actor"] * 4 + ["evaluation"] + ["learner"] * 2

    with pytest.raises(SystemExit):
        main_train([*SMALL, "--logdir", str(run)])
    assert "already holds a run: add --resume" in capsys.readouterr().err

    assert main_train(["--resume", "--rounds", "3", "--plot", "--logdir", str(run)]) == 0
    told = capsys.readouterr().out
    assert "going on after round 2, version 2; actors begin new episodes" in told
    assert {path.name for path in (run / "plots").iterdir()} == {
        "reward.png", "actors.png", "latency.png", "functions.png"
    }  # fmt: skip
    assert str(run / "plots" / "reward.png") in told
    assert [record.total_steps for record in read_rounds(run)] == [64, 128, 192]
    resumed = json.loads((run / "summary.json").read_text())
    assert (resumed["updates"], resumed["frames"]) == (3, 192)
    assert resumed["cost"] > summary["cost"]
    assert len(read_invocations(run)) == 11


@pytest.mark.parametrize("algorithm", ["ppo", "impala"])
def test_a_job_has_shards_of_its_own(algorithm, tmp_path, capsys, signals):
    """impala samples its fragments in order; ppo names them by their ids."""
    run = tmp_path / "run"
    words = [*SMALL, "--algo", algorithm, "--replay-shards", "3", "--logdir", str(run)]
    assert main_train([*words, "--rounds", "3"]) == 0
    assert re.search(r"shards redis\+cluster://127\.0\.0\.1:\d+,127\.0\.0\.1:\d+,127", capsys.readouterr().out)
    summary = json.loads((run / "summary.json").read_text())
    assert (summary["ended_by"], summary["steps"], summary["eval_episodes"]) == ("rounds", 192, 2)
    assert summary["restarts"] == 0
    assert algorithm != "ppo" or [record.arrived for record in read_rounds(run)] == [2, 2, 2]
    assert main_train(["--resume", "--rounds", "4", "--logdir", str(run)]) == 0
    assert json.loads((run / "summary.json").read_text())["steps"] == 256


def test_a_job_that_loses_a_shard_ends_with_5(tmp_path, capsys, signals, monkeypatch):
    monkeypatch.setattr(rs.Cluster, "running", property(lambda _: False))
    words = [*SMALL, "--rounds", "2", "--replay-shards", "2", "--logdir", str(tmp_path / "run")]
    assert main_train(words) == 5
    assert "the process of a shard ended" in capsys.readouterr().out


def test_a_server_that_is_not_there_ends_with_5(tmp_path, capsys, signals):
    assert main_train([*SMALL, "--server", "redis://127.0.0.1:1", "--logdir", str(tmp_path / "run")]) == 5
    assert "replay server lost" in capsys.readouterr().out
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["ended_by"] == "server lost"


def test_a_password_is_not_written_down(tmp_path, capsys, signals):
    url = "redis://:secret@127.0.0.1:1"
    assert main_train([*SMALL, "--server", url, "--logdir", str(tmp_path / "run")]) == 5
    assert json.loads((tmp_path / "run" / "config.json").read_text())["server"] == "redis://127.0.0.1:1"


def test_a_job_that_nohup_started_goes_on_ignoring_the_end_of_its_terminal(tmp_path, signals):
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does before it starts a command
    assert main_train([*SMALL, "--server", "redis://127.0.0.1:1", "--logdir", str(tmp_path / "run")]) == 5
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    assert signal.getsignal(signal.SIGTERM) not in (signal.SIG_IGN, signal.SIG_DFL)


def test_interrupt_ends_functions_saves_a_checkpoint_and_clears_a_shared_server(tmp_path):
    run, output = tmp_path / "run", tmp_path / "output"
    with rs.Server() as server, rs.Client(server.url) as client:
        with open(output, "wb") as file:
            process = subprocess.Popen(
                [sys.executable, "-m", "replay_server", "train", *SMALL, "--rounds", "1000000", "--server", server.url,
                 "--logdir", str(run), "--job", "interrupted"],
                stdout=file, stderr=file, cwd=tmp_path, start_new_session=True,
            )  # fmt: skip
        try:
            give_up = time.monotonic() + 120
            while "round 3/" not in output.read_text():
                assert process.poll() is None, output.read_text()
                assert time.monotonic() < give_up, output.read_text()
                time.sleep(0.05)
            assert "interrupted:fragments" in client.tables()
            children = children_of(process.pid)
            assert children
            os.killpg(process.pid, signal.SIGINT)  # as a terminal does
            assert process.wait(60) == 130, output.read_text()
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
        assert not [pid for pid in children if Path(f"/proc/{pid}").exists()]
        assert client.tables() == []
        assert client.redis.execute_command("WEIGHTS.LIST") == []
        assert not list(client.redis.scan_iter(match="interrupted:*"))
    summary = json.loads((run / "summary.json").read_text())
    assert summary["ended_by"] == "interrupted"
    assert summary["rounds"] >= 3
    assert list((run / "checkpoints").glob("step_*"))
    assert "go on with: replay-server train --resume" in output.read_text()


def children_of(parent: int) -> list[int]:
    """Process ids of a process's children that are alive."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rsplit(")", 1)[1].split()
            except OSError:
                continue
            if int(fields[1]) == parent and fields[0] != "Z":
                found.append(int(entry.name))
    return found


def test_a_line_tells_what_matters():
    assert plain_line(Progress(rounds=5)) == "round 0/5 · steps 0 · $0.000000"
    record = RoundRecord(
        round=1, version=1, actors=4, arrived=3, environments=1, steps=24, total_steps=24, scores=(1.0, 2.0),
        statistics={"loss": 0.5, "kl": 0.01}, round_s=2.0, learner_s=1.5, actor_s_mean=0.4, actor_s_max=0.5,
    )  # fmt: skip
    progress = Progress(1, 5, 1, 24, 2.0, 0.25, 2, record, {"score_mean": 3.0})
    assert plain_line(progress) == (
        "round 1/5 · steps 24 · actors 3/4 · score 1.5 (2 games) · loss 0.5 KL 0.01 · 2.00 s (learner 1.50) · "
        "$0.250000 · evaluation 3.0 · lost 2"
    )
