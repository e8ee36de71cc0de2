"""Which accelerator falls to which learner, on hosts with a made-up number of them: nothing is computed on one here."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from replay_server.learner.devices import learner_device  # noqa: E402


@pytest.fixture
def fake_devices(monkeypatch):
    """``fake_devices(count)``: torch says that there are so many."""

    def pretend(count: int) -> None:
        monkeypatch.setattr(torch.cuda, "is_available", lambda: count > 0)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: count)

    return pretend


@pytest.mark.parametrize(
    ("count", "devices"),
    [
        (0, ["cpu"] * 5),
        (1, ["cuda:0"] * 5),
        (2, ["cuda:0", "cuda:1", "cuda:0", "cuda:1", "cuda:0"]),
        (4, ["cuda:0", "cuda:1", "cuda:2", "cuda:3", "cuda:0"]),
        (8, ["cuda:0", "cuda:1", "cuda:2", "cuda:3", "cuda:4"]),
    ],
)
def test_each_learner_has_an_accelerator_of_its_own_as_far_as_there_are(fake_devices, count, devices):
    fake_devices(count)
    assert [str(learner_device("auto", slot)) for slot in range(5)] == devices
    assert [str(learner_device("cpu", slot)) for slot in range(5)] == ["cpu"] * 5


def test_another_word_is_refused():
    with pytest.raises(ValueError, match="expected cpu or auto, got 'gpu'"):
        learner_device("gpu", 0)
