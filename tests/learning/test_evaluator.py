"""Evaluation plays whole games, counts every environment the same, and reports through the server."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import gymnasium
import numpy as np
import pytest
import torch
from torch import nn

import replay_server as rs
from replay_server.actors.evaluator import Evaluation, evaluate, run_evaluator
from replay_server.actors.play_games import GAMES_AT_A_TIME
from replay_server.jobs.evaluation import final_evaluation, run_evaluations
from replay_server.learner.checkpoint import write_best, write_checkpoint
from replay_server.learner.replay_algorithms import make_learner
from replay_server.learner.replay_learner import choose_device
from replay_server.rl.environment_spec import environment_spec, told_without_limit
from replay_server.rl.networks import make_network
from replay_server.rl.settings import ApexSettings
from replay_server.rl.weights import module_arrays


class CoinGame(gymnasium.Env):
    """Lasts 1 or 60 steps by an even chance; each step pays the action. Shows (step, length)."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(3)
    steps = 0
    """Of all games."""

    def _observation(self) -> np.ndarray:
        return np.array([self.step_number, self.length], np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.step_number = 0
        self.length = int(self.np_random.choice([1, 60]))
        return self._observation(), {}

    def step(self, action):
        self.step_number += 1
        CoinGame.steps += 1
        return self._observation(), float(action), self.step_number >= self.length, False, {}


class Treadmill(CoinGame):
    """Never ends by itself, and fails where it is played as if it did."""

    def step(self, action):
        observation, reward, *_ = super().step(action)
        assert self.step_number < 1_000, "the game goes on for ever"
        return observation, reward, False, False, {}


gymnasium.register("CoinGame-v0", CoinGame)
gymnasium.register("Treadmill-v0", Treadmill)
gymnasium.register("ShortTreadmill-v0", Treadmill, max_episode_steps=30)


class Prefers(nn.Module):
    """Always the same action."""

    def __init__(self, action: int) -> None:
        super().__init__()
        self.action = action

    def forward(self, observations: torch.Tensor) -> torch.Tensor:
        return nn.functional.one_hot(torch.full((len(observations),), self.action), 3).float()


COIN_GAME = ApexSettings(env="CoinGame-v0", eval_episodes=4, eval_every_updates=10, hidden=16)


def test_scores_are_those_of_the_greedy_actions_and_unclipped() -> None:
    assert set(evaluate(Prefers(2), COIN_GAME, 20, seed=0)) <= {2.0, 120.0}
    assert set(evaluate(Prefers(0), COIN_GAME, 20, seed=0)) == {0.0}


def test_exactly_the_asked_number_of_games_is_scored() -> None:
    for episodes in (1, 3, GAMES_AT_A_TIME, GAMES_AT_A_TIME + 7):
        assert len(evaluate(Prefers(1), COIN_GAME, episodes, seed=episodes)) == episodes


def test_short_games_are_not_favoured_by_playing_side_by_side() -> None:
    scores = evaluate(Prefers(1), COIN_GAME, 400, seed=1)
    assert 0.4 < np.mean(np.array(scores) > 1.0) < 0.6


def test_an_environment_stands_still_when_its_games_are_over() -> None:
    before = CoinGame.steps
    for episodes in (2, GAMES_AT_A_TIME, GAMES_AT_A_TIME + 7):
        scores = evaluate(Prefers(1), COIN_GAME, episodes, seed=episodes)
        assert len(set(scores)) == 2  # games of both lengths; with action 1 a score is a length
        assert CoinGame.steps - before == sum(scores)
        before = CoinGame.steps


def test_games_that_never_end_are_cut() -> None:
    settings = ApexSettings(env="Treadmill-v0", eval_max_frames_per_episode=40)
    assert evaluate(Prefers(2), settings, GAMES_AT_A_TIME + 3, seed=1) == [80.0] * (GAMES_AT_A_TIME + 3)
    settings.env = "ShortTreadmill-v0"
    assert evaluate(Prefers(2), settings, 2, seed=1) == [60.0] * 2
    assert "cut after 40 steps" in told_without_limit(ApexSettings(env="Treadmill-v0", eval_max_frames_per_episode=40))
    assert told_without_limit(settings) == ""


def test_epsilon_one_ignores_the_network() -> None:
    assert np.mean(evaluate(Prefers(0), COIN_GAME, 20, seed=2, epsilon=1.0)) > 0.0


def test_the_same_seed_gives_the_same_scores() -> None:
    first, again, other = (evaluate(Prefers(1), COIN_GAME, 30, seed=seed) for seed in (3, 3, 4))
    assert first == again
    assert first != other


def test_a_stop_signal_ends_an_evaluation_without_half_a_result() -> None:
    stop = threading.Event()
    stop.set()
    assert evaluate(Prefers(1), COIN_GAME, 10, seed=5, stop=stop) == []


def test_breakout_scores_whole_games_of_five_lives() -> None:
    settings = ApexSettings(env="ALE/Breakout-v5", eval_max_frames_per_episode=3_000)
    network = make_network(settings, environment_spec(settings))
    scores = evaluate(network, settings, 2, seed=6, epsilon=0.5)
    assert len(scores) == 2
    assert all(score >= 0 for score in scores)


def test_the_evaluator_waits_for_due_versions_and_reports_each_once() -> None:
    network = make_network(COIN_GAME, environment_spec(COIN_GAME))
    stop, results = threading.Event(), []
    with rs.Server() as server, rs.Client(server.url) as client:

        def keep(result: Evaluation, evaluated: nn.Module) -> None:
            assert module_arrays(evaluated).keys() == module_arrays(network).keys()
            results.append(result.version)
            if result.version == 10:
                client.publish_weights("apex", module_arrays(network), version=15)  # not due before 20
                client.publish_weights("apex", module_arrays(network), version=25)
            else:
                stop.set()

        client.publish_weights("apex", module_arrays(network), version=5)
        threading.Timer(0.6, lambda: client.publish_weights("apex", module_arrays(network), version=10)).start()
        returned = run_evaluator(COIN_GAME, server.url, stop, keep)
        stored = [json.loads(row) for row in client.redis.lrange("apex:evaluations", 0, -1)]
        newest = client.redis.hgetall("apex:evaluator")
    assert results == [10, 25]
    assert [row["version"] for row in stored] == [10, 25]
    assert stored[0]["episodes"] == 4
    assert stored[1]["score_mean"] == returned[1].score_mean
    assert newest[b"version"] == b"25"
    assert newest[b"evaluations"] == b"2"


def test_the_evaluator_reports_that_it_lives_while_it_waits_and_while_it_plays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("replay_server.actors.evaluator.REPORT_EVERY_S", 0.0)
    network = make_network(COIN_GAME, environment_spec(COIN_GAME))
    with rs.Server() as server, rs.Client(server.url) as client:
        reports: list[float] = []

        def stop() -> bool:
            told = client.redis.hget("apex:evaluator", "updated_at")
            if told is not None:
                reports.append(float(told))
            if len(reports) == 3:  # it waited until now; a game is of one step, or of 60
                client.publish_weights("apex", module_arrays(network), version=10)
            return len(reports) > 30

        assert run_evaluator(COIN_GAME, server.url, stop) == []
    assert len(set(reports)) > 25


def test_the_weights_at_the_close_of_the_table_are_the_last_that_are_evaluated() -> None:
    network = make_network(COIN_GAME, environment_spec(COIN_GAME))
    with rs.Server() as server, rs.Client(server.url) as client:
        client.create_table(rs.Table("apex", 10, {"x": rs.Column("int64")}))
        client.publish_weights("apex", module_arrays(network), version=10)
        results: list[int] = []

        def keep(result: Evaluation, _: nn.Module) -> None:
            results.append(result.version)
            if result.version == 10:
                client.publish_weights("apex", module_arrays(network), version=12)  # not due, but the last
                client.close_table("apex", "the run is over")

        for _ in range(2):  # one that begins late plays with them, too
            with pytest.raises(rs.TableClosed, match="the run is over"):
                run_evaluator(COIN_GAME, server.url, threading.Event(), keep)
    assert results == [10, 12, 12]


@pytest.mark.parametrize("name", ["counters.json", "network.safetensors"])
def test_a_damaged_best_network_is_passed_over_and_replaced(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    folder, spec = tmp_path / "checkpoints", environment_spec(COIN_GAME)
    network = make_network(COIN_GAME, spec)
    damaged = write_best(folder, network.state_dict(), {"step": 5, "score_mean": 1e9}) / name
    write_checkpoint(folder, make_learner(COIN_GAME, spec, choose_device("cpu")), {})
    damaged.write_bytes(damaged.read_bytes()[:20])
    final = final_evaluation(COIN_GAME, tmp_path)
    assert final is not None
    assert final["checkpoint"] == "checkpoints/step_0"
    assert f"best is passed over: {name} is damaged" in capsys.readouterr().err
    with rs.Server() as server, rs.Client(server.url) as client:
        client.create_table(rs.Table("apex", 10, {"x": rs.Column("int64")}))
        client.publish_weights("apex", module_arrays(network), version=10)
        client.close_table("apex")
        with pytest.raises(rs.TableClosed):
            run_evaluations(COIN_GAME, server.url, tmp_path, threading.Event())
    final = final_evaluation(COIN_GAME, tmp_path)
    assert final is not None
    assert (final["checkpoint"], final["checkpoint_step"]) == ("checkpoints/best", 10)


def test_weights_of_another_environment_end_the_evaluator_with_the_reason() -> None:
    settings = ApexSettings(env="CartPole-v1", hidden=16)
    with rs.Server() as server, rs.Client(server.url) as client:
        client.publish_weights("apex", module_arrays(make_network(settings, environment_spec(settings))), version=50)
        with pytest.raises(ValueError, match="weights of another network"):
            run_evaluator(COIN_GAME, server.url, threading.Event())
