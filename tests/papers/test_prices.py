"""`bench scalers --figure prices`: the same tables at other prices and with a faster learner."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from replay_server.bench.papers.nitro.command import main
from replay_server.bench.papers.nitro.figure_prices import costs, fitted

GB_S = 0.0000166667
REQUEST = 0.0000002
ACT_S, LEARN_S, ROUND_S = 0.2, 0.05, 0.3


def row(actors: int, rounds: int = 50) -> dict[str, Any]:
    """A job on functions: actors of 1 GB act for ACT_S, the learner takes LEARN_S for each of them."""
    dollars = actors * (ACT_S * GB_S + REQUEST + LEARN_S * 1769 / 1024 * GB_S)
    return {"actors": actors, "time_s": rounds * ROUND_S + actors * LEARN_S, "cost": dollars}


def table() -> dict[str, Any]:
    rows = {"fixed": row(800), "nitro": row(1000), "max": row(3200)}
    rows["fixed@reserved"] = {"actors": 800, "time_s": 43.2, "cost": (3.06 + 0.68) / 60}
    rows["nitro@reserved"] = {"actors": 1000, "time_s": 90.0, "cost": (3.06 + 4 * 0.68) * 90 / 3600}
    return {"rows": rows}


def test_a_line_is_found_again_and_is_not_bent_below_zero() -> None:
    assert fitted(50, [1, 2, 3], [50 * 2 + 3, 50 * 2 + 6, 50 * 2 + 9]) == pytest.approx((2.0, 3.0, 0.0))
    round_part, actor_part, _ = fitted(50, [1, 2, 3], [1.0, 3.0, 6.0])
    assert (round_part, actor_part > 0) == (0.0, True)


def test_dollars_on_demand_grow_with_the_actors_and_with_nitros_machines_less() -> None:
    found = costs(table(), rounds=50, most=64, memory_mb=1024)
    assert found["fit"]["actor_s"] == pytest.approx(LEARN_S)
    assert found["over_fixed"]["lambda"]["max"] == pytest.approx(4.0)
    standing = 64 * 0.0000041667 + 3.06 / 3600
    for speed in (1, 20):
        seconds = {name: 50 * ROUND_S + count * LEARN_S / speed for name, count in (("fixed", 800), ("max", 3200))}
        paid = {
            name: seconds[name] * standing + count * ACT_S * 0.0000097222
            for name, count in (("fixed", 800), ("max", 3200))
        }
        assert found["over_fixed"][f"nitro, learner × {speed}"]["max"] == pytest.approx(paid["max"] / paid["fixed"])


def test_machines_are_told_by_the_second_without_the_gpu_and_for_the_clocks_own_cores() -> None:
    found = costs(table(), rounds=50, most=64, memory_mb=1024, clock_cores=36)["reserved"]
    assert (found["fixed"]["machines"], found["nitro"]["machines"]) == (1, 4)
    assert found["fixed"]["as_billed"] == pytest.approx((3.06 + 0.68) / 60)  # a minute at least
    assert found["fixed"]["by_the_second"] == pytest.approx(43.2 * (3.06 + 0.68) / 3600)
    assert found["fixed"]["by_the_second_without_gpu"] == pytest.approx(43.2 * 0.68 / 3600)
    assert found["nitro"]["clocks_own_cores"] == pytest.approx(90 * 36 / 16 * 0.68 / 3600)


def test_the_command_reads_tables_and_writes_what_it_says(tmp_path: Path) -> None:
    given, written = tmp_path / "tables.json", tmp_path / "prices.json"
    settings = {"rounds": 50, "actors_max": 64, "memory_mb": 1024}
    given.write_text(json.dumps({"settings": settings, "tables": {"Hopper-v5": table()}}))
    said: list[str] = []
    assert main(["--figure", "prices", "--tables", str(given), "--json", str(written)], say=said.append) == 0
    assert "nitro on machines, over functions" in said[-1]
    assert json.loads(written.read_text())["environments"]["Hopper-v5"]["over_fixed"]["lambda"]["max"] == pytest.approx(
        4
    )
