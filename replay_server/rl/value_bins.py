"""Values told as shares of bins, so that a Q-network learns them as a classifier does (HL-Gauss).

Imani & White 2018 (Improving Regression Performance with Distributional Losses); Farebrother et al. 2024 (Stop
Regressing, arXiv 2403.03950), section 3.1, whose bins these are.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

HL_GAUSS = "hl-gauss"
"""Name of the loss."""
BLUR = 0.75
"""Standard deviation of a target's Gaussian, in widths of a bin: six bins have nearly all of it."""


class ValueBins(nn.Module):
    """`number` bins of one width, from −limit to limit. ValueError for fewer than 2, or a limit that is not positive.

    A value is blurred to a Gaussian, and a bin's share is what of the Gaussian lies in it. Values beyond the limit are
    taken for the limit.
    """

    edges: Tensor
    centres: Tensor

    def __init__(self, number: int, limit: float) -> None:
        super().__init__()
        if number < 2 or not 0 < limit < math.inf:
            raise ValueError(
                f"expected 2 value bins or more and a value limit above 0, got {number} bins and a limit of {limit:g}"
            )
        edges = torch.linspace(-limit, limit, number + 1)
        self.number, self.limit = number, limit
        self.register_buffer("edges", edges, persistent=False)
        self.register_buffer("centres", (edges[1:] + edges[:-1]) / 2, persistent=False)
        self._scale = math.sqrt(2) * BLUR * 2 * limit / number

    def shares(self, values: Tensor) -> Tensor:
        """Of values (…): (…, bins), float32, each row sums to 1."""
        values = values.clamp(-self.limit, self.limit).unsqueeze(-1)
        below = torch.erf((self.edges - values) / self._scale)
        return below.diff(dim=-1) / (below[..., -1:] - below[..., :1])

    def values(self, logits: Tensor) -> Tensor:
        """The means of what logits (…, bins) tell: (…), float32."""
        return (logits.float().softmax(dim=-1) * self.centres).sum(dim=-1)

    def losses(self, logits: Tensor, values: Tensor) -> Tensor:
        """Cross-entropy of logits (…, bins) and the shares of `values` (…): (…), float32."""
        return -(self.shares(values) * logits.float().log_softmax(dim=-1)).sum(dim=-1)
