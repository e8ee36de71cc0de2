"""`replay-server completion bash|zsh|fish`: a completion script for a shell, which shtab writes from the parsers."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import tempfile
from collections.abc import Sequence
from typing import Any

from replay_server.arguments import Parser, parser_of

SHELLS = ("bash", "zsh", "fish")
_FILE_WORDS = ("FILE", "PATH", "DIR", "FOLDER")
_FOLDER_OPTIONS = {"--dir", "--logdir", "--folder"}


def command_parser() -> Parser:
    """One parser of all subcommands of this installation.

    A subcommand whose libraries are not installed has no options here but --help.
    """
    from . import cli

    root = Parser(prog="replay-server")
    root.add_argument("-V", "--version", action="store_true", help="tell versions, transports and libraries")
    subcommands = root.add_subparsers(metavar="SUBCOMMAND")
    for name, about in cli.SUBCOMMANDS.items():
        if name == "bench":
            _add_benchmarks(_add(subcommands, name, about, None).add_subparsers(metavar="BENCHMARK"))
        elif name == "scheduler":
            parts = _add(subcommands, name, about, None).add_subparsers(metavar="PART")
            _add(parts, "train", about, parser_of(lambda: cli.subcommand("scheduler")(["train"])))
        elif name == "cluster":
            from .cluster_command import PARTS

            parts = _add(subcommands, name, about, None).add_subparsers(metavar="PART")
            for part, (text, run) in PARTS.items():
                _add(parts, part, text, parser_of(lambda run=run: run([])))
        else:
            _add(subcommands, name, about, parser_of(lambda name=name: cli.subcommand(name)([])))
    return root


def _add(parts: Any, name: str, about: str, own: argparse.ArgumentParser | None) -> argparse.ArgumentParser:
    if own is not None:
        mark_paths(own)
    return parts.add_parser(name, help=about, parents=[own] if own is not None else [], add_help=own is None)


def _add_benchmarks(parts: Any) -> None:
    """The benchmarks, each in a module of its own."""
    try:
        bench = importlib.import_module("replay_server.bench.main")
    except ImportError:
        return
    for name, about in bench.BENCHMARKS.items():
        own = None
        with contextlib.suppress(ImportError), tempfile.TemporaryDirectory() as folder:
            run = bench.find(name)
            own = parser_of(lambda run=run, folder=folder: run([], folder))
        _add(parts, name, about, own)


def mark_paths(parser: argparse.ArgumentParser) -> None:
    """Has arguments that name a file or a folder completed as such."""
    import shtab

    for action in parser._actions:
        metavar = action.metavar if isinstance(action.metavar, str) else (action.metavar or ("",))[0]
        if action.nargs != 0 and _FOLDER_OPTIONS & {*action.option_strings}:
            action.complete = shtab.DIRECTORY  # type: ignore[attr-defined]
        elif action.nargs != 0 and any(word in metavar.upper() for word in _FILE_WORDS):
            action.complete = shtab.FILE  # type: ignore[attr-defined]
        if isinstance(action, argparse._SubParsersAction):
            for part in action.choices.values():
                mark_paths(part)


def main(arguments: Sequence[str] | None = None) -> int:
    """`replay-server completion bash|zsh|fish`: prints the script."""
    parser = Parser(
        prog="replay-server completion",
        description="Prints a completion script for a shell. Put it where the shell looks for them: bash "
        "~/.local/share/bash-completion/completions/replay-server, zsh a folder of $fpath, as _replay-server, fish "
        "~/.config/fish/completions/replay-server.fish. It takes seconds to write, and is to be written again after an "
        "upgrade.",
    )
    parser.add_argument("shell", choices=SHELLS, help="whose script")
    shell = parser.parse_args(arguments).shell
    import shtab  # of the extra "completion": the base install does without it

    print(shtab.complete(command_parser(), shell))
    return 0
