"""Checkpoints of policy-gradient learners: networks and optimiser as safetensors, the rest as JSON."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors.torch import load_file
from torch import nn

from replay_server.learner.checkpoint import (
    WrittenWhole,
    checkpoints,
    load_optimizer_tensors,
    optimizer_tensors,
    save_tensors,
    write_json,
)


class PolicyLearner(Protocol):
    """What the learners of `replay_server.learner.algorithms` have in common for saving."""

    optimizer: torch.optim.Adam
    version: int

    def networks(self) -> dict[str, nn.Module]:
        """By the name of their file."""
        ...

    def counters(self) -> dict[str, Any]:
        """What else there is to save, as JSON takes it; the version is in it."""
        ...

    def set_counters(self, counters: Mapping[str, Any]) -> None:
        """Takes what `counters` gave."""
        ...


def write_policy_checkpoint(
    folder: Path, learner: PolicyLearner, more: Mapping[str, Any] | None = None, keep: int = 3
) -> Path:
    """Writes `folder`/step_N with N = learner.version, removes all but the newest `keep`, and returns its path.

    `more` is saved with the counters. The folder is there whole or not at all. Raises Diverged where a value is not
    finite.
    """
    path = folder / f"step_{learner.version}"
    with WrittenWhole(path) as partial:
        for name, network in learner.networks().items():
            save_tensors(network.state_dict(), partial / f"{name}.safetensors")
        save_tensors(optimizer_tensors(learner.optimizer), partial / "optimizer.safetensors")
        write_json(partial / "counters.json", {**(more or {}), **learner.counters()})
    for old in checkpoints(folder)[: -max(1, keep)]:
        shutil.rmtree(old, ignore_errors=True)
    return path


def read_policy_checkpoint(path: Path, learner: PolicyLearner) -> dict[str, Any]:
    """Loads a checkpoint into `learner`, which goes on exactly as the saved one would have; returns its counters.

    Raises FileNotFoundError if a file is missing and ValueError if it belongs to another network or optimiser.
    """
    counters = json.loads((path / "counters.json").read_text())
    try:
        for name, network in learner.networks().items():
            network.load_state_dict(load_file(path / f"{name}.safetensors"))
    except RuntimeError as error:
        raise ValueError(
            f"{path} holds another network: use the env and hidden it was written with ({error})"
        ) from error
    load_optimizer_tensors(learner.optimizer, load_file(path / "optimizer.safetensors"), path)
    learner.set_counters(counters)
    return counters
