"""RLlib with actor functions in place of its rollout workers: its updates by hand, its faults, and that it learns."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from replay_server.actors.fragments import FragmentCollector  # noqa: E402
from replay_server.bench.environments import is_ready  # noqa: E402
from replay_server.bench.main import main as bench  # noqa: E402
from replay_server.bench.papers.nitro.campaign import Campaign  # noqa: E402
from replay_server.bench.papers.nitro.cell import CellName, JobSettings, run_cell  # noqa: E402
from replay_server.bench.papers.nitro.rllib.learner import (  # noqa: E402
    ENVIRONMENT,
    MISSING,
    RllibLearner,
    RllibLost,
    check_rllib,
    rllib_name,
)
from replay_server.bench.papers.nitro.rllib.platform import RllibPlatform  # noqa: E402
from replay_server.bench.papers.nitro.rllib.workers import run_workers_cell  # noqa: E402
from replay_server.bench.papers.nitro.scheme import Scheme  # noqa: E402
from replay_server.learner.algorithms import make_learner, make_settings  # noqa: E402
from replay_server.learner.ppo import Ppo, PpoSettings  # noqa: E402
from replay_server.rl.policy_spec import PolicySpec, policy_spec  # noqa: E402
from replay_server.serverless.backends.backend import FunctionTimeout  # noqa: E402
from replay_server.serverless.backends.in_process import InProcessPlatform  # noqa: E402

needs_rllib = pytest.mark.skipif(not is_ready(ENVIRONMENT), reason=MISSING)
TOLERANCE = 1e-5


@pytest.fixture(scope="module")
def rllib() -> Iterator[RllibLearner]:
    with RllibLearner() as made:
        yield made


def settings_of(env: str = "CartPole-v1", **changes: Any) -> PpoSettings:
    given = {"env": env, "steps": 16, "hidden": 8, "iterations": 1, "minibatch_size": None, "seed": 3} | changes
    made = make_settings("ppo", "default", **given)
    assert isinstance(made, PpoSettings)
    return made


def learner_of(settings: PpoSettings) -> Ppo:
    made = make_learner(settings, policy_spec(settings))
    assert isinstance(made, Ppo)
    return made


def played(learner: Ppo, environments: int = 4) -> dict[str, np.ndarray]:
    collector = FragmentCollector(learner.settings, policy_spec(learner.settings), environments, [5])
    try:
        return collector.collect(learner.network, learner.version).fragments
    finally:
        collector.close()


def by_hand(learner: Ppo, terminated: bool, truncated: bool) -> dict[str, np.ndarray]:
    """One fragment of four steps with rewards 1, 2, 4, 8, in which an episode ends, or not, after the second."""
    fragments = played(learner, 1)
    fragments["reward"][:] = [[1.0, 2.0, 4.0, 8.0]]
    fragments["terminated"][:] = [[False, terminated, False, False]]
    fragments["truncated"][:] = [[False, truncated, False, False]]
    final = fragments["final_observation"][:, :1]
    fragments["final_observation"] = np.repeat(final, 2, axis=1)
    fragments["final_step"] = np.array([[1, 3] if truncated else [3, -1]])
    return fragments


# ---- names and settings ----------------------------------------------------------------------------------------------


def test_every_parameter_has_a_name_in_rllib() -> None:
    pytest.importorskip("mujoco")
    names = {name: rllib_name(name) for name, _ in learner_of(settings_of("Hopper-v5")).network.named_parameters()}
    assert names["policy_body.0.weight"] == "encoder.actor_encoder.net.mlp.0.weight"
    assert names["policy_body.2.bias"] == "encoder.actor_encoder.net.mlp.2.bias"
    assert names["critic_body.2.weight"] == "encoder.critic_encoder.net.mlp.2.weight"
    assert names["policy_head.weight"] == "pi.net.mlp.0.weight"
    assert names["critic_head.bias"] == "vf.net.mlp.0.bias"
    assert names["log_std"] == "pi.log_std"
    assert len(set(names.values())) == len(names) == 13


def test_what_rllib_does_not_have_is_refused() -> None:
    vector, image = PolicySpec((4,), "float32", 2), PolicySpec((4, 84, 84), "uint8", 2)
    check_rllib(settings_of(), vector)
    with pytest.raises(ValueError, match="learns by PPO"):
        check_rllib(make_settings("impact", "default"), vector)
    with pytest.raises(ValueError, match="standardises advantages over the batch"):
        check_rllib(settings_of(standardize_advantages="minibatch"), vector)
    with pytest.raises(ValueError, match="learns from vectors"):
        check_rllib(settings_of(), image)


def test_figure_12_refuses_what_rllib_cannot_learn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["scalers", "--figure", "12", "--folder", str(tmp_path), "--env", "CartPole-v1", "--algo", "impact"]
    assert bench(words) == 2
    assert "RLlib learns by PPO here" in capsys.readouterr().err


def test_figure_12_says_how_rllib_is_had(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REPLAY_PEERS", str(tmp_path / "none"))
    words = ["scalers", "--figure", "12", "--folder", str(tmp_path / "cells"), "--env", "CartPole-v1", "--seeds", "1"]
    assert bench(words) == 1
    assert MISSING in capsys.readouterr().err


def test_what_was_closed_starts_no_rllib() -> None:
    learner = RllibLearner()
    learner.close()
    with pytest.raises(RuntimeError, match="this one was closed"):
        learner.update(learner_of(settings_of()), played(learner_of(settings_of()), 1))


# ---- one update ------------------------------------------------------------------------------------------------------


@needs_rllib
@pytest.mark.parametrize(
    ("terminated", "truncated", "expected"),
    [
        # γ = 0.5, λ = 1, V = 10: targets 4.5, 7, 10.5, 13, with the value of what followed the second step.
        (False, True, (30.25 + 9.0 + 0.25 + 9.0) / 4),
        # Targets 2, 2, 10.5, 13: nothing follows a terminal step.
        (True, False, (64.0 + 64.0 + 0.25 + 9.0) / 4),
        # Targets 4.625, 7.25, 10.5, 13: one episode.
        (False, False, (28.890625 + 7.5625 + 0.25 + 9.0) / 4),
    ],
)
def test_fragments_are_rllibs_episodes(rllib: RllibLearner, terminated: bool, truncated: bool, expected: float) -> None:
    learner = learner_of(settings_of(steps=4, discount=0.5, gae_lambda=1.0))
    with torch.no_grad():
        learner.network.critic_head.weight.zero_()
        learner.network.critic_head.bias.fill_(10.0)
    told = rllib.update(learner, by_hand(learner, terminated, truncated))
    assert told["value_error"] == pytest.approx(expected, rel=TOLERANCE)
    assert told["samples"] == 4
    assert learner.version == 1


@needs_rllib
@pytest.mark.parametrize("env", ["CartPole-v1", "Hopper-v5"])
def test_rllib_has_the_same_networks_losses_and_optimiser(rllib: RllibLearner, env: str) -> None:
    """Its critic learns as ours does but for rounding; its policy's gradients are ours but for advantages' scale."""
    if env.startswith("Hopper"):
        pytest.importorskip("mujoco")
    settings = settings_of(env, steps=128)
    ours, theirs = learner_of(settings), learner_of(settings)
    for _ in range(2):  # The second goes on from Adam's moments, and normalises.
        fragments = played(ours)
        mine, told = dataclasses.asdict(ours.update(fragments)), rllib.update(theirs, fragments)
        for name in ("value_error", "entropy", "kl_coefficient", "optimizer_steps", "staleness"):
            assert told[name] == pytest.approx(mine[name], rel=1e-4, abs=1e-4), name
        assert told["gradient_norm"] == pytest.approx(mine["gradient_norm"], rel=1e-3)
        for (name, one), (_, other) in zip(
            ours.network.named_parameters(), theirs.network.named_parameters(), strict=True
        ):
            if name.startswith("critic"):
                torch.testing.assert_close(one, other, rtol=1e-4, atol=TOLERANCE)
            elif name.endswith("weight"):  # Other advantages by a factor and a shift: the direction stays.
                mine_averaged, averaged = (
                    each.optimizer.state[parameter]["exp_avg"].flatten()
                    for each, parameter in ((ours, one), (theirs, other))
                )
                assert torch.cosine_similarity(mine_averaged, averaged, dim=0) > 0.99, name
                assert float(averaged.norm() / mine_averaged.norm()) == pytest.approx(1.0, abs=0.1), name
        np.testing.assert_array_equal(ours.network.moments.mean, theirs.network.moments.mean)
        assert (ours.version, ours.network.moments.count) == (theirs.version, theirs.network.moments.count)
        theirs.network.load_state_dict(ours.network.state_dict())
        theirs.kl_coefficient = ours.kl_coefficient


@needs_rllib
def test_an_update_whose_rllib_was_killed_can_be_made_again(rllib: RllibLearner) -> None:
    """All that counts came with the update: another process makes the same of it, to the last bit."""
    settings = settings_of(iterations=3, minibatch_size=16)
    first, second = learner_of(settings), learner_of(settings)
    fragments = played(first)
    for _ in range(2):
        rllib.update(first, fragments)
    rllib.update(second, fragments)
    before = [each.clone() for each in second.parameters]
    assert rllib.pid is not None
    os.kill(rllib.pid, signal.SIGKILL)
    with pytest.raises(RllibLost):
        rllib.update(second, fragments)
    assert second.version == 1
    for one, other in zip(before, second.parameters, strict=True):
        assert torch.equal(one, other)
    told = rllib.update(second, fragments)
    ends = fragments["terminated"] | fragments["truncated"]
    ends[:, -1] = True
    # 3 passes over 64 steps, and one more of each episode, in minibatches of 16.
    assert told["optimizer_steps"] == -(-3 * (64 + int(ends.sum())) // 16)
    for one, other in zip(first.parameters, second.parameters, strict=True):
        assert torch.equal(one, other)


# ---- functions -------------------------------------------------------------------------------------------------------


@pytest.fixture
def platform(rllib: RllibLearner) -> RllibPlatform:
    """All functions in this process, and learner functions by the module's RLlib."""
    return RllibPlatform(InProcessPlatform(), rllib)


JOB = JobSettings(
    rounds=3, steps=32, actors=3, actors_max=4, eval_every=0, final_episodes=2, learner="rllib",
    setting={"hidden": 8, "minibatch_size": 32, "iterations": 2},
)  # fmt: skip


@needs_rllib
def test_nitro_scales_actors_by_the_curvature_of_rllibs_policy(platform: RllibPlatform) -> None:
    scheme = Scheme("nitro", (("least", 1),))
    cell = run_cell(CellName("CartPole-v1", scheme, 1), JOB, platform)
    assert cell.counts[0] == 3  # 4 · 0.96, rounded down
    assert all(1 <= count <= 4 for count in cell.counts)
    assert cell.steps == tuple(32 * sum(cell.counts[: n + 1]) for n in range(3))
    for statistics, seconds in zip(cell.statistics, cell.learner_cpu_s, strict=True):
        assert np.isfinite(statistics["curvature_max"] or np.nan)
        assert 0.0 < (statistics["rllib_cpu_s"] or 0.0) < seconds
    assert cell.round_s[0] > cell.learner_s[0] > 0.0


@pytest.mark.slow
@needs_rllib
def test_a_job_whose_rllib_is_killed_ends_as_one_that_nobody_disturbed(platform: RllibPlatform) -> None:
    name = CellName("CartPole-v1", Scheme("fixed"), 2)
    quiet = run_cell(name, JOB, platform)

    def kill(progress: Any) -> None:
        if progress.round == 1 and platform.rllib.pid is not None:
            os.kill(platform.rllib.pid, signal.SIGKILL)

    disturbed = run_cell(name, JOB, platform, on_round=kill)
    assert disturbed.final_scores == quiet.final_scores
    without_times = [{k: v for k, v in each.items() if k != "rllib_cpu_s"} for each in quiet.statistics]
    assert [{k: v for k, v in each.items() if k != "rllib_cpu_s"} for each in disturbed.statistics] == without_times


@pytest.mark.slow
@needs_rllib
def test_an_update_that_takes_too_long_is_ended(platform: RllibPlatform, monkeypatch: pytest.MonkeyPatch) -> None:
    """RLlib's process is stopped in its update; the attempt after that has another, and the job goes on."""
    job = dataclasses.replace(JOB, rounds=2)
    timeouts: list[str] = []
    invoke = platform.invoke
    stopped = threading.Event()

    def short(payload: bytes, timeout_s: float) -> bytes:
        if stopped.is_set() and not timeouts:
            timeout_s = 1.0
        try:
            return invoke(payload, timeout_s)
        except FunctionTimeout as error:
            timeouts.append(str(error))
            raise

    def stop(progress: Any) -> None:
        if progress.round == 1 and platform.rllib.pid is not None:
            os.kill(platform.rllib.pid, signal.SIGSTOP)
            stopped.set()

    monkeypatch.setattr(platform, "invoke", short)
    cell = run_cell(CellName("CartPole-v1", Scheme("fixed"), 1), job, platform, on_round=stop)
    assert timeouts == ["RLlib's update took longer than 1.0 s, and was ended"]
    assert cell.counts == (3, 3)


@pytest.mark.slow
@needs_rllib
def test_figure_12_compares_rllib_with_and_without_nitro(tmp_path: Path) -> None:
    job = "--seeds 1 --rounds 2 --steps 16 --actors 2 --actors-max 10 --eval-every 0 --final-episodes 2"
    words = f"scalers --figure 12 --env CartPole-v1 {job} --set hidden=8 minibatch_size=16".split()
    words += ["--folder", str(tmp_path / "cells"), "--json", str(tmp_path / "12.json")]
    assert bench(words) == 0
    content = json.loads((tmp_path / "12.json").read_text())
    assert set(content["tables"]["CartPole-v1"]["rows"]) == {"workers", "fixed", "fixed@reserved", "nitro", "decay"}
    assert json.loads((tmp_path / "cells" / "settings.json").read_text())["learner"] == "rllib"
    # Another learner is another comparison.
    assert bench([*words, "--learner", "rllib", "--report"]) == 0
    own = ["scalers", *words[3:]]
    assert bench(own) == 2


@pytest.mark.slow
@pytest.mark.learning
@needs_rllib
def test_rllib_learns_cartpole_from_actor_functions(platform: RllibPlatform) -> None:
    """Uniformly random actions score 22 on average."""
    job = JobSettings(rounds=15, steps=128, actors=8, eval_every=0, final_episodes=20, learner="rllib")
    cell = run_cell(CellName("CartPole-v1", Scheme("fixed"), 1), job, platform)
    assert cell.final > 150.0


# ---- RLlib's own workers ---------------------------------------------------------------------------------------------


def test_rllibs_own_workers_need_rllib(tmp_path: Path) -> None:
    for job, word in ((JobSettings(), "workers"), (JOB, "workers@reserved")):
        with pytest.raises(ValueError, match="RLlib's own workers need --learner rllib"):
            Campaign(tmp_path / "cells", job, ["CartPole-v1"], [Scheme.parse(word)], [1])


@pytest.mark.slow
@needs_rllib
@pytest.mark.parametrize("normalizes", [True, False])
def test_rllib_with_its_own_workers_is_a_cell_like_others(normalizes: bool) -> None:
    job = dataclasses.replace(JOB, eval_every=2, setting={**JOB.setting, "normalize_observations": normalizes})
    told: list[int] = []
    cell = run_workers_cell(CellName("CartPole-v1", Scheme("workers"), 1), job, told.append)
    assert told == [1, 2, 3]
    assert cell.counts == (3, 3, 3)
    assert 96 <= cell.steps[0] <= 99  # RLlib may play on for a step of each environment.
    assert [number for number, _ in cell.evaluations] == [2]
    assert len(cell.final_scores) == 2
    assert cell.final == pytest.approx(np.mean(cell.final_scores))
    assert all(0.0 < learner < whole for learner, whole in zip(cell.learner_s, cell.round_s, strict=True))
    assert cell.cost[0] > 0.0
    assert list(cell.cost) == sorted(cell.cost)
