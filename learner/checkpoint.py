"""Checkpoints of a learner: networks and optimizer as safetensors, counters as JSON; written whole or not at all.

What is not finite is never written. A checkpoint that has such values, or is damaged, is skipped for an older one.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from replay_server.learner.finite_checks import check_finite, first_not_finite
from replay_server.learner.replay_learner import LEARNING, ReplayLearner
from replay_server.rl.run_directory import BEST


def write_checkpoint(folder: Path, learner: ReplayLearner, counters: Mapping[str, Any], keep: int = 3) -> Path:
    """Writes `folder`/step_N with N = learner.step, removes all but the newest `keep` of them, and returns its path.

    The files are written beside it and renamed at the end, so that a step_N folder is always complete. Raises Diverged,
    with nothing changed, where a value is not finite.
    """
    path = folder / f"step_{learner.step}"
    with WrittenWhole(path) as partial:
        for name, module in learner.modules.items():
            save_tensors(module.state_dict(), partial / f"{name}.safetensors")
        save_tensors(optimizer_tensors(learner.optimizer), partial / "optimizer.safetensors")
        write_json(partial / "counters.json", {**counters, "step": learner.step})
    for old in checkpoints(folder)[: -max(1, keep)]:
        shutil.rmtree(old, ignore_errors=True)
    return path


def read_checkpoint(path: Path, learner: ReplayLearner) -> dict[str, Any]:
    """Loads networks, optimizer and step of a checkpoint into `learner`; returns its counters.

    Raises FileNotFoundError if a file is missing and ValueError if it belongs to other settings.
    """
    counters = json.loads((path / "counters.json").read_text())
    try:
        for name, module in learner.modules.items():
            file = path / f"{name}.safetensors"
            if name == LEARNING and not file.exists():  # of a run that averaged nothing
                file = path / "network.safetensors"
            module.load_state_dict(load_file(file))
    except RuntimeError as error:
        raise ValueError(
            f"{path} holds another network: use the env, network and hidden it was written with ({error})"
        ) from error
    load_optimizer_tensors(learner.optimizer, load_file(path / "optimizer.safetensors"), path)
    learner.step = int(counters["step"])
    return counters


def write_best(folder: Path, state: Mapping[str, Tensor], counters: Mapping[str, Any]) -> Path:
    """Writes `folder`/best: the network an evaluation judged best and the evaluation as counters.json."""
    path = folder / BEST
    with WrittenWhole(path) as partial:
        save_tensors(state, partial / "network.safetensors")
        write_json(partial / "counters.json", counters)
    return path


def read_network(path: Path, network: nn.Module) -> dict[str, Any]:
    """Loads only what plays of a step_N or best folder into `network`; returns its counters."""
    network.load_state_dict(load_file(path / "network.safetensors"))
    return json.loads((path / "counters.json").read_text())


def checkpoints(folder: Path) -> list[Path]:
    """Returns the complete step_N folders, oldest step first."""
    found = [path for path in folder.glob("step_*") if path.name[5:].isdigit() and (path / "counters.json").exists()]
    return sorted(found, key=lambda path: int(path.name[5:]))


def newest_checkpoint(
    folder: Path, say: Callable[[str], None] = print, files: Collection[str] = ("network", "optimizer")
) -> Path | None:
    """Returns the step_N folder with the greatest N whose files can be read and whose values are all finite.

    None if there is no step_N folder. Tells `say` of each that it passes over: `files`.safetensors have to be there.
    Raises ValueError if all are passed over.
    """
    faults = []
    for path in reversed(checkpoints(folder)):
        if not (fault := checkpoint_fault(path, files)):
            return path
        say(f"{path} is passed over: {fault}")
        faults.append(f"{path}: {fault}")
    if faults:
        raise ValueError(
            f"{folder}: expected a checkpoint whose values are finite, got none ({faults[0]}): begin a run anew"
        )
    return None


def checkpoint_to_resume(
    folder: Path, say: Callable[[str], None] = print, files: Collection[str] = ("network", "optimizer")
) -> Path | None:
    """As `newest_checkpoint`; those that are passed over become damaged_step_N.

    They would count among the newest that are kept, in the place of those that the resumed learner writes.
    """
    newest = newest_checkpoint(folder, say, files)
    found = checkpoints(folder)
    for path in found[found.index(newest) + 1 :] if newest else []:
        aside = path.with_name(f"damaged_{path.name}")
        shutil.rmtree(aside, ignore_errors=True)
        path.rename(aside)
    return newest


def checkpoint_fault(path: Path, files: Collection[str]) -> str:
    """Why a step_N or best folder is passed over; "" for a good one. `files`.safetensors have to be there."""
    file = path / "counters.json"
    try:
        json.loads(file.read_text())
        for file in sorted({*path.glob("*.safetensors"), *(path / f"{name}.safetensors" for name in files)}):
            if not file.exists():
                return f"{file.name} is missing"
            if (name := first_not_finite(load_file(file))) is not None:
                return f"{name} in {file.name} is not finite"
    except (SafetensorError, OSError, ValueError) as error:
        return f"{file.name} is damaged: {error}"
    return ""


class WrittenWhole:
    """Context of a temporary folder beside `path` that takes its place when the block ends without an error.

    The files are on the disk before the folder has its name, and the name before anything older is removed.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.partial = path.with_name(f".{path.name}.{os.getpid()}.partial")

    def __enter__(self) -> Path:
        shutil.rmtree(self.partial, ignore_errors=True)
        self.partial.mkdir(parents=True)
        return self.partial

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        if kind is not None:
            shutil.rmtree(self.partial, ignore_errors=True)
            return
        for path in [*self.partial.iterdir(), self.partial]:
            _sync(path)
        if self.path.exists():
            # A folder cannot be renamed over one that holds files: the old one steps aside first.
            old = self.path.with_name(f".{self.path.name}.{os.getpid()}.old")
            self.path.rename(old)
            self.partial.rename(self.path)
            _sync(self.path.parent)
            shutil.rmtree(old, ignore_errors=True)
        else:
            self.partial.rename(self.path)
            _sync(self.path.parent)


def _sync(path: Path) -> None:
    """Brings a file, or a folder's names, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def save_tensors(state: Mapping[str, Tensor], file: Path) -> None:
    """Writes a module's state, or an optimizer's. Raises Diverged where a value is not finite, OSError for the disk."""
    tensors = contiguous(state)
    check_finite(tensors, f"{file.name} is not written")
    try:
        save_file(tensors, file)
    except SafetensorError as error:  # also for a full disk
        raise OSError(f"{file}: {error}") from error


def contiguous(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A module's state on the CPU, as safetensors takes it."""
    return {name: tensor.detach().cpu().contiguous() for name, tensor in state.items()}


def optimizer_tensors(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Optimizer state as "<parameter index>.<name>" tensors; hyperparameters come from the settings, not from here."""
    state = optimizer.state_dict()["state"]
    return {
        f"{index}.{name}": torch.as_tensor(value).detach().cpu().contiguous()
        for index, entries in state.items()
        for name, value in entries.items()
        if value is not None
    }


def load_optimizer_tensors(optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor], path: Path) -> None:
    """Loads what `optimizer_tensors` gave. ValueError, naming `path`, if it is of another optimizer."""
    if not tensors:
        return
    entries: dict[int, dict[str, Tensor]] = {}
    for key, tensor in tensors.items():
        index, name = key.split(".", 1)
        entries.setdefault(int(index), {})[name] = tensor
    expected = {"exp_avg", "exp_avg_sq"} if isinstance(optimizer, torch.optim.Adam) else {"square_avg", "grad_avg"}
    parameters = sum(len(group["params"]) for group in optimizer.param_groups)
    if len(entries) != parameters or not expected <= entries[0].keys():
        raise ValueError(
            f"{path} holds the state of another optimizer: expected {sorted(expected)} of {parameters} parameters, "
            f"got {sorted(entries.get(0, {}))} of {len(entries)}; use the optimizer it was written with"
        )
    optimizer.load_state_dict({"state": entries, "param_groups": optimizer.state_dict()["param_groups"]})


def write_json(path: Path, values: Mapping[str, Any]) -> None:
    """Writes a JSON object for people to read."""
    path.write_text(json.dumps(dict(values), indent=2, sort_keys=True) + "\n")
