"""Numbers as people read them, for tiles, tables and the terminal."""

from __future__ import annotations

import time
from typing import Any

from replay_server.dashboard.json_lines import finite

NOTHING = "–"


def number(value: Any, digits: int = 3) -> str:
    """1,250 as it is, 12.5 k, 1.25 M; what is no number as –."""
    if finite(value) is None:
        return NOTHING
    for size, letter in ((1e9, " G"), (1e6, " M"), (1e4, " k")):
        if abs(value) >= (size if size == 1e4 else 0.9995 * size):
            return f"{value / (1e3 if size == 1e4 else size):.{digits}g}{letter}"
    if float(value).is_integer():
        return f"{int(value):,}"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.{digits}g}"


def short(text: str, most: int = 28) -> str:
    """A name that may be long, in the middle cut."""
    return text if len(text) <= most else f"{text[: most // 2]}…{text[-(most // 2 - 1) :]}"


def size(value: Any) -> str:
    """Bytes in decimal units."""
    if finite(value) is None:
        return NOTHING
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if abs(value) < 1000 or unit == "TB":
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.3g} {unit}"
        value /= 1000
    return NOTHING


def duration(seconds: Any) -> str:
    """4 s, 3:07 min, 2:05 h, 3 d 4 h."""
    if finite(seconds) is None:
        return NOTHING
    whole = max(0, int(seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60}:{whole % 60:02d} min"
    if whole < 86400:
        return f"{whole // 3600}:{whole // 60 % 60:02d} h"
    return f"{whole // 86400} d {whole // 3600 % 24} h"


def microseconds(value: Any) -> str:
    """µs, ms or s."""
    if finite(value) is None:
        return NOTHING
    if value >= 1e6:
        return f"{value / 1e6:.3g} s"
    return f"{value / 1e3:.3g} ms" if value >= 1e3 else f"{value:.3g} µs"


def dollars(value: Any) -> str:
    """Cents and fractions of them: jobs of functions cost little."""
    return f"${value:.3g}" if finite(value) is not None else NOTHING


def percent(value: Any) -> str:
    """A share as a percentage."""
    return f"{100 * value:.3g} %" if finite(value) is not None else NOTHING


def clock(time_s: float) -> str:
    """The local time of day."""
    return time.strftime("%H:%M:%S", time.localtime(time_s))
