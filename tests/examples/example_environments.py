"""Environments of their own for the examples that replace another library's buffer.

    .venv/bin/python tests/examples/example_environments.py [stable_baselines3] [cleanrl]

makes build/examples/NAME from what examples/with_NAME.py asks for at its beginning (PEP 723), with this project in it.
CleanRL is no package: clone https://github.com/vwxyzjn/cleanrl to build/examples/cleanrl-source.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

REPOSITORY = Path(__file__).resolve().parents[2]
FOLDER = REPOSITORY / "build" / "examples"
NAMES = tuple(sorted(path.stem.removeprefix("with_") for path in (REPOSITORY / "examples").glob("with_*.py")))
CLEANRL = FOLDER / "cleanrl-source"
AFTER = {"torchrl": REPOSITORY / "bench" / "programs" / "build_torchrl.py"}
"""A program that completes an environment, run by its interpreter."""


def python_of(name: str) -> Path:
    """The interpreter of an environment."""
    return FOLDER / name / "bin" / "python"


def requirements_of(name: str) -> list[str]:
    """What an example asks for, but for this project."""
    text = (REPOSITORY / "examples" / f"with_{name}.py").read_text()
    block = re.search(r"^# /// script\n((?:#.*\n)+?)# ///$", text, re.MULTILINE)
    if block is None:
        raise ValueError(f"examples/with_{name}.py names no requirements (PEP 723)")
    settings = tomllib.loads(re.sub(r"^# ?", "", block[1], flags=re.MULTILINE))
    return [each for each in settings["dependencies"] if each != "replay-server"]


def make(name: str) -> None:
    """Makes an environment, or brings it up to date."""
    # Not this environment's interpreter but the one below it: the example shall not see this project's packages.
    subprocess.run([getattr(sys, "_base_executable", sys.executable), "-m", "venv", FOLDER / name], check=True)
    pip = [python_of(name), "-m", "pip", "install", "-q", "--disable-pip-version-check"]
    subprocess.run([*pip, "-c", REPOSITORY / "constraints.txt", *requirements_of(name), REPOSITORY], check=True)
    if name in AFTER:
        subprocess.run([python_of(name), AFTER[name]], check=True)


if __name__ == "__main__":
    for each in sys.argv[1:] or NAMES:
        make(each)
        print(python_of(each))
