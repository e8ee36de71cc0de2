"""What is compared: a scaler with its options, a control at Nitro's actor count, and where it is played.

    nitro      nitro:decay=0.9,window=3      shuffled      fixed@reserved      nitro@memory_mb=2048

What follows ``@`` is a stage: the same training on another clock. It is trained once, and played again.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from replay_server.bench.papers.nitro.paced import Paced
from replay_server.serverless.scalers.nitro import Nitro
from replay_server.serverless.scalers.registry import SCALERS, make_scaler
from replay_server.serverless.scalers.scaler import Scaler, check_whole
from replay_server.serverless.scalers.schedule import Schedule, decayed, scaled_to, shuffled
from replay_server.serverless.settings import TrainSettings

BOOSTED = "nitro"
"""Whose counts controls are held to."""
CONTROLS = ("constant", "decay", "shuffled", "inverted")
"""Schemes with as many actors in all as Nitro had with the same seed."""
TARGETED = ("adapt", "minions")
"""Schemes that go by the target score."""
LEAST, DECAY = 8, 0.96
"""I_min and d of Nitro, for the controls."""
WORKERS = "workers"
"""RLlib with its own rollout workers, where RLlib learns (`replay_server.bench.papers.nitro.rllib.workers`)."""
RESERVED = "reserved"
"""The stage without functions."""


@dataclass(frozen=True)
class Scheme:
    """One side of a comparison."""

    name: str
    options: tuple[tuple[str, Any], ...] = ()
    stage: str = ""
    """"" = functions of the settings' memory; reserved = machines; memory_mb=N."""

    def __hash__(self) -> int:
        """Of its name: an option may be a map, as curvature's are."""
        return hash(str(self))

    @classmethod
    def parse(cls, word: str) -> Scheme:
        """As above. ValueError names what it is not."""
        found = re.fullmatch(r"([a-z_]+)(?::([^@]+))?(?:@(reserved|memory_mb=[1-9]\d*))?", word)
        if not found:
            raise ValueError(f"expected NAME, NAME:option=value,..., NAME@reserved or NAME@memory_mb=N, got {word!r}")
        name, options, stage = found.groups()
        if name not in (*SCALERS, *CONTROLS, WORKERS):
            known = ", ".join(sorted({*SCALERS, *CONTROLS, WORKERS}))
            raise ValueError(f"unknown scheme {name!r}: expected one of {known}")
        # A comma within brackets belongs to a value.
        parts = re.split(r",(?=[a-z_]+=)", options) if options else []
        return cls(name, tuple(_option(part) for part in parts), stage or "")

    def __str__(self) -> str:
        return self.trained_name + (f"@{self.stage}" if self.stage else "")

    @property
    def trained(self) -> Scheme:
        """What is trained for it: itself without its stage."""
        return replace(self, stage="")

    @property
    def trained_name(self) -> str:
        """Name of what is trained for it, also of its folder."""
        options = ",".join(f"{name}={value if isinstance(value, str) else json.dumps(value)}" for name, value in
                           self.options)  # fmt: skip
        return self.name + (f":{options}" if options else "")

    @property
    def needs_target(self) -> bool:
        return self.name in TARGETED

    @property
    def needs_boosted(self) -> bool:
        return self.name in CONTROLS

    def scaler(self, settings: TrainSettings, boosted: Sequence[int] | None = None) -> Scaler:
        """Its scaler for one job; `settings` tell rounds, seed, bounds and, where it is needed, target and budget.

        Args:
            boosted: counts that Nitro had with the same seed, for controls.
        """
        options = dict(self.options)
        if self.name == WORKERS:
            return make_scaler(replace(settings, scaler="fixed"), options)
        if self.name not in CONTROLS:
            if self.name == "fixed" and "actors" in options:
                count = options.pop("actors")
                check_whole(actors=count)
                if count > settings.actors_max:
                    raise ValueError(f"expected at most --actors-max {settings.actors_max} actors, got {count}")
                settings = replace(settings, actors=count)
            return make_scaler(replace(settings, scaler=self.name), options)  # type: ignore[arg-type]
        if options and self.name != "inverted":
            raise ValueError(f"expected no options, since its counts follow from {BOOSTED}'s: got {', '.join(options)}")
        if boosted is None:
            raise ValueError(f"{self}: expected the counts of {BOOSTED}, got none")
        total, rounds, most = sum(boosted), settings.rounds, settings.actors_max
        outlook = decayed(rounds, most, LEAST, DECAY)
        if self.name == "inverted":
            nitro = Nitro(most, inverted=True, **{"decay": DECAY, "least": LEAST, **options})
            return Paced(nitro, total, tuple(map(float, outlook)), min(LEAST, *boosted), most)
        if self.name == "shuffled":
            return Schedule(shuffled(boosted, settings.seed))
        return Schedule(scaled_to([1] * rounds if self.name == "constant" else outlook, total, most))


def _option(part: str) -> tuple[str, Any]:
    name, equals, word = part.partition("=")
    if not equals:
        raise ValueError(f"expected option=value, got {part!r}")
    try:
        value = json.loads(word)
        return name, tuple(value) if isinstance(value, list) else value
    except json.JSONDecodeError:
        return name, word
