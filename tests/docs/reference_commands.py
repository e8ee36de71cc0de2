"""docs/reference/commands.md: every subcommand with its options, from the parsers that read them."""

from __future__ import annotations

import argparse
import re
from typing import Any

from parsers import parser_of, subcommands

from replay_server import cli

TITLE = "reference/commands.md"
SHARED = "settings of the run"
"""Begin of the title of the group that `apex`, `actor`, `learner` and `evaluator` share: told once."""

HEAD = """# Command line

Every subcommand of `replay-server` and its options. `replay-server SUBCOMMAND --help` says the same.
What they are for: [the index](../index.md).

| subcommand | does |
|---|---|
"""
EXIT_CODES = """
## Exit codes

| status | meaning |
|---|---|
| 0 | done, or stopped by a signal in order (`serve`) |
| 1 | failure; the last line on standard error says of what. `doctor`: something is wrong |
| 2 | usage: an option, a value or the configuration file is wrong; nothing was started |
| 3 | `serve`, `dashboard`: the address is in use |
| 4 | `serve`: a snapshot or an append-only file was refused |
| 5 | `apex` and its parts, `train`, `scheduler`: the replay server was lost; `top --once`: none answered |
| 130 | interrupted (Ctrl-C, SIGTERM) before the end; what was done is saved |

More on signals: [operations](../operations.md#signals-and-exit-statuses).
"""


def page() -> str:
    """The whole page."""
    rows = [f"| [`{name}`](#{_anchor(name)}) | {_cell(about)} |\n" for name, about in cli.SUBCOMMANDS.items()]
    told: dict[str, list[argparse.Action]] = {}
    sections = [_section(words, told) for words in subcommands()]
    return HEAD + "".join(rows) + EXIT_CODES + "".join(sections)


def _anchor(name: str) -> str:
    first = next(words for words in subcommands() if words[0] == name)
    return "-".join(("replay-server", *first))


def _section(words: tuple[str, ...], told: dict[str, list[argparse.Action]]) -> str:
    parser = parser_of(words)
    text = f"\n## replay-server {' '.join(words)}\n\n"
    if parser is None:
        return text + f"`replay-server {' '.join(words)} --help` tells its arguments.\n"
    text += re.sub(r"^``replay-server [^`]*``: ", "", _words(parser.description)) + "\n"
    for group in parser._action_groups:
        actions = [each for each in group._group_actions if not _is_hidden(each)]
        if not actions:
            continue
        title = group.title or ""
        if title not in ("options", "optional arguments", "positional arguments"):
            text += f"\n**{title}**" + (f": {_words(group.description)}" if group.description else "") + "\n"
        if title in told:
            text += "\n" + _as_before(actions, told[title])
            continue
        if title.startswith(SHARED):
            told[title] = actions
        text += "\n| option | meaning |\n|---|---|\n" + "".join(_row(parser, each) for each in actions)
    return text + (f"\n{_words(parser.epilog)}\n" if parser.epilog else "")


def _is_hidden(action: argparse.Action) -> bool:
    return isinstance(action, argparse._HelpAction) or action.help == argparse.SUPPRESS


def _as_before(actions: list[argparse.Action], before: list[argparse.Action]) -> str:
    names = {each.dest for each in actions}
    these = [f"`{each.option_strings[0]}`" for each in before if each.dest in names]
    without = [f"`{each.option_strings[0]}`" for each in before if each.dest not in names]
    if len(these) < len(without):
        return f"Of those of [`apex`](#replay-server-apex): {', '.join(these)}.\n"
    return "Those of [`apex`](#replay-server-apex)" + (f", without {', '.join(without)}" if without else "") + ".\n"


def _row(parser: argparse.ArgumentParser, action: argparse.Action) -> str:
    values = _values(action)
    names = [" ".join(filter(None, (name, values))) for name in action.option_strings] or [values]
    if isinstance(action, argparse.BooleanOptionalAction):
        names = list(action.option_strings)
    help_text = parser._get_formatter()._expand_help(action) if action.help else ""
    return f"| {', '.join(f'`{_cell(name)}`' for name in names)} | {_cell(help_text + _default(action, help_text))} |\n"


def _values(action: argparse.Action) -> str:
    """What follows the option: as ``--help`` has it, which differs between versions of Python, in one way."""
    if action.nargs == 0:
        return ""
    one: Any = action.metavar
    if one is None:
        one = "{" + ",".join(map(str, action.choices)) + "}" if action.choices else action.dest.upper()
    if not isinstance(one, str):
        return " ".join(one)
    if not action.option_strings and action.metavar is None and not action.choices:
        one = action.dest
    return {"?": f"[{one}]", "*": f"[{one} …]", "+": f"{one} …"}.get(str(action.nargs), one)


def _default(action: argparse.Action, help_text: str) -> str:
    value = action.default
    if value in (None, False, argparse.SUPPRESS, "") or value == [] or action.nargs == 0:
        return ""
    shown = " ".join(map(str, value)) if isinstance(value, list | tuple) else str(value).removesuffix(".0")
    told = "default" in help_text or f"({shown}" in help_text.replace(",", "")
    return "" if told else f" (default: {shown})"


def _words(text: str | None) -> str:
    """Running text on one line; a paragraph that is indented or shows commands stays as it is, as code."""
    parts = []
    for paragraph in re.split(r"\n\s*\n", (text or "").strip()):
        lines = paragraph.splitlines()
        if all(line.lstrip().startswith(("replay-server ", "python ")) for line in lines):
            parts.append("```sh\n" + "\n".join(line.strip() for line in lines) + "\n```")
        else:
            parts.append(_cell(" ".join(paragraph.split())))
    return "\n\n".join(parts)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("``", "`").replace("|", "\\|").replace("<", "&lt;")
