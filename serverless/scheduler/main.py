"""`replay-server scheduler`: trains MinionsRL's learned scheduler on whole jobs, and tunes one for another task.

replay-server scheduler train --task cartpole --logdir runs/scheduler-cartpole
replay-server scheduler train --task hopper --from-policy runs/scheduler-cartpole --logdir runs/scheduler-tuned
replay-server train --env CartPole-v1 --scaler minions --scaler-option policy=runs/scheduler-cartpole …
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import gymnasium

import replay_server as rs
from replay_server.arguments import Parser
from replay_server.rl.folder_lock import FolderInUse, alone_in
from replay_server.rl.interrupts import heed_interrupts
from replay_server.rl.options import add_options, given_options, typed_values
from replay_server.rl.policy_spec import policy_spec
from replay_server.rl.run_directory import write_json
from replay_server.serverless.backends.backend import FunctionError
from replay_server.serverless.orchestrator import make_bill
from replay_server.serverless.prices import PriceError
from replay_server.serverless.rounds import TrainingFailed
from replay_server.serverless.scheduler.decision import Goal
from replay_server.serverless.scheduler.job import TASKS, Jobs, cold_job_clock, job_clock, jobs
from replay_server.serverless.scheduler.policy import SchedulerPolicy, SchedulerSettings, load_policy
from replay_server.serverless.scheduler.reference import ACTORS, SEEDS, Reference, reference
from replay_server.serverless.scheduler.training import told, train_scheduler
from replay_server.serverless.settings import TrainSettings, algorithm_settings, check_settings

EXIT_FAILED, EXIT_USAGE, EXIT_SERVER_LOST, EXIT_INTERRUPTED = 1, 2, 5, 130
EPISODES, EPISODES_TUNED = 100, 10
"""From scratch, and of a policy of another task (MinionsRL, section 4 and figure 9)."""
JOB_OPTIONS = (
    "env", "profile", "setting", "rounds", "steps", "environments", "actors_max", "prices", "price_profile",
    "price_column",
)  # fmt: skip
"""Settings of `replay-server train` that a task can have over its own."""
CONFIG, REFERENCE = "config.json", "reference.json"


def job_parser(program: str, **more: Any) -> argparse.ArgumentParser:
    """A parser with the options that say which job is meant: `job_settings` reads them."""
    parser = Parser(program, formatter_class=argparse.RawDescriptionHelpFormatter, **more)
    parser.add_argument("--task", choices=sorted(TASKS), default="cartpole", help="a job that is short enough")
    left_out = [each.name for each in dataclasses.fields(TrainSettings) if each.name not in JOB_OPTIONS]
    add_options(parser.add_argument_group("over the task's own settings"), TrainSettings, left_out)
    goal = parser.add_argument_group("what a job is to reach", "if neither is given, as jobs with 16 actors have it")
    goal.add_argument("--target-score", type=float, metavar="J", help="end a job at this score")
    goal.add_argument("--budget", type=float, metavar="B", help="or when so many simulated dollars are spent")
    goal.add_argument("--reference-seeds", type=int, nargs="+", default=list(SEEDS), metavar="SEED",
                      help=f"of the jobs with {ACTORS} actors for that ({SEEDS[0]} to {SEEDS[-1]})")  # fmt: skip
    parser.add_argument("--cold-starts", action="store_true", help="instances start cold, and their start is billed")
    return parser


def job_settings(options: argparse.Namespace) -> TrainSettings:
    """The job that the options of `job_parser` mean. ValueError, naming the option, for what no job can have."""
    given = {name: value for name, value in given_options(options, TrainSettings).items() if name in JOB_OPTIONS}
    task = dict(TASKS[options.task])
    given["setting"] = {**task.get("setting", {}), **given.get("setting", {})}
    settings = TrainSettings(**{**task, **given}, scaler="max", actors=ACTORS)
    if settings.actors_max < 1 or settings.rounds < 1:
        raise ValueError("--actors-max and --rounds: expected at least 1")
    check_settings(settings)
    return settings


def chosen_goal(options: argparse.Namespace, folder: Path, played: Jobs) -> Goal:
    """The goal that the options name, or the one that reference jobs settle, which is kept in `folder`."""
    if options.target_score is not None:
        return Goal(options.target_score, options.budget)
    path = folder / REFERENCE
    if path.exists():
        found = Reference.load(path)
    else:
        found = reference(played, seeds=options.reference_seeds)
        found.save(path)
    print(f"target J = {found.goal.target:.2f}, budget B = ${found.goal.budget:.6f} (simulated): {path}", flush=True)
    return found.goal


def main(argv: Sequence[str] | None = None) -> int:
    """`replay-server scheduler train …`; the exit status: 0 done, 1 failed, 2 usage, 5 server lost, 130 interrupted."""
    given = list(sys.argv[1:] if argv is None else argv)
    if not given or given[0] != "train":
        asked = bool(given) and given[0] in ("-h", "--help")
        print(f"usage: replay-server scheduler train [options]\n\n{__doc__}", file=sys.stdout if asked else sys.stderr)
        return 0 if asked else EXIT_USAGE
    parser = _parser()
    options = parser.parse_args(given[1:])
    folder = Path(options.logdir)
    with contextlib.ExitStack() as stack:
        try:
            if (options.target_score is None) != (options.budget is None):
                raise ValueError("--target-score and --budget: give both, or neither")
            # Alone, or two would write one log, and each would take the other's episodes out of it.
            if there := folder.is_dir():
                stack.enter_context(alone_in(folder))
            settings, policy = _resumed(options, folder) if options.resume else _new(options)
            policy_spec(algorithm_settings(settings))
            make_bill(settings)
            if not there:
                folder.mkdir(parents=True, exist_ok=True)
                stack.enter_context(alone_in(folder))
            if not options.resume:
                _begin(options, settings, policy, folder)
        except FolderInUse as error:
            print(error, file=sys.stderr)
            return EXIT_FAILED
        except (ValueError, OSError, PriceError, gymnasium.error.Error) as error:
            parser.error(str(error))
        return _train(options, settings, policy, folder)


def _parser() -> argparse.ArgumentParser:
    parser = job_parser(
        "replay-server scheduler train",
        description="Trains a scheduler of actors: every episode is a whole training job, really learned, with the "
        "times and dollars of a simulated platform.",
        epilog="Exit status: 0 done, 1 failure, 2 usage, 5 server lost, 130 interrupted.",
    )
    parser.add_argument("--logdir", required=True, metavar="DIR", help="checkpoints, episodes.jsonl, reference.json")
    parser.add_argument("--resume", action="store_true", help="go on with the training in --logdir, as it was begun")
    parser.add_argument("--episodes", type=int, metavar="N",
                        help=f"jobs in all ({EPISODES}; {EPISODES_TUNED} with --from-policy)")  # fmt: skip
    parser.add_argument("--from-policy", metavar="DIR", help="begin with this policy, of another task")
    add_options(parser.add_argument_group("the scheduler's own PPO"), SchedulerSettings, ["actors_most"])
    return parser


def _new(options: argparse.Namespace) -> tuple[TrainSettings, SchedulerPolicy]:
    settings = job_settings(options)
    given = typed_values(SchedulerSettings, given_options(options, SchedulerSettings))
    if options.from_policy is None:
        policy = SchedulerPolicy(SchedulerSettings(actors_most=settings.actors_max, **given))
    else:
        source, _ = load_policy(Path(options.from_policy))
        policy = source.for_another_task(
            dataclasses.replace(source.settings, actors_most=settings.actors_max, **given)
        )  # fmt: skip
    if options.episodes is None:
        options.episodes = EPISODES if options.from_policy is None else EPISODES_TUNED
    return settings, policy


def _begin(options: argparse.Namespace, settings: TrainSettings, policy: SchedulerPolicy, folder: Path) -> None:
    """Writes what a new training begins with: its config.json, and the policy that has learned nothing of it."""
    if (folder / CONFIG).exists():
        raise FileExistsError(f"{folder} holds a training: add --resume to go on with it, or give another --logdir")
    policy.save(folder / "checkpoints", {"env": settings.env})
    write_json(folder / CONFIG, {
        "job": dataclasses.asdict(settings),
        "from_policy": options.from_policy,
        "goal": None if options.target_score is None else {"target": options.target_score, "budget": options.budget},
        **{name: getattr(options, name) for name in ("episodes", "reference_seeds", "cold_starts")},
    })  # fmt: skip


def _resumed(options: argparse.Namespace, folder: Path) -> tuple[TrainSettings, SchedulerPolicy]:
    """The training in the folder, with its own options but for more --episodes."""
    if not (folder / CONFIG).exists():
        raise FileNotFoundError(f"--resume: {folder} holds no training (no {CONFIG}): check --logdir")
    try:
        config = json.loads((folder / CONFIG).read_text())
        if config["goal"] is not None:
            options.target_score, options.budget = config["goal"]["target"], config["goal"]["budget"]
        options.reference_seeds, options.cold_starts = config["reference_seeds"], config["cold_starts"]
        options.episodes = config["episodes"] if options.episodes is None else options.episodes
        settings = TrainSettings(**config["job"])
    except (KeyError, TypeError, json.JSONDecodeError) as error:
        raise ValueError(f"{folder / CONFIG}: expected a training of this version: {error!r}") from None
    policy, _ = load_policy(folder)
    return settings, policy


def _train(options: argparse.Namespace, settings: TrainSettings, policy: SchedulerPolicy, folder: Path) -> int:
    before = heed_interrupts()
    print(
        f"{settings.env}: {settings.rounds} rounds × 1 to {settings.actors_max} actors × {settings.environments} "
        f"environments × {settings.steps} steps; episodes {policy.episodes + 1} to {options.episodes}",
        flush=True,
    )
    try:
        with jobs(settings, cold_job_clock if options.cold_starts else job_clock) as played:
            goal = chosen_goal(options, folder, played)
            train_scheduler(policy, played, goal, options.episodes, folder, _teller(policy.episodes, options.episodes))
    except KeyboardInterrupt:
        print(f"interrupted; go on with: replay-server scheduler train --resume --logdir {folder}", file=sys.stderr)
        return EXIT_INTERRUPTED
    except rs.ConnectionLost as error:
        print(f"replay server lost: {error}", file=sys.stderr)
        return EXIT_SERVER_LOST
    except (TrainingFailed, FunctionError, rs.ReplayError, ValueError) as error:
        print(f"the training failed: {error}", file=sys.stderr)
        return EXIT_FAILED
    finally:
        for name, handler in before.items():
            signal.signal(name, handler)
    print(f"a policy after {policy.episodes} episodes: --scaler minions --scaler-option policy={folder}", flush=True)
    return 0


def _teller(before: int, episodes: int) -> Callable[[dict[str, Any]], None]:
    """Says how each episode went, and how long the rest will take."""
    began = time.perf_counter()

    def tell(line: dict[str, Any]) -> None:
        each_s = (time.perf_counter() - began) / (line["episode"] - before)
        left_s = each_s * (episodes - line["episode"])
        print(f"{told(line, episodes)}; about {left_s / 60:.0f} minutes left", flush=True)

    return tell
