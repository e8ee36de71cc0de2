"""`replay-server actor` and `replay-server learner`: one part of an Ape-X run on a machine of its own."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

import replay_server as rs
from replay_server.arguments import Parser
from replay_server.connection import url_with_password
from replay_server.jobs.arguments import (
    add_settings,
    check_environment,
    check_settings,
    given_settings,
    resolve_settings,
)
from replay_server.rl.run_directory import RunDirectory, new_run_path
from replay_server.rl.settings import ApexSettings

PASSWORD_VARIABLE = "REPLAY_SERVER_PASSWORD"
EXIT_SERVER_LOST = 5
EXIT_INTERRUPTED = 130


def main_actor(argv: list[str] | None = None) -> int:
    """Acts against ``--server`` until interrupted; exit codes as `_run`."""
    parser = Parser(
        prog="replay-server actor",
        usage="%(prog)s --server URL --actor-id I [options]",
        description="One Ape-X actor. Every part of a run must be given the same settings.",
    )
    _add_server(parser)
    parser.add_argument(
        "--actor-id", type=int, required=True, metavar="I", help="0 to actors − 1: its place in the ε ladder"
    )
    add_settings(parser, leave_out=frozenset({"logdir", "resume", "actors_on", "dashboard"}))
    namespace = parser.parse_args(argv)
    settings = _settings(parser, namespace)
    if not 0 <= namespace.actor_id < settings.actors:
        parser.error(
            f"--actor-id: expected 0 to {settings.actors - 1} (--actors {settings.actors}), came {namespace.actor_id}"
        )
    from replay_server.actors.rollout import run_actor

    return _run(lambda stop: run_actor(settings, namespace.server, namespace.actor_id, stop))


def main_learner(argv: list[str] | None = None) -> int:
    """Learns against ``--server`` until interrupted or done; exit codes as `_run`."""
    parser = Parser(
        prog="replay-server learner",
        usage="%(prog)s --server URL [options]",
        description="The Ape-X learner. Every part of a run must be given the same settings.",
    )
    _add_server(parser)
    add_settings(parser, leave_out=frozenset({"actors_on", "dashboard"}))
    namespace = parser.parse_args(argv)
    given = given_settings(namespace)
    try:
        if given.get("resume"):
            if given.get("logdir") is None:
                raise ValueError("--resume needs --logdir: the run directory to go on with")
            settings = RunDirectory(Path(given["logdir"])).settings(ApexSettings, given)
            check_settings(settings)
            check_environment(settings)
        else:
            settings = _settings(parser, namespace)
        run_directory = RunDirectory(new_run_path(settings))
        run_directory.create(settings)
    except (ValueError, OSError) as error:
        parser.exit(2, f"{parser.prog}: error: {error}\n")
    run_directory.write_job("learner", namespace.server)
    print(f"run directory {run_directory.path}", flush=True)
    from replay_server.learner.loop import run_learner

    session = run_directory.session
    return _run(lambda stop: run_learner(settings, namespace.server, run_directory.path, stop, session=session))


def _add_server(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--server",
        required=True,
        metavar="URL",
        type=_with_password,
        help="redis://host:port or unix:///path of the replay server. Its password comes from the variable "
        f"{PASSWORD_VARIABLE}, so that it does not stand in the list of processes",
    )


def _with_password(url: str) -> str:
    """The URL with the environment's password, unless it has one of its own."""
    password = os.environ.get(PASSWORD_VARIABLE)
    return url if "@" in url else url_with_password(url, password or None)


def _settings(parser: argparse.ArgumentParser, namespace: argparse.Namespace) -> ApexSettings:
    try:
        settings, why = resolve_settings(given_settings(namespace), one_machine=False)
        check_settings(settings)
        check_environment(settings)
    except ValueError as error:
        parser.exit(2, f"{parser.prog}: error: {error}\n")
    print(f"{settings.env} · {why} · seed {settings.seed}", flush=True)
    return settings


def _run(part: Any) -> int:
    """Runs a part until it ends or is told to; returns 0, 1 (failure), 5 (server lost) or 130 (interrupted)."""
    stop = threading.Event()
    interrupted = False

    def interrupt(number: int, frame: Any) -> None:
        nonlocal interrupted
        interrupted = True
        stop.set()
        # A second one ends the process at once.
        signal.signal(signal.SIGINT, signal.SIG_DFL)

    signal.signal(signal.SIGINT, interrupt)
    signal.signal(signal.SIGTERM, interrupt)
    try:
        part(stop)
    except rs.ConnectionLost as error:
        if not interrupted:
            print(f"replay server lost: {error}", file=sys.stderr, flush=True)
            return EXIT_SERVER_LOST
    except (rs.ReplayError, ValueError, ArithmeticError) as error:
        print(f"failed: {error}", file=sys.stderr, flush=True)
        return 1
    return EXIT_INTERRUPTED if interrupted else 0
