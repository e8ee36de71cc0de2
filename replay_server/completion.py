"""`replay-server completion bash|zsh|fish`: completion for a shell, written from the parsers of the subcommands."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import shlex
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from replay_server.arguments import Parser, parser_of

SHELLS = ("bash", "zsh", "fish")
_FILE_WORDS = ("FILE", "PATH", "DIR", "FOLDER")
_FOLDER_OPTIONS = ("--dir", "--logdir", "--folder")


@dataclass(frozen=True)
class Option:
    """An option of a command.

    Attributes:
        names: as they are typed, e.g. ("-h", "--help").
        about: one line of help.
        takes_value: whether a word follows that is its value.
        choices: what that can be, () = anything.
        is_path: whether it names a file or a folder.
    """

    names: tuple[str, ...]
    about: str
    takes_value: bool
    choices: tuple[str, ...] = ()
    is_path: bool = False


@dataclass(frozen=True)
class Command:
    """A subcommand, or a part of one.

    Attributes:
        words: what is typed for it behind `replay-server`, e.g. ("bench", "latency"); () = the command itself.
        about: one line of help.
        options: its options.
        parts: the words that may follow.
    """

    words: tuple[str, ...]
    about: str
    options: tuple[Option, ...] = ()
    parts: tuple[str, ...] = ()


# ---- the parsers -----------------------------------------------------------------------------------------------------


def _option(action: argparse.Action) -> Option:
    takes_value = action.nargs != 0
    metavar = action.metavar if isinstance(action.metavar, str) else (action.metavar or ("",))[0]
    is_path = takes_value and (
        any(word in metavar.upper() for word in _FILE_WORDS) or bool({*_FOLDER_OPTIONS} & {*action.option_strings})
    )
    choices = tuple(str(choice) for choice in action.choices or ()) if takes_value else ()
    about = "" if action.help in (None, argparse.SUPPRESS) else str(action.help)
    # The default's place is filled as --help does it; what cannot be filled is shown as it stands.
    with contextlib.suppress(KeyError, TypeError, ValueError):
        about = about % {**vars(action), "prog": ""}
    return Option(tuple(action.option_strings), " ".join(about.split()), takes_value, choices, is_path)


def _options(parser: argparse.ArgumentParser | None) -> tuple[Option, ...]:
    actions = parser._actions if parser is not None else []
    return tuple(_option(action) for action in actions if action.option_strings and action.help != argparse.SUPPRESS)


def _parts(words: tuple[str, ...], about: str, parser: argparse.ArgumentParser | None) -> Iterator[Command]:
    """A command and, where its parser has parts of its own, those."""
    parts: list[Command] = []
    names: list[str] = []
    for action in parser._actions if parser is not None else ():
        if isinstance(action, argparse._SubParsersAction):
            about_part = {each.dest: each.help or "" for each in action._choices_actions}
            for name, part in action.choices.items():
                names.append(name)
                parts += _parts((*words, name), about_part.get(name, ""), part)
        elif not action.option_strings and action.choices:
            names += [str(choice) for choice in action.choices]
    yield Command(words, about, _options(parser), tuple(names))
    yield from parts


def _bench(about: str) -> Iterator[Command]:
    """`bench` and its benchmarks, each in a module of its own."""
    try:
        benchmarks: dict[str, str] = importlib.import_module("replay_server.bench.main").BENCHMARKS
    except ImportError:
        benchmarks = {}
    yield Command(("bench",), about, (), tuple(benchmarks))
    for name, about_part in benchmarks.items():
        parser = None
        with contextlib.suppress(ImportError), tempfile.TemporaryDirectory() as folder:
            run = importlib.import_module("replay_server.bench.main").find(name)
            parser = parser_of(lambda run=run, folder=folder: run([], folder))
        yield from _parts(("bench", name), about_part, parser)


def commands() -> list[Command]:
    """Every command of this installation. One whose libraries are not installed has no options here but --help."""
    from . import cli

    found = [Command((), "", (Option(("-V", "--version"), "tell versions, transports and libraries", False),),
                     tuple(cli.SUBCOMMANDS))]  # fmt: skip
    for name, about in cli.SUBCOMMANDS.items():
        if name == "bench":
            found += _bench(about)
        elif name == "scheduler":
            found.append(Command((name,), about, (), ("train",)))
            found += _parts((name, "train"), about, parser_of(lambda: cli.subcommand("scheduler")(["train"])))
        else:
            found += _parts((name,), about, parser_of(lambda name=name: cli.subcommand(name)([])))
    more = Option(("-h", "--help"), "tell the options", False)
    return [
        each if more.names in [option.names for option in each.options]
        else Command(each.words, each.about, (*each.options, more), each.parts)
        for each in found
    ]  # fmt: skip


# ---- bash ------------------------------------------------------------------------------------------------------------

_BASH = """\
# Completion of replay-server for bash, written by `replay-server completion bash`.
_replay_server() {{
    local current="${{COMP_WORDS[COMP_CWORD]}}" before="${{COMP_WORDS[COMP_CWORD-1]}}" path="" words="" place
    for ((place = 1; place < COMP_CWORD; place++)); do
        case "$path ${{COMP_WORDS[place]}}" in
        {paths}) path="$path ${{COMP_WORDS[place]}}" ;;
        *) break ;;
        esac
    done
    COMPREPLY=()
    case "$path" in
{cases}
    esac
    mapfile -t COMPREPLY < <(compgen -W "$words" -- "$current")
}}
_replay_server_files() {{
    compopt -o filenames 2>/dev/null
    mapfile -t COMPREPLY < <(compgen -f -- "$1")
}}
complete -F _replay_server replay-server"""


def bash(found: Sequence[Command]) -> str:
    """The script for bash; it needs nothing of the package bash-completion."""
    cases = []
    for command in found:
        values: list[str] = []
        for option in command.options:
            names = "|".join(option.names)
            if option.is_path:
                values.append(f'        {names}) _replay_server_files "$current"; return ;;')
            elif option.choices:
                words = shlex.quote(" ".join(option.choices))
                values.append(f'        {names}) mapfile -t COMPREPLY < <(compgen -W {words} -- "$current"); return ;;')
            elif option.takes_value:
                values.append(f"        {names}) return ;;")
        words = [*command.parts, *(name for option in command.options for name in option.names)]
        path = "".join(f" {word}" for word in command.words)
        inner = ['        case "$before" in', *values, "        esac"] if values else []
        cases.append("\n".join([f'    "{path}")', *inner, f"        words={shlex.quote(' '.join(words))} ;;"]))
    paths = "|".join(f'"{"".join(f" {word}" for word in command.words)}"' for command in found if command.words)
    return _BASH.format(paths=paths, cases="\n".join(cases))


# ---- zsh -------------------------------------------------------------------------------------------------------------


def _zsh_text(text: str) -> str:
    for character in "\\[]:":
        text = text.replace(character, "\\" + character)
    return text


def _zsh_option(option: Option) -> list[str]:
    action = "_files" if option.is_path else f"({' '.join(option.choices)})" if option.choices else " "
    value = f":value:{action}" if option.takes_value else ""
    return [shlex.quote(f"{name}[{_zsh_text(option.about)}]{value}") for name in option.names]


def zsh(found: Sequence[Command]) -> str:
    """The script for zsh, to be in `$fpath` as `_replay-server`."""
    about = {command.words: command.about for command in found}
    lines = [
        "#compdef replay-server",
        "# Completion of replay-server for zsh, written by `replay-server completion zsh`.",
        '_replay_server_parts() { local -a parts; parts=("$@"); _describe part parts; }',
    ]
    for command in found:
        options = [part for option in command.options for part in _zsh_option(option)]
        lines.append(f"_replay_server{''.join('_' + word for word in command.words)}() {{")
        if command.parts:
            described = [
                shlex.quote(f"{part}:{_zsh_text(about.get((*command.words, part), ''))}") for part in command.parts
            ]
            function = "_replay_server" + "".join("_" + word for word in command.words)
            lines += [
                "    if (( CURRENT == 2 )); then",
                f"        _replay_server_parts {' '.join(described)}",
                f"        [[ $words[2] == -* ]] && _arguments {' '.join(options)}",
                f"    elif (( $+functions[{function}_$words[2]] )); then",
                "        local function_name=" + f"{function}_$words[2]",
                "        shift words; (( CURRENT-- ))",
                "        $function_name",
                "    fi",
            ]
        else:
            lines.append(f"    _arguments {' '.join(options)}")
        lines.append("}")
    # Found in $fpath, the file is the body of the function of its name, called for the first Tab; else it is sourced.
    lines += [
        'if [[ $funcstack[1] == _replay-server ]]; then _replay_server "$@"',
        "else compdef _replay_server replay-server; fi",
    ]
    return "\n".join(lines)


# ---- fish ------------------------------------------------------------------------------------------------------------

_FISH = """\
# Completion of replay-server for fish, written by `replay-server completion fish`.
function __replay_server_behind --description 'the words so far begin with these'
    set -l words (commandline -opc)[2..-1]
    test (count $words) -ge (count $argv); or return 1
    for place in (seq (count $argv))
        test "$words[$place]" = "$argv[$place]"; or return 1
    end
end
function __replay_server_at --description 'the words so far are these'
    test (count (commandline -opc)[2..-1]) -eq (count $argv); and __replay_server_behind $argv
end
complete -c replay-server -f"""


def _fish_text(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def fish(found: Sequence[Command]) -> str:
    """The script for fish."""
    about = {command.words: command.about for command in found}
    lines = [_FISH]
    for command in found:
        at = " ".join(["__replay_server_at", *command.words])
        behind = " ".join(["__replay_server_behind", *command.words])
        for part in command.parts:
            text = _fish_text(about.get((*command.words, part), ""))
            lines.append(f"complete -c replay-server -n '{at}' -a {part} -d {text}")
        for option in command.options:
            names = [f"-l {name[2:]}" if name.startswith("--") else f"-s {name[1:]}" for name in option.names]
            value = "-r -F" if option.is_path else "-x" if option.takes_value else ""
            if option.choices:
                value += f" -a {_fish_text(' '.join(option.choices))}"
            condition = behind if command.words else at
            parts = [f"complete -c replay-server -n '{condition}'", *names, value, f"-d {_fish_text(option.about)}"]
            lines.append(" ".join(part for part in parts if part))
    return "\n".join(lines)


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
    print({"bash": bash, "zsh": zsh, "fish": fish}[shell](commands()))
    return 0
