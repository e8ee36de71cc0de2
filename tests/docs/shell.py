"""Command lines as pages show them: which lines of a block are commands, and what is wrong with one."""

from __future__ import annotations

import functools
import importlib.util
import re
import shlex
import subprocess
from collections.abc import Iterator

from pages import REPOSITORY, Block
from parsers import refusal_of

LANGUAGES = ("", "sh", "bash", "shell", "console")
"""Of blocks that are taken as commands; "" because a block without a word behind its fence shows commands."""
PROMPT = re.compile(r"^(?:[\w-]+ )*(?:[\w-]+)?\$ +(.*)$")
OUTPUT = ("ready url=",)
"""Begins of lines that a command prints, in blocks without prompts."""
OPERATORS = {"&&", "||", ";", "|", "&", "(", ")", "|&", ";;"}
BEFORE = {"sudo", "exec", "time", "nohup", "env", "then", "do", "else", "if", "while", "!", "command"}
OTHERS = """
    . [ apt-get aws base64 bash cat cd chmod chown cmake cp curl date docker done dpdk-devbind.py
    echo esac export fi for func gcloud git grep groupadd head install ip journalctl kill kn
    kubeconform kubectl ls lspci mkdir mv ninja openssl pip pipx pkill podman printf promtool ray
    redis-benchmark redis-cli rm rsync sam scp sed seq set sh sleep source ssh systemctl
    systemd-analyze systemd-run tail tar tee tensorboard test trap true ulimit umask unset update-grub
    useradd uv wait watch xargs
"""
"""Programs that are not ours: nothing is said of their arguments."""
PLACEHOLDER = re.compile(r"[A-Z][A-Z0-9_]*|[a-z]|…|<[^>]*>|\$\{?\w+\}?|\.\.\.")


def commands_of(block: Block) -> list[str]:
    """The command lines of a block, continued ones in one piece. Where there are prompts, only what follows them."""
    lines = re.sub(r"\\\n\s*", "", block.text).splitlines()
    if any(PROMPT.match(line) for line in lines):
        return [_whole(found[1], lines[at + 1 :]) for at, line in enumerate(lines) if (found := PROMPT.match(line))]
    return [line for line in lines if line.strip() and not line.startswith(OUTPUT)]


def _whole(command: str, after: list[str]) -> str:
    """A command with the lines after it that belong to it because a quotation is still open."""
    for line in after:
        try:
            shlex.split(command, comments=True)
        except ValueError:
            command += "\n" + line
        else:
            break
    return command


def wrong_with(command: str) -> str:
    """Why a command line cannot be typed as it stands; "" if nothing is known against it."""
    try:
        for words in simple_commands(command):
            if why := _wrong_with(words):
                return f"{' '.join(words)}: {why}"
    except ValueError as error:
        return f"{command}: {error}"
    return ""


def simple_commands(command: str) -> Iterator[list[str]]:
    """A line cut at && ; | and the like, without assignments, redirections, comments, and words as sudo."""
    lexer = shlex.shlex(command, posix=True, punctuation_chars="();|&")
    lexer.whitespace_split = True
    lexer.commenters = "#"
    words: list[str] = []
    for word in [*lexer, ";"]:
        if word not in OPERATORS:
            words.append(word)
            continue
        while words and (words[0] in BEFORE or re.fullmatch(r"[A-Za-z_]\w*=.*", words[0], re.DOTALL)):
            words = words[1:]
        if words:
            yield words
        words = []


def _wrong_with(words: list[str]) -> str:
    program, arguments = words[0], [word for word in words[1:] if word not in ("…", "...")]
    for at, word in enumerate(arguments):
        if re.match(r"\d?[<>]", word):
            arguments = arguments[:at]
            break
    name = program.rsplit("/", 1)[-1]
    if name == "replay-server":
        return _refusal(arguments)
    if name == "make":
        return _wrong_target(arguments)
    if name in ("python", "python3"):
        return _wrong_script(arguments)
    if name == "setup_dpdk.sh":
        unknown = [word for word in arguments if word.startswith("--") and word not in _set_up_options()]
        return f"no option {unknown[0]}" if unknown else ""
    if name == "pytest":
        missing = [word for word in arguments if word.startswith("tests") and not (REPOSITORY / word).exists()]
        return f"there is no {missing[0]}" if missing else ""
    if program.startswith("build/"):  # what a build leaves
        return ""
    if program.startswith((".ci/", "./", "tests/", "deploy/")):
        return "" if (REPOSITORY / program).exists() else f"there is no {program}"
    known = name in OTHERS.split() or PLACEHOLDER.fullmatch(program) or program.startswith(("/usr/", "/bin/"))
    return (
        "" if known else "not a program that tests/docs/shell.py knows: if it is no command, mark the block as ```text"
    )


def _refusal(arguments: list[str]) -> str:
    """Of replay-server; a placeholder where a number belongs, as in `--actor-id i`, is none."""
    for _ in range(8):
        why = refusal_of(arguments) if arguments else ""
        value = re.search(r"invalid \w+ value: '(.*)'", why)
        if value is None or not PLACEHOLDER.fullmatch(value[1]):
            return why
        arguments = ["1" if word == value[1] else word for word in arguments]
    return why


def _wrong_target(arguments: list[str]) -> str:
    text = (REPOSITORY / "Makefile").read_text()
    for word in arguments:
        name, equals, _ = word.partition("=")
        if equals and name.isupper():
            if f"$({name})" not in text and not re.search(rf"^{name} [?:]?=", text, re.MULTILINE):
                return f"the Makefile knows no {name}"
        elif not name.startswith("-") and not re.search(rf"^{re.escape(name)}:", text, re.MULTILINE):
            return f"no target {name}"
    return ""


def _wrong_script(arguments: list[str]) -> str:
    while arguments and arguments[0].startswith("-") and arguments[0] not in ("-m", "-c"):
        arguments = arguments[1:]
    if arguments[:1] == ["-m"] and len(arguments) > 1:
        top = arguments[1].split(".")[0]
        known = top in ("pip", "venv", "http") or importlib.util.find_spec(arguments[1]) is not None
        return "" if known else f"there is no module {arguments[1]}"
    if arguments and arguments[0].endswith(".py") and "/" in arguments[0]:
        return "" if (REPOSITORY / arguments[0]).exists() else f"there is no {arguments[0]}"
    return ""


@functools.cache
def _set_up_options() -> set[str]:
    script = REPOSITORY / "setup_dpdk.sh"
    result = subprocess.run([script, "--help"], capture_output=True, text=True, timeout=60, check=True)
    return set(re.findall(r"--[a-z][a-z-]*", result.stdout))
