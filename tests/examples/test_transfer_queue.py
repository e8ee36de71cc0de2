"""TransferQueue's values on a server, through TransferQueue's own interfaces."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
REASON = "TransferQueue is not installed: pip install TransferQueue"
transfer_queue: Any = pytest.importorskip("transfer_queue", reason=REASON)

from transfer_queue.storage.clients.base import StorageClientFactory  # noqa: E402

import replay_server as rs  # noqa: E402
from replay_server.adapters import transfer_queue as adapter  # noqa: E402


@pytest.fixture(scope="module")
def server() -> Iterator[rs.Server]:
    with rs.Server() as running:
        yield running


@pytest.fixture
def storage(server: rs.Server) -> Iterator[Any]:
    made = StorageClientFactory.create("ReplayServerClient", {"url": server.url, "prefix": "test:"})
    yield made
    made.close()


VALUES: list[Any] = [
    torch.arange(12, dtype=torch.float32).reshape(3, 4),
    torch.tensor(7),
    torch.empty(0, 3, dtype=torch.int64),
    torch.ones(5, dtype=torch.bfloat16) * 1.5,
    torch.tensor([True, False]),
    torch.arange(6).reshape(2, 3).T,
    torch.ones(2, requires_grad=True),
    np.arange(4, dtype=np.int16),
    np.array([b"one", b"three"]),
    np.array(["ümlaut", ""]),
    "a prompt with ümlauts",
    b"\x00\xff",
    None,
    3,
    2.5,
    [1, "two", (3, None)],
    {"ids": torch.arange(3), "nested": {"score": np.float32(0.5), 1: "one"}},
]


def assert_same(found: Any, expected: Any) -> None:
    if isinstance(expected, torch.Tensor):
        assert found.dtype == expected.dtype
        assert torch.equal(found, expected.detach())
    elif isinstance(expected, np.ndarray | np.generic):
        assert found.dtype == expected.dtype
        np.testing.assert_array_equal(found, expected)
    elif isinstance(expected, dict):
        assert list(found) == list(expected)
        for key, value in expected.items():
            assert_same(found[key], value)
    else:
        assert type(found) is type(expected)
        assert found == expected


def test_values_come_back_as_they_were_in_the_order_of_the_keys(storage):
    keys = [f"{number}@field" for number in range(len(VALUES))]
    assert storage.put(keys, VALUES) is None
    for found, expected in zip(storage.get(keys), VALUES, strict=True):
        assert_same(found, expected)
    for found, expected in zip(storage.get(keys[::-1]), VALUES[::-1], strict=True):
        assert_same(found, expected)
    storage.put(["row"], [{"bytes": np.array([b"one"])[0], "text": np.str_("two")}])
    assert_same(storage.get(["row"]), [{"bytes": b"one", "text": "two"}])
    first = storage.get(keys[:1])[0]
    first += 1  # what came is the caller's
    assert_same(storage.get(keys[:1])[0], VALUES[0])


def test_a_put_replaces_and_a_clear_removes(storage):
    storage.put(["1@a", "2@a"], [torch.zeros(2), torch.ones(2)])
    storage.put(["1@a"], [torch.full((3,), 9.0)])
    assert storage.get(["1@a"])[0].tolist() == [9.0, 9.0, 9.0]
    storage.clear(["1@a", "never there"])
    with pytest.raises(KeyError, match="1 of 2 keys have no value, '1@a' among them"):
        storage.get(["2@a", "1@a"])
    assert storage.get(["2@a"])[0].tolist() == [1.0, 1.0]


def test_more_keys_than_one_command_takes(storage, monkeypatch):
    monkeypatch.setattr(adapter, "MOST_KEYS", 7)
    monkeypatch.setattr(adapter, "MOST_BYTES", 1000)
    keys = [f"{number}@many" for number in range(100)]
    storage.put(keys, [torch.full((number,), number) for number in range(100)])
    assert [len(value) for value in storage.get(keys)] == list(range(100))
    storage.clear(keys)
    with pytest.raises(KeyError):
        storage.get(keys[50:51])
    storage.put([], [])
    assert storage.get([]) == []


def test_what_would_have_to_be_pickled_is_refused_and_nothing_is_stored(storage):
    with pytest.raises(TypeError, match=r"'2@b': expected tensors, .*nothing is pickled.*got builtins.object"):
        storage.put(["1@b", "2@b"], [torch.zeros(1), object()])
    with pytest.raises(KeyError):
        storage.get(["1@b"])
    with pytest.raises(ValueError, match="as many values as keys, 1, got 2"):
        storage.put(["1@b"], [1, 2])
    with pytest.raises(ValueError, match="expected a list, got str"):
        storage.get("1@b")


@pytest.mark.slow
def test_its_own_interface_puts_gets_and_clears_through_a_controller(server):
    ray = pytest.importorskip("ray")
    omegaconf: Any = pytest.importorskip("omegaconf")
    tensordict: Any = pytest.importorskip("tensordict")
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, runtime_env={"env_vars": path_of_this_process()})
    try:
        backend = {"storage_backend": "ReplayServer", "ReplayServer": {"url": server.url, "prefix": "queue:"}}
        transfer_queue.init(omegaconf.OmegaConf.create({"backend": backend}))
        fields = tensordict.TensorDict(
            {"input_ids": torch.arange(8).reshape(4, 2), "reward": torch.arange(4.0)[:, None]}, batch_size=4
        )
        keys = [f"sample{number}" for number in range(4)]
        transfer_queue.kv_batch_put(keys=keys, partition_id="train", fields=fields, tags=[{} for _ in keys])
        with rs.Client(server.url) as client:
            assert len(client.redis.keys("queue:*")) == 8
            found = transfer_queue.kv_batch_get(keys=keys, partition_id="train")
            for name in ("input_ids", "reward"):  # of its own, it gives rows of any length
                assert torch.equal(torch.stack(list(found[name].unbind())), fields[name])
            transfer_queue.kv_clear(keys=keys, partition_id="train")
            assert client.redis.keys("queue:*") == []
    finally:
        transfer_queue.close()
        ray.shutdown()


def path_of_this_process() -> dict[str, str]:
    """Where Ray's processes find what is installed for this one."""
    return {"PYTHONPATH": ":".join(path for path in sys.path if path)}
