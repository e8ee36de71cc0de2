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

    from with_cleanrl import ReplayServerBuffer as ReplayBuffer
"""

from __future__ import annotations

import argparse
import functools
import re
import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, TextIO

import gymnasium as gym
import numpy as np
import torch
from timing import Clock

import replay_server as rs

AT_ONCE = 64
"""Steps that wait for a sample, at most."""


class Samples(NamedTuple):
    """What CleanRL's scripts expect of `sample`: tensors (batch, …)."""

    observations: torch.Tensor
    actions: torch.Tensor
    next_observations: torch.Tensor
    dones: torch.Tensor
    rewards: torch.Tensor


class ReplayServerBuffer:
    """A `cleanrl_utils.buffers.ReplayBuffer` over an `rs.Buffer`, or over a table of a server.

    Args:
        url: of a server; None: in this process.
        table: its table, created where it is not there.
    """

    def __init__(
        self,
        buffer_size: int,
        observation_space: gym.Space,
        action_space: gym.Space,
        device: torch.device | str = "cpu",
        n_envs: int = 1,
        optimize_memory_usage: bool = False,
        handle_timeout_termination: bool = True,
        url: str | None = None,
        table: str = "cleanrl",
    ) -> None:
        self._device = device
        self._waiting: list[tuple] = []
        self._timeouts = handle_timeout_termination
        self._dtypes = {"observations": observation_space.dtype, "actions": action_space.dtype}
        self._dtypes |= {"next_observations": observation_space.dtype, "dones": "float32", "rewards": "float32"}
        self._shapes = {"observations": observation_space.shape, "actions": action_space.shape or (1,)}
        self._shapes |= {"next_observations": observation_space.shape, "dones": (1,), "rewards": (1,)}
        signature = {name: rs.Column(dtype, self._shapes[name]) for name, dtype in self._dtypes.items()}
        # In this process the draws follow from NumPy's seed, as the original's do; a server's table has its own.
        seed = int(np.random.randint(1, 2**31)) if url is None else 0
        made = rs.Table(table, buffer_size, signature, sampler=rs.Uniform(), seed=seed)
        if url is None:
            buffer = rs.Buffer(made)
            self._add, self._sample = buffer.add, buffer.sample
        else:
            client = rs.Client(url)
            client.create_table(made)
            self._add = functools.partial(client.add, table)
            self._sample = functools.partial(client.sample, table)

    def add(
        self,
        obs: np.ndarray,
        next_obs: np.ndarray,
        action: np.ndarray,
        reward: np.ndarray,
        done: np.ndarray,
        infos: Any,
    ) -> None:
        """Adds one transition of each of the environments: they wait here for the next sample, and go to it at once."""
        if self._timeouts and isinstance(infos, list):
            done = done * np.array([not info.get("TimeLimit.truncated", False) for info in infos])
        self._waiting.append((np.array(obs), action, np.array(next_obs), done, reward))
        if len(self._waiting) >= AT_ONCE:
            self.flush()

    def flush(self) -> None:
        """Adds what waits."""
        if self._waiting:
            columns = zip(self._shapes, zip(*self._waiting, strict=True), strict=True)
            self._add(
                {
                    name: np.array(values, self._dtypes[name]).reshape(-1, *self._shapes[name])
                    for name, values in columns
                }
            )
            self._waiting.clear()

    def sample(self, batch_size: int) -> Samples:
        """Draws a batch, as tensors on the buffer's device."""
        self.flush()
        data = self._sample(batch_size).data
        return Samples(**{name: torch.as_tensor(array, device=self._device) for name, array in data.items()})


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
