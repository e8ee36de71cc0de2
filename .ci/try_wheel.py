"""Tries the wheel as its users have it: in an empty environment, without a compiler, outside of the checkout.

    python .ci/try_wheel.py [WHEEL]     makes the environment; without WHEEL the wheel is built first
    python .ci/try_wheel.py --here      tries what is installed for this Python, which has no extras

What is tried: the first Python block of the README, the command line, and what is said where a part is left out.
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(REPOSITORY / "tests" / "docs"))

from pages import Page  # noqa: E402

BUILD = "import sys; from scikit_build_core.build import build_wheel; build_wheel(sys.argv[1])"


class Failed(Exception):
    """Something did not go as expected; the message says what."""


def run(
    about: str, command: Sequence[str | Path], folder: Path, status: int = 0, said: str = "", **more: str
) -> subprocess.CompletedProcess[str]:
    """Runs a command in a folder. Raises Failed for another exit status, or where `said` is not in what it says."""
    result = subprocess.run(
        command,
        cwd=folder,
        env=environment(more),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=1800,
    )
    if result.returncode != status or said not in result.stdout + result.stderr:
        expected = f"expected status {status}" + (f" and {said!r}" if said else "") + f", got {result.returncode}"
        raise Failed(f"{about}: {expected}\n{result.stdout[-3000:]}{result.stderr[-3000:]}")
    print(f"ok: {about}", flush=True)
    return result


def environment(more: Mapping[str, str]) -> dict[str, str]:
    """This one's variables, without those that would let Python find other packages."""
    return {**{name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}, **more}


def built(folder: Path) -> Path:
    """The wheel, built by what this environment has."""
    tools = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    run("the wheel is built", [sys.executable, "-c", BUILD, folder], REPOSITORY, PATH=tools)
    (wheel,) = folder.glob("*.whl")
    return wheel


def installed(wheel: Path, folder: Path) -> Path:
    """The Python of a new environment that has the wheel and what it asks for, as wheels, too. There is no compiler."""
    base = getattr(sys, "_base_executable", sys.executable)
    run("an empty environment is made", [base, "-m", "venv", folder], folder.parent)
    python = folder / "bin" / "python"
    pip = [python, "-m", "pip", "install", "-q", "--disable-pip-version-check", "--only-binary", ":all:"]
    nowhere = str(folder / "no-compiler")
    run("it installs without a compiler", [*pip, wheel], folder, PATH=str(folder / "bin"), CC=nowhere, CXX=nowhere)
    return python


def try_it(python: Path, program: Path, folder: Path) -> None:
    """Runs what a user runs first, in a folder that is not the checkout."""
    absent = (
        "import importlib.util as u; assert not any(map(u.find_spec, ('actors', 'learner', 'bench', 'serverless')))"
    )
    run("no folder of the repository is a package of its own", [python, "-c", absent], folder)
    page = Page(REPOSITORY / "README.md")
    block = next(block for block in page.blocks if block.language == "python" and block.mark != "not run")
    run(f"the first Python block of the README ({block})", [python, "-c", block.text], folder)
    run("replay-server --version", [program, "--version"], folder, said="replay-server")
    run("replay-server serve --check", [program, "serve", "--port", "0", "--check"], folder)
    run("a benchmark of the server", [program, "bench", "server", "--help"], folder, said="--json")
    words = [program, "completion", "bash"]
    run("completion says which extra it needs", words, folder, 1, "pip install 'replay-server[completion]'")
    run("a benchmark of a paper says where it is", [program, "bench", "scalers"], folder, 1, "bench/papers/nitro")
    words = [program, "apex", "--env", "CartPole-v1"]
    run("training says which extra it needs", words, folder, 1, "pip install 'replay-server[rl]'")


def main(arguments: Sequence[str]) -> int:
    """The exit status: 0, 1 where something failed."""
    with tempfile.TemporaryDirectory(prefix="try-wheel-") as made:
        folder = Path(made).resolve()
        elsewhere, dist = folder / "elsewhere", folder / "dist"
        elsewhere.mkdir()
        dist.mkdir()
        try:
            if list(arguments) == ["--here"]:
                python, program = Path(sys.executable), Path(sysconfig.get_path("scripts")) / "replay-server"
            else:
                wheel = Path(arguments[0]).resolve() if arguments else built(dist)
                python = installed(wheel, folder / "environment")
                program = python.parent / "replay-server"
            try_it(python, program, elsewhere)
        except Failed as error:
            print(f"failed: {error}", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
