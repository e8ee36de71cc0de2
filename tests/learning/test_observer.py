"""What a job's observer counts: this session's part of what its server tells, also where the server forgot."""

from __future__ import annotations

import json

import numpy as np
import pytest

import replay_server as rs
from replay_server.jobs.observer import SILENT_S, Observer
from replay_server.jobs.record import JobRecord
from replay_server.rl.run_directory import RunDirectory
from replay_server.rl.settings import ApexSettings
from replay_server.rl.shared_settings import incarnation

SETTINGS = ApexSettings(env="CartPole-v1", actors=1, table="apex")
TABLE = rs.Table("apex", 1000, {"x": rs.Column("float32")})


@pytest.fixture
def client():
    with rs.Server() as server, rs.Client(server.url) as connected:
        yield connected


def play(client: rs.Client, frames: int, life: float, transitions: int, evaluations: int, first: int = 0) -> None:
    """What an actor of `life`, which has played so many frames, and an evaluator leave on the server.

    Evaluations are of the versions from `first` on.
    """
    client.create_table(TABLE)
    client.redis.hset("apex:actor:0", mapping={"frames": frames, "started_at": life, "updated_at": frames})
    client.add("apex", {"x": np.zeros(transitions, np.float32)})
    for version in range(first, first + evaluations):
        client.redis.rpush("apex:evaluations", json.dumps({"version": version}))


def counted(observer: Observer) -> tuple[int, int]:
    return observer.snapshot.frames, observer.snapshot.transitions


@pytest.mark.parametrize("way", ["the table is there", "the table was dropped"])
def test_what_an_earlier_run_left_is_not_counted(client, way):
    play(client, frames=500, life=1.0, transitions=40, evaluations=2)
    if way == "the table was dropped":
        client.drop_table("apex")
    observer = Observer(SETTINGS)
    observer.begin_after(client)
    client.create_table(TABLE)
    observer.look(client)
    assert counted(observer) == (0, 0)
    assert observer.snapshot.elapsed_s == 0.0, "time counts from the first transition"
    assert observer.new_evaluations(client) == []
    play(client, frames=30, life=2.0, transitions=7, evaluations=1)
    observer.look(client)
    assert counted(observer) == (30, 7)
    assert len(observer.new_evaluations(client)) == 1


def test_an_actor_that_went_on_without_a_learner_is_counted_once_by_the_next_session(client):
    play(client, frames=500, life=1.0, transitions=40, evaluations=0)
    observer = Observer(SETTINGS, {"frames": 450.0, "transitions": 38.0})
    observer.begin_after(client)
    play(client, frames=520, life=1.0, transitions=3, evaluations=0)
    observer.look(client)
    assert counted(observer) == (470, 41)


def test_a_server_that_comes_back_empty_takes_nothing_back(client):
    observer = Observer(SETTINGS)
    play(client, frames=500, life=1.0, transitions=40, evaluations=3)
    observer.look(client)
    assert len(observer.new_evaluations(client)) == 3
    client.drop_table("apex")
    client.redis.flushall()
    client.create_table(TABLE)
    observer.look(client)
    assert counted(observer) == (500, 40)
    play(client, frames=520, life=1.0, transitions=5, evaluations=2, first=3)
    observer.look(client)
    assert counted(observer) == (520, 45)
    assert [each["version"] for each in observer.new_evaluations(client)] == [3, 4]


def test_a_server_that_comes_back_with_a_snapshot_counts_nothing_twice(tmp_path):
    observer = Observer(SETTINGS)
    with rs.Server(directory=tmp_path) as server, rs.Client(server.url) as client:
        play(client, frames=500, life=1.0, transitions=40, evaluations=2)
        client.checkpoint("early")
        observer.look(client)
        play(client, frames=100, life=2.0, transitions=20, evaluations=2, first=2)
        observer.look(client)
        assert counted(observer) == (600, 60)
        assert [each["version"] for each in observer.new_evaluations(client)] == [0, 1, 2, 3]
    with rs.Server(directory=tmp_path, restore="early.snapshot") as server, rs.Client(server.url) as client:
        observer.look(client)
        assert counted(observer) == (600, 60)  # the report of the actor's earlier life is old
        play(client, frames=130, life=2.0, transitions=10, evaluations=2, first=4)
        observer.look(client)
        assert counted(observer) == (630, 70)
        # As many rows as before, and two of them new.
        assert [each["version"] for each in observer.new_evaluations(client)] == [4, 5]
        assert observer.new_evaluations(client) == []


def report(client: rs.Client, actor: int, frames: int, at: float) -> None:
    client.redis.hset(f"apex:actor:{actor}", mapping={"frames": frames, "started_at": 1.0, "updated_at": at})


def test_actors_that_have_joined_are_found_and_counted(client):
    """Those beyond the run's `actors`, and gaps between ids."""
    observer, own = Observer(SETTINGS), Observer(SETTINGS, alone=lambda: 7)
    client.create_table(TABLE)
    for actor in (1, 7):
        incarnation(client, "apex", actor)
    observer.look(client)
    assert list(observer.snapshot.actors) == [0, 1, 7]
    assert not any(actor.alive for actor in observer.snapshot.actors.values())
    for actor, frames in ((0, 10), (1, 200), (7, 3000)):
        report(client, actor, frames, at=1.0)
    for each in (observer, own):
        each.look(client)
    assert observer.snapshot.frames == 3210
    assert [actor.alive for actor in observer.snapshot.actors.values()] == [True, True, True]
    assert (own.snapshot.frames, list(own.snapshot.actors)) == (3000, [7])


def test_what_an_actor_left_that_is_gone_is_no_sign_of_life(client):
    client.create_table(TABLE)
    report(client, 0, 500, at=1.0)
    observer = Observer(SETTINGS)
    observer.look(client)
    assert not observer.snapshot.actors[0].alive
    report(client, 0, 510, at=2.0)
    observer.look(client)
    assert observer.snapshot.actors[0].alive


def test_a_drawing_that_fails_does_not_fail_the_run(tmp_path, capsys):
    directory = RunDirectory(tmp_path / "run")
    directory.create(SETTINGS)
    directory.scores.write_text("transitions,mean,std\n100,20.0,1.0\n200,\n")  # cut short by a full disk
    JobRecord(SETTINGS, directory).close("minutes", None)
    assert json.loads(directory.summary.read_text())["ended_by"] == "minutes"
    assert "scores.png is not drawn" in capsys.readouterr().out


def test_who_joins_and_leaves_is_told_and_counted(client, tmp_path, monkeypatch):
    now = [1000.0]
    monkeypatch.setattr("replay_server.jobs.observer.time.monotonic", lambda: now[0])
    client.create_table(TABLE)
    directory = RunDirectory(tmp_path / "run")
    directory.create(SETTINGS)
    record, told = JobRecord(SETTINGS, directory), []
    record.look(client, told.append)
    incarnation(client, "apex", 1)
    record.look(client, told.append)
    for actor in (0, 1):
        report(client, actor, 10, at=1.0)
    record.look(client, told.append)
    now[0] += SILENT_S
    report(client, 0, 20, at=2.0)
    record.look(client, told.append)
    assert told == ["actor 1 has joined", "actor 1 has left"]
    record.close("interrupted", None)
    summary = json.loads(directory.summary.read_text())
    assert (summary["actors_played"], summary["frames"]) == (2, 30)
