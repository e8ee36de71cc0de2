"""`replay-server bench learning --against …`: Ape-X and others' agents on the same game. No scores are asked for."""

from __future__ import annotations

import errno
import json
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import gymnasium
import torch

from replay_server.bench import result
from replay_server.bench.environments import ENVIRONMENTS, PROGRAMS, is_ready
from replay_server.bench.main import main
from replay_server.bench.plot import plot_side_by_side
from replay_server.bench.process import Program
from replay_server.bench.programs.games import Checkpoints, GymnasiumGames, TimeIsUp, play
from replay_server.bench.side_by_side import PEERS, SIDES, Side, markdown
from replay_server.rl.folder_lock import alone_in


class Clock:
    """Time that passes when it is told to."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


def test_checkpoints_are_written_when_due_and_saving_is_not_counted(tmp_path: Path) -> None:
    clock = Clock()

    def save(file: Path) -> None:
        file.write_text("network")
        clock.now += 100.0

    options = {"clock": clock, "left": lambda: clock.now > 2_000.0}
    checkpoints = Checkpoints(str(tmp_path / "run"), seconds=60, every_s=25, save=save, **options)
    clock.now += 500.0  # before the first step: of setting up

    weight = torch.nn.Parameter(torch.zeros(1))
    optimizers = torch.optim.Adam([weight]), torch.optim.SGD([weight])

    def train() -> None:
        for second in range(1_000):
            for optimizer in optimizers:
                optimizer.step()
            checkpoints.step(10 * second)
            clock.now += 1.0

    with pytest.raises(TimeIsUp):
        train()
    assert [each["minutes"] * 60 for each in checkpoints.written] == pytest.approx([25, 50, 60], abs=0.01)
    assert [each["frames"] for each in checkpoints.written] == [4 * 250, 4 * 500, 4 * 600]
    assert [each["updates"] for each in checkpoints.written] == [2 * 26, 2 * 51, 2 * 61]
    assert all(Path(each["file"]).read_text() == "network" for each in checkpoints.written)
    clock.now = 3_000.0
    with pytest.raises(SystemExit, match="nobody waits"):
        checkpoints.step(0)


def test_a_result_replaces_a_file_and_no_device_or_link(tmp_path: Path) -> None:
    """As root, --json /dev/null had put a file in the device's place."""
    os.mkfifo(pipe := tmp_path / "pipe")
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    result.write(pipe, {"rounds": 1})
    assert json.loads(os.read(reader, 100)) == {"rounds": 1}
    os.close(reader)
    assert pipe.is_fifo()
    (link := tmp_path / "link.json").symlink_to("result.json")
    for rounds in (1, 2):
        result.write(link, {"rounds": rounds})
        assert json.loads((tmp_path / "result.json").read_text()) == {"rounds": rounds}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link.json", "pipe", "result.json"]
    assert link.is_symlink()


class FixedGames:
    """Game n is over after n + 1 steps, with its number and the sum of its actions as its score."""

    def __init__(self, width: int) -> None:
        self.width = width
        self.left = np.arange(1, width + 1)
        self.sums = np.zeros(width)

    def reset(self) -> np.ndarray:
        return np.zeros((self.width, 1), np.float32)

    def step(self, actions: np.ndarray) -> tuple[np.ndarray, list[tuple[int, float]]]:
        self.left -= 1
        self.sums += actions
        over = [(int(n), float(1_000 * n + self.sums[n])) for n in np.flatnonzero(self.left == 0)]
        for number, _ in over:
            self.left[number], self.sums[number] = number + 1, 0.0
        return np.zeros((self.width, 1), np.float32), over


def test_each_game_side_by_side_is_played_as_often_as_fixed_beforehand() -> None:
    def values(observations: np.ndarray) -> np.ndarray:
        return np.tile([0.0, 0.0, 1.0], (len(observations), 1))

    scores = play(FixedGames(3), 3, values, count=7, epsilon=0.0, seed=1)
    # Greedy: action 2 at each step. The first of them is over soonest, and plays one game more, not all.
    assert sorted(scores) == [2.0, 2.0, 2.0, 1_004.0, 1_004.0, 2_006.0, 2_006.0]
    random = play(FixedGames(1), 1, values, count=200, epsilon=1.0, seed=1)
    assert set(random) == {0.0, 1.0, 2.0}


def test_games_of_gymnasium_tell_the_score_of_each_game_that_is_over() -> None:
    made = [gymnasium.wrappers.RecordEpisodeStatistics(gymnasium.make("CartPole-v1")) for _ in range(2)]

    def values(observations: np.ndarray) -> np.ndarray:
        return np.tile([1.0, 0.0], (len(observations), 1))  # always to the left: over after some ten steps

    scores = play(GymnasiumGames(made, seed=1), 2, values, count=4, epsilon=0.0, seed=1)
    assert len(scores) == 4
    assert all(5 < score < 20 for score in scores)


def test_every_side_has_a_program_and_a_known_environment() -> None:
    for side in SIDES.values():
        assert (PROGRAMS / f"peer_{side.program}.py").is_file()
        assert side.environment is None or side.environment in ENVIRONMENTS


OURS = [
    "learning", "--algorithm", "apex", "--env", "CartPole-v1", "--seeds", "3", "--minutes", "0.3", "--episodes", "2",
    "--set", "actors=1", "min_size_to_sample=200", "hidden=16", "eval_episodes=2", "precision=float32",
    "targets_ahead=off",
]  # fmt: skip


def test_a_job_is_trained_and_its_checkpoints_are_played_and_a_run_that_is_there_is_not_done_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, plot, folder = tmp_path / "found.json", tmp_path / "found.png", str(tmp_path / "runs")
    words = [*OURS, "--every", "0.1", "--target", "1", "--folder", folder]
    assert main([*words, "--json", str(file), "--plot", str(plot)]) == 0
    content = json.loads(file.read_text())
    (run,) = content["runs"].values()
    assert run["used"]["env"] == "CartPole-v1"
    assert run["used"]["actors"] == 1
    assert run["checkpoints"]
    for checkpoint in run["checkpoints"]:
        assert len(checkpoint["scores"]) == 2
        assert checkpoint["mean"] == pytest.approx(np.mean(checkpoint["scores"]))
    assert run["checkpoints"][-1]["frames"] > 0
    assert run["checkpoints"][-1]["updates"] > 0
    assert run["place"]["cores"] == len(os.sched_getaffinity(0))
    assert run["place"]["cpu_s"] > 0
    # A game of CartPole has a score of 8 or more whatever is done: the first checkpoint has reached the target.
    assert content["median"]["replay.minutes_to_target"] == run["checkpoints"][0]["minutes"]
    assert plot.read_bytes().startswith(b"\x89PNG")
    assert "| replay | 3 |" in capsys.readouterr().out

    assert main([*words, "--json", str(file)]) == 0
    assert "run.json is there" in capsys.readouterr().out
    assert json.loads(file.read_text())["runs"] == content["runs"]

    # As where its games were interrupted: they alone are played again.
    kept = tmp_path / "runs" / "replay-seed3" / "run.json"
    for checkpoint in run["checkpoints"]:
        del checkpoint["scores"]
    kept.write_text(json.dumps(run))
    assert main(words) == 0
    assert ": trains for" not in capsys.readouterr().out
    assert json.loads(kept.read_text()) == json.loads(file.read_text())["runs"]["replay.seed=3"]
    assert main([*OURS, "--every", "0.2", "--folder", folder]) == 1
    assert "is of a run with other settings: give another --folder" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--against cleanrl-dqm", "--against: expected stable_baselines3"),
        ("--against cleanrl-dqn,sb3-dqm", "--against: expected some of cleanrl-dqn"),
        ("--against cleanrl-pqn", "give --cleanrl a folder with CleanRL's repository"),
        ("--against sb3-dqn", "make it by `replay-server bench learning --setup --against sb3-dqn`"),
        ("--against tianshou-dqn --env CartPole-v1", "tianshou-dqn plays Atari games alone"),
        ("--against sb3-dqn --env ALE/Pong-v5 ALE/Breakout-v5", "one game at a time"),
        ("--algorithm ppo --minutes 3", "--minutes: expected --algorithm apex with it, got ppo"),
        ("--algorithm apex --only-peers", "--only-peers: expected --against"),
        ("--algorithm apex --minutes 0", "--minutes, --every: expected more than 0"),
        ("--algorithm apex --threads 0", "--threads: expected at least 1"),
    ],
)
def test_what_cannot_be_compared_is_refused_before_anything_runs(
    words: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("REPLAY_PEERS", str(tmp_path / "peers"))
    assert main(["learning", *words.split()]) == 1
    assert said in capsys.readouterr().err


def test_a_side_that_does_not_reach_the_target_is_told_as_such(tmp_path: Path) -> None:
    def run(*means: float) -> dict[str, object]:
        rows = [
            {"minutes": 5.0 * (n + 1), "frames": 4_000 * (n + 1), "updates": 900 * (n + 1), "mean": mean}
            for n, mean in enumerate(means)
        ]
        return {"checkpoints": rows}

    content = {
        "command": "replay-server bench learning",
        "machine": {"processor": "a processor", "cores": 2},
        "time": "2026-01-01",
        "settings": {"target": 18.0, "minutes": 10.0, "sides": ["replay", "sb3-dqn"], "env": "ALE/Pong-v5",
                     "episodes": 20},
        "runs": {"replay.seed=1": run(-20.0, 18.5), "sb3-dqn.seed=1": run(-21.0, -20.0)},
    }  # fmt: skip
    told = markdown(content).splitlines()
    assert told[2] == "| replay | 1 | 13 | 3.0 | 8,000 | -20 18 | 18.5 | 10.0 min |"
    assert told[3] == "| sb3-dqn | 1 | 13 | 3.0 | 8,000 | -21 -20 | -20.0 | not within 10 min |"
    plot = tmp_path / "curves.png"
    plot_side_by_side(content, str(plot))
    assert plot.read_bytes().startswith(b"\x89PNG")


PEER = """
import os, time
from pathlib import Path

PACKAGES = ("numpy",)


def train(folder, seconds, **_):
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "kept").touch(exist_ok=False)
    if Path("trouble").exists():
        raise RuntimeError("no more memory")
    if Path("endless").exists():
        from games import Checkpoints
        checkpoints = Checkpoints(str(folder), 1e9, 1e9, lambda file: None)
        Path("pid").write_text(str(os.getpid()))
        while True:
            checkpoints.step(0)
            time.sleep(0.01)
    return {"used": {}, "checkpoints": [{"file": str(folder / "kept"), "minutes": 1.0, "frames": 8, "updates": 2}]}


def evaluate(files, **_):
    assert all(Path(file).exists() for file in files)
    return [[1.0, 2.0] for _ in files]
"""


@pytest.fixture
def made_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Peers whose programs are made up, in the folder where this process is."""
    for name in ("first", "second"):
        (tmp_path / f"peer_{name}.py").write_text(PEER.replace('"trouble"', f'"trouble-{name}"'))
        monkeypatch.setitem(SIDES, name, Side(name, None))
    monkeypatch.setattr("replay_server.bench.side_by_side.PEERS", ("first", "second"))

    def program(side: str, threads: int | None) -> Program:
        return Program(SIDES[side].program, None, {"OMP_NUM_THREADS": str(threads or 0)}, programs=tmp_path)

    monkeypatch.setattr("replay_server.bench.side_by_side._program", program)
    monkeypatch.chdir(tmp_path)
    return tmp_path


QUEUE = [
    "learning", "--against", "first,second", "--only-peers", "--folder", "runs", "--json", "all.json", "--seeds", "1",
]  # fmt: skip


def test_a_side_that_fails_keeps_no_other_from_running_and_is_tried_again(
    made_up: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (made_up / "trouble-first").touch()
    assert main(QUEUE) == 1
    assert "no more memory" in capsys.readouterr().out
    content = json.loads((made_up / "all.json").read_text())
    assert list(content["runs"]) == ["second.seed=1"]
    assert list(content["failed"]) == ["first.seed=1"]
    (made_up / "trouble-first").unlink()
    assert main(QUEUE) == 0
    assert "second, seed 1: trains" not in capsys.readouterr().out
    content = json.loads((made_up / "all.json").read_text())
    assert list(content["runs"]) == ["first.seed=1", "second.seed=1"]
    assert content["failed"] == {}
    assert content["median"]["first.updates_per_s"] == pytest.approx(2 / 60)


def test_a_training_that_another_command_runs_is_left_alone(made_up: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (made_up / "trouble-first").touch()  # so that its run.json has no checkpoints, as of one that trains
    assert main(QUEUE) == 1
    (made_up / "trouble-first").unlink()
    with alone_in(made_up / "runs" / "first-seed1.lock"):
        assert main(QUEUE) == 1
        assert "first-seed1.lock: another process is at work in it" in capsys.readouterr().out
        assert (made_up / "runs" / "first-seed1" / "kept").exists()
        assert list(json.loads((made_up / "all.json").read_text())["runs"]) == ["second.seed=1"]
    assert main(QUEUE) == 0


def test_a_side_for_whose_files_there_is_no_room_keeps_no_other_from_running(
    made_up: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = result.write

    def full(file: str | Path, content: dict[str, Any]) -> None:
        if "first-seed1" in str(file):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write(file, content)

    monkeypatch.setattr(result, "write", full)
    assert main(QUEUE) == 1
    content = json.loads((made_up / "all.json").read_text())
    assert list(content["runs"]) == ["second.seed=1"]
    assert "No space left" in content["failed"]["first.seed=1"]


def test_a_damaged_run_is_refused_and_stays(made_up: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = made_up / "runs" / "second-seed1" / "run.json"
    file.parent.mkdir(parents=True)
    file.write_text('{"checkpoints": [')
    assert main(QUEUE) == 1
    assert "run.json cannot be read" in capsys.readouterr().err
    assert file.read_text() == '{"checkpoints": ['
    assert not (made_up / "runs" / "first-seed1").exists()


def test_a_side_that_is_interrupted_leaves_no_process_and_begins_anew(
    made_up: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (made_up / "endless").touch()

    def interrupt() -> None:
        while not (made_up / "pid").exists():
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt).start()
    with pytest.raises(KeyboardInterrupt):
        main(QUEUE)
    assert "first, seed 1: interrupted; the same command goes on from here" in capsys.readouterr().out
    assert not Path(f"/proc/{(made_up / 'pid').read_text()}").exists()
    (made_up / "endless").unlink()
    assert main(QUEUE) == 0


@pytest.mark.slow
@pytest.mark.parametrize("name", PEERS)
def test_a_peer_trains_saves_and_is_evaluated(name: str, tmp_path: Path) -> None:
    side = SIDES[name]
    assert side.environment is not None
    if not is_ready(side.environment):
        pytest.skip(f"needs {name}: {ENVIRONMENTS[side.environment].made_by}")
    scripts = os.environ.get("REPLAY_CLEANRL")
    if side.checkout and not scripts:
        pytest.skip(f"{name} needs CleanRL's repository: name its folder in REPLAY_CLEANRL")
    given = {"scripts": scripts if side.checkout else None} if side.program == "cleanrl" else {}
    common = {"env": "ALE/Pong-v5", "sticky_actions": 0.25, "seed": 1, **side.options, **given}
    with Program(side.program, side.environment) as program:
        trained = program.ask("train", seconds=4, every_s=2, folder=str(tmp_path / "run"), **common)
    assert trained["checkpoints"][-1]["minutes"] >= 4 / 60 - 1e-3
    assert trained["checkpoints"][-1]["frames"] > 0
    with Program(side.program, side.environment) as program:
        files = [trained["checkpoints"][-1]["file"]]
        ((score,),) = program.ask("evaluate", files=files, games=1, epsilon=0.05, **common)
        assert -21 <= score <= 21
