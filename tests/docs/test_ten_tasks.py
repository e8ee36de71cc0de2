"""The page with ten tasks in three libraries: this project's code is never the longest, and the others' runs too.

What is run of the others needs their environments: `python tests/examples/example_environments.py torchrl`, and
`replay-server bench peers --setup --peer reverb`.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from pages import REPOSITORY, Block, Page

from replay_server.bench import environments

PAGE = Page(REPOSITORY / "docs" / "how-to" / "coming-from-reverb-and-torchrl.md")
OTHERS = ("Reverb", "TorchRL")
WIDTH = 120
"""Of a line of code, for all three."""


def library_of(block: Block) -> str:
    """Whose code a block shows."""
    return next((name for name in OTHERS if block.told.startswith(f"{name} ")), "this")


def lines_of(blocks: list[Block]) -> int:
    return sum(1 for block in blocks for line in block.text.splitlines() if line.strip())


def tasks() -> dict[str, dict[str, list[Block]]]:
    """Heading → library → its blocks of code."""
    found: dict[str, dict[str, list[Block]]] = {}
    lines = PAGE.prose.splitlines()
    for block in PAGE.blocks:
        heading = next(line for line in reversed(lines[: block.line]) if line.startswith("## ")).removeprefix("## ")
        found.setdefault(heading, {}).setdefault(library_of(block), []).append(block)
    return found


def test_there_are_ten_tasks_and_what_a_library_cannot_do_is_said() -> None:
    numbered = [heading for heading in tasks() if re.match(r"\d+\. ", heading)]
    assert len(numbered) == 10
    for heading, libraries in tasks().items():
        assert "this" in libraries, heading
        for name in OTHERS:
            assert name in libraries or re.search(rf"^{name} has no ", section(heading), re.MULTILINE), heading


def section(heading: str) -> str:
    return PAGE.prose.partition(f"## {heading}\n")[2].partition("\n## ")[0]


def test_this_project_is_never_the_longest() -> None:
    """Where all three have the same number of lines, as where each is one call, none is the longest."""
    for heading, libraries in tasks().items():
        own = lines_of(libraries["this"])
        others = [lines_of(blocks) for name, blocks in libraries.items() if name != "this"]
        assert own < max(others) or set(others) == {own}, heading


def test_the_table_of_lines_is_what_the_blocks_have() -> None:
    rows = re.findall(r"^\| \[.*?\]\(#(.*?)\) \| (\S+) \| (\S+) \| (\S+) \|$", PAGE.text, re.MULTILINE)
    expected = []
    for heading, libraries in tasks().items():
        anchor = re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        counts = [str(lines_of(libraries[name])) if name in libraries else "–" for name in ("this", *OTHERS)]
        expected.append((anchor, *counts))
    assert rows == expected


def test_all_are_formatted_alike() -> None:
    for block in PAGE.blocks:
        assert max(map(len, block.text.splitlines())) <= WIDTH, block
        assert ";" not in block.text, block
        done = subprocess.run(
            [sys.executable, "-m", "ruff", "format", "--isolated", f"--line-length={WIDTH}", "-"],
            input=block.text, capture_output=True, text=True,
        )  # fmt: skip
        if "No module named ruff" in done.stderr:
            pytest.skip("ruff is not installed: pip install '.[dev]'")
        assert done.stdout == block.text, block


def runs(python: Path, library: str, folder: Path, how: str) -> None:
    """Runs a library's blocks one after the other, as a program; skips where it is not installed."""
    if not python.exists():
        pytest.skip(f"the environment of {library} was not made: {how}")
    code = [block.text for libraries in tasks().values() for block in libraries.get(library, [])]
    program = folder / "tasks.py"
    # Processes that are spawned import the program anew, and are not to do it all again.
    program.write_text("if __name__ == '__main__':\n" + indented(code))
    done = subprocess.run([python, program], cwd=folder, capture_output=True, text=True, timeout=800)
    assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-3000:]}"


def indented(code: list[str]) -> str:
    return "".join(f"    {line}\n" if line else "\n" for text in code for line in text.splitlines())


def test_reverbs_code_runs(tmp_path: Path) -> None:
    runs(environments.python_of("reverb"), "Reverb", tmp_path, "replay-server bench peers --setup --peer reverb")


def test_torchrls_code_runs(tmp_path: Path) -> None:
    how = "python tests/examples/example_environments.py torchrl"
    runs(REPOSITORY / "build" / "examples" / "torchrl" / "bin" / "python", "TorchRL", tmp_path, how)
