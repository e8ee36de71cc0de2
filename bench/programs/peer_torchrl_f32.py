"""TorchRL's tree of 32-bit floats: faster, and too coarse for large trees."""

# pyright: reportMissingImports=false

from __future__ import annotations

import numpy as np
import peer_torchrl
from torchrl._torchrl import SumSegmentTreeFp32

PACKAGES = peer_torchrl.PACKAGES


class Tree(peer_torchrl.Tree):
    """As the other, with 32 bits."""

    dtype = np.float32
    tree = SumSegmentTreeFp32
