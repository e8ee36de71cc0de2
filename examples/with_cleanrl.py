# /// script
# requires-python = ">=3.10"
# dependencies = ["replay-server", "torch", "gymnasium==0.29.1", "tyro", "tensorboard"]
# ///
"""CleanRL's scripts with their replay buffer replaced: in this process, or on a server.

    git clone https://github.com/vwxyzjn/cleanrl
    python examples/with_cleanrl.py cleanrl/cleanrl/dqn.py --total-timesteps 50000 --learning-starts 1000
    python examples/with_cleanrl.py --buffer original cleanrl/cleanrl/dqn.py …              # CleanRL's own buffer
    python examples/with_cleanrl.py --buffer redis://127.0.0.1:6379 cleanrl/cleanrl/dqn.py …   # a server's

It runs the script as it is, for comparison. A script of one's own changes a single line:

    from replay_server.adapters.cleanrl import ReplayServerBuffer as ReplayBuffer
"""

from __future__ import annotations

import argparse
import functools
import re
import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO

import numpy as np
import torch
from timing import Clock

from replay_server.adapters.cleanrl import ReplayServerBuffer


class Returns:
    """Standard output, with an eye on the returns of episodes that CleanRL's scripts print."""

    def __init__(self, output: TextIO) -> None:
        self._output = output
        self.found: list[float] = []

    def write(self, text: str) -> int:
        """Passes text on."""
        self.found += [float(value) for value in re.findall(r"episodic_return=\[?(-?[\d.]+)", text)]
        return self._output.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._output, name)


def run(script: str, buffer: str, options: list[str]) -> None:
    """Runs a script of CleanRL's with one of the buffers; what it reached is the mean of its last 20 episodes."""
    sys.path.insert(0, str(Path(script).resolve().parents[1]))  # where cleanrl_utils lies
    import cleanrl_utils.buffers

    clock, returns = Clock(), Returns(sys.stdout)
    kind: Callable[..., Any] = clock.timed(
        cleanrl_utils.buffers.ReplayBuffer if buffer == "original" else ReplayServerBuffer, "add", "sample"
    )
    cleanrl_utils.buffers.ReplayBuffer = functools.partial(kind, url=buffer) if "://" in buffer else kind
    sys.argv = [script, *options]
    sys.stdout = returns
    try:
        runpy.run_path(script, run_name="__main__")
    finally:
        sys.stdout = returns._output
    print(f"{buffer}: {clock}")
    print(f"reached {np.mean(returns.found[-20:]):.1f} on {Path(script).name}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--buffer", default="replay-server", help="replay-server, original, or the URL of a server")
    parser.add_argument("script", help="of CleanRL's, in a checkout of its repository")
    chosen, rest = parser.parse_known_args()
    torch.set_num_threads(1)
    run(chosen.script, chosen.buffer, rest)
