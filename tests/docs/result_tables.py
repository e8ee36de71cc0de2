"""The numbers in the tables of result pages, and the files of docs/benchmarks that they come from.

A comment above a table names the file, and for each row the leaves of it that the row is made of:

    <!-- numbers: benchmarks/scalers/hopper.json; not: the paper
    rows.fixed.
    rows.nitro. , differences.nitro_−_decay
    -
    -->

A line selects the leaves whose path contains all of its words; " , " joins selections, and a word may be a file of its
own, `@benchmarks/other.json`. `-` is a row that shows no number of ours. A blank within a word is
written `_`. The first column is a label, and is not looked up; nor are the columns behind `not:`.

A leaf is a number of the file, at its path joined by dots, or one that follows from it:

    PATH.mean, .median, .lowest, .highest     of a list
    KEY / SIDE, .lowest, .highest             of the ratio to another side within each round: median and range
    KEY % SIDE                                ratio of the medians
    method.NAME.delay=0.…, .low, .high        of Stellaris' files: scores and differences to synchronous with intervals

A number is backed if one of its row's leaves, in a unit that its name allows, is rounded to it.
"""

from __future__ import annotations

import json
import math
import re
import statistics
from collections.abc import Iterator
from dataclasses import astuple, dataclass
from functools import cache
from pathlib import Path
from typing import Any

from replay_server.bench.learning import paired_difference
from replay_server.bench.papers.statistics import paired_interval, stratified_interval

DOCS = Path(__file__).resolve().parents[2] / "docs"
COMMENT = re.compile(r"<!-- numbers: ([^\n]+)\n((?:(?!-->).)*)-->\s*$", re.DOTALL)
NUMBER = re.compile(r"(?<![\w.,^-])([+−]?)(\d{1,3}(?:,\d{3})+|\d+)(\.\d+)?(?![\w²³⁶⁷]|\.\d)( %| k\b| M\b)?")
UNASKED = ("rounds.", "machine.", "settings.")
"""Leaves that a line has to name."""
SCALES = {" k": 1e3, " M": 1e6}
STATISTICS = {"mean": statistics.fmean, "median": statistics.median, "lowest": min, "highest": max}


@dataclass(frozen=True)
class Table:
    """One table of a page. `line` is of its heading, from 1; `comment` the lines above it that say where it is from."""

    line: int
    heading: list[str]
    rows: list[list[str]]
    comment: str | None


@dataclass(frozen=True)
class Number:
    """As it is shown: `value` in its unit, within `half` of what it was rounded from."""

    shown: str
    value: float
    half: float
    percent: bool


def tables(text: str) -> Iterator[Table]:
    """All tables of a page, those in blocks of code left out by the caller."""
    lines = text.splitlines()
    for at, line in enumerate(lines):
        if at == 0 or not re.fullmatch(r"\|(?:\s*:?-+:?\s*\|)+", line):
            continue
        end = at + 1
        while end < len(lines) and lines[end].startswith("|"):
            end += 1
        found = COMMENT.search("\n".join(lines[: at - 1]))
        yield Table(at, cells(lines[at - 1]), [cells(each) for each in lines[at + 1 : end]], found and found[0])


def cells(line: str) -> list[str]:
    return [each.strip() for each in re.split(r"(?<!\\)\|", line.strip().strip("|"))]


def numbers(cell: str) -> Iterator[Number]:
    """What a reader takes for a result: no number in code, in a link's target, or inside of a word."""
    bare = re.sub(r"`[^`]*`", " ", re.sub(r"\]\([^)]*\)", "]", cell)).replace("*", "")
    for found in NUMBER.finditer(bare):
        sign, whole, part, unit = found.groups()
        scale = SCALES.get(unit or "", 1.0)
        value = float(whole.replace(",", "") + (part or "")) * (-1 if sign == "−" else 1)
        digits = len(part) - 1 if part else 0
        yield Number(found[0].strip(), value * scale, 0.5 * 10.0**-digits * scale, unit == " %")


def unbacked(table: Table) -> list[str]:
    """Row and number of all in a table that its file does not back. ValueError for a comment that selects nothing."""
    assert table.comment is not None
    found = COMMENT.search(table.comment)
    assert found is not None
    head, *excluded = (part.strip() for part in found[1].split("; not:"))
    left_out = {name.strip() for part in excluded for name in part.split(";")}
    lines = [line.strip() for line in found[2].strip().splitlines()]
    if len(lines) != len(table.rows):
        raise ValueError(f"expected a line for each of {len(table.rows)} rows, got {len(lines)}")
    missing = []
    for words, row in zip(lines, table.rows, strict=True):
        shown = [
            (name, number)
            for name, cell in list(zip(table.heading, row, strict=True))[1:]
            if name not in left_out
            for number in numbers(cell)
        ]
        leaves = [] if words == "-" else [each for part in words.split(" , ") for each in selected(part, head)]
        missing += [
            f"{row[0]} / {name}: {number.shown}"
            for name, number in shown
            if not any(backs(path, value, number) for path, value in leaves)
        ]
    return missing


def selected(line: str, default: str) -> list[tuple[str, float]]:
    """The leaves that a line of a comment selects. ValueError if there is none."""
    words = line.split()
    files = [word[1:] for word in words if word.startswith("@")] or [default]
    words = [word for word in words if not word.startswith("@")]
    leaves = [leaf for file in files for leaf in of_file(file, _sides(words))]
    hidden = [part for part in UNASKED if not any(word.startswith(part) for word in words)]
    found = [
        (path, value)
        for path, value in leaves
        if not path.startswith(tuple(hidden)) and all(word in path or word.replace("_", " ") in path for word in words)
    ]
    if not found:
        raise ValueError(f"nothing in {files} has all of {words}")
    return found


def _sides(words: list[str]) -> str:
    """The other side of a ratio: what stands behind / or %."""
    return next((f"{word} {words[at + 1]}" for at, word in enumerate(words[:-1]) if word in "/%"), "")


def backs(path: str, value: float, number: Number) -> bool:
    """Whether this leaf, in one of the units that its name allows, is rounded to that number."""
    scaled = [value]
    if number.percent:
        scaled = [100 * value, 100 * (value - 1)]
    elif "_us" in path or "byte" in path:
        scaled += [value / 1e3, value / 1e6, value / 1e9]
    elif "_ms" in path:
        scaled += [value / 1e3]
    return any(abs(each - number.value) <= number.half * (1 + 1e-9) + 1e-12 for each in scaled)


@cache
def of_file(name: str, sides: str = "") -> list[tuple[str, float]]:
    """All leaves of a file of docs/, derived ones too; of two sides their ratios as well."""
    content = json.loads((DOCS / name).read_text())
    found = list(_leaves(content, ""))
    if content.get("name") == "stellaris" and "methods" in content:
        found += list(_stellaris(content["methods"]))
    if content.get("name") == "learning":
        found += list(_learning(content))
    if sides:
        found += list(_ratios(content["rounds"], *sides.split()))
    return [(path, value) for path, value in found if math.isfinite(value)]


def _leaves(value: Any, path: str) -> Iterator[tuple[str, float]]:
    if isinstance(value, bool) or value is None or isinstance(value, str):
        return
    if isinstance(value, (int, float)):
        yield path, float(value)
        return
    named = value.items() if isinstance(value, dict) else enumerate(value)
    for name, each in named:
        yield from _leaves(each, f"{path}.{name}" if path else str(name))
    plain = list(value.values() if isinstance(value, dict) else value)
    of_seeds = (isinstance(value, list) and not path.startswith("spread.")) or path.endswith("finals")
    if of_seeds and len(plain) > 1 and all(isinstance(each, (int, float)) for each in plain):
        for name, statistic in STATISTICS.items():
            yield f"{path}.{name}", float(statistic(plain))


def _learning(content: dict[str, Any]) -> Iterator[tuple[str, float]]:
    """Of a comparison of agents: scores by seed, their means, and the paired difference."""
    sides = [side for side in ("replay", content["settings"].get("against")) if side]
    scores = [
        [value for each in content["rounds"] for key, value in each.items() if key.endswith(f".{side}.score")]
        for side in sides
    ]
    for side, values in zip(sides, scores, strict=True):
        yield from ((f"score.{side}.{number}", value) for number, value in enumerate(values))
        yield f"score.{side}.mean", statistics.fmean(values)
    if len(scores) == 2:
        yield from (
            (f"score.difference.{name}", value) for name, value in paired_difference(scores[0], scores[1]).items()
        )


def _ratios(rounds: list[dict[str, float]], kind: str, other: str) -> Iterator[tuple[str, float]]:
    """Of every measurement that another side has as well."""
    for key in rounds[0]:
        parts = key.split(".")
        for at, part in enumerate(parts):
            below = ".".join([*parts[:at], other, *parts[at + 1 :]])
            if part == other or below == key or any(below not in each or not each[below] for each in rounds):
                continue
            taken = [(each[key], each[below]) for each in rounds if key in each]
            name = f"{key} {kind} {other}"
            if kind == "/":
                ratios = [above / under for above, under in taken]
                yield name, statistics.median(ratios)
                yield f"{name}.lowest", min(ratios)
                yield f"{name}.highest", max(ratios)
            else:
                yield name, statistics.median(a for a, _ in taken) / statistics.median(b for _, b in taken)


def _stellaris(methods: list[dict[str, Any]]) -> Iterator[tuple[str, float]]:
    """What `replay_server.bench.papers.stellaris.table` tells of each method, held against synchronous."""
    baselines = {(each["env"], each["delay"]): each for each in methods if each["method"] == "synchronous"}
    for told in methods:
        base = baselines[told["env"], told["delay"]]
        where = f"method.{told['method']}.delay={str(told['delay']).partition(':')[0]}."
        intervals = {"final": stratified_interval([told["final"]])}
        for name, ours, theirs in (
            ("final.apart", told["final"], base["final"]),
            ("equal_time.apart", told["at_equal_time"], told["baseline_at_equal_time"]),
            ("equal_cost.apart", told.get("at_equal_cost", []), told.get("baseline_at_equal_cost", [])),
        ):
            pairs = [each for each in zip(ours, theirs, strict=True) if not any(map(math.isnan, each))]
            if pairs and told is not base:
                intervals[name] = paired_interval(*zip(*pairs, strict=True))
        for other in (each for each in methods if told["method"] == "stellaris" and each is not base):
            if (other["env"], other["delay"]) == (told["env"], told["delay"]) and other is not told:
                intervals[f"final.above_{other['method']}"] = paired_interval(told["final"], other["final"])
        intervals |= {
            name: stratified_interval([told[name]]) for name in ("time_ratios", "cost_ratios") if name in told
        }
        for name, each in intervals.items():
            yield from ((f"{where}{name}{end}", value) for end, value in zip(("", ".low", ".high"), astuple(each)))
        yield f"{where}seeds.above", float(sum(a > b for a, b in zip(told["final"], base["final"], strict=True)))
        yield f"{where}seeds", float(len(told["final"]))
        yield f"{where}time", told["time_s"] / base["time_s"]
        yield f"{where}cost", told["cost"] / base["cost"]
        shown = ("staleness", "truncated_fraction", "utilization", "kl_of_round")
        yield from ((f"{where}{name}", told[name]) for name in shown if name in told)
