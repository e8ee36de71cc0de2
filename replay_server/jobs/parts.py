"""`replay-server learner`, `actor` and `evaluator`: the parts of an Ape-X run, each on a machine of its own.

The learner ends the job: it closes the table, which tells the others. What they say comes from the server alone.
"""

from __future__ import annotations

import argparse
import contextlib
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import redis.exceptions

import replay_server as rs
from replay_server.arguments import Parser
from replay_server.connection import PASSWORD_VARIABLE
from replay_server.jobs.arguments import check_environment, check_settings, given_settings, resolve_settings
from replay_server.jobs.observer import Observer
from replay_server.jobs.part_report import PartReport
from replay_server.jobs.part_settings import add_part_settings
from replay_server.jobs.record import TABLE_CLOSED, JobRecord
from replay_server.rl.connection import PersistentClient
from replay_server.rl.run_directory import RunDirectory, new_run_path
from replay_server.rl.settings import ApexSettings
from replay_server.rl.shared_settings import PLAYED, SHARED, check_settings_of_run

EXIT_SERVER_LOST = 5
EXIT_INTERRUPTED = 130


def main_actor(argv: list[str] | None = None) -> int:
    """Acts against ``--server`` until the table is closed, or interrupted; exit codes as `_run`."""
    parser = _parser("actor", "--actor-id I ", "One Ape-X actor. It ends when the learner has closed the table.")
    parser.add_argument(
        "--actor-id", type=int, required=True, metavar="I", help="0 to actors − 1: its place in the ε ladder"
    )
    namespace = parser.parse_args(argv)
    settings = _settings(parser, namespace)
    actor_id = namespace.actor_id
    if not 0 <= actor_id < settings.actors:
        parser.error(f"--actor-id: expected 0 to {settings.actors - 1} (--actors {settings.actors}), got {actor_id}")
    from replay_server.actors.rollout import run_actor

    observer = Observer(settings, [actor_id])

    def part(stop: _Stop) -> None:
        look = lambda client, _: observer.look(client)  # noqa: E731
        with PartReport(namespace.server, settings, f"actor {actor_id}", observer.snapshot, look):
            run_actor(settings, namespace.server, actor_id, stop.event)

    return _run(f"actor {actor_id}", part)


def main_evaluator(argv: list[str] | None = None) -> int:
    """Evaluates what is published on ``--server`` until the table is closed, or interrupted; exit codes as `_run`."""
    parser = _parser(
        "evaluator", "", "Plays whole games with the newest weights of an Ape-X run, and keeps the scores and the best "
        "network in a run directory. When the learner has closed the table, it plays the last games and ends.",
    )  # fmt: skip
    namespace = parser.parse_args(argv)
    settings = _settings_of_run(parser, namespace)
    from replay_server.jobs.evaluation import final_evaluation, run_evaluations

    def part(stop: _Stop) -> None:
        run_directory = _create_run_directory(parser, namespace.server, settings, "evaluator", stop)
        record = JobRecord(settings, run_directory)
        ended_by, final = "failure", None
        try:
            with PartReport(namespace.server, settings, "evaluator", record.snapshot, record.look):
                run_evaluations(settings, namespace.server, run_directory.path, stop.event)
            ended_by = "interrupted"
        except rs.TableClosed:
            ended_by = TABLE_CLOSED
            with rs.Client(namespace.server) as client:
                record.look(client, print)  # the last evaluation
            if settings.final_episodes:
                print(f"playing {settings.final_episodes} fresh games with the kept checkpoint", flush=True)
                final = final_evaluation(settings, run_directory.path, stop.event)
            raise
        finally:
            record.close(ended_by, final)
            if final is not None:
                print(f"score {final['eval_mean']:.1f} ± {final['eval_std']:.1f} over {final['eval_episodes']} games "
                      f"({final['checkpoint']}, step {final['checkpoint_step']})", flush=True)  # fmt: skip

    return _run("evaluator", part)


def main_learner(argv: list[str] | None = None) -> int:
    """Learns against ``--server`` until done or interrupted, and closes the table; exit codes as `_run`."""
    parser = _parser(
        "learner", "", "The Ape-X learner. It ends at --minutes, --max-updates, --max-transitions or --target-score, "
        "or at Ctrl-C, and closes the table: then actors and evaluator end, too. After SIGTERM or a failure the table "
        "stays open, and they wait for the learner to go on (--resume).",
    )  # fmt: skip
    namespace = parser.parse_args(argv)
    settings = _settings_of_run(parser, namespace)

    def part(stop: _Stop) -> None:
        run_directory = _create_run_directory(parser, namespace.server, settings, "learner", stop)
        _learn(settings, namespace.server, run_directory, stop)

    return _run("learner", part)


def _learn(settings: ApexSettings, server_url: str, run_directory: RunDirectory, stop: _Stop) -> None:
    from replay_server.learner.loop import run_learner
    from replay_server.learner.wandb_mirror import start_wandb

    record = JobRecord(settings, run_directory, "learner")
    ended_by = ""

    def look(client: rs.Client, say: Callable[[str], None]) -> None:
        nonlocal ended_by
        record.look(client, say)
        if record.write_row_if_due() and wandb is not None:
            wandb.poll()
        if not ended_by and (met := record.met_condition()):
            ended_by = met
            stop.event.set()

    wandb = None
    try:
        with rs.Client(server_url) as client:
            _begin(client, settings, record.observer)
            wandb = start_wandb(settings.wandb, run_directory.path, print)
            with PartReport(server_url, settings, "learner", record.snapshot, look):
                run_learner(settings, server_url, run_directory.path, stop.event, session=run_directory.session)
            if ended_by == TABLE_CLOSED:
                raise rs.TableClosed(client.info(settings.table)["reason_add"])
            ended_by = ended_by or ("interrupted" if stop.signal else "max_updates")
            if stop.signal == signal.SIGTERM:
                print(f"table {settings.table} stays open: its actors wait for a learner", flush=True)
            else:
                client.close_table(settings.table, f"the learner ended ({ended_by})")
                print(f"ending ({ended_by}): table {settings.table} is closed", flush=True)
            with contextlib.suppress(rs.ReplayError):
                record.look(client, print)  # what was reported last
    except rs.TableClosed:
        ended_by = TABLE_CLOSED
        raise
    finally:
        record.close(ended_by or "failure", None)
        if wandb is not None:
            wandb.close()


def _begin(client: rs.Client, settings: ApexSettings, observer: Observer) -> None:
    """Keeps what an earlier run left on the server out of this one's numbers, and opens the table that it closed."""
    try:
        over = client.info(settings.table)["closed"]
        client.open_table(settings.table)
    except rs.TableNotFound:
        print(f"table {settings.table} is not there yet: creating it", flush=True)
        over = True
    if settings.resume or over:
        observer.begin_after(client)


# ---- the command line ------------------------------------------------------------------------------------------------


def _parser(part: str, more: str, description: str) -> Parser:
    parser = Parser(
        prog=f"replay-server {part}",
        usage=f"%(prog)s --server URL {more}[options]",
        description=f"{description} A setting that two parts use must be the same in both.",
    )
    parser.add_argument(
        "--server",
        required=True,
        metavar="URL",
        help="redis://host:port or unix:///path of the replay server. Its password comes from the variable "
        f"{PASSWORD_VARIABLE}, so that it does not stand in the list of processes",
    )
    add_part_settings(parser, part)
    return parser


def _settings(parser: argparse.ArgumentParser, namespace: argparse.Namespace) -> ApexSettings:
    try:
        settings, why = resolve_settings(given_settings(namespace), one_machine=False)
        check_settings(settings)
        check_environment(settings)
    except ValueError as error:
        parser.exit(2, f"{parser.prog}: error: {error}\n")
    print(f"{settings.env} · {why} · seed {settings.seed}", flush=True)
    return settings


def _settings_of_run(parser: argparse.ArgumentParser, namespace: argparse.Namespace) -> ApexSettings:
    """The settings of a new run, or of one that is resumed."""
    given = given_settings(namespace)
    if not given.get("resume"):
        return _settings(parser, namespace)
    try:
        if given.get("logdir") is None:
            raise ValueError("--resume needs --logdir: the run directory to go on with")
        settings = RunDirectory(Path(given["logdir"])).settings(ApexSettings, given)
        check_settings(settings)
        check_environment(settings)
    except (ValueError, OSError) as error:
        parser.exit(2, f"{parser.prog}: error: {error}\n")
    return settings


def _create_run_directory(
    parser: argparse.ArgumentParser, server_url: str, settings: ApexSettings, part: str, stop: _Stop
) -> RunDirectory:
    """The folder of a run that can begin: its server is there, and has no table of other settings.

    Raises what `PersistentClient` raises, which waits for the server as an actor does, and SettingsDiffer, with nothing
    made.
    """
    names = SHARED if part == "learner" else PLAYED
    with contextlib.closing(PersistentClient(server_url, stop=stop.event.is_set)) as server:
        server.call(lambda client: check_settings_of_run(client, settings, names))
    run_directory = RunDirectory(new_run_path(settings, "" if part == "learner" else part))
    try:
        run_directory.create(settings)
    except (ValueError, OSError) as error:
        parser.exit(2, f"{parser.prog}: error: {error}\n")
    run_directory.write_job(part, server_url)
    print(f"run directory {run_directory.path}", flush=True)
    return run_directory


class _Stop:
    """Tells a part to end, and which signal did, if one did."""

    def __init__(self) -> None:
        self.event = threading.Event()
        self.signal = 0

    def interrupt(self, number: int, frame: Any) -> None:
        self.signal = number
        self.event.set()
        # A second one ends the process at once.
        signal.signal(signal.SIGINT, signal.SIG_DFL)


def _run(name: str, part: Callable[[_Stop], None]) -> int:
    """Runs a part until it ends or is told to.

    Returns 0 (done, or its table was closed), 1 (failure), 5 (server lost) or 130 (interrupted).
    """
    stop = _Stop()
    signal.signal(signal.SIGINT, stop.interrupt)
    signal.signal(signal.SIGTERM, stop.interrupt)
    try:
        part(stop)
    except rs.TableClosed as error:
        print(f"{name} ends: {error}", flush=True)
        return 0
    except (rs.ConnectionLost, redis.exceptions.ConnectionError, redis.exceptions.TimeoutError) as error:
        if not stop.signal:
            print(f"replay server lost: {error}", file=sys.stderr, flush=True)
            return EXIT_SERVER_LOST
    except (rs.ReplayError, ValueError, ArithmeticError) as error:
        print(f"failed: {error}", file=sys.stderr, flush=True)
        return 1
    return EXIT_INTERRUPTED if stop.signal else 0
