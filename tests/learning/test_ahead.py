"""Updates whose targets are computed beside the update before: the same as one after the other, in that order."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from random_batches import make_batches  # noqa: E402

from replay_server.learner import replay_algorithms  # noqa: E402
from replay_server.learner.replay_learner import ReplayLearner  # noqa: E402
from replay_server.learner.updates_ahead import updates  # noqa: E402
from replay_server.rl.actions import Bounds  # noqa: E402
from replay_server.rl.environment_spec import EnvironmentSpec  # noqa: E402
from replay_server.rl.observations import Leaf, atari_screens  # noqa: E402
from replay_server.rl.settings import ApexSettings  # noqa: E402

SETTINGS = ApexSettings(hidden=16, optimizer="adam", learning_rate=1e-2, target_update_every=3)
VECTORS, IMAGES = EnvironmentSpec(Leaf((3,)), 2), EnvironmentSpec(atari_screens(4, 84), 2, 4)
NUMBERS = EnvironmentSpec(Leaf((3,)), 0, bounds=Bounds((2,), (-1.0, 0.0), (1.0, 4.0)))
ROWS = 8
TREE = EnvironmentSpec({"image": Leaf((3, 8, 8), "uint8", is_image=True), "place": Leaf((2,))}, 5, branches=(2, 3))


def make_learner(spec: EnvironmentSpec, precision: str) -> ReplayLearner:
    return replay_algorithms.make_learner(SETTINGS, spec, torch.device("cpu"), precision)


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("spec", [VECTORS, IMAGES, TREE, NUMBERS])
def test_each_update_has_targets_of_networks_one_update_older(spec, precision):
    batches = make_batches(spec, 7, ROWS)
    beside, expected = make_learner(spec, precision), make_learner(spec, precision)
    done = list(updates(beside, batches, ahead=True))

    prepared = expected.prepare(batches[0].data, batches[0].weights)
    for number, batch in enumerate(batches):
        following = batches[min(number + 1, len(batches) - 1)]
        before = expected.prepare(following.data, following.weights)
        update = expected.step_on(prepared)
        prepared = before
        assert done[number][0] is batch
        assert done[number][1].step == update.step == number + 1
        assert torch.equal(done[number][1].priorities, update.priorities)
        assert torch.equal(done[number][1].gradient_norm, update.gradient_norm)
    assert len(done) == len(batches)
    for mine, theirs in zip(beside.parameters, expected.parameters, strict=True):
        assert torch.equal(mine, theirs)


def test_without_it_updates_are_plain():
    batches = make_batches(VECTORS, 5, ROWS)
    mine, expected = make_learner(VECTORS, "float32"), make_learner(VECTORS, "float32")
    losses = [update.loss.item() for _, update in updates(mine, batches)]
    assert losses == [expected.update(batch.data, batch.weights).loss.item() for batch in batches]


def test_who_leaves_in_the_middle_finds_no_thread_left_and_no_update_more():
    learner = make_learner(VECTORS, "float32")
    turns = updates(learner, iter(make_batches(VECTORS, 5, ROWS)), ahead=True)
    next(turns)
    turns.close()
    assert learner.step == 1


def test_a_batch_that_does_not_fit_is_refused_after_the_one_before_it():
    batches = make_batches(VECTORS, 3, ROWS)
    del batches[2].data["reward"]
    learner = make_learner(VECTORS, "float32")
    turns = updates(learner, batches, ahead=True)
    assert next(turns)[1].step == 1
    with pytest.raises(KeyError, match="reward"):
        list(turns)
    assert learner.step == 2
