"""Numbers of command lines, refused where no job can have them: at once, and not after hours of play."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any


def at_least(least: int) -> Callable[[str], int]:
    """For `add_argument(type=…)`: a whole number that is not below `least`."""

    def whole(word: str) -> int:
        try:
            value = int(word)
        except ValueError:
            raise argparse.ArgumentTypeError(f"expected a whole number, got {word!r}") from None
        if value < least:
            raise argparse.ArgumentTypeError(f"expected at least {least}, got {value}")
        return value

    return whole


def share(word: str) -> float:
    """For `add_argument(type=…)`: above 0 and at most 1."""
    try:
        value = float(word)
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected a number, got {word!r}") from None
    if not 0.0 < value <= 1.0:
        raise argparse.ArgumentTypeError(f"expected more than 0 and at most 1, got {word}")
    return value


class Once(argparse.Action):
    """For `add_argument(nargs="+", action=…)`: what is given twice counts once; a seed is no two runs."""

    def __call__(self, parser: Any, namespace: argparse.Namespace, values: Any, option_string: Any = None) -> None:
        setattr(namespace, self.dest, list(dict.fromkeys(values)))
