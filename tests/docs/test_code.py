"""Code that pages show runs: the blocks of a page one after the other, in one folder, as a reader would type them.

How a block is marked that is not to be run, or not always, is in pages.py.
"""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import types
import warnings
from pathlib import Path

import pytest
from pages import MARK, Block, Page, all_pages
from shell import LANGUAGES

from replay_server.config import _TYPES, load_config, tomllib

PAGES = all_pages()
RUN = [page for page in PAGES if any(block.language == "python" or block.mark == "run" for block in page.blocks)]
SLOW = [page for page in PAGES if any(block.mark == "slow" for block in page.blocks)]
KNOWN = {*LANGUAGES, "python", "toml", "json", "text", "resp", "yaml", "ini", "dockerfile", "promql", "lua", "c"}
"""Languages of blocks. Those marked resp are sent by tests/protocol/test_document.py."""


def run_page(page: Page, folder: Path, slow: bool, monkeypatch: pytest.MonkeyPatch) -> int:
    """Runs the blocks of a page; how many. Those from the first slow one on only where `slow` is true."""
    module = types.ModuleType(f"page_{page.path.stem.replace('-', '_')}")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(str(folder))
    count = 0
    for block in page.blocks:
        if block.mark == "slow" and not slow:
            break
        if block.mark == "not run":
            continue
        if block.mark == "file":
            (folder / block.told).write_text(block.text)
        elif block.language == "python":
            exec(compiled(page, block), vars(module))
            count += 1
        elif block.language in LANGUAGES and block.mark in ("run", "slow"):
            run_shell(block, folder)
            count += 1
    vars(module).clear()  # what a page has left open is told now
    return count


def compiled(page: Page, block: Block) -> types.CodeType:
    """With the page's own line numbers, so that a traceback leads to the line."""
    return compile("\n" * (block.line - 1) + block.text, str(page.path), "exec")


def run_shell(block: Block, folder: Path) -> None:
    """The block as one script, in which `replay-server` and `python` are this environment's."""
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    result = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", block.text],
        cwd=folder, env=environment, capture_output=True, text=True, timeout=1700, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert result.returncode == 0, f"{block}: {result.stdout[-3000:]}{result.stderr[-3000:]}"


@pytest.mark.parametrize("page", RUN, ids=[page.name for page in RUN])
def test_the_code_of_a_page_runs(page: Page, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if any(name in page.text for name in ("torch", "gymnasium", "learner")):
        pytest.importorskip("torch", reason="the page trains (make setup installs torch)")
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always", ResourceWarning)
        run_page(page, tmp_path, False, monkeypatch)
        gc.collect()
    left_open = [str(each.message) for each in told if "unclosed" in str(each.message)]
    assert not left_open, "a page closes what it opens: with rs.Client(…), client.writer(…)"


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("page", SLOW, ids=[page.name for page in SLOW])
def test_all_of_a_page_runs(page: Page, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run_page(page, tmp_path, True, monkeypatch) > 0


@pytest.mark.parametrize("page", PAGES, ids=[page.name for page in PAGES])
def test_blocks_are_read_by_what_reads_their_language(page: Page, tmp_path: Path) -> None:
    for block in page.blocks:
        assert block.language in KNOWN, f"{block}: not a language that this test knows: {block.language}"
        assert block.mark not in ("not run", "slow") or block.told, f"{block}: say why, <!-- {block.mark}: REASON -->"
        if block.language == "python":
            compiled(page, block)
        elif block.language == "json":
            json.loads(block.text)
        elif block.mark == "not run":
            continue
        elif block.language == "toml":
            values = tomllib.loads(block.text)
            if set(values) & set(_TYPES):
                file = tmp_path / "page.toml"
                file.write_text(block.text)
                load_config(file)
        elif block.language == "yaml":
            yaml = pytest.importorskip("yaml", reason="PyYAML comes with Ray and TensorBoard's peers")
            list(yaml.safe_load_all(block.text))


def test_marks_stand_above_blocks() -> None:
    """One that stands elsewhere would be without effect, and nobody would notice."""
    for page in PAGES:
        told = [line for line in page.prose.splitlines() if MARK.fullmatch(line.strip())]
        assert len(told) == sum(bool(block.mark) for block in page.blocks), page.name
