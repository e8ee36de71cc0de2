"""The settings of a run, kept on the server beside its table: the one source for all of its parts.

The learner (or the job) stores all of them under ``<table>:settings``, as JSON: {"format": 2, "session": 0,
"settings": {…}}. A part that joins takes them from there, and every part compares its own before it writes or reads
experience. A table alone does not tell: transitions of another `n_step`, `discount` or `reward_clip` fit into it, and
are wrong.
"""

from __future__ import annotations

import dataclasses
import json
import time
from typing import Any

import replay_server as rs
from replay_server.rl.environment_spec import EnvironmentSpec
from replay_server.rl.options import check_values, option_of
from replay_server.rl.settings import ApexSettings
from replay_server.rl.tables import apex_table

FORMAT = 2
OWN: dict[str, frozenset[str]] = {
    part: frozenset(names.split())
    for part, names in {
        "job": "actors_on host port replay_shards shards_on replicas dashboard checkpoint_replay "
        "checkpoint_replay_every_s",
        "learner": "minutes max_updates max_transitions target_score target_evaluations batch_size "
        "samples_per_insert_end samples_per_insert_end_updates "
        "importance_sampling_exponent optimizer learning_rate learning_rate_end learning_rate_decay_updates "
        "optimizer_epsilon rmsprop_decay gradient_norm initial_temperature target_entropy target_update_every "
        "target_mix average_updates publish_every precision device learner_threads targets_ahead prefetch "
        "checkpoint_every_s checkpoints_kept wandb logdir resume",
        "actor": "epsilon_base epsilon_exponent push_every pull_every_frames",
        "evaluator": "eval_every_updates eval_episodes eval_epsilon eval_max_frames_per_episode final_episodes logdir "
        "resume",
    }.items()
}
"""What each part may have of its own: other values spoil nothing of what the others do."""
OF_ONE_PLACE = OWN["job"] | {"wandb", "logdir", "resume", "precision", "device", "learner_threads", "targets_ahead"}
"""Of those, what says where and how a process runs: it is not stored, for it means nothing elsewhere."""
SHARED = tuple(
    field.name
    for field in dataclasses.fields(ApexSettings)
    if field.name != "table" and not any(field.name in names for names in OWN.values())
)
"""All others: they decide about the games, the transitions, the table and the network, and no part may differ."""
MADE_WITHIN_S = 1.0
"""A part that has stored its settings makes the table within this time."""


class SettingsDiffer(ValueError):
    """A part was given other settings than its run has, or the server's table is no table of such a run."""


def may_differ(part: str) -> frozenset[str]:
    """What a part may be given that is not as the run has it. The learner's word is also what others begin with."""
    return OWN[part] if part != "learner" else OWN["learner"] | OWN["actor"] | OWN["evaluator"]


def settings_of_run(client: rs.Client, given: dict[str, Any]) -> ApexSettings | None:
    """The settings of the run on the server, with what was given to this part in their place; None if there is no run.

    The run is that of `given["table"]`; without one the run that is on the server, of several the one whose table is
    not closed.

    Raises:
        SettingsDiffer: what was given contradicts the run, or there are several runs.
    """
    tables = client.tables()
    table = given.get("table") or _only_run(client, tables)
    if table not in tables or (record := _stored(client, table)) is None:
        return None
    settings = dataclasses.replace(_settings(record, table), **given)
    _check(record, settings)
    return settings


def join(client: rs.Client, settings: ApexSettings, spec: EnvironmentSpec, session: int | None = None) -> None:
    """Makes the run's table and stores its settings, or checks that this part fits the run that is there.

    `session` is the learner's and the job's, whose settings replace those that are stored where parts may differ: 0 in
    a run's first session and another number in each resumed one (see `incarnation`).

    Raises:
        SettingsDiffer: what is there is of other settings; nothing was changed.
    """
    table, key = apex_table(settings, spec), settings_key(settings.table)
    first = bool(client.redis.set(key, _record(settings, session or 0), nx=True))
    if not first:
        before = 0
        try:
            if (record := _stored(client, settings.table)) is not None:
                _check(record, settings)
                before = record["session"]
        except SettingsDiffer:
            time.sleep(MADE_WITHIN_S)
            if table.name in client.tables():
                raise
            first = True  # The run that stored them is over: its table was dropped, or lost with its server.
        if first or session is not None:
            client.redis.set(key, _record(settings, max(session or 0, before)))
    if table.name in client.tables():
        _check_table(client.table(table.name), table, first)
        return
    try:
        client.create_table(table)
    except rs.SchemaError:  # Another part was faster.
        _check_table(client.table(table.name), table, first)


def check_settings_of_run(client: rs.Client, settings: ApexSettings) -> None:
    """Raises SettingsDiffer where the run at `settings.table` has others; fine where there is no run."""
    if (record := _stored(client, settings.table)) is not None:
        _check(record, settings)


def incarnation(client: rs.Client, table: str, actor_id: int) -> tuple[int, int]:
    """Which life of an actor this is, for its seeds: (session of the run, actors of that id before in it).

    (0, 0) for the first of a run, so that a run's first actors are determined by its seed alone. Counted on the server,
    whoever starts the actor again.
    """
    before = int(client.redis.hincrby(incarnations_key(table), str(actor_id), 1)) - 1
    record = _stored(client, table)
    return record["session"] if record is not None else 0, before


def incarnations_key(table: str) -> str:
    """Where the lives of a run's actors are counted: a hash with a field for each actor that there ever was."""
    return f"{table}:incarnations"


def settings_key(table: str) -> str:
    """Where the settings of the run at a table are."""
    return f"{table}:settings"


def _only_run(client: rs.Client, tables: list[str]) -> str | None:
    asked = client.redis.pipeline(transaction=False)
    for name in tables:
        asked.exists(settings_key(name))
    # An error is of a table that this user has no right to.
    runs = [name for name, there in zip(tables, asked.execute(raise_on_error=False), strict=True) if there == 1]
    going_on = [name for name in runs if not client.info(name)["closed"]]
    runs = going_on or runs
    if len(runs) > 1:
        raise SettingsDiffer(f"expected one run on the server, got {len(runs)}: name it with --table {'|'.join(runs)}")
    return runs[0] if runs else None


def _record(settings: ApexSettings, session: int) -> str:
    values = dataclasses.asdict(settings)
    stored = {name: value for name, value in values.items() if name != "table" and name not in OF_ONE_PLACE}
    return json.dumps({"format": FORMAT, "session": session, "settings": stored})


def _stored(client: rs.Client, table: str) -> dict[str, Any] | None:
    raw: Any = client.redis.get(settings_key(table))
    if raw is None:
        return None
    try:
        record: dict[str, Any] = json.loads(raw)
        if record["format"] == FORMAT:
            check_values(ApexSettings, record["settings"])
            return {**record, "session": int(record["session"])}
        found = f"format {record['format']}"
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        found = f"{raw[:40]!r} ({error})"
    raise SettingsDiffer(
        f"key {settings_key(table)!r} on the server: expected the settings of a run in format {FORMAT}, got {found}: "
        "use the same version for all parts, or another --table for this run"
    )


def _settings(record: dict[str, Any], table: str) -> ApexSettings:
    return ApexSettings(**record["settings"], table=table)


def _check(record: dict[str, Any], settings: ApexSettings) -> None:
    table = settings.table
    there = _settings(record, table)
    pairs = {name: (getattr(there, name), getattr(settings, name)) for name in SHARED}
    words = [f"{_option(name, run)} there, {_value(own)} here" for name, (run, own) in pairs.items() if run != own]
    if words:
        raise SettingsDiffer(
            f"the run at table {table!r} has other settings than this part: {'; '.join(words)}. Leave them out "
            f"to use the run's, or begin a run with another --table. To remove a finished run: "
            f"REPLAY.DROP {table}, WEIGHTS.DEL {table} and DEL {settings_key(table)}"
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
                f"{here} here. Use the settings that it was made with, or another --table. To remove the table: "
                f"REPLAY.DROP {served.name}"
            )


def _option(name: str, value: Any) -> str:
    return f"{option_of(name)} {_value(value)}"


def _value(value: Any) -> str:
    return "none" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
