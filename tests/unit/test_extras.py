"""A package that is missing is named with the extra that brings it."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from replay_server.config import tomllib
from replay_server.extras import EXTRAS, how_to_install

REPOSITORY = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
PARTS = ("replay_server", "actors", "learner", "serverless", "bench")
BASE = {"numpy", "cffi", "msgpack", "redis", "uvloop", "tomli"}
DISTRIBUTIONS = {"cv2": "opencv-python-headless"}
"""Module → the distribution that has it, where the names differ by more than a hyphen."""
BROUGHT_BY = {
    **dict.fromkeys(("fastapi", "starlette", "uvicorn"), "nicegui"),
    **dict.fromkeys(("flask", "cloudevents"), "functions-framework"),
    "yarl": "aiohttp",
}
"""Modules of distributions that come with another one."""


def imported() -> Iterator[tuple[str, str]]:
    """(file, top-level module) of every import. Programs and adapters that run in environments of other libraries
    are left out."""
    for part in PARTS:
        for path in sorted((REPOSITORY / part).rglob("*.py")):
            if {"programs", "adapters"} & set(path.parts):
                continue
            for node in ast.walk(ast.parse(path.read_text())):
                names = []
                if isinstance(node, ast.Import):
                    names = [alias.name for alias in node.names]
                elif isinstance(node, ast.ImportFrom) and not node.level:
                    names = [node.module or ""]
                for name in names:
                    yield str(path.relative_to(REPOSITORY)), name.partition(".")[0]


def distributions(extra: str) -> set[str]:
    """What an extra asks for, by name."""
    found = (re.match(r"[\w.-]+", requirement) for requirement in PROJECT["optional-dependencies"][extra])
    return {match[0].lower() for match in found if match}


def test_every_package_that_is_imported_is_asked_for_by_the_base_install_or_by_an_extra() -> None:
    known = {*sys.stdlib_module_names, *BASE, *EXTRAS, "replay_server"}
    assert [f"{file}: {module}" for file, module in imported() if module not in known] == []


@pytest.mark.parametrize("module", sorted(EXTRAS))
def test_the_extra_that_is_named_brings_the_module(module: str) -> None:
    name = DISTRIBUTIONS.get(module) or BROUGHT_BY.get(module) or module.replace("_", "-")
    assert name in distributions(EXTRAS[module])
    assert how_to_install(f"{module}.part") == f"pip install 'replay-server[{EXTRAS[module]}]'"


def test_training_is_torch_gymnasium_and_checkpoints_alone() -> None:
    assert distributions("rl") == {"torch", "gymnasium", "safetensors"}


@pytest.mark.parametrize(
    ("module", "words", "extra"),
    [
        ("gymnasium", "apex --env CartPole-v1", "rl"),
        ("ale_py", "apex --env ALE/Pong-v5", "atari"),
        ("ale_py", "train --env ALE/Pong-v5", "atari"),
        ("mujoco", "apex --env Hopper-v5", "mujoco"),
        ("mujoco", "train --env Hopper-v5", "mujoco"),
        ("ray", "train --env CartPole-v1 --backend ray", "ray"),
        ("botocore", "train --env CartPole-v1 --backend lambda", "lambda"),
        ("aiohttp", "train --env CartPole-v1 --backend http", "http"),
        ("functions_framework", "train --env CartPole-v1 --backend http", "http"),
        ("matplotlib", "bench curves RUN --plot FILE.png", "plots"),
    ],
)
def test_a_command_names_the_extra_that_it_needs(module: str, words: str, extra: str, tmp_path: Path) -> None:
    pytest.importorskip("gymnasium", reason="needs the extra rl (make setup installs it)")
    pytest.importorskip("mujoco", reason="needs the extra mujoco (make setup installs it)")
    program = f"import sys; sys.modules[{module!r}] = None; from replay_server.cli import main; "
    program += f"sys.exit(main({words.split()!r}))"
    result = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert result.returncode == 1, result.stderr
    told = rf"{words.split()[0]} needs {module}[.\w]*: pip install 'replay-server\[{extra}\]'"
    assert re.search(told, result.stderr), result.stderr
    assert not list(tmp_path.iterdir()), "a run directory was left"


@pytest.mark.parametrize(
    ("module", "library", "what"),
    [
        ("torch", "torch", "replay-server[rl]"),
        ("jax", "jax", "jax"),
        ("adapters.cleanrl", "torch", "replay-server[rl]"),
        ("adapters.cleanrl", "gymnasium", "replay-server[rl]"),
        ("adapters.rllib", "ray", "replay-server[ray]"),
        ("adapters.rllib", "tree", "ray[rllib]"),
        ("adapters.stable_baselines3", "stable_baselines3", "stable-baselines3"),
        ("adapters.tianshou", "tianshou", "tianshou"),
        ("adapters.torchrl", "tensordict", "torchrl"),
        ("adapters.transfer_queue", "transfer_queue", "TransferQueue"),
    ],
)
def test_a_module_names_what_its_library_comes_with(module: str, library: str, what: str) -> None:
    """It raised "No module named …" alone."""
    pytest.importorskip("gymnasium", reason="needs the extra rl (make setup installs it)")
    pytest.importorskip("ray", reason="needs the extra ray (make setup installs it)")
    program = f"import sys; sys.modules[{library!r}] = None; import importlib\n"
    program += f"try: importlib.import_module('replay_server.{module}')\n"
    program += "except ImportError as error: print(error.name, error, sep='|')"
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300)
    name, _, told = result.stdout.partition("|")
    assert name.partition(".")[0] == library, result.stderr
    assert told.strip() == f"replay_server.{module} needs {name}: pip install '{what}'"
