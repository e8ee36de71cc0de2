"""The parser of every subcommand's options, and what somebody may have meant by a word that is none of the known."""

from __future__ import annotations

import argparse
import difflib
from collections.abc import Collection, Sequence
from typing import Any, NoReturn


class Parser(argparse.ArgumentParser):
    """argparse's parser, which takes options by their whole names alone.

    For an option that there is not, its error names the nearest one that there is.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **{"allow_abbrev": False, **options})

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
