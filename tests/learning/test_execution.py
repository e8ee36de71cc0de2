"""How the learner chooses what its updates are computed in: by times, and by nothing else."""

from __future__ import annotations

import dataclasses
import json
import math
import threading

import pytest

torch = pytest.importorskip("torch")

import replay_server as rs  # noqa: E402
from replay_server.learner import execution  # noqa: E402
from replay_server.learner.execution import PRECISIONS, choose_execution, fastest  # noqa: E402
from replay_server.learner.loop import run_learner  # noqa: E402
from replay_server.rl.environment_spec import EnvironmentSpec, environment_spec  # noqa: E402
from replay_server.rl.networks import make_network  # noqa: E402
from replay_server.rl.observations import Leaf, atari_screens  # noqa: E402
from replay_server.rl.run_directory import RunDirectory  # noqa: E402
from replay_server.rl.settings import PROFILES, ApexSettings, apply_profile  # noqa: E402
from replay_server.rl.tables import apex_table  # noqa: E402

SETTINGS = ApexSettings(
    env="CartPole-v1", hidden=16, batch_size=32, capacity=1_000, min_size_to_sample=100, max_updates=1,
    optimizer="adam", learner_threads=1, device="cpu", final_episodes=0,
)  # fmt: skip


class Machine:
    """A machine on which an update takes what is said; counts what was done on it."""

    def __init__(self, **seconds_a_row: float) -> None:
        self.seconds_a_row = seconds_a_row
        self.spent_s = 0.0
        self.updates: list[tuple[str, int]] = []

    def update(self, name: str, rows: int) -> float:
        self.updates.append((name, rows))
        took_s = rows * self.seconds_a_row[name]
        self.spent_s += took_s if math.isfinite(took_s) else 0.0
        return took_s


@pytest.mark.parametrize(
    ("float32", "bfloat16", "chosen"),
    [(1e-4, 0.5e-4, "bfloat16"), (1e-4, 9e-4, "float32"), (1e-4, 0.97e-4, "float32"), (1e-4, math.inf, "float32")],
)
def test_the_faster_precision_is_chosen_and_float32_where_they_are_about_as_fast(float32, bfloat16, chosen):
    machine = Machine(float32=float32, bfloat16=bfloat16)
    found = fastest(PRECISIONS, 64, machine.update)
    assert found.precision == chosen
    assert found.rows == 64
    assert found.seconds == {"float32": 64 * float32, "bfloat16": 64 * bfloat16}


@pytest.mark.parametrize("rows", [1, 48, 64, 512])
@pytest.mark.parametrize("slow", [1e-5, 2.5e-3, 2e-2, 4e-2])
def test_measuring_stays_within_its_time_however_slow_a_precision_is(rows, slow):
    machine = Machine(float32=slow / 9, bfloat16=slow)
    assert fastest(PRECISIONS, rows, machine.update).precision == "float32"
    assert machine.spent_s <= 5.0


def test_one_slow_moment_of_the_machine_decides_nothing():
    """Of a precision's updates the shortest counts, the one that warms up does not."""
    machine = Machine(float32=2e-4, bfloat16=1e-4)
    slow = {("bfloat16", 64): 10.0}

    def update(name: str, rows: int) -> float:
        return machine.update(name, rows) * slow.pop((name, rows), 1.0)

    found = fastest(PRECISIONS, 64, update)
    assert (found.precision, found.seconds["bfloat16"]) == ("bfloat16", 64 * 1e-4)


def test_what_only_few_rows_or_one_update_say_does_not_suffice_for_a_small_gain():
    """As on a machine so busy that a batch does not fit into the time: float32 is never many times slower."""
    assert fastest(PRECISIONS, 512, Machine(float32=10e-3, bfloat16=9e-3).update).precision == "float32"
    assert fastest(PRECISIONS, 512, Machine(float32=10e-3, bfloat16=5e-3).update).precision == "bfloat16"
    found = fastest(PRECISIONS, 64, Machine(float32=3.0, bfloat16=1.0).update)
    assert (found.precision, found.rows, found.seconds) == ("float32", 1, {"float32": 3.0, "bfloat16": 1.0})


@pytest.mark.parametrize(
    "spec",
    [
        EnvironmentSpec(Leaf((4,)), 2),
        EnvironmentSpec(atari_screens(4, 84), 6, 4),
        EnvironmentSpec({"image": Leaf((3, 8, 8), "uint8", is_image=True), "place": Leaf((2,))}, 5, branches=(2, 3)),
    ],
)
def test_choice_follows_the_times_of_real_updates_and_leaves_no_trace(spec, monkeypatch):
    """Real networks are updated on the real batch; only the clock is ours: each precision's updates take what it says.

    Torch's random numbers go on as if nothing had been measured, and an asked-for precision is not measured at all.
    """
    settings = dataclasses.replace(SETTINGS, batch_size=8)
    updates: list[tuple[str, int]] = []

    class Trial(execution._Trial):
        def __call__(self, name: str, rows: int) -> float:
            assert math.isfinite(super().__call__(name, rows))
            updates.append((name, rows))
            return {"float32": 0.03, "bfloat16": 0.02}[name]

    monkeypatch.setattr(execution, "_Trial", Trial)
    torch.manual_seed(3)
    expected = torch.rand(4)
    torch.manual_seed(3)
    found = choose_execution(settings, spec, lambda: make_network(settings, spec), torch.device("cpu"))
    assert torch.equal(torch.rand(4), expected)
    assert found.precision == "bfloat16"
    assert {("float32", 8), ("bfloat16", 8)} <= set(updates)

    updates.clear()
    asked = dataclasses.replace(settings, precision="float32")
    assert choose_execution(asked, spec, lambda: make_network(asked, spec), torch.device("cpu")).seconds == {}
    assert not updates


def test_a_network_that_bfloat16_does_not_suit_is_trained_in_float32():
    class Particular(torch.nn.Linear):
        def forward(self, observations):
            if torch.is_autocast_enabled("cpu"):
                raise RuntimeError("not implemented for 'BFloat16'")
            return super().forward(observations)

    found = choose_execution(SETTINGS, environment_spec(SETTINGS), lambda: Particular(4, 2), torch.device("cpu"))
    assert found.precision == "float32"
    assert found.seconds["bfloat16"] == math.inf
    assert "bfloat16 fails" in found.told()
    json.dumps(found.as_values(), allow_nan=False)


def test_auto_is_the_default_of_every_profile():
    for profile in PROFILES:
        assert apply_profile(ApexSettings(profile=profile), set()).precision == "auto"


def test_the_choice_is_told_and_kept_and_measured_again_when_resumed(tmp_path, capsys):
    directory = RunDirectory(tmp_path / "run")
    directory.create(SETTINGS)
    with rs.Server([apex_table(SETTINGS, environment_spec(SETTINGS))]) as server:
        stopped = threading.Event()
        stopped.set()
        run_learner(SETTINGS, server.url, directory.path, stopped)
        measured = directory.measured()
        assert measured["precision"] in PRECISIONS
        assert measured["measured_rows"] == 32
        assert set(measured["update_ms"]) == set(PRECISIONS)
        line = capsys.readouterr().out
        assert f"precision {measured['precision']} (measured, an update of 32: float32 " in line
        with rs.Client(server.url) as client:
            (message,) = client.redis.lrange("apex:messages", 0, -1)
            assert json.loads(message)["text"] in line

        resumed = directory.settings(ApexSettings, {"resume": True, "precision": "float32"})
        directory.create(resumed)
        assert directory.measured() == {}
        run_learner(resumed, server.url, directory.path, stopped)
        assert directory.measured() == {"precision": "float32", "measured_rows": 0, "update_ms": {}}
