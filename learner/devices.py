"""Which accelerator a learner function computes on."""

from __future__ import annotations

import torch


def learner_device(wanted: str, slot: int) -> torch.device:
    """The device of one of several learners on a host: "cpu"; or "auto", its own accelerator as far as there are some.

    Learners beyond the number of accelerators share them in turn. Without any, "auto" is the CPU. A platform that
    gives each function an accelerator of its own (`CUDA_VISIBLE_DEVICES`) leaves one to choose from, the right one.

    Args:
        slot: number of the learner among those that run, from 0 on.

    Raises ValueError for another word.
    """
    if wanted not in ("cpu", "auto"):
        raise ValueError(f"device: expected cpu or auto, got {wanted!r}")
    count = torch.cuda.device_count() if wanted == "auto" and torch.cuda.is_available() else 0
    return torch.device("cuda", slot % count) if count else torch.device("cpu")
