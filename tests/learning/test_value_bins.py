"""HL-Gauss: values as shares of bins, the network that tells them, and the learner that learns them."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from random_batches import make_batches  # noqa: E402

from replay_server.learner.dqn import Dqn, double_dqn_loss, double_dqn_targets  # noqa: E402
from replay_server.rl.actions import Bounds  # noqa: E402
from replay_server.rl.environment_spec import EnvironmentSpec  # noqa: E402
from replay_server.rl.networks import DuelingNetwork, check_network, make_network  # noqa: E402
from replay_server.rl.observations import Leaf, atari_screens  # noqa: E402
from replay_server.rl.settings import ApexSettings  # noqa: E402
from replay_server.rl.value_bins import BLUR, ValueBins  # noqa: E402

VECTORS, SCREENS = EnvironmentSpec(Leaf((3,)), 4), EnvironmentSpec(atari_screens(4, 84), 4, 4)
BRANCHES = EnvironmentSpec(Leaf((3,)), 5, branches=(2, 3))
NUMBERS = EnvironmentSpec(Leaf((3,)), 0, bounds=Bounds((2,), (-1.0, 0.0), (1.0, 4.0)))
SETTINGS = ApexSettings(loss="hl-gauss", value_bins=21, value_limit=5.0, hidden=32, optimizer="adam")


def share_by_hand(value: float, bin_number: int, number: int, limit: float) -> float:
    """Of the Gaussian around a value, cut off at ±limit: what lies in one bin."""
    width = 2 * limit / number
    below = [0.5 * (1 + math.erf((edge - value) / (BLUR * width * math.sqrt(2)))) for edge in (
        -limit, -limit + bin_number * width, -limit + (bin_number + 1) * width, limit
    )]  # fmt: skip
    return (below[2] - below[1]) / (below[3] - below[0])


def test_shares_are_those_of_a_gaussian_and_sum_to_one() -> None:
    bins = ValueBins(7, 3.5)
    values = torch.tensor([-3.5, -1.2, 0.0, 0.4, 3.1])
    expected = [[share_by_hand(value, number, 7, 3.5) for number in range(7)] for value in values.tolist()]
    np.testing.assert_allclose(bins.shares(values).numpy(), expected, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(bins.shares(values).sum(dim=-1).numpy(), 1.0, rtol=1e-5)


def test_a_value_comes_back_from_its_shares_and_one_beyond_the_limit_as_the_limits() -> None:
    bins = ValueBins(51, 10.0)
    values = torch.linspace(-8.0, 8.0, 97).reshape(1, 97)
    np.testing.assert_allclose(bins.values(bins.shares(values).log()).numpy(), values.numpy(), atol=0.01)
    beyond = bins.shares(torch.tensor([10.0, 11.0, 1e30, -10.0, -1e30]))
    assert torch.equal(beyond[0], beyond[1])
    assert torch.equal(beyond[0], beyond[2])
    assert torch.equal(beyond[3], beyond[4])


def test_the_loss_is_least_where_the_shares_are_the_targets() -> None:
    bins, values = ValueBins(11, 2.0), torch.tensor([[0.3], [-1.7]])
    logits = torch.randn((2, 3, 11), generator=torch.Generator().manual_seed(1)).requires_grad_()
    bins.losses(logits, values).sum().backward()
    expected = logits.detach().softmax(dim=-1) - bins.shares(values)
    torch.testing.assert_close(logits.grad, expected, rtol=1e-4, atol=1e-6)
    found = bins.losses(bins.shares(values).clamp(min=1e-12).log(), values)
    assert (found < bins.losses(logits, values).detach().min(dim=1, keepdim=True).values).all()


@pytest.mark.parametrize(("number", "limit"), [(1, 10.0), (51, 0.0), (51, -1.0), (51, math.inf), (51, math.nan)])
def test_bins_that_cannot_be_are_refused(number: int, limit: float) -> None:
    with pytest.raises(ValueError, match=f"got {number} bins and a limit of {limit:g}"):
        ValueBins(number, limit)


@pytest.mark.parametrize("spec", [VECTORS, SCREENS, BRANCHES])
def test_q_values_are_the_means_of_dueling_logits(spec: EnvironmentSpec) -> None:
    network = make_network(SETTINGS, spec)
    assert isinstance(network, DuelingNetwork)
    seen = torch.from_numpy(make_batches(spec, 1, 6)[0].data["obs"])
    logits = network.outputs(seen)
    assert logits.shape == (6, spec.num_actions, 21)
    torch.testing.assert_close(network(seen), network.bins.values(logits))
    value = network.value(network.body(seen))
    for branch in logits.split(list(spec.branches) or [spec.num_actions], dim=1):
        torch.testing.assert_close(branch.mean(dim=1), value, rtol=1e-4, atol=1e-5)
    assert not any("bins" in name for name in network.state_dict())  # settings make them, no file has to


@pytest.mark.parametrize("loss", ["squared", "hl-gauss"])
def test_what_tells_actions_apart_is_not_rounded_to_bfloat16(loss: str) -> None:
    network = make_network(dataclasses.replace(SETTINGS, loss=loss), VECTORS)
    with torch.no_grad():
        network.value[-1].bias.fill_(1000.0 if loss == "squared" else 0.0)
    seen = torch.from_numpy(make_batches(VECTORS, 1, 64)[0].data["obs"])
    with torch.autocast("cpu", torch.bfloat16):
        found = network(seen)
    assert found.dtype == torch.float32
    assert len(found.unique()) > 200  # bfloat16 has 4 near 1000
    torch.testing.assert_close(found, network(seen), rtol=0, atol=0.05)


@pytest.mark.parametrize("spec", [VECTORS, BRANCHES])
def test_the_learners_loss_is_the_weighted_cross_entropy_of_the_double_dqn_targets(spec: EnvironmentSpec) -> None:
    online, target = (make_network(dataclasses.replace(SETTINGS, seed=seed), spec) for seed in (1, 2))
    made = make_batches(spec, 1, 5)[0]
    batch, weights = {name: torch.from_numpy(array) for name, array in made.data.items()}, torch.linspace(0.2, 1, 5)
    loss = double_dqn_loss(online, target, batch, weights, "hl-gauss", spec.branches)
    targets = double_dqn_targets(online, target, batch, spec.branches)
    actions, firsts = made.data["action"].reshape(5, -1), np.cumsum([0, *spec.branches])
    rows = []
    for row in range(5):
        logits = online.outputs(batch["obs"])[row]
        taken = [int(action + first) for action, first in zip(actions[row], firsts, strict=False)]
        of_bins = online.bins.shares(targets[row])
        rows.append(np.mean([-(of_bins * logits[place].log_softmax(0)).sum().item() for place in taken]))
        q = [online.bins.values(logits[place]).item() for place in taken]
        assert loss.q[row].item() == pytest.approx(np.mean(q), abs=1e-5)
        errors = [targets[row].item() - each for each in q]
        expected = np.mean(np.abs(errors)) if spec.branches else errors[0]
        assert loss.td_error[row].item() == pytest.approx(expected, abs=1e-5)
    np.testing.assert_allclose(loss.rows.numpy(), weights.numpy() * rows, rtol=1e-4)
    assert loss.total.item() == pytest.approx(np.mean(weights.numpy() * rows), rel=1e-4)


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("spec", [VECTORS, SCREENS, BRANCHES])
def test_a_learner_learns_values_by_their_bins(spec: EnvironmentSpec, precision: str) -> None:
    settings = dataclasses.replace(SETTINGS, learning_rate=3e-3)
    learner = Dqn(settings, lambda: make_network(settings, spec), torch.device("cpu"), precision, spec.branches)
    batch = make_batches(spec, 1, 8)[0]
    batch.data["discount"][:] = 0.0
    errors = [learner.update(batch.data, batch.weights).td_error.item() for _ in range(80)]
    assert min(errors[-10:]) < 0.5 * errors[0], errors


@pytest.mark.parametrize(
    ("spec", "changes", "message"),
    [
        (NUMBERS, {"algo": "sac"}, "--loss hl-gauss: SAC learns values, not their bins"),
        (VECTORS, {"network": "my_networks:Wide"}, "give --loss squared beside --network"),
        (VECTORS, {"value_bins": 1}, "expected 2 value bins or more and a value limit above 0, got 1 bins"),
    ],
)
def test_what_has_no_bins_is_refused_before_a_job_begins(spec, changes, message) -> None:
    with pytest.raises(ValueError, match=message):
        check_network(dataclasses.replace(SETTINGS, **changes), spec)
