"""How the learner chooses what its updates are computed in: by times, and by nothing else."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import re
import subprocess
import sys
import threading
from functools import partial

import pytest

torch = pytest.importorskip("torch")

import replay_server as rs  # noqa: E402
from replay_server.learner import execution_choice  # noqa: E402
from replay_server.learner.dqn import Dqn  # noqa: E402
from replay_server.learner.execution_choice import (  # noqa: E402
    CUDA_PRECISIONS,
    PRECISIONS,
    Choice,
    Machine,
    Times,
    Way,
    choose_execution,
    choose_way,
    thread_counts,
)
from replay_server.learner.loop import run_learner  # noqa: E402
from replay_server.learner.replay_algorithms import make_learner  # noqa: E402
from replay_server.rl.actions import Bounds  # noqa: E402
from replay_server.rl.environment_spec import EnvironmentSpec, environment_spec  # noqa: E402
from replay_server.rl.observations import Leaf, atari_screens  # noqa: E402
from replay_server.rl.profiles import apply_profile  # noqa: E402
from replay_server.rl.run_directory import RunDirectory  # noqa: E402
from replay_server.rl.settings import PROFILES, ApexSettings  # noqa: E402
from replay_server.rl.tables import apex_table  # noqa: E402

SETTINGS = ApexSettings(
    env="CartPole-v1", hidden=16, batch_size=32, capacity=1_000, min_size_to_sample=100, max_updates=1,
    optimizer="adam", learner_threads=1, targets_ahead="off", device="cpu", final_episodes=0,
)  # fmt: skip

CPU = torch.device("cpu")


class Pace:
    """A machine on which an update takes what is said; counts what was done on it."""

    def __init__(self, shares: dict[Way, tuple[float, float]] | None = None, **seconds_a_row: float) -> None:
        self.seconds_a_row = seconds_a_row
        self.shares = shares or {}
        """Of ways with more threads: seconds and core seconds, in those of one thread."""
        self.spent_s = 0.0
        self.updates: list[tuple[Way, int]] = []

    def update(self, way: Way, rows: int) -> Times:
        self.updates.append((way, rows))
        one_s = rows * self.seconds_a_row[way.precision]
        share, cpu_share = self.shares.get(dataclasses.replace(way, precision="float32"), (1.0, 1.0))
        self.spent_s += share * one_s if math.isfinite(one_s) else 0.0
        return Times(share * one_s, cpu_share * one_s)


def precision_of(rows: int, pace: Pace) -> Choice:
    return choose_way(PRECISIONS, [1], [False], rows, Machine(1), pace.update)


@pytest.mark.parametrize(
    ("float32", "bfloat16", "chosen"),
    [(1e-4, 0.5e-4, "bfloat16"), (1e-4, 9e-4, "float32"), (1e-4, 0.97e-4, "float32"), (1e-4, math.inf, "float32")],
)
def test_the_faster_precision_is_chosen_and_float32_where_they_are_about_as_fast(float32, bfloat16, chosen):
    found = precision_of(64, Pace(float32=float32, bfloat16=bfloat16))
    assert found.way == Way(chosen)
    assert found.rows == 64
    outdone = 3 * float32 < bfloat16 < math.inf  # shows with fewer rows
    assert found.update_ms == {
        "float32, 1 thread": pytest.approx(64e3 * float32),
        f"bfloat16, 1 thread{', of 16 rows' * outdone}": (
            None if math.isinf(bfloat16) else pytest.approx((16e3 if outdone else 64e3) * bfloat16)
        ),
    }


TWO, FOUR, BESIDE = Way(threads=2), Way(threads=4), Way(ahead=True)


@pytest.mark.parametrize(
    ("shares", "cores", "acting", "chosen"),
    [
        # Two threads take 0.6 of the time and 1.2 times the work; targets beside take 0.65 and no more work.
        ({TWO: (0.6, 1.2), BESIDE: (0.65, 1.0)}, 2, 0.0, TWO),
        # Where acting takes a third of the cores' time, the work decides and not the time.
        ({TWO: (0.6, 1.2), BESIDE: (0.65, 1.0)}, 2, 0.6, BESIDE),
        # Where acting takes more than learning, nothing is gained by any.
        ({TWO: (0.6, 1.2), BESIDE: (0.65, 1.0)}, 2, 2.0, Way()),
        # Two threads that only wait for each other.
        ({TWO: (1.1, 2.2), BESIDE: (0.98, 1.4)}, 2, 0.0, Way()),
        ({TWO: (0.6, 1.2), FOUR: (0.4, 1.6), BESIDE: (0.7, 1.0)}, 4, 0.0, FOUR),
    ],
)
def test_threads_are_chosen_by_what_they_gain_beside_acting(shares, cores, acting, chosen):
    pace = Pace({**shares}, float32=1e-4, bfloat16=2e-4)
    found = choose_way(
        PRECISIONS, thread_counts(cores), [False, True], 64, Machine(cores, acting * 64e-4), pace.update
    )  # fmt: skip
    assert found.way == chosen
    assert len(found.update_ms) == 2 * len(thread_counts(cores)) + 1  # and the other precision, with one thread


def test_graphs_show_which_precision_is_faster_where_launching_kernels_hides_it():
    """As on an H100: 4.6 ms to launch an update in any precision, and less than that to compute it."""
    launch, computing = 4.6e-3, {"float32": 2.9e-3, "tf32": 2.4e-3, "bfloat16": 1.7e-3}

    def update(way: Way, rows: int) -> Times:
        seconds = computing[way.precision] * rows / 512
        return Times(seconds if way.graph else max(launch, seconds), 0.0)

    found = choose_way(CUDA_PRECISIONS, [1], [False], 512, Machine(8), update, graphs=[False, True])
    assert found.way == Way("bfloat16", graph=True)
    computing["bfloat16"] = 2.35e-3  # not clearly faster than the plainer precision
    found = choose_way(CUDA_PRECISIONS, [1], [False], 512, Machine(8), update, graphs=[False, True])
    assert found.way == Way("tf32", graph=True)


def test_a_graph_is_measured_in_every_precision_and_taken_where_it_is_faster():
    for share, chosen in ((0.5, True), (0.97, False), (math.inf, False)):
        pace = Pace({Way(graph=True): (share, share)}, float32=1e-4, tf32=0.7e-4, bfloat16=0.9e-4)
        found = choose_way(CUDA_PRECISIONS, [1], [False], 512, Machine(8), pace.update, graphs=[False, True])
        assert found.way == Way("tf32", 1, False, chosen)
        graph_ms = found.update_ms["tf32, 1 thread and a CUDA graph"]
        assert graph_ms == (None if math.isinf(share) else pytest.approx(share * 512e3 * 0.7e-4, rel=1e-4))
        assert Choice.of_values(json.loads(json.dumps(found.as_values()))) == found


@pytest.mark.parametrize("rows", [1, 48, 64, 512])
@pytest.mark.parametrize("slow", [1e-5, 2.5e-3, 2e-2, 4e-2])
@pytest.mark.parametrize("cores", [1, 2, 16])
def test_measuring_stays_within_its_time_however_slow_a_precision_is(rows, slow, cores):
    pace = Pace(float32=slow / 9, bfloat16=slow)
    found = choose_way(PRECISIONS, thread_counts(cores), [False, True], rows, Machine(cores), pace.update)
    assert found.way == Way()
    assert pace.spent_s <= 5.0


def test_a_slow_precision_does_not_take_the_time_of_what_is_worth_timing():
    """As on two cores without instructions for bfloat16: batches of 128 were never timed, nor a second thread."""
    pace = Pace({TWO: (0.6, 1.2), BESIDE: (0.65, 1.0)}, float32=2e-3, bfloat16=10e-3)
    found = choose_way(PRECISIONS, [1, 2], [False, True], 128, Machine(2), pace.update)
    assert (found.way, found.rows) == (TWO, 128)
    assert found.update_ms["bfloat16, 1 thread, of 8 rows"] == pytest.approx(80.0)
    assert "bfloat16, 1 thread, of 8 rows: 80 ms" in found.told()
    assert max(rows for way, rows in pace.updates if way.precision == "bfloat16") == 8


def test_one_slow_moment_of_the_machine_decides_nothing():
    """Of a way's updates the shortest counts, the one that warms up does not."""
    pace = Pace(float32=2e-4, bfloat16=1e-4)
    slow = {(Way("bfloat16"), 64): 10.0}

    def update(way: Way, rows: int) -> Times:
        found, factor = pace.update(way, rows), slow.pop((way, rows), 1.0)
        return Times(found.seconds * factor, found.cpu_seconds)

    found = choose_way(PRECISIONS, [1], [False], 64, Machine(1), update)
    assert found.way == Way("bfloat16")
    assert found.update_ms["bfloat16, 1 thread"] == pytest.approx(6.4)


def test_what_only_few_rows_or_one_update_say_does_not_suffice_for_a_small_gain():
    """As on a machine so busy that a batch does not fit into the time: float32 is never many times slower."""
    assert precision_of(512, Pace(float32=10e-3, bfloat16=9e-3)).way.precision == "float32"
    assert precision_of(512, Pace(float32=10e-3, bfloat16=5e-3)).way.precision == "bfloat16"
    found = precision_of(64, Pace(float32=3.0, bfloat16=1.0))
    assert (found.way.precision, found.rows) == ("float32", 1)
    assert found.update_ms == {"float32, 1 thread": 3000.0, "bfloat16, 1 thread": 1000.0}


def test_beside_fewer_rows_than_a_batch_has_only_their_share_of_acting_counts():
    """A slow machine times 8 rows of 512. Acting for all 512 would hide that bfloat16 takes half the time."""
    pace = Pace(float32=10e-3, bfloat16=5e-3)
    found = choose_way(PRECISIONS, [1], [False], 512, Machine(2, acting_s=512 * 5e-3), pace.update)
    assert found.rows < 512
    assert found.way.precision == "bfloat16"


@pytest.mark.parametrize(
    "spec",
    [
        EnvironmentSpec(Leaf((4,)), 2),
        EnvironmentSpec(atari_screens(4, 84), 6, 4),
        EnvironmentSpec({"image": Leaf((3, 8, 8), "uint8", is_image=True), "place": Leaf((2,))}, 5, branches=(2, 3)),
        EnvironmentSpec(Leaf((4,)), 0, bounds=Bounds((2,), (-1.0, 0.0), (1.0, 4.0))),
    ],
)
def test_choice_follows_the_times_of_real_updates_and_leaves_no_trace(spec, monkeypatch):
    """Real networks are updated on the real batch; only the clock is ours: each way's updates take what it says.

    Torch's random numbers go on as if nothing had been measured, and what is asked for is not measured at all.
    """
    settings = dataclasses.replace(SETTINGS, batch_size=8, targets_ahead="auto")
    updates: list[tuple[Way, int]] = []

    class Trial(execution_choice._Trial):
        def __call__(self, way: Way, rows: int) -> Times:
            assert math.isfinite(super().__call__(way, rows).seconds)
            updates.append((way, rows))
            seconds = {"float32": 0.03, "bfloat16": 0.02}[way.precision] * (0.6 if way.ahead else 1.0)
            return Times(seconds, seconds)

    monkeypatch.setattr(execution_choice, "_Trial", Trial)
    monkeypatch.setattr(execution_choice, "usable_cores", lambda: 2)
    torch.manual_seed(3)
    expected = torch.rand(4)
    torch.manual_seed(3)
    found = choose_execution(settings, spec, partial(make_learner, settings, spec, CPU), CPU)
    assert torch.equal(torch.rand(4), expected)
    assert found.way == Way("bfloat16", 1, True)
    assert {(Way("float32"), 8), (Way("bfloat16"), 8), (found.way, 8)} <= set(updates)
    assert Choice.of_values(json.loads(json.dumps(found.as_values()))) == found

    updates.clear()
    asked = dataclasses.replace(settings, precision="float32", targets_ahead="on")
    found = choose_execution(asked, spec, partial(make_learner, asked, spec, CPU), CPU)
    assert (found.way, found.update_ms) == (Way("float32", 1, True), {})
    assert not updates


def test_a_network_that_bfloat16_does_not_suit_is_trained_in_float32():
    class Particular(torch.nn.Linear):
        def forward(self, observations):
            if torch.is_autocast_enabled("cpu"):
                raise RuntimeError("not implemented for 'BFloat16'")
            return super().forward(observations)

    make = partial(Dqn, SETTINGS, lambda: Particular(4, 2), CPU)
    found = choose_execution(SETTINGS, environment_spec(SETTINGS), make, CPU)
    assert found.way.precision == "float32"
    assert found.update_ms["bfloat16, 1 thread"] is None
    assert "bfloat16, 1 thread: fails" in found.told()
    json.dumps(found.as_values(), allow_nan=False)


def test_no_targets_are_computed_beyond_those_of_the_updates_that_are_timed(monkeypatch):
    """But the first ones ahead: what is not timed is not in the time that measuring may take."""
    calls = dict.fromkeys(("prepare", "step_on"), 0)

    def counting(name):
        original = getattr(Dqn, name)

        def counted(*args, **kwargs):
            calls[name] += 1
            return original(*args, **kwargs)

        return counted

    for name in calls:
        monkeypatch.setattr(Dqn, name, counting(name))
    monkeypatch.setattr(execution_choice, "usable_cores", lambda: 2)
    settings = dataclasses.replace(SETTINGS, precision="float32", targets_ahead="auto")
    spec = environment_spec(settings)
    choose_execution(settings, spec, partial(make_learner, settings, spec, CPU), CPU)
    assert calls["prepare"] - calls["step_on"] in (0, 1)


def test_auto_is_the_default_of_every_profile():
    for profile in PROFILES:
        assert apply_profile(ApexSettings(profile=profile), set(), PROFILES).precision == "auto"


def test_the_choice_is_told_and_kept_and_measured_again_when_resumed(tmp_path, capsys):
    directory = RunDirectory(tmp_path / "run")
    directory.create(SETTINGS)
    with rs.Server([apex_table(SETTINGS, environment_spec(SETTINGS))]) as server:
        stopped = threading.Event()
        stopped.set()
        run_learner(SETTINGS, server.url, directory.path, stopped)
        measured = directory.measured()
        assert measured["precision"] in PRECISIONS
        assert measured["measured_rows"] in (1, 2, 8, 32)  # as far as a busy machine gets
        assert {name.partition(", of ")[0] for name in measured["update_ms"]} == {
            f"{name}, 1 thread" for name in PRECISIONS
        }
        line = capsys.readouterr().out
        assert (
            f"updates run in {measured['precision']}, 1 thread (measured with batches of {measured['measured_rows']}: "
            in line
        )
        with rs.Client(server.url) as client:
            (message,) = client.redis.lrange("apex:messages", 0, -1)
            assert json.loads(message)["text"] in line

        resumed = directory.settings(ApexSettings, {"resume": True, "precision": "float32"})
        directory.create(resumed)
        assert directory.measured() == {}
        run_learner(resumed, server.url, directory.path, stopped)
        assert directory.measured() == {
            "precision": "float32", "threads": 1, "ahead": False, "graph": False, "measured_rows": 0, "update_ms": {},
        }  # fmt: skip


LEARNER_THAT_LOADS_TORCH = """
import importlib, sys
from replay_server import cli
cli.subcommand = lambda name: lambda arguments: importlib.import_module("torch") and 0
sys.exit(cli.main([sys.argv[1]]))
"""


@pytest.mark.parametrize(("command", "asked", "spins"), [
    ("learner", None, False), ("apex", None, False), ("train", "ACTIVE", True), ("bench", None, True),
])  # fmt: skip
def test_threads_of_torch_sleep_while_they_wait_unless_told_otherwise(
    command: str, asked: str | None, spins: bool
) -> None:
    """What GNU's OpenMP itself says when torch loads it: how often a thread looks before it sleeps."""
    given = {name: value for name, value in os.environ.items() if not name.startswith(("OMP_", "GOMP_"))}
    done = subprocess.run(
        [sys.executable, "-c", LEARNER_THAT_LOADS_TORCH, command],
        env={**given, "OMP_DISPLAY_ENV": "VERBOSE", **({"OMP_WAIT_POLICY": asked} if asked else {})},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    told = re.search(r"GOMP_SPINCOUNT = '(\d+)'", done.stderr)
    if told is None:
        pytest.skip("this torch computes with another OpenMP than GNU's")
    assert (int(told[1]) > 0) == spins
