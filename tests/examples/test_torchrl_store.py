"""TorchRL's storage on a server that speaks Redis' protocol, with this server in the place of Redis."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

import pytest

torch = pytest.importorskip("torch")
tensordict: Any = pytest.importorskip("tensordict", reason="TorchRL is not installed: pip install torchrl")
data: Any = pytest.importorskip("torchrl.data", reason="TorchRL is not installed: pip install torchrl")
buffers: Any = pytest.importorskip("torchrl.data.replay_buffers")

import replay_server as rs  # noqa: E402


def test_store_storage_keeps_what_a_replay_buffer_extends_by():
    with rs.Server() as server:
        port = urlsplit(server.url).port
        storage = buffers.StoreStorage(max_size=100, host="127.0.0.1", port=port)
        buffer = data.TensorDictReplayBuffer(storage=storage, batch_size=32)
        numbers = torch.arange(150, dtype=torch.float32)
        rows = tensordict.TensorDict(
            {"obs": numbers[:, None].expand(150, 4).contiguous(), "next": {"reward": numbers}}, [150]
        )
        buffer.extend(rows[:80])
        assert len(buffer) == 80
        buffer.extend(rows[80:])
        assert len(buffer) == 100
        for _ in range(5):
            sample = buffer.sample()
            assert sample["obs"].shape == (32, 4)
            assert torch.equal(sample["obs"][:, 3], sample["next", "reward"])
            assert set(sample["next", "reward"].tolist()) <= set(range(50, 150))
        with rs.Client(server.url) as client:
            assert client.redis.dbsize() > 0, "they lie on the server"
