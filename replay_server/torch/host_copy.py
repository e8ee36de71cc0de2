"""What a device has computed, on its way to the host, while the device does not stop for it."""

from __future__ import annotations

from dataclasses import fields, is_dataclass, replace
from typing import Any, Generic, TypeVar, cast

import torch
from torch import Tensor

from ..tree import mapped

T = TypeVar("T")


class HostCopy(Generic[T]):
    """What the device has computed, on its way to the host: a dataclass, some of whose fields are tensors or maps of
    tensors.

    The copy is asked for at once, behind what computes it; the device goes on with what is launched after.
    """

    def __init__(self, value: T, device: torch.device) -> None:
        assert is_dataclass(value)
        held = {each.name: getattr(value, each.name) for each in fields(value)}
        # Torch puts what is copied to the host without waiting into pinned memory.
        copied: dict[str, Any] = {
            name: mapped(each, lambda tensor: tensor.to("cpu", non_blocking=True))
            for name, each in held.items()
            if isinstance(each, Tensor | dict)
        }
        self._value: T = replace(cast(Any, value), **copied)
        streams: Any = torch.get_device_module(device)
        self._done = streams.Event()
        self._done.record(streams.current_stream(device))

    @property
    def is_done(self) -> bool:
        """Whether `wait` would return at once."""
        return self._done.query()

    def wait(self) -> T:
        """The same dataclass with its tensors on the CPU. Waits for them, and for nothing that was launched later."""
        self._done.synchronize()
        return self._value
