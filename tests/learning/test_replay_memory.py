"""A replay that does not fit in the machine's memory is made smaller, or refused, before a job starts."""

from __future__ import annotations

import dataclasses

import pytest

pytest.importorskip("torch")

import replay_server as rs
from replay_server.jobs import apex
from replay_server.jobs.apex import main_apex
from replay_server.jobs.job_server import snapshot_bytes
from replay_server.jobs.replay_memory import PARTS_BYTES, fit_replay
from replay_server.rl.settings import ApexSettings

GB = 1_000_000_000
SETTINGS = ApexSettings(capacity=1_000_000, min_size_to_sample=10_000)


def fit(settings, given, available_bytes):
    table = rs.Table("apex", settings.capacity, {"x": rs.Column("uint8", (84, 84))})
    return fit_replay(settings, table, given, available_bytes)


def needed(settings):
    return snapshot_bytes(rs.Table("apex", settings.capacity, {"x": rs.Column("uint8", (84, 84))}))


def test_a_replay_that_fits_is_left_alone():
    settings = dataclasses.replace(SETTINGS)
    assert fit(settings, False, needed(settings) + PARTS_BYTES) == ""
    assert settings == SETTINGS


@pytest.mark.parametrize("replicas", [0, 1])
def test_a_profiles_capacity_shrinks_to_what_fits_and_says_so(replicas):
    settings = dataclasses.replace(SETTINGS, replicas=replicas)
    told = fit(settings, False, 5 * GB)
    assert 0.9 * (5 * GB - PARTS_BYTES) < (1 + replicas) * needed(settings) <= 5 * GB - PARTS_BYTES
    assert f"the replay holds {settings.capacity} transitions" in told
    assert "5.0 GB are available" in told


def test_a_run_that_ends_before_its_replay_is_full_needs_less():
    settings = dataclasses.replace(SETTINGS, max_transitions=300_000)
    assert fit(settings, False, 5 * GB) == ""
    assert settings.capacity == SETTINGS.capacity
    told = fit(settings, False, 2 * GB)
    assert "300000 transitions need 2.2 GB of memory, and 2.0 GB are available" in told
    assert 130_000 < settings.capacity < 135_000  # half of what is available


@pytest.mark.parametrize(
    ("changes", "given", "available_bytes", "words"),
    [
        ({}, True, 8 * GB, "with --capacity 7"),  # it fits, and the learner and actors do not
        ({}, True, 5 * GB, "1000000 transitions need 7.5 GB of memory, and 5.0 GB are available"),
        ({"resume": True}, False, 5 * GB, "free some before the replay is full"),  # what was saved is of this capacity
        ({"compression": "zstd"}, True, 5 * GB, "--compression zstd has to save the rest"),
    ],
)
def test_a_capacity_that_may_fit_is_kept_with_a_warning(changes, given, available_bytes, words):
    settings = dataclasses.replace(SETTINGS, **changes)
    assert words in fit(settings, given, available_bytes)
    assert settings.capacity == SETTINGS.capacity


def test_learning_can_still_begin_with_a_smaller_replay():
    settings = dataclasses.replace(SETTINGS, min_size_to_sample=200_000)
    fit(settings, False, 2 * GB)
    assert settings.capacity == 200_000
    words = r"--min-size-to-sample 200000 is too large for this machine: 200000 transitions need 1\.5 GB of memory, and"
    for given in (False, True):
        with pytest.raises(ValueError, match=words):
            fit(dataclasses.replace(SETTINGS, min_size_to_sample=200_000), given, GB)


def test_shards_on_other_machines_are_not_measured_by_this_one():
    settings = dataclasses.replace(SETTINGS, shards_on="ray:head:6379")
    assert (fit(settings, True, GB), settings.capacity) == ("", SETTINGS.capacity)


def test_a_job_whose_replay_cannot_fit_ends_before_it_starts_anything(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(apex, "warm_up", lambda: None)
    with pytest.raises(SystemExit) as ending:
        main_apex(["--env", "CartPole-v1", "--capacity", str(10**12), "--min-size-to-sample", str(10**12)])
    assert ending.value.code == 2
    assert "1000000000000 transitions need" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
