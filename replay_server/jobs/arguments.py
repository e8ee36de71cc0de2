"""Command-line options made from the fields of `ApexSettings`: one source for names, types, defaults and help."""

from __future__ import annotations

import argparse
import contextlib
import ipaddress
import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import replay_server as rs
from replay_server.connection import PASSWORD_VARIABLE
from replay_server.jobs.gpu import finds_gpu
from replay_server.learner.wandb_mirror import check_wandb
from replay_server.rl.dashboard_process import check_dashboard
from replay_server.rl.environment_spec import algorithm_for, environment_spec
from replay_server.rl.machine import usable_cores
from replay_server.rl.options import add_options, given_options, option_of
from replay_server.rl.profiles import apply_profile
from replay_server.rl.run_directory import RunDirectory
from replay_server.rl.settings import PROFILES, ApexSettings
from replay_server.rl.tables import apex_table
from replay_server.topology import MOST_SHARDS

TITLE = "settings of the run (the defaults shown are those of --profile paper; other profiles change some)"
"""Over the options, in --help."""
GPU_CORES = 8
"""With fewer, actors beside the learner cannot feed a GPU: `atari-small` is the default for ALE/* there, too."""
MOST_REPLICAS = 8
"""Each holds the whole replay in memory, on the same machine."""
AT_LEAST = {
    "actors": 1, "envs_per_actor": 1, "seed": 0, "n_step": 1, "capacity": 1, "min_size_to_sample": 1, "batch_size": 1,
    "push_every": 1, "pull_every_frames": 1, "target_update_every": 1, "publish_every": 1, "prefetch": 1, "hidden": 1,
    "eval_every_updates": 1, "eval_episodes": 1, "final_episodes": 0, "target_evaluations": 1, "checkpoints_kept": 1,
    "frame_stack": 1, "noop_max": 0, "max_frames_per_episode": 1, "eval_max_frames_per_episode": 1,
    "epsilon_exponent": 0, "priority_exponent": 0, "importance_sampling_exponent": 0, "priority_epsilon": 0,
    "learning_rate_end": 0, "learning_rate_decay_updates": 0, "samples_per_insert_end_updates": 0,
    "average_updates": 0, "checkpoint_every_s": 0, "value_bins": 2,
}  # fmt: skip
MORE_THAN_0 = (
    "minutes", "max_updates", "max_transitions", "initial_temperature", "reward_clip", "gradient_norm",
    "learning_rate", "optimizer_epsilon", "samples_per_insert", "samples_per_insert_end", "checkpoint_replay_every_s",
    "value_limit",
)  # fmt: skip
SHARES = ("discount", "epsilon_base", "eval_epsilon", "sticky_actions")
TURNED_OFF = {
    "minutes": "none = no limit",
    "max_updates": "none = no limit",
    "max_transitions": "none = no limit",
    "reward_clip": "none = rewards as they are",
    "gradient_norm": "1e6 = as good as never scaled down",
    "samples_per_insert": "none = not limited",
    "checkpoint_every_s": "1e9 = only at the end",
    "checkpoint_replay_every_s": "--checkpoint-replay off = never",
}
"""What to give instead, where 0 or less is meant to turn something off."""


def add_settings(parser: argparse.ArgumentParser) -> None:
    """Adds one option per field of `ApexSettings` (``--field-name``); fields not given leave no trace in the result."""
    add_options(parser.add_argument_group(TITLE), ApexSettings)


def given_settings(namespace: argparse.Namespace) -> dict[str, Any]:
    """Returns the fields that the user gave on the command line, by name."""
    return given_options(namespace, ApexSettings)


def resolve_settings(
    given: dict[str, Any], one_machine: bool, cores: int | None = None, gpu: bool | None = None
) -> tuple[ApexSettings, str]:
    """Returns the settings of a new run and a sentence on which profile it has and why.

    Fields in `given` win over the profile. The algorithm is what learns the environment's actions. Without a profile:
    `sac` where that is SAC; for ALE/* `atari-gpu` with a GPU, and where one machine does everything `GPU_CORES` cores
    or more, else `atari-small`. `cores`, `gpu`: of the learner's machine; None = of this one. ValueError for an unknown
    profile, or an environment that no run can have.
    """
    cores = cores or usable_cores()
    settings = ApexSettings(**given)
    with _told_by_option(settings):
        settings.algo = algorithm_for(settings)
    if "profile" in given:
        why = "as asked for"
    elif settings.algo == "sac":
        settings.profile, why = "sac", "chosen for continuous actions"
    elif not settings.env.startswith("ALE/"):
        settings.profile, why = "cartpole", "chosen for environments other than ALE/*"
    elif not (finds_gpu(settings.device) if gpu is None else gpu):
        settings.profile, why = "atari-small", "chosen because the learner has no GPU"
    elif one_machine and cores < GPU_CORES:
        settings.profile = "atari-small"
        why = f"chosen because this machine has {cores} cores, and atari-gpu needs {GPU_CORES}"
    else:
        settings.profile, why = "atari-gpu", f"chosen because this machine has a GPU and {cores} cores"
    settings = apply_profile(settings, set(given), PROFILES)
    if settings.profile == "cartpole" and "learner_threads" not in given:
        with _told_by_option(settings):
            if environment_spec(settings).has_images:
                settings.learner_threads = "auto"  # convolutions gain by threads: that is worth the time to measure it
    _check_value_limit(settings, given)
    return settings, f"profile {settings.profile} ({why})"


def resumed_settings(given: dict[str, Any]) -> ApexSettings:
    """The settings of the run in `given["logdir"]`, with what was given now in their place.

    ValueError or OSError, naming the option, where there is no such run, or it cannot go on with what was given.
    """
    if given.get("logdir") is None:
        raise ValueError("--resume needs --logdir: the run directory to go on with")
    now = dict(given)
    profile = now.pop("profile", None)
    settings = RunDirectory(Path(given["logdir"])).settings(ApexSettings, now)
    if profile not in (None, settings.profile):
        raise ValueError(
            f"--profile {profile}: a resumed run keeps its own settings, those of {settings.profile}: give single "
            "ones, such as --learning-rate, or begin another run"
        )
    _check_value_limit(settings, given)
    return settings


def _check_value_limit(settings: ApexSettings, given: dict[str, Any]) -> None:
    """ValueError where HL-Gauss was asked for with rewards that are not clipped, and nobody said how far Q values go:
    the default limit is for clipped rewards, and values beyond it cannot be learned."""
    asked = {"loss", "reward_clip"} & given.keys()
    if (
        asked
        and settings.loss == "hl-gauss"
        and settings.reward_clip is None
        and "value_limit" not in given
        and settings.algo != "sac"
    ):
        raise ValueError(
            "--loss hl-gauss with --reward-clip none: give --value-limit, the largest discounted sum of rewards that "
            f"the network has to tell (it would be {settings.value_limit:g}), or a --reward-clip, or --loss huber"
        )


def check_settings(settings: ApexSettings) -> None:
    """Raises ValueError, naming the option, for a value that no run can have."""
    for name, value in vars(settings).items():
        if isinstance(value, float) and not math.isfinite(value):
            raise _unexpected(settings, name, "a finite number")
    for name, least in AT_LEAST.items():
        if (value := getattr(settings, name)) is not None and value < least:
            raise _unexpected(settings, name, f"at least {least}")
    for name in MORE_THAN_0:
        if (value := getattr(settings, name)) is not None and value <= 0:
            raise _unexpected(settings, name, "more than 0")
    for name in SHARES:
        if not 0.0 <= getattr(settings, name) <= 1.0:
            raise _unexpected(settings, name, "0 to 1")
    if not 0.0 <= settings.rmsprop_decay < 1.0:
        raise _unexpected(settings, "rmsprop_decay", "0 or more, and less than 1")
    if not 0.0 < settings.target_mix <= 1.0:
        raise _unexpected(settings, "target_mix", "more than 0 and at most 1")
    if settings.learner_threads != "auto" and settings.learner_threads < 1:
        raise _unexpected(settings, "learner_threads", "auto, or at least 1")
    for end, updates in (
        ("learning_rate_end", "learning_rate_decay_updates"),
        ("samples_per_insert_end", "samples_per_insert_end_updates"),
    ):
        if (getattr(settings, end) is None) != (getattr(settings, updates) == 0):
            raise ValueError(
                f"{option_of(end)} and {option_of(updates)}: one has no effect without the other: give both, or neither"
            )
    if settings.loss == "hl-gauss" and settings.algo == "sac":
        raise ValueError("--loss hl-gauss: SAC learns values, not their bins; take squared or huber")
    for option, place in (("--actors-on", settings.actors_on), ("--shards-on", settings.shards_on)):
        if place not in ("processes", "ray") and not place.startswith("ray:"):
            raise ValueError(f"{option}: expected processes, ray or ray:HOST:PORT, got {place}")
    if settings.min_size_to_sample > settings.capacity:
        raise ValueError(
            f"--min-size-to-sample {settings.min_size_to_sample} is more than --capacity {settings.capacity}: "
            "learning could never begin"
        )
    if not 0 <= settings.port <= 65535:
        raise ValueError(f"--port: expected 0 to 65535, got {settings.port}")
    if not 1 <= settings.replay_shards <= MOST_SHARDS:
        raise ValueError(f"--replay-shards: expected 1 to {MOST_SHARDS}, got {settings.replay_shards}")
    if settings.port and settings.port + settings.replay_shards - 1 > 65535:
        raise ValueError(
            f"--port: expected at most {65536 - settings.replay_shards} with {settings.replay_shards} "
            f"shards, which have the ports that follow, got {settings.port}"
        )
    if not 0 <= settings.replicas <= MOST_REPLICAS:
        raise ValueError(f"--replicas: expected 0 to {MOST_REPLICAS}, got {settings.replicas}")
    if settings.replicas and (settings.replay_shards > 1 or settings.shards_on != "processes"):
        raise ValueError("--replicas: expected 0 for a replay on shards, which have none: leave out one of the two")
    if settings.port and settings.port + settings.replicas > 65535:
        raise ValueError(
            f"--port: expected at most {65535 - settings.replicas} with {settings.replicas} replicas, which have the "
            f"ports that follow, got {settings.port}"
        )
    check_dashboard(settings.dashboard)
    check_wandb(settings.wandb)
    if settings.samples_per_insert_end is not None and settings.samples_per_insert is None:
        raise ValueError("--samples-per-insert-end: give --samples-per-insert, too: what is held before")


def _unexpected(settings: ApexSettings, name: str, expected: str) -> ValueError:
    off = f"; {TURNED_OFF[name]}" if name in TURNED_OFF else ""
    return ValueError(f"{option_of(name)}: expected {expected}, got {getattr(settings, name)}{off}")


def check_actors_for_shards(settings: ApexSettings) -> None:
    """Raises ValueError for fewer actors than shards. An actor adds to one shard, and one that nobody adds to would
    never have its share of `min_size_to_sample`: the rate limiter would stop the others."""
    if settings.actors < settings.replay_shards:
        raise ValueError(
            f"--actors: expected at least one for each of the {settings.replay_shards} shards (--replay-shards), got "
            f"{settings.actors}"
        )


def check_host(settings: ApexSettings) -> None:
    """Raises ValueError for a job whose server would let other machines in without a password."""
    if not is_loopback(settings.host) and not os.environ.get(PASSWORD_VARIABLE):
        raise ValueError(
            f"--host {settings.host}: other machines could connect without a password. Set one in the variable "
            f"{PASSWORD_VARIABLE}, here and on the hosts of actors"
        )


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches an address that a server listens on, as the server sees it."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def check_environment(settings: ApexSettings) -> rs.Table:
    """The run's table. Raises ValueError for an environment, settings of its table, or a network that no run can have:
    makes them."""
    with _told_by_option(settings):
        spec = environment_spec(settings)
        table = apex_table(settings, spec)
    if settings.network is not None:  # torch is loaded for it alone
        from replay_server.rl.networks import check_network

        check_network(settings, spec)
    return table


@contextlib.contextmanager
def _told_by_option(settings: ApexSettings) -> Iterator[None]:
    """Gymnasium's errors as ValueError, with the option."""
    import gymnasium

    try:
        yield
    except gymnasium.error.Error as error:
        raise ValueError(f"--env {settings.env}: {error}") from error
