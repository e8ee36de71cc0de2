"""Command-line options made from the fields of `ApexSettings`: one source for names, types, defaults and help."""

from __future__ import annotations

import argparse
import contextlib
import ipaddress
import os
from collections.abc import Iterator
from typing import Any

from replay_server.connection import PASSWORD_VARIABLE
from replay_server.jobs.gpu import finds_gpu
from replay_server.learner.wandb_mirror import check_wandb
from replay_server.rl.dashboard_process import check_dashboard
from replay_server.rl.environment_spec import algorithm_for, environment_spec
from replay_server.rl.options import add_options, given_options
from replay_server.rl.profiles import apply_profile
from replay_server.rl.settings import PROFILES, ApexSettings
from replay_server.rl.tables import apex_table
from replay_server.topology import MOST_SHARDS

ATARI_CORES = 16
"""Below this many cores the paper's settings cannot feed their learner: `atari-small` is the default for ALE/*."""
GPU_CORES = 8
"""From this many on, beside a GPU, `atari-gpu` is."""
MOST_REPLICAS = 8
"""Each holds the whole replay in memory, on the same machine."""


def add_settings(parser: argparse.ArgumentParser) -> None:
    """Adds one option per field of `ApexSettings` (``--field-name``); fields not given leave no trace in the result."""
    title = "settings of the run (defaults are the paper's; a profile changes some)"
    add_options(parser.add_argument_group(title), ApexSettings)


def given_settings(namespace: argparse.Namespace) -> dict[str, Any]:
    """Returns the fields that the user gave on the command line, by name."""
    return given_options(namespace, ApexSettings)


def resolve_settings(
    given: dict[str, Any], one_machine: bool, cores: int | None = None, gpu: bool | None = None
) -> tuple[ApexSettings, str]:
    """Returns the settings of a new run and a sentence on which profile it has and why.

    Fields in `given` win over the profile. The algorithm is what learns the environment's actions. Without a profile:
    `sac` where that is SAC; for ALE/* `paper`, or where one machine does everything `atari-gpu` with a GPU and
    `GPU_CORES` cores or more, and `atari-small` with fewer than `ATARI_CORES` and no GPU. `cores`, `gpu`: of the
    machine; None = of this one. ValueError for an unknown profile, or an environment that no run can have.
    """
    cores = cores or len(os.sched_getaffinity(0))
    settings = ApexSettings(**given)
    with _told_by_option(settings):
        settings.algo = algorithm_for(settings)
    if "profile" in given:
        why = "as asked for"
    elif settings.algo == "sac":
        settings.profile, why = "sac", "chosen for continuous actions"
    elif not settings.env.startswith("ALE/"):
        settings.profile, why = "cartpole", "chosen for environments other than ALE/*"
    elif one_machine and cores >= GPU_CORES and (finds_gpu(settings.device) if gpu is None else gpu):
        settings.profile, why = "atari-gpu", f"chosen because this machine has a GPU and {cores} cores"
    elif one_machine and cores < ATARI_CORES:
        settings.profile = "atari-small"
        why = f"chosen because this machine has {cores} cores and the paper's settings want {ATARI_CORES} or more"
    else:
        why = "the paper's settings"
    return apply_profile(settings, set(given), PROFILES), f"profile {settings.profile} ({why})"


def check_settings(settings: ApexSettings) -> None:
    """Raises ValueError, naming the option, for a value that no run can have."""
    at_least = {
        "actors": 1, "envs_per_actor": 1, "n_step": 1, "capacity": 1, "min_size_to_sample": 1, "batch_size": 1,
        "push_every": 1, "target_update_every": 1, "publish_every": 1, "prefetch": 1, "eval_every_updates": 1,
        "eval_episodes": 1, "final_episodes": 0, "target_evaluations": 1, "checkpoints_kept": 1, "frame_stack": 1,
    }  # fmt: skip
    for name, least in at_least.items():
        if getattr(settings, name) < least:
            raise ValueError(f"--{name.replace('_', '-')}: expected at least {least}, got {getattr(settings, name)}")
    if settings.learner_threads != "auto" and settings.learner_threads < 1:
        raise ValueError(f"--learner-threads: expected auto, or at least 1, got {settings.learner_threads}")
    if not settings.checkpoint_replay_every_s > 0:
        raise ValueError(f"--checkpoint-replay-every-s: expected more than 0, got {settings.checkpoint_replay_every_s}")
    for name in ("minutes", "max_updates", "max_transitions", "initial_temperature"):
        value = getattr(settings, name)
        if value is not None and value <= 0:
            raise ValueError(f"--{name.replace('_', '-')}: expected more than 0, got {value}")
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
    if not 0.0 <= settings.discount <= 1.0:
        raise ValueError(f"--discount: expected 0 to 1, got {settings.discount}")
    if not 0.0 < settings.target_mix <= 1.0:
        raise ValueError(f"--target-mix: expected more than 0 and at most 1, got {settings.target_mix}")
    if settings.average_updates < 0:
        raise ValueError(f"--average-updates: expected 0 or more, got {settings.average_updates}")


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


def check_environment(settings: ApexSettings) -> None:
    """Raises ValueError for an environment, settings of its table, or a network that no run can have: makes them."""
    with _told_by_option(settings):
        spec = environment_spec(settings)
        apex_table(settings, spec)
    if settings.network is not None:  # torch is loaded for it alone
        from replay_server.rl.networks import check_network

        check_network(settings, spec)


@contextlib.contextmanager
def _told_by_option(settings: ApexSettings) -> Iterator[None]:
    """Gymnasium's errors as ValueError, with the option."""
    import gymnasium

    try:
        yield
    except gymnasium.error.Error as error:
        raise ValueError(f"--env {settings.env}: {error}") from error
