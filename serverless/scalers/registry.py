"""The scalers by name, made from a job's settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from replay_server.serverless.scalers.adapt import Adapt
from replay_server.serverless.scalers.fixed import Fixed
from replay_server.serverless.scalers.hydrozoa import Hydrozoa
from replay_server.serverless.scalers.kungfu import KungFu
from replay_server.serverless.scalers.nitro import Nitro
from replay_server.serverless.scalers.scaler import Scaler
from replay_server.serverless.scalers.schedule import Schedule, decayed
from replay_server.serverless.scalers.uniform import Uniform

if TYPE_CHECKING:
    from replay_server.serverless.settings import TrainSettings

Options = Mapping[str, Any]


def _adapt(settings: TrainSettings, options: Options) -> Scaler:
    if settings.target_score is None:
        raise ValueError("--scaler adapt needs --target-score: actors grow with the score's share of it")
    return Adapt(settings.target_score, settings.actors_max, **options)


def _decay(settings: TrainSettings, options: Options) -> Scaler:
    given = {"least": 8, "decay": 0.96, **options}
    return Schedule(decayed(settings.rounds, settings.actors_max, **given))


def _schedule(settings: TrainSettings, options: Options) -> Scaler:
    if "counts" not in options:
        raise ValueError("--scaler schedule needs --scaler-option counts=[8,16,...]: actors of each round")
    scaler = Schedule(**options)
    if (most := max(options["counts"])) > settings.actors_max:
        raise ValueError(f"--scaler-option counts: has {most}, more than --actors-max {settings.actors_max}")
    return scaler


def _minions(settings: TrainSettings, options: Options) -> Scaler:
    if "policy" not in options:
        raise ValueError("--scaler minions needs --scaler-option policy=DIR, of replay-server scheduler train")
    if settings.target_score is None or settings.budget is None:
        raise ValueError("--scaler minions needs --target-score and --budget: its policy sees how far off they are")
    # With it comes torch, which no other scaler needs.
    from replay_server.serverless.scalers.minions import Minions
    from replay_server.serverless.scheduler.decision import Goal
    from replay_server.serverless.scheduler.policy import load_policy

    try:
        policy, _ = load_policy(Path(str(options["policy"])))
    except OSError as error:
        raise ValueError(f"--scaler-option policy: {error}") from None
    others = {"seed": settings.seed, **{name: value for name, value in options.items() if name != "policy"}}
    return Minions(policy, Goal(settings.target_score, settings.budget), settings.actors_max, **others)


SCALERS: dict[str, Callable[[TrainSettings, Options], Scaler]] = {
    "fixed": lambda settings, options: Fixed(settings.actors, **options),
    "max": lambda settings, options: Fixed(settings.actors_max, **options),
    "adapt": _adapt,
    "nitro": lambda settings, options: Nitro(settings.actors_max, **options),
    "kungfu": lambda settings, options: KungFu(most=settings.actors_max, **{"start": 8, **options}),
    "hydrozoa": lambda settings, options: Hydrozoa(settings.actors_max, **options),
    "decay": _decay,
    "minions": _minions,
    "random": lambda settings, options: Uniform(settings.actors_max, **{"seed": settings.seed, **options}),
    "schedule": _schedule,
}
"""Name → what makes it. `options` are those of ``--scaler-option``."""


def make_scaler(settings: TrainSettings, options: Options) -> Scaler:
    """The scaler that the settings name. ValueError, naming the option, for one that it does not take."""
    if settings.scaler not in SCALERS:
        raise ValueError(f"--scaler {settings.scaler}: not in this version; expected {', '.join(sorted(SCALERS))}")
    try:
        return SCALERS[settings.scaler](settings, options)
    except TypeError as error:
        raise ValueError(f"--scaler-option: {settings.scaler} does not take that: {error}") from None
