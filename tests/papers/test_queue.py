"""`bench queue`: runs one after the other, of which none is done twice and none is lost."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from replay_server.arguments import Parser
from replay_server.bench.main import find
from replay_server.bench.papers import queue
from replay_server.bench.papers.queue import RUNS, Run, play
from replay_server.rl.folder_lock import FolderInUse, alone_in

RUN = Run("hopper", "a claim", "scalers --folder {cells} --seeds 1 2")


def writing(seen: list[list[str]], status: int = 0) -> Callable[[Sequence[str]], int]:
    def start(words: Sequence[str]) -> int:
        seen.append(list(words))
        Path(words[-1]).write_text(json.dumps({"status": status}))
        return status

    return start


def test_a_run_keeps_its_cells_apart_and_is_done_once(tmp_path: Path) -> None:
    seen: list[list[str]] = []
    said: list[str] = []
    assert all(play(RUN, tmp_path, said.append, writing(seen)) for _ in range(2))
    cells = str(tmp_path / "cells" / "hopper")
    assert seen == [["scalers", "--folder", cells, "--seeds", "1", "2", "--json", str(tmp_path / "hopper.part")]]
    assert json.loads((tmp_path / "hopper.json").read_text()) == {"status": 0}


def test_a_run_that_failed_leaves_no_result_and_is_tried_again(tmp_path: Path) -> None:
    seen: list[list[str]] = []
    said: list[str] = []

    def breaks(words: Sequence[str]) -> int:
        raise ValueError("a file that is damaged")

    assert not play(RUN, tmp_path, said.append, breaks)
    assert said[-1] == "hopper: ValueError: a file that is damaged"
    assert not play(RUN, tmp_path, said.append, writing(seen, status=1))
    assert not (tmp_path / "hopper.json").exists()
    assert play(RUN, tmp_path, said.append, writing(seen))


def test_one_queue_at_a_time_is_at_work_in_a_folder(tmp_path: Path) -> None:
    with alone_in(tmp_path), pytest.raises(FolderInUse):
        queue.main(["--folder", str(tmp_path), "--only", "minions-7"])


def test_what_is_listed_says_what_is_done(tmp_path: Path) -> None:
    (tmp_path / "minions-7.json").write_text("{}")
    said: list[str] = []
    assert queue.main(["--folder", str(tmp_path), "--list"], say=said.append) == 0
    assert len(said) == len(RUNS) == len({run.name for run in RUNS})
    assert [line.split()[1] for line in said if line.startswith("done")] == ["minions-7"]


@pytest.mark.parametrize("run", RUNS, ids=lambda run: run.name)
def test_each_run_is_a_command_that_its_benchmark_takes(run: Run, tmp_path: Path, monkeypatch) -> None:
    """Its parser takes all of it; nothing is run."""

    class Parsed(Exception):
        pass

    parse = Parser.parse_args

    def parsed(parser: Parser, *arguments: Any) -> None:
        parse(parser, *arguments)
        raise Parsed

    monkeypatch.setattr(Parser, "parse_args", parsed)
    name, *words = run.command(tmp_path)
    with pytest.raises(Parsed):
        find(name)([*words, "--json", str(tmp_path / "found.json")], str(tmp_path))
