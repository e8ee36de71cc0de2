"""Whole games, scored: what every evaluation plays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from replay_server.actors.envs import EpisodeScores, make_environments
from replay_server.rl.environment_spec import EnvironmentSettings
from replay_server.rl.observations import Observations, rows

GAMES_AT_A_TIME = 10
"""Played side by side."""

Act = Callable[[Observations], np.ndarray]
"""Actions (K, …) for the observations (K, …) of the environments that play."""
Watch = Callable[[np.ndarray, float], Any]
"""Is given each picture of a game, uint8 (H, W, 3), and how many of them make a second."""


def game_seeds(seed: int) -> list[np.random.SeedSequence]:
    """Seeds of the environments, and of the actions, of the games of that number."""
    return np.random.SeedSequence([seed, 0xE7A1]).spawn(2)


def play_games(
    act: Act,
    settings: EnvironmentSettings,
    episodes: int,
    seed: np.random.SeedSequence,
    stopped: Callable[[], bool] = lambda: False,
    watch: Watch | None = None,
) -> list[float]:
    """Plays `episodes` whole games; returns their unclipped scores, or [] if `stopped` came first.

    Each environment plays a number of games fixed beforehand: taking the first games to finish would favour short ones.
    The first game of the first environment is shown to `watch`.
    """
    width = min(episodes, GAMES_AT_A_TIME)
    quota = np.full(width, episodes // width)
    quota[: episodes % width] += 1
    environments = make_environments(settings, width, seed, shown=watch is not None)
    try:
        totals = EpisodeScores(width)
        scores: list[float] = []
        is_shown, actions = watch is not None, np.zeros(0)
        observations = environments.reset()
        while quota.any():
            if stopped():
                return []
            if watch is not None and is_shown:
                watch(environments.picture(), environments.pictures_per_s)
            playing = np.flatnonzero(quota)
            chosen = act(rows(observations, playing))
            if not len(actions):
                actions = np.zeros((width, *chosen.shape[1:]), chosen.dtype)
            actions[playing] = chosen
            step = environments.step(environments.forced(actions))
            for environment, score in totals.add(step):
                if quota[environment]:
                    quota[environment] -= 1
                    scores.append(score)
                if watch is not None and is_shown and environment == 0:
                    watch(environments.picture(), environments.pictures_per_s)
                    is_shown = False
            observations = step.observations
        return scores
    finally:
        environments.close()
