"""What others wrote that is broken, strange, old, late or from another clock: shown as what it is, or not at all."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from looked_at import FakeApex, fill, prioritized, write_train

import replay_server as rs
from replay_server.dashboard import charts, gantt, run_source, style, watch
from replay_server.dashboard.apex_view import ACTOR_COLORS, ApexView
from replay_server.dashboard.json_lines import finite
from replay_server.dashboard.run_source import MOST_VALUES, RunSource, runs_below
from replay_server.dashboard.server_panels import DECADES, histogram_options, server_banner
from replay_server.dashboard.server_source import MOST_TABLES, Reading, ServerSource
from replay_server.dashboard.server_view import ServerView
from replay_server.dashboard.top import as_json, as_text
from replay_server.dashboard.train_view import TrainView
from replay_server.dashboard.view import Fact, Panel, Shown, Tile
from replay_server.dashboard.watch import Watch

NOT_NUMBERS = [float("nan"), float("inf"), None, "text", [1], {"a": 1}, True, 1e308, -1, 10**400]


def everything(watched: Watch) -> str:
    """All that is shown of the first run, as JSON that browsers read; fails where something cannot be shown."""
    run = watched.runs[0]
    view = (TrainView if run.kind == "train" else ApexView)(run, watched, watched.compare)
    facts = [dataclasses.asdict(fact) for tile in view.tiles if (fact := tile.fact()) is not None]
    panels = [panel.options() if panel.options is not None else panel.rows() for panel in view.panels if panel.options or panel.rows]  # type: ignore[misc]  # fmt: skip  # noqa: E501
    notes = [panel.note() for panel in view.panels if panel.note is not None]
    for fact in facts:
        fact.pop("share")
    head = [view.title, view.subtitle, view.state, str(view.banner()), view.gist(), as_text(watched)]
    return json.dumps([facts, panels, notes, head], allow_nan=False)


def changed(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    for row in rows:
        change(row)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def all_but(*kept: str, value: Any) -> Callable[[dict[str, Any]], None]:
    def change(row: dict[str, Any]) -> None:
        row.update({name: value for name in row if name not in kept})

    return change


def looked(path: Path, compare: Path | None = None) -> Watch:
    made = Watch([], [path], compare)
    for _ in range(3):
        made.look()
    return made


@pytest.mark.parametrize("value", NOT_NUMBERS, ids=lambda value: str(value)[:9])
def test_a_field_may_be_anything(value: Any, fake_apex: Callable[..., FakeApex], tmp_path: Path) -> None:
    job = fake_apex()
    job.write_rows(4)
    changed(job.path / "metrics.jsonl", all_but("kind", "time_s", value=value))
    everything(looked(job.path))
    kept_in = {
        "metrics.jsonl": ("kind", "time_s"),
        "invocations.jsonl": ("queued", "started", "ended"),
        "config.json": ("algo", "rounds"),
    }
    for number, (file, kept) in enumerate(kept_in.items()):
        path = tmp_path / str(number)
        write_train(path, rounds=4)
        changed(path / file, all_but(*kept, value=value))
        everything(looked(path))


@pytest.mark.parametrize("value", NOT_NUMBERS, ids=lambda value: str(value)[:9])
def test_settings_and_times_may_be_anything(value: Any, fake_apex: Callable[..., FakeApex], tmp_path: Path) -> None:
    job = fake_apex()
    job.write_rows(4)
    changed(job.path / "config.json", all_but("table", value=value))
    everything(looked(job.path))
    changed(job.path / "metrics.jsonl", all_but("kind", value=value))
    changed(job.path / "job.json", all_but("kind", value=value))
    (job.path / "summary.json").write_text(json.dumps({"eval_mean": value, "ended_by": value, "frames_per_s": value}))
    everything(looked(job.path))
    write_train(tmp_path / "train", rounds=3)
    changed(tmp_path / "train" / "invocations.jsonl", all_but("kind", value=value))
    everything(looked(tmp_path / "train"))


def test_a_run_of_an_earlier_version_is_shown_with_what_it_has(fake_apex: Callable[..., FakeApex]) -> None:
    job = fake_apex()
    job.write_rows(4)
    changed(job.path / "metrics.jsonl", lambda row: [row.pop(name) for name in list(row) if name not in ("kind", "time_s", "loss")])  # type: ignore[arg-type]  # fmt: skip  # noqa: E501
    (job.path / "job.json").unlink()
    shown = looked(job.path)
    everything(shown)
    assert shown.runs[0].state == "unknown"
    assert shown.runs[0].began_s == job.began_s


def test_a_run_that_has_just_begun_has_nothing_to_show_yet(fake_apex: Callable[..., FakeApex], tmp_path: Path) -> None:
    shown = looked(fake_apex().path)
    assert '"none yet"' in everything(shown)
    assert shown.runs[0].began_s == shown.runs[0].job["started_s"]
    write_train(tmp_path / "train", rounds=0)
    assert '"0 of 20"' in everything(looked(tmp_path / "train"))


def test_what_is_no_number_is_told_from_one() -> None:
    assert [finite(each) for each in NOT_NUMBERS] == [None] * 7 + [1e308, -1, None]
    assert finite("7", 3.0) == 3.0


def test_a_failure_of_one_panel_is_that_panels_own() -> None:
    def broken() -> Any:
        raise KeyError("it")

    assert Tile("broken", broken).shown() == Fact("–", "cannot be shown")
    assert Panel("broken", 4, broken).shown() == (None, "cannot be shown")
    assert Panel("broken", 4, rows=broken).shown() == ([], "cannot be shown")
    assert Panel("whole", 4, dict, note=lambda: "as it is").shown() == ({}, "as it is")


def test_programs_are_given_numbers_or_nothing(fake_apex: Callable[..., FakeApex]) -> None:
    job = fake_apex()
    job.write_rows(2)
    changed(job.path / "metrics.jsonl", all_but("kind", "time_s", value=float("nan")))
    newest = as_json(looked(job.path))["jobs"][0]["newest"]
    assert newest["evaluation"]["score_mean"] is None
    assert json.dumps(newest, allow_nan=False)


# ---- long and many ---------------------------------------------------------------------------------------------------


def test_a_long_file_is_read_in_pieces_and_said_to_be(
    fake_apex: Callable[..., FakeApex], monkeypatch: pytest.MonkeyPatch
) -> None:
    job = fake_apex(actors=1)
    job.write_rows(9000)  # Some megabytes.
    monkeypatch.setattr(watch, "LOOK_S", 0.0)
    shown = Watch([], [job.path])
    run = shown.runs[0]
    assert run.behind
    assert 0.0 < run.read_share < 1.0
    banner = ApexView(run, shown).banner()
    assert banner is not None
    assert banner.text.startswith("Still reading what the run has written: ")
    shown.look()
    assert run.read_share == 1.0
    assert run.rows["progress"][-1]["elapsed_s"] == 10.0 * 8999


def test_one_look_reads_on_while_there_is_time(
    fake_apex: Callable[..., FakeApex], monkeypatch: pytest.MonkeyPatch
) -> None:
    job = fake_apex(actors=1)
    job.write_rows(9000)
    monkeypatch.setattr(watch, "LOOK_S", 60.0)
    shown = Watch([], [job.path])
    shown.look_at_files()
    assert not shown.runs[0].behind


def test_long_rows_are_kept_in_less_number(fake_apex: Callable[..., FakeApex]) -> None:
    job = fake_apex(actors=1000)
    job.write_rows(800)
    run = RunSource(job.path)
    run.look()
    while run.behind:
        run.look()
    rows = run.rows["progress"]
    assert sum(len(row) for row in rows) <= MOST_VALUES
    assert (rows[0]["elapsed_s"], rows[-1]["elapsed_s"]) == (0.0, 7990.0)


def test_more_tables_than_are_asked_for_are_said_to_be(server: rs.Server, client: rs.Client) -> None:
    for number in range(MOST_TABLES):
        client.create_table(prioritized(f"table-{number}", capacity=10))
    fill(client, "table-40", 5)
    source = ServerSource(server.url)
    for _ in range(2):
        source.take(source.look())
    view = ServerView(source)
    facts = {tile.title: tile.fact() for tile in view.tiles}
    assert facts["Tables"] == Fact(str(MOST_TABLES + 1), f"5 items in {MOST_TABLES}")
    assert view.panels[0].shown()[1] == f"{MOST_TABLES} of {MOST_TABLES + 1} shown"
    # Charts are of those that are in use, not of the first ones.
    notes = [panel.note() for panel in view.panels if panel.title == "Items a second" and panel.note is not None]
    assert [note.partition(" ·")[0] for note in notes if note] == ["table-40"]
    source.close()


# ---- folders, clocks, sessions ---------------------------------------------------------------------------------------


def test_a_folder_that_goes_while_it_is_looked_at_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("here", "gone", "not ours"):
        write_train(tmp_path / name, rounds=1)
    asked = run_source.is_run

    def is_run(path: Path) -> bool:
        if path.name == "gone":
            (path / "config.json").unlink()
            for each in path.iterdir():
                each.unlink()
            path.rmdir()
            return True
        if path.name == "not ours":
            raise PermissionError(13, "Permission denied", str(path))
        return asked(path)

    monkeypatch.setattr(run_source, "is_run", is_run)
    assert [path.name for path in runs_below(tmp_path, 9)] == ["here"]


def test_a_clock_that_is_wrong_makes_no_actor_silent(
    server: rs.Server, client: rs.Client, fake_apex: Callable[..., FakeApex]
) -> None:
    job = fake_apex(client, server.url, actors=2)
    job.report()
    shown = looked(job.path)
    view = ApexView(shown.runs[0], shown)
    (source,) = shown.servers

    def states(later_s: float) -> list[str]:
        source.take(dataclasses.replace(source.look(), time_s=source.reading.time_s + later_s))
        return sorted(row["state"] for row in view.process_rows() if row["name"].startswith("actor"))

    for beat in range(3):  # Its host's clock is an hour behind.
        client.redis.hset("apex:actor:1", "updated_at", time.time() - 3600 + beat)
        client.redis.hset("apex:actor:0", "updated_at", time.time() + 3600 + beat)
        assert states(20.0) == ["running", "running"]
    client.redis.hset("apex:actor:0", "updated_at", time.time())
    assert states(40.0) == ["running", "silent 40 s"]
    shown.close()


def test_frames_of_an_actor_are_counted_as_its_job_counts_them(
    server: rs.Server, client: rs.Client, fake_apex: Callable[..., FakeApex]
) -> None:
    job = fake_apex(client, server.url, actors=2)
    job.report()
    source = ServerSource(server.url)
    for _ in range(3):
        source.take(source.look())
    base = source.reading
    assert source.frame_rate("apex", 5) is None
    client.redis.hset("apex:actor:0", "frames", 1000 + 500)
    source.take(dataclasses.replace(source.look(), time_s=base.time_s + 10.0))
    rate = source.frame_rate("apex", 0)
    assert rate is not None
    assert 49.0 < rate < 51.0
    assert source.frame_rate("apex", 1) == 0.0
    client.redis.hset("apex:actor:0", "frames", 3)  # It was started again.
    source.take(dataclasses.replace(source.look(), time_s=base.time_s + 11.0))
    assert source.frame_rate("apex", 0) is None
    source.close()


def test_actors_that_are_found_late_are_no_burst(
    server: rs.Server, client: rs.Client, fake_apex: Callable[..., FakeApex]
) -> None:
    """A dashboard opened on a job of an hour: the frames that its actors had played by then were not played now."""
    fake_apex(client, server.url, actors=40).report()
    source = ServerSource(server.url)
    for _ in range(8):
        source.take(source.look())
    history = source.tables["apex"]
    assert history.last("frames") == sum(1000 + index for index in range(40))
    assert {rate for rate in history.rate("frames") if rate is not None} == {0.0}
    source.close()


def test_a_job_that_stands_still_has_no_rate_of_before(
    server: rs.Server, client: rs.Client, fake_apex: Callable[..., FakeApex]
) -> None:
    job = fake_apex(client, server.url, actors=2)
    job.write_rows(3)
    job.report()
    shown = looked(job.path)
    shown.look()
    shown.look()
    view = ApexView(shown.runs[0], shown)
    facts = {tile.title: tile.fact() for tile in view.tiles}
    assert shown.runs[0].rows["progress"][-1]["frames_per_s"] == 100.0
    assert (facts["Frames"].value, facts["Updates"].value) == ("0/s", "0/s")  # type: ignore[union-attr]
    shown.close()


def test_a_resumed_run_is_one_history_without_its_pauses(fake_apex: Callable[..., FakeApex]) -> None:
    job = fake_apex()
    job.write_rows(6)  # To 50 s of it.
    first_s, job.began_s = job.began_s, job.began_s + 200.0
    about = json.loads((job.path / "job.json").read_text())
    sessions = {**about, "sessions": [first_s], "started_s": job.began_s}
    (job.path / "job.json").write_text(json.dumps(sessions))
    job.write_rows(3)  # A session of its own, 150 s after the last row.
    shown = looked(job.path)
    run, view = shown.runs[0], ApexView(shown.runs[0], shown)
    assert run.pauses == [(first_s + 50.0, first_s + 200.0)]
    assert [at for at, _ in view.points("learner", "loss")] == [0, 10, 20, 30, 40, 50, 50, 60, 70]
    assert "resumed 1×" in view.subtitle


def test_a_session_of_which_nothing_came_is_no_more_than_a_pause(fake_apex: Callable[..., FakeApex]) -> None:
    job = fake_apex()
    job.write_rows(2)
    run = RunSource(job.path)
    run.look()
    # It is resumed, dies at once, and is resumed again, while it is looked at.
    first_s = job.began_s
    about = json.loads((job.path / "job.json").read_text())
    again = {**about, "sessions": [first_s, first_s + 100.0], "started_s": first_s + 150.0}
    (job.path / "job.json").write_text(json.dumps(again))
    run.look()
    assert run.pauses == [(first_s + 10.0, first_s + 100.0), (first_s + 100.0, first_s + 150.0)]
    assert math.isclose(run.elapsed(first_s + 160.0), 20.0)


def test_evaluations_of_rounds_that_are_played_again_count_no_more(tmp_path: Path) -> None:
    write_train(tmp_path / "train", rounds=4)
    path = tmp_path / "train" / "metrics.jsonl"
    rounds = [json.loads(line) for line in path.read_text().splitlines()]

    def evaluation(number: int, mean: float) -> dict[str, Any]:
        at = rounds[number - 1]["time_s"] + 0.1
        return {"kind": "evaluation", "time_s": at, "round": number, "score_mean": mean, "score_std": 1.0}

    rows = [rounds[0], rounds[1], evaluation(2, 70.0), rounds[2], evaluation(3, 400.0), rounds[2], evaluation(3, 60.0)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    shown = looked(tmp_path / "train")
    view = TrainView(shown.runs[0], shown)
    assert view.points("evaluation", "score_mean") == [[2, 70.0], [3, 60.0]]
    assert view.evaluation() == Fact("60", "last, ± 1 · best 70")


def test_the_evaluation_that_is_kept_is_named_beside_the_last(fake_apex: Callable[..., FakeApex]) -> None:
    job = fake_apex()
    job.write_rows(6)
    with open(job.path / "metrics.jsonl", "a") as file:
        for place, mean in enumerate((450.0, 120.0)):
            row = {"kind": "evaluation", "time_s": job.began_s + 100 + place, "score_mean": mean, "score_std": 9.0}
            file.write(json.dumps(row) + "\n")
    shown = looked(job.path)
    assert ApexView(shown.runs[0], shown).evaluation() == Fact("120", "last, ± 9 · kept 450")


# ---- servers ---------------------------------------------------------------------------------------------------------


def test_a_server_that_was_never_there_is_said_how_to_start() -> None:
    source = ServerSource("redis://127.0.0.1:1")
    source.take(source.look())
    banner = server_banner(source)
    assert banner is not None
    assert "refused. replay-server serve --port 1 starts one; --url gives another address." in banner.text
    assert "since" not in banner.text
    assert {tile.fact() for tile in ServerView(source).tiles} == {Fact("–")}
    source = ServerSource("unix:///no/such/place.sock")
    source.take(source.look())
    banner = server_banner(source)
    assert banner is not None
    assert "replay-server serve --unixsocket /no/such/place.sock starts one" in banner.text


def test_a_server_that_asks_for_a_password_is_said_to() -> None:
    with rs.Server([], password="a secret of its own") as server:
        source = ServerSource(f"redis://{server.url.rpartition('@')[2]}")
        source.take(source.look())
        banner = server_banner(source)
    assert banner is not None
    assert "it asks for a password. Set REPLAY_SERVER_PASSWORD" in banner.text


def test_a_unix_socket_is_looked_at(tmp_path: Path) -> None:
    with rs.Server([prioritized("t")], unix=str(tmp_path / "s.sock")) as server:
        shown = Watch([f"unix://{tmp_path / 's.sock'}"], [])
        shown.look()
        (source,) = shown.servers
        assert (source.state, source.name) == ("up", f"unix://{tmp_path / 's.sock'}")
        assert source.reading.info["process_id"] == server.pid
        shown.close()


@pytest.mark.parametrize("written", ["redis://localhost", "redis://127.0.0.1:6379/", "redis://[::1]:7000"])
def test_a_jobs_server_stays_the_same_however_it_is_written(written: str, fake_apex: Callable[..., FakeApex]) -> None:
    shown = Watch([], [fake_apex(url=written).path])
    shown.look_at_files()
    before = list(shown.servers)
    for _ in range(3):
        shown.look_at_files()
    assert [source.number for source in shown.servers] == [0]
    assert shown.servers == before
    shown.close()


def test_a_later_server_at_the_same_address_is_not_the_earlier_jobs(
    server: rs.Server, client: rs.Client, fake_apex: Callable[..., FakeApex]
) -> None:
    job = fake_apex(client, server.url)
    fill(client, "apex", 30)
    shown = Watch([server.url], [job.path])
    shown.look()
    shown.look()
    view = ApexView(shown.runs[0], shown)
    assert view.about["size"] == 30
    job.end()
    shown.look()
    assert view.about["size"] == 30, "what was seen last"
    (source,) = shown.servers
    source.take(Reading(time.time(), {**source.reading.info, "run_id": "another"}, {"apex": {"size": 5}}))
    assert view.about == {}
    assert shown.server_numbered(source.number) is source
    shown.close()


def test_what_a_server_does_after_a_job_is_not_the_jobs(
    server: rs.Server, client: rs.Client, fake_apex: Callable[..., FakeApex]
) -> None:
    job = fake_apex(client, server.url)
    shown = Watch([server.url], [job.path])
    for _ in range(3):
        shown.look()
    job.end()
    os.utime(job.path / "summary.json", (time.time() + 1.0, time.time() + 1.0))
    shown.look()
    view = ApexView(shown.runs[0], shown)
    (source,) = shown.servers
    memory = view.memory()
    assert memory is not None
    before = len(memory["series"][0]["data"])
    source.take(dataclasses.replace(source.reading, time_s=time.time() + 60.0))
    memory = view.memory()
    assert memory is not None
    assert len(memory["series"][0]["data"]) == before
    shown.close()


def test_a_name_with_markup_or_of_any_length_is_cut_where_it_is_a_label(fake_apex: Callable[..., FakeApex]) -> None:
    first, second = fake_apex(name="x" * 200), fake_apex(name="evaluation")
    for job in (first, second):
        job.write_rows(3)
    shown = Watch([], [second.path], compare=first.path)
    shown.look()
    score = ApexView(shown.runs[0], shown, shown.compare).score()
    assert score is not None
    names = [each.get("name", "") for each in score["series"]]
    assert max(len(name) for name in names) < 32
    shown = Watch([], [first.path], compare=second.path)
    shown.look()
    score = ApexView(shown.runs[0], shown, shown.compare).score()
    assert score is not None
    ids = [each["id"] for each in score["series"]]
    assert len(set(ids)) == len(ids), "a run called as a line is, is a line of its own"


def test_what_is_shown_is_made_once_for_all_tabs(fake_apex: Callable[..., FakeApex]) -> None:
    job = fake_apex()
    job.write_rows(3)
    watched = looked(job.path)
    shown = Shown(ApexView(watched.runs[0], watched))
    first = shown.now()
    assert shown.now() is first
    job.write_rows(1, first=3)
    watched.look()
    facts, panels = shown.now()
    assert facts[0] == Fact("120", "last, ± 5 · kept 120")
    assert len(panels[0][0]["series"][2]["data"]) == 4


def test_a_long_history_is_thinned_before_it_is_worked_on(fake_apex: Callable[..., FakeApex]) -> None:
    job = fake_apex()
    job.write_rows(1001)
    watched = looked(job.path)
    found = ApexView(watched.runs[0], watched).points("learner", "mean_q")
    assert len(found) <= charts.MOST_ROWS + 1
    assert (found[0], found[-1]) == ([0, 0.0], [10_000.0, 1000.0])
    assert charts.thin(found) == found


def test_a_point_that_is_alone_is_seen() -> None:
    def dots(*values: float | None) -> bool:
        return charts.line("it", [[at, value] for at, value in enumerate(values)], charts.BLUE)["showSymbol"]

    assert dots(1.0)
    assert dots(1.0, 2.0, None, 3.0)
    assert not dots(1.0, 2.0, None)
    assert not dots()


def test_lines_stand_out_from_both_grounds() -> None:
    def luminance(color: str) -> float:
        parts = [int(color[place : place + 2], 16) / 255 for place in (1, 3, 5)]
        red, green, blue = (part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    grounds = re.findall(r"--card: (#[0-9a-f]{6})", style.CSS)
    assert len(grounds) == 2
    colors = {*ACTOR_COLORS, *(color for color in gantt.COLORS.values() if color.startswith("#")), charts.INK}
    for ground in grounds:
        for color in colors:
            low, high = sorted((luminance(ground), luminance(color)))
            assert (high + 0.05) / (low + 0.05) >= 3.0, (color, ground)
    kinds = list(gantt.COLORS.values())
    assert len(set(kinds)) == len(kinds)


def test_labels_of_priorities_are_where_powers_of_ten_are() -> None:
    wide = histogram_options({"priorities": [[-17, 1], [3, 9]]})
    assert wide is not None
    assert wide["xAxis"]["axisLabel"][":formatter"] == DECADES
    narrow = histogram_options({"priorities": [[-1, 1], [2, 9]]})
    assert narrow is not None
    assert narrow["xAxis"]["data"] == ["0.5", "1", "2", "4"]
    assert ":formatter" not in narrow["xAxis"]["axisLabel"]
