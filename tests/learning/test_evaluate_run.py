"""`replay-server evaluate`: which checkpoint plays which games, what is told of them, and what is refused."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

torch = pytest.importorskip("torch")

from replay_server.cli import main  # noqa: E402
from replay_server.learner.algorithms import make_learner, make_settings  # noqa: E402
from replay_server.learner.checkpoint import write_best, write_checkpoint  # noqa: E402
from replay_server.learner.dqn import Dqn  # noqa: E402
from replay_server.learner.policy_checkpoint import write_policy_checkpoint  # noqa: E402
from replay_server.rl.environment_spec import environment_spec  # noqa: E402
from replay_server.rl.networks import make_network  # noqa: E402
from replay_server.rl.policy_spec import policy_spec  # noqa: E402
from replay_server.rl.run_directory import RunDirectory  # noqa: E402
from replay_server.rl.settings import ApexSettings  # noqa: E402


class Thermometer(gymnasium.Env):
    """Five steps; each pays its action. Draws itself as bright as the step's number; shows only a constant."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 4}  # noqa: RUF012
    observation_space = gymnasium.spaces.Box(0, 1, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(3)

    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode = render_mode

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.number = 0
        return np.ones(1, np.float32), {}

    def step(self, action):
        self.number += 1
        return np.ones(1, np.float32), float(action), self.number == 5, False, {}

    def render(self):
        return np.full((30, 41, 3), 50 * self.number, np.uint8)


class Blind(Thermometer):
    def render(self):
        return None


gymnasium.register("Thermometer-v0", Thermometer)
gymnasium.register("Blind-v0", Blind)
gymnasium.register("NoModes-v0", lambda: Blind())


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., RunDirectory]:
    """Makes a run whose checkpoint step_10 prefers action 1, step_20 action 2, and best action 0."""

    def make(env: str = "Thermometer-v0", best: bool = True, **changes: Any) -> RunDirectory:
        settings = ApexSettings(env=env, hidden=8, logdir=str(tmp_path / "run"), **changes)
        directory = RunDirectory(tmp_path / "run")
        directory.create(settings)
        spec = environment_spec(settings)
        learner = Dqn(settings, lambda: make_network(settings, spec), torch.device("cpu"))

        def prefer(action: int) -> None:
            with torch.no_grad():
                learner.online.advantage[-1].weight.zero_()
                learner.online.advantage[-1].bias.copy_(torch.eye(3)[action])

        for step, action in ((10, 1), (20, 2)):
            prefer(action)
            learner.step = step
            write_checkpoint(directory.checkpoints, learner, {"version": step})
        prefer(0)
        if best:
            write_best(directory.checkpoints, learner.online.state_dict(), {"step": 15, "score_mean": 1.0})
        return directory

    return make


def evaluate(capsys: pytest.CaptureFixture[str], run: RunDirectory, *words: str) -> dict[str, Any]:
    assert main(["evaluate", str(run.path), "--json", *words]) == 0
    return json.loads(capsys.readouterr().out)


def refusal(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    with pytest.raises(SystemExit) as end:
        main(["evaluate", *words])
    assert end.value.code == 2
    return capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "checkpoint", "step", "score"),
    [
        ([], "checkpoints/best", 15, 0.0),
        (["--checkpoint", "best"], "checkpoints/best", 15, 0.0),
        (["--checkpoint", "newest"], "checkpoints/step_20", 20, 10.0),
        (["--checkpoint", "step_10"], "checkpoints/step_10", 10, 5.0),
    ],
)
def test_the_checkpoint_that_was_asked_for_plays(
    run: Callable[..., RunDirectory], capsys: pytest.CaptureFixture[str], words: list[str], checkpoint: str, step: int,
    score: float,
) -> None:  # fmt: skip
    found = evaluate(capsys, run(), "--episodes", "3", *words)
    assert (found["checkpoint"], found["checkpoint_step"], found["scores"]) == (checkpoint, step, [score] * 3)
    assert (found["score_mean"], found["score_std"], found["episodes"]) == (score, 0.0, 3)


def test_without_a_best_network_the_newest_one_plays(
    run: Callable[..., RunDirectory], capsys: pytest.CaptureFixture[str]
) -> None:
    assert evaluate(capsys, run(best=False), "--episodes", "1")["checkpoint"] == "checkpoints/step_20"


def test_exploration_and_seed_decide_about_the_games(
    run: Callable[..., RunDirectory], capsys: pytest.CaptureFixture[str]
) -> None:
    directory = run(eval_epsilon=0.5)
    assert evaluate(capsys, directory, "--epsilon", "0", "--episodes", "9")["scores"] == [0.0] * 9
    first, again, other = (evaluate(capsys, directory, "--episodes", "9", "--seed", seed) for seed in ("1", "1", "2"))
    assert first["epsilon"] == 0.5
    assert first["scores"] == again["scores"] != other["scores"]


def test_scores_are_told_in_words(run: Callable[..., RunDirectory], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["evaluate", str(run().path), "--checkpoint", "newest", "--episodes", "2"]) == 0
    said = capsys.readouterr().out.splitlines()
    assert said == [
        "Thermometer-v0 · checkpoints/step_20, step 20 · ε 0 · seed 0 · sticky actions 0",
        "scores 10 10",
        "score 10.0 ± 0.0 over 2 games (10 to 10)",
    ]


@pytest.mark.parametrize("name", ["game.mp4", "game.webm", "game.avi"])
def test_a_video_shows_the_first_game_from_its_beginning_to_its_end(
    run: Callable[..., RunDirectory], capsys: pytest.CaptureFixture[str], tmp_path: Path, name: str
) -> None:
    import cv2

    found = evaluate(capsys, run(), "--episodes", "12", "--video", str(tmp_path / name))
    assert found["video"] == str(tmp_path / name)
    video = cv2.VideoCapture(str(tmp_path / name))
    pictures = []
    while (read := video.read())[0]:
        pictures.append(read[1])
    assert video.get(cv2.CAP_PROP_FPS) == pytest.approx(4.0)
    assert pictures[0].shape == (240, 328, 3)
    assert [round(picture.mean() / 50) for picture in pictures] == [0, 1, 2, 3, 4, 5]


def test_the_same_games_are_played_with_a_video_and_without(
    run: Callable[..., RunDirectory], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    words = ["--episodes", "12", "--epsilon", "0.7", "--seed", "3"]
    directory = run()
    shown = evaluate(capsys, directory, *words, "--video", str(tmp_path / "game.avi"))
    assert shown["scores"] == evaluate(capsys, directory, *words)["scores"]


def test_an_atari_game_is_drawn_in_colours(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    import cv2

    settings = ApexSettings(env="ALE/Pong-v5", hidden=8, eval_max_frames_per_episode=200, noop_max=0)
    pong = RunDirectory(tmp_path / "pong")
    pong.create(settings)
    spec = environment_spec(settings)
    write_best(pong.checkpoints, make_network(settings, spec).state_dict(), {"step": 1})
    found = evaluate(capsys, pong, "--episodes", "1", "--video", str(tmp_path / "pong.mp4"))
    video = cv2.VideoCapture(found["video"])
    assert video.get(cv2.CAP_PROP_FPS) == pytest.approx(15.0)
    pictures = 0
    while (read := video.read())[0]:
        pictures += 1
        assert read[1].shape == (420, 320, 3)
        blue, green, red = (int(read[1][200, 160, channel]) for channel in range(3))
    assert pictures == 51  # 200 frames, 4 a step, and the first screen
    assert red > green > blue, "Pong's field is brown"


def test_a_policy_of_train_plays_its_own_way(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    settings = make_settings("ppo", "default", env="CartPole-v1", seed=1, steps=64, hidden=16)
    directory = RunDirectory(tmp_path / "run")
    values = {"env": "CartPole-v1", "algo": "ppo", "profile": "default", "seed": 1, "steps": 64}
    directory.logs.mkdir(parents=True)
    directory.config.write_text(json.dumps({**values, "setting": {"hidden": "16"}}))
    learner = make_learner(settings, policy_spec(settings))
    write_policy_checkpoint(directory.checkpoints, learner)
    found = evaluate(capsys, directory, "--episodes", "4")
    assert (found["checkpoint"], found["checkpoint_step"], len(found["scores"])) == ("checkpoints/step_0", 0, 4)
    assert all(8 <= score <= 500 for score in found["scores"])
    assert "sample their actions" in refusal(capsys, str(directory.path), "--epsilon", "0")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--episodes", "0"], "--episodes: expected at least 1, got 0"),
        (["--epsilon", "1.5"], "--epsilon: expected 0 to 1, got 1.5"),
        (["--seed", "-1"], "--seed: expected at least 0, got -1"),
        (["--checkpoint", "step_11"], "expected one of those in"),
        (["--checkpoint", "../checkpoints/best"], "which are: best, step_10, step_20"),
        (["--video", "game.gif"], "expected a file named *.mp4, *.webm, *.avi, got game.gif"),
        (["--video", "/no/such/folder/game.mp4"], "expected an existing folder, got /no/such/folder"),
    ],
)
def test_what_cannot_be_is_refused_with_what_there_is(
    run: Callable[..., RunDirectory], capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    assert message in refusal(capsys, str(run().path), *words)


@pytest.mark.parametrize("env", ["Blind-v0", "NoModes-v0"])
def test_an_environment_that_cannot_draw_itself_is_named(
    run: Callable[..., RunDirectory], capsys: pytest.CaptureFixture[str], tmp_path: Path, env: str
) -> None:
    video = tmp_path / "game.mp4"
    video.write_text("an older one")
    assert f"{env}: expected one that" in refusal(capsys, str(run(env).path), "--video", str(video))
    assert video.read_text() == "an older one"


def test_a_missing_opencv_is_told_with_what_to_install(
    run: Callable[..., RunDirectory], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "cv2", None)
    assert "pip install opencv-python-headless" in refusal(capsys, str(run().path), "--video", "game.mp4")


def test_folders_without_a_run_and_damaged_checkpoints_are_refused(
    run: Callable[..., RunDirectory], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert "holds no config.json" in refusal(capsys, str(tmp_path / "nothing"))
    directory = run()
    (directory.checkpoints / "best" / "network.safetensors").write_bytes(b"no tensors")
    assert "network.safetensors is damaged" in refusal(capsys, str(directory.path))
    wider = dataclasses.replace(ApexSettings(env="Thermometer-v0", hidden=9), resume=True)
    directory.create(wider)
    assert "holds another network" in refusal(capsys, str(directory.path), "--checkpoint", "step_10")
    directory.config.write_text("{")
    assert "config.json is damaged" in refusal(capsys, str(directory.path))
