"""The peers' environments: a virtual environment for each, with pinned versions, under a cache folder.

Peers ask for libraries that exclude each other and this project's own, so none of them is installed beside it. An
environment is made once, by the command that its `made_by` names; a file in it says what was asked for, and it is made
anew where that changed.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

PROGRAMS = Path(__file__).resolve().parent / "programs"

# torch's builds for the processor alone carry "+cpu"; an index that has them is named by --pip-options.
TORCH = "torch==2.13.0"


@dataclass(frozen=True)
class Environment:
    """One peer's environment."""

    name: str
    requirements: tuple[str, ...]
    imports: str
    """A statement that works where the environment is complete."""
    after: str | None = None
    """A program of `programs/` that the environment's Python runs when the packages are there."""
    about: str = ""
    alone: tuple[str, ...] = ()
    """Installed without what they ask for: other versions of it work, and `requirements` has them."""
    made_by: str = "replay-server bench peers --setup"
    """The command that makes it."""

    @property
    def asked_for(self) -> list[str]:
        """All that is installed."""
        return [*self.requirements, *self.alone]


GAMES = ("ale-py==0.12.1", "opencv-python-headless==4.11.0.86", "safetensors==0.6.2", "packaging==25.0")
"""For the programs that train on Atari games."""
PLAYED_BY = "replay-server bench learning --setup --against"
ENVIRONMENTS = {
    environment.name: environment
    for environment in (
        Environment("cpprb", ("cpprb==11.0.0",), "import cpprb", about="prioritized and plain buffers in C++"),
        Environment("tianshou", ("tianshou==2.0.1", TORCH), "import tianshou.data", about="segment tree by numba"),
        Environment(
            "stable_baselines3",
            ("stable-baselines3==2.9.0", TORCH, "gymnasium[mujoco]==1.4.0", "mujoco==4.0.0"),
            "import stable_baselines3.common.buffers, gymnasium.envs.mujoco",
            about="plain buffers, uniform; PPO",
        ),
        Environment(
            "torchrl",
            ("torchrl==0.14.0", TORCH, "setuptools", "ninja", "pybind11"),
            "from torchrl._torchrl import SumSegmentTreeFp64",
            after="build_torchrl.py",
            about="its extension is compiled against this torch, from the sources in its wheel",
        ),
        Environment(
            "reverb",
            ("dm-reverb[tensorflow]==0.14.0",),
            "import reverb",
            about="replay server over gRPC",
        ),
        Environment(
            "rllib",
            ("ray[rllib]==2.60.0", TORCH, "gymnasium[mujoco]==1.2.2", "mujoco==4.0.0"),
            "import ray.rllib.algorithms.appo, gymnasium.envs.mujoco, torch",
            about="APPO, which is IMPACT",
        ),
        Environment("ray", ("ray==2.60.0", "cpprb==11.0.0"), "import ray, cpprb", about="cpprb in a Ray actor"),
        Environment(
            "cleanrl",
            (
                *("stable-baselines3==2.3.2", "gymnasium==0.29.1", "gym==0.23.1", "envpool==0.8.4", "numpy==1.26.4"),
                *("tensorboard==2.20.0", "tyro==0.9.31", "setuptools<81", TORCH, *GAMES),
            ),
            "import stable_baselines3, ale_py, envpool, gym, tyro, torch.utils.tensorboard, safetensors.torch",
            about="scripts for Atari; PyPI's package asks for Python 3.10 or older, and has not all of them",
            alone=("cleanrl==1.2.0",),
            made_by=f"{PLAYED_BY} cleanrl-dqn",
        ),
        Environment(
            "stable_baselines3_atari",
            ("stable-baselines3==2.9.0", "gymnasium==1.4.0", TORCH, *GAMES),
            "import stable_baselines3, ale_py, cv2, safetensors.torch",
            about="DQN on Atari",
            made_by=f"{PLAYED_BY} sb3-dqn",
        ),
        Environment(
            "tianshou_atari",
            ("tianshou==2.0.1", "gymnasium==1.4.0", "numpy==2.2.6", TORCH, *GAMES),
            "import tianshou, ale_py, cv2, safetensors.torch",
            about="DQN on Atari",
            made_by=f"{PLAYED_BY} tianshou-dqn",
        ),
        Environment("redis", ("redis==8.1.0", "hiredis==3.5.0", "cpprb==11.0.0"), "import redis, hiredis, cpprb"),
    )
}


def cache_folder() -> Path:
    """Where environments lie: REPLAY_PEERS, or a folder in the user's cache."""
    if os.environ.get("REPLAY_PEERS"):
        return Path(os.environ["REPLAY_PEERS"])
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "replay-server" / "peers"


def python_of(name: str) -> Path:
    """The interpreter of a peer's environment."""
    return cache_folder() / name / "bin" / "python"


def is_ready(name: str) -> bool:
    """Whether a peer's environment was made to its end, as it is asked for today."""
    try:
        made = json.loads((cache_folder() / name / "made.json").read_text())
    except (OSError, ValueError):
        return False
    return made.get("requirements") == ENVIRONMENTS[name].asked_for


def set_up(name: str, pip_options: Sequence[str] = (), say: Callable[[str], None] = print) -> None:
    """Makes a peer's environment if it is not there. Raises RuntimeError with the end of what the failing step said."""
    if is_ready(name):
        return
    environment = ENVIRONMENTS[name]
    folder = cache_folder() / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.parent.mkdir(parents=True, exist_ok=True)
    python = str(python_of(name))
    say(f"{name}: making {folder}")
    # Not this environment's interpreter but the one below it: a peer shall not see this project's packages.
    base = getattr(sys, "_base_executable", sys.executable)
    _step(name, [base, "-m", "venv", str(folder)])
    pip = [python, "-m", "pip", "install", "-q", "--disable-pip-version-check"]
    _step(name, [*pip, "pip>=24"])
    _step(name, [*pip, *pip_options, *environment.requirements])
    if environment.alone:
        _step(name, [*pip, *pip_options, "--no-deps", "--ignore-requires-python", *environment.alone])
    if environment.after is not None:
        _step(name, [python, str(PROGRAMS / environment.after)])
    _step(name, [python, "-c", environment.imports])
    (folder / "made.json").write_text(json.dumps({"requirements": environment.asked_for}) + "\n")
    say(f"{name}: ready")


def _step(name: str, command: Sequence[str]) -> None:
    environment = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "PYTHONHOME")}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    if done.returncode != 0:
        raise RuntimeError(f"the environment of {name} cannot be made: {' '.join(command)}\n{done.stderr[-3000:]}")
