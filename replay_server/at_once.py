"""Questions to several servers at once: one that hangs costs its own patience, and not that of each after another."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

_T = TypeVar("_T")
_R = TypeVar("_R")


def at_once(ask: Callable[[_T], _R], each: Iterable[_T]) -> list[_R]:
    """What `ask` returns for each, in this order, after the last one has answered. Raises what the first of them
    raises."""
    asked = list(each)
    if len(asked) < 2:
        return [ask(one) for one in asked]
    with ThreadPoolExecutor(len(asked)) as pool:
        return list(pool.map(ask, asked))
