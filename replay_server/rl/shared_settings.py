"""The settings that all parts of a run must share, kept on the server beside its table: parts that differ are refused.

The first part of a run stores them under ``<table>:settings``, as JSON: {"format": 1, "session": 0, "settings": {…}}.
Every other part compares its own before it writes or reads experience. A table alone does not tell: transitions of
another `n_step`, `discount` or `reward_clip` fit into it, and are wrong.
"""

from __future__ import annotations

import json
import time
from collections.abc import Collection
from typing import Any

import replay_server as rs
from replay_server.rl.environment_spec import EnvironmentSpec
from replay_server.rl.settings import ApexSettings
from replay_server.rl.tables import apex_table

FORMAT = 1
PLAYED = (
    "env", "sticky_actions", "frame_stack", "noop_max", "fire_on_reset", "max_frames_per_episode", "hidden", "network",
)  # fmt: skip
"""What decides about the games that are played, and the network that plays."""
SHARED = (
    *PLAYED, "episodic_life", "reward_clip", "n_step", "discount", "actors", "envs_per_actor", "priority_exponent",
    "priority_epsilon", "prioritized", "capacity", "min_size_to_sample", "samples_per_insert", "compression",
)  # fmt: skip
"""And about the content of a transition, its priority, and the table."""
MADE_WITHIN_S = 1.0
"""A part that has stored its settings makes the table within this time."""


class SettingsDiffer(ValueError):
    """A part was given other settings than its run has, or the server's table is no table of such a run."""


def join(client: rs.Client, settings: ApexSettings, spec: EnvironmentSpec, session: int = 0) -> None:
    """Makes the run's table and stores its settings, or checks that this part has the same ones.

    `session` is 0 in a run's first session and another number in each resumed one (see `incarnation`).

    Raises:
        SettingsDiffer: what is there is of other settings; nothing was changed.
    """
    table = apex_table(settings, spec)
    mine = shared_values(settings)
    record = {"format": FORMAT, "session": session, "settings": mine}
    first = bool(client.redis.set(settings_key(settings.table), json.dumps(record), nx=True))
    if not first:
        try:
            check_settings_of_run(client, settings)
        except SettingsDiffer:
            time.sleep(MADE_WITHIN_S)
            if table.name in client.tables():
                raise
            first = True  # The run that stored them is over: its table was dropped, or lost with its server.
        if first or session > _stored(client, settings.table)["session"]:
            client.redis.set(settings_key(settings.table), json.dumps(record))
    if table.name in client.tables():
        _check_table(client.table(table.name), table, first)
        return
    try:
        client.create_table(table)
    except rs.SchemaError:  # Another part was faster.
        _check_table(client.table(table.name), table, first)


def check_settings_of_run(client: rs.Client, settings: ApexSettings, names: Collection[str] = SHARED) -> None:
    """Raises SettingsDiffer where the run at `settings.table` has others in `names`; fine where there is no run."""
    stored = _stored(client, settings.table)["settings"]
    mine = shared_values(settings)
    different = [name for name in names if stored and stored.get(name) != mine[name]]
    if different:
        words = "; ".join(f"{_option(name, stored.get(name))} there, {_value(mine[name])} here" for name in different)
        raise SettingsDiffer(
            f"the run at table {settings.table!r} has other settings than this part: {words}. Give this part the "
            f"run's, or another --table for a run of its own; a run that is over is removed with REPLAY.DROP "
            f"{settings.table}, WEIGHTS.DEL {settings.table} and DEL {settings_key(settings.table)}"
        )


def shared_values(settings: ApexSettings) -> dict[str, Any]:
    """The settings that all parts of a run must have, by name."""
    return {name: getattr(settings, name) for name in SHARED}


def incarnation(client: rs.Client, table: str, actor_id: int) -> tuple[int, int]:
    """Which life of an actor this is, for its seeds: (session of the run, actors of that id before in it).

    (0, 0) for the first of a run, so that a run's first actors are determined by its seed alone. Counted on the server,
    whoever starts the actor again.
    """
    before = int(client.redis.hincrby(f"{table}:incarnations", str(actor_id), 1)) - 1
    return _stored(client, table)["session"], before


def settings_key(table: str) -> str:
    """Where the settings of the run at a table are."""
    return f"{table}:settings"


def _stored(client: rs.Client, table: str) -> dict[str, Any]:
    raw: Any = client.redis.get(settings_key(table))
    if raw is None:
        return {"format": FORMAT, "session": 0, "settings": {}}
    try:
        stored: dict[str, Any] = json.loads(raw)
        if stored["format"] == FORMAT:
            return stored
        found = f"format {stored['format']}"
    except (ValueError, TypeError, KeyError):
        found = repr(raw[:40])
    raise SettingsDiffer(
        f"key {settings_key(table)!r} on the server: expected the settings of a run in format {FORMAT}, got {found}: "
        "give all parts the same version, or this run another --table"
    )


def _check_table(served: rs.Table, expected: rs.Table, whole: bool) -> None:
    """`whole`: also what may be changed while a run goes on."""
    names = ("signature", "sampler") if whole else ("signature",)
    for name in names:
        there, here = getattr(served, name), getattr(expected, name)
        if name == "signature" and there != here:
            columns = [each for each in {**here, **there} if there.get(each) != here.get(each)]
            name, there, here = f"column {columns[0]!r}", there.get(columns[0]), here.get(columns[0])
        if there != here:
            raise SettingsDiffer(
                f"table {served.name!r} on the server was not made with these settings: {name} is {there} there and "
                f"{here} here. Give this part the settings that it was made with, or another --table; a table that is "
                f"not needed any more is removed with REPLAY.DROP {served.name}"
            )


def _option(name: str, value: Any) -> str:
    return f"--{name.replace('_', '-')} {_value(value)}"


def _value(value: Any) -> str:
    return "none" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
