"""Lanczos' method on matrices whose eigenvalues are known."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from replay_server.learner.lanczos import lanczos  # noqa: E402


def symmetric(values: list[float], seed: int = 1) -> torch.Tensor:
    """A full matrix of these eigenvalues."""
    size = len(values)
    generator = torch.Generator().manual_seed(seed)
    basis, _ = torch.linalg.qr(torch.randn(size, size, dtype=torch.float64, generator=generator))
    return basis @ torch.diag(torch.tensor(values, dtype=torch.float64)) @ basis.T


def start(size: int, seed: int = 2) -> torch.Tensor:
    return torch.randn(size, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def test_as_many_steps_as_dimensions_find_every_eigenvalue_and_its_vector():
    values = [-3.0, -0.5, 0.0, 1.0, 1.5, 7.0]
    matrix = symmetric(values)
    found = lanczos(lambda vector: matrix @ vector, start(6), 6, with_vectors=True)
    np.testing.assert_allclose(found.values, values, atol=1e-9)
    for value, vector in zip(found.values, found.vectors, strict=True):
        torch.testing.assert_close(matrix @ vector, value * vector, atol=1e-8, rtol=0.0)
        assert float(vector.norm()) == pytest.approx(1.0)


def test_two_steps_by_hand():
    # H = diag(1, −1), start (1, 1)/√2: H v = (1, −1)/√2 is orthogonal to v, so the matrix is [[0, 1], [1, 0]].
    found = lanczos(lambda vector: torch.tensor([1.0, -1.0]) * vector, torch.ones(2), 1)
    assert found.values.tolist() == [0.0]
    assert found.bounds.tolist() == pytest.approx([1.0])
    found = lanczos(lambda vector: torch.tensor([1.0, -1.0]) * vector, torch.ones(2), 2)
    np.testing.assert_allclose(found.values, [-1.0, 1.0], atol=1e-6)


def test_outermost_values_come_first_and_within_their_bounds():
    values = [-9.0, *np.linspace(-1.0, 1.0, 198), 5.0]
    matrix = symmetric([float(value) for value in values])
    found = lanczos(lambda vector: matrix @ vector, start(200), 15)
    assert found.steps <= 15
    assert found.values[0] == pytest.approx(-9.0, rel=1e-6)
    assert found.values[-1] == pytest.approx(5.0, rel=1e-6)
    for value, bound in zip(found.values, found.bounds, strict=True):
        assert np.abs(values - value).min() <= bound + 1e-9


def test_no_copy_of_an_eigenvalue_comes_up_again():
    # Without reorthogonalisation, 60 steps in single precision find 1000 several times.
    values = torch.cat([torch.linspace(0.0, 1.0, 299), torch.tensor([1000.0])])
    found = lanczos(lambda vector: values * vector, start(300).float(), 60, with_vectors=True)
    assert (found.values > 500.0).sum() == 1
    torch.testing.assert_close(found.vectors @ found.vectors.T, torch.eye(60), atol=1e-4, rtol=0.0)


def test_it_ends_where_the_start_reaches_no_further():
    assert lanczos(torch.zeros_like, start(5), 5).values.tolist() == [0.0]
    found = lanczos(lambda vector: -2.0 * vector, start(5), 5)
    assert found.values.tolist() == pytest.approx([-2.0])


def test_with_a_tolerance_it_ends_as_soon_as_the_bounds_allow():
    values = torch.cat([torch.linspace(-1.0, 1.0, 298), torch.tensor([-50.0, 60.0])])
    found = lanczos(lambda vector: values * vector, start(300).float(), 100, tolerance=0.01)
    assert found.steps < 12
    assert found.bounds[0] <= 0.5
    assert found.bounds[-1] <= 0.6


def test_what_is_not_finite_is_told():
    found = lanczos(lambda vector: vector * float("nan"), start(5), 5)
    assert np.isnan(found.values).all()
