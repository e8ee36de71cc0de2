"""The command line of a job: options made from the settings, profiles, and what is refused."""

from __future__ import annotations

import argparse
import io
import os
import sys
import tempfile

import pytest

pytest.importorskip("torch")

from replay_server import cli
from replay_server.jobs import apex
from replay_server.jobs.apex import main_apex
from replay_server.jobs.arguments import add_settings, check_host, check_settings, given_settings, resolve_settings
from replay_server.jobs.gpu import finds_gpu
from replay_server.jobs.parts import main_actor, main_learner
from replay_server.jobs.progress import Rate, Snapshot, plain_line
from replay_server.rl.settings import ApexSettings
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
        ("ALE/Breakout-v5", 64, False, True, "paper"),
        ("ALE/Breakout-v5", 2, False, False, "paper"),
        ("LunarLander-v3", 64, True, True, "cartpole"),
        ("ALE/Breakout-v5", 8, True, True, "atari-gpu"),
        ("ALE/Breakout-v5", 64, True, True, "atari-gpu"),
        ("ALE/Breakout-v5", 7, True, True, "atari-small"),
        ("ALE/Breakout-v5", 64, True, False, "paper"),
        ("Pendulum-v1", 64, True, True, "sac"),
    ],
)
def test_profile_follows_environment_and_machine(env, cores, gpu, one_machine, profile):
    settings, _ = resolve_settings({"env": env}, one_machine=one_machine, cores=cores, gpu=gpu)
    assert (settings.profile, settings.algo) == (profile, "sac" if profile == "sac" else "dqn")


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
    ("changes", "words"),
    [
        ({"actors": 0}, "--actors: expected at least 1, got 0"),
        ({"minutes": -1.0}, "--minutes: expected more than 0"),
        ({"capacity": 10, "min_size_to_sample": 20}, "learning could never begin"),
        ({"target_mix": 0.0}, "--target-mix"),
        ({"average_updates": -1}, "--average-updates: expected 0 or more"),
        ({"initial_temperature": 0.0}, "--initial-temperature: expected more than 0"),
    ],
)
def test_settings_that_cannot_be_are_refused_by_option(changes, words):
    with pytest.raises(ValueError, match=words):
        check_settings(ApexSettings(**changes))


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


def test_a_run_directory_is_never_written_over(tmp_path, capsys):
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(SystemExit) as ending:
        main_apex(["--env", "CartPole-v1", "--logdir", str(tmp_path)])
    assert ending.value.code == 2
    assert "already holds a run: add --resume" in capsys.readouterr().err


def test_plain_line_shows_what_matters_before_and_after_learning_began():
    snapshot = Snapshot(elapsed_s=61.0, capacity=1000, waiting="50 items, sampling needs 100")
    assert "1:01" in plain_line(snapshot)
    assert "learner waits: 50 items" in plain_line(snapshot)
    snapshot.learner = {"loss": 0.5, "mean_q": 10.0, "td_error": 0.1, "version": 300.0}
    snapshot.evaluation = {"score_mean": 480.0}
    assert "loss 0.5 Q 10 TD 0.1" in plain_line(snapshot)
    assert "evaluation 480.0" in plain_line(snapshot)


@pytest.mark.parametrize(("every_s", "lines"), [(3600.0, "1\n3\n"), (0.0, "1\n2\n3\n")])
def test_plain_lines_end_with_how_things_were_last_and_say_it_once(every_s, lines):
    shown = io.StringIO()
    with PlainView(str, every_s, shown) as view:
        for state in (1, 2, 3):
            view.show(state)
    assert shown.getvalue() == lines


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
