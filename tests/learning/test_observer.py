"""What a job's observer counts: this session's part of what its server tells, also where the server forgot."""

from __future__ import annotations

import json

import numpy as np
import pytest

import replay_server as rs
from replay_server.jobs.observer import Observer
from replay_server.rl.settings import ApexSettings

SETTINGS = ApexSettings(env="CartPole-v1", actors=1, table="apex")
TABLE = rs.Table("apex", 1000, {"x": rs.Column("float32")})


@pytest.fixture
def client():
    with rs.Server() as server, rs.Client(server.url) as connected:
        yield connected


def play(client: rs.Client, frames: int, life: float, transitions: int, evaluations: int) -> None:
    """What an actor of `life`, which has played so many frames, and an evaluator leave on the server."""
    client.create_table(TABLE)
    client.redis.hset("apex:actor:0", mapping={"frames": frames, "started_at": life, "updated_at": frames})
    client.add("apex", {"x": np.zeros(transitions, np.float32)})
    for version in range(evaluations):
        client.redis.rpush("apex:evaluations", json.dumps({"version": version}))


def counted(observer: Observer) -> tuple[int, int]:
    return observer.snapshot.frames, observer.snapshot.transitions


@pytest.mark.parametrize("way", ["the table is there", "the table was dropped"])
def test_what_an_earlier_run_left_is_not_counted(client, way):
    play(client, frames=500, life=1.0, transitions=40, evaluations=2)
    if way == "the table was dropped":
        client.drop_table("apex")
    observer = Observer(SETTINGS, [0])
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
    observer = Observer(SETTINGS, [0], {"frames": 450.0, "transitions": 38.0})
    observer.begin_after(client)
    play(client, frames=520, life=1.0, transitions=3, evaluations=0)
    observer.look(client)
    assert counted(observer) == (470, 41)


def test_a_server_that_comes_back_empty_takes_nothing_back(client):
    observer = Observer(SETTINGS, [0])
    play(client, frames=500, life=1.0, transitions=40, evaluations=3)
    observer.look(client)
    assert len(observer.new_evaluations(client)) == 3
    client.drop_table("apex")
    client.redis.flushall()
    client.create_table(TABLE)
    observer.look(client)
    assert counted(observer) == (500, 40)
    play(client, frames=520, life=1.0, transitions=5, evaluations=2)
    observer.look(client)
    assert counted(observer) == (520, 45)
    assert [each["version"] for each in observer.new_evaluations(client)] == [0, 1]
