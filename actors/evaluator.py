"""Scores a network on full games: no episodes by life, rewards unclipped, FIRE after each lost life."""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

import replay_server as rs
from replay_server.actors.play_games import Watch, game_seeds, play_games
from replay_server.actors.rollout import Stop, as_callable
from replay_server.rl.acting import make_acting
from replay_server.rl.connection import PersistentClient
from replay_server.rl.environment_spec import environment_spec
from replay_server.rl.networks import make_acting_network
from replay_server.rl.observations import Observations, map_tree
from replay_server.rl.process_memory import keep_freed_memory
from replay_server.rl.settings import ApexSettings
from replay_server.rl.shared_settings import check_settings_of_run
from replay_server.rl.weights import load_arrays

POLL_EVERY_S = 0.25
REPORT_EVERY_S = 1.0


@dataclass(frozen=True)
class Evaluation:
    """One evaluation of one version of the weights."""

    version: int
    score_mean: float
    score_std: float
    score_min: float
    score_max: float
    episodes: int
    epsilon: float
    sticky_actions: float
    seconds: float


def evaluate(
    network: nn.Module,
    settings: ApexSettings,
    episodes: int,
    seed: int,
    epsilon: float | None = None,
    stop: Stop = lambda: False,
    watch: Watch | None = None,
) -> list[float]:
    """Plays `episodes` whole games with `network` (on the CPU) and returns their unclipped scores.

    Actions are the best ones but for the share `epsilon` (None = ``settings.eval_epsilon``). Returns [] if `stop` came
    first. Runs on one torch thread: batches are so small that more only wait for each other. `watch`: see
    `replay_server.actors.play_games.play_games`.
    """
    settings = dataclasses.replace(settings, max_frames_per_episode=settings.eval_max_frames_per_episode)
    acting = make_acting(environment_spec(settings))
    share = settings.eval_epsilon if epsilon is None else epsilon
    environments_seed, exploration_seed = game_seeds(seed)
    generator = np.random.default_rng(exploration_seed)

    def act(observations: Observations) -> np.ndarray:
        with torch.inference_mode():
            outputs = network(map_tree(torch.from_numpy, observations)).numpy()
        return acting.play(outputs, share, generator)

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return play_games(act, settings, episodes, environments_seed, as_callable(stop), watch)
    finally:
        torch.set_num_threads(threads)


def run_evaluator(
    settings: ApexSettings,
    server_url: str,
    stop: Stop,
    on_result: Callable[[Evaluation, nn.Module], None] | None = None,
    *,
    patience_s: float = 30.0,
) -> list[Evaluation]:
    """Evaluates published weights every `eval_every_updates` learner steps until `stop`; uses one torch thread.

    Each result is appended, as JSON, to the list ``<table>:evaluations`` on the server, set as the hash
    ``<table>:evaluator``, and passed to `on_result` with the network that earned it. Versions are learner steps. The
    hash's ``updated_at`` (Unix time) is set about once a second, also while games are played.
    When the table is closed, the job is over: it evaluates the newest weights, where it has not yet, and raises
    TableClosed. Raises ConnectionLost if the server stayed away for `patience_s` seconds, SettingsDiffer for other
    settings than the run's.
    """
    torch.set_num_threads(1)
    keep_freed_memory()
    network = make_acting_network(settings, environment_spec(settings))
    results: list[Evaluation] = []
    last, due = -1, settings.eval_every_updates
    client = PersistentClient(
        server_url,
        patience_s=patience_s,
        stop=as_callable(stop),
        on_connect=lambda client: check_settings_of_run(client, settings),
    )
    stopped = _reporting(as_callable(stop), client, settings.table)
    try:
        while not stopped():
            # Looked at before the weights: those of a closed table are the last.
            closed = client.call(functools.partial(_closed, settings.table))
            # Asking for versions past due − 1 keeps all the weights between two evaluations off the wire.
            newer_than = due - 1 if closed is None else last
            fetched = client.call(functools.partial(_fetch, settings.table, newer_than))
            if fetched is None and closed is not None:
                raise closed
            if fetched is None:
                time.sleep(POLL_EVERY_S)
                continue
            version, arrays = fetched
            load_arrays(network, arrays)
            result = _evaluate_version(network, settings, version, stopped)
            if result is None:
                break
            last, due = version, version + settings.eval_every_updates
            results.append(result)
            client.call(functools.partial(_publish, settings.table, result, len(results)))
            if on_result is not None:
                on_result(result, network)
        return results
    finally:
        client.close()


def _reporting(stopped: Callable[[], bool], client: PersistentClient, table: str) -> Callable[[], bool]:
    """`stopped`, which is asked before each step of the games. It also reports that this evaluator lives."""
    reported_at = -math.inf

    def ask() -> bool:
        nonlocal reported_at
        if stopped():
            return True
        if time.monotonic() - reported_at >= REPORT_EVERY_S:
            client.call(lambda client: client.redis.hset(f"{table}:evaluator", "updated_at", str(time.time())))
            reported_at = time.monotonic()
        return False

    return ask


def _evaluate_version(
    network: nn.Module, settings: ApexSettings, version: int, stopped: Callable[[], bool]
) -> Evaluation | None:
    began = time.monotonic()
    # The version is part of the seed, so that no two evaluations play the same starts.
    seed = int(np.random.SeedSequence([settings.seed, version]).generate_state(1)[0])
    scores = evaluate(network, settings, settings.eval_episodes, seed, stop=stopped)
    if not scores:
        return None
    return Evaluation(
        version=version,
        score_mean=float(np.mean(scores)),
        score_std=float(np.std(scores)),
        score_min=min(scores),
        score_max=max(scores),
        episodes=len(scores),
        epsilon=settings.eval_epsilon,
        sticky_actions=settings.sticky_actions,
        seconds=time.monotonic() - began,
    )


def _fetch(table: str, newer_than: int, client: rs.Client) -> tuple[int, dict[str, np.ndarray]] | None:
    return client.fetch_weights(table, newer_than=newer_than)


def _closed(table: str, client: rs.Client) -> rs.TableClosed | None:
    """What says that the table is closed; None while it is open, or not there yet."""
    try:
        info = client.info(table)
    except rs.TableNotFound:
        return None
    return rs.TableClosed(f"table {table!r} is closed: {info['closed_reason']}") if info["closed"] else None


def _publish(table: str, result: Evaluation, evaluations: int, client: rs.Client) -> None:
    row = asdict(result)
    client.redis.rpush(f"{table}:evaluations", json.dumps(row))
    fields: dict[Any, str] = {name: str(value) for name, value in row.items()}
    client.redis.hset(f"{table}:evaluator", mapping={**fields, "evaluations": str(evaluations)})
