"""`replay-server bench samplers` and `transferqueue` measure every way and write what they measured."""

from __future__ import annotations

import json

import pytest

from replay_server.bench.main import main


def test_the_sampler_benchmark_measures_every_way(tmp_path, capsys):
    pytest.importorskip("torch")
    file = tmp_path / "samplers.json"
    sizes = ["--batch", "32", "--capacity", "300", "--seconds", "0.1", "--rounds", "1"]
    assert main(["samplers", *sizes, "--json", str(file)]) == 0
    content = json.loads(file.read_text())
    ways = {"tcp", "tcp_in_flight", "tcp_once", "shared", "shared_once", "wire"}
    ways |= {"torch_tcp", "torch_tcp_in_flight", "torch_shared"}
    assert {name.partition(".")[0] for name, rate in content["median"].items() if rate > 0} == ways
    assert len(content["ratio"]) == 7
    assert "several in flight / one" in capsys.readouterr().out


@pytest.mark.slow
def test_the_transferqueue_benchmark_measures_every_side(tmp_path):
    pytest.importorskip("transfer_queue", reason="TransferQueue is not installed: pip install TransferQueue")
    file = tmp_path / "transferqueue.json"
    sizes = ["--samples", "8", "--field-bytes", "1000", "--small", "5", "--rounds", "1"]
    assert main(["transferqueue", *sizes, "--json", str(file)]) == 0
    content = json.loads(file.read_text())
    assert len(content["ratio"]) == 8
    assert all(ratio > 0 for ratio in content["ratio"].values())
