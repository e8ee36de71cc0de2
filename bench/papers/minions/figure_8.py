"""MinionsRL's Figure 8: what an actor and a learner function take to start, and what they take to talk, in one round.

    replay-server bench scalers --figure minions-8 --env Hopper-v5 ALE/Qbert-v5 --plot runs/minions-8.png

Real rounds of a real job on this machine. A start is a cold one's: from handing the invocation over to the handler,
imports included; medians of the actors and of the learner. Everything else is of warm rounds, medians over all but the
first: followed is the actor that ended last, and then the learner. The paper's functions are containers (300 ms an
actor, 1,500 ms a learner with its GPU), which are then kept warm; here they are processes, each for both kinds of
function: the learner finds one that is there, and mostly has no start of its own (–). The paper has less than 100 ms of
communication for 65,536 steps of MuJoCo and less than 800 ms for 6,144 stacked Atari frames.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from replay_server.arguments import Parser
from replay_server.bench import result
from replay_server.bench.papers.nitro.figure_18 import folder_of
from replay_server.bench.papers.nitro.figure_20 import breakdown, draw, measured_options
from replay_server.bench.papers.nitro.replayed import run_job
from replay_server.serverless.backends.backend import Invocation
from replay_server.serverless.breakdown import cold_start_s

COMMUNICATION = ("fetch weights", "push", "fetch fragments", "publish")
"""Parts of a round that are between a function and the server."""
Parts = dict[str, float]


def starts(invocations: Sequence[Invocation]) -> dict[str, float | None]:
    """Kind of function → seconds of a cold start (median); None where none started cold and ended well."""
    found: dict[str, float | None] = {}
    for kind in ("actor", "learner"):
        cold = [cold_start_s(each) for each in invocations if each.kind == kind and each.cold and each.outcome == "ok"]
        found[kind] = statistics.median(cold) if cold else None
    return found


def communication(parts: Mapping[str, float]) -> tuple[float, float]:
    """Seconds of a round, and their share of it; waiting for a place is no part of the round here."""
    seconds = sum(parts[part] for part in COMMUNICATION)
    whole = sum(took for part, took in parts.items() if part != "waiting")
    return seconds, seconds / whole if whole else 0.0


def main(argv: list[str], folder: str = "", say: Callable[[str], None] = print) -> int:
    options = _parser().parse_args(argv)
    host = result.machine()
    warm: dict[str, Parts] = {}
    cold: dict[str, dict[str, float | None]] = {}
    steps = options.job_actors * options.environments * options.steps
    for env in options.env:
        job = argparse.Namespace(**{**vars(options), "env": env})
        invocations = run_job(job, options.concurrency, folder_of(folder, env) / "job")
        warm[env], cold[env] = breakdown(invocations), starts(invocations)
        seconds, share = communication(warm[env])
        began = ", ".join(f"{kind} {_ms(took)}" for kind, took in cold[env].items())
        parts = ", ".join(f"{part} {_ms(warm[env][part])}" for part in ("act", *COMMUNICATION, "learn"))
        say(f"{env}, ms: to start {began}; warm {parts}; {_ms(seconds)} to move {steps} steps, {share:.1%} of a round")
    if options.json:
        rows: list[dict[str, Any]] = [{f"{env}.{part}_s": took for env, parts in warm.items() for part, took in
                                       parts.items()}]  # fmt: skip
        command = " ".join(["replay-server bench scalers --figure minions-8", *argv])
        content = result.document("scalers-figure-minions-8", command, host, vars(options), rows, {})
        told = {env: dict(zip(("seconds", "share"), communication(parts), strict=True)) for env, parts in warm.items()}
        result.write(options.json, {**content, "start_s": cold, "steps": steps, "communication": told})
    if options.plot:
        draw(warm, options.plot, "MinionsRL, Figure 8: warm rounds")
    return 0


def _ms(seconds: float | None) -> str:
    return "–" if seconds is None else f"{seconds * 1000:.1f}"


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        "replay-server bench scalers --figure minions-8",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    measured_options(parser, rounds=(4, "the first is the cold one"), actors=(32, "of a round"))
    return parser
