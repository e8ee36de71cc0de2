"""The parser of every subcommand's options, and what somebody may have meant by a word that is none of the known."""

from __future__ import annotations

import argparse
import difflib
from collections.abc import Callable, Collection, Sequence
from contextvars import ContextVar
from typing import Any, NoReturn

_asked_for = ContextVar("parser_of", default=False)


class _Made(BaseException):
    """Carries a parser out of the function that made it."""

    def __init__(self, parser: Parser) -> None:
        super().__init__()
        self.parser = parser


class Parser(argparse.ArgumentParser):
    """argparse's parser, which takes options by their whole names alone.

    For an option that there is not, its error names the nearest one that there is.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **{"allow_abbrev": False, **options})

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:  # type: ignore[override]
        if _asked_for.get():
            raise _Made(self)
        return super().parse_known_args(args, namespace)

    def parse_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> Any:  # type: ignore[override]
        found, unknown = self.parse_known_args(args, namespace)
        if unknown:
            self._refuse(unknown)
        return found

    def _refuse(self, unknown: Sequence[str]) -> NoReturn:
        options = [
            name for action in self._actions if action.help != argparse.SUPPRESS for name in action.option_strings
        ]
        meant = next((did_you_mean(word.partition("=")[0], options) for word in unknown if word.startswith("-")), "")
        self.error(f"unrecognized arguments: {' '.join(unknown)}{meant}")


def parser_of(run: Callable[[], object]) -> Parser | None:
    """The parser with which a subcommand's function is about to read its arguments; the function goes no further.

    None where it needs a library that is not installed, or ends before it reads any. Other threads parse meanwhile.
    """
    token = _asked_for.set(True)
    try:
        run()
    except _Made as made:
        return made.parser
    except (ImportError, SystemExit):
        return None
    finally:
        _asked_for.reset(token)
    return None


def did_you_mean(word: str, known: Collection[str]) -> str:
    """The end of a message: the known word that is nearest to `word`; nothing where none is near.

    A known word is near if it begins alike, if `word` is its initials (``--lr``: ``--learning-rate``), or if few
    letters differ.
    """
    name, names = word.lstrip("-"), {each.lstrip("-"): each for each in known}
    alike = [
        each for each in names if min(len(each), len(name)) > 1 and (each.startswith(name) or name.startswith(each))
    ]
    initials = [each for each in names if "".join(part[:1] for part in each.split("-")) == name]
    nearest = [*sorted(alike, key=len, reverse=True), *initials, *difflib.get_close_matches(name, names, 1, 0.6)]
    return f"; did you mean {names[nearest[0]]}?" if nearest else ""
