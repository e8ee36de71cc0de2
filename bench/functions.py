"""`replay-server bench functions`: what a platform adds to the work of its functions, cold and warm.

Each round makes the platform anew and measures, against one replay server over TCP:

cold     the first request of all: an actor plays one fragment on a new instance. Its parts add up to what the caller
         saw: dispatch (handed over → the process begins; a platform's own start-up is in here), start (→ the handler is
         called: interpreter, this package), import (torch, gymnasium), then the function's phases (connect,
         make_environments with the simulator's import, fetch_weights, act, push, confirm), rest (of the handler), and
         return (its end → the caller has the answer). The kernel tells a process's start to 10 ms.
warm     requests that do nothing (`WarmRequest`): submitted → answered, one after the other.
actor    the same actor's next fragment, warm, and what of it is the platform's: the caller's time − the function's.
round    `--actors` actors of one fragment each, all submitted at once, on warm instances, `--concurrency` at a time.
         overhead = time of the round − the time in which as many slots could have run the functions' own durations, as
         they measured them, in the order of submission, each slot taking the next as soon as it is free. overhead /
         round is the platform's share.
imports  in a fresh interpreter, one after the other: what start and import consist of.
"""

from __future__ import annotations

import argparse
import dataclasses
import heapq
import itertools
import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import wait
from typing import Any

import numpy as np

import replay_server as rs
from replay_server.arguments import Parser
from replay_server.bench import result
from replay_server.rl.function_contract import (
    ActorRequest,
    Names,
    WarmRequest,
    decode_response,
    encode_request,
)
from replay_server.serverless.backends.backend import PLATFORMS, Backend, Invocation, make_platform
from replay_server.serverless.settings import json_options

TIMEOUT_S = 300.0
IMPORTS = (
    "numpy",
    "redis",
    "msgpack",
    "replay_server",
    "replay_server.serverless.function",
    "torch",
    "gymnasium",
    "replay_server.actors.function",
    "mujoco",
)
"""In this order, each without what those before it have loaded."""
_CODE = """
import importlib, json, sys, time
took = {}
for name in sys.argv[1:]:
    began = time.perf_counter()
    try:
        importlib.import_module(name)
    except ModuleNotFoundError:
        continue
    took[name] = time.perf_counter() - began
print(json.dumps(took))
"""


# ---- the job ---------------------------------------------------------------------------------------------------------


class ActorJob:
    """An actors' job on a server: a table, a policy, and requests that go on where the actor was."""

    def __init__(self, client: rs.Client, name: str, env: str, steps: int, environments: int) -> None:
        from replay_server.learner.algorithms import make_settings
        from replay_server.rl.fragments import fragment_signature
        from replay_server.rl.policy_networks import make_policy_network
        from replay_server.rl.policy_spec import policy_spec
        from replay_server.rl.weights import module_arrays

        settings = make_settings("ppo", "default", env=env, steps=steps)
        spec = policy_spec(settings)
        names = Names(name)
        signature = fragment_signature(settings, spec)
        client.create_table(rs.Table(names.fragments, 256, signature, sampler=rs.Fifo(), remover=rs.Fifo()))
        client.publish_weights(names.policy, module_arrays(make_policy_network(settings, spec)), version=1)
        self._settings = dataclasses.asdict(settings)
        self._url, self._name, self._environments = client.url, name, environments
        self._states: dict[int, tuple[int, str]] = {}
        self._numbers = itertools.count()

    def request(self, actor: int) -> bytes:
        """The actor's next fragments."""
        sequence, state = self._states.get(actor, (0, None))
        return encode_request(
            ActorRequest(
                f"{self._name}-{next(self._numbers)}",
                self._url,
                self._name,
                self._settings,
                "ppo",
                round=sequence + 1,
                version=1,
                actor=actor,
                environments=self._environments,
                sequence=sequence,
                state=state,
            )
        )

    def done(self, actor: int, answer: bytes) -> None:
        """Notes where the actor's environments are."""
        made = decode_response(answer).result
        assert made is not None
        self._states[actor] = (self._states.get(actor, (0, ""))[0] + 1, made["state"])


# ---- what is measured ------------------------------------------------------------------------------------------------


def cold_parts(invocation: Invocation) -> dict[str, float]:
    """What a cold invocation's time went to, in seconds; the parts add up to ended − started.

    Raises ValueError for an invocation that was not cold, or brought no measurements.
    """
    measured = invocation.measured
    if measured is None or not measured.cold:
        raise ValueError(f"expected a cold invocation with measurements, got {invocation}")
    inside = measured.ended - measured.started
    return {
        "dispatch": measured.started - measured.startup_s - invocation.started,
        "start": measured.startup_s,
        "import": measured.import_s,
        **measured.phases,
        "rest": inside - measured.import_s - sum(measured.phases.values()),
        "return": invocation.ended - measured.ended,
    }


def busy_s(durations: Sequence[float], slots: int) -> float:
    """How long `slots` take to run the durations in order, each taking the next as soon as it is free."""
    ends = [0.0] * slots
    for duration in durations:
        heapq.heapreplace(ends, ends[0] + duration)
    return max(ends)


def measure_backend(
    name: str, options: argparse.Namespace, platform_settings: Mapping[str, Any], job: ActorJob
) -> dict[str, float]:
    """One round of everything on a new platform; measurements by name, in ms."""
    found: dict[str, float] = {}
    invocations: list[Invocation] = []
    began = time.perf_counter()
    platform = make_platform(name, **platform_settings)
    found["platform_ms"] = time.perf_counter() - began
    with Backend(
        platform,
        concurrency=options.concurrency,
        timeout_s=TIMEOUT_S,
        retries=0,
        on_invocation=invocations.append,
    ) as functions:

        def run(actors: Sequence[int]) -> float:
            payloads = [job.request(actor) for actor in actors]
            began = time.perf_counter()
            futures = [functions.submit(payload) for payload in payloads]
            wait(futures)
            took_s = time.perf_counter() - began
            for actor, future in zip(actors, futures, strict=True):
                job.done(actor, future.result())
            return took_s

        run([0])
        first = invocations[-1]
        found["cold_ms"] = first.ended - first.started
        found |= {f"cold.{part}_ms": took_s for part, took_s in cold_parts(first).items()}

        run([0])
        next_one = invocations[-1]
        assert next_one.measured is not None
        found["actor_ms"] = next_one.ended - next_one.started
        found["actor.platform_ms"] = found["actor_ms"] - (next_one.measured.ended - next_one.measured.started)

        latencies = []
        for number in range(options.calls):
            payload = encode_request(WarmRequest(request=f"warm-{number}"))
            began = time.perf_counter()
            functions.submit(payload).result()
            latencies.append(time.perf_counter() - began)
        if latencies:
            found["warm_ms_p50"], found["warm_ms_p99"] = np.percentile(latencies, [50, 99]).tolist()

        functions.prewarm(options.concurrency)
        actors = range(options.actors)
        run(actors)  # every instance has its simulator and its weights from here on
        del invocations[:]
        found["round_ms"] = run(actors)
        in_order = sorted(invocations, key=lambda invocation: invocation.started)
        durations = [each.measured.ended - each.measured.started for each in in_order if each.measured]
        found["round.functions_ms"] = busy_s(durations, options.concurrency)
        found["round.overhead_ms"] = found["round_ms"] - found["round.functions_ms"]
    return {f"{name}.{what}": round(took_s * 1e3, 3) for what, took_s in found.items()}


def measure_imports() -> dict[str, float]:
    """Milliseconds of a bare interpreter, and of each of `IMPORTS`, in fresh processes."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    began = time.perf_counter()
    subprocess.run([sys.executable, "-c", ""], check=True, timeout=60)
    found = {"imports.interpreter_ms": time.perf_counter() - began}
    told = subprocess.run(
        [sys.executable, "-c", _CODE, *IMPORTS], check=True, timeout=120, stdout=subprocess.PIPE, env=environment
    )
    found |= {f"imports.{name}_ms": took_s for name, took_s in json.loads(told.stdout).items()}
    return {what: round(took_s * 1e3, 3) for what, took_s in found.items()}


def measure(options: argparse.Namespace, say: Callable[[str], None]) -> Iterator[dict[str, float]]:
    """The rounds, one after the other."""
    chosen = options_by_backend(options.option)
    jobs = itertools.count()
    with rs.Server() as server, rs.Client(server.url) as client:
        for number in range(options.rounds):
            found = measure_imports()
            for name in options.backend:
                job = ActorJob(client, f"bench-{next(jobs)}", options.env, options.steps, options.environments)
                found |= measure_backend(name, options, chosen.get(name, {}), job)
            say(f"round {number + 1}/{options.rounds}: " + "  ".join(_line(found, name) for name in options.backend))
            yield found


def _line(found: Mapping[str, float], name: str) -> str:
    share = found[f"{name}.round.overhead_ms"] / found[f"{name}.round_ms"]
    return (
        f"{name} cold {found[f'{name}.cold_ms'] / 1e3:.2f} s, warm {found.get(f'{name}.warm_ms_p50', 0.0):.2f} ms, "
        f"overhead {100 * share:.1f} % of a round of {found[f'{name}.round_ms'] / 1e3:.2f} s"
    )


def options_by_backend(given: Sequence[str]) -> dict[str, dict[str, Any]]:
    """``backend.option=value`` as backend → option → value; a value is JSON, or else a string. ValueError."""
    found: dict[str, dict[str, Any]] = {}
    for each in given:
        name, equals, text = each.partition("=")
        backend, dot, option = name.partition(".")
        if not equals or not dot or backend not in PLATFORMS:
            raise ValueError(f"expected backend.option=value with a backend of {', '.join(PLATFORMS)}, got {each!r}")
        found.setdefault(backend, {}).update(json_options({option: text}))
    return found


def main(argv: list[str], folder: str = "", say: Callable[[str], None] = print) -> int:
    """Runs the benchmark; returns the exit status."""
    cores = len(os.sched_getaffinity(0))
    parser = Parser(
        "replay-server bench functions", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--backend", nargs="+", choices=PLATFORMS, default=["process"], help="which ones (process)")
    parser.add_argument(
        "--option",
        action="append",
        default=[],
        metavar="BACKEND.OPTION=VALUE",
        help="an option of a platform's class, in JSON or as a string",
    )
    parser.add_argument("--env", default="Hopper-v5", help="what the actors play (Hopper-v5)")
    parser.add_argument("--steps", type=int, default=256, help="steps of a fragment (256)")
    parser.add_argument("--environments", type=int, default=1, help="environments of an actor (1)")
    parser.add_argument("--actors", type=int, default=8, help="actors in a round (8)")
    parser.add_argument("--concurrency", type=int, help="functions at a time (one a core, at most as many as actors)")
    parser.add_argument("--calls", type=int, default=200, help="warm calls that do nothing (200)")
    parser.add_argument("--rounds", type=int, default=3, help="rounds of everything (3)")
    parser.add_argument("--json", metavar="FILE", help="write the results there")
    options = parser.parse_args(argv)
    if options.concurrency is None:
        options.concurrency = min(cores, options.actors)
    try:
        options_by_backend(options.option)
    except ValueError as error:
        parser.error(str(error))
    for name in ("steps", "environments", "actors", "concurrency", "rounds"):
        if getattr(options, name) < 1:
            parser.error(f"--{name}: expected at least 1, got {getattr(options, name)}")
    host = result.machine()
    rounds = list(measure(options, say))
    content = result.document(
        "functions",
        shlex.join(["replay-server", "bench", "functions", *argv]),
        host,
        vars(options),
        rounds,
        {f"{name} overhead / round": (f"{name}.round.overhead_ms", f"{name}.round_ms") for name in options.backend},
    )
    say("")
    result.tell(content, say, width=48, ratio_digits=3)
    if options.json:
        result.write(options.json, content)
    return 0
