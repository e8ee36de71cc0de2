"""`replay-server bench learner`: the learner's loop against the same updates in plain torch, in turns.

`loop` is the learner of `replay-server apex`: a real server process over its usual connection (a unix socket with
shared memory), a table that an actor has filled with its games, a rate limiter that never makes anybody wait, batches
sampled ahead, priorities written back, weights published, reports written, and updates computed in the way that was
measured to be the best. `plain` is nothing but torch: the same network, loss, optimizer, batch size, precision and
threads in all on batches that lie in memory as tensors, one update after the other. Within a round both take their
turn, another one first in each; ratios are taken within a round.

On a GPU, or with `--feeds`, each round also tells what batches cost on their way there: `feed.resident` does the loop's
updates on batches that are on the device for good, which no other can exceed; `feed.pageable` is fed by a sampler that
receives into plain memory, `feed.pinned` into pinned memory, and `feed.registered` by one whose batches lie in memory
shared with the server, which is pinned where it lies. On a GPU each does so with and without a CUDA graph.

`--job` runs a whole job instead and tells where the processor time of its cores goes; see `replay_server.bench.job`.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import functools
import itertools
import shlex
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import replay_server as rs
from replay_server.actors.rollout import ActorProgress, run_actor
from replay_server.arguments import Parser
from replay_server.bench import job, result
from replay_server.bench.learning import given_settings
from replay_server.bench.load import cpu_seconds
from replay_server.jobs.arguments import resolve_settings
from replay_server.learner.dqn import double_dqn_loss
from replay_server.learner.execution_choice import Choice, choose_execution
from replay_server.learner.graph import WARM_UP
from replay_server.learner.loop import run_learner
from replay_server.learner.metrics import read_metrics
from replay_server.learner.replay_algorithms import make_learner
from replay_server.learner.replay_learner import ReplayLearner, choose_device, make_optimizer
from replay_server.learner.updates_ahead import updates
from replay_server.rl.environment_spec import EnvironmentSpec, environment_spec
from replay_server.rl.networks import make_network
from replay_server.rl.observations import channels_first
from replay_server.rl.settings import ApexSettings
from replay_server.rl.tables import apex_table
from replay_server.torch import DeviceBatch, DeviceBatches, host_arrays

RATIOS = {
    "loop / plain": ("loop.updates_per_s", "plain.updates_per_s"),
    "plain / loop, processor": ("plain.cpu_ms", "loop.cpu_ms"),
}
FEEDS = ("resident", "pageable", "pinned", "registered")
"""Where batches come from that are fed to the loop's updates: see above."""
AIM = 0.9
"""The share of plain torch's updates that the loop shall reach; on a busy machine likewise of processor time."""
SECONDS = {"sampling_s": "sampling", "training_s": "training", "update_s": "write_back", "publish_s": "publish"}
"""What the loop counts of its own time → what it is called here."""
RESIDENT_BATCHES = 16
"""Different batches that plain torch takes turns with."""
LOOK_EVERY_S = 0.2
BUSY = 0.3
"""Of a core, used before anything is measured: more than that shows in updates a second."""


def bench_settings(options: argparse.Namespace) -> ApexSettings:
    """The settings of a job on this machine, but for one actor and a limiter that is open."""
    given: dict[str, Any] = {"env": options.env, **given_settings(options.set)}
    if options.profile is not None:
        given["profile"] = options.profile
    settings, _ = resolve_settings(given, one_machine=True)
    return dataclasses.replace(
        settings,
        actors=1,
        capacity=2 * options.transitions,
        min_size_to_sample=min(settings.batch_size, options.transitions),
        samples_per_insert=None,
        max_updates=None,
        learner_threads=options.threads or settings.learner_threads,
        precision=options.precision or settings.precision,
    )


def fill(url: str, settings: ApexSettings, transitions: int) -> None:
    """Has an actor play until the table holds so many of its transitions."""
    enough = threading.Event()

    def look(progress: ActorProgress) -> None:
        if progress.transitions >= transitions:
            enough.set()

    run_actor(settings, url, 0, enough, look)


class PlainTorch:
    """Double DQN updates on batches that lie in memory, in the memory format that the network has."""

    def __init__(
        self,
        settings: ApexSettings,
        spec: EnvironmentSpec,
        device: torch.device,
        execution: Choice,
        batches: list[rs.Batch],
    ) -> None:
        self.settings, self.branches = settings, spec.branches
        self.device, self.precision = device, execution.way.precision
        self.threads = threads_in_all(execution)
        self.online = make_network(settings, spec).to(device)
        self.target = make_network(settings, spec).to(device).requires_grad_(False)
        self.parameters = list(self.online.parameters())
        self.optimizer = make_optimizer(self.parameters, settings)
        self.batches = [{name: self._resident(array) for name, array in batch.columns.items()} for batch in batches]
        self.weights = [self._resident(batch.weights) for batch in batches]
        self.step = 0

    def _resident(self, array: Any) -> Tensor:
        tensor = torch.tensor(array, device=self.device)
        is_image = tensor.ndim == 4 and channels_first(tensor.shape[1:])
        return tensor.contiguous(memory_format=torch.channels_last) if is_image else tensor

    def update(self) -> None:
        turn = self.step % len(self.batches)
        batch, weights = self.batches[turn], self.weights[turn]
        with self._autocast():
            loss = double_dqn_loss(self.online, self.target, batch, weights, self.settings.loss, self.branches).total
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(self.parameters, self.settings.gradient_norm)
        self.optimizer.step()
        self.step += 1
        if self.step % self.settings.target_update_every == 0:
            self.target.load_state_dict(self.online.state_dict())

    def _autocast(self) -> contextlib.AbstractContextManager[Any]:
        if self.precision in ("float32", "tf32"):
            return contextlib.nullcontext()
        return torch.autocast(self.device.type, dtype=getattr(torch, self.precision))


def threads_in_all(execution: Choice) -> int:
    """Of torch: where targets are computed beside, two threads have so many each."""
    return execution.way.threads * (2 if execution.way.ahead else 1)


def plain_turn(plain: PlainTorch, seconds: float, warm_up: float) -> dict[str, float]:
    """Updates for so long; two at least, after one that warms up."""
    torch.set_num_threads(plain.threads)
    for _ in _for(warm_up, 1):
        plain.update()
    synchronize(plain.device)
    begin, begin_cpu, count = time.perf_counter(), time.process_time(), 0
    for _ in _for(seconds, 2):
        plain.update()
        count += 1
    synchronize(plain.device)
    took = time.perf_counter() - begin
    return {
        "plain.updates_per_s": count / took,
        "plain.update_ms": 1e3 * took / count,
        "plain.cpu_ms": 1e3 * (time.process_time() - begin_cpu) / count,
    }


def feed_turn(
    url: str,
    settings: ApexSettings,
    learner: ReplayLearner,
    resident: list[DeviceBatch],
    feed: str,
    graph: bool,
    seconds: float,
    warm_up: float,
) -> dict[str, float]:
    """The loop's updates for so long on batches that come from one of `FEEDS`; nothing is written back."""
    with contextlib.ExitStack() as stack:
        batches: Iterable[DeviceBatch] = itertools.cycle(resident)
        if feed != "resident":
            client = stack.enter_context(rs.Client(url, shared_memory=feed == "registered"))
            allocate = host_arrays(learner.device) if feed == "pinned" else np.empty
            beta = settings.importance_sampling_exponent
            sampler = client.sampler(settings.table, settings.batch_size, beta, settings.prefetch, allocate=allocate)
            batches = stack.enter_context(DeviceBatches(stack.enter_context(sampler), learner.device))
        # Closed before what feeds it.
        done = stack.enter_context(contextlib.closing(updates(learner, batches, graph=graph)))
        for _ in _for(warm_up, WARM_UP + 2 if graph else 1):
            next(done)
        synchronize(learner.device)
        begin, count = time.perf_counter(), 0
        for _ in _for(seconds, 2):
            next(done)
            count += 1
        synchronize(learner.device)
        took = time.perf_counter() - begin
    return {f"feed.{feed}{'_graph' if graph else ''}_updates_per_s": count / took}


def feed_turns(
    options: argparse.Namespace, url: str, settings: ApexSettings, spec: EnvironmentSpec, execution: Choice,
    device: torch.device, batches: list[rs.Batch],
) -> list[Callable[[], dict[str, float]]]:  # fmt: skip
    """One for each of `FEEDS`, on a GPU with Adam also one for each with a CUDA graph."""
    graphs = [False, True] if device.type == "cuda" and settings.optimizer == "adam" else [False]
    with DeviceBatches(batches, device) as on_device:
        resident = list(on_device)

    def turn(feed: str, graph: bool) -> dict[str, float]:
        execution.way.use(device)
        learner = make_learner(settings, spec, device, execution.way.precision)
        return feed_turn(url, settings, learner, resident, feed, graph, options.seconds, options.warm_up)

    return [functools.partial(turn, feed, graph) for graph in graphs for feed in FEEDS]


def synchronize(device: torch.device) -> None:
    """Waits for what the device has to do."""
    torch.get_device_module(device).synchronize()


def _for(seconds: float, at_least: int) -> Iterator[int]:
    """Counts until so many seconds have passed, and so many turns."""
    end, count = time.perf_counter() + seconds, 0
    while count < at_least or time.perf_counter() < end:
        yield count
        count += 1


class _Window:
    """Ends the learner when it has reported for so long after warming up; keeps the two rows and processor times."""

    def __init__(self, run: Path, server_pid: int, seconds: float, warm_up: float) -> None:
        self.stop = threading.Event()
        self.rows: list[dict[str, Any]] = []
        """The learner's reports at the window's two ends."""
        self.cpu: list[tuple[float, float, float]] = []
        """The clock, and processor seconds of this process and of the server's, about then."""
        self._run, self._server_pid, self._seconds, self._warm_up = run, server_pid, seconds, warm_up
        self._left = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="window", daemon=True)

    def __enter__(self) -> _Window:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._left.set()
        self._thread.join()

    def _watch(self) -> None:
        while len(self.rows) < 2 and not self._left.wait(LOOK_EVERY_S):
            reports = read_metrics(self._run, "learner")
            if not reports:
                continue
            due = self.rows[0]["time_s"] + self._seconds if self.rows else reports[0]["time_s"] + self._warm_up
            if reports[-1]["time_s"] >= due and reports[-1] not in self.rows:
                self.rows.append(reports[-1])
                self.cpu.append((time.perf_counter(), time.process_time(), cpu_seconds(self._server_pid)))
        self.stop.set()


def loop_turn(
    server: rs.Server, settings: ApexSettings, execution: Choice, run: Path, seconds: float, warm_up: float
) -> dict[str, float]:
    """The learner's loop for so long after warming up, by its own reports."""
    assert server.unix_url is not None
    with _Window(run, server.pid, seconds, warm_up) as window:
        run_learner(settings, server.unix_url, run, window.stop, tensorboard=False, execution=execution)
    if len(window.rows) < 2:
        raise RuntimeError(f"the learner ended before it had reported for {seconds:g} s: look at {run}")
    begin, end = window.rows
    took, updates = end["time_s"] - begin["time_s"], end["step"] - begin["step"]
    spent = {told: 1e3 * (end[name] - begin[name]) / updates for name, told in SECONDS.items()}
    (from_s, own_s, server_s), (until_s, own_end_s, server_end_s) = window.cpu
    in_window = (until_s - from_s) * updates / took
    return {
        "loop.updates_per_s": updates / took,
        "loop.update_ms": 1e3 * took / updates,
        **{f"loop.{name}_ms": value for name, value in spent.items()},
        "loop.rest_ms": 1e3 * took / updates - sum(spent.values()),
        "loop.cpu_ms": 1e3 * (own_end_s - own_s) / in_window,
        "loop.server_cpu_ms": 1e3 * (server_end_s - server_s) / in_window,
    }


def measure(options: argparse.Namespace, folder: str, say: Callable[[str], None]) -> dict[str, Any]:
    """All rounds; the content of a result file, but for its command."""
    settings = bench_settings(options)
    spec = environment_spec(settings)
    if spec.bounds is not None:
        raise ValueError(f"--env: expected discrete actions, whose updates plain torch does here, got {settings.env}")
    device = choose_device(settings.device)
    host = result.machine()
    execution = choose_execution(settings, spec, functools.partial(make_learner, settings, spec, device), device)
    if host["load_average_before"] > BUSY * host["cores"]:
        say(f"the machine is busy (load {host['load_average_before']:g}): compare processor times, not updates")
    say(f"{host['processor']}: {execution.told()}; batches of {settings.batch_size}")
    rounds: list[dict[str, float]] = []
    with rs.Server([apex_table(settings, spec)], unix=Path(folder) / "server.sock") as server:
        assert server.unix_url is not None
        fill(server.unix_url, settings, options.transitions)
        with rs.Client(server.unix_url) as client:
            batches = [client.sample(settings.table, settings.batch_size) for _ in range(RESIDENT_BATCHES)]
        plain = PlainTorch(settings, spec, device, execution, batches)
        feeds = options.feeds or device.type == "cuda"
        fed = feed_turns(options, server.unix_url, settings, spec, execution, device, batches) if feeds else []
        for number in range(options.rounds):
            run = Path(folder) / f"round-{number}"
            turns: list[Callable[[], dict[str, float]]] = [
                lambda run=run: loop_turn(server, settings, execution, run, options.seconds, options.warm_up),
                lambda: plain_turn(plain, options.seconds, options.warm_up),
                *fed,
            ]
            measured: dict[str, float] = {}
            for turn in turns if number % 2 == 0 else turns[::-1]:
                measured |= turn()
            rounds.append({name: round(value, 4) for name, value in measured.items()})
            say(f"round {number + 1}/{options.rounds}: " + ", ".join(
                f"{side} {measured[f'{side}.updates_per_s']:.2f} updates/s" for side in ("loop", "plain")
            ))  # fmt: skip
    kept = ("env", "profile", "batch_size", "network", "hidden", "prefetch",
            "publish_every", "optimizer", "device", "compression")  # fmt: skip
    used = {name: getattr(settings, name) for name in kept} | {"device": _told(device), **execution.as_values()}
    content = result.document("learner", "", host, {**vars(options), "used": used}, rounds, RATIOS)
    spread = {}
    for name, (above, below) in RATIOS.items():
        of_rounds = [measured[above] / measured[below] for measured in rounds]
        spread[name] = [min(of_rounds), max(of_rounds)]
    return {**content, "ratio_spread": spread}


def _told(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        "replay-server bench learner", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--env", default="ALE/Pong-v5", help="gymnasium id (ALE/Pong-v5)")
    parser.add_argument("--profile", help="of the settings (the one that replay-server apex would take)")
    parser.add_argument("--set", nargs="+", default=[], metavar="NAME=VALUE", help="settings that win over the profile")
    parser.add_argument("--precision", choices=("auto", "float32", "bfloat16"), help="of both sides (the setting's)")
    parser.add_argument(
        "--threads", type=int, default=0, help="torch threads of the loop (the setting's; auto: measured)"
    )
    parser.add_argument("--transitions", type=int, default=10_000, help="in the table (10000)")
    parser.add_argument("--seconds", type=float, default=20.0, help="of each turn (20); with --job, of the one look")
    parser.add_argument("--warm-up", type=float, default=3.0, help="seconds before each (3)")
    parser.add_argument("--rounds", type=int, default=5, help="rounds, each one turn of both (5)")
    parser.add_argument("--feeds", action="store_true", help="also what feeding batches costs; on a GPU always")
    parser.add_argument("--job", action="store_true", help="a whole job: where its cores' processor time goes")
    parser.add_argument("--json", metavar="FILE", help="write the results there")
    return parser


def main(argv: list[str], folder: str, say: Callable[[str], None] = print) -> int:
    """Runs it. Returns the exit status."""
    options = _parser().parse_args(argv)
    if options.job:
        content = job.measure(options, folder, say)
    else:
        content = measure(options, folder, say)
    content["command"] = shlex.join(["replay-server", "bench", "learner", *argv])
    if options.job:
        for line in job.told(content):
            say(line)
    else:
        result.tell(content, say, ratio_digits=None)
    for name, ratio in content["ratio"].items():
        low, high = content["ratio_spread"][name]
        aim = f"aim {AIM}: {'reached' if ratio >= AIM else 'not reached'}"
        say(f"{name:28} {ratio:14.3f}   ({low:.3f} to {high:.3f}); {aim}")
    if options.json:
        result.write(options.json, content)
    return 0
