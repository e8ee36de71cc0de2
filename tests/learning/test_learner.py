"""The learner's update: loss, priorities, target network, optimizer and checkpoints, against values made by hand."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from replay_server.learner import checkpoint as saving  # noqa: E402
from replay_server.learner.dqn import Dqn, double_dqn_loss  # noqa: E402
from replay_server.learner.replay_learner import learning_rate_at, new_priorities  # noqa: E402
from replay_server.rl.environment_spec import EnvironmentSpec  # noqa: E402
from replay_server.rl.networks import make_network  # noqa: E402
from replay_server.rl.observations import Leaf  # noqa: E402
from replay_server.rl.settings import ApexSettings  # noqa: E402

SPEC = EnvironmentSpec(Leaf((3,)), 2)
SETTINGS = ApexSettings(env="CartPole-v1", hidden=8, batch_size=4, target_update_every=3, optimizer="adam")


class QTable(torch.nn.Module):
    """Q values looked up by the first feature of an observation."""

    def __init__(self, values: list[list[float]]) -> None:
        super().__init__()
        self.values = torch.nn.Parameter(torch.tensor(values))

    def forward(self, observations):
        return self.values[observations[:, 0].long()]


def lookup_batch(**columns):
    batch = {
        "obs": torch.tensor([[0.0], [1.0]]),
        "next_obs": torch.tensor([[1.0], [0.0]]),
        "action": torch.tensor([0, 1]),
        "reward": torch.tensor([1.0, -2.0]),
        "discount": torch.tensor([0.9, 0.0]),
    }
    return {**batch, **columns}


def random_batch(seed: int, size: int = 4) -> tuple[dict[str, np.ndarray], np.ndarray]:
    generator = np.random.default_rng(seed)
    data = {
        "obs": generator.normal(size=(size, 3)).astype(np.float32),
        "next_obs": generator.normal(size=(size, 3)).astype(np.float32),
        "action": generator.integers(0, 2, size),
        "reward": generator.normal(size=size).astype(np.float32),
        "discount": np.full(size, 0.97, np.float32),
    }
    return data, generator.uniform(0.2, 1.0, size).astype(np.float32)


def make_learner(**changes) -> Dqn:
    settings = dataclasses.replace(SETTINGS, **changes)
    return Dqn(settings, lambda: make_network(settings, SPEC), torch.device("cpu"))


def parameters_of(learner: Dqn) -> list[np.ndarray]:
    return [parameter.detach().numpy().copy() for parameter in learner.parameters]


def test_loss_is_half_the_weighted_squared_double_dqn_error():
    online = QTable([[1.0, 2.0], [4.0, 3.0]])
    target = QTable([[10.0, 20.0], [30.0, 40.0]])
    loss = double_dqn_loss(online, target, lookup_batch(), torch.tensor([0.5, 1.0]))
    # First: the online network prefers action 0 in state 1 (4 > 3), the target network says it is worth 30:
    # δ = 1 + 0.9·30 − 1 = 27. Second: its episode ended (discount 0), δ = −2 − 3 = −5.
    np.testing.assert_allclose(loss.td_error.numpy(), [27.0, -5.0])
    np.testing.assert_allclose(loss.q.numpy(), [1.0, 3.0])
    assert loss.total.item() == pytest.approx((0.5 * 0.5 * 27.0**2 + 1.0 * 0.5 * 25.0) / 2)


def test_huber_changes_the_loss_and_not_the_priority():
    online, target = QTable([[1.0, 2.0], [4.0, 3.0]]), QTable([[10.0, 20.0], [30.0, 40.0]])
    loss = double_dqn_loss(online, target, lookup_batch(), torch.tensor([0.5, 1.0]), "huber")
    assert loss.total.item() == pytest.approx((0.5 * (27.0 - 0.5) + 1.0 * (5.0 - 0.5)) / 2)
    np.testing.assert_allclose(new_priorities(loss.td_error, SETTINGS).numpy(), [27.0, 5.0], rtol=1e-6)


def test_unknown_loss_is_refused_by_name():
    online = QTable([[1.0, 2.0], [4.0, 3.0]])
    with pytest.raises(ValueError, match="'cubed'"):
        double_dqn_loss(online, online, lookup_batch(), torch.ones(2), "cubed")


def test_gradient_flows_through_the_taken_action_alone():
    online, target = QTable([[1.0, 2.0], [4.0, 3.0]]), QTable([[10.0, 20.0], [30.0, 40.0]])
    double_dqn_loss(online, target, lookup_batch(), torch.tensor([0.5, 1.0])).total.backward()
    # d/dQ of mean(w·½δ²) is −w·δ / batch.
    np.testing.assert_allclose(online.values.grad.numpy(), [[-0.5 * 27.0 / 2, 0.0], [0.0, 5.0 / 2]])
    assert target.values.grad is None


def test_priorities_are_error_plus_epsilon_and_one_without_prioritization():
    td_error = torch.tensor([-2.0, 0.0])
    np.testing.assert_allclose(new_priorities(td_error, SETTINGS).numpy(), [2.000001, 1e-6], rtol=1e-6)
    frozen = dataclasses.replace(SETTINGS, prioritized=False)
    np.testing.assert_array_equal(new_priorities(td_error, frozen).numpy(), [1.0, 1.0])


def test_target_network_is_copied_every_so_many_learner_steps():
    learner = make_learner(target_update_every=3, learning_rate=0.01)
    data, weights = random_batch(0)
    initial = learner.target.state_dict()["value.0.weight"].clone()
    for _ in range(2):
        learner.update(data, weights)
    assert torch.equal(learner.target.state_dict()["value.0.weight"], initial)
    learner.update(data, weights)
    for name, value in learner.online.state_dict().items():
        assert torch.equal(learner.target.state_dict()[name], value)


def test_soft_target_moves_its_share_of_the_way():
    learner = make_learner(target_update_every=1, target_mix=0.25, learning_rate=0.01)
    before = learner.target.state_dict()["value.0.weight"].clone()
    data, weights = random_batch(0)
    learner.update(data, weights)
    now = learner.online.state_dict()["value.0.weight"]
    expected = before + 0.25 * (now - before)
    torch.testing.assert_close(learner.target.state_dict()["value.0.weight"], expected)


def test_what_plays_is_the_mean_of_the_newest_networks():
    learner = make_learner(average_updates=100, learning_rate=0.01)
    data, weights = random_batch(0)
    seen, mean = [], None
    for step in range(1, 3001):
        learner.update(data, weights)
        if step % 10 == 0:
            seen.append(learner.online.state_dict()["value.0.weight"].clone())
            share = 10 / min(100, step / 5)
            mean = seen[-1] if share >= 1 else mean + share * (seen[-1] - mean)
    playing = learner.published.state_dict()["value.0.weight"]
    torch.testing.assert_close(playing, mean)
    assert not torch.equal(playing, seen[-1])
    assert all(parameter.grad is None for parameter in learner.published.parameters())


def test_a_mean_survives_a_checkpoint_and_begins_with_the_network_of_one_without(tmp_path):
    data, weights = random_batch(0)
    plain, mean = make_learner(learning_rate=0.01), make_learner(average_updates=1000, learning_rate=0.01)
    for learner in (plain, mean):
        for _ in range(200):
            learner.update(data, weights)
    for written, folder in ((mean, "mean"), (plain, "plain")):
        path = saving.write_checkpoint(tmp_path / folder, written, {})
        other = make_learner(average_updates=1000, learning_rate=0.01)
        saving.read_checkpoint(path, other)
        for name, value in written.published.state_dict().items():
            assert torch.equal(other.published.state_dict()[name], value)
        for name, value in written.online.state_dict().items():
            assert torch.equal(other.online.state_dict()[name], value)
        other.update(data, weights)


def test_gradients_are_clipped_by_their_global_norm():
    learner = make_learner(gradient_norm=1e-3, optimizer="rmsprop")
    data, weights = random_batch(1)
    update = learner.update(data, weights)
    norm = torch.sqrt(sum(parameter.grad.square().sum() for parameter in learner.parameters))
    assert update.gradient_norm.item() > 1e-3
    assert norm.item() == pytest.approx(1e-3, rel=1e-3)


def test_rmsprop_is_centred_with_the_papers_numbers():
    learner = make_learner(optimizer="rmsprop")
    group = learner.optimizer.param_groups[0]
    assert (group["centered"], group["alpha"], group["eps"], group["lr"]) == (True, 0.95, 1.5e-7, 6.25e-5)


def test_learning_rate_falls_linearly_and_stays_at_its_end():
    settings = ApexSettings(learning_rate=1.0, learning_rate_end=0.2, learning_rate_decay_updates=100)
    assert [learning_rate_at(step, settings) for step in (0, 50, 100, 1000)] == pytest.approx([1.0, 0.6, 0.2, 0.2])
    assert learning_rate_at(1000, ApexSettings(learning_rate=1.0)) == 1.0


@pytest.mark.parametrize("device_looks", [False, True])  # on the CPU, too, Adam's kernel can leave out a step
@pytest.mark.parametrize("target_mix", [1.0, 0.25])
@pytest.mark.parametrize("bad", ["reward", "weight", "obs"])
def test_update_that_is_not_finite_changes_nothing(device_looks, target_mix, bad):
    learner = make_learner(learning_rate=0.01, target_update_every=1, target_mix=target_mix)
    learner.device_looks = device_looks
    learner.update(*random_batch(0))
    online = [parameter.clone() for parameter in learner.online.parameters()]
    target = [parameter.clone() for parameter in learner.target.parameters()]
    state = {name: tensor.clone() for name, tensor in saving.optimizer_tensors(learner.optimizer).items()}
    data, weights = random_batch(1)
    (weights if bad == "weight" else data[bad])[2] = np.nan
    update = learner.update(data, weights)
    assert not learner.settle(update)
    assert learner.step == 1
    torch.testing.assert_close([*learner.online.parameters()], online, rtol=0, atol=0)
    torch.testing.assert_close([*learner.target.parameters()], target, rtol=0, atol=0)
    torch.testing.assert_close(saving.optimizer_tensors(learner.optimizer), state, rtol=0, atol=0)
    priorities = update.priorities.numpy()
    assert priorities[2] == np.float32(learner.settings.priority_epsilon)
    assert (priorities[[0, 1, 3]] > 1e-3).all()
    # And the next one goes on as if there had been none.
    other = make_learner(learning_rate=0.01, target_update_every=1, target_mix=target_mix)
    other.update(*random_batch(0))
    for each in (learner, other):
        assert each.settle(each.update(*random_batch(2)))
    assert learner.step == other.step == 2
    torch.testing.assert_close([*learner.online.parameters()], [*other.online.parameters()], rtol=0, atol=0)


def test_batch_whose_gradient_alone_is_not_finite_is_to_blame_as_a_whole():
    learner = make_learner(optimizer="rmsprop")
    data, weights = random_batch(0)
    data["obs"] *= 1e3
    data["reward"][:] = 1e19  # each ½δ² is finite, the squares of their gradients are not
    update = learner.update(data, weights)
    assert torch.isfinite(update.loss)
    assert not learner.settle(update)
    assert learner.step == 0
    np.testing.assert_array_equal(update.priorities, np.full(4, learner.settings.priority_epsilon, np.float32))


def test_running_means_of_a_network_of_ones_own_stay_finite():
    network = lambda: torch.nn.Sequential(torch.nn.BatchNorm1d(3), torch.nn.Linear(3, 2))  # noqa: E731
    learner = Dqn(SETTINGS, network, torch.device("cpu"))
    data, weights = random_batch(0)
    data["obs"][1] = np.nan
    before = {name: tensor.clone() for name, tensor in learner.online.state_dict().items()}
    assert not learner.settle(learner.update(data, weights))
    torch.testing.assert_close(dict(learner.online.state_dict()), before, rtol=0, atol=0)


def test_repeated_updates_on_one_batch_reduce_its_error():
    learner = make_learner(learning_rate=0.01, target_update_every=1_000_000)
    data, weights = random_batch(2)
    first = learner.update(data, weights)
    for _ in range(200):
        last = learner.update(data, weights)
    assert last.td_error.item() < 0.2 * first.td_error.item()


def test_bfloat16_gives_nearly_the_same_loss_in_float32():
    data, weights = random_batch(3)
    full = make_learner()
    half = Dqn(SETTINGS, lambda: make_network(SETTINGS, SPEC), torch.device("cpu"), "bfloat16")
    exact, rough = full.update(data, weights), half.update(data, weights)
    assert rough.loss.dtype == torch.float32
    assert rough.priorities.dtype == torch.float32
    assert rough.loss.item() == pytest.approx(exact.loss.item(), rel=0.1)


@pytest.mark.parametrize("optimizer", ["adam", "rmsprop"])
def test_resumed_learner_goes_on_exactly_as_the_uninterrupted_one(tmp_path, optimizer):
    changes = {"optimizer": optimizer, "learning_rate": 0.01}
    whole, first = make_learner(**changes), make_learner(**changes)
    for seed in range(5):
        whole.update(*random_batch(seed))
        first.update(*random_batch(seed))
    saving.write_checkpoint(tmp_path, first, {"version": 5})
    second = make_learner(**changes)
    assert saving.read_checkpoint(saving.newest_checkpoint(tmp_path), second) == {"version": 5, "step": 5}
    assert second.step == 5
    for seed in range(5, 9):
        whole.update(*random_batch(seed))
        second.update(*random_batch(seed))
    for expected, got in zip(parameters_of(whole), parameters_of(second), strict=True):
        np.testing.assert_array_equal(got, expected)
    torch.testing.assert_close(second.target.state_dict(), whole.target.state_dict(), rtol=0, atol=0)


def test_checkpoint_before_the_first_update_can_be_resumed(tmp_path):
    saving.write_checkpoint(tmp_path, make_learner(), {})
    learner = make_learner(seed=9)
    saving.read_checkpoint(tmp_path / "step_0", learner)
    for expected, got in zip(parameters_of(make_learner()), parameters_of(learner), strict=True):
        np.testing.assert_array_equal(got, expected)


def test_newest_checkpoints_are_kept_and_unfinished_ones_ignored(tmp_path):
    learner = make_learner()
    for step in (5, 40, 100, 300):
        learner.step = step
        saving.write_checkpoint(tmp_path, learner, {}, keep=2)
    (tmp_path / ".step_900.1.partial").mkdir()
    (tmp_path / "step_800").mkdir()  # no counters: not one of ours
    assert [path.name for path in saving.checkpoints(tmp_path)] == ["step_100", "step_300"]
    assert saving.newest_checkpoint(tmp_path).name == "step_300"


def test_checkpoint_is_on_the_disk_before_it_has_its_name_and_before_an_older_one_goes(tmp_path, monkeypatch):
    """After a power failure there is a whole checkpoint, whenever it was."""
    learner = make_learner()
    saving.write_checkpoint(tmp_path, learner, {}, keep=1)
    done = []
    sync, rename, remove = os.fsync, os.rename, shutil.rmtree
    monkeypatch.setattr(os, "fsync", lambda fd: (sync(fd), done.append(("sync", os.readlink(f"/proc/self/fd/{fd}")))))
    monkeypatch.setattr(os, "rename", lambda old, new: (rename(old, new), done.append(("name", str(new)))))
    monkeypatch.setattr(shutil, "rmtree", lambda path, **how: (remove(path, **how), done.append(("remove", str(path)))))
    learner.step = 7
    path = saving.write_checkpoint(tmp_path, learner, {}, keep=1)
    named = done.index(("name", str(path)))
    partial = {Path(what).name for how, what in done[:named] if how == "sync"}
    assert partial > {file.name for file in path.iterdir()}
    assert any(name.endswith(".partial") for name in partial)
    later = done[named:]
    assert later.index(("sync", str(tmp_path))) < later.index(("remove", str(tmp_path / "step_0")))


def test_checkpoint_that_fails_half_way_leaves_the_one_before(tmp_path, monkeypatch):
    learner = make_learner()
    saving.write_checkpoint(tmp_path, learner, {"version": 1})

    def full_disk(*arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(saving, "write_json", full_disk)
    with pytest.raises(OSError, match="No space left"):
        saving.write_checkpoint(tmp_path, learner, {"version": 2})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step_0"]
    assert json.loads((tmp_path / "step_0" / "counters.json").read_text())["version"] == 1


def test_checkpoint_of_another_network_or_optimizer_is_refused(tmp_path):
    learner = make_learner(optimizer="adam")
    learner.update(*random_batch(0))
    path = saving.write_checkpoint(tmp_path, learner, {})
    with pytest.raises(ValueError, match="holds another network"):
        saving.read_checkpoint(path, make_learner(hidden=16))
    with pytest.raises(ValueError, match="state of another optimizer"):
        saving.read_checkpoint(path, make_learner(optimizer="rmsprop"))


def test_checkpoints_hold_no_pickle(tmp_path):
    learner = make_learner()
    learner.update(*random_batch(0))
    path = saving.write_checkpoint(tmp_path, learner, {})
    assert sorted(file.name for file in path.iterdir()) == [
        "counters.json",
        "network.safetensors",
        "optimizer.safetensors",
        "target.safetensors",
    ]


def test_best_network_replaces_the_one_before(tmp_path):
    learner = make_learner(learning_rate=0.01)
    saving.write_best(tmp_path, learner.online.state_dict(), {"step": 1, "score_mean": 3.0})
    learner.update(*random_batch(0))
    saving.write_best(tmp_path, learner.online.state_dict(), {"step": 2, "score_mean": 4.0})
    network = make_network(SETTINGS, SPEC)
    assert saving.read_network(tmp_path / "best", network) == {"step": 2, "score_mean": 4.0}
    torch.testing.assert_close(network.state_dict(), learner.online.state_dict(), rtol=0, atol=0)
    assert [path.name for path in tmp_path.iterdir()] == ["best"]
