"""Where the time of actors and learner goes: real Ape-X parts on Breakout, for 1, 2, 4, 8 actors.

All parts share the clients' processor, so that the time of each phase holds what others took of it meanwhile. The
learner samples in the server and has one batch on the way while it trains; its "sampling" is the wait that is left.
"""

from __future__ import annotations

import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
from typing import Any

from replay_server.bench.papers.in_network.figure import Measured, Options, Panel, Round, Say, name, turned
from replay_server.bench.papers.in_network.parts import ACTOR_PHASES, LEARNER_PHASES, Seconds
from replay_server.bench.sides import Host, processors, start, usual

TITLE = "Execution time of actor and learner"
PAPER = "communication takes 14.5 % of the time with 1 actor, 19.0 % with 8 (Redis over kernel sockets)"
COMMUNICATION = {"actor": ("push_s", "pull_s"), "learner": ("sampling_s", "update_s", "publish_s")}
PHASES = {"actor": ACTOR_PHASES, "learner": LEARNER_PHASES}


class Parts:
    """The parts' process on a host's client side. A context manager."""

    def __init__(self, host: Host) -> None:
        pinned = ["taskset", "--cpu-list", str(processors()[1])]
        program = [sys.executable, "-m", "replay_server.bench.papers.in_network.parts"]
        command = [*host.lab.client_command, *pinned, *program]
        # ALE greets every process there.
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed with the process
        self._process = subprocess.Popen(
            [*command, f"redis://{host.address}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )

    def run(self, actors: int, seconds: float) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"actors": actors, "seconds": seconds}) + "\n")
        self._process.stdin.flush()
        answer = json.loads(self._process.stdout.readline() or '{"error": "it ended"}')
        if "error" in answer:
            self._errors.seek(0)
            raise RuntimeError(f"the parts failed: {answer['error']}\n{self._errors.read()[-2000:]}")
        return answer["answer"]

    def __enter__(self) -> Parts:
        return self

    def __exit__(self, *exception: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._errors.close()


def shares(part: str, spent: list[Seconds]) -> dict[str, float]:
    """Of each phase, and "other", of the elapsed time; the mean over those that were measured."""
    elapsed = sum(seconds["elapsed_s"] for seconds in spent)
    found = {phase: sum(seconds[phase] for seconds in spent) / elapsed for phase in PHASES[part]}
    found["communication_s"] = sum(found[phase] for phase in COMMUNICATION[part])
    found["other_s"] = max(0.0, 1.0 - sum(found[phase] for phase in PHASES[part]))
    return found


def values(host: Host, parts: Parts, actors: int, seconds: float) -> Round:
    with host.awake():
        told = parts.run(actors, seconds)
    found: Round = {}
    for part, spent in (("actor", told["actors"]), ("learner", [told["learner"]])):
        for phase, share in shares(part, spent).items():
            what = f"{part}_{phase.removesuffix('_s')}"
            found[name("own", what, host.side.name, actors, "share")] = round(share, 4)
    rates = [seconds["transitions"] / seconds["elapsed_s"] for seconds in told["actors"]]
    found[name("own", "actor_transitions", host.side.name, actors, "items_per_s")] = round(sum(rates), 1)
    updates = told["learner"]["updates"] / told["learner"]["elapsed_s"]
    found[name("own", "learner_updates", host.side.name, actors, "batches_per_s")] = round(updates, 2)
    return found


def panels_of(names: list[str]) -> list[Panel]:
    """Stacked shares: a panel for the actor and one for the learner."""
    panels = []
    for part in ("actor", "learner"):
        bars: dict[str, dict[str, str]] = {}
        for phase in (*PHASES[part], "other_s"):
            what = f"{part}_{phase.removesuffix('_s')}"
            for measured in names:
                _, own, side, actors, statistic = measured.split(".", 4)
                if own == what and statistic == "share":
                    bars.setdefault(phase.removesuffix("_s"), {})[f"{actors} {side.split('_')[0]}"] = measured
        panels.append(Panel(f"{part}: share of its time", "%", 0.01, bars, stacked=True))
    return panels


def findings(rounds: list[Round], actors: list[int], sides: list[str]) -> list[str]:
    lines = [f"the paper: {PAPER}"]
    for part in ("actor", "learner"):
        for side in sides:
            told = []
            for count in actors:
                measured = name("own", f"{part}_communication", side, count, "share")
                told.append(f"{count}: {100 * statistic_of(rounds, measured):.1f} %")
            lines.append(f"{side}, {part}: communication with actors " + ", ".join(told))
    return lines


def statistic_of(rounds: list[Round], measured: str) -> float:
    return statistics.median(found[measured] for found in rounds)


def measure(options: Options, say: Say) -> Measured:
    wanted = [side for side in options.sides or usual() if side != "redis"]
    seconds = 1.2 if options.quick else 4.0
    rounds: list[Round] = [{} for _ in range(options.rounds)]
    with contextlib.ExitStack() as stack:
        hosts, about = start(wanted, stack)
        parts = {host.side.name: stack.enter_context(Parts(host)) for host in hosts}
        for number, found in enumerate(rounds):
            for actors in options.actors:
                for host in turned(hosts, number):
                    found |= values(host, parts[host.side.name], actors, seconds)
                say(f"breakdown: round {number + 1}/{options.rounds}, actors={actors}")
    names = list(rounds[0])
    ratios = {}
    for measured in names:
        sizes, what, side, actors, statistic = measured.split(".", 4)
        below = f"{sizes}.{what}.kernel.{actors}.{statistic}"
        if side != "kernel" and below in names and what in ("actor_communication", "learner_communication"):
            ratios[f"{what} actors={actors} {side} / kernel"] = (measured, below)
    settings = {**about, "seconds_of_a_run": seconds}
    told = findings(rounds, list(options.actors), [host.side.name for host in hosts])
    return Measured(rounds, ratios, panels_of(names), settings, told)
