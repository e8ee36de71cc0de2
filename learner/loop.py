"""The learner's loop: batches in, priorities and weights out, with reports and checkpoints on the way."""

from __future__ import annotations

import contextlib
import functools
import json
import threading
import time
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

import replay_server as rs
from replay_server.learner.checkpoint import checkpoint_to_resume, read_checkpoint, write_checkpoint
from replay_server.learner.execution_choice import Choice, Way, choose_execution
from replay_server.learner.finite_checks import ADVICE, Diverged, check_finite, first_not_finite
from replay_server.learner.metrics import Metrics
from replay_server.learner.replay_algorithms import make_learner
from replay_server.learner.replay_learner import LEARNING, ReplayLearner, Update, choose_device, learning_rate_at
from replay_server.learner.updates_ahead import updates
from replay_server.rl.connection import LOST, PersistentClient
from replay_server.rl.environment_spec import environment_spec
from replay_server.rl.process_memory import keep_freed_memory
from replay_server.rl.run_directory import NOT_WRITTEN, RunDirectory
from replay_server.rl.settings import ApexSettings
from replay_server.rl.shared_settings import join
from replay_server.rl.tables import apex_rate_limiter, samples_per_insert_at
from replay_server.rl.weights import module_arrays
from replay_server.torch import DeviceBatch, DeviceBatches, HostCopy, host_arrays

REPORT_EVERY_S = 1.0
"""Seconds between reports: the hash <table>:learner on the server (decimal strings), metrics.jsonl, TensorBoard."""
NOT_FINITE_IN_A_ROW = 10
"""So many batches in a row without a finite loss, beyond those that were sampled ahead, and the run has diverged."""


def run_learner(
    settings: ApexSettings,
    server_url: str,
    run_directory: Path,
    stop: threading.Event,
    tensorboard: bool = True,
    *,
    patience_s: float = 30.0,
    session: int = 0,
    execution: Choice | None = None,
) -> int:
    """Learns until `stop` is set or `settings.max_updates` learner steps are done; returns the learner step reached.

    Creates the table if it is not there, and opens it if it is closed; resumes from the newest checkpoint if
    `settings.resume`; publishes weights under the table's name; and always leaves a checkpoint, also when it ends with
    an error. `session`: see `replay_server.rl.shared_settings.join`. `execution`: how updates are computed, where that
    is known; else it is measured.

    Raises:
        ConnectionLost: the server stayed away for `patience_s` seconds.
        TableClosed: somebody closed the table meanwhile.
        Diverged: a weight is not finite, or the losses of `NOT_FINITE_IN_A_ROW` batches and more are not. Fewer such
            batches are left out, and counted (`batches_not_finite`). The newest checkpoint is of before.
        SettingsDiffer: these are other settings than the run's.
        ValueError: settings that cannot be: a device, a checkpoint of another network.
    """
    spec = environment_spec(settings)
    device = choose_device(settings.device)
    make = functools.partial(make_learner, settings, spec, device)
    if execution is None:
        execution = choose_execution(settings, spec, make, device)
        RunDirectory(run_directory).add_measured(execution.as_values())
    execution.way.use(device)
    keep_freed_memory()
    learner = make(execution.way.precision)
    checkpoint_folder = run_directory / "checkpoints"
    news = [execution.told()]
    counters = _resume(learner, checkpoint_folder, news.append) if settings.resume else {}

    with contextlib.ExitStack() as stack:
        metrics = Metrics(run_directory, "learner", tensorboard)
        stack.callback(metrics.close)
        connect = functools.partial(
            PersistentClient,
            server_url,
            patience_s=patience_s,
            stop=stop.is_set,
            shared_memory=True,
            reconnect_timeout=0.0,
        )
        joined = functools.partial(join, settings=settings, spec=spec, session=session)
        loop = _Loop(settings, learner, execution.way, metrics, checkpoint_folder, connect, joined)
        loop.batches_not_finite = int(counters.get("batches_not_finite", 0))
        stack.callback(loop.client.close)
        loop.client.call(lambda client: client.open_table(settings.table))
        # Runs first of all on the way out, whatever ends the loop: a lost server must not lose the learning.
        stack.push(loop.leave)
        for text in news:
            loop.say(text)
        loop.publish()
        if not loop.finished():
            loop.run(stop)
            if loop.table_closed is not None and not loop.finished():
                raise loop.table_closed
    return learner.step


def _resume(learner: ReplayLearner, folder: Path, say: Callable[[str], None]) -> dict[str, Any]:
    """Loads the newest checkpoint that is whole; returns its counters, none where there is no checkpoint yet."""
    needed = {*learner.modules, "optimizer"} - {LEARNING}
    newest = checkpoint_to_resume(folder, say, needed)
    if newest is None:
        say(f"learns anew from update 0: there is no checkpoint in {folder} yet")
        return {}
    counters = read_checkpoint(newest, learner)
    say(f"goes on from {newest}")
    return counters


class _Loop:
    def __init__(
        self,
        settings: ApexSettings,
        learner: ReplayLearner,
        way: Way,
        metrics: Metrics,
        checkpoint_folder: Path,
        connect: Callable[..., PersistentClient],
        join_run: Callable[[rs.Client], None],
    ) -> None:
        self.settings = settings
        self.learner = learner
        self.way = way
        self.metrics = metrics
        self.checkpoint_folder = checkpoint_folder
        self.join_run = join_run
        self.version = -1
        self.samples_per_insert: float | None = None
        """That the server was told to hold; None: it may hold another."""
        self.table_closed: rs.TableClosed | None = None
        """Why there are no more batches, where somebody closed the table."""
        self.pending: tuple[np.ndarray, HostCopy[Update]] | None = None
        """The ids of the newest update's batch, and what the update found; priorities are written back in order."""
        self.sums: dict[str, float] = {}
        self.waited_s = 0.0
        self.batches_not_finite = self.not_finite_in_a_row = 0
        self.not_written = 0
        """Rows and checkpoints that the disk did not take, since this learner began."""
        # Of the whole run. Where the device works by itself, training ends in the write-back that waits for it.
        self.seconds = {"sampling_s": 0.0, "training_s": 0.0, "update_s": 0.0, "publish_s": 0.0}
        self.report_time = self.checkpoint_time = time.monotonic()
        self.client = connect(on_connect=self._on_connect)
        self.version_offset = self._version_offset()

    def _on_connect(self, client: rs.Client) -> None:
        """A server that came back without the newest weights, or empty, gets them again: new actors play with them."""
        self.join_run(client)
        self.samples_per_insert = None
        self.updater = client.updater(self.settings.table)
        if self.version < 0:
            return
        held = client.fetch_weights(self.settings.table)
        if held is None or held[0] < self.version:
            client.publish_weights(self.settings.table, self._weights(), version=self.version)

    def _weights(self) -> dict[str, np.ndarray]:
        """What is published. Raises Diverged where it is not finite."""
        arrays = module_arrays(self.learner.published)
        check_finite(arrays, f"update {self.learner.step} is not published")
        return arrays

    def run(self, stop: threading.Event) -> None:
        """One turn per batch: update, write the priorities of the one before back, publish."""
        settings, learner = self.settings, self.learner
        with (
            contextlib.closing(self._batches(stop)) as batches,
            contextlib.closing(updates(learner, self._waited_for(batches), self.way.ahead, self.way.graph)) as done,
        ):
            while (turn := self._next_update(done)) is not None:
                batch, update = turn
                found = HostCopy(update, learner.device)
                # The previous update's priorities: to wait for this one's would leave the device without work.
                self._write_back()
                self.pending = batch.ids, found
                self.hold_samples_per_insert()
                if learner.step % settings.publish_every == 0:
                    with self._timed("publish_s"):
                        self.publish()
                now = time.monotonic()
                if now - self.report_time >= REPORT_EVERY_S:
                    self.report(now)
                if now - self.checkpoint_time >= settings.checkpoint_every_s:
                    self._write_back()
                    self._settle()
                    with self._without_the_disk():
                        self.checkpoint()
                if self.finished() or stop.is_set():
                    break
        self._write_back()
        self._settle()
        self.publish()
        self.report(time.monotonic())

    def _next_update(self, done: Iterator[tuple[DeviceBatch, Update]]) -> tuple[DeviceBatch, Update] | None:
        begin, waited_s = time.monotonic(), self.seconds["sampling_s"]
        turn = next(done, None)
        self.seconds["training_s"] += time.monotonic() - begin - (self.seconds["sampling_s"] - waited_s)
        return turn

    def _waited_for(self, batches: Iterator[DeviceBatch]) -> Iterator[DeviceBatch]:
        """The same, with the time counted in which they were waited for."""
        while True:
            begin = time.monotonic()
            batch = next(batches, None)
            waited_s = time.monotonic() - begin
            self.waited_s += waited_s
            self.seconds["sampling_s"] += waited_s
            if batch is None:
                return
            yield batch

    def _batches(self, stop: threading.Event) -> Generator[DeviceBatch]:
        """Batches on the learner's device until `stop`; after an outage, of the table as the server has it then."""
        settings, device = self.settings, self.learner.device
        while not stop.is_set():
            batches = self.client.call(
                lambda client: client.sampler(
                    settings.table,
                    settings.batch_size,
                    prefetch=settings.prefetch,
                    importance_sampling_exponent=settings.importance_sampling_exponent,
                    allocate=host_arrays(device),
                )
            )
            try:
                with batches, _closed_when(stop, batches), DeviceBatches(batches, device) as on_device:
                    yield from on_device
                if batches.table_closed is not None:
                    self.table_closed = batches.table_closed
                    return
            except LOST:
                self.client.close()  # connects anew with the next call, as often as it takes

    def say(self, text: str) -> None:
        """Tells people something: on standard output, and for the job in the list <table>:messages on the server."""
        with contextlib.suppress(OSError):  # the log may be on a disk that is full
            print(text, flush=True)
        message = json.dumps({"part": "learner", "text": text})
        self._store(lambda store: store.rpush(f"{self.settings.table}:messages", message))

    @contextlib.contextmanager
    def _timed(self, name: str) -> Iterator[None]:
        begin = time.monotonic()
        yield
        self.seconds[name] += time.monotonic() - begin

    @contextlib.contextmanager
    def _without_the_disk(self) -> Iterator[None]:
        """Learning goes on where the disk takes no row or checkpoint; that is counted, and said once."""
        try:
            yield
        except OSError as error:
            self.not_written += 1
            if self.not_written == 1:
                self.say(f"{NOT_WRITTEN}: {error}")

    def finished(self) -> bool:
        return self.settings.max_updates is not None and self.learner.step >= self.settings.max_updates

    def publish(self) -> None:
        """Publishes what actors play with; its version is the learner step (see `_version_offset`)."""
        version = self.learner.step + self.version_offset
        if version <= self.version:
            return
        arrays = self._weights()
        self.version = self.client.call(
            lambda client: client.publish_weights(self.settings.table, arrays, version=version)
        )

    def hold_samples_per_insert(self) -> None:
        """Tells the table's rate limiter the ratio that is due, where a run has two of them."""
        ratio = samples_per_insert_at(self.learner.step, self.settings)
        if self.settings.samples_per_insert_end is None or ratio == self.samples_per_insert:
            return
        limiter = apex_rate_limiter(self.settings, ratio)
        self.client.call(lambda client: client.configure(self.settings.table, rate_limiter=limiter))
        self.samples_per_insert = ratio

    def report(self, now: float) -> None:
        """Writes the means since the last report to the server, metrics.jsonl and TensorBoard."""
        elapsed_s = now - self.report_time
        self.report_time = now
        if not self.sums or elapsed_s <= 0:
            return
        updates = self.sums.pop("updates")
        values: dict[str, float | int] = {}
        if updates:  # else all batches were left out
            values |= {name: total / updates for name, total in self.sums.items()}
        values["batches_per_s"] = updates / elapsed_s
        values["batches_not_finite"] = self.batches_not_finite
        values["not_written"] = self.not_written
        values["waiting_share"] = min(1.0, self.waited_s / elapsed_s)
        values["learning_rate"] = learning_rate_at(self.learner.step, self.settings)
        values["version"] = self.version
        values |= {name: round(seconds, 4) for name, seconds in self.seconds.items()}
        self.sums, self.waited_s = {}, 0.0
        with self._without_the_disk():
            self.metrics.write(self.learner.step, values)
        report = {name: f"{value:.6g}" if isinstance(value, float) else str(value) for name, value in values.items()}
        fields: dict[Any, Any] = {"updates": str(self.learner.step), **report}
        self._store(lambda store: store.hset(f"{self.settings.table}:learner", mapping=fields))

    def _store(self, write: Callable[[Any], Any]) -> None:
        self.client.call(lambda client: write(client.redis))

    def checkpoint(self) -> None:
        self.checkpoint_time = time.monotonic()
        counters = {
            "version": self.version,
            "env": self.settings.env,
            "seed": self.settings.seed,
            "batches_not_finite": self.batches_not_finite,
        }
        write_checkpoint(self.checkpoint_folder, self.learner, counters, self.settings.checkpoints_kept)

    def leave(self, kind: object, error: BaseException | None, traceback: object) -> None:
        """The last checkpoint: none where the run has diverged, since it would diverge again from there.

        OSError where the disk does not take it: what was learned would be lost.
        """
        if not isinstance(error, Diverged):
            self.checkpoint()

    def _write_back(self) -> None:
        """What is pending: priorities to the server, numbers to the report."""
        if self.pending is None:
            return
        with self._timed("update_s"):
            (ids, found), self.pending = self.pending, None
            update = found.wait()
            priorities = update.priorities.numpy().astype(np.float64)
            # Around an outage the update before this one may be lost: its items are sampled again as they were.
            self.client.call(lambda _: self.updater.update_priorities(ids, priorities))
        done = self.learner.settle(update)
        self._add_to_sums(update, done)
        if done:
            self.not_finite_in_a_row = 0
        else:
            self._leave_out(update)

    def _settle(self) -> None:
        """The server has done every update of priorities."""
        with self._timed("update_s"):
            self.client.call(lambda _: self.updater.flush())

    def _leave_out(self, update: Update) -> None:
        """Counts a batch that changed nothing. Raises Diverged where the next ones would not change anything either."""
        self.batches_not_finite += 1
        self.not_finite_in_a_row += 1
        loss, gradient_norm = torch.stack([update.loss, update.gradient_norm]).tolist()
        found = f"a loss of {loss:g} and a gradient norm of {gradient_norm:g}"
        name = self._not_finite()
        if name is not None:
            reason = f"{name} is not finite after update {self.learner.step}"
        elif self.not_finite_in_a_row >= NOT_FINITE_IN_A_ROW + self.settings.prefetch:
            reason = f"{self.not_finite_in_a_row} batches in a row are not finite, the last with {found}"
        else:
            if self.not_finite_in_a_row == 1:
                self.say(f"a batch is left out: it has {found} ({self.batches_not_finite} so far)")
            return
        self.report(time.monotonic())
        raise Diverged(f"{reason}: nothing of it is published or kept; {ADVICE}. What was learned before is in "
                       f"{self.checkpoint_folder}")  # fmt: skip

    def _not_finite(self) -> str | None:
        """The name of a weight that is not finite, if there is one."""
        found = (first_not_finite(module.state_dict()) for module in self.learner.modules.values())
        return next((name for name in found if name is not None), None)

    def _add_to_sums(self, update: Update, done: bool) -> None:
        values = {
            "updates": 1.0,
            "loss": float(update.loss),
            "mean_q": float(update.mean_q),
            "td_error": float(update.td_error),
            "gradient_norm": float(update.gradient_norm),
            **{name: float(value) for name, value in update.told.items()},
        }
        for name, value in values.items():
            self.sums[name] = self.sums.get(name, 0.0) + (value if done else 0.0)

    def _version_offset(self) -> int:
        """0 on a fresh server. On one that outlived a learner, versions go on above what that one published."""
        held = self.client.call(lambda client: client.fetch_weights(self.settings.table))
        return 0 if held is None else max(0, held[0] + 1 - self.learner.step)


@contextlib.contextmanager
def _closed_when(stop: threading.Event, batches: Any) -> Iterator[None]:
    """Closes the sampler when `stop` is set, so that a learner that waits for its first batch ends as well."""
    left = threading.Event()

    def watch() -> None:
        while not left.is_set():
            if stop.wait(0.1):
                batches.close()
                return

    thread = threading.Thread(target=watch, name="learner-stop", daemon=True)
    thread.start()
    try:
        yield
    finally:
        left.set()
        thread.join()
