"""``replay-server bench invocations``: each side calls all functions of its rounds, with as many threads as it says."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

pytest.importorskip("aiohttp")
pytest.importorskip("botocore")

from replay_server.bench.invocations import main

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl")


def test_a_side_on_one_loop_has_a_fixed_number_of_threads_and_one_without_has_one_for_each(tmp_path: Path) -> None:
    file = tmp_path / "invocations.json"
    said: list[str] = []
    options = ["--invocations", "20", "--rounds", "1", "--turns", "1", "--way", "uvloop", "threads"]
    assert main([*options, "--json", str(file)], str(tmp_path), said.append) == 0
    content = json.loads(file.read_text())
    (found,) = content["rounds"]
    for platform in ("http", "lambda"):
        assert found[f"{platform}.uvloop.threads"] < 10 < 20 <= found[f"{platform}.threads.threads"]
        assert found[f"{platform}.uvloop.cpu_us_per_call"] > 0
        assert f"{platform}: cpu_us_per_call, threads / uvloop" in content["ratio"]


def test_wrong_numbers_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--invocations", "0"], str(tmp_path))
    assert ended.value.code == 2
