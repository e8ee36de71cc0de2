"""``replay-server bench curvature``: that what it measures is what it says. No timings."""

from __future__ import annotations

import json

import pytest

torch = pytest.importorskip("torch")

from replay_server.bench.main import main as bench  # noqa: E402
from replay_server.bench.papers.nitro import curvature  # noqa: E402


def test_a_hessian_row_by_row_is_the_exact_one():
    x, y, z = (torch.nn.Parameter(torch.tensor(value)) for value in (2.0, 5.0, 1.0))
    hessian = curvature.exact_hessian(x.square() * y + z**3, [x, y, z])
    assert hessian.tolist() == [[10.0, 4.0, 0.0], [4.0, 0.0, 0.0], [0.0, 0.0, 6.0]]


def test_rank_correlation_by_hand():
    assert curvature.rank_correlation([1.0, 5.0, 3.0], [10.0, 30.0, 20.0]) == pytest.approx(1.0)
    assert curvature.rank_correlation([1.0, 2.0, 3.0], [3.0, 2.0, 1.0]) == pytest.approx(-1.0)
    # Differences of ranks 0, 1, 1, 0: 1 − 6·2 / (4·15) = 0.8.
    assert curvature.rank_correlation([1.0, 2.0, 3.0, 4.0], [1.0, 3.0, 2.0, 4.0]) == pytest.approx(0.8)


@pytest.mark.parametrize("algorithm", ["ppo", "impact"])
def test_it_tells_what_a_score_costs(algorithm, tmp_path, capsys):
    path = tmp_path / "curvature.json"
    arguments = ["--env", "CartPole-v1", "--algo", algorithm, "--actors", "2", "--steps", "64", "--rounds", "2"]
    assert bench(["curvature", *arguments, "--samples", "32", "--hidden-exact", "8", "--json", str(path)]) == 0
    content = json.loads(path.read_text())
    assert len(content["rounds"]) == 2
    assert all(2.0 <= each["score_products"] <= 24.0 for each in content["rounds"])
    assert content["ratio"]["score_of_round"] > 0.0
    (small,) = content["exact"]
    assert small["parameters"] == 4 * 8 + 8 + 8 * 8 + 8 + 8 * 2 + 2
    assert small["lanczos_error"] < 0.01
    assert content["extrapolated"]["parameters"] == 4 * 256 + 256 + 256 * 256 + 256 + 256 * 2 + 2
    assert "EXTRAPOLATED to 67586 parameters" in capsys.readouterr().out
