"""Parts of a run that were given different settings: who is refused, in what words, and what stays as it was."""

from __future__ import annotations

import dataclasses
import json
import re
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")

import replay_server as rs
from replay_server.actors.evaluator import run_evaluator
from replay_server.actors.rollout import actor_seeds, run_actor
from replay_server.learner.loop import run_learner
from replay_server.rl.environment_spec import environment_spec
from replay_server.rl.settings import ApexSettings
from replay_server.rl.shared_settings import SHARED, SettingsDiffer, incarnation, join
from replay_server.rl.tables import apex_table

SETTINGS = ApexSettings(
    env="CartPole-v1", actors=2, envs_per_actor=2, hidden=16, capacity=1_000, min_size_to_sample=100, batch_size=32,
    max_updates=1, precision="float32", device="cpu",
)  # fmt: skip
STOPPED = threading.Event()
STOPPED.set()


@pytest.fixture
def server():
    with rs.Server() as server:
        yield server


@pytest.fixture
def client(server):
    with rs.Client(server.url) as client:
        yield client


def act(settings: ApexSettings, url: str, _: Path) -> None:
    run_actor(settings, url, 0, STOPPED)


def learn(settings: ApexSettings, url: str, folder: Path) -> None:
    run_learner(settings, url, folder, STOPPED, tensorboard=False)


def evaluate(settings: ApexSettings, url: str, _: Path) -> None:
    run_evaluator(settings, url, STOPPED)


def until_it_has_played(client: rs.Client) -> Callable[[], bool]:
    return lambda: int(client.info("apex")["added"]) > 0


@pytest.mark.parametrize(
    ("part", "name", "value", "words"),
    [
        *((part, "env", "Acrobot-v1", "--env CartPole-v1 there, Acrobot-v1 here") for part in (act, learn, evaluate)),
        *((part, "sticky_actions", 0.25, "--sticky-actions 0 there, 0.25 here") for part in (act, learn, evaluate)),
        *((part, "n_step", 5, "--n-step 3 there, 5 here") for part in (act, learn)),
        *((part, "discount", 0.9, "--discount 0.99 there, 0.9 here") for part in (act, learn)),
        *((part, "reward_clip", None, "--reward-clip 1 there, none here") for part in (act, learn)),
        *((part, "actors", 3, "--actors 2 there, 3 here") for part in (act, learn)),
        *((part, "priority_exponent", 0.5, "--priority-exponent 0.6 there, 0.5 here") for part in (act, learn)),
        *((part, "capacity", 2_000, "--capacity 1000 there, 2000 here") for part in (act, learn)),
    ],
)
def test_a_part_with_other_settings_than_the_run_is_refused(server, client, tmp_path, part, name, value, words):
    join(client, SETTINGS, environment_spec(SETTINGS))
    before = client.redis.get("apex:settings"), client.table("apex"), client.info("apex")["added"]
    other = dataclasses.replace(SETTINGS, **{name: value})
    with pytest.raises(SettingsDiffer, match=words) as refused:
        part(other, server.url, tmp_path)
    assert "another --table" in str(refused.value)
    assert (client.redis.get("apex:settings"), client.table("apex"), client.info("apex")["added"]) == before
    assert client.fetch_weights("apex") is None
    part(SETTINGS, server.url, tmp_path)


def test_the_evaluator_asks_only_for_the_settings_that_it_plays_with(server, client):
    join(client, SETTINGS, environment_spec(SETTINGS))
    run_evaluator(dataclasses.replace(SETTINGS, n_step=5, discount=0.9), server.url, STOPPED)
    with pytest.raises(SettingsDiffer, match="--hidden 16 there, 32 here"):
        run_evaluator(dataclasses.replace(SETTINGS, hidden=32), server.url, STOPPED)


def test_all_that_differs_is_named_at_once(server, client):
    join(client, SETTINGS, environment_spec(SETTINGS))
    other = dataclasses.replace(SETTINGS, n_step=1, discount=0.5, hidden=32)
    with pytest.raises(SettingsDiffer, match="--hidden 16 there, 32 here; --n-step 3 there, 1 here; --discount "):
        run_actor(other, server.url, 0, STOPPED)


def test_what_parts_may_have_of_their_own_does_not_matter(server, client, tmp_path):
    join(client, SETTINGS, environment_spec(SETTINGS))
    own = {"learning_rate": 1e-2, "batch_size": 16, "push_every": 10, "publish_every": 3, "seed": 9, "minutes": 1.0}
    assert not set(own) & set(SHARED)
    learn(dataclasses.replace(SETTINGS, **own), server.url, tmp_path)
    act(dataclasses.replace(SETTINGS, **own), server.url, tmp_path)


def test_every_shared_setting_is_one_and_is_stored(client):
    assert set(SHARED) <= {field.name for field in dataclasses.fields(ApexSettings)}
    join(client, SETTINGS, environment_spec(SETTINGS))
    stored = json.loads(client.redis.get("apex:settings"))
    assert stored["format"] == 1
    assert stored["settings"] == {name: getattr(SETTINGS, name) for name in SHARED}


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("n_step", 5, "column 'next_obs' is Window.*offset=5.* there and Window.*offset=3.* here"),
        ("priority_exponent", 0.4, "sampler is .*0.4.* there and .*0.6.* here"),
        ("env", "Acrobot-v1", "column 'step_obs'"),
    ],
)
def test_a_table_that_somebody_else_made_must_fit_the_settings(server, client, name, value, words):
    """Such as one of a configuration file, or of a snapshot: there is no run yet whose settings could be compared."""
    other = dataclasses.replace(SETTINGS, **{name: value})
    client.create_table(apex_table(other, environment_spec(other)))
    with pytest.raises(SettingsDiffer, match=words):
        run_actor(SETTINGS, server.url, 0, STOPPED)
    assert client.info("apex")["added"] == 0


def test_a_run_with_other_settings_may_begin_when_the_table_was_dropped(server, client):
    join(client, SETTINGS, environment_spec(SETTINGS))
    client.drop_table("apex")
    other = dataclasses.replace(SETTINGS, n_step=5)
    run_actor(other, server.url, 0, STOPPED)
    assert json.loads(client.redis.get("apex:settings"))["settings"]["n_step"] == 5
    with pytest.raises(SettingsDiffer):
        run_actor(SETTINGS, server.url, 0, STOPPED)


def test_what_removes_a_run_that_is_over_makes_room_for_any_other(server, client, tmp_path):
    learn(SETTINGS, server.url, tmp_path)
    assert client.fetch_weights("apex") is not None
    other = dataclasses.replace(SETTINGS, hidden=32)
    with pytest.raises(SettingsDiffer, match="--hidden 16 there, 32 here") as refused:
        run_actor(other, server.url, 0, STOPPED)
    removal = re.findall(r"((?:REPLAY\.DROP|WEIGHTS\.DEL|DEL)) (\S+)\b", str(refused.value))
    for command in removal:
        client.command(*command)
    # It looks for weights before its first step.
    run_actor(other, server.url, 0, until_it_has_played(client))


def test_of_parts_that_begin_at_the_same_time_with_different_settings_one_kind_is_refused(server):
    """Whoever is first stores its settings and then makes the table: nobody slips in between the two."""
    kinds = [dataclasses.replace(SETTINGS, discount=discount) for discount in (0.9, 0.99) * 4]
    outcomes: list[float] = []
    begin = threading.Barrier(len(kinds))

    def part(settings: ApexSettings) -> None:
        with rs.Client(server.url) as client:
            begin.wait()
            try:
                join(client, settings, environment_spec(settings))
                outcomes.append(settings.discount)
            except SettingsDiffer:
                outcomes.append(-1.0)

    threads = [threading.Thread(target=part, args=(settings,)) for settings in kinds]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert outcomes.count(-1.0) == 4
    assert len(set(outcomes)) == 2


@pytest.mark.parametrize("value", [b"not json", b"[1]", b'{"format": 2, "settings": {}}', b'"x"'])
def test_settings_of_another_version_are_refused_and_left_alone(server, client, value):
    join(client, SETTINGS, environment_spec(SETTINGS))
    client.redis.set("apex:settings", value)
    with pytest.raises(SettingsDiffer, match="expected the settings of a run in format 1, got"):
        run_actor(SETTINGS, server.url, 0, STOPPED)
    assert client.redis.get("apex:settings") == value


# ---- seeds -----------------------------------------------------------------------------------------------------------


def test_lives_of_an_actor_are_counted_on_the_server_and_sessions_beside_them(server, client):
    join(client, SETTINGS, environment_spec(SETTINGS))
    assert [incarnation(client, "apex", 0) for _ in range(3)] == [(0, 0), (0, 1), (0, 2)]
    assert incarnation(client, "apex", 1) == (0, 0)
    join(client, SETTINGS, environment_spec(SETTINGS), session=1_700_000_000)  # a resumed learner
    join(client, SETTINGS, environment_spec(SETTINGS))  # an actor, which does not know
    assert incarnation(client, "apex", 0) == (1_700_000_000, 3)


def test_no_two_lives_of_an_actor_have_the_same_seeds_and_the_first_has_those_of_the_run_alone():
    """The first life's seeds are what they always were: a run that is not disturbed is determined by its seed."""
    first = [seed.generate_state(4).tolist() for seed in actor_seeds(7, 3)]
    assert first == [seed.generate_state(4).tolist() for seed in np.random.SeedSequence([7, 3]).spawn(2)]
    lives = [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1_700_000_000, 0), (1_700_000_001, 0)]
    made = [seed for actor in (3, 4) for life in lives for seed in actor_seeds(7, actor, *life)]
    states = {tuple(seed.generate_state(4)) for seed in made}
    assert len(states) == 2 * 2 * len(lives)


def test_an_actor_that_is_started_again_plays_other_games(server, client):
    """Of its first starts and actions none comes again: before, each life repeated the first one's from the seed."""
    settings = dataclasses.replace(SETTINGS, actors=1, min_size_to_sample=1, epsilon_base=1.0, push_every=20)

    def play() -> set[bytes]:
        if "apex" in client.tables():
            client.reset("apex")
        run_actor(settings, server.url, 0, lambda: "apex" in client.tables() and client.info("apex")["size"] >= 60)
        batch = client.sample("apex", 500, importance_sampling_exponent=0.0, timeout=60)
        return {row.tobytes() for row in batch.data["obs"]}

    lives = [play() for _ in range(3)]
    assert all(len(life) >= 30 for life in lives)
    assert not lives[0] & lives[1]
    assert not lives[1] & lives[2]
