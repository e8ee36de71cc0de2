"""`replay-server bench learner --job`: where the processor time of a whole Ape-X job's cores goes.

A job as `replay-server apex` starts it, looked at for some seconds once it learns. Processor times are the kernel's, by
process and thread; how a process divides its own is told by the seconds that it counts itself:

- an actor: by `environment_s` (the emulator), `inference_s` (torch), and the rest of the time in which its main thread
  ran or was ready to: while it waits for the server, in a push, it takes no processor time;
- the learner's main thread: by `training_s` (torch) of the time in which it did not wait for a batch (`sampling_s`).
  Of its other threads those that compute for torch, one fewer than its torch threads in all, are taken to be the
  busiest;
- the evaluator: all of it is the emulator or torch.

What is in neither is the job's own: making, sending, sampling and receiving transitions, the server, reports.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import replay_server as rs
from replay_server.bench import result
from replay_server.bench.process import end_process
from replay_server.rl.options import option_of

LOOK_EVERY_S = 0.2
ACTOR_SECONDS = ("environment_s", "inference_s", "push_s", "pull_s", "blocked_s")
LEARNER_SECONDS = ("sampling_s", "training_s", "update_s", "publish_s")


@dataclass(frozen=True)
class Process:
    """One of the job's processes, at one moment."""

    main: int
    """Its main thread."""
    threads: Mapping[int, float]
    """Thread → its processor seconds."""
    ready_s: float
    """Seconds that the main thread ran, or was ready to and had no core."""


@dataclass(frozen=True)
class Look:
    """A job at one moment."""

    time_s: float
    processes: Mapping[str, Process]
    """By part: learner, actor-0, evaluator, server, fork-server, job."""
    reports: Mapping[str, Mapping[str, float]]
    """What learner and actors told last of their own seconds."""
    machine_s: float
    """Processor seconds of all that runs on the machine."""


def divide(begin: Look, end: Look, cores: int, learner_threads: int) -> dict[str, float]:
    """Where the processor time between two looks went, as shares of so many cores' time.

    `learner_threads`: threads of the learner that compute for torch, the main one included.

    `emulator`, `torch` and `rest` add up to the job's; `others` ran besides; `idle` is left. `emulator_or_torch_of_job`
    is their share of the job's own time.
    """
    took = end.time_s - begin.time_s
    shares = {"emulator": 0.0, "torch": 0.0, "rest": 0.0}
    parts: dict[str, float] = {}
    for part, process in end.processes.items():
        if part not in begin.processes:
            continue
        used = {
            thread: max(0.0, seconds - begin.processes[part].threads.get(thread, 0.0))
            for thread, seconds in process.threads.items()
        }
        report = {
            name: seconds - begin.reports.get(part, {}).get(name, 0.0)
            for name, seconds in end.reports.get(part, {}).items()
        }
        active_s = process.ready_s - begin.processes[part].ready_s
        emulator_s, torch_s = _divided(part, process.main, learner_threads, used, report, took, active_s)
        total_s = sum(used.values())
        shares["emulator"] += emulator_s
        shares["torch"] += torch_s
        shares["rest"] += total_s - emulator_s - torch_s
        parts[f"part.{part}"] = total_s
    mine = sum(shares.values())
    others = max(0.0, end.machine_s - begin.machine_s - mine)
    values = {**shares, "others": others, "idle": max(0.0, took * cores - mine - others)}
    values["emulator_or_torch"] = shares["emulator"] + shares["torch"]
    found = {f"{name}_share": round(seconds / (took * cores), 4) for name, seconds in {**values, **parts}.items()}
    return {**found, "emulator_or_torch_of_job_share": round(values["emulator_or_torch"] / max(mine, 1e-9), 4)}


def _divided(
    part: str,
    main: int,
    learner_threads: int,
    used: Mapping[int, float],
    report: Mapping[str, float],
    took: float,
    active_s: float,
) -> tuple[float, float]:
    """Processor seconds of a process in the emulator, and in torch."""
    total = sum(used.values())
    if part.startswith("actor"):
        emulator, inference = (report.get(name, 0.0) / max(active_s, 1e-9) for name in ("environment_s", "inference_s"))
        return total * min(1.0, emulator), total * min(1.0, inference)
    if part == "learner":
        active = max(took - report.get("sampling_s", 0.0), 1e-9)
        pool = sorted((seconds for thread, seconds in used.items() if thread != main), reverse=True)
        main_s = used.get(main, 0.0) * min(1.0, report.get("training_s", 0.0) / active)
        return 0.0, main_s + sum(pool[: max(0, learner_threads - 1)])
    if part == "evaluator":
        return 0.0, total
    return 0.0, 0.0


def told(content: Mapping[str, Any]) -> list[str]:
    """The shares, for people."""
    share = {name.removesuffix("_share"): 100 * value for name, value in content["median"].items()}
    names = {
        "emulator": "emulator",
        "torch": "torch",
        "rest": "the rest of the job",
        "others": "other programs",
        "idle": "idle",
    }
    parts = [f"{name.removeprefix('part.')} {value:.1f} %" for name, value in share.items() if name.startswith("part.")]
    return [
        f"of the processor time of {content['machine']['cores']} cores ({content['machine']['processor']}):",
        *(f"  {words:20} {share[name]:5.1f} %" for name, words in names.items()),
        f"emulator or torch: {share['emulator_or_torch']:.1f} % of the cores' time, "
        f"{share['emulator_or_torch_of_job']:.1f} % of the job's own",
        f"by process: {', '.join(parts)}",
    ]


def measure(options: argparse.Namespace, folder: str, say: Callable[[str], None]) -> dict[str, Any]:
    """Runs a job and looks at it; the content of a result file, but for its command."""
    host = result.machine()
    cores = len(os.sched_getaffinity(0))
    run = Path(folder) / "run"
    with _job(options, run) as process, _client(process, run) as client:
        _await_learning(process, client, run)
        time.sleep(options.warm_up)
        say(f"the job learns: looking at it for {options.seconds:g} s")
        begin = look(process.pid, client)
        time.sleep(options.seconds)
        end = look(process.pid, client)
    config = json.loads((run / "config.json").read_text())
    measured = divide(begin, end, cores, _learner_threads(config))
    for part in end.reports:
        parts = {
            f"{part}.{name}": value - begin.reports[part].get(name, 0.0) for name, value in end.reports[part].items()
        }
        measured |= {name: round(value / (end.time_s - begin.time_s), 4) for name, value in parts.items()}
    settings = {**vars(options), "used": config}
    return {**result.document("learner-job", "", host, settings, [measured], {}), "ratio_spread": {}}


def _learner_threads(config: Mapping[str, Any]) -> int:
    """Of torch, in all: where targets are computed beside, two threads have so many each."""
    way = config["measured"]
    return way["threads"] * (2 if way["ahead"] else 1)


def look(pid: int, client: rs.Client) -> Look:
    """The job whose process is `pid`, now."""
    processes = {"job": _process(pid)}
    for child in _children(pid):
        with contextlib.suppress(OSError):
            processes[_part_of(child)] = _process(child)
    reports: dict[str, dict[str, float]] = {}
    for part in processes:
        names = LEARNER_SECONDS if part == "learner" else ACTOR_SECONDS if part.startswith("actor") else ()
        if names:
            told: Any = client.redis.hgetall(f"apex:{part.replace('-', ':')}")
            fields = {name.decode(): value for name, value in told.items()}
            reports[part] = {name: float(fields[name]) for name in names if name in fields}
    return Look(time.monotonic(), processes, reports, _machine_seconds())


@contextlib.contextmanager
def _job(options: argparse.Namespace, run: Path) -> Iterator[subprocess.Popen[bytes]]:
    """`replay-server apex` while it lasts."""
    words = ["--env", options.env, "--logdir", str(run), "--dashboard", "off", "--final-episodes", "0"]
    words += ["--checkpoint-replay", "off"]  # nobody resumes it
    words += ["--profile", options.profile] if options.profile else []
    words += ["--precision", options.precision] if options.precision else []
    words += ["--learner-threads", str(options.threads)] if options.threads else []
    for name, _, value in (word.partition("=") for word in options.set):
        words += [option_of(name), value]
    run.parent.mkdir(parents=True, exist_ok=True)
    with open(run.with_suffix(".log"), "wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "replay_server.jobs.apex", *words], stdout=log, stderr=log, start_new_session=True
        )
        try:
            yield process
        finally:
            process.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=60)
            end_process(process)


def _failed(run: Path) -> RuntimeError:
    return RuntimeError(f"the job ended before it could be looked at:\n{run.with_suffix('.log').read_text()[-2000:]}")


def _client(process: subprocess.Popen[bytes], run: Path) -> rs.Client:
    """A client of the job's server, as soon as that is there."""
    while not (run / "job.json").exists():
        if process.poll() is not None:
            raise _failed(run)
        time.sleep(LOOK_EVERY_S)
    return rs.Client(json.loads((run / "job.json").read_text())["server"], reconnect_timeout=5.0)


def _await_learning(process: subprocess.Popen[bytes], client: rs.Client, run: Path) -> None:
    while not client.redis.hget("apex:learner", "updates"):
        if process.poll() is not None:
            raise _failed(run)
        time.sleep(LOOK_EVERY_S)


def _children(pid: int) -> Sequence[int]:
    """Its processes, and what was forked for it."""
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError, IndexError):
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                if fields[0] != "Z":
                    parents[int(entry.name)] = int(fields[1])
    own = [child for child, parent in parents.items() if parent == pid]
    return own + [child for child, parent in parents.items() if parent in own]


def _part_of(pid: int) -> str:
    """A part's processes write to its log; the server's to none."""
    log = Path(os.readlink(f"/proc/{pid}/fd/1"))
    if log.parent.name == "logs":
        return log.stem
    return "server" if Path(os.readlink(f"/proc/{pid}/exe")).name.startswith("replay-server") else "fork-server"


def _process(pid: int) -> Process:
    threads, ready_s = {}, 0.0
    for task in Path(f"/proc/{pid}/task").iterdir():
        ran, waited = (1e-9 * int(number) for number in (task / "schedstat").read_text().split()[:2])
        threads[int(task.name)] = ran
        if int(task.name) == pid:
            ready_s = ran + waited
    return Process(pid, threads, ready_s)


def _machine_seconds() -> float:
    """Of all processors of the machine: user, nice, system, interrupts; not idle, waiting or stolen."""
    fields = list(map(int, Path("/proc/stat").read_text().splitlines()[0].split()[1:]))
    return (fields[0] + fields[1] + fields[2] + fields[5] + fields[6]) / os.sysconf("SC_CLK_TCK")
