"""The command line of a job: options made from the settings, profiles, and what is refused."""

from __future__ import annotations

import argparse
import dataclasses
import errno
import io
import json
import math
import os
import sys
import tempfile
from typing import Any

import pytest

pytest.importorskip("torch")

import gymnasium
import numpy as np

from replay_server import cli
from replay_server.jobs import apex, arguments
from replay_server.jobs.apex import main_apex
from replay_server.jobs.arguments import (
    add_settings,
    check_host,
    check_settings,
    given_settings,
    resolve_settings,
    resumed_settings,
)
from replay_server.jobs.gpu import finds_gpu
from replay_server.jobs.parts import main_actor, main_evaluator, main_learner
from replay_server.jobs.plan import Plan
from replay_server.jobs.progress import Rate, Snapshot, plain_line
from replay_server.rl.profiles import apply_profile
from replay_server.rl.run_directory import RunDirectory
from replay_server.rl.settings import PROFILES, ApexSettings
from replay_server.terminal import PlainView

NOTHING_TO_MEASURE = ["--actors", "1", "--precision", "float32", "--learner-threads", "1", "--targets-ahead", "off"]


def parse(*words: str) -> dict:
    parser = argparse.ArgumentParser()
    add_settings(parser)
    return given_settings(parser.parse_args(words))


def test_only_options_that_were_given_count_as_given():
    assert parse() == {}
    assert parse("--actors", "3", "--minutes", "0.5", "--no-prioritized", "--reward-clip", "none") == {
        "actors": 3,
        "minutes": 0.5,
        "prioritized": False,
        "reward_clip": None,
    }


def test_every_option_is_explained_in_the_help(capsys):
    with pytest.raises(SystemExit):
        parse("--help")
    text = " ".join(capsys.readouterr().out.split())
    assert "--importance-sampling-exponent" in text
    assert "a lost life counts as terminated" in text.lower()
    assert "(default: 6.25e-05)" in text


def test_given_options_win_over_the_profile():
    settings, why = resolve_settings(parse("--env", "CartPole-v1", "--batch-size", "64"), one_machine=True)
    assert (settings.profile, settings.batch_size, settings.optimizer) == ("cartpole", 64, "adam")
    assert "cartpole" in why


@pytest.mark.parametrize(
    ("env", "cores", "gpu", "one_machine", "profile"),
    [
        ("ALE/Breakout-v5", 2, False, True, "atari-small"),
        ("ALE/Breakout-v5", 64, False, True, "atari-small"),
        ("ALE/Breakout-v5", 64, False, False, "atari-small"),
        ("LunarLander-v3", 64, True, True, "cartpole"),
        ("ALE/Breakout-v5", 8, True, True, "atari-gpu"),
        ("ALE/Breakout-v5", 64, True, True, "atari-gpu"),
        ("ALE/Breakout-v5", 7, True, True, "atari-small"),
        ("ALE/Breakout-v5", 2, True, False, "atari-gpu"),
        ("Pendulum-v1", 64, True, True, "sac"),
    ],
)
def test_profile_follows_environment_and_machine(env, cores, gpu, one_machine, profile):
    settings, _ = resolve_settings({"env": env}, one_machine=one_machine, cores=cores, gpu=gpu)
    assert (settings.profile, settings.algo) == (profile, "sac" if profile == "sac" else "dqn")


@pytest.mark.parametrize(("cores", "profile"), [(7, "atari-small"), (8, "atari-gpu")])
def test_profile_follows_the_cores_that_a_container_has(cores, profile, monkeypatch):
    monkeypatch.setattr(arguments, "usable_cores", lambda: cores)
    assert resolve_settings({"env": "ALE/Pong-v5"}, one_machine=True, gpu=True)[0].profile == profile


class Images(gymnasium.Env):
    """Observations of 84×84 pixels, beside a number."""

    observation_space = gymnasium.spaces.Dict(
        {"image": gymnasium.spaces.Box(0, 255, (3, 84, 84), np.uint8), "speed": gymnasium.spaces.Box(-1, 1, (1,))}
    )
    action_space = gymnasium.spaces.Discrete(2)


@pytest.mark.parametrize("profile", [{}, {"profile": "cartpole"}])
def test_threads_are_measured_for_images_of_any_environment(profile, monkeypatch):
    """Profile cartpole has one thread, which is enough for vectors."""
    monkeypatch.setitem(gymnasium.registry, "Images-v0", gymnasium.envs.registration.EnvSpec("Images-v0", Images))
    settings, _ = resolve_settings({"env": "Images-v0", **profile}, one_machine=True)
    assert (settings.profile, settings.learner_threads) == ("cartpole", "auto")
    settings, _ = resolve_settings({"env": "Images-v0", "learner_threads": 2, **profile}, one_machine=True)
    assert settings.learner_threads == 2
    assert resolve_settings({"env": "CartPole-v1", **profile}, one_machine=True)[0].learner_threads == 1


def test_a_gpu_is_one_that_was_asked_for_or_that_torch_finds(tmp_path, monkeypatch):
    assert resolve_settings({"env": "ALE/Pong-v5", "device": "cuda"}, True, cores=8)[0].profile == "atari-gpu"
    assert resolve_settings({"env": "ALE/Pong-v5", "device": "cpu"}, True, cores=8)[0].profile == "atari-small"
    monkeypatch.setattr(sys, "executable", "/nowhere")
    assert not finds_gpu("auto", drivers=(str(tmp_path / "none"),))  # without a driver nothing is started
    (tmp_path / "driver").touch()
    for status, found in (("0", True), ("1", False)):
        python = tmp_path / f"python-{status}"
        python.write_text(f"#!/bin/sh\nexit {status}\n")
        python.chmod(0o755)
        monkeypatch.setattr(sys, "executable", str(python))
        assert finds_gpu("auto", drivers=(str(tmp_path / "driver"),)) == found


def test_a_profile_that_was_asked_for_stays():
    assert resolve_settings({"env": "ALE/Pong-v5", "profile": "paper"}, one_machine=True, cores=2)[0].batch_size == 512
    with pytest.raises(ValueError, match="unknown profile 'papre'"):
        resolve_settings({"profile": "papre"}, one_machine=True)


@pytest.mark.parametrize(
    "given",
    [
        {"env": "CartPole-v1", "loss": "hl-gauss"},
        {"env": "ALE/Pong-v5", "profile": "atari-small", "reward_clip": None},
    ],
)
def test_hl_gauss_with_whole_rewards_needs_to_be_told_how_large_values_get(given, tmp_path):
    """Values beyond its limit would all be told as the limit."""
    with pytest.raises(ValueError, match=r"give --value-limit, the largest .* \(it would be 10\)"):
        resolve_settings(given, one_machine=True)
    assert resolve_settings({**given, "value_limit": 500.0}, one_machine=True)[0].value_limit == 500.0
    assert resolve_settings({**given, "reward_clip": 1.0}, one_machine=True)[0].loss == "hl-gauss"
    before = dataclasses.replace(ApexSettings(**{**given, "loss": "hl-gauss"}), reward_clip=1.0)
    RunDirectory(tmp_path).create(before)
    resume = {"resume": True, "logdir": str(tmp_path)}
    assert resumed_settings(resume).reward_clip == 1.0
    with pytest.raises(ValueError, match="give --value-limit"):
        resumed_settings({**resume, "reward_clip": None})


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"actors": 0}, "--actors: expected at least 1, got 0"),
        ({"minutes": -1.0}, "--minutes: expected more than 0"),
        ({"capacity": 10, "min_size_to_sample": 20}, "learning could never begin"),
        ({"target_mix": 0.0}, "--target-mix"),
        ({"average_updates": -1}, "--average-updates: expected at least 0"),
        ({"samples_per_insert_end": 0.0}, "--samples-per-insert-end: expected more than 0"),
        (
            {"samples_per_insert": None, "samples_per_insert_end": 2.0, "samples_per_insert_end_updates": 10},
            "give --samples-per-insert, too",
        ),
        ({"samples_per_insert_end": 2.0}, "--samples-per-insert-end-updates: one has no effect without the other"),
        ({"samples_per_insert_end_updates": 10}, "--samples-per-insert-end and .*one has no effect without the other"),
        ({"value_bins": 1}, "--value-bins: expected at least 2, got 1"),
        ({"value_limit": 0.0}, "--value-limit: expected more than 0"),
        ({"algo": "sac", "loss": "hl-gauss"}, "--loss hl-gauss: SAC learns values, not their bins"),
        ({"initial_temperature": 0.0}, "--initial-temperature: expected more than 0"),
        ({"samples_per_insert": 0.0}, r"--samples-per-insert: expected more than 0, got 0\.0; none = not limited"),
        ({"samples_per_insert_end_updates": -1}, "--samples-per-insert-end-updates: expected at least 0"),
        ({"reward_clip": 0.0}, r"--reward-clip: expected more than 0, got 0\.0; none = rewards as they are"),
        ({"reward_clip": -1.0}, "--reward-clip: expected more than 0"),
        ({"gradient_norm": 0.0}, r"--gradient-norm: expected more than 0, got 0\.0; 1e6 = as good as never scaled"),
        ({"gradient_norm": -1.0}, "--gradient-norm: expected more than 0"),
        ({"gradient_norm": math.inf}, "--gradient-norm: expected a finite number, got inf; 1e6 = "),
        ({"learning_rate": 0.0}, "--learning-rate: expected more than 0"),
        ({"optimizer_epsilon": 0.0}, "--optimizer-epsilon: expected more than 0"),
        ({"rmsprop_decay": 1.0}, "--rmsprop-decay: expected 0 or more, and less than 1"),
        ({"epsilon_base": 1.5}, "--epsilon-base: expected 0 to 1, got 1.5"),
        ({"epsilon_exponent": -1.0}, "--epsilon-exponent: expected at least 0"),
        ({"eval_epsilon": -0.1}, "--eval-epsilon: expected 0 to 1"),
        ({"sticky_actions": 2.0}, "--sticky-actions: expected 0 to 1"),
        ({"discount": 1.01}, "--discount: expected 0 to 1"),
        ({"hidden": 0}, "--hidden: expected at least 1"),
        ({"checkpoint_every_s": -1.0}, "--checkpoint-every-s: expected at least 0, got -1.0; 1e9 = only at the end"),
        ({"minutes": math.nan}, "--minutes: expected a finite number, got nan; none = no limit"),
        ({"target_score": math.nan}, "--target-score: expected a finite number, got nan"),
        ({"importance_sampling_exponent": -0.4}, "--importance-sampling-exponent: expected at least 0"),
        ({"priority_exponent": -0.6}, "--priority-exponent: expected at least 0"),
        ({"pull_every_frames": 0}, "--pull-every-frames: expected at least 1"),
        ({"max_frames_per_episode": 0}, "--max-frames-per-episode: expected at least 1"),
        ({"seed": -1}, "--seed: expected at least 0"),
        ({"learner_threads": 0}, "--learner-threads: expected auto, or at least 1"),
        ({"learning_rate_end": 1e-5}, "one has no effect without the other"),
        ({"learning_rate_decay_updates": 100}, "one has no effect without the other"),
        ({"learning_rate_end": -1e-5, "learning_rate_decay_updates": 10}, "--learning-rate-end: expected at least 0"),
    ],
)
def test_settings_that_cannot_be_are_refused_by_option(changes, words):
    with pytest.raises(ValueError, match=words):
        check_settings(ApexSettings(**changes))


@pytest.mark.parametrize("profile", PROFILES)
def test_settings_of_every_profile_and_those_at_the_edge_of_what_can_be_are_taken(profile):
    settings = apply_profile(ApexSettings(profile=profile), set(), PROFILES)
    check_settings(settings)
    edges: dict[str, Any] = {
        "reward_clip": None, "samples_per_insert": None, "minutes": None, "epsilon_base": 1.0, "eval_epsilon": 1.0,
        "sticky_actions": 1.0, "discount": 0.0, "hidden": 1, "checkpoint_every_s": 0.0, "noop_max": 0, "seed": 0,
        "importance_sampling_exponent": 0.0, "priority_exponent": 0.0, "priority_epsilon": 0.0, "rmsprop_decay": 0.0,
        "learning_rate_end": 0.0, "learning_rate_decay_updates": 1, "target_score": -21.0, "final_episodes": 0,
    }  # fmt: skip
    check_settings(dataclasses.replace(settings, **edges))


@pytest.mark.parametrize(
    ("main", "words"),
    [
        (main_apex, ["--actors", "many"]),
        (main_apex, ["--env", "CartPole-v1", "--batch-size", "0"]),
        (main_apex, ["--env", "Nothing-v0"]),
        (main_apex, ["--env", "Pendulum-v1", "--algo", "dqn"]),
        (main_apex, ["--env", "Pendulum-v1", "--network", "torch.nn:Linear"]),
        (main_apex, ["--env", "CartPole-v1", "--algo", "sac"]),
        (main_apex, ["--env", "ALE/Pong-v5", "--algo", "sac"]),
        (main_learner, ["--server", "redis://127.0.0.1:1", "--env", "Pendulum-v1", "--algo", "dqn"]),
        (main_apex, ["--env", "CartPole-v1", "--samples-per-insert", "0"]),
        (main_apex, ["--env", "CartPole-v1", "--port", "65536"]),
        (main_learner, ["--server", "redis://127.0.0.1:1", "--env", "Nothing-v0"]),
        (main_apex, ["--resume"]),
        (main_actor, ["--server", "redis://127.0.0.1:1", "--actor-id", "-1"]),
        (main_actor, ["--env", "CartPole-v1", "--actor-id", "0"]),
        (main_learner, ["--server", "redis://127.0.0.1:1", "--resume"]),
    ],
)
def test_wrong_usage_ends_with_2(main, words, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ending:
        main(words)
    assert ending.value.code == 2
    assert capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("main", [main_apex, main_learner, main_evaluator])
@pytest.mark.parametrize("profile", ["atari-gpu", "papre"])
def test_another_profile_is_refused_for_a_run_that_is_resumed(main, profile, tmp_path, capsys):
    """It would change the label alone."""
    RunDirectory(tmp_path).create(ApexSettings(profile="atari-small"))
    server = [] if main is main_apex else ["--server", "redis://127.0.0.1:1"]
    with pytest.raises(SystemExit) as ending:
        main([*server, "--resume", "--logdir", str(tmp_path), "--profile", profile])
    assert ending.value.code == 2
    assert f"--profile {profile}: a resumed run keeps its own settings" in capsys.readouterr().err
    assert RunDirectory(tmp_path).settings(ApexSettings, {}).profile == "atari-small"
    resume = {"resume": True, "logdir": str(tmp_path), "profile": "atari-small"}
    assert resumed_settings(resume).profile == "atari-small"


@pytest.mark.parametrize("main", [main_apex, main_actor, main_learner])
def test_an_option_that_there_is_not_is_told_in_two_lines(main, capsys):
    """All that there are fill a page, above which nobody looks for the mistake."""
    with pytest.raises(SystemExit):
        main(["--envv", "CartPole-v1"])
    assert capsys.readouterr().err.count("\n") == 2


@pytest.mark.parametrize("host", ["0.0.0.0", "10.1.2.3", "::", "example.org"])
def test_an_address_that_others_reach_is_refused_without_a_password(host, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("REPLAY_SERVER_PASSWORD", raising=False)
    with pytest.raises(SystemExit) as ending:
        main_apex(["--env", "CartPole-v1", "--host", host])
    assert ending.value.code == 2
    told = capsys.readouterr().err
    assert f"--host {host}: other machines could connect without a password. Set one in the variable REPLAY_SE" in told
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "::1", "localhost"])
def test_loopback_needs_no_password(host, monkeypatch):
    monkeypatch.delenv("REPLAY_SERVER_PASSWORD", raising=False)
    check_host(ApexSettings(host=host))


def test_a_missing_library_is_named_with_the_extra_that_has_it(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "gymnasium", None)
    assert cli.main(["apex", "--env", "CartPole-v1"]) == 1
    assert "apex needs gymnasium: pip install 'replay-server[rl]'" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("url", "written"),
    [
        ("redis://:secret@host:7000", "redis://host:7000"),
        ("rediss://me:secret@host:7000?insecure=1", "rediss://me@host:7000?insecure=1"),
        ("unix:///run/s.sock?password=secret", "unix:///run/s.sock"),
        ("redis+cluster://:secret@a:1,b:2", "redis+cluster://a:1,b:2"),
    ],
)
def test_a_password_is_in_no_file_of_a_run(tmp_path, url, written):
    directory = RunDirectory(tmp_path)
    directory.create(ApexSettings(wandb=url))
    directory.write_job("apex", url)
    assert json.loads(directory.job.read_text())["server"] == written
    assert json.loads(directory.config.read_text())["wandb"] == written


def test_a_run_directory_is_never_written_over(tmp_path, capsys):
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(SystemExit) as ending:
        main_apex(["--env", "CartPole-v1", "--logdir", str(tmp_path)])
    assert ending.value.code == 2
    assert "already holds a run: add --resume" in capsys.readouterr().err


def test_a_resumed_run_has_as_many_actors_as_its_machine_wants_unless_their_number_was_given(tmp_path, monkeypatch):
    wanted = 1

    def make_plan(settings, actors_given):
        return Plan({}, settings.actors if actors_given else wanted)

    class Job:
        def __init__(self, settings, run_directory, plan):
            config = json.loads(run_directory.config.read_text())
            assert settings.actors == plan.actors == config["actors"] == config["measured"]["actors"]
            numbers.append(settings.actors)

        def run(self):
            return 0

    numbers: list[int] = []
    monkeypatch.setattr(apex, "warm_up", lambda: None)
    monkeypatch.setattr(apex, "make_plan", make_plan)
    monkeypatch.setattr(apex, "ApexJob", Job)
    run = ["--env", "CartPole-v1", "--logdir", str(tmp_path)]
    assert main_apex(run) == 0
    wanted = 4
    assert main_apex([*run, "--resume"]) == 0
    assert main_apex([*run, "--resume", "--actors", "2"]) == 0
    assert main_apex([*run, "--resume"]) == 0
    assert numbers == [1, 4, 2, 2]
    config = json.loads((tmp_path / "config.json").read_text())
    del config["measured"]["actors_given"]  # as versions before wrote it: nobody knows
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert main_apex([*run, "--resume"]) == 0
    assert numbers[-1] == 2


@pytest.mark.parametrize(("main", "words"), [(main_apex, []), (main_learner, ["--server", "redis://127.0.0.1:1"])])
def test_a_run_does_not_go_on_with_another_environment(main, words, tmp_path, capsys):
    """Its checkpoints are of networks for the one that it began with."""
    RunDirectory(tmp_path).create(ApexSettings(env="CartPole-v1"))
    before = (tmp_path / "config.json").read_bytes()
    with pytest.raises(SystemExit) as ending:
        main([*words, "--resume", "--logdir", str(tmp_path), "--env", "Acrobot-v1"])
    assert ending.value.code == 2
    assert "holds a run of CartPole-v1, which cannot go on with --env Acrobot-v1" in capsys.readouterr().err
    assert (tmp_path / "config.json").read_bytes() == before


def test_plain_line_shows_what_matters_before_and_after_learning_began():
    snapshot = Snapshot(elapsed_s=61.0, capacity=1000, waiting="50 items, sampling needs 100")
    assert "1:01" in plain_line(snapshot)
    assert "learner waits: 50 items" in plain_line(snapshot)
    snapshot.learner = {"loss": 0.5, "mean_q": 10.0, "td_error": 0.1, "version": 300.0}
    snapshot.evaluation = {"score_mean": 480.0}
    assert "loss 0.5 Q 10 TD 0.1" in plain_line(snapshot)
    assert "evaluation 480.0" in plain_line(snapshot)
    assert "learner waits: 50 items" in plain_line(snapshot)  # it makes no update
    snapshot.updates_per_s = 3.0
    assert "learner waits" not in plain_line(snapshot)


@pytest.mark.parametrize(("every_s", "lines"), [(3600.0, "1\n3\n"), (0.0, "1\n2\n3\n")])
def test_plain_lines_end_with_how_things_were_last_and_say_it_once(every_s, lines):
    shown = io.StringIO()
    with PlainView(str, every_s, shown) as view:
        for state in (1, 2, 3):
            view.show(state)
    assert shown.getvalue() == lines


def test_a_line_that_a_full_disk_does_not_take_ends_nothing():
    class Full(io.StringIO):
        def write(self, text: str) -> int:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with PlainView(str, 0.0, Full()) as view:
        view.show(1)
        view.message("lost")


def test_rates_are_of_the_last_seconds_only():
    rate = Rate()
    assert rate.add(0.0, 0) == 0.0
    assert rate.add(5.0, 500) == 100.0
    assert rate.add(100.0, 500) < 10.0


def test_a_run_directory_that_cannot_be_written_is_named_with_its_option(tmp_path, capsys) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SystemExit) as ended:
        main_apex(["--env", "CartPole-v1", "--logdir", str(tmp_path / "file" / "run"), *NOTHING_TO_MEASURE])
    assert ended.value.code == 2
    told = capsys.readouterr().err
    assert f"--logdir: expected a folder that can be written, got {tmp_path / 'file' / 'run'} (Not a directory)" in told


def test_empty_folders_that_killed_jobs_left_for_their_sockets_are_removed(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    left, young, used = (tmp_path / f"replay-server-{name}" for name in ("left", "young", "used"))
    for each in (left, young, used):
        each.mkdir()
    (used / "server.sock").touch()
    for each in (left, used):
        os.utime(each, (1, 1))
    made = apex._socket_folder()
    assert sorted(tmp_path.iterdir()) == sorted([made, young, used])
    assert made.stat().st_mode & 0o777 == 0o700
