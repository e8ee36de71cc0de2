"""What a page shows, without how: tiles with a number each, panels with a chart or a table each."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Fact:
    """One number: in large, what it is beside, how it is meant, and a share for a bar below."""

    value: str
    detail: str = ""
    tone: str = ""
    """"", "good", "warn" or "bad"."""
    share: float | None = None
    """0 to 1, drawn as a bar."""


@dataclass(frozen=True)
class Tile:
    """A number's place. `fact` is asked once a second; None: the tile is not shown."""

    title: str
    fact: Callable[[], Fact | None]

    def shown(self) -> Fact | None:
        """What `fact` says; where that fails, that it cannot be shown: others are watched, too."""
        try:
            return self.fact()
        except Exception:
            _log.exception("the tile %r cannot be shown", self.title)
            return Fact("–", "cannot be shown")


@dataclass(frozen=True)
class Panel:
    """A chart or a table. `span`: twelfths of the width. What is not there (None) is not shown, or said by `empty`."""

    title: str
    span: int
    options: Callable[[], dict[str, Any] | None] | None = None
    rows: Callable[[], list[dict[str, Any]]] | None = None
    columns: Sequence[tuple[str, str]] = ()
    """Of a table: key and heading; the first is text, the others are numbers."""
    note: Callable[[], str] | None = None
    """Words at the right of the title."""
    empty: str = ""
    """Said in place of a chart that has nothing to show; "" = the panel is left out until it has."""
    height: int = 158
    """Of the chart or table, in pixels."""

    def shown(self) -> tuple[Any, str]:
        """(what `options` or `rows` gives, the note); nothing, and that it cannot be shown, where that fails."""
        try:
            found = self.rows() if self.rows is not None else self.options() if self.options is not None else None
            return found, self.note() if self.note is not None else ""
        except Exception:
            _log.exception("the panel %r cannot be shown", self.title)
            return ([] if self.rows is not None else None), "cannot be shown"


@dataclass(frozen=True)
class Banner:
    """One line above all: a state that changes how the rest is to be read."""

    text: str
    tone: str = "warn"


class View(Protocol):
    """One page's content."""

    tiles: Sequence[Tile]
    panels: Sequence[Panel]

    @property
    def title(self) -> str: ...

    @property
    def subtitle(self) -> str: ...

    @property
    def state(self) -> tuple[str, str]:
        """A word and its tone."""
        ...

    def banner(self) -> Banner | None: ...

    def gist(self) -> list[list[Any]]:
        """[place, number]: the one line that says most, for the overview."""
        ...

    def version(self) -> Any:
        """Changes where there is something new to show."""
        ...


class Shown:
    """What a view shows now, made once for all tabs that look at it."""

    def __init__(self, view: View) -> None:
        self.view = view
        self._version: Any = None
        self._now: tuple[list[Fact | None], list[tuple[Any, str]]] = ([], [])

    def now(self) -> tuple[list[Fact | None], list[tuple[Any, str]]]:
        """Of each tile its fact, of each panel what it draws and its note. Not to be changed: others have it, too."""
        if (version := self.view.version()) != self._version:
            self._now = [tile.shown() for tile in self.view.tiles], [panel.shown() for panel in self.view.panels]
            self._version = version
        return self._now


@dataclass
class Cells:
    """Table cells, gathered row by row."""

    rows: list[dict[str, Any]] = field(default_factory=list)

    def add(self, **cells: Any) -> None:
        """One row; `key` is its identity."""
        self.rows.append({"key": len(self.rows), **cells})
