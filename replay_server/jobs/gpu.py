"""Whether the learner will find a GPU, told without loading torch into this process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

DRIVERS = ("/dev/nvidiactl", "/dev/dxg")
"""What the kernel has where there is a driver of NVIDIA's, or Windows' within WSL."""
LONGEST_S = 120.0
"""A torch that takes longer to load counts as one without a GPU."""


def finds_gpu(device: str, drivers: tuple[str, ...] = DRIVERS) -> bool:
    """Whether the setting `device` of a learner on this machine means a GPU with CUDA.

    For "auto" another process asks torch, where the kernel has a driver at all.
    """
    if device != "auto":
        return device.startswith("cuda")
    if not any(Path(each).exists() for each in drivers):
        return False
    asked = "import sys, torch; sys.exit(0 if torch.cuda.is_available() else 1)"
    try:
        done = subprocess.run(
            [sys.executable, "-c", asked], capture_output=True, timeout=LONGEST_S,
            env={**os.environ, "PYTHONSAFEPATH": "1"},
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 0
