"""One part of a job in a process of its own: started by `replay_server.jobs.supervisor`, ends when the job does.

Standard input is both its instructions (one line of JSON) and its lifeline: at end of file, whatever ended the job,
the part stops.
"""

from __future__ import annotations

import math
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from replay_server.errors import ConnectionLost, TableClosed
from replay_server.jobs.fork_server import asked
from replay_server.jobs.giving_way import give_way
from replay_server.jobs.supervisor import DIVERGED, EXIT_FAILED, EXIT_SERVER_LOST
from replay_server.rl.settings import ApexSettings

CRASHED = 70
"""Of a part alone, for the job that started it: it may go well the next time."""
PATIENCE_S = math.inf
"""A part waits for its server as long as the job lives, which starts it again; its lifeline ends it."""
STOP_GRACE_S = 10.0
"""A part that has not ended this long after it was told to is ended."""


def run_part(part: Callable[[threading.Event], Any], stop: threading.Event) -> int:
    """Runs a part until it ends, by itself or because its table is closed; returns its exit code.

    0; 5 if the server was lost; 1 for values that are wrong (ValueError); 71 where learning has diverged (Diverged, an
    ArithmeticError); 70 for any other failure.
    """
    try:
        part(stop)
    except TableClosed as error:
        print(error, flush=True)
    except ConnectionLost as error:
        if stop.is_set():
            return 0  # the job was ending anyway
        print(f"the server is lost: {error}", file=sys.stderr, flush=True)
        return EXIT_SERVER_LOST
    except Exception as error:
        traceback.print_exc()
        if isinstance(error, ArithmeticError):
            return DIVERGED
        return EXIT_FAILED if isinstance(error, ValueError) else CRASHED
    return 0


def make_part(instructions: dict[str, Any]) -> Callable[[threading.Event], Any]:
    """What instructions tell to run, with a signal to stop."""
    settings = ApexSettings(**instructions["settings"])
    url = instructions["server_url"]
    name = instructions["part"]
    if name == "actor":
        from replay_server.actors.rollout import run_actor

        def act(stop: threading.Event) -> Any:
            if instructions.get("gives_way"):
                give_way()
            life = instructions["restarts"]
            return run_actor(settings, url, instructions["actor_id"], stop, patience_s=PATIENCE_S, least_life=life)

        return act
    run_directory = Path(instructions["run_directory"])
    if name == "learner":
        from replay_server.learner.execution_choice import Choice
        from replay_server.learner.loop import run_learner

        # One that died goes on from its newest checkpoint: the server, and the replay in it, have lived on.
        settings.resume = settings.resume or instructions["restarts"] > 0
        execution = Choice.of_values(instructions["execution"])
        return lambda stop: run_learner(settings, url, run_directory, stop, patience_s=PATIENCE_S, execution=execution)
    if name == "evaluator":
        from replay_server.jobs.evaluation import run_evaluations

        return lambda stop: run_evaluations(settings, url, run_directory, stop, patience_s=PATIENCE_S)
    raise ValueError(f"expected part actor, learner or evaluator, got {name!r}")


def main() -> int:
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    # A terminal's Ctrl-C is for the job, which tells its parts.
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def end() -> None:
        stop.set()
        time.sleep(STOP_GRACE_S)
        os._exit(EXIT_FAILED)

    return run_part(make_part(asked(end)), stop)
