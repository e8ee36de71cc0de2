"""`replay-server train`: serverless reinforcement learning, from the command line to the final score."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import gymnasium

import replay_server as rs
from replay_server.actors.environment_states import StateUnsupported
from replay_server.actors.envs import check_states
from replay_server.arguments import Parser
from replay_server.connection import PASSWORD_VARIABLE, url_with_password
from replay_server.extras import how_to_install
from replay_server.learner.policy_probes import check_probes
from replay_server.learner.wandb_mirror import check_wandb, start_wandb
from replay_server.rl.dashboard_process import start_dashboard
from replay_server.rl.interrupts import heed_interrupts
from replay_server.rl.options import add_options, given_options
from replay_server.rl.policy_settings import PolicySettings
from replay_server.rl.policy_spec import policy_spec
from replay_server.rl.run_directory import RunDirectory, new_run_path
from replay_server.serverless.backends.backend import FunctionError, check_platform
from replay_server.serverless.job_name_claim import JobInUse
from replay_server.serverless.orchestrator import Orchestrator, Progress, make_bill
from replay_server.serverless.prices import PriceError
from replay_server.serverless.rounds import TrainingFailed
from replay_server.serverless.settings import (
    TrainSettings,
    algorithm_settings,
    check_settings,
    json_options,
    make_scaler,
)
from replay_server.serverless.train_view import make_view

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_SERVER_LOST = 5
EXIT_INTERRUPTED = 130


def main_train(argv: list[str] | None = None) -> int:
    """Runs the job described by the command line; returns its exit code.

    0 the job came to its end, 1 it failed, 2 wrong usage, 5 the server was lost, 130 interrupted.
    """
    parser = Parser(
        prog="replay-server train",
        usage="%(prog)s [options]",
        description="Serverless deep reinforcement learning: actor and learner functions on a platform, in rounds, "
        "with experience and weights on a replay server. Ends at --rounds, --target-score or --budget, whichever is "
        "first.",
        epilog=f"The password of --server comes from the variable {PASSWORD_VARIABLE}. Exit status: 0 done, 1 failure, "
        "2 usage, 5 server lost, 130 interrupted.",
    )
    add_options(parser.add_argument_group("settings of the job"), TrainSettings)
    given = given_options(parser.parse_args(argv), TrainSettings)
    try:
        settings = _settings(given)
        check_settings(settings)
        check_wandb(settings.wandb)
        algorithm = algorithm_settings(settings)
        _check_environment(algorithm)
        make_bill(settings)
        check_probes(make_scaler(settings).probes)
        check_platform(settings.backend, json_options(settings.backend_option))
        run_directory = RunDirectory(new_run_path(settings))
        run_directory.create(settings)
    except (ValueError, OSError, PriceError) as error:
        # Without the options, which fill a page: each value was one of theirs.
        parser.exit(EXIT_USAGE, f"{parser.prog}: error: {error}\n")
    for url in ("server", "function_server"):
        setattr(settings, url, _with_password(getattr(settings, url)))
    print(f"{settings.env} · {settings.algo} · profile {settings.profile} · {settings.most_actors} actors × "
          f"{settings.environments} environments × {settings.steps} steps · {settings.backend} · seed {settings.seed}",
          flush=True)  # fmt: skip
    print(f"run directory {run_directory.path}", flush=True)
    return _run(settings, run_directory)


def _check_environment(algorithm: PolicySettings) -> None:
    """Raises ValueError for an environment that no job can have: makes one, and asks it for its state."""
    try:
        policy_spec(algorithm)
        check_states(algorithm)
    except (gymnasium.error.Error, StateUnsupported) as error:
        raise ValueError(f"--env {algorithm.env}: {error}") from error


def _settings(given: dict[str, Any]) -> TrainSettings:
    if not given.get("resume"):
        return TrainSettings(**given)
    if given.get("logdir") is None:
        raise ValueError("--resume needs --logdir: the run directory to go on with")
    run_directory = RunDirectory(Path(given["logdir"]))
    settings, before = run_directory.settings(TrainSettings, given), run_directory.settings(TrainSettings, {})
    if settings.scaler != before.scaler and run_directory.saved_steps():
        raise ValueError(
            f"--scaler {settings.scaler}: the run in {run_directory.path} uses {before.scaler}, and a scaler cannot "
            "continue from another one's state: leave --scaler out, or begin another run"
        )
    return settings


def _run(settings: TrainSettings, run_directory: RunDirectory) -> int:
    code = 0
    heed_interrupts()
    dashboard = wandb = None
    with make_view(f"{settings.env} {settings.algo} seed {settings.seed}") as view:
        try:
            dashboard = start_dashboard(settings.dashboard, run_directory.path, settings.server, view.message)
            wandb = start_wandb(settings.wandb, run_directory.path, view.message)

            def show(progress: Progress) -> None:
                view.show(progress)
                if wandb is not None:
                    wandb.poll()

            Orchestrator(settings, run_directory, on_progress=show, on_message=view.message).run()
        except KeyboardInterrupt:
            code = EXIT_INTERRUPTED
            view.message("interrupted")
        except rs.ConnectionLost as error:
            code = EXIT_SERVER_LOST
            view.message(f"replay server lost: {error}")
        except (TrainingFailed, FunctionError, JobInUse, rs.ReplayError) as error:
            code = EXIT_FAILED
            view.message(f"the job failed: {error}")
        except ModuleNotFoundError as error:
            code = EXIT_FAILED
            view.message(f"the job failed: it needs {error.name}: {how_to_install(error.name)}")
    if dashboard is not None:
        dashboard.close()
    if wandb is not None:
        wandb.close()
    _say_goodbye(run_directory, code)
    if settings.plot:
        _draw(run_directory)
    return code


def _draw(run_directory: RunDirectory) -> None:
    """Draws what was written down. A job that did well has not failed for want of its pictures."""
    try:
        from replay_server.serverless.plots import draw_run

        pictures = draw_run(run_directory.path)
    except ModuleNotFoundError as error:
        print(f"no pictures: they need {error.name}: {how_to_install(error.name)}", file=sys.stderr)
    except OSError as error:
        print(f"no pictures: {error}", file=sys.stderr)
    else:
        print("\n".join(map(str, pictures)), flush=True)


def _say_goodbye(run_directory: RunDirectory, code: int) -> None:
    if not run_directory.summary.exists():
        return  # It was interrupted before it had begun.
    summary = json.loads(run_directory.summary.read_text())
    print(f"ended ({summary['ended_by']}) after {summary['rounds']} rounds, {summary['steps']} steps, "
          f"{summary['elapsed_s']:.1f} s, ${summary['cost']:.6f}")  # fmt: skip
    if summary["eval_mean"] is not None:
        print(f"score {summary['eval_mean']:.1f} ± {summary['eval_std']:.1f} over {summary['eval_episodes']} games")
    saved = run_directory.saved_steps()
    newest = f"newest checkpoint {run_directory.checkpoints / f'step_{saved[-1]}'}" if saved else "no checkpoint yet"
    print(f"{run_directory.summary}; {newest}", flush=True)
    if code and saved:
        print(f"go on with: replay-server train --resume --logdir {run_directory.path}", flush=True)


def _with_password(url: str | None) -> str | None:
    """The URL with the environment's password, unless it has one of its own."""
    if url is None or "@" in url:
        return url
    return url_with_password(url, os.environ.get(PASSWORD_VARIABLE) or None)


if __name__ == "__main__":
    sys.exit(main_train())
