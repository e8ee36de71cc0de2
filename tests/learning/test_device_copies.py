"""Batches on their way to the device that learns, and what it found on its way back: in order, none lost, none late.

Without a GPU the same code runs on the CPU, where a copy is done when it returns. Tests marked `cuda` need a GPU.
"""

from __future__ import annotations

import dataclasses
import gc
import threading
import weakref
from collections import deque
from functools import partial

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from random_batches import make_batches  # noqa: E402

import replay_server as rs  # noqa: E402
from replay_server.learner import loop  # noqa: E402
from replay_server.learner.dqn import Dqn  # noqa: E402
from replay_server.learner.execution_choice import Way, choose_execution  # noqa: E402
from replay_server.learner.graph import WARM_UP, GraphedLearner  # noqa: E402
from replay_server.learner.replay_learner import Update  # noqa: E402
from replay_server.learner.updates_ahead import updates  # noqa: E402
from replay_server.rl.environment_spec import EnvironmentSpec, environment_spec  # noqa: E402
from replay_server.rl.networks import make_network  # noqa: E402
from replay_server.rl.observations import Leaf, atari_screens  # noqa: E402
from replay_server.rl.settings import ApexSettings  # noqa: E402
from replay_server.rl.tables import STEP_COLUMN, apex_table  # noqa: E402
from replay_server.torch import DeviceBatch, DeviceBatches, HostCopy, host_arrays, tensor_over  # noqa: E402
from replay_server.torch.device_batches import HELD, PinnedArenas  # noqa: E402

CPU = torch.device("cpu")
SETTINGS = ApexSettings(
    env="CartPole-v1", hidden=16, batch_size=32, capacity=1_000, min_size_to_sample=100, max_updates=12,
    publish_every=10, optimizer="adam", learning_rate=1e-3, target_update_every=3, learner_threads=1, device="cpu",
    precision="float32", targets_ahead="off",
)  # fmt: skip
ROWS = 16
VECTORS, IMAGES = EnvironmentSpec(Leaf((4,)), 2), EnvironmentSpec(atari_screens(4, 84), 6, 4)


def make_learner(spec: EnvironmentSpec, device: torch.device = CPU, precision: str = "float32") -> Dqn:
    return Dqn(SETTINGS, lambda: make_network(SETTINGS, spec), device, precision, spec.branches)


def table(**options) -> rs.Table:
    return rs.Table("t", 256, {"x": rs.Column("uint8", (8192,)), "n": rs.Column("int64")}, **options)


def numbered(count: int) -> dict[str, np.ndarray]:
    numbers = np.arange(count)
    return {"x": np.repeat(numbers.astype(np.uint8)[:, None], 8192, axis=1), "n": numbers}


# ---- to the device ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("spec", [VECTORS, IMAGES])
def test_updates_on_the_cpu_are_those_of_the_arrays_themselves_bit_by_bit(spec, ahead):
    batches = make_batches(spec, 6, ROWS)
    direct, copied = make_learner(spec), make_learner(spec)
    expected = list(updates(direct, batches, ahead))
    with DeviceBatches(batches, CPU) as on_device:
        found = list(updates(copied, on_device, ahead))
    assert len(found) == len(expected) == 6
    for (batch, update), (original, other) in zip(found, expected, strict=True):
        assert np.array_equal(batch.ids, original.ids)
        assert np.array_equal(batch.probabilities, original.probabilities)
        assert batch.data["obs"].data_ptr() == original.data["obs"].__array_interface__["data"][0]  # no copy
        assert torch.equal(update.priorities, other.priorities)
        assert torch.equal(update.gradient_norm, other.gradient_norm)
    for mine, theirs in zip(copied.parameters, direct.parameters, strict=True):
        assert torch.equal(mine, theirs)


class Slow:
    """A device whose copies are done when the test says so, or when somebody waits for one."""

    def __init__(self) -> None:
        self.events: list[Slow.Event] = []
        self.waited: list[int] = []

    def make_event(self) -> Slow.Event:
        self.events.append(Slow.Event(self, len(self.events)))
        return self.events[-1]

    class Event(torch.cpu.Event):
        def __init__(self, device: Slow, number: int) -> None:
            self.device, self.number, self.done = device, number, False

        def query(self) -> bool:
            return self.done

        def synchronize(self) -> None:
            if not self.done:
                self.device.waited.append(self.number)
            self.done = True


@pytest.fixture
def slow(monkeypatch) -> Slow:
    device = Slow()
    monkeypatch.setattr(torch.cpu, "Event", device.make_event)
    return device


def test_a_batch_is_held_until_its_copy_is_done_and_let_go_in_order(slow):
    left = deque(make_batches(VECTORS, 6, ROWS))
    known = [weakref.ref(batch) for batch in left]

    def alive() -> list[int]:
        gc.collect()
        return [number for number, batch in enumerate(known) if batch() is not None and batch() not in left]

    on_device = DeviceBatches((left.popleft() for _ in range(6)), CPU)
    next(on_device)
    assert alive() == [0]
    slow.events[0].done = True
    next(on_device)
    assert (alive(), slow.waited) == ([1], [])
    next(on_device)
    assert (alive(), slow.waited) == ([1, 2], [])
    # As many as may be held: the oldest copy is waited for. The one after it is let go only behind it.
    slow.events[2].done = True
    next(on_device)
    assert (alive(), slow.waited) == ([3], [1])
    next(on_device)
    assert len(alive()) == HELD
    on_device.close()
    assert (alive(), slow.waited) == ([], [1, 3, 4])


def test_what_the_device_found_is_waited_for_before_it_is_read(slow):
    scalar = torch.tensor(1.0)
    update = Update(torch.ones(3), scalar, scalar, scalar, scalar, torch.tensor(True), True, 7, {"entropy": scalar})
    found = HostCopy(update, CPU)
    assert slow.waited == []
    assert (found.wait().step, found.wait().priorities.tolist()) == (7, [1.0, 1.0, 1.0])
    assert found.wait().told == {"entropy": scalar}
    assert slow.waited == [0]


def test_shared_memory_is_given_back_when_the_batch_is_dropped_and_not_before(tmp_path):
    with rs.Server([table()], unix=tmp_path / "s") as server, rs.Client(server.unix_url, shared_memory=True) as client:
        client.add("t", numbered(200))
        with client.sampler("t", 32, prefetch=2) as batches, DeviceBatches(batches, CPU) as on_device:
            kept = next(on_device)
            assert not tensor_is_writable_memory(kept.data["x"])  # it lies in the server's memory
            shown = kept.data["x"].clone()
            for _ in range(40):
                batch = next(on_device)
                assert torch.equal(batch.data["x"][:, 0].long(), batch.data["n"])
            assert torch.equal(kept.data["x"], shown)
            del batch, kept
            for _ in range(40):
                assert len(next(on_device)) == 32


def tensor_is_writable_memory(tensor: torch.Tensor) -> bool:
    """Whether this process may write there, by the kernel's own list of its memory."""
    with open("/proc/self/maps") as maps:
        for line in maps:
            bounds, rights = line.split()[:2]
            low, high = (int(each, 16) for each in bounds.split("-"))
            if low <= tensor.data_ptr() < high:
                return "w" in rights
    raise AssertionError("the tensor lies nowhere")


def test_batches_are_received_into_arrays_of_the_callers_kind_which_are_used_again_once_nobody_sees_them():
    made: list[int] = []

    def allocate(shape, dtype) -> np.ndarray:
        array = torch.empty(shape, dtype=torch.from_numpy(np.empty(0, dtype)).dtype).numpy()
        made.append(array.__array_interface__["data"][0])
        return array

    def lies_at(batch: DeviceBatch) -> int:
        return batch.data["x"].data_ptr()

    buffer = rs.Buffer(table())
    buffer.add(numbered(200))
    with rs.Server([table()]) as server, rs.Client(server.url, shared_memory=False) as client:
        client.add("t", numbered(200))
        for make in (lambda: client.sampler("t", 32, allocate=allocate), lambda: buffer.sampler(32, allocate=allocate)):
            made.clear()
            with make() as batches, DeviceBatches(batches, CPU) as on_device:
                kept = next(on_device)
                places = [lies_at(next(on_device)) for _ in range(30)]
            assert {lies_at(kept), *places} <= set(made)
            assert len(made) < 5 * 31  # of the five arrays of each batch some were used again,
            assert lies_at(kept) not in places  # but none that is still seen


def test_arrays_that_are_views_of_others_are_refused_since_nobody_could_see_whether_they_are_in_use():
    buffer = rs.Buffer(table())
    buffer.add(numbered(200))

    def slices(shape, dtype) -> np.ndarray:
        return np.empty((2, *shape), dtype)[0]

    with buffer.sampler(32, allocate=slices) as batches, pytest.raises(ValueError, match="got a view of another array"):
        next(batches)


def test_updates_from_fixed_places_are_those_of_each_batch_itself_bit_by_bit():
    """What a graph replays. On the CPU nothing is recorded; batches are copied to the fixed places all the same."""
    batches = make_batches(IMAGES, WARM_UP + 5, ROWS)
    batches[5].data["reward"][3] = np.nan
    direct, replayed = make_learner(IMAGES), make_learner(IMAGES)
    turns = list(updates(direct, batches)), list(updates(replayed, batches, graph=True))
    for (_, expected), (_, found) in zip(*turns, strict=True):
        assert torch.equal(found.priorities, expected.priorities)
        assert (found.step, found.counted) == (expected.step, expected.counted)
        assert replayed.settle(found) == direct.settle(expected)
    assert replayed.step == direct.step == len(batches) - 1
    for mine, theirs in zip(replayed.parameters, direct.parameters, strict=True):
        assert torch.equal(mine, theirs)
    for mine, theirs in zip(replayed.target.parameters(), direct.target.parameters(), strict=True):
        assert torch.equal(mine, theirs)


def test_a_batch_that_does_not_fit_the_fixed_places_is_computed_by_itself():
    direct, replayed = make_learner(VECTORS), make_learner(VECTORS)
    graphed = GraphedLearner(replayed)
    for batch in [
        *make_batches(VECTORS, WARM_UP + 2, ROWS),
        *make_batches(VECTORS, 1, rows=1),
        *make_batches(VECTORS, 2, ROWS),
    ]:
        expected = direct.update(batch.data, batch.weights)
        assert torch.equal(graphed.update(batch.data, batch.weights).priorities, expected.priorities)


# ---- and back --------------------------------------------------------------------------------------------------------


def fill(client: rs.Client) -> None:
    generator = np.random.default_rng(0)
    with client.writer("apex", flush_steps=64) as writer:
        for _ in range(200):
            writer.append({STEP_COLUMN: generator.normal(size=4).astype(np.float32)})
            columns = {"action": generator.integers(0, 2), "reward": np.float32(1), "discount": np.float32(0.97)}
            writer.create_item(1.0, columns=columns)


@pytest.mark.parametrize("checkpoint_every_s", [1e9, 0.0])
def test_priorities_return_one_update_later_in_order_all_of_them_and_before_a_checkpoint(
    tmp_path, monkeypatch, checkpoint_every_s
):
    settings = dataclasses.replace(SETTINGS, checkpoint_every_s=checkpoint_every_s)
    computed: list[np.ndarray] = []
    returned: list[tuple[int, np.ndarray]] = []
    kept: list[tuple[int, int]] = []
    update, update_priorities, write = Dqn.update, rs.Updater.update_priorities, loop.write_checkpoint

    def computing(self, data, weights) -> Update:
        done = update(self, data, weights)
        computed.append(done.priorities.numpy().astype(np.float64))
        return done

    def returning(self, ids, priorities):
        returned.append((len(computed), priorities))
        return update_priorities(self, ids, priorities)

    def keeping(folder, learner, *rest):
        kept.append((learner.step, len(returned)))
        return write(folder, learner, *rest)

    monkeypatch.setattr(Dqn, "update", computing)
    monkeypatch.setattr(rs.Updater, "update_priorities", returning)
    monkeypatch.setattr(loop, "write_checkpoint", keeping)
    with rs.Server([apex_table(settings, environment_spec(settings))]) as server, rs.Client(server.url) as client:
        fill(client)
        loop.run_learner(settings, server.url, tmp_path / "run", threading.Event())
        assert client.info("apex")["updates_applied"] == 12 * 32
    assert len(returned) == len(computed) == 12
    for (_, priorities), expected in zip(returned, computed, strict=True):
        assert np.array_equal(priorities, expected)
    every_turn = checkpoint_every_s == 0.0
    assert [when for when, _ in returned] == [*range(1, 13)] if every_turn else [*range(2, 13), 12]
    assert kept[-1] == (12, 12)
    assert len(kept) == (13 if every_turn else 1)
    assert all(step == written_back for step, written_back in kept)


# ---- on a GPU --------------------------------------------------------------------------------------------------------


@pytest.mark.cuda
def test_batches_are_copied_to_a_gpu_from_pinned_arrays_and_from_pinned_shared_memory(tmp_path):
    device = torch.device("cuda")
    with rs.Server([table()], unix=tmp_path / "s") as server:
        for shared_memory in (True, False):
            with rs.Client(server.unix_url, shared_memory=shared_memory) as client:
                client.reset("t")
                client.add("t", numbered(200))
                source = client.sampler("t", 32, allocate=host_arrays(device))
                pinned: list[bool] = []

                def watched(source=source, pinned=pinned):
                    for batch in source:
                        pinned.append(tensor_over(batch.data["x"]).is_pinned())
                        yield batch
                        pinned.append(tensor_over(batch.data["x"]).is_pinned())

                with source, DeviceBatches(watched(), device) as on_device:
                    for _ in range(50):
                        batch = next(on_device)
                        assert batch.data["x"].device.type == "cuda"
                        assert batch.data["x"].dtype == torch.uint8
                        assert torch.equal(batch.data["x"][:, 0].long(), batch.data["n"])
                assert all(pinned[1:])  # shared memory is pinned when its first batch is seen


@pytest.mark.cuda
def test_memory_that_cuda_cannot_pin_is_told_and_the_next_kernel_does_not_fail():
    class Nowhere:
        address, size_bytes = 4096, 4096

    device = torch.device("cuda")
    with pytest.warns(RuntimeWarning, match="CUDA cannot pin 4096 bytes"):
        PinnedArenas(device).add(Nowhere())  # pyright: ignore[reportArgumentType]
    assert float(torch.ones(8, device=device).sum()) == 8


@pytest.mark.cuda
@pytest.mark.parametrize(("precision", "tolerance"), [("float32", 1e-3), ("tf32", 1e-2), ("bfloat16", 5e-2)])
@pytest.mark.parametrize("spec", [VECTORS, IMAGES])
def test_an_update_on_a_gpu_agrees_with_the_cpus(spec, precision, tolerance):
    batch, device = make_batches(spec, 1, rows=64)[0], torch.device("cuda")
    Way(precision).use(device)
    mine, theirs = make_learner(spec, device, precision), make_learner(spec, CPU, precision)
    theirs.online.load_state_dict(mine.online.state_dict())
    theirs.target.load_state_dict(mine.target.state_dict())
    found = HostCopy(mine.update(batch.data, batch.weights), device).wait()
    expected = theirs.update(batch.data, batch.weights)
    for name in ("priorities", "loss", "gradient_norm"):
        torch.testing.assert_close(getattr(found, name), getattr(expected, name), rtol=tolerance, atol=tolerance)


@pytest.mark.cuda
def test_a_graph_does_the_updates_that_are_done_without_and_leaves_out_what_is_not_finite():
    device, batches = torch.device("cuda"), make_batches(IMAGES, 12, ROWS)
    Way().use(device)
    batches[8].data["reward"][3] = np.nan
    plain, graphed = make_learner(IMAGES, device), make_learner(IMAGES, device)
    graphed.online.load_state_dict(plain.online.state_dict())
    graphed.target.load_state_dict(plain.target.state_dict())
    turns = []
    for learner, graph in ((plain, False), (graphed, True)):
        with DeviceBatches(batches, device) as on_device:
            copies = [HostCopy(update, device) for _, update in updates(learner, on_device, graph=graph)]
            turns.append([(update, learner.settle(update)) for update in (copy.wait() for copy in copies)])
    for number, ((mine, done), (theirs, expected)) in enumerate(zip(*turns, strict=True)):
        assert done == expected == (number != 8)
        torch.testing.assert_close(mine.priorities, theirs.priorities, rtol=1e-2, atol=1e-3)
    assert graphed.step == plain.step == 11
    for mine, theirs in zip(graphed.parameters, plain.parameters, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-2, atol=1e-3)


@pytest.mark.cuda
def test_graphs_and_tf32_are_measured_on_a_gpu_in_the_real_network():
    settings = dataclasses.replace(SETTINGS, precision="auto", batch_size=64)
    device = torch.device("cuda")
    make = partial(Dqn, settings, lambda: make_network(settings, IMAGES), device)
    found = choose_execution(settings, IMAGES, make, device)
    assert {"float32, 1 thread", "tf32, 1 thread", "bfloat16, 1 thread"} <= found.update_ms.keys()
    assert any(name.endswith("and a CUDA graph") and ms for name, ms in found.update_ms.items())
