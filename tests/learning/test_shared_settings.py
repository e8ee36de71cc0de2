"""Parts of a run that were given different settings: who is refused, in what words, and what stays as it was."""

from __future__ import annotations

import dataclasses
import json
import re
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import replay_server as rs
from replay_server.actors.evaluator import run_evaluator
from replay_server.actors.rollout import actor_seeds, run_actor
from replay_server.learner.loop import run_learner
from replay_server.rl.environment_spec import environment_spec
from replay_server.rl.part_ids import LEASE_S, PartId, hold_for_job, joined_actors
from replay_server.rl.settings import ApexSettings
from replay_server.rl.shared_settings import (
    OF_ONE_PLACE,
    OWN,
    SHARED,
    SettingsDiffer,
    incarnation,
    join,
    settings_of_run,
)
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
        *((part, "n_step", 5, "--n-step 3 there, 5 here") for part in (act, learn, evaluate)),
        *((part, "discount", 0.9, "--discount 0.99 there, 0.9 here") for part in (act, learn)),
        *((part, "reward_clip", None, "--reward-clip 1 there, none here") for part in (act, learn)),
        *((part, "actors", 3, "--actors 2 there, 3 here") for part in (act, learn)),
        *((part, "seed", 9, "--seed 1 there, 9 here") for part in (act, learn, evaluate)),
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


def test_all_that_differs_is_named_at_once(server, client):
    join(client, SETTINGS, environment_spec(SETTINGS))
    other = dataclasses.replace(SETTINGS, n_step=1, discount=0.5, hidden=32)
    with pytest.raises(SettingsDiffer, match=r"--n-step 3 there, 1 here; --discount 0\.99 there, 0\.5 here; --hidden "):
        run_actor(other, server.url, 0, STOPPED)


def test_what_parts_may_have_of_their_own_does_not_matter_and_that_of_the_learner_is_stored(server, client, tmp_path):
    join(client, SETTINGS, environment_spec(SETTINGS))
    act(dataclasses.replace(SETTINGS, push_every=10, epsilon_base=0.9), server.url, tmp_path)
    evaluate(dataclasses.replace(SETTINGS, eval_epsilon=0.9), server.url, tmp_path)
    assert settings_of_run(client, {}) == stored_of(SETTINGS)
    own = {"learning_rate": 1e-2, "batch_size": 16, "publish_every": 3, "minutes": 1.0, "epsilon_base": 0.3}
    learn(dataclasses.replace(SETTINGS, **own), server.url, tmp_path)
    assert settings_of_run(client, {}) == stored_of(dataclasses.replace(SETTINGS, **own))


def stored_of(settings: ApexSettings) -> ApexSettings:
    """As another part finds them: the device and the precision are of the machine where they were given."""
    return dataclasses.replace(settings, device="auto", precision="auto")


def test_all_settings_are_the_runs_but_those_that_a_part_may_have_of_its_own(client):
    names = {field.name for field in dataclasses.fields(ApexSettings)}
    assert set(SHARED) | frozenset.union(*OWN.values()) | {"table"} == names
    assert not set(SHARED) & frozenset.union(*OWN.values())
    join(client, SETTINGS, environment_spec(SETTINGS))
    record = json.loads(client.redis.get("apex:settings"))
    assert record["format"] == 2
    assert record["settings"] == {name: getattr(SETTINGS, name) for name in names - {"table"} - OF_ONE_PLACE}


# ---- the run that a part joins ---------------------------------------------------------------------------------------


def begin(client: rs.Client, **values: Any) -> ApexSettings:
    settings = dataclasses.replace(SETTINGS, **values)
    join(client, settings, environment_spec(settings), session=0)
    return stored_of(settings)


def test_a_part_has_the_runs_settings_and_its_own_where_it_may(client):
    assert settings_of_run(client, {}) is None
    run = begin(client, n_step=5, discount=0.9, eval_episodes=3)
    assert settings_of_run(client, {}) == run
    assert settings_of_run(client, {"n_step": 5}) == run
    assert settings_of_run(client, {"eval_episodes": 7}) == dataclasses.replace(run, eval_episodes=7)
    with pytest.raises(SettingsDiffer, match=r"--n-step 5 there, 3 here; --discount 0\.9 there, 0\.99 here\. Leave"):
        settings_of_run(client, {"n_step": 3, "discount": 0.99, "eval_episodes": 7})


def test_of_several_runs_the_one_that_goes_on_is_joined_and_of_more_one_must_be_named(client):
    first = begin(client)
    second = begin(client, table="other", n_step=5)
    with pytest.raises(SettingsDiffer, match=r"one run on the server, got 2: name it with --table apex\|other"):
        settings_of_run(client, {})
    assert settings_of_run(client, {"table": "other"}) == second
    assert settings_of_run(client, {"table": "third"}) is None
    client.close_table("other", "done")
    assert settings_of_run(client, {}) == first
    client.close_table("apex", "done")
    with pytest.raises(SettingsDiffer, match="--table"):
        settings_of_run(client, {})
    client.drop_table("apex")
    assert settings_of_run(client, {}) == second, "a run without a table is over"


def test_tables_of_no_run_and_those_that_a_user_may_not_look_into_are_passed_over(server, client):
    client.create_table(rs.Table("mine", 10, {"x": rs.Column("float32")}))
    assert settings_of_run(client, {}) is None
    assert settings_of_run(client, {"table": "mine"}) is None
    begin(client, table="secret")
    run = begin(client)
    rules = ["on", ">word", "+@all", "~apex", "~apex:*", "%R~secret"]
    client.redis.execute_command("ACL", "SETUSER", "guest", *rules)
    with rs.Client(server.url.replace("redis://", "redis://guest:word@")) as guest:
        assert sorted(guest.tables()) == ["apex", "secret"]
        assert settings_of_run(guest, {}) == run


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


@pytest.mark.parametrize(
    "value",
    [
        b"not json", b"[1]", b'{"format": 1, "session": 0, "settings": {}}', b'"x"', b'{"format": 2, "session": 0}',
        b'{"format": 2, "session": 0, "settings": [1]}', b'{"format": 2, "session": "x", "settings": {}}',
        b'{"format": 2, "session": 0, "settings": {"colour": 1}}',
        b'{"format": 2, "session": 0, "settings": {"env": 1}}',
        b'{"format": 2, "session": 0, "settings": {"loss": "cubic"}}',
        b'{"format": 2, "session": 0, "settings": {"n_step": true}}',
        b'{"format": 2, "session": 0, "settings": {"learner_threads": "many"}}',
        b'{"format": 2, "session": 0, "settings": {"reward_clip": "1"}}',
    ],
)  # fmt: skip
def test_settings_of_another_version_are_refused_and_left_alone(server, client, value):
    join(client, SETTINGS, environment_spec(SETTINGS))
    client.redis.set("apex:settings", value)
    for part in (lambda: run_actor(SETTINGS, server.url, 0, STOPPED), lambda: settings_of_run(client, {})):
        with pytest.raises(SettingsDiffer, match="expected the settings of a run in format 2, got"):
            part()
    assert client.redis.get("apex:settings") == value


@pytest.mark.parametrize("threads", [2, "auto"])
def test_settings_that_are_numbers_or_words_may_be_either(client, threads):
    run = begin(client)
    record = json.loads(client.redis.get("apex:settings"))
    record["settings"]["learner_threads"] = threads
    client.redis.set("apex:settings", json.dumps(record))
    assert settings_of_run(client, {}) == dataclasses.replace(run, learner_threads=threads)


# ---- ids of actors ---------------------------------------------------------------------------------------------------


def test_each_actor_takes_the_smallest_id_that_is_free(client):
    actors = [PartId("apex", "actor") for _ in range(4)]
    assert all(actor.take(client) for actor in actors)
    assert [actor.number for actor in actors] == [0, 1, 2, 3]
    for actor in (actors[1], actors[2]):
        actor.free(client)
    new = PartId("apex", "actor")
    new.take(client)
    assert new.number == 1
    assert 0 < client.redis.pttl("apex:actor-id:1") <= 1000 * LEASE_S


def test_of_actors_that_begin_at_the_same_time_no_two_have_one_id(server):
    begin, taken = threading.Barrier(8), []

    def take() -> None:
        with rs.Client(server.url) as client:
            own = PartId("apex", "actor")
            begin.wait()
            own.take(client)
            taken.append(own.number)

    threads = [threading.Thread(target=take) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(taken) == list(range(8))


def test_an_id_that_is_wanted_is_had_or_not(client):
    first, second = PartId("apex", "actor", 3), PartId("apex", "actor", 3)
    assert first.take(client)
    assert not second.take(client)
    first.free(client)
    assert second.take(client)
    first.free(client)
    assert client.redis.exists("apex:actor-id:3"), "what is another's by now is not given back"


def test_a_lease_that_has_ended_is_taken_up_again_where_nobody_else_has(client):
    own = PartId("apex", "actor")
    own.take(client)
    client.redis.delete("apex:actor-id:0")
    assert not own.renew(client)
    assert 0 < client.redis.pttl("apex:actor-id:0") <= 1000 * LEASE_S
    client.redis.pexpire("apex:actor-id:0", 50)
    assert not own.renew(client)
    assert client.redis.pttl("apex:actor-id:0") > 50


@pytest.mark.parametrize("what", ["renew", "free"])
def test_a_lease_that_passes_to_another_part_between_two_commands_is_left_to_it(client, monkeypatch, what):
    """As where a part is stopped (SIGSTOP) between looking whose the lease is and acting on it."""
    own, key = PartId("apex", "actor"), "apex:actor-id:0"
    own.take(client)
    execute = client.redis.execute_command

    def execute_and_pass_on(*words, **options):
        found = execute(*words, **options)
        execute("SET", key, "another", "PX", 600_000)
        return found

    monkeypatch.setattr(client.redis, "execute_command", execute_and_pass_on)
    getattr(own, what)(client)
    monkeypatch.undo()
    assert client.redis.get(key) == b"another"
    assert client.redis.pttl(key) > 1000 * LEASE_S


def test_the_rights_that_are_documented_for_parts_do_to_hold_a_lease(client):
    rights = ["+@read", "+@write", "+evalsha", "+script|load", "~apex:*"]
    client.redis.execute_command("ACL", "SETUSER", "part", "on", ">word", *rights)
    with rs.Client(client.url.replace("redis://", "redis://part:word@")) as part:
        own = PartId("apex", "actor")
        assert own.take(part)
        assert not own.renew(part)
        own.free(part)
    assert not client.redis.exists("apex:actor-id:0")


HOLDER = """
import sys, time
import replay_server as rs
from replay_server.rl.part_ids import PartId
with rs.Client(sys.argv[1]) as client:
    print(PartId("apex", "learner", 0).take(client), flush=True)
    time.sleep(600)
"""


def test_the_id_of_a_part_that_was_killed_on_this_host_is_free_at_once_and_not_before(server, client):
    holder = subprocess.Popen([sys.executable, "-c", HOLDER, server.url], stdout=subprocess.PIPE, text=True)
    learner = PartId("apex", "learner", 0)
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "True\n"
        assert not learner.take(client)
    finally:
        holder.kill()
        holder.communicate()
    client.redis.persist("apex:learner-id:0")  # It would not end by itself.
    assert learner.take(client)
    assert 0 < client.redis.pttl("apex:learner-id:0") <= 1000 * LEASE_S


def test_a_holder_that_cannot_be_seen_from_here_is_taken_for_alive(client):
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    for holder in ("of another release", "job", f"{boot}/pid:[1]/999999/1/token", "other-boot/pid:[1]/999999/1/token"):
        client.redis.set("apex:learner-id:0", holder)
        assert not PartId("apex", "learner", 0).take(client)
        assert client.redis.get("apex:learner-id:0") == holder.encode()


def test_a_jobs_own_actors_keep_their_ids(client):
    hold_for_job(client, "apex", 2)
    joined = PartId("apex", "actor")
    joined.take(client)
    assert joined.number == 2
    assert client.redis.pttl("apex:actor-id:1") == -1
    assert joined_actors(client, "apex", 2) == 0, "it has not begun"
    incarnation(client, "apex", 2)
    assert joined_actors(client, "apex", 2) == 1
    joined.free(client)
    assert joined_actors(client, "apex", 2) == 0


# ---- seeds -----------------------------------------------------------------------------------------------------------


def test_lives_of_an_actor_are_counted_on_the_server_and_sessions_beside_them(server, client):
    join(client, SETTINGS, environment_spec(SETTINGS))
    assert [incarnation(client, "apex", 0) for _ in range(3)] == [(0, 0), (0, 1), (0, 2)]
    assert incarnation(client, "apex", 1) == (0, 0)
    join(client, SETTINGS, environment_spec(SETTINGS), session=1_700_000_000)  # a resumed learner
    join(client, SETTINGS, environment_spec(SETTINGS))  # an actor, which does not know
    join(client, SETTINGS, environment_spec(SETTINGS), session=0)  # one that a job has started again
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
