"""Every setting of a serverless training job: what it means, its unit, and where its default comes from.

The command line offers each field as ``--field-name``; a run directory's ``config.json`` holds all of them.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from replay_server.cluster_address import is_cluster_url, parse_address
from replay_server.rl.asynchronous_learning import AsynchronousLearning, asynchronous_learning
from replay_server.rl.dashboard_process import check_dashboard
from replay_server.rl.options import option_of, typed_values
from replay_server.serverless.scalers import registry
from replay_server.serverless.scalers.scaler import Scaler
from replay_server.topology import MOST_SHARDS

if TYPE_CHECKING:
    from replay_server.learner.algorithms import Settings

OWN_FIELDS = ("env", "profile", "seed", "steps")
"""Settings of the algorithm that have options of their own."""
ASYNCHRONOUS = ("ppo", "impact")
"""Algorithms that have asynchronous learners."""


@dataclass
class TrainSettings:
    """Serverless deep reinforcement learning: actor and learner functions, in rounds."""

    env: str = "Hopper-v5"
    """Gymnasium id."""
    algo: Literal["ppo", "impact", "impala"] = "ppo"
    """ppo: rounds of acting, then learning from exactly that. impact, impala: actors go on while learners learn."""
    profile: str = "default"
    """Named set of the algorithm's settings."""
    setting: dict[str, Any] = field(default_factory=dict)
    """One setting of the algorithm over its profile, e.g. learning_rate=1e-4; as often as needed."""
    seed: int = 1
    """Seeds networks, environments, actions and minibatches."""
    rounds: int = 50
    """Stop after so many, those before --resume included. One round is one learner request."""
    steps: int = 256
    """Agent steps that one environment plays in one round (Nitro, Stellaris: 256 on MuJoCo)."""
    environments: int = 1
    """Of each actor function, played side by side."""

    # scaling
    scaler: Literal[
        "fixed", "max", "adapt", "minions", "nitro", "kungfu", "hydrozoa", "decay", "schedule", "random"
    ] = "fixed"
    """What decides how many actors a round gets (docs/scalers.md)."""
    scaler_option: dict[str, Any] = field(default_factory=dict)
    """One option of the scaler, e.g. decay=0.9 or counts=[8,16,8] (JSON, or else a string); as often as needed."""
    actors: int = 16
    """How many the scaler fixed asks for."""
    actors_max: int = 32
    """The most that any scaler but fixed may ask for, its I_max (Nitro: 64); what the scaler max asks for."""
    learners: Literal["sync", "async"] = "sync"
    """One learner function at a time, or several (docs/asynchronous-learners.md)."""
    learner_option: dict[str, Any] = field(default_factory=dict)
    """One option of --learners async, e.g. learners=4 or truncation=none; as often as needed."""

    # functions
    backend: Literal["process", "ray", "lambda", "http"] = "process"
    """Where functions run."""
    backend_option: dict[str, Any] = field(default_factory=dict)
    """One option of the backend, e.g. memory_mb=2048 (JSON, or else a string); as often as needed."""
    concurrency: int | None = None
    """Functions at a time, those beyond wait. Without it: as many as actors can be asked for."""
    prewarm: int = 0
    """Function instances that are made warm before the first round."""
    timeout_s: float = 60.0
    """Time limit of one attempt of an actor function, in seconds (the papers: 60)."""
    learner_timeout_s: float = 600.0
    """Time limit of one attempt of a learner function or an evaluation, in seconds."""
    retries: int = 2
    """Attempts after the first, for what was lost or took too long."""
    deadline_s: float | None = None
    """Seconds from a round's start after which it learns from what has arrived. Without it: all are awaited."""
    quorum: float = 0.5
    """Share of a round's actors that must have arrived to learn from them; with fewer the missing are asked again."""
    learner_threads: int = 0
    """Threads of a learner function; 0 = as its environment says, else 1."""
    learner_device: Literal["cpu", "auto"] = "cpu"
    """Of --learners async, what learners compute on. auto: each on an accelerator of its own, as far as there are."""

    # end
    target_score: float | None = None
    """Stop when this is reached: by an evaluation, or without --eval-every by the games of the last 5 rounds."""
    budget: float | None = None
    """Stop when this many dollars are spent, by the price profile."""
    prices: str | None = None
    """Price file. Without it: the one of this package."""
    price_profile: str = "lambda"
    """Its profile: what functions and machines cost."""
    price_column: Literal["paper", "code", "full"] = "full"
    """What is counted: as the papers print it; use alone, on demand; all that a platform would bill."""
    eval_every: int = 0
    """Rounds between two evaluations; they are off the clock and off the bill. 0 = none but the last."""
    eval_episodes: int = 20
    """Fresh games of each of them, played by the stochastic policy."""
    final_episodes: int = 20
    """Those of the last one, whose mean is the reported score; 0 = none."""

    # where
    server: str | None = None
    """URL of a replay server that is there, or of shards. Without it: the job has one of its own."""
    replay_shards: int = 1
    """Servers of the job's own, a process each, that hold fragments, states and weights together. Not with --server."""
    function_server: str | None = None
    """URL under which functions reach the server, if it is another one."""
    job: str | None = None
    """Name of the job on its server, by which its tables and weights are named. Without it: one is made up."""
    keep: bool = False
    """Leave the job's table and weights on a shared server when it ends."""
    plot: bool = False
    """Draw the run when it ends: reward, actors, where rounds spent their time, every function."""
    dashboard: str = "auto"
    """The run's dashboard in the browser: auto (any free port, if nicegui is installed), a port, or off."""
    wandb: str = "off"
    """Weights & Biases: off, offline (files in the run directory, which `wandb sync` sends) or online."""
    checkpoint_every: int = 10
    """Rounds between two checkpoints; there is one at the end, too."""
    logdir: str | None = None
    """Run directory. Without it: runs/<env>-<seed>-<time>."""
    resume: bool = False
    """Go on with the run in --logdir, from its newest checkpoint. Actors begin new episodes."""

    @property
    def most_actors(self) -> int:
        """The most that a round can have."""
        return self.actors if self.scaler == "fixed" else self.actors_max

    def quorum_of(self, actors: int) -> int:
        """How many of so many must have arrived, at least 1."""
        return max(1, math.ceil(self.quorum * actors))


def check_settings(settings: TrainSettings) -> None:
    """Raises ValueError, naming the option, for a value that no job can have or that this version has not."""
    _check_learners(settings)
    check_dashboard(settings.dashboard)
    at_least = {
        "rounds": 1, "steps": 1, "environments": 1, "actors": 1, "actors_max": 1, "prewarm": 0, "retries": 0,
        "learner_threads": 0, "eval_every": 0, "eval_episodes": 1, "final_episodes": 0, "checkpoint_every": 1,
        "replay_shards": 1,
    }  # fmt: skip
    for name, least in at_least.items():
        if getattr(settings, name) < least:
            raise ValueError(f"{option_of(name)}: expected at least {least}, got {getattr(settings, name)}")
    for name in ("concurrency", "timeout_s", "learner_timeout_s", "deadline_s", "budget"):
        value = getattr(settings, name)
        if value is not None and not value > 0:
            raise ValueError(f"{option_of(name)}: expected more than 0, got {value}")
    if settings.target_score is not None and math.isnan(settings.target_score):
        raise ValueError("--target-score: expected a number, got nan")
    if not 0.0 < settings.quorum <= 1.0:
        raise ValueError(f"--quorum: expected more than 0 and at most 1, got {settings.quorum}")
    if settings.job is not None and not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", settings.job):
        raise ValueError(f"--job: expected up to 100 letters, digits, dots, dashes, underscores, got {settings.job!r}")
    if settings.function_server is not None and settings.server is None:
        raise ValueError("--function-server needs --server: functions reach the job's own server without it")
    if settings.replay_shards > MOST_SHARDS:
        raise ValueError(f"--replay-shards: expected at most {MOST_SHARDS}, got {settings.replay_shards}")
    if settings.replay_shards > 1 and settings.server is not None:
        raise ValueError("--replay-shards does not go with --server: the shards are the job's own")
    for name in ("server", "function_server"):
        if (url := getattr(settings, name)) is not None:
            try:
                parse_address(url)
            except ValueError as error:
                raise ValueError(f"{option_of(name)}: {error}") from None
    if settings.function_server and is_cluster_url(settings.function_server) != is_cluster_url(settings.server):
        raise ValueError(
            "--function-server: expected the URL of shards (redis+cluster://…) if --server is one, and of one server "
            "if not: functions find a job's keys by it"
        )
    make_scaler(settings)


def _check_learners(settings: TrainSettings) -> None:
    """Raises ValueError for asynchronous learners that the settings cannot have."""
    if settings.learners == "sync":
        if settings.learner_option:
            raise ValueError(f"--learner-option {min(settings.learner_option)} needs --learners async")
        if settings.learner_device != "cpu":
            raise ValueError(f"--learner-device {settings.learner_device} needs --learners async")
        return
    if settings.algo not in ASYNCHRONOUS:
        raise ValueError(
            f"--learners async: expected --algo {' or '.join(ASYNCHRONOUS)}, got {settings.algo}: its V-trace "
            "targets are made anew, of whole fragments, for each update, and a learner prepares its share only once"
        )
    learning = learning_settings(settings)
    needed = learning.learners + 2
    if settings.concurrency is not None and settings.concurrency < needed:
        raise ValueError(
            f"--concurrency: expected at least {needed} with {learning.learners} asynchronous learners (they, their "
            f"parameter function and an actor), got {settings.concurrency}"
        )


def learning_settings(settings: TrainSettings) -> AsynchronousLearning:
    """The options of ``--learners async``. ValueError for what it does not take."""
    return asynchronous_learning(settings.learner_option)


def algorithm_settings(settings: TrainSettings) -> Settings:
    """The algorithm's own settings: its profile's, with those given over it. ValueError for what it does not have."""
    from replay_server.learner.algorithms import make_settings, settings_kind

    if twice := sorted(set(settings.setting) & set(OWN_FIELDS)):
        raise ValueError(f"--setting {twice[0]}: use the option --{twice[0]}")
    given = typed_values(settings_kind(settings.algo), settings.setting)
    own = {name: getattr(settings, name) for name in OWN_FIELDS if name != "profile"}
    return make_settings(settings.algo, settings.profile, **own, **given)


def make_scaler(settings: TrainSettings) -> Scaler:
    """The scaler that the settings name. ValueError, naming the option, where it cannot be made of them."""
    return registry.make_scaler(settings, json_options(settings.scaler_option))


def json_options(given: Mapping[str, Any]) -> dict[str, Any]:
    """Options of a platform or a scaler from words: JSON where a word is some, else the word."""
    options = {}
    for name, word in given.items():
        try:
            options[name] = json.loads(word) if isinstance(word, str) else word
        except json.JSONDecodeError:
            options[name] = word
    return options
