"""Other libraries learn from this project's buffer as they do from their own, each in an environment of its own."""

from __future__ import annotations

import subprocess
from pathlib import Path

import compare_scores
import pytest
from compare_scores import WHOLE
from example_environments import CLEANRL, NAMES, REPOSITORY, python_of, requirements_of

import replay_server as rs

SHORT = {
    "stable_baselines3": ["--steps", "150"],
    "cleanrl": [str(CLEANRL / "cleanrl/dqn.py"), "--total-timesteps", "1100", "--learning-starts", "1000"],
    "tianshou": ["--steps", "200"],
    "rllib": ["--steps", "200"],
    "torchrl": ["--steps", "1200"],
}
"""What follows --buffer where an example is cut short."""

NO_WORSE = {"stable_baselines3": 60.0, "cleanrl": 60.0, "tianshou": 60.0, "rllib": 60.0, "torchrl": 60.0}
"""By how much the mean over the seeds may fall short of the original's: what seeds differ by."""


def run(name: str, buffer: str, options: list[str], folder: Path, timeout_s: float) -> float:
    """What an example reaches with a buffer; skips where its environment was not made."""
    how = f"python tests/examples/example_environments.py {name}"
    if not python_of(name).exists():
        pytest.skip(f"the environment of {name} was not made: {how}")
    if name == "cleanrl" and not CLEANRL.exists():
        pytest.skip(f"there is no checkout of CleanRL at {CLEANRL.relative_to(REPOSITORY)}")
    return compare_scores.run(name, buffer, options, folder, timeout_s).score


@pytest.mark.parametrize("name", SHORT)
def test_library_runs_on_a_buffer_in_process(name: str, tmp_path: Path) -> None:
    assert abs(run(name, "replay-server", SHORT[name], tmp_path, 800)) < 2000


@pytest.mark.parametrize("name", ["stable_baselines3", "cleanrl", "rllib", "torchrl"])
def test_library_runs_on_a_server(name: str, tmp_path: Path) -> None:
    with rs.Server(port=0) as server, rs.Client(server.url) as client:
        run(name, server.url, SHORT[name], tmp_path, 800)
        [table] = client.tables()
        info = client.info(table)
    assert info["added"] >= 100
    assert info["sampled"] > 0


@pytest.mark.slow
@pytest.mark.learning
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("name", WHOLE)
def test_library_reaches_its_own_score(name: str, tmp_path: Path) -> None:
    def mean(buffer: str) -> float:
        scores = [run(name, buffer, [*WHOLE[name], "--seed", str(seed)], tmp_path, 3000) for seed in (1, 2)]
        return sum(scores) / len(scores)

    assert mean("replay-server") >= mean("original") - NO_WORSE[name]


@pytest.mark.parametrize("where", ["in process", "on a server"])
@pytest.mark.parametrize(
    ("name", "script", "told"),
    [
        ("stable_baselines3", "stable_baselines3_n_steps.py", "the same 194 transitions"),
        ("stable_baselines3", "stable_baselines3_dicts.py", "the same 200 transitions"),
        ("stable_baselines3", "stable_baselines3_hindsight.py", "the same transitions with the same goals"),
        ("rllib", "rllib_n_steps.py", "the same"),
        ("rllib", "rllib_dicts.py", "the same"),
    ],
)
def test_library_sees_what_its_own_buffers_show(where: str, name: str, script: str, told: str, tmp_path: Path) -> None:
    """Stable-Baselines3: `DQN(n_steps=3)` went on with single steps; dict observations were refused, and so was
    `save_replay_buffer`. RLlib: `n_step=3` and dict observations were refused, and a buffer's state was empty."""
    python = python_of(name)
    if not python.exists():
        pytest.skip(f"the environment of {name} was not made: see example_environments.py")
    command = [str(python), str(REPOSITORY / "tests" / "examples" / script)]
    with rs.Server(port=0) as server:
        url = [server.url] if where == "on a server" else []
        done = subprocess.run([*command, *url], cwd=tmp_path, capture_output=True, text=True, timeout=800)
    assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-3000:]}"
    assert told in done.stdout


@pytest.mark.parametrize("name", NAMES)
def test_example_names_what_it_needs(name: str) -> None:
    assert requirements_of(name)
    assert name in SHORT, f"examples/with_{name}.py is run by no test"
