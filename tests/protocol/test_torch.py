"""Tensors from a table: in this process, in the workers of a DataLoader, and in tasks of Ray; and priorities back."""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import os
import random
import signal
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch.utils.data import DataLoader  # noqa: E402

import replay_server as rs  # noqa: E402
from replay_server.torch import IterableDataset, PriorityUpdates, sampler  # noqa: E402

SIGNATURE = {
    "obs": {"image": rs.Column("uint8", (96, 96)), "state": rs.Column("float32", (3,))},
    "pair": (rs.Column("int64"), rs.Column("uint8")),
    "k": rs.Column("int64"),
}


def rows(*keys: int) -> dict[str, Any]:
    numbers = np.array(keys)
    image = np.broadcast_to(numbers.astype(np.uint8)[:, None, None], (len(keys), 96, 96)).copy()
    state = np.repeat(numbers.astype(np.float32)[:, None], 3, axis=1)
    return {"obs": {"image": image, "state": state}, "pair": (numbers, numbers.astype(np.uint8)), "k": numbers}


def check(batch: Any) -> None:
    for column in (batch.data["obs"]["state"][:, 2], batch.data["obs"]["image"][:, 5, 7], *batch.data["pair"]):
        assert torch.equal(column.long() % 256, batch.data["k"] % 256)
    assert batch.data["obs"]["image"].dtype == torch.uint8
    assert batch.weights.dtype == torch.float32
    assert batch.ids.dtype == np.uint64


@pytest.fixture(params=["in process", "socket", "shared memory"])
def handle(request, server, make_table):
    """A table of 200 items."""
    if request.param == "in process":
        made = rs.Buffer(rs.Table("t", 1000, SIGNATURE))
        made.add(rows(*range(200)))
        yield made
        return
    with rs.Client(server.url, shared_memory=None if request.param == "shared memory" else False) as client:
        made = client[make_table(1000, SIGNATURE)]
        made.add(rows(*range(200)))
        yield made


@pytest.mark.parametrize("several", [{}, {"workers": 2, "in_flight": 4}])
def test_batches_are_tensors_in_the_form_of_the_signature_and_stay_as_they_were(handle, several):
    kept = []
    with sampler(handle, 32, prefetch=3, beta=0.4, **several) as batches:
        for _ in range(40):
            batch = next(batches)
            check(batch)
            kept.append(batch)
    for batch in kept:
        check(batch)


def test_a_tensor_on_the_cpu_lies_over_what_was_received(handle):
    batch = handle.sample(8)
    tensors = batch.torch()
    check(tensors)
    assert tensors.data["obs"]["image"].data_ptr() == batch.data["obs"]["image"].ctypes.data
    assert batch.to("cpu").columns["obs/image"].data_ptr() == batch.data["obs"]["image"].ctypes.data
    doubled = batch.to("cpu").to("meta")
    assert doubled.data["pair"][0].device.type == doubled.weights.device.type == "meta"


@pytest.mark.parametrize("where", ["in process", "socket", "shared memory"])
def test_columns_of_bfloat16_become_torch_s_own(where, server, make_table):
    signature = {"h": rs.Column("bfloat16", (3, 5000)), "bits": rs.Column("uint16"), "z": rs.Column("complex64")}
    given = torch.randn(20, 3, 5000).to(torch.bfloat16)
    rest = {"bits": np.arange(20, dtype=np.uint16), "z": (np.arange(20) * 1j).astype(np.complex64)}
    with rs.Client(server.url, shared_memory=None if where == "shared memory" else False) as client:
        buffer = rs.Buffer(rs.Table("t", 100, signature))
        handle = buffer if where == "in process" else client[make_table(100, signature)]
        handle.add({"h": given, **rest})
        with sampler(handle, 8) as batches:
            for _ in range(6):
                data = next(batches).data
                assert (data["h"].dtype, data["bits"].dtype, data["z"].dtype) == (
                    torch.bfloat16, torch.uint16, torch.complex64,
                )  # fmt: skip
                assert torch.equal(data["h"], given[data["bits"].long()])
        single = handle.sample(4).torch()
        assert torch.equal(single.data["h"], given[single.data["bits"].long()])


@pytest.mark.parametrize("where", ["in process", "socket", "shared memory"])
def test_ragged_columns_are_values_and_offsets(where, server, make_table):
    signature = {"tokens": rs.Column("int32", (None,)), "k": rs.Column("int64")}
    lengths = [1, 4, 0, 7, 300]
    given = [np.arange(length, dtype=np.int32) for length in lengths]
    with rs.Client(server.url, shared_memory=None if where == "shared memory" else False) as client:
        buffer = rs.Buffer(rs.Table("t", 100, signature))
        handle = buffer if where == "in process" else client[make_table(100, signature)]
        handle.add({"tokens": given, "k": np.arange(5)})
        kept = []
        with sampler(handle, 16) as batches:
            for _ in range(8):
                kept.append(next(batches))
        for data in [batch.data for batch in kept] + [handle.sample(8).torch().data]:
            tokens, keys = data["tokens"], data["k"].tolist()
            assert tokens.lengths.tolist() == [lengths[key] for key in keys]
            longest = max(lengths[key] for key in keys)
            padded = tokens.padded(-1)
            assert padded.shape == tokens.mask.shape == (len(keys), longest)
            for row, key, nested in zip(padded, keys, tokens.nested().unbind(), strict=True):
                assert row.tolist() == [*range(lengths[key]), *[-1] * (longest - lengths[key])]
                assert nested.tolist() == given[key].tolist()
            if longest:
                with pytest.raises(rs.SchemaError, match="the longest item's"):
                    tokens.padded(length=longest - 1)


def test_tensors_of_a_writable_sampler_may_be_written_to(handle):
    with sampler(handle, 16, writable=True) as batches:
        for _ in range(20):
            batch = next(batches)
            check(batch)
            batch.data["obs"]["state"] /= 255


def test_a_batch_of_tensors_tells_the_details_that_were_asked_for(handle):
    handle.update_priorities(handle.sample(200, replace=False).ids, np.full(200, 3.0))
    single = handle.sample(8, details=True)
    tensors = single.torch()
    assert (tensors.priorities == 3).all()
    for name in ("priorities", "times_sampled", "ages", "table_sizes"):
        np.testing.assert_array_equal(getattr(tensors.to("meta"), name), getattr(single, name))
    with sampler(handle, 16, details=True) as batches:
        batch = next(batches)
        assert (batch.table_sizes == 200).all()
        assert (batch.times_sampled >= 1).all()
    with sampler(handle, 16) as batches, pytest.raises(AttributeError, match="details=True"):
        _ = next(batches).priorities


def test_a_batch_of_tensors_tells_which_shards_are_missing():
    buffer = rs.Buffer(rs.Table("t", 10, {"k": rs.Column("int64")}))
    buffer.add({"k": [1]})
    batch = dataclasses.replace(buffer.sample(2), missing=(3,))
    assert batch.torch().to("meta").missing == (3,)


@pytest.mark.parametrize("where", ["in process", "server"])
def test_a_column_of_bytes_is_refused_by_its_name(where, client, make_table):
    signature = {"x": rs.Column("float32"), "info": {"tag": rs.Column("S4")}}
    handle = rs.Buffer(rs.Table("t", 10, signature)) if where == "in process" else client[make_table(10, signature)]
    handle.add({"x": np.ones(3, np.float32), "info": {"tag": [b"a", b"b", b"c"]}})
    refusal = r"column 'info/tag' holds bytes \(S4\), which torch has no dtype for: leave it out with columns=\['x'\]"
    with pytest.raises(rs.SchemaError, match=refusal):
        handle.sample(2).torch()
    with pytest.raises(rs.SchemaError, match=refusal):
        sampler(handle, 2)
    with sampler(handle, 2, columns=["x"]) as batches:
        assert next(batches).data["x"].tolist() == [1, 1]
    assert handle.sample(2, columns=["x"]).torch().data["x"].tolist() == [1, 1]


def test_a_table_that_was_made_anew_without_bytes_is_sampled(client, make_table):
    name = make_table(10, {"tag": rs.Column("S4")})
    client.add(name, {"tag": [b"a"]})
    client.drop_table(name)
    with rs.Client(client.url) as other:
        other.create_table(rs.Table(name, 10, {"tag": rs.Column("int32")}))
        other.add(name, {"tag": [3]})
    with sampler(client[name], 2) as batches:  # this client still knows the one with bytes
        assert next(batches).data["tag"].tolist() == [3, 3]


@pytest.mark.parametrize(
    ("options", "error", "told"),
    [
        ({"beta": -1}, ValueError, r"\(beta\) must be a number from 0 to 100, got -1"),
        ({"beta": "x"}, ValueError, r"\(beta\) must be a number from 0 to 100, got 'x'"),
        ({"timeout": -1}, ValueError, "timeout must be None or at least 0 seconds, got -1"),
        ({"columns": ["no"]}, rs.SchemaError, "has no column 'no'"),
        ({"columns": "k"}, rs.SchemaError, r"columns must be a list of names, got the string 'k': write \['k'\]"),
        ({"prefetch": 1.5}, ValueError, "prefetch must be a whole number of at least 1 batch, got 1.5"),
        ({"device": "mps"}, ValueError, r"device must be cpu or cuda, got 'mps': sample on the CPU and use batch\.to"),
        ({"device": "nowhere"}, ValueError, "device must be cpu or cuda, got 'nowhere'"),
        ({"device": "cuda:99"}, ValueError, "device 'cuda:99' is not there"),
    ],
)
def test_a_wrong_option_is_refused_when_the_sampler_is_made(handle, options, error, told):
    with pytest.raises(error, match=told):
        sampler(handle, 4, **options)


def test_what_is_no_table_is_refused_and_says_what_is_expected(client):
    for made in (sampler, IterableDataset):
        with pytest.raises(TypeError, match=r'expected a table, client\["atari"\] or an rs\.Buffer, got'):
            made(client, 4)


@pytest.mark.parametrize(
    ("batch_size", "options", "error", "told"),
    [
        (0, {}, ValueError, "batch_size must be at least 1, got 0"),
        (3, {"foo": 1}, TypeError, "unexpected keyword argument 'foo'"),
        (3, {"batches": 2.5}, ValueError, "batches must be a whole number of at least 0, got 2.5"),
        (3, {"batches": -1}, ValueError, "batches must be at least 0, got -1"),
        (3, {"beta": -1}, ValueError, "from 0 to 100"),
        (3, {"in_flight": 0}, ValueError, "in_flight must be at least 1"),
    ],
)
def test_a_wrong_option_of_a_data_set_is_refused_when_it_is_made(handle, batch_size, options, error, told):
    with pytest.raises(error, match=told):
        IterableDataset(handle, batch_size, **options)


def test_beta_is_annealed_and_columns_are_chosen(handle):
    handle.update_priorities(handle.sample(200, replace=False).ids, np.linspace(1, 3, 200))
    with sampler(handle, 64, beta=0.0, prefetch=1, columns=["k"]) as batches:
        batch = next(batches)
        assert list(batch.data) == ["k"]
        assert (batch.weights == 1).all()
        batches.beta = 1.0
        for _ in range(3):
            batch = next(batches)
        assert batch.weights.min() < 1


def test_priorities_come_from_a_tensor_and_the_last_ones_with_the_end(handle):
    with sampler(handle, 50, replace=False) as batches:
        for _ in range(10):
            batch = next(batches)
            priorities = torch.full((50,), 2.0)
            batches.update_priorities(batch.ids, priorities)
            priorities.zero_()  # what was handed over is a copy
    assert handle.info()["max_priority"] == 2.0
    assert handle.info()["updates_applied"] == 500


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_priorities_may_be_of_any_float(handle, dtype):
    ids = handle.sample(10, replace=False).ids
    with PriorityUpdates(handle) as updates:
        updates.update_priorities(ids, torch.full((10,), 1.5, dtype=dtype))
    assert handle.info()["max_priority"] == 1.5


def test_priorities_may_be_an_array_and_keep_their_order(handle):
    with sampler(handle, 50, replace=False) as batches:
        ids = next(batches).ids
        batches.update_priorities(ids, torch.full((50,), 7.0))
        batches.update_priorities(ids, np.full(50, 2.0))
        batches.update_priorities(ids[:2], [2.0, 2.0])
        with pytest.raises(rs.PriorityError, match="expected 50 priorities"):
            batches.update_priorities(ids, np.ones(3))
    assert (handle.get(ids).ids == ids).all()
    assert handle.info()["updates_applied"] == 102
    assert set(handle.sample(200, replace=False, details=True).priorities.tolist()) == {1.0, 2.0}


def test_priorities_with_a_graph_are_refused_and_say_what_to_do(handle):
    ids = handle.sample(2).ids
    graph = torch.ones(2, requires_grad=True) * 2
    with PriorityUpdates(handle) as updates, pytest.raises(rs.PriorityError, match=r"requires grad: \.detach\(\) it"):
        updates.update_priorities(ids, graph)
    with pytest.raises(rs.PriorityError, match="detach"):
        handle.update_priorities(ids, graph)
    assert handle.info()["updates_applied"] == 0


def test_a_wrong_priority_is_raised_by_this_call_or_a_later_one(handle):
    ids = handle.sample(2).ids
    updates = PriorityUpdates(handle)

    def update() -> None:
        updates.update_priorities(ids, torch.full((2,), float("nan")))
        updates.flush()

    with pytest.raises(rs.PriorityError, match=r"NaN|finite|nan"):
        update()
    updates.close()


@pytest.mark.parametrize("start", ["fork", "spawn"])
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_workers_of_a_data_loader_share_the_batches(client, make_table, start, eventually):
    name = make_table(1000, SIGNATURE)
    handle = client[name]
    handle.add(rows(*range(200)))
    before = connections(client)
    dataset = IterableDataset(handle, 16, batches=21)
    loader = DataLoader(dataset, batch_size=None, num_workers=2, multiprocessing_context=start)
    batches = list(loader)
    assert len(batches) == 21
    for batch in batches:
        check(batch)
        assert handle.update_priorities(batch.ids, np.ones(16))[1] == 0
    eventually(lambda: connections(client) <= before, "the workers' connections are gone")
    assert handle.info()["pinned_slots"] == 0


def test_workers_end_where_the_table_is_closed_and_each_item_comes_once(client, make_table):
    name = make_table(1000, SIGNATURE, rate_limiter=rs.Queue(1000), sampler=rs.Fifo(), max_times_sampled=1)
    client.add(name, rows(*range(200)))
    client.close_table(name)
    loader = DataLoader(
        IterableDataset(client[name], 10), batch_size=None, num_workers=2, multiprocessing_context="spawn"
    )
    keys = torch.cat([batch.data["k"] for batch in loader])
    assert sorted(keys.tolist()) == list(range(200))


def test_a_data_set_without_workers_takes_a_buffer_and_with_them_refuses_it():
    buffer = rs.Buffer(rs.Table("t", 100, SIGNATURE))
    buffer.add(rows(*range(50)))
    dataset = IterableDataset(buffer, 8, batches=5)
    assert [len(batch) for batch in DataLoader(dataset, batch_size=None)] == [8] * 5
    with pytest.raises(TypeError, match="on the CPU"):
        IterableDataset(buffer, 8, device="cuda")
    with pytest.raises(TypeError, match="would sample from a copy of this Buffer"):
        list(DataLoader(dataset, batch_size=None, num_workers=1, multiprocessing_context="fork"))


def connections(client: rs.Client) -> int:
    return len(client.redis.client_list())


class Struck(BaseException):
    pass


@contextlib.contextmanager
def survived() -> Iterator[None]:
    """A strike in the midst of one of Python's own waits may leave its lock unlocked, which `Condition` then tells."""
    try:
        yield
    except (Struck, rs.ConnectionLost):
        pass
    except RuntimeError as error:
        if not isinstance(error.__context__, Struck):
            raise


def living_threads() -> int:
    """Without those that were interrupted while they were started, which `threading` lists for ever."""
    return sum(each.is_alive() for each in threading.enumerate())


@pytest.mark.filterwarnings("ignore:Exception ignored:pytest.PytestUnraisableExceptionWarning")
@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")
def test_interrupts_at_random_points_leave_nothing_over(client, make_table, eventually):
    """1,000 operations of samplers, handles and priorities: no thread, connection, lease or pinned slot is left."""
    name = make_table(1000, SIGNATURE)
    client.add(name, rows(*range(200)))
    client.redis.ping()
    draws = random.Random(11)
    threads, open_before = living_threads(), connections(client)

    def strike(number: int, frame: object) -> None:
        raise Struck

    def work(handle: Any) -> None:
        with sampler(handle, 32, workers=1 + (draws.random() < 0.3), prefetch=2) as batches:
            for _ in range(draws.randint(1, 4)):
                batch = next(batches)
                check(batch)
                batches.update_priorities(batch.ids, torch.ones(32))

    operations = 0
    before = signal.signal(signal.SIGALRM, strike)
    try:
        own = rs.Client(client.url)
        while operations < 1000:
            operations += 4
            with survived():  # outside of `finally`: the strike may fall there
                try:
                    signal.setitimer(signal.ITIMER_REAL, 10 ** draws.uniform(-4, -1.5))
                    work(own[name])
                finally:
                    signal.setitimer(signal.ITIMER_REAL, 0)
        own.close()
    finally:
        signal.signal(signal.SIGALRM, before)
    del own

    def nothing_left() -> bool:
        gc.collect()
        info = client.info(name)
        return (
            living_threads() <= threads
            and connections(client) <= open_before
            and info["pinned_slots"] == info["waiting"] == info["reserved_slots"] == 0
        )

    eventually(nothing_left, "as many threads and connections as before, and nothing pinned")
    assert client.info(name)["size"] == 200


@pytest.mark.slow
def test_a_handle_goes_to_tasks_of_ray(client, make_table):
    ray = pytest.importorskip("ray")
    name = make_table(1000, SIGNATURE)
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    try:

        @ray.remote
        def add_and_sample(handle: Any, key: int) -> int:
            handle.add(_rows(key))
            with handle.sampler(4) as batches:
                return len(next(batches))

        def _rows(key: int) -> dict[str, Any]:
            numbers = np.array([key])
            image, state = np.zeros((1, 96, 96), np.uint8), np.zeros((1, 3), np.float32)
            return {"obs": {"image": image, "state": state}, "pair": (numbers, np.zeros(1, np.uint8)), "k": numbers}

        assert ray.get([add_and_sample.remote(client[name], key) for key in range(4)]) == [4] * 4
    finally:
        ray.shutdown()
    assert sorted(client.sample(name, 4, replace=False).data["k"].tolist()) == [0, 1, 2, 3]


def test_a_sampler_is_refused_to_a_forked_child(client, make_table):
    from forked import Child

    name = make_table(100, SIGNATURE)
    client.add(name, rows(1, 2))
    with sampler(client[name], 4) as batches:
        next(batches)

        def told() -> str:
            try:
                next(batches)
            except rs.ReplayError as error:
                return str(error)
            return "nothing"

        assert f"used by process {os.getpid()}" in Child(told).result()
        time.sleep(0)
        check(next(batches))
