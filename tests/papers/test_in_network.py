"""``replay-server bench figures``: every figure is measured, drawn, and set beside what the paper had."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from replay_server.bench.main import main
from replay_server.bench.namespace import Namespace, NamespaceError
from replay_server.bench.papers.in_network import FIGURES, breakdown, figure, parts, sampling
from replay_server.bench.sides import SIDES

# With each the kernel's side is measured too, to compare with.
SIDE = "kernel"
OTHERS = ["redis", "dpdk_af_packet"]


@pytest.fixture(autouse=True)
def _hosts() -> None:
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("needs two processors")
    try:
        Namespace("probe").close()
    except NamespaceError as error:
        pytest.skip(str(error))


def run(name: str, sides: list[str], folder: Path, *options: str) -> dict:
    arguments = [*options, *(word for side in sides for word in ("--side", side))]
    where = ["--json", str(folder), "--plot", str(folder)]
    assert main(["figures", "--quick", "--figure", name, *arguments, *where]) == 0
    assert (folder / f"{name}.png").stat().st_size > 5_000
    return json.loads((folder / f"{name}.json").read_text())


@pytest.mark.parametrize("other", OTHERS)
@pytest.mark.parametrize("name", [name for name in FIGURES if name != "breakdown"])
def test_a_figure_is_measured_on_every_side(name: str, other: str, tmp_path: Path) -> None:
    if reason := SIDES[other].missing():
        pytest.skip(f"{other}: {reason}")
    # Sizes of the paper take long even when they are cut for this; over one other side they are enough.
    sizes = ("--sizes", "own") if name == "sampling" and other != "redis" else ()
    content = run(name, [SIDE, other], tmp_path, *sizes)
    assert content["settings"]["not_measured"] == {}
    sides = {measured.split(".")[2 if name != "edge" else 1] for measured in content["median"]}
    assert {SIDE, other} <= sides
    values = {measured: value for measured, value in content["median"].items() if "latency_us" in measured}
    values |= {measured: value for measured, value in content["median"].items() if measured.endswith("_per_s")}
    assert values
    assert all(value > 0 for value in values.values())
    assert content["ratio"]
    assert any(line.startswith("the paper: ") for line in content["findings"])


@pytest.mark.parametrize("other", [None, "dpdk_af_packet"])
def test_the_time_of_real_parts_is_broken_down(other: str | None, tmp_path: Path) -> None:
    if other is not None and (reason := SIDES[other].missing()):
        pytest.skip(f"{other}: {reason}")
    side = other or SIDE
    content = run("breakdown", [side], tmp_path)
    for part, phases in breakdown.PHASES.items():
        whats = [f"own.{part}_{phase.removesuffix('_s')}.{side}.1.share" for phase in (*phases, "other_s")]
        shares = [content["median"][what] for what in whats]
        assert all(0 <= share <= 1 for share in shares)
        assert sum(shares) == pytest.approx(1, abs=0.1)
    assert content["median"][f"own.actor_transitions.{side}.1.items_per_s"] > 0
    assert content["median"][f"own.learner_updates.{side}.1.batches_per_s"] > 0


def test_what_a_part_spent_is_taken_from_the_reports_of_the_same_time() -> None:
    rows: list[parts.Row] = [(float(t), {"push_s": 0.25 * t, "pull_s": 0.0}) for t in range(10)]
    spent = parts.spent(rows, 3.2, 6.1, ("push_s", "pull_s"))
    assert spent == {"push_s": 1.0, "pull_s": 0.0, "elapsed_s": 4.0}
    with pytest.raises(RuntimeError, match="too short: 0 reports"):
        parts.spent(rows, 20, 30, ("push_s",))


def test_changes_are_medians_within_rounds_and_their_range_over_what_is_selected() -> None:
    sides = ("kernel", "dpdk_af_xdp", "redis")
    names = [figure.name("own", "push", side, actors) for side in sides for actors in (1, 2)]
    faster = {figure.name("own", "push", "dpdk_af_xdp", actors): value for actors, value in ((1, 60.0), (2, 41.0))}
    rounds = [{name: number * faster.get(name, 100.0) for name in names} for number in (1, 2, 5)]
    ratios = figure.ratios_between_sides(names)
    assert "own push actors=1 dpdk_af_xdp / kernel" in ratios
    assert "own push actors=2 kernel / redis" in ratios
    assert not any(of.endswith("/ dpdk_af_xdp") for of in ratios)
    lines = figure.findings_by_side(rounds, ratios, {"push": "actor push"}, "−32.7 % to −58.9 %")
    assert lines[:2] == [
        "the paper: −32.7 % to −58.9 %",
        "own sizes, dpdk_af_xdp over kernel: actor push -59.0 % to -40.0 %",
    ]


def test_sampling_in_the_server_is_compared_with_pulling_all() -> None:
    names = [figure.name("own", f"{what}_32", side, 1) for what in ("pull", "sample") for side in ("kernel", "redis")]
    ratios = sampling.ratios_of([name for name in names if name != figure.name("own", "sample_32", "redis", 1)])
    assert ratios["own sample_32 actors=1 kernel / pull_32 kernel"] == (names[2], names[0])
    assert ratios["own sample_32 actors=1 kernel / pull_32 redis"] == (names[2], names[1])
