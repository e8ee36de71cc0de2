"""Whole games, scored: what every evaluation plays."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import numpy as np

from replay_server.actors.environment_steps import Environments
from replay_server.actors.envs import EpisodeScores, make_environments
from replay_server.rl.environment_spec import EnvironmentSettings
from replay_server.rl.observations import Observations, joined

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

    An environment whose game has ended begins another one while there are games to begin, and then stands still: one
    long game costs the time of one. Every game that begins is finished and counts, so short ones are not favoured.
    The first game of the first environment is shown to `watch`. No game is longer than
    ``settings.max_frames_per_episode`` (frames on Atari, else steps), so that a policy that goes round in circles in an
    environment without a time limit does not play for ever.
    """
    seeds = seed.spawn(min(episodes, GAMES_AT_A_TIME))
    to_begin = episodes - len(seeds)
    scores: list[float] = []
    with ExitStack() as opened:
        environments: list[Environments] = []
        for place, each in enumerate(seeds):
            if stopped():
                return []
            environments.append(make_environments(settings, 1, each, shown=watch is not None and place == 0, cut=True))
            opened.callback(environments[-1].close)
        totals = [EpisodeScores(1) for _ in environments]
        observations = [environment.reset() for environment in environments]
        playing = list(range(len(environments)))
        is_shown = watch is not None
        while playing:
            if stopped():
                return []
            if watch is not None and is_shown:
                watch(environments[0].picture(), environments[0].pictures_per_s)
            chosen = act(joined([observations[place] for place in playing]))
            for row, place in enumerate(playing[:]):
                environment = environments[place]
                step = environment.step(environment.forced(chosen[row : row + 1]))
                observations[place] = step.observations
                ended = totals[place].add(step)
                if not ended:
                    continue
                scores += [score for _, score in ended]
                if watch is not None and is_shown and place == 0:
                    watch(environment.picture(), environment.pictures_per_s)
                    is_shown = False
                if to_begin:
                    to_begin -= 1
                else:
                    playing.remove(place)
        return scores
