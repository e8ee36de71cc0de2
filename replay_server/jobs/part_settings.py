"""Which settings each part of a run takes on its command line, and what it says to those of another part.

Every part takes the settings that are the run's (`replay_server.rl.shared_settings`), to be compared with it, and its
own. The learner takes all: it says what the run is.
"""

from __future__ import annotations

import argparse
import dataclasses
from typing import Any, NoReturn

from replay_server.jobs.arguments import TITLE
from replay_server.rl.options import add_options
from replay_server.rl.settings import ApexSettings
from replay_server.rl.shared_settings import OWN, SHARED, may_differ

_SAVING = "a server of many machines saves its tables itself: REPLAY.SAVE, and replay-server serve --restore"
_INSTEAD = {
    "checkpoint_replay": _SAVING,
    "checkpoint_replay_every_s": _SAVING,
    "actors_on": "start each actor on its machine; replay-server apex places actors by itself",
    "host": "--server says where the run is",
    "port": "--server says where the run is",
    "replay_shards": "--server takes the URL of shards, redis+cluster://host:port",
    "shards_on": "--server takes the URL of shards, redis+cluster://host:port",
    "replicas": "--server takes the URL of a server with its replicas, redis://host:port,host:port",
    "dashboard": "replay-server dashboard shows run directories and servers",
    "logdir": "an actor leaves no files; the learner and the evaluator have a run directory",
    "resume": "an actor has nothing to resume: start it again",
}


def add_part_settings(parser: argparse.ArgumentParser, part: str) -> None:
    """Adds an option for each setting that the part takes; the others are refused with what to do instead."""
    taken = {"table", *SHARED, *may_differ(part)}
    refused = [field.name for field in dataclasses.fields(ApexSettings) if field.name not in taken]
    title = TITLE
    if part != "learner":
        title = "settings (defaults are those of the run that is joined, whose learner was given them)"
    add_options(parser.add_argument_group(title), ApexSettings, refused)
    for name in refused:
        flag = name.replace("_", "-")
        parser.add_argument(
            f"--{flag}", f"--no-{flag}", action=_Refused, nargs="?", dest=name, part=part,
            default=argparse.SUPPRESS, help=argparse.SUPPRESS,
        )  # fmt: skip


class _Refused(argparse.Action):
    """An option of another part."""

    def __init__(self, *arguments: Any, part: str, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._part = part

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> NoReturn:
        users = " and ".join(f"replay-server {part}" for part in OWN if self.dest in OWN[part])
        do = _INSTEAD.get(self.dest) or f"give it to {users}"
        parser.error(f"{self.option_strings[0]}: the {self._part} does not use it; {do}")
