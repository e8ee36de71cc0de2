"""Extreme eigenvalues of a symmetric matrix that is known by its products with vectors alone.

Lanczos' method from a random vector (Golub and Van Loan, Matrix Computations, chapter 10): after m products, the
eigenvalues of an m × m tridiagonal matrix (the Ritz values) approach those of the matrix, the outermost first. Each new
vector is made orthogonal to all before it once more, although it ought to be so already, without which copies of
eigenvalues found before would come up again (full reorthogonalisation).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True)
class Ritz:
    """What m products with vectors have shown of a symmetric matrix."""

    values: np.ndarray
    """Float64 (m,), ascending; the last approaches the largest eigenvalue from below, the first the smallest from
    above. NaN where a product was not finite."""
    bounds: np.ndarray
    """Float64 (m,): within this distance of each value there is an eigenvalue. How far off the outermost two really
    are falls with its square."""
    vectors: Tensor
    """(m, P): the vector of each value, of norm 1."""

    @property
    def steps(self) -> int:
        """m."""
        return len(self.values)


def lanczos(
    product: Callable[[Tensor], Tensor], start: Tensor, steps: int, tolerance: float = 0.0, with_vectors: bool = False
) -> Ritz:
    """At most `steps` products, fewer where the bounds of both outermost values have fallen below `tolerance` of them.

    Args:
        product: of the matrix with a vector (P,).
        start: (P,), not zero. Eigenvectors that it is orthogonal to are not found: draw it at random.
        with_vectors: else `Ritz.vectors` is (m, 0).
    """
    steps = min(steps, len(start))
    basis = start.new_empty(steps, len(start))
    diagonal: list[float] = []
    beside: list[float] = []
    basis[0] = start / start.norm()
    while True:
        last = len(diagonal)
        following = product(basis[last])
        diagonal.append(float(following @ basis[last]))
        following = following - diagonal[-1] * basis[last]
        if last:
            following -= beside[-1] * basis[last - 1]
        following -= basis[: last + 1].T @ (basis[: last + 1] @ following)
        norm = float(following.norm())
        found = _ritz(diagonal, beside, norm)
        if last + 1 == steps or _settled(found, tolerance):
            break
        beside.append(norm)
        basis[last + 1] = following / norm
    values, bounds, weights = found
    taken = basis[: len(values)]
    vectors = torch.from_numpy(weights.T).to(taken) @ taken if with_vectors else taken[:, :0]
    return Ritz(values, bounds, vectors)


def _ritz(diagonal: list[float], beside: list[float], norm: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Eigenvalues of the tridiagonal matrix, the bounds of each, and its eigenvectors (m, m) in columns."""
    matrix = np.diag(diagonal) + np.diag(beside, 1) + np.diag(beside, -1)
    if not (np.isfinite(matrix).all() and np.isfinite(norm)):
        nothing = np.full(len(diagonal), np.nan)
        return nothing, nothing, np.full_like(matrix, np.nan)
    values, weights = np.linalg.eigh(matrix)
    return values, norm * np.abs(weights[-1]), weights


def _settled(found: tuple[np.ndarray, np.ndarray, np.ndarray], tolerance: float) -> bool:
    values, bounds, _ = found
    if np.isnan(values[0]):
        return True
    # What single precision cannot tell from zero is an end, too: the vectors so far span all that the start reaches.
    least = np.finfo(np.float32).eps * np.abs(values).max()
    return all(bounds[end] <= max(tolerance * abs(values[end]), least) for end in (0, -1))
