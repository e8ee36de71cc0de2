"""The learner's loop: batches in, priorities and weights out, with reports and checkpoints on the way."""

from __future__ import annotations

import contextlib
import functools
import json
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from redis.exceptions import ConnectionError as StoreLost
from redis.exceptions import TimeoutError as StoreSilent

import replay_server as rs
from replay_server.learner.checkpoint import newest_checkpoint, read_checkpoint, write_checkpoint
from replay_server.learner.dqn import Dqn, Update, choose_device, learning_rate_at
from replay_server.learner.execution import choose_execution
from replay_server.learner.metrics import Metrics
from replay_server.rl.environment_spec import environment_spec
from replay_server.rl.networks import make_network
from replay_server.rl.run_directory import RunDirectory
from replay_server.rl.settings import ApexSettings
from replay_server.rl.tables import apex_table
from replay_server.rl.weights import module_arrays

REPORT_EVERY_S = 1.0
"""Seconds between reports: the hash <table>:learner on the server (decimal strings), metrics.jsonl, TensorBoard."""


def run_learner(
    settings: ApexSettings, server_url: str, run_directory: Path, stop: threading.Event, tensorboard: bool = True
) -> int:
    """Learns until `stop` is set or `settings.max_updates` learner steps are done; returns the learner step reached.

    Creates the table if it is not there, resumes from the newest checkpoint if `settings.resume`, publishes weights
    under the table's name, and always leaves a checkpoint, also when it ends with an error. Raises ConnectionLost if
    the server goes away, and ValueError for settings that cannot be (a device, or a checkpoint of another network).
    """
    if settings.learner_threads > 0:
        torch.set_num_threads(settings.learner_threads)
    spec = environment_spec(settings)
    device = choose_device(settings.device)
    network = functools.partial(make_network, settings, spec)
    execution = choose_execution(settings, spec, network, device)
    RunDirectory(run_directory).add_measured(execution.as_values())
    learner = Dqn(settings, network, device, execution.precision)
    checkpoint_folder = run_directory / "checkpoints"
    resumed = newest_checkpoint(checkpoint_folder) if settings.resume else None
    if resumed is not None:
        read_checkpoint(resumed, learner)

    with contextlib.ExitStack() as stack:
        client = stack.enter_context(rs.Client(server_url, shared_memory=True))
        client.create_table(apex_table(settings, spec))
        metrics = Metrics(run_directory, "learner", tensorboard)
        stack.callback(metrics.close)
        loop = _Loop(settings, learner, client, metrics, checkpoint_folder)
        # Runs first of all on the way out, whatever ends the loop: a lost server must not lose the learning.
        stack.callback(loop.checkpoint)
        loop.say(execution.told())
        loop.publish()
        if not loop.finished():
            batches = stack.enter_context(
                client.sampler(
                    settings.table,
                    settings.batch_size,
                    prefetch=settings.prefetch,
                    importance_sampling_exponent=settings.importance_sampling_exponent,
                )
            )
            stack.enter_context(_closed_when(stop, batches))
            loop.run(batches, stop)
    return learner.step


class _Loop:
    def __init__(
        self, settings: ApexSettings, learner: Dqn, client: rs.Client, metrics: Metrics, checkpoint_folder: Path
    ) -> None:
        self.settings = settings
        self.learner = learner
        self.client = client
        self.metrics = metrics
        self.checkpoint_folder = checkpoint_folder
        self.version_offset = self._version_offset()
        self.version = -1
        self.sums: dict[str, torch.Tensor] = {}
        self.updates_since_report = 0
        self.waited_s = 0.0
        # Of the whole run. Where the device works by itself, training ends in the write-back that waits for it.
        self.seconds = {"sampling_s": 0.0, "training_s": 0.0, "update_s": 0.0, "publish_s": 0.0}
        self.report_time = self.checkpoint_time = time.monotonic()

    def run(self, batches: Iterator[Any], stop: threading.Event) -> None:
        """One turn per batch: update, write the priorities back, publish."""
        settings, learner = self.settings, self.learner
        pending: tuple[rs.Batch, Update] | None = None
        waiting_since = time.monotonic()
        for batch in batches:
            waited_s = time.monotonic() - waiting_since
            self.waited_s += waited_s
            self.seconds["sampling_s"] += waited_s
            with self._timed("training_s"):
                update = learner.update(batch.data, batch.weights)
            # The previous update's priorities: reading this one's would wait for the device to finish it.
            if pending is not None:
                with self._timed("update_s"):
                    self._write_back(*pending)
            pending = batch, update
            self._add_to_sums(update)
            if learner.step % settings.publish_every == 0:
                with self._timed("publish_s"):
                    self.publish()
            now = time.monotonic()
            if now - self.report_time >= REPORT_EVERY_S:
                self.report(now)
            if now - self.checkpoint_time >= settings.checkpoint_every_s:
                self.checkpoint()
            if self.finished() or stop.is_set():
                break
            waiting_since = time.monotonic()
        if pending is not None:
            self._write_back(*pending)
        self.publish()
        self.report(time.monotonic())

    def say(self, text: str) -> None:
        """Tells people something: on standard output, and for the job in the list <table>:messages on the server."""
        print(text, flush=True)
        message = json.dumps({"part": "learner", "text": text})
        self._store(lambda store: store.rpush(f"{self.settings.table}:messages", message))

    @contextlib.contextmanager
    def _timed(self, name: str) -> Iterator[None]:
        begin = time.monotonic()
        yield
        self.seconds[name] += time.monotonic() - begin

    def finished(self) -> bool:
        return self.settings.max_updates is not None and self.learner.step >= self.settings.max_updates

    def publish(self) -> None:
        """Publishes the online network; its version is the learner step (see `_version_offset`)."""
        version = self.learner.step + self.version_offset
        if version <= self.version:
            return
        arrays = module_arrays(self.learner.online)
        self.version = self.client.publish_weights(self.settings.table, arrays, version=version)

    def report(self, now: float) -> None:
        """Writes the means since the last report to the server, metrics.jsonl and TensorBoard."""
        elapsed_s, updates = now - self.report_time, self.updates_since_report
        self.report_time = now
        if updates == 0 or elapsed_s <= 0:
            return
        values: dict[str, float | int] = {name: float(total) / updates for name, total in self.sums.items()}
        values["batches_per_s"] = updates / elapsed_s
        values["waiting_share"] = min(1.0, self.waited_s / elapsed_s)
        values["learning_rate"] = learning_rate_at(self.learner.step, self.settings)
        values["version"] = self.version
        values |= {name: round(seconds, 4) for name, seconds in self.seconds.items()}
        self.sums, self.updates_since_report, self.waited_s = {}, 0, 0.0
        self.metrics.write(self.learner.step, values)
        report = {name: f"{value:.6g}" if isinstance(value, float) else str(value) for name, value in values.items()}
        fields: dict[Any, Any] = {"updates": str(self.learner.step), **report}
        self._store(lambda store: store.hset(f"{self.settings.table}:learner", mapping=fields))

    def _store(self, write: Callable[[Any], Any]) -> None:
        try:
            write(self.client.redis)
        except (StoreLost, StoreSilent) as error:
            raise rs.ConnectionLost(f"the learner's report found no server: {error}") from error

    def checkpoint(self) -> None:
        self.checkpoint_time = time.monotonic()
        counters = {"version": self.version, "env": self.settings.env, "seed": self.settings.seed}
        write_checkpoint(self.checkpoint_folder, self.learner, counters, self.settings.checkpoints_kept)

    def _write_back(self, batch: rs.Batch, update: Update) -> None:
        self.client.update_priorities(
            self.settings.table, batch.ids, update.priorities.cpu().numpy().astype(np.float64)
        )

    def _add_to_sums(self, update: Update) -> None:
        # Summed on the device, so that nothing waits for it between reports.
        values = {
            "loss": update.loss,
            "mean_q": update.mean_q,
            "td_error": update.td_error,
            "gradient_norm": update.gradient_norm,
        }
        for name, value in values.items():
            self.sums[name] = self.sums[name] + value if name in self.sums else value.clone()
        self.updates_since_report += 1

    def _version_offset(self) -> int:
        """0 on a fresh server. On one that outlived a learner, versions go on above what that one published."""
        held = self.client.fetch_weights(self.settings.table)
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
