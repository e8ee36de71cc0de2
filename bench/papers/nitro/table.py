"""The tables of a comparison, as data and as lines: final reward, time and cost to the target, and paired differences.

As Table 2 of MinionsRL (time and dollars), with what it leaves out: how many runs reached the target, intervals, and
the reward for equal dollars and for equal samples.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from replay_server.bench.papers.nitro.campaign import FIXED, Campaign
from replay_server.bench.papers.nitro.cell import Cell, Target
from replay_server.bench.papers.nitro.measures import budget_of, reached, score_at
from replay_server.bench.papers.nitro.scheme import BOOSTED, CONTROLS, Scheme
from replay_server.bench.papers.statistics import (
    Interval,
    paired_interval,
    restricted_mean,
    stratified_interval,
)

JOBS = (1, 10, 100)
"""Over which the training of a learned scheduler is spread."""
LEARNED = "minions"


def comparison(campaign: Campaign, scheduler_dollars: float = 0.0) -> dict[str, Any]:
    """Every environment's table, of the cells that are there: what `--json` writes.

    `scheduler_dollars`: what a learned scheduler's training cost; its rows tell their cost with a share of it, too.
    """
    found = {}
    for env in campaign.environments:
        target = campaign.target(env)
        if target is not None and campaign.of(env, FIXED):  # It may have been settled by other seeds.
            found[env] = environment_table(campaign, env, target)
    if scheduler_dollars:
        add_training(found, LEARNED, scheduler_dollars)
    return found


def add_training(tables: Mapping[str, Mapping[str, Any]], scheme: str, dollars: float) -> None:
    """Tells a learned scheme's rows what a run costs with its share of the training: `cost_with_training`."""
    for table in tables.values():
        for name, row in table["rows"].items():
            if name.split(":")[0] == scheme:
                row["cost_with_training"] = {str(jobs): row["cost"] + dollars / jobs for jobs in JOBS}


def over_environments(tables: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Final rewards of all environments together, in units of fixed-16's median there; {} of fewer than two.

    Runs are resampled within each environment. A scheme that has no cell in one of them is left out, and so is an
    environment where fixed-16's median is not above 0.
    """
    units = {env: statistics.median(table["rows"][str(FIXED)]["finals"].values()) for env, table in tables.items()}
    tables = {env: table for env, table in tables.items() if units[env] > 0.0}
    if len(tables) < 2:
        return {}
    names = [
        name for name in next(iter(tables.values()))["rows"] if all(name in each["rows"] for each in tables.values())
    ]

    def shares(name: str) -> list[dict[int, float]]:
        return [
            {seed: final / units[env] for seed, final in table["rows"][name]["finals"].items()}
            for env, table in tables.items()
        ]

    rows = {name: _stratified([list(each.values()) for each in shares(name)]) for name in names}
    differences = {}
    for ours, theirs in _pairs(names):
        both = zip(shares(ours), shares(theirs), strict=True)
        pairs = [[a[seed] - b[seed] for seed in sorted(set(a) & set(b))] for a, b in both]
        if any(pairs):
            differences[f"{ours} − {theirs}"] = _stratified(pairs)
    return {"environments": list(tables), "rows": rows, "differences": differences}


def together_lines(together: Mapping[str, Any]) -> list[str]:
    """For people."""
    said = [f"{', '.join(together['environments'])}: final reward as a share of fixed-16's median"]
    for name, row in {**together["rows"], **together["differences"]}.items():
        said.append(f"  {name:34} {row['value']:.3f} ({row['low']:.3f} to {row['high']:.3f})")
    return said


def _stratified(strata: Sequence[Sequence[float]]) -> dict[str, float]:
    return dataclasses.asdict(stratified_interval(strata))


def environment_table(campaign: Campaign, env: str, target: Target) -> dict[str, Any]:
    """→ target, rows by scheme, and differences between Nitro and its controls and every scheme and fixed."""
    cells = {str(scheme): campaign.of(env, scheme) for scheme in _shown(campaign)}
    cells = {name: each for name, each in cells.items() if each}
    fixed = cells[str(FIXED)]
    if campaign.even_load:
        # As cells are told: what the busy machine made of fixed-16's dollars is no budget of theirs.
        target = dataclasses.replace(target, budget=budget_of(fixed, target.score))
    dollars = statistics.median(cell.cost[-1] for cell in fixed)
    steps = statistics.median(cell.steps[-1] for cell in fixed)
    horizons = {what: max(_until(cell, target, what)[1] for cell in fixed) for what in ("time_s", "cost")}
    rows = {name: _row(each, target, dollars, steps, horizons) for name, each in cells.items()}
    differences = {
        f"{ours} − {theirs}": _differences(cells[ours], cells[theirs], dollars, steps) for ours, theirs in _pairs(cells)
    }
    return {
        "target": {"score": target.score, "budget": target.budget if math.isfinite(target.budget) else None},
        "equal": {"dollars": dollars, "steps": steps},
        "horizon": horizons,
        "rows": rows,
        "differences": differences,
        "nitro_reproduced": _reproduced(cells, differences),
    }


def lines(env: str, table: dict[str, Any]) -> list[str]:
    """For people."""
    target, equal = table["target"], table["equal"]
    budget = f"${target['budget']:.5f}" if target["budget"] is not None else "none: fixed-16's median run missed J"
    said = [
        f"{env}: J = {target['score']:.0f} (90 % of fixed-16's median), B = {budget}; times and dollars are simulated",
        f"{'':28} {'seeds':>5} {'actors':>7} {'final reward':>24} {'reached':>7} {'s to J':>8} {'$ to J':>9} "
        f"{'s':>7} {'$':>9} {'at $' + format(equal['dollars'], '.4f'):>24} {'at ' + format(equal['steps'], '.0f'):>12}",
    ]
    for name, row in table["rows"].items():
        said.append(
            f"{name:28} {row['seeds']:5} {row['actors']:7.0f} {_told(row['final']):>24} {row['reached']:7.0%} "
            f"{row['time_s_to_target']:8.1f} {row['cost_to_target']:9.5f} {row['time_s']:7.1f} {row['cost']:9.5f} "
            f"{_told(row['at_equal_dollars']):>24} {row['at_equal_steps']['value']:12.0f}"
        )
        if "cost_with_training" in row:
            shares = ", ".join(f"${dollars:.5f} of {jobs}" for jobs, dollars in row["cost_with_training"].items())
            said.append(f"  with its share of the scheduler's training, jobs: {shares}")
    for name, row in table["differences"].items():
        parts = [f"{what} {_told(row[what])}" for what in ("final", "at_equal_dollars", "at_equal_steps")]
        said.append(f"  {name:34} " + "; ".join(parts) + f" ({row['seeds']} pairs)")
    verdict = table["nitro_reproduced"]
    if verdict is not None:
        said.append(
            f"  Nitro above decay alone and above its own counts shuffled, clear of 0: {'yes' if verdict else 'no'}"
        )
    return said


def _told(interval: dict[str, float]) -> str:
    return f"{interval['value']:.0f} ({interval['low']:.0f} to {interval['high']:.0f})"


def _shown(campaign: Campaign) -> list[Scheme]:
    schemes = [FIXED, *campaign.schemes]
    if any(each.needs_boosted for each in schemes):
        schemes.insert(1, Scheme(BOOSTED))
    return list(dict.fromkeys(schemes))


def _row(
    cells: Sequence[Cell], target: Target, dollars: float, steps: float, horizons: dict[str, float]
) -> dict[str, Any]:
    to_target = {what: [_until(cell, target, what) for cell in cells] for what in horizons}
    return {
        "seeds": len(cells),
        "actors": statistics.median(cell.actors for cell in cells),
        "final": _interval([cell.final for cell in cells]),
        "finals": {cell.seed: cell.final for cell in cells},
        "reached": sum(at is not None for at, _ in to_target["cost"]) / len(cells),
        **{
            f"{what}_to_target": restricted_mean([at for at, _ in each], [whole for _, whole in each], horizons[what])
            for what, each in to_target.items()
        },
        "time_s": statistics.median(cell.elapsed_s[-1] for cell in cells),
        "cost": statistics.median(cell.cost[-1] for cell in cells),
        "at_equal_dollars": _interval([score_at(cell, cell.cost, dollars) for cell in cells]),
        "ended_before_equal_dollars": sum(cell.cost[-1] < dollars for cell in cells) / len(cells),
        "at_budget": _interval([score_at(cell, cell.cost, target.budget) for cell in cells])
        if math.isfinite(target.budget)
        else None,
        "at_equal_steps": _interval([score_at(cell, cell.steps, steps) for cell in cells]),
        "wall_s": statistics.median(cell.wall_s for cell in cells),
    }


def _until(cell: Cell, target: Target, what: str) -> tuple[float | None, float]:
    """When, or at what cost, the run reached the target, and how far it was followed."""
    found = reached(cell, target.score)
    whole = cell.elapsed_s[-1] if what == "time_s" else cell.cost[-1]
    return (getattr(found, what) if found else None), whole


def _pairs(cells: Collection[str]) -> list[tuple[str, str]]:
    against_fixed = [(name, str(FIXED)) for name in cells if name != str(FIXED)]
    if BOOSTED not in cells:
        return against_fixed
    return [*((BOOSTED, name) for name in cells if name in CONTROLS), *against_fixed]


def _differences(ours: list[Cell], theirs: list[Cell], dollars: float, steps: float) -> dict[str, Any]:
    """Paired by seed, of the seeds that both have."""
    seeds = sorted({cell.seed for cell in ours} & {cell.seed for cell in theirs})
    a, b = ({cell.seed: cell for cell in each} for each in (ours, theirs))
    values = {
        "final": [(a[seed].final, b[seed].final) for seed in seeds],
        "at_equal_dollars": [
            tuple(score_at(each[seed], each[seed].cost, dollars) for each in (a, b)) for seed in seeds
        ],
        "at_equal_steps": [tuple(score_at(each[seed], each[seed].steps, steps) for each in (a, b)) for seed in seeds],
    }
    intervals = {
        what: dataclasses.asdict(paired_interval(*map(list, zip(*each, strict=True)))) if each else None
        for what, each in values.items()
    }
    return {"seeds": len(seeds), **intervals}


def _reproduced(cells: dict[str, list[Cell]], differences: dict[str, Any]) -> bool | None:
    """Whether Nitro beats decay alone and shuffled counts, paired by seed, clear of 0; None while one is missing."""
    names = [f"{BOOSTED} − {control}" for control in ("decay", "shuffled")]
    if not all(name in differences and differences[name]["seeds"] >= 2 for name in names):
        return None
    return all(differences[name]["final"]["low"] > 0.0 for name in names)


def _interval(values: Sequence[float]) -> dict[str, float]:
    found: Interval = stratified_interval([values])
    return dataclasses.asdict(found)
