"""The command line without what it does: the parser of each subcommand, and whether a line of arguments is one.

A subcommand is called as it always is; as soon as it asks argparse to read its arguments, that is done and no more.
"""

from __future__ import annotations

import argparse
import contextlib
import io
from collections.abc import Iterator, Sequence
from typing import Any

from replay_server import cli

SUB_SUBCOMMANDS = {"scheduler": ("train",), "cluster": ("start", "status", "checkpoint", "move", "forget", "stop")}
"""Words between a subcommand and its options, where one of the tuple must be said; those of `bench` are found."""


class Read(BaseException):
    """The arguments were read, and nothing is to be done with them. No Exception: no handler takes it for a failure."""

    def __init__(self, parser: argparse.ArgumentParser, options: argparse.Namespace | None) -> None:
        super().__init__(parser.prog)
        self.parser = parser
        self.options = options


@contextlib.contextmanager
def _only_parsers(read: bool) -> Iterator[None]:
    """While it lasts, reading arguments raises `Read`; `read`: after argparse has read them indeed."""
    names = ("parse_args", "parse_known_args")
    originals = {name: getattr(argparse.ArgumentParser, name) for name in names}

    def wrapped(name: str) -> Any:
        def parse(self: argparse.ArgumentParser, *arguments: Any, **named: Any) -> Any:
            if not read:
                raise Read(self, None)
            _put(originals)
            options = originals[name](self, *arguments, **named)
            raise Read(self, options if name == "parse_args" else options[0])

        return parse

    _put({name: wrapped(name) for name in names})
    try:
        yield
    finally:
        _put(originals)


def _put(methods: dict[str, Any]) -> None:
    for name, method in methods.items():
        setattr(argparse.ArgumentParser, name, method)


def parser_of(words: Sequence[str]) -> argparse.ArgumentParser | None:
    """The parser of a subcommand, given as the words before its options; None where it reads them by hand."""
    try:
        with _only_parsers(read=False), contextlib.redirect_stderr(io.StringIO()):
            cli.main(list(words))
    except Read as found:
        return found.parser
    return None


def refusal_of(words: Sequence[str]) -> str:
    """Why ``replay-server WORDS`` is no command; "" where its arguments are read without complaint."""
    said = io.StringIO()
    try:
        with _only_parsers(read=True), contextlib.redirect_stderr(said), contextlib.redirect_stdout(io.StringIO()):
            status = cli.main(list(words))
    except Read:
        return ""
    except SystemExit as end:
        status = end.code
    return (said.getvalue().strip().splitlines() or [f"exit status {status}"])[-1] if status else ""


def subcommands() -> list[tuple[str, ...]]:
    """The words of every subcommand: ("serve",), ("scheduler", "train"), ("bench", "server"), …"""
    found: list[tuple[str, ...]] = []
    for name in cli.SUBCOMMANDS:
        if name == "bench":
            from replay_server.bench.main import BENCHMARKS

            found += [(name, each) for each in BENCHMARKS]
        elif name in SUB_SUBCOMMANDS:
            found += [(name, each) for each in SUB_SUBCOMMANDS[name]]
        else:
            found.append((name,))
    return found
