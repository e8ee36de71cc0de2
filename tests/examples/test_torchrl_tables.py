"""TorchRL's own buffers over tables, in this process and on a server.

TorchRL has an environment of its own: `python tests/examples/example_environments.py torchrl`, then, with pytest,
pytest-timeout and hypothesis installed there, `build/examples/torchrl/bin/python -m pytest` with this file.
"""

from __future__ import annotations

import itertools
import json
import multiprocessing
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
tensordict: Any = pytest.importorskip("tensordict", reason="TorchRL is not installed: pip install torchrl")
data: Any = pytest.importorskip("torchrl.data", reason="TorchRL is not installed: pip install torchrl")

from tensordict import TensorDict  # noqa: E402
from torchrl.data import ReplayBuffer, TensorDictReplayBuffer  # noqa: E402
from torchrl.data.replay_buffers.scheduler import LinearScheduler  # noqa: E402

import replay_server as rs  # noqa: E402
from replay_server.adapters import torchrl as adapter  # noqa: E402
from replay_server.adapters.torchrl import TableSampler, TableStorage, TableWriter, table_parts  # noqa: E402

numbers = itertools.count()


@pytest.fixture(scope="module")
def server() -> Iterator[rs.Server]:
    with rs.Server() as running:
        yield running


@pytest.fixture(params=["in process", "on a server"])
def parts(request: pytest.FixtureRequest) -> Callable[..., dict[str, Any]]:
    """`table_parts`, of a new table at each call unless it is named."""

    def make(max_size: int = 100, **options: Any) -> dict[str, Any]:
        options.setdefault("table", f"torchrl-{next(numbers)}")
        if request.param == "on a server":
            options["url"] = request.getfixturevalue("server").url
        return table_parts(max_size, **options)

    return make


def rows(count: int, first: int = 0) -> Any:
    """Transitions whose entries all follow from their number `k`."""
    k = torch.arange(first, first + count)
    return TensorDict(
        {
            "k": k,
            "obs": {"image": (k[:, None, None] % 256).expand(-1, 3, 3).to(torch.uint8), "state": k[:, None] / 2.0},
            "half": k[:, None].expand(-1, 2).to(torch.bfloat16),
            "phase": torch.complex(k.float(), -k.float()),
            "next": {"reward": k[:, None].double(), "done": (k % 2 == 0)[:, None]},
        },
        [count],
    )


def test_tensordicts_come_back_as_they_were_added(parts):
    buffer = TensorDictReplayBuffer(**parts(), batch_size=64)
    index = buffer.extend(rows(40))
    assert index.dtype == torch.int64
    assert len(buffer) == 40
    assert buffer.write_count == 40
    sample, info = buffer.sample(return_info=True)
    assert sample.batch_size == sample["next"].batch_size == (64,)
    expected = rows(40)[sample["k"]]
    for key in expected.keys(include_nested=True, leaves_only=True):
        assert sample[key].dtype == expected[key].dtype, key
        assert torch.equal(sample[key], expected[key]), key
    assert torch.equal(sample["index"], index[sample["k"]])
    assert set(info) == {"index", "priority_weight"}
    assert torch.equal(buffer[index[7:9]]["k"], torch.tensor([7, 8]))
    assert buffer[index[3]]["k"] == 3
    assert len(set(sample["k"].tolist())) > 20
    sample["obs", "state"] += 1  # what came is the caller's
    assert torch.equal(buffer[index]["obs", "state"], rows(40)["obs", "state"])


def test_priorities_decide_what_is_drawn_and_weights_make_up_for_it(parts):
    made = parts(alpha=0.5, beta=1.0)
    buffer = TensorDictReplayBuffer(**made, priority_key="error", batch_size=256)
    added = rows(8)
    added["error"] = torch.tensor([1.0, 4.0, 9.0, 16.0, 25.0, 36.0, 49.0, 64.0])
    buffer.extend(added)
    sample = buffer.sample()
    assert sample["priority_weight"].dtype == torch.float32
    expected = 1 / (sample["k"] + 1.0)
    torch.testing.assert_close(sample["priority_weight"], expected / expected.max())
    counts = torch.bincount(sample["k"], minlength=8) / 256
    torch.testing.assert_close(counts, torch.arange(1.0, 9) / 36, atol=2 / 256, rtol=0)  # one draw from each 256th part
    sample["error"] = torch.where(sample["k"] == 2, 1e6, 0.0)
    buffer.update_tensordict_priority(sample)
    assert set(buffer.sample()["k"].tolist()) == {2}
    assert made["sampler"].stale == 0
    buffer.update_priority(buffer.sample()["index"][:1], 0.0)
    assert len(set(buffer.sample()["k"].tolist())) == 8, "eps keeps a priority of 0 above it"


def test_items_are_added_one_by_one_too_and_new_ones_have_the_largest_priority(parts):
    buffer = TensorDictReplayBuffer(**parts(alpha=1.0), priority_key="error", batch_size=100)
    for number in range(3):
        row = rows(1, number)[0]
        row["error"] = torch.tensor(float(number))
        index = buffer.add(row)
        assert torch.equal(buffer[torch.tensor([index])]["k"], torch.tensor([number]))
    table = buffer.storage.table
    assert table.info()["max_priority"] == pytest.approx(2.0)
    plain = TensorDictReplayBuffer(
        storage=buffer.storage, sampler=TableSampler(buffer.storage), writer=TableWriter(), batch_size=100
    )
    row = rows(1, 3)[0]
    row["error"] = torch.tensor(0.0)
    new = plain.add(row)
    details = table.sample(4, replace=False, details=True)
    assert details.priorities[list(details.ids).index(new)] == pytest.approx(2.0)


def test_the_oldest_leave_and_their_ids_are_never_those_of_others(parts):
    made = parts(8)
    buffer = TensorDictReplayBuffer(**made, batch_size=32)
    old = buffer.extend(rows(6))
    kept = buffer.extend(rows(6, 6))
    assert len(buffer) == 8
    assert set(buffer.sample()["k"].tolist()) == set(range(4, 12))
    assert old[0] not in buffer.storage
    assert kept[0] in buffer.storage
    assert buffer.storage.contains(old).tolist() == [False] * 4 + [True] * 2
    buffer.update_priority(torch.cat([old[:2], kept[:1]]), torch.tensor([1e9, 1e9, 5.0]))
    assert made["sampler"].stale == 2
    assert buffer.storage.table.info()["max_priority"] == pytest.approx(5.0), "that of an item that left was left out"
    with pytest.raises(rs.ServerError, match="has left"):
        buffer[old[:1]]
    assert len(buffer.extend(rows(20, 12))) == 20
    assert set(buffer.sample()["k"].tolist()) == set(range(24, 32)), "more than it holds: the last of them"
    buffer.empty()
    assert len(buffer) == buffer.write_count == 0
    buffer.extend(rows(3))
    assert len(buffer) == 3


def test_large_batches_are_added_in_parts(parts, monkeypatch):
    monkeypatch.setattr(adapter, "MOST_BYTES", 1000)
    buffer = TensorDictReplayBuffer(**parts(), batch_size=32)
    index = buffer.extend(rows(90))
    assert torch.equal(buffer[index]["k"], torch.arange(90))


def test_batches_are_drawn_ahead_and_transformed(parts):
    def double(batch: Any) -> Any:
        return batch.set("twice", batch["k"] * 2)

    buffer = TensorDictReplayBuffer(**parts(), batch_size=16, prefetch=3, transform=double)
    buffer.extend(rows(20))
    for number, batch in enumerate(buffer):
        assert torch.equal(batch["twice"], 2 * batch["k"])
        assert torch.equal(batch["obs", "state"][:, 0], batch["k"] / 2)
        if number == 10:
            break
    buffer.synchronize()  # TorchRL's transforms do not change while they run in another thread
    buffer.append_transform(lambda batch: batch.exclude("half"))
    drawn = [buffer.sample() for _ in range(5)]
    assert "half" not in drawn[-1]
    buffer.shutdown()


def test_trajectories_are_items_with_a_dimension_of_time(parts):
    buffer = TensorDictReplayBuffer(**parts(alpha=1.0), batch_size=32)
    steps = TensorDict({"x": torch.arange(12.0).view(4, 3), "td_error": torch.eye(4, 3)}, [4, 3])
    index = buffer.extend(steps)
    assert len(index) == len(buffer) == 4
    sample = buffer.sample()
    assert sample.batch_size == (32, 3)
    assert set(sample["x"][:, 0].tolist()) == {0.0, 3.0, 6.0}, "the largest error of its steps is an item's priority"
    sample["td_error"] = torch.ones(32, 3)
    buffer.update_tensordict_priority(sample)
    assert buffer.storage.table.info()["max_priority"] == pytest.approx(1.0)


def test_sequences_of_any_length_are_nested_tensors(parts):
    buffer = TensorDictReplayBuffer(**parts(), batch_size=16)
    tokens = [torch.arange(length, dtype=torch.int32) for length in (1, 5, 3)]
    added = TensorDict({"tokens": torch.nested.nested_tensor(tokens, layout=torch.jagged), "k": torch.arange(3)}, [3])
    index = buffer.extend(added)
    found = buffer[index]
    assert [each.tolist() for each in found["tokens"].unbind()] == [each.tolist() for each in tokens]
    sample = buffer.sample()
    for each, k in zip(sample["tokens"].unbind(), sample["k"].tolist(), strict=True):
        assert each.dtype == torch.int32
        assert each.tolist() == tokens[k].tolist()
    with pytest.raises(rs.SchemaError, match="expected a nested tensor with the jagged layout"):
        buffer.extend(TensorDict({"tokens": torch.nested.nested_tensor(tokens), "k": torch.arange(3)}, [3]))


def test_tensorclasses_come_back_as_what_they_were(parts):
    @tensordict.tensorclass
    class Labelled:
        image: torch.Tensor
        label: torch.Tensor

    buffer = ReplayBuffer(**parts(), batch_size=12)
    labels = torch.arange(30)
    buffer.extend(Labelled(image=labels[:, None].expand(-1, 4).contiguous(), label=labels, batch_size=[30]))
    sample = buffer.sample()
    assert type(sample) is Labelled
    assert torch.equal(sample.image[:, 2], sample.label)


def saved(buffer: Any, way: str, folder: Any, empty: Any) -> None:
    """Brings what one buffer holds to another."""
    if way == "dumps":
        buffer.dumps(folder / "buffer")
        empty.loads(folder / "buffer")
        return
    torch.save(buffer.state_dict(), folder / "buffer.pt")
    empty.load_state_dict(torch.load(folder / "buffer.pt", weights_only=True))


@pytest.mark.parametrize("way", ["dumps", "state_dict"])
def test_what_is_saved_comes_back_with_ids_and_priorities(way, tmp_path, parts):
    made = parts(alpha=0.8, beta=0.7)
    buffer = TensorDictReplayBuffer(**made, batch_size=50)
    index = buffer.extend(rows(20))
    buffer.update_priority(index, torch.arange(20.0))
    others = parts(alpha=0.5, table=made["storage"].state_dict()["table"]) if local(made) else made
    empty = TensorDictReplayBuffer(**others, batch_size=50)
    saved(buffer, way, tmp_path, empty)
    assert len(empty) == 20
    assert torch.equal(empty[index]["k"], torch.arange(20))
    assert (empty.sampler.alpha, empty.sampler.beta) == (0.8, 0.7)
    assert empty.write_count == 20
    before, after = buffer.storage.table.info(), empty.storage.table.info()
    assert before["total_priority"] == pytest.approx(after["total_priority"])
    empty.extend(rows(1, 20))
    assert len(empty) == 21
    with pytest.raises(ValueError, match="expected the state of table 'another'"):
        saved(buffer, way, tmp_path, TensorDictReplayBuffer(**parts(table="another"), batch_size=50))


def test_the_state_of_a_table_is_not_loaded_where_the_table_is_not(server, tmp_path):
    here = TensorDictReplayBuffer(**table_parts(100, table="moved"), batch_size=50)
    here.extend(rows(20))
    there = TensorDictReplayBuffer(**table_parts(100, table="moved", url=server.url), batch_size=50)
    for one, other, told in ((here, there, "'moved' on a server, got"), (there, here, "'moved' in a process, got")):
        with pytest.raises(ValueError, match=told):
            other.load_state_dict(one.state_dict())
    here.load_state_dict(TensorDictReplayBuffer(**table_parts(100, table="moved"), batch_size=50).state_dict())
    assert len(here) == 0, "that of a buffer that held nothing"


def test_a_folder_names_a_snapshot_that_any_buffer_restores(tmp_path):
    buffer = TensorDictReplayBuffer(**table_parts(100, alpha=1.0), batch_size=50)
    index = buffer.extend(rows(20))
    buffer.dumps(tmp_path / "buffer")
    folder = tmp_path / "buffer" / "storage"
    named = json.loads((folder / "storage.json").read_text())["snapshot"]
    plain = rs.Buffer(rs.Table.unpack((folder / "spec.msgpack").read_bytes()))
    plain.restore(folder / named)
    assert plain.get(index.numpy().view(np.uint64)).data["k"].tolist() == list(range(20))


@pytest.mark.parametrize("way", ["dumps", "state_dict"])
@pytest.mark.parametrize("holds", [0, 5])
def test_a_state_that_cannot_be_loaded_changes_nothing(way, holds, tmp_path):
    buffer = TensorDictReplayBuffer(**table_parts(100), batch_size=50)
    buffer.extend(rows(20))
    buffer.dumps(tmp_path / "buffer")
    folder, state = tmp_path / "buffer" / "storage", buffer.storage.state_dict()
    for wrong, error, told in [
        ("damaged", rs.ServerError, "snapshot"),
        ("smaller", (ValueError, rs.SchemaError), "capacity"),
    ]:
        storage = TableStorage(50 if wrong == "smaller" else 100)
        if holds:
            storage.append(rows(holds))
        snapshot = state["snapshot"].clone()
        if wrong == "damaged":
            snapshot[len(snapshot) // 2] ^= 255
        (folder / "table.snapshot").write_bytes(snapshot.numpy().tobytes())
        with pytest.raises(error, match=told):
            storage.loads(folder) if way == "dumps" else storage.load_state_dict({**state, "snapshot": snapshot})
        assert (len(storage), storage.initialized) == (holds, holds > 0)
        storage.append(rows(3, holds))
        assert len(storage) == holds + 3
    with pytest.raises(ValueError, match="expected the state of a TableStorage"):
        buffer.storage.load_state_dict(data.LazyTensorStorage(100).state_dict())
    assert len(buffer) == 20


def local(made: dict[str, Any]) -> bool:
    return isinstance(made["storage"].table, rs.Buffer) if made["storage"].initialized else True


def test_a_copy_holds_what_the_buffer_held(tmp_path):
    buffer = TensorDictReplayBuffer(**table_parts(100), batch_size=50)
    index = buffer.extend(rows(20))
    copy = pickle.loads(pickle.dumps(buffer))  # noqa: S301
    buffer.empty()
    assert torch.equal(copy[index]["k"], torch.arange(20))
    assert set(copy.sample()["k"].tolist()) <= set(range(20))


def test_a_buffer_in_process_is_not_sent_to_another(tmp_path):
    buffer = TensorDictReplayBuffer(**table_parts(100), batch_size=50)
    buffer.extend(rows(2))
    with pytest.raises(TypeError, match="keep it on a server, with url="):
        multiprocessing.get_context("spawn").Process(target=len, args=(buffer,)).start()


def test_a_buffer_on_a_server_is_one_in_every_process(server):
    buffer = TensorDictReplayBuffer(**table_parts(100, url=server.url, table="shared", alpha=0.9), batch_size=10)
    buffer.extend(rows(20))
    child = multiprocessing.get_context("spawn").Process(target=buffer.extend, args=(rows(5, 20),))
    child.start()
    child.join(300)
    assert child.exitcode == 0
    assert len(buffer) == 25
    program = (
        "import pickle, sys; buffer = pickle.load(sys.stdin.buffer); "
        "print(len(buffer), buffer.sample()['k'].shape[0], buffer.sampler.alpha)"
    )
    done = subprocess.run([sys.executable, "-c", program], input=pickle.dumps(buffer), capture_output=True, timeout=300)
    assert done.stdout.split() == [b"25", b"10", b"0.9"], done.stderr[-2000:]


def test_a_table_that_is_there_is_used_as_it_is(server):
    table = rs.Table("atari", 50, {"obs": {"x": rs.Column("float32", (2,))}, "pair": (rs.Column("int64"),) * 2})
    items = {"obs": {"x": np.ones((4, 2), np.float32)}, "pair": (np.arange(4), np.arange(4) + 10)}
    priorities = [1.0, 2.0, 3.0, 4.0]
    with rs.Client(server.url) as client:
        client.create_table(table)
        holders = [rs.Buffer(table), client["atari"]]
        for holder in holders:
            holder.add(items, priorities)
            storage = TableStorage(table=holder)
            buffer = TensorDictReplayBuffer(
                storage=storage, sampler=TableSampler(storage, beta=1.0), writer=TableWriter(), batch_size=8
            )
            assert len(buffer) == 4
            assert storage.max_size == 50
            assert holder.info()["max_priority"] == 4.0, "a new buffer leaves priorities as they are"
            sample = buffer.sample()
            assert torch.equal(sample["pair", "0"] + 10, sample["pair", "1"])
            buffer.extend(sample.select("obs", "pair"))
            assert len(buffer) == 12
        by_name = TensorDictReplayBuffer(**table_parts(url=server.url, table="atari"), batch_size=8)
        assert len(by_name) == 12
        with pytest.raises(ValueError, match="expected max_size=50, the capacity of 'atari', got 10"):
            TableStorage(10, url=server.url, table="atari")
    with pytest.raises(ValueError, match="either a table or what to make one of"):
        TableStorage(table=rs.Buffer(table), url=server.url)
    with pytest.raises(ValueError, match="expected max_size, the items"):
        TableStorage()


def test_the_rate_limiter_refuses_a_sample_or_has_it_wait(parts):
    name = f"limited-{next(numbers)}"
    made = parts(table=name, rate_limiter=rs.MinSize(10))
    buffer = TensorDictReplayBuffer(**made, batch_size=4)
    with pytest.raises(RuntimeError, match="Cannot sample from an empty storage"):
        buffer.sample()
    assert not buffer.can_sample()
    buffer.extend(rows(9))
    assert not buffer.can_sample()
    with pytest.raises(rs.Timeout, match="min_size_to_sample = 10"):
        buffer.sample()
    storage = TableStorage(table=made["storage"].table)
    waiting = TensorDictReplayBuffer(
        storage=storage, sampler=TableSampler(storage, timeout=None), writer=TableWriter(), batch_size=4
    )
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(waiting.sample()))
    thread.start()
    buffer.extend(rows(1, 9))
    thread.join(300)
    assert len(found[0]) == 4
    assert buffer.can_sample()


def test_schedulers_change_the_exponents(parts):
    made = parts(alpha=1.0, beta=0.0)
    buffer = TensorDictReplayBuffer(**made, batch_size=4)
    buffer.extend(rows(10))
    scheduler = LinearScheduler(buffer, param_name="beta", final_value=1.0, num_steps=4)
    scheduler.step()
    assert made["sampler"].beta == pytest.approx(0.25)
    made["sampler"].alpha = 0.25
    assert made["storage"].table.table.sampler.priority_exponent == 0.25
    buffer.update_priority(buffer.sample()["index"], 1e12)
    assert made["storage"].table.info()["total_priority"] == pytest.approx(1000 * 4 + 6, rel=0.5)


def test_other_parts_of_torchrl_are_refused_beside_it(parts):
    storage = parts()["storage"]
    with pytest.raises(TypeError, match="expected a TableStorage"):
        ReplayBuffer(storage=data.LazyTensorStorage(10), writer=TableWriter(), batch_size=4)
    with pytest.raises(TypeError, match="expected a TableStorage"):
        TableSampler(data.LazyTensorStorage(10))
    with pytest.raises(TypeError, match="expected a TableWriter"):
        TensorDictReplayBuffer(storage=storage, sampler=TableSampler(storage)).extend(rows(2))
    uniform = TensorDictReplayBuffer(storage=storage, writer=TableWriter(), batch_size=4)
    uniform.extend(rows(4))
    with pytest.raises(TypeError, match="expected a TableSampler"):
        uniform.sample()
    with pytest.raises(TypeError, match="expected ids of items"):
        uniform[:]
    with pytest.raises(TypeError, match="cannot be changed"):
        uniform[uniform.extend(rows(1))] = rows(1)
    with pytest.raises(ValueError, match="at least 0, got -1"):
        TableSampler(storage, beta=-1)
    with pytest.raises(ValueError, match="expected one of max, min, mean, median as reduction, got 'sum'"):
        TableSampler(storage, reduction="sum")


def test_what_a_table_cannot_hold_is_refused_and_nothing_is_stored(parts):
    buffer = TensorDictReplayBuffer(**parts(), batch_size=4)
    words = TensorDict({"x": torch.zeros(2), "word": tensordict.NonTensorData("one", [2])}, [2])
    with pytest.raises(rs.SchemaError, match="'word': expected a tensor"):
        buffer.extend(words)
    with pytest.raises(rs.SchemaError, match="without a slash"):
        buffer.extend(TensorDict({"a/b": torch.zeros(2)}, [2]))
    with pytest.raises(rs.SchemaError, match="at least one tensor"):
        buffer.extend(TensorDict({}, [2]))
    with pytest.raises(TypeError, match="expected a TensorDict"):
        ReplayBuffer(**parts(), batch_size=4).extend([1, 2, 3])
    buffer.extend(rows(5))
    with pytest.raises(rs.SchemaError, match="missing: half"):
        buffer.extend(rows(5).exclude("half"))
    with pytest.raises(rs.SchemaError, match="k"):
        buffer.extend(rows(5).apply(lambda tensor: tensor.to(torch.float16)))
    with pytest.raises(rs.PriorityError):
        buffer.update_priority(buffer.sample()["index"], -1.0)
    with pytest.raises(ValueError, match="one priority or one for each of 4"):
        buffer.update_priority(buffer.sample()["index"], torch.ones(3))
    assert len(buffer) == 5


@pytest.mark.parametrize("count", [0, 5])
def test_what_is_not_stored_leaves_the_form_of_what_is_drawn(count, parts):
    """Batches were then drawn with the batch dimensions of what had been refused or was empty."""
    buffer = TensorDictReplayBuffer(**parts(), batch_size=4)
    buffer.extend(rows(5))
    longer = TensorDict({"k": torch.zeros(count, 7, dtype=torch.int64)}, [count, 7])
    if count:
        with pytest.raises(rs.SchemaError, match="missing"):
            buffer.extend(longer)
    else:
        buffer.extend(longer)
    assert buffer.sample().batch_size == (4,)
