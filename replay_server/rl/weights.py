"""Module parameters as the named numpy arrays that the server's WEIGHTS commands carry, and back."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import nn


def module_arrays(module: nn.Module) -> dict[str, np.ndarray]:
    """Every parameter and buffer of a module by its state_dict name, as C-ordered arrays on the CPU.

    Arrays may share the module's memory: encode or publish them before the next optimiser step.
    """
    return {name: np.ascontiguousarray(tensor.detach().cpu().numpy()) for name, tensor in module.state_dict().items()}


def load_arrays(module: nn.Module, arrays: Mapping[str, np.ndarray]) -> None:
    """Copies arrays into a module's parameters and buffers, in place and keeping device and memory format.

    Raises ValueError, before anything is changed, if a name is missing or unknown or a shape differs: the weights
    are then of another network (another environment, or another `hidden`).
    """
    state = module.state_dict()
    missing, unknown = state.keys() - arrays.keys(), arrays.keys() - state.keys()
    if missing or unknown:
        raise ValueError(
            f"weights of another network: missing {sorted(missing)}, unknown {sorted(unknown)}; "
            "check that every part of the run uses the same env and hidden"
        )
    for name, tensor in state.items():
        if tuple(arrays[name].shape) != tuple(tensor.shape):
            raise ValueError(
                f"weights of another network: {name} expected shape {tuple(tensor.shape)}, got {arrays[name].shape}; "
                "check that every part of the run uses the same env and hidden"
            )
    with torch.no_grad():
        for name, tensor in state.items():
            tensor.copy_(torch.from_numpy(np.require(arrays[name], requirements=["C", "W"])))
