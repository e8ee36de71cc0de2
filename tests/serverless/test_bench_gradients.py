"""``replay-server bench gradients``: both sides come to the same sum, and a quarter of the bytes leaves the server."""

from __future__ import annotations

import json

import numpy as np
import pytest

from replay_server.bench import gradients


def test_weights_are_by_hand():
    """Staleness 0, 1, 8: factors 1, 1 and 1/2."""
    weights = gradients.weights_of(np.array([10, 9, 2]), 10)
    assert weights.tolist() == pytest.approx([0.4, 0.4, 0.2])
    vectors = [np.array(values, np.float32) for values in ([1, 2], [3, 4], [10, -10])]
    assert gradients.weighted_sum(vectors, weights).tolist() == pytest.approx([3.6, 0.4])


def test_a_flush_of_four_sends_a_quarter_of_the_bytes(tmp_path):
    path = tmp_path / "gradients.json"
    lines: list[str] = []
    options = ["--elements", "5000", "--flushes", "6", "--rounds", "1", "--json", str(path)]
    assert gradients.main(options, say=lines.append) == 0
    content = json.loads(path.read_text())
    for dtype in gradients.DTYPES:
        assert content["ratio"][f"5000.{dtype} pull / sum bytes_per_flush"] >= 3.9
        item = 4 if dtype == "float32" else 2
        assert content["median"][f"5000.{dtype}.pull.bytes_per_flush"] > 4 * 5000 * item
        assert content["median"][f"5000.{dtype}.sum.bytes_per_flush"] < 5000 * item + 400
    assert any("ms_p50" in line for line in lines)
