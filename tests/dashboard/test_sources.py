"""Servers and run directories as the dashboard and `top` see them."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from looked_at import FakeApex, fill, prioritized, write_train

import replay_server as rs
from replay_server.dashboard.apex_view import ApexView
from replay_server.dashboard.run_source import MOST_ROWS, RunSource
from replay_server.dashboard.server_panels import limiter_words, priority_buckets
from replay_server.dashboard.server_source import ServerSource
from replay_server.dashboard.server_view import ServerView
from replay_server.dashboard.train_view import TrainView
from replay_server.dashboard.watch import Watch
from replay_server.serverless.scalers.nitro import Nitro


def seen(source: ServerSource) -> ServerSource:
    source.take(source.look())
    return source


def test_a_server_is_seen_as_its_own_info_has_it(server: rs.Server, client: rs.Client) -> None:
    fill(client, "apex", 100)
    batch = client.sample("apex", 40)
    client.update_priorities("apex", batch.ids, [3.0] * 40)
    source = seen(ServerSource(server.url))
    info, about = client.redis.info("everything"), client.info("apex")
    assert source.state == "up"
    assert source.reading.info["run_id"] == info["run_id"]
    shown = source.reading.tables["apex"]
    for name in ("size", "capacity", "added", "sampled", "removed", "bytes", "max_priority", "zero_priorities"):
        assert shown[name] == about[name], name
    assert sum(count for _, count in priority_buckets(shown)) == 100
    assert source.calls["replay.add"]["calls"] == info["cmdstat_replay.add"]["calls"]
    assert source.history.last("sample_p99") == source.reading.info["request_replay.sample"]["answer_us_p99"]
    source.close()


def test_priorities_are_buckets_without_gaps() -> None:
    about = {"priorities": [[-1, 4], [2, 7]], "zero_priorities": 3}
    assert priority_buckets(about) == [(None, 3), (0.5, 4), (1.0, 0), (2.0, 0), (4.0, 7)]
    assert priority_buckets({}) == []


def test_one_connection_whatever_is_asked(server: rs.Server, client: rs.Client) -> None:
    source = seen(ServerSource(server.url))
    before = client.redis.info("stats")["total_connections_received"]
    for _ in range(5):
        seen(source)
    assert client.redis.info("stats")["total_connections_received"] == before
    assert [each["name"] for each in client.redis.client_list()].count("dashboard") == 1
    source.close()


def test_tables_come_and_go(server: rs.Server, client: rs.Client) -> None:
    source = seen(ServerSource(server.url))
    strange = "<img/src=x/onerror=alert(1)>"
    client.create_table(prioritized(strange))
    seen(source)
    assert set(source.reading.tables) == {"apex", strange}
    client.drop_table(strange)
    seen(source)
    assert set(source.reading.tables) == {"apex"} == set(source.tables)
    source.close()


def test_actors_are_found_however_many_there_are(server: rs.Server, client: rs.Client, fake_apex: Callable[..., FakeApex]) -> None:  # fmt: skip  # noqa: E501
    fake_apex(client, server.url, actors=40).report()
    source = ServerSource(server.url)
    for _ in range(6):
        seen(source)
    actors = source.reading.actors["apex"]
    assert sorted(actors) == list(range(40))
    assert actors[39]["score_mean"] == 139.0
    history = source.tables["apex"]
    assert (history.last("score_min"), history.last("score_max"), history.last("staleness")) == (100.0, 139.0, 25.0)
    source.close()


def test_a_server_that_is_lost_and_comes_back_as_another_one(tmp_path: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    source = ServerSource(f"redis://127.0.0.1:{port}")
    assert seen(source).state == "lost"
    with rs.Server([prioritized("t")], port=port), rs.Client(f"redis://127.0.0.1:{port}") as client:
        fill(client, "t", 10)
        assert seen(source).state == "up"
        seen(source)
    assert seen(source).state == "lost"
    assert "Connection" in source.error or "connect" in source.error
    assert source.restarts == []
    banner = ServerView(source).banner()
    assert banner is not None
    assert "does not answer" in banner.text
    with rs.Server([prioritized("t")], port=port):
        assert seen(source).state == "up"
        assert len(source.restarts) == 1
        banner = ServerView(source).banner()
        assert banner is not None
        assert "started again" in banner.text
        # The counter began again: what it says now is no rate.
        assert source.tables["t"].column("added")[-1] == 0
    source.close()


def test_a_password_is_never_part_of_what_is_shown() -> None:
    with rs.Server([prioritized("t")], password="a secret of its own") as server:
        address = server.url.rpartition("@")[2]
        assert seen(ServerSource(f"redis://{address}")).state == "lost"
        watch = Watch([f"redis://{address}"], [], password="a secret of its own")
        watch.look()
        assert watch.servers[0].state == "up"
        assert "secret" not in watch.servers[0].name
        watch.close()


def test_the_limiter_in_words() -> None:
    assert limiter_words({"size": 1}) == "limiter open"
    assert limiter_words({"reason": "too few items: 3", "waiting_sample": 1}) == "sampling waits: too few items"
    assert limiter_words({"reason_add": "rate limiter: x", "waiting_add": 0}, short=False) == (
        "inserting would wait: rate limiter: x"
    )


# ---- run directories -------------------------------------------------------------------------------------------------


def facts(view: Any) -> dict[str, Any]:
    return {tile.title: tile.fact() for tile in view.tiles}


def test_a_job_is_shown_from_its_folder_and_its_server(
    server: rs.Server, client: rs.Client, fake_apex: Callable[..., FakeApex]
) -> None:
    job = fake_apex(client, server.url, actors=3)
    job.write_rows(12)
    job.report()
    fill(client, "apex", 200)
    client.sample("apex", 50)
    watch = Watch([], [job.path])
    for _ in range(4):
        watch.look()
    view = ApexView(watch.runs[0], watch)
    shown = facts(view)
    assert view.state == ("running", "good")
    assert shown["Evaluation"].value == "440"
    assert shown["Actors' score"].value == "101"
    assert shown["Replay"].value == "200"
    assert shown["Weights behind"].value == "25"
    assert shown["Processes"].value == "4 of 4"
    for panel in view.panels:
        if panel.options is not None:
            options = panel.options()
            assert options is not None, panel.title
            assert json.dumps(options)
    rows = {row["name"]: row for row in view.process_rows()}
    assert rows["actor 2"]["score"] == "102"
    assert rows["actor 2"]["behind"] == "25"
    watch.close()


def test_many_actors_are_a_heatmap_and_few_are_lines(fake_apex: Callable[..., FakeApex]) -> None:
    few, many = fake_apex(actors=4, name="few"), fake_apex(actors=64, name="many")
    for job in (few, many):
        job.write_rows(30)
    watch = Watch([], [few.path, many.path])
    views = {run.name: ApexView(run, watch) for run in watch.runs}
    lines, cells = views["few"].actors(), views["many"].actors()
    assert lines is not None
    assert cells is not None
    assert [each["type"] for each in lines["series"]] == ["line"] * 4
    assert [each["type"] for each in cells["series"]] == ["heatmap"]
    assert len(cells["yAxis"]["data"]) == 64
    assert cells["series"][0]["data"][-1] == [29, 63, 10 * 29 + 63]


def test_actors_that_have_joined_a_job_are_shown_and_may_leave(
    server: rs.Server, client: rs.Client, fake_apex: Callable[..., FakeApex], monkeypatch: pytest.MonkeyPatch
) -> None:
    job = fake_apex(client, server.url, actors=2)
    fill(client, "apex", 200)
    job.actors = 4  # beside those of its settings and its processes
    job.write_rows(12)
    job.report()
    watch = Watch([], [job.path])
    for _ in range(4):
        watch.look()
    view = ApexView(watch.runs[0], watch)
    rows = {row["name"]: row for row in view.process_rows()}
    assert list(rows) == ["learner", "actor 0", "actor 1", "actor 2", "actor 3"]
    assert (rows["actor 3"]["state"], rows["actor 3"]["score"]) == ("running", "103")
    lines = view.actors()
    assert lines is not None
    assert [line["name"] for line in lines["series"]] == ["0", "1", "2", "3"]
    monkeypatch.setattr(type(watch.servers[0]), "silent_s", lambda *_: 100.0)
    states = {row["name"]: (row["state"], row["tone"]) for row in view.process_rows()}
    assert states["actor 3"] == ("left", "")
    assert states["actor 1"][1] == "warn"
    watch.close()


def test_a_restarted_process_stands_first_in_its_list(fake_apex: Callable[..., FakeApex]) -> None:
    job = fake_apex(actors=3)
    parts = json.loads((job.path / "job.json").read_text())
    parts["parts"][2] |= {"running": False, "restarts": 2}
    (job.path / "job.json").write_text(json.dumps(parts))
    watch = Watch([], [job.path])
    view = ApexView(watch.runs[0], watch)
    assert view.process_rows()[0] | {"key": 0} == view.process_rows()[0]
    assert (view.process_rows()[0]["name"], view.process_rows()[0]["state"]) == ("actor 1", "starting again")
    assert facts(view)["Processes"].tone == "warn"


def test_a_server_that_went_with_its_job_is_asked_no_more(
    server: rs.Server, client: rs.Client, fake_apex: Callable[..., FakeApex]
) -> None:
    job = fake_apex(client, server.url, actors=1)
    job.report()
    watch = Watch([], [job.path])
    for _ in range(3):
        watch.look()
    (source,) = watch.servers
    job.end()
    watch.look()
    assert watch.servers == []
    assert watch.server_of(watch.runs[0]) is source, "its page shows what was seen last"
    watch.look()
    assert source.looks == 3
    watch.close()


def test_how_a_job_is(fake_apex: Callable[..., FakeApex]) -> None:
    job = fake_apex()
    run = RunSource(job.path)
    run.look()
    assert run.state == "running"
    gone = subprocess.run(
        [sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, text=True, check=True
    )
    job.write_job(pid=int(gone.stdout))
    run.look()
    assert run.state == "killed"
    job.end("target_score")
    run.look()
    assert (run.state, run.ended_by) == ("ended", "target_score")
    # --resume: the summary that is there is of the session before.
    job.began_s = os.stat(job.path / "summary.json").st_mtime + 5.0
    job.write_job()
    run.look()
    assert run.state == "running"


@pytest.mark.parametrize("part", ["learner", "evaluator"])
def test_a_part_by_itself_is_a_job_of_its_own_named_as_that_part(fake_apex: Callable[..., FakeApex], part: str) -> None:
    job = fake_apex(actors=1)
    about = json.loads((job.path / "job.json").read_text())
    (job.path / "job.json").write_text(json.dumps({**about, "kind": part, "pid": 1, "pid_started": -1}))
    watch = Watch([], [job.path])
    assert watch.runs[0].title.split(" · ")[1:3] == ["Ape-X", part]
    assert ApexView(watch.runs[0], watch).state[0] == "killed"
    (job.path / "summary.json").write_text(json.dumps({"ended_by": "table closed"}))
    watch.look()
    assert ApexView(watch.runs[0], watch).state == ("ended: table closed", "")


def test_a_serverless_job_is_shown(tmp_path: Path) -> None:
    write_train(tmp_path / "train", rounds=8)
    watch = Watch([], [tmp_path])
    run = watch.runs[0]
    view = TrainView(run, watch)
    shown = facts(view)
    assert shown["Round"].value == "8 of 20"
    assert shown["Score"].value == "120"
    assert (shown["Cost"].value, shown["Cost"].share) == ("$0.008", pytest.approx(0.8))
    assert shown["Functions"].value == "40"
    assert shown["Functions"].detail == "4 cold · 1 failed or lost"
    assert shown["Staleness"].value == "0.5"
    panels = {panel.title: panel for panel in view.panels}
    for panel in panels.values():
        assert panel.options is not None
        if panel.title != "Gradients on the server":
            assert json.dumps(panel.options())
    actors = view.actors()
    assert actors is not None
    assert [each["data"][1] for each in actors["series"]] == [3, 1]
    cost = view.cost()
    assert cost is not None
    assert cost["series"][0]["markLine"]["data"] == [{"yAxis": 0.01}]


def test_a_round_that_is_played_again_counts_once(tmp_path: Path) -> None:
    write_train(tmp_path / "train", rounds=6)
    path = tmp_path / "train" / "metrics.jsonl"
    again = json.loads(path.read_text().splitlines()[3]) | {"score": 999.0}
    with open(path, "a") as file:
        file.write(json.dumps(again) + "\n")
    run = RunSource(tmp_path / "train")
    run.look()
    assert [row["round"] for row in run.rows["round"]] == [1, 2, 3, 4]
    assert run.rows["round"][-1]["score"] == 999.0


def test_a_long_run_stays_bounded(fake_apex: Callable[..., FakeApex]) -> None:
    job = fake_apex(actors=1)
    job.write_rows(MOST_ROWS + 500)
    run = RunSource(job.path)
    run.look()
    while run.behind:
        run.look()
    rows = run.rows["progress"]
    assert len(rows) <= MOST_ROWS
    assert (rows[0]["elapsed_s"], rows[-1]["elapsed_s"]) == (0.0, 10.0 * (MOST_ROWS + 499))


def test_a_folder_of_runs_and_one_to_compare_with(fake_apex: Callable[..., FakeApex]) -> None:
    first, second = fake_apex(name="first"), fake_apex(name="second")
    first.write_rows(5)
    second.write_rows(3)
    watch = Watch([], [first.path.parent], compare=first.path)
    watch.look_at_files()
    assert [run.name for run in watch.runs] == ["second"]
    assert watch.compare is not None
    score = ApexView(watch.runs[0], watch, watch.compare).score()
    assert score is not None
    dashed = [each for each in score["series"] if each.get("lineStyle", {}).get("type") == "dashed"]
    assert [each["name"] for each in dashed] == ["first"]
    assert len(dashed[0]["data"]) == 5


def test_what_is_no_run_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "config.json").write_text("[not json")
    (tmp_path / "broken" / "metrics.jsonl").write_text('{"kind": "progress"}\n{"kind": 7, "time_s": 1}\n')
    (tmp_path / "broken" / "invocations.jsonl").write_text('{"queued": "x"}\n')
    watch = Watch([], [tmp_path])
    watch.look()
    assert [run.name for run in watch.runs] == ["broken"]
    run = watch.runs[0]
    assert run.invocations == []
    assert all(not rows for rows in run.rows.values())


def test_the_boosting_score_is_the_scalers_own(tmp_path: Path) -> None:
    write_train(tmp_path / "train", rounds=5)
    config = json.loads((tmp_path / "train" / "config.json").read_text())
    config |= {"scaler": "nitro", "scaler_option": {"decay": "0.9", "least": "2", "curvature": "{}"}}
    (tmp_path / "train" / "config.json").write_text(json.dumps(config))
    rows = [json.loads(line) for line in (tmp_path / "train" / "metrics.jsonl").read_text().splitlines()]
    scaler = Nitro(decay=0.9)
    expected = []
    for row, ratio in zip(rows, (1.0, 3.0, 2.0, None, 2.5)):
        row["statistics"] |= {"curvature_max": 0.0 if ratio is None else ratio, "curvature_min": -1.0}
        scaler.look_at(row["round"], ratio)
        expected.append([row["round"], scaler.state()["score"]])
    (tmp_path / "train" / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    watch = Watch([], [tmp_path])
    view = TrainView(watch.runs[0], watch)
    assert view.boosting() == expected
    actors = view.actors()
    assert actors is not None
    assert actors["series"][-1]["data"] == [score for _, score in expected]
