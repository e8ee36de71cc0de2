"""How updates are computed on this machine: ways are timed on the real network and batch, and the best one is taken.

The best way cannot be told from a processor's name: bfloat16 convolutions are nine times slower than float32 where
there are no instructions for them, and faster where there are; two threads gain much, little or nothing. So nothing is
assumed.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
import torch

from replay_server.learner.graph import GraphedLearner
from replay_server.learner.replay_learner import Prepared, ReplayLearner
from replay_server.rl.environment_spec import EnvironmentSpec
from replay_server.rl.machine import usable_cores
from replay_server.rl.observations import columns, map_tree
from replay_server.rl.process_memory import keep_freed_memory
from replay_server.rl.settings import ApexSettings

PRECISIONS = ("float32", "bfloat16")
"""The first is taken unless another is clearly faster."""
CUDA_PRECISIONS = ("float32", "tf32", "bfloat16")
"""TensorFloat-32: products of float32 numbers rounded to 10 bits of mantissa, summed in float32."""
CLEARLY_FASTER = 0.95
"""Another way must take less than this share of the time of the plainest one,"""
CLEARLY_FASTER_OF_LESS = 0.8
"""and less than this where fewer rows than a batch's were timed: there a busy machine misleads sooner."""
OUTDONE = 3.0
"""A precision that takes so many times as long as another one is not timed with more rows,"""
OUTDONE_ROWS = 8
"""once so many were timed: with fewer, what each update takes anyway decides."""
BUDGET_S = 4.0
"""What all timed updates may take together, those that warm up included."""
PRECISION_BUDGET_S = 2.5
"""Of it, for the choice of a precision, which decides most."""
REPEAT_S = 0.4
"""Short updates are repeated for this long, so that a busy moment of the machine decides nothing,"""
REPEATS = 200
"""but not more often than this."""


@dataclass(frozen=True)
class Way:
    """One way to compute updates."""

    precision: str = PRECISIONS[0]
    threads: int = 1
    """Of torch, for each of the learner's two threads where there are two."""
    ahead: bool = False
    """Whether a second thread computes the targets of the next batch (see `replay_server.learner.updates_ahead`)."""
    graph: bool = False
    """Whether updates are replayed as a CUDA graph (see `replay_server.learner.graph`)."""

    def __str__(self) -> str:
        threads = f"{self.threads} thread{'s' * (self.threads > 1)}"
        graph = " and a CUDA graph" if self.graph else ""
        targets = f" and {self.threads} for targets" if self.ahead else ""
        return f"{self.precision}, {threads}{targets}{graph}"

    def use(self, device: torch.device) -> None:
        """Sets this process's torch to the number of threads, and to TF32 or not."""
        torch.set_num_threads(self.threads)
        if device.type == "cuda":
            torch.backends.cuda.matmul.allow_tf32 = self.precision == "tf32"
            torch.backends.cudnn.allow_tf32 = self.precision == "tf32"  # pyright: ignore[reportAttributeAccessIssue]


@dataclass(frozen=True)
class Times:
    """What one update took: the shortest of several."""

    seconds: float = math.inf
    cpu_seconds: float = math.inf
    """Of all threads, where the device is the processor."""

    def or_shorter(self, other: Times) -> Times:
        return other if other.seconds < self.seconds else self


UpdateTimes = Callable[[Way, int], Times]
"""Does one update in a way with so many rows; infinite times where that fails."""


@dataclass(frozen=True)
class Choice:
    """How updates are computed, and the times that decided it."""

    way: Way
    rows: int = 0
    """Batch size of the timed updates; 0 = none was timed."""
    update_ms: dict[str, float | None] = field(default_factory=dict)
    """One update's, the shortest of several, by way as words; None where it failed. The words say of how many rows
    where those are fewer: a precision that was outdone by then."""

    def as_values(self) -> dict[str, Any]:
        """For config.json and summary.json, and for another process."""
        return {**asdict(self.way), "measured_rows": self.rows, "update_ms": self.update_ms}

    @staticmethod
    def of_values(values: Mapping[str, Any]) -> Choice:
        """From `as_values`."""
        way = Way(values["precision"], values["threads"], values["ahead"], values["graph"])
        return Choice(way, values["measured_rows"], values["update_ms"])

    def told(self) -> str:
        """One line for people."""
        if not self.update_ms:
            return f"updates run in {self.way} (as asked for)"
        times = "; ".join(f"{way}: {'fails' if ms is None else f'{ms:g} ms'}" for way, ms in self.update_ms.items())
        return f"updates run in {self.way} (measured with batches of {self.rows}: {times})"


@dataclass(frozen=True)
class Machine:
    """What updates may use, and what else goes on there."""

    cores: int
    acting_s: float = 0.0
    """Core seconds that acting takes on this machine for each update, as the replay ratio asks for."""

    def seconds_an_update(self, times: Times) -> float:
        """How often the job can do updates: as fast as they are, and as the cores give time for all that is done."""
        return max(times.seconds, (times.cpu_seconds + self.acting_s) / self.cores)


def choose_way(
    precisions: Sequence[str],
    threads: Sequence[int],
    aheads: Sequence[bool],
    rows: int,
    machine: Machine,
    update_times: UpdateTimes,
    budget_s: float = BUDGET_S,
    graphs: Sequence[bool] = (False,),
) -> Choice:
    """Times updates and returns the best way on `machine`, or a plainer one where that is about as good.

    First the precision is chosen, with the fewest threads; then, in that precision, threads and whether targets are
    computed beside. Graphs are timed in every precision: without one, what takes long is to launch the kernels, and
    that hides how long they take. The first of each sequence is the plainest, and is taken where there is no time to
    measure others.
    """
    plainest = Way(precisions[0], threads[0], aheads[0], graphs[0])
    if len(precisions) == len(threads) == len(aheads) == len(graphs) == 1:
        return Choice(plainest)
    trials = _Trials(update_times, budget_s)
    measured = trials.growing([replace(plainest, precision=each) for each in precisions], rows, PRECISION_BUDGET_S)
    share = 0.0 if not trials.repeated else CLEARLY_FASTER if measured == rows else CLEARLY_FASTER_OF_LESS
    machine = replace(machine, acting_s=machine.acting_s * measured / rows)
    best = _best(plainest, trials.times, machine, share)
    if measured == rows and trials.repeated:
        ways = [replace(best, threads=number, ahead=ahead) for ahead, number in itertools.product(aheads, threads)]
        if True in graphs:
            ways += [replace(plainest, precision=precision, graph=True) for precision in precisions]
        for way in ways:
            if way not in trials.times:
                # The second thread takes what it saves, and threads never more than all of the time.
                trials.one(way, rows, expected_s=trials.times[best].seconds)
        best = _best(best, trials.times, machine, share)
    named = {str(way): times for way, times in trials.times.items()}
    named |= {f"{way}, of {size} rows": times for (way, size), times in trials.outdone.items()}
    update_ms = {
        name: round(1e3 * times.seconds, 3) if math.isfinite(times.seconds) else None for name, times in named.items()
    }
    return Choice(best, measured, update_ms)


def _best(plainest: Way, times: dict[Way, Times], machine: Machine, share: float) -> Way:
    """The plainest one than which no other is clearly faster; `times` are in that order, but for graphs' precisions."""
    if not times:
        return plainest
    seconds = {way: machine.seconds_an_update(each) for way, each in times.items()}
    shortest, precisions = min(seconds.values()), list(dict.fromkeys(way.precision for way in times))
    ways = sorted(times, key=lambda way: precisions.index(way.precision))
    return next((way for way in ways if not shortest < share * seconds[way]), plainest)


class _Trials:
    """Timed updates, as far as their time goes."""

    def __init__(self, update_times: UpdateTimes, budget_s: float) -> None:
        self.times: dict[Way, Times] = {}
        self.outdone: dict[tuple[Way, int], Times] = {}
        """Of ways that were given up, with the rows that were timed."""
        self.repeated = False
        """Whether there was time for more than the updates that warm up."""
        self._update_times = update_times
        self._left_s = budget_s

    def growing(self, ways: Sequence[Way], rows: int, budget_s: float) -> int:
        """Times `ways` with more and more rows, up to `rows`; returns how many were reached.

        A way that is many times slower shows with few rows, and is given up then: it would take the time of all that is
        worth timing. A size is left out where the times of the one before say that it would not fit in `budget_s`. The
        ways take turns, so that other work on the machine slows all.
        """
        later_s, measured = self._left_s - budget_s, 0
        for size in sorted({max(1, rows >> shift) for shift in (6, 4, 2, 0)}):
            expected_s = _finite_sum(self.times.values()) * size / max(measured, 1)
            if measured and 2 * expected_s > self._left_s - later_s:
                break
            going = [way for way in ways if way not in self.times or math.isfinite(self.times[way].seconds)]
            found, repeated = self._shortest(going, size, REPEAT_S if size == rows else 0.0, later_s)
            if repeated or not measured:
                measured, self.times = size, {**dict.fromkeys(ways, Times()), **found}
            if not repeated:
                break
            self.repeated = True
            if OUTDONE_ROWS <= size < rows:
                ways = self._give_up(ways, size)
        return measured

    def _give_up(self, ways: Sequence[Way], size: int) -> list[Way]:
        """Those of `ways` that go on."""
        most_s = OUTDONE * min(times.seconds for times in self.times.values())
        outdone = [way for way in ways if most_s < self.times[way].seconds < math.inf]
        self.outdone |= {(way, size): self.times.pop(way) for way in outdone}
        return [way for way in ways if way not in outdone]

    def one(self, way: Way, rows: int, expected_s: float) -> None:
        """Times one further way, if it is expected to fit in."""
        if 3 * expected_s <= self._left_s:
            found, repeated = self._shortest([way], rows, min(REPEAT_S, self._left_s / 4), 0.0)
            if repeated:
                self.times.update(found)

    def _shortest(
        self, ways: Sequence[Way], rows: int, repeat_s: float, later_s: float
    ) -> tuple[dict[Way, Times], bool]:
        """The shortest of each way's updates, and whether any were repeated.

        The first ones warm up, and are told only where no others fit into what is left but for `later_s`.
        """
        newest = self._round(ways, rows)
        begin_s, found = self._left_s, dict[Way, Times]()
        for _ in range(REPEATS):
            if found and begin_s - self._left_s >= repeat_s:
                break
            if _finite_sum(newest.values()) > self._left_s - later_s:
                break
            newest = self._round(ways, rows)
            found = {way: each.or_shorter(found.get(way, Times())) for way, each in newest.items()}
        return found or newest, bool(found)

    def _round(self, ways: Sequence[Way], rows: int) -> dict[Way, Times]:
        found = {way: self._update_times(way, rows) for way in ways}
        self._left_s -= _finite_sum(found.values())
        return found


def _finite_sum(times: Iterable[Times]) -> float:
    return sum(each.seconds for each in times if math.isfinite(each.seconds))


def choose_execution(
    settings: ApexSettings,
    spec: EnvironmentSpec,
    make_learner: Callable[[str], ReplayLearner],
    device: torch.device,
    acting_s: float = 0.0,
) -> Choice:
    """What the settings name, and for what is "auto" there the best on this machine.

    `make_learner` makes a learner of a precision, on `device`. `acting_s`: see `Machine`. Leaves torch's number of
    threads at what was chosen.
    """
    keep_freed_memory()
    cores = usable_cores()
    precisions, graphs = (PRECISIONS, [False]) if device.type == "cpu" else (CUDA_PRECISIONS, [False, True])
    if settings.precision != "auto":
        precisions = (settings.precision,)
    if settings.optimizer != "adam" or spec.bounds is not None:  # SAC draws numbers, which a graph would repeat
        graphs = [False]
    if device.type != "cpu":
        threads, aheads = [settings.learner_threads if isinstance(settings.learner_threads, int) else 1], [False]
    else:
        threads = thread_counts(cores) if settings.learner_threads == "auto" else [settings.learner_threads]
        aheads = {"auto": [False, True][: min(2, cores)], "on": [True], "off": [False]}[settings.targets_ahead]
    with ThreadPoolExecutor(1, "targets") as beside:
        trial = _Trial(settings, spec, make_learner, device, beside)
        if device.type != "cpu" and len(precisions) * len(graphs) > 1:
            for precision in precisions:  # loads libraries and kernels, which any run has to: seconds from a cold disk
                trial(Way(precision, threads[0]), settings.batch_size)
        machine = Machine(cores, acting_s)
        choice = choose_way(precisions, threads, aheads, settings.batch_size, machine, trial, graphs=graphs)
    choice.way.use(device)
    return choice


def thread_counts(cores: int) -> list[int]:
    """1, 2, 4, … and the number of cores."""
    return sorted({1 << shift for shift in range(cores.bit_length()) if 1 << shift <= cores} | {cores})


class _Trial:
    """Updates of learners that nobody uses afterwards, on random batches. `beside` computes targets, as in a run."""

    def __init__(
        self,
        settings: ApexSettings,
        spec: EnvironmentSpec,
        make_learner: Callable[[str], ReplayLearner],
        device: torch.device,
        beside: ThreadPoolExecutor,
    ) -> None:
        self._beside = beside
        self._make = make_learner
        self._learners: dict[tuple[str, bool], ReplayLearner | GraphedLearner | None] = {}
        self._device = device
        rows, generator = settings.batch_size, np.random.default_rng(0)
        observations = [
            columns(name, map_tree(lambda leaf: leaf.random(generator, rows), spec.observation))
            for name in ("obs", "next_obs")
        ]
        self._columns: dict[str, Any] = {
            **observations[0],
            **observations[1],
            "action": spec.random_actions(generator, rows),
            "reward": generator.normal(size=rows).astype(np.float32),
            "discount": np.full(rows, settings.discount, np.float32),
        }
        self._weights: Any = np.ones(rows, np.float32)
        self._prepared: dict[tuple[ReplayLearner, int], Prepared] = {}
        if device.type != "cpu":  # in a run batches are copied there beside the updates
            self._columns = {name: torch.from_numpy(array).to(device) for name, array in self._columns.items()}
            self._weights = torch.from_numpy(self._weights).to(device)

    def __call__(self, way: Way, rows: int) -> Times:
        kind = way.precision, way.graph
        if kind not in self._learners:
            plain = self._make(way.precision)
            self._learners[kind] = GraphedLearner(plain) if way.graph else plain
        learner = self._learners[kind]
        if learner is None:
            return Times()
        data = {column: values[:rows] for column, values in self._columns.items()}
        way.use(self._device)
        try:
            return self._timed(learner, data, self._weights[:rows], way.ahead)
        except RuntimeError:
            if way.precision == PRECISIONS[0] and not way.graph:
                raise
            # No kernels for it here, or a network of the user's that does not take it, or cannot be recorded.
            self._learners[kind] = None
            return Times()

    def _timed(self, learner: ReplayLearner | GraphedLearner, data: dict[str, Any], weights: Any, ahead: bool) -> Times:
        prepared, key = None, (learner, len(weights))
        if ahead and isinstance(learner, ReplayLearner):
            if key not in self._prepared:  # once: this time is none of `BUDGET_S`
                self._prepared[key] = learner.prepare(data, weights)
            prepared = self._prepared[key]
        begin, cpu_begin = time.perf_counter(), time.process_time()
        if prepared is None or isinstance(learner, GraphedLearner):
            learner.update(data, weights)
        else:
            following = self._beside.submit(learner.prepare, data, weights)
            learner.step_on(prepared, before_change=following.result)
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        return Times(time.perf_counter() - begin, time.process_time() - cpu_begin)
