"""``replay-server bench fairness`` measures every way and writes what it measured."""

from __future__ import annotations

import json

from replay_server.bench.fairness import LARGE, WAYS
from replay_server.bench.main import main


def test_the_fairness_benchmark_measures_every_way(tmp_path, capsys):
    file = tmp_path / "fairness.json"
    sizes = ["--batch", "64", "--capacity", "600", "--large", "20000"]
    arguments = [*sizes, "--seconds", "0.2", "--rounds", "1", "--json", str(file)]
    assert main(["fairness", *arguments]) == 0
    content = json.loads(file.read_text())
    for way in (*WAYS, *(f"large.{command}" for command in LARGE)):
        assert content["median"][f"{way}.batches_per_s"] > 0
        assert 0 < content["median"][f"{way}.ping_us_p50"] <= content["median"][f"{way}.ping_us_p99"]
    assert all(content["median"][f"large.{command}.loop_turn_us_max"] > 0 for command in LARGE)
    assert content["ratio"]["shared / memcpy"] > 0
    assert "shared" in capsys.readouterr().out
