"""`replay-server learner`, `actor` and `evaluator`: the parts of an Ape-X run, each on a machine of its own.

The learner begins the run and stores its settings on the server, where the others find them. It ends the job: it closes
the table, which tells the others. What they say comes from the server alone.
"""

from __future__ import annotations

import argparse
import contextlib
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import redis.exceptions

import replay_server as rs
from replay_server.arguments import Parser
from replay_server.cluster_address import parse_address
from replay_server.connection import PASSWORD_VARIABLE
from replay_server.jobs.arguments import (
    check_environment,
    check_settings,
    given_settings,
    resolve_settings,
    resumed_settings,
)
from replay_server.jobs.observer import Observer
from replay_server.jobs.part_report import PartReport
from replay_server.jobs.part_settings import add_part_settings
from replay_server.jobs.record import TABLE_CLOSED, JobRecord
from replay_server.rl.connection import PersistentClient
from replay_server.rl.environment_spec import told_without_limit
from replay_server.rl.part_ids import LEASE_S, PartId
from replay_server.rl.run_directory import RunDirectory, new_run_path
from replay_server.rl.settings import ApexSettings
from replay_server.rl.shared_settings import check_settings_of_run, settings_of_run

EXIT_SERVER_LOST = 5
EXIT_INTERRUPTED = 130
LOOK_EVERY_S = 0.5


def main_actor(argv: list[str] | None = None) -> int:
    """Acts against ``--server`` until the table is closed, or interrupted; exit codes as `_run`."""
    parser = _parser(
        "actor", "One Ape-X actor of the run on the server. It ends when the learner has closed the table."
    )
    parser.add_argument(
        "--actor-id", type=int, metavar="I",
        help="its place in the ε ladder, from 0 on (default: the smallest that no living actor has)",
    )  # fmt: skip
    namespace = parser.parse_args(argv)
    if namespace.actor_id is not None and namespace.actor_id < 0:
        parser.error(f"--actor-id: expected 0 or more, got {namespace.actor_id}")

    def part(stop: _Stop) -> None:
        settings = _await_run(parser, namespace, stop)
        if settings is None:
            return
        from replay_server.actors.rollout import run_actor

        own = PartId(settings.table, "actor", namespace.actor_id)
        refusal = (
            f"--actor-id {namespace.actor_id}: an actor that is alive has it; leave it out, and this one takes the "
            "smallest that is free"
        )
        with _held(namespace.server, own, stop, refusal) as held:
            if not held:
                return
            stop.name = f"actor {own.number}"
            print(f"{stop.name} of the run at table {settings.table}", flush=True)
            observer = Observer(settings, alone=lambda: own.number)

            def look(client: rs.Client, _: Callable[[str], None]) -> None:
                own.renew(client)
                observer.look(client)

            with PartReport(namespace.server, settings, stop.name, observer.snapshot, look):
                run_actor(settings, namespace.server, own, stop.event)

    return _run("actor", part)


def main_evaluator(argv: list[str] | None = None) -> int:
    """Evaluates what is published on ``--server`` until the table is closed, or interrupted; exit codes as `_run`."""
    parser = _parser(
        "evaluator", "Plays whole games with the newest weights of the run on the server, and keeps the scores and the "
        "best network in a run directory. When the learner has closed the table, it plays the last games and ends.",
    )  # fmt: skip
    namespace = parser.parse_args(argv)
    resumed = _resumed_settings(parser, given_settings(namespace))

    def part(stop: _Stop) -> None:
        settings = _await_run(parser, namespace, stop, resumed)
        if settings is None:
            return
        with contextlib.ExitStack() as alone:
            run_directory = _create_run_directory(parser, namespace, settings, "evaluator", alone)
            _evaluate(settings, namespace.server, run_directory, stop)

    return _run("evaluator", part)


def main_learner(argv: list[str] | None = None) -> int:
    """Learns against ``--server`` until done or interrupted, and closes the table; exit codes as `_run`."""
    parser = _parser(
        "learner", "The Ape-X learner. It begins a run on the server, or goes on with the one that is there. It ends "
        "at --minutes, --max-updates, --max-transitions or --target-score, or at Ctrl-C, and closes the table: then "
        "actors and evaluator end, too. After SIGTERM or a failure the table stays open, and they wait for a learner.",
    )  # fmt: skip
    namespace = parser.parse_args(argv)
    given = given_settings(namespace)
    begun = _resumed_settings(parser, given) or _new_settings(parser, given)

    def part(stop: _Stop) -> None:
        settings = _await_run(parser, namespace, stop, begun)
        if settings is None:
            return
        import replay_server.learner.loop  # noqa: F401 - takes seconds, which a lease does not have

        own = PartId(settings.table, "learner", 0)
        refusal = f"the run at table {settings.table!r} has a learner that is alive: end it, or give another --table"
        with contextlib.ExitStack() as alone, _held(namespace.server, own, stop, refusal) as held:
            if held:
                run_directory = _create_run_directory(parser, namespace, settings, "learner", alone)
                _learn(settings, namespace.server, run_directory, own, stop)

    return _run("learner", part)


# ---- their work ------------------------------------------------------------------------------------------------------


def _evaluate(settings: ApexSettings, server_url: str, run_directory: RunDirectory, stop: _Stop) -> None:
    from replay_server.jobs.evaluation import final_evaluation, run_evaluations

    if limit := told_without_limit(settings):
        print(limit, flush=True)
    record = JobRecord(settings, run_directory)
    ended_by, final = "failure", None
    try:
        with PartReport(server_url, settings, "evaluator", record.snapshot, record.look):
            run_evaluations(settings, server_url, run_directory.path, stop.event)
        ended_by = "interrupted"
    except rs.TableClosed:
        ended_by = TABLE_CLOSED
        with rs.Client(server_url) as client:
            record.look(client, print)  # the last evaluation
        if settings.final_episodes:
            print(record.final_games(), flush=True)
            final = final_evaluation(settings, run_directory.path, stop.event)
        raise
    finally:
        record.close(ended_by, final)
        if final is not None:
            print(f"score {final['eval_mean']:.1f} ± {final['eval_std']:.1f} over {final['eval_episodes']} games "
                  f"({final['checkpoint']}, step {final['checkpoint_step']})", flush=True)  # fmt: skip


def _learn(settings: ApexSettings, server_url: str, run_directory: RunDirectory, own: PartId, stop: _Stop) -> None:
    from replay_server.learner.loop import run_learner
    from replay_server.learner.wandb_mirror import start_wandb

    record = JobRecord(settings, run_directory, "learner")
    ended_by, learning = "", True

    def look(client: rs.Client, say: Callable[[str], None]) -> None:
        nonlocal ended_by
        if own.number == 0 and own.renew(client):
            stop.event.set()
        record.look(client, say)
        if record.write_row_if_due() and wandb is not None:
            wandb.poll()
        if learning and not ended_by and (met := record.met_condition()):
            ended_by = met
            stop.event.set()

    wandb = None
    try:
        with rs.Client(server_url) as client:
            _begin(client, settings, record.observer)
            wandb = start_wandb(settings.wandb, run_directory.path, print)
            with PartReport(server_url, settings, "learner", record.snapshot, look):
                try:
                    run_learner(settings, server_url, run_directory.path, stop.event, session=run_directory.session)
                finally:
                    learning = False  # a limit that the report's last look finds reached did not end it
            if own.number != 0:
                raise ValueError(
                    "another learner took over the run while this one was disconnected; this one leaves the table "
                    "unchanged"
                )
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


@contextlib.contextmanager
def _held(server_url: str, own: PartId, stop: _Stop, refusal: str) -> Iterator[bool]:
    """Holds the part's id while it works; False where `stop` came first.

    ValueError with `refusal` where a part that is alive has the one that it wants.
    """
    with contextlib.closing(PersistentClient(server_url, stop=stop.event.is_set)) as server:
        # One that was killed has its id until its lease ends.
        give_up = time.monotonic() + LEASE_S + LOOK_EVERY_S
        while not server.call(own.take) and not stop.event.wait(LOOK_EVERY_S):
            if time.monotonic() > give_up:
                raise ValueError(refusal)
    try:
        yield own.number >= 0
    finally:
        with (
            contextlib.suppress(rs.ReplayError, redis.exceptions.RedisError),
            rs.Client(server_url, connect_timeout=2.0, reconnect_timeout=0.0) as client,
        ):
            own.free(client)


# ---- the command line, and the run that it joins ---------------------------------------------------------------------


def _parser(part: str, description: str) -> Parser:
    parser = Parser(
        prog=f"replay-server {part}",
        usage="%(prog)s --server URL [options]",
        description=f"{description} The settings of a run are kept on the server: other parts are given nothing but "
        "--server, and one that is given others than the run has is refused.",
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


def _new_settings(parser: argparse.ArgumentParser, given: dict[str, Any]) -> ApexSettings:
    """The settings of a run that this learner begins, if there is none on the server."""
    try:
        settings, _ = resolve_settings(given, one_machine=False)
        if "env" in given:  # told at once; the rest is looked at where there is no run whose settings count
            check_environment(settings)
    except ValueError as error:
        parser.exit(2, f"{parser.prog}: error: {error}\n")
    return settings


def _resumed_settings(parser: argparse.ArgumentParser, given: dict[str, Any]) -> ApexSettings | None:
    """The settings of the run that is resumed; None for another."""
    if not given.get("resume"):
        return None
    try:
        return resumed_settings(given)
    except (ValueError, OSError) as error:
        parser.exit(2, f"{parser.prog}: error: {error}\n")


def _await_run(
    parser: argparse.ArgumentParser, namespace: argparse.Namespace, stop: _Stop, own: ApexSettings | None = None
) -> ApexSettings | None:
    """The settings of the run on the server, which this part joins; waits for it, as long as the server is there.

    `own` are those of a part that need not wait: of the run that a learner begins where there is none, or of one that
    is resumed. None where `stop` came first.

    Raises:
        ValueError: they do not fit the run (SettingsDiffer), or this machine.
        ConnectionLost: as `PersistentClient` does.
    """
    given, address = given_settings(namespace), parse_address(namespace.server)
    print(f"looking for a run on {address}", flush=True)
    with contextlib.closing(PersistentClient(namespace.server, stop=stop.event.is_set)) as server:
        if own is not None and own.resume:
            server.call(lambda client: check_settings_of_run(client, own))
            settings: ApexSettings | None = own
        else:
            find = lambda client: settings_of_run(client, given)  # noqa: E731
            settings = server.call(find) or own
            if settings is None:
                print("no run yet: waiting for a learner to begin one", flush=True)
            while settings is None and not stop.event.wait(LOOK_EVERY_S):
                settings = server.call(find)
    if settings is None:
        return None
    try:
        check_settings(settings)
        check_environment(settings)
    except ValueError as error:
        if settings is not own:
            raise
        parser.exit(2, f"{parser.prog}: error: {error}\n")
    how = "beginning" if settings is own and not settings.resume else "joining"
    print(
        f"{how} {settings.env} · profile {settings.profile} · seed {settings.seed} · table {settings.table}", flush=True
    )
    return settings


def _create_run_directory(
    parser: argparse.ArgumentParser,
    namespace: argparse.Namespace,
    settings: ApexSettings,
    part: str,
    alone: contextlib.ExitStack,
) -> RunDirectory:
    """The folder of a run that is there, or can begin; other jobs are kept out of it until `alone` is closed."""
    run_directory = RunDirectory(new_run_path(settings, "" if part == "learner" else part))
    try:
        run_directory.create(settings, alone)
    except (ValueError, OSError) as error:
        parser.exit(2, f"{parser.prog}: error: {error}\n")
    run_directory.write_job(part, namespace.server)
    print(f"run directory {run_directory.path}", flush=True)
    return run_directory


class _Stop:
    """Tells a part to end, and which signal did, if one did. `name`: what the part is called in messages."""

    def __init__(self, name: str) -> None:
        self.name = name
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
    stop = _Stop(name)
    signal.signal(signal.SIGINT, stop.interrupt)
    signal.signal(signal.SIGTERM, stop.interrupt)
    try:
        part(stop)
    except rs.TableClosed as error:
        print(f"{stop.name} ends: {error}", flush=True)
        return 0
    except (
        rs.ConnectionLost, rs.NotPrimary, redis.exceptions.ConnectionError, redis.exceptions.TimeoutError,
        redis.exceptions.ReadOnlyError,
    ) as error:  # fmt: skip
        if not stop.signal:
            print(f"replay server lost: {error}", file=sys.stderr, flush=True)
            return EXIT_SERVER_LOST
    except (rs.ReplayError, ValueError, ArithmeticError) as error:
        print(f"failed: {error}", file=sys.stderr, flush=True)
        return 1
    return EXIT_INTERRUPTED if stop.signal else 0
