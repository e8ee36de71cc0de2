"""The signals that interrupt a job."""

from __future__ import annotations

import signal
from types import FrameType
from typing import Any, NoReturn

INTERRUPTS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def heed_interrupts() -> dict[signal.Signals, Any]:
    """Has each of `INTERRUPTS` raise KeyboardInterrupt, the first of them alone; returns the handlers of before.

    Not SIGHUP where this process ignores it: `nohup` asks for that, and its job outlives the terminal. SIGINT counts
    where it is ignored, too: a script's shell does that to all that runs beside it.
    """
    heeded = [each for each in INTERRUPTS if each is not signal.SIGHUP or signal.getsignal(each) is not signal.SIG_IGN]
    return {each: signal.signal(each, _interrupt) for each in heeded}


def ignore_interrupts() -> None:
    """For the way out, which is bounded: nothing may cut it short."""
    for each in INTERRUPTS:
        signal.signal(each, signal.SIG_IGN)


def _interrupt(number: int, frame: FrameType | None) -> NoReturn:
    ignore_interrupts()
    raise KeyboardInterrupt
