"""Bulk readers share a server in user space evenly, by bytes counted in the server: time says nothing here."""

from __future__ import annotations

import concurrent.futures
import json
from typing import Any

import numpy as np
import pytest

import replay_server as rs
from replay_server.bench import messages, sharing
from replay_server.bench.main import main

QUANTUM_BYTES = {"dpdk": 24_576, "fstack": 32_768}
"""What a connection with much to send gets in one service (sending.h of each)."""
ITEM_BYTES = 8192
READERS = 6
SAMPLES = 12


@pytest.mark.dpdk
@pytest.mark.parametrize("transport", QUANTUM_BYTES)
def test_while_a_bulk_reader_waits_each_other_is_served_once(transport: str, open_site: Any) -> None:
    table = rs.Table("t", 2000, {"x": rs.Column("uint8", (ITEM_BYTES,))}, sampler=rs.Uniform())

    def read(site: Any, url: str) -> None:
        with site.lab.on_client(), rs.Client(url) as client:
            for _ in range(SAMPLES):
                batch = client.sample("t", 1000)
                assert (batch.data["x"] == batch.data["x"][:, :1]).all()

    with open_site(transport, "af_packet") as site, site.entered():
        server = site.serve([table])
        try:
            with rs.Client(server.url) as client:
                # Every byte of an item is the same, so that one out of its place is seen.
                rows = np.arange(2000, dtype=np.uint32).astype(np.uint8)
                client.add("t", {"x": np.repeat(rows[:, None], ITEM_BYTES, axis=1)})
                with concurrent.futures.ThreadPoolExecutor(READERS) as pool:
                    readers = [pool.submit(read, site, server.url) for _ in range(READERS)]
                    while not all(reader.done() for reader in readers):
                        assert client.redis.ping()
                    for reader in readers:
                        reader.result()
                told: Any = client.redis.info("transport")
        finally:
            assert server.stop() == 0, server.log()
    assert told["transport_bytes_out"] > READERS * SAMPLES * 1000 * ITEM_BYTES
    waiting = told["transport_senders_waiting_most"]
    assert 2 <= waiting <= READERS
    assert 0 < told["transport_sender_gap_bytes_most"] < (waiting - 1) * 2 * QUANTUM_BYTES[transport]


@pytest.mark.parametrize("transport", ["kernel", pytest.param("dpdk", marks=pytest.mark.dpdk)])
def test_the_benchmark_tells_the_shares_of_all_readers(
    transport: str, tmp_path: Any, open_site: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    device = "kernel" if transport == "kernel" else "af_packet"
    with open_site(transport, device):
        pass  # skips where it cannot be
    file = tmp_path / "fairness.json"
    sizes = ["--batch", "64", "--capacity", "600", "--push", "5", "--readers", "2"]
    arguments = [*sizes, "--seconds", "0.3", "--rounds", "1", "--device", "af_packet", "--json", str(file)]
    assert main(["fairness", "--transport", transport, *arguments]) == 0
    median = json.loads(file.read_text())["median"]
    side = sharing.side_of(transport, "af_packet")
    for name in ("idle", "2"):
        for what in ("push", "ping"):
            assert 0 < median[f"{side}.{name}.{what}_us_p50"] <= median[f"{side}.{name}.{what}_us_p99.9"]
    assert median[f"{side}.2.share_0"] + median[f"{side}.2.share_1"] == pytest.approx(2, abs=0.01)
    assert messages.ATARI.item_bytes * 64 < median[f"{side}.2.readers_mb_per_s"] * 1e6
    assert "2 bulk readers" in capsys.readouterr().out
