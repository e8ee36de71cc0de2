"""What is kept of what was seen: histories, growing files, and the shapes that charts are made of."""

from __future__ import annotations

import json
from pathlib import Path

from replay_server.dashboard import charts, gantt, words
from replay_server.dashboard.history import History
from replay_server.dashboard.json_lines import JsonLines


def test_a_history_stays_bounded_and_keeps_its_ends() -> None:
    history = History(limit=50)
    for second in range(1000):
        history.add(1000.0 + second, {"count": 10.0 * second})
    assert len(history) <= 50
    assert history.times[0] == 1000.0
    assert history.times[-1] >= 1000.0 + 1000 - 1 - (history.times[-1] - history.times[-2])
    assert history.times == sorted(history.times)


def test_rates_are_exact_whatever_was_left_out() -> None:
    history = History(limit=50)
    for second in range(1000):
        history.add(float(second), {"count": 10.0 * second})
    rates = history.rate("count")
    assert rates[0] is None
    assert {round(rate, 9) for rate in rates[1:] if rate is not None} == {10.0}
    assert None not in rates[1:]


def test_a_counter_that_begins_again_gives_no_rate_there() -> None:
    history = History()
    for second, count in enumerate([100.0, 110.0, 120.0, 0.0, 7.0, 14.0]):
        history.add(float(second), {"count": count})
    rates = history.rate("count")
    assert rates[:3] == [None, 10.0, 10.0]
    assert rates[3] is None
    assert rates[4:] == [7.0, 7.0]


def test_a_gap_stays_a_gap() -> None:
    history = History()
    history.add(0.0, {"count": 1.0})
    history.add(1.0, {})
    history.add(2.0, {"count": 5.0})
    history.add(3.0, {"count": 9.0})
    assert history.column("count") == [1.0, None, 5.0, 9.0]
    assert history.rate("count") == [None, None, None, 4.0]
    assert history.column("unknown") == [None] * 4


def test_a_name_that_comes_later_has_nothing_before() -> None:
    history = History()
    history.add(0.0, {"a": 1.0})
    history.add(1.0, {"a": 2.0, "b": 3.0})
    assert history.column("b") == [None, 3.0]
    assert history.points("b") == [[0, None], [1000, 3.0]]


def test_a_growing_file_is_read_once_and_by_whole_lines(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    lines = JsonLines(path)
    assert lines.read() == (False, [])
    path.write_text('{"a": 1}\n{"a": 2')
    assert lines.read() == (False, [{"a": 1}])
    with open(path, "a") as file:
        file.write('}\nnot json\n[1]\n{"a": 3}\n')
    assert lines.read() == (False, [{"a": 2}, {"a": 3}])
    assert lines.read() == (False, [])


def test_a_file_that_was_cut_is_read_from_its_start(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"a": 1}\n{"a": 2}\n')
    lines = JsonLines(path)
    lines.read()
    path.write_text('{"a": 9}\n')
    assert lines.read() == (True, [{"a": 9}])


def test_functions_that_overlap_lie_in_lanes_of_their_own() -> None:
    times = [(0, 1, 5), (0, 1, 3), (3, 3, 4), (4, 4, 6), (5, 5, 7)]
    invocations = [{"queued": queued, "started": started, "ended": ended} for queued, started, ended in times]
    found = gantt.lanes(invocations)
    assert found == [0, 1, 1, 1, 0]


def test_a_bar_has_the_colour_of_what_it_was() -> None:
    common = {"request": "r1-a0", "kind": "actor", "attempt": 1, "queued": 10.0, "started": 11.0, "ended": 13.0}
    cold = {**common, "outcome": "ok", "cold": True, "measured": {"startup_s": 0.2, "import_s": 0.3}}
    lost = {**common, "outcome": "lost", "cold": False, "measured": None}
    bars = gantt.bars([cold, lost], lambda time_s: time_s - 10.0)
    assert [bar["value"][1:] for bar in bars] == [
        [0.0, 1.0, gantt.COLORS["queued"]],
        [1.0, 1.5, gantt.COLORS["cold start"]],
        [1.5, 3.0, gantt.COLORS["actor"]],
        [0.0, 1.0, gantt.COLORS["queued"]],
        [1.0, 3.0, gantt.COLORS["failed, timed out, lost"]],
    ]
    assert json.dumps(gantt.chart([cold, lost], lambda time_s: time_s - 10.0))


def test_thinning_keeps_both_ends_and_every_gap() -> None:
    points = [[index, None if index == 501 else index] for index in range(1000)]
    thinned = charts.thin(points, 100)
    assert len(thinned) <= 103
    assert thinned[0] == [0, 0]
    assert thinned[-1] == [999, 999]
    assert [501, None] in thinned


def test_numbers_are_written_as_people_read_them() -> None:
    assert [words.number(each) for each in (0, 12, 1250, 12_500, 1_250_000, 0.03125, 448.2, None, float("nan"))] == [
        "0", "12", "1,250", "12.5 k", "1.25 M", "0.0312", "448", "–", "–",
    ]  # fmt: skip
    assert words.number(999_999) == "1 M"
    assert [words.size(each) for each in (0, 999, 1500, 28_000_000)] == ["0 B", "999 B", "1.5 kB", "28 MB"]
    assert [words.duration(each) for each in (4.2, 187, 7500, 273_600)] == ["4 s", "3:07 min", "2:05 h", "3 d 4 h"]
    assert [words.microseconds(each) for each in (3.84, 1500, 2_500_000)] == ["3.84 µs", "1.5 ms", "2.5 s"]
