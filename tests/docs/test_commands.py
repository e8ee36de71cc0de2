"""Command lines that pages show can be typed: subcommands, options, make targets and files are there."""

from __future__ import annotations

import re
import shutil
import subprocess

import pytest
from pages import REPOSITORY, Block, all_pages
from parsers import parser_of, subcommands
from shell import LANGUAGES, commands_of, wrong_with

import replay_server as rs

pytest.importorskip("gymnasium", reason="parsers of training need gymnasium (make setup installs it)")

PAGES = all_pages()
SHELL_BLOCKS = [block for page in PAGES for block in page.blocks if block.language in LANGUAGES]
FOREIGN = re.compile(
    "--(build-arg|file-prefix|huge-dir|in-memory|iova-mode|lcores|net|network|no-build-isolation|no-deps|no-huge|no-pci"
    "|privileged|proc-type|rdb|restart|rm|single-file-segments|status|user|vdev|version)"
)
"""Options of other programs that running text names."""


SHOWN = re.compile(
    r"(?:sudo )?(?:\.venv/bin/)?"
    r"(?:replay-server (?!SUBCOMMAND|bench$|bench …)|\./setup_dpdk\.sh |make |python -m |pytest )\S"
)
"""Begins of commands in running text."""


def test_every_command_line_can_be_typed() -> None:
    wrong = [f"{block}: {why}" for block in SHELL_BLOCKS for line in commands_of(block) if (why := wrong_with(line))]
    assert len(SHELL_BLOCKS) > 20
    assert not wrong, "\n".join(wrong)


def test_every_command_that_running_text_shows_can_be_typed() -> None:
    found = [
        (f"{page.name}:{line}", re.sub(r"[\[\]]", "", code))  # what may be left out
        for page in PAGES
        for line, code in page.inline_code()
        if SHOWN.match(code)
    ]
    assert len(found) > 30
    wrong = [f"{place}: {why}" for place, code in found if (why := wrong_with(code)) and not is_a_part(why)]
    assert not wrong, "\n".join(wrong)


def is_a_part(why: str) -> bool:
    """Whether it is said only that something is missing: running text shows the words that it talks of, and no more."""
    return re.search("arguments are required|expected (?:one|at least one) argument", why) is not None


def test_every_option_that_running_text_names_is_there() -> None:
    known = set(re.findall(r"--[a-z][a-z0-9-]*", "".join(path.read_text() for path in sources())))
    for words in [*subcommands(), *figures()]:
        if parser := parser_of(words):
            known |= {option for action in parser._actions for option in action.option_strings}
    wrong = [
        f"{page.name}:{line}: `{code}`: nothing here knows {option}"
        for page in PAGES
        for line, code in page.inline_code()
        for option in re.findall(r"(?<![\w-])--[a-z][a-z0-9-]*", code)
        if option not in known and not FOREIGN.fullmatch(option)
    ]
    assert not wrong, "\n".join(wrong)


def figures() -> list[tuple[str, ...]]:
    """Benchmarks that have options of their own for each of a paper's figures."""
    from replay_server.bench.papers.nitro.command import figures

    return [("bench", "scalers", "--figure", name) for name in figures()]


def sources() -> list:
    """Scripts and tests that take options of their own."""
    return [
        REPOSITORY / "setup_dpdk.sh",
        *REPOSITORY.glob("native/net/dpdk/setup/*.sh"),
        *REPOSITORY.glob("native/tools/*.c"),
        *REPOSITORY.glob("serverless/deploy/**/*.*"),
        *REPOSITORY.glob("examples/*.py"),
        REPOSITORY / "tests/conformance/redis_suite.py",
    ]


def test_every_session_with_redis_cli_goes_as_shown() -> None:
    if shutil.which("redis-cli") is None:
        pytest.skip("redis-cli is not installed (redis-tools)")
    blocks = [block for block in SHELL_BLOCKS if re.search(r"^\$ redis-cli (?!-h)", block.text, re.MULTILINE)]
    assert blocks, "docs/how-to/use-from-python.md shows one"
    for block in blocks:
        if block.mark == "not run":
            continue
        with rs.Server() as server:
            port = server.url.rsplit(":", 1)[1]
            for command, shown in exchanges(block):
                result = subprocess.run(
                    f"redis-cli --no-raw -p {port} {command}", shell=True, capture_output=True, text=True, timeout=60
                )
                came = result.stdout.strip()
                assert result.returncode == 0, f"{block}: {command}: {result.stderr}"
                assert not came.startswith("(error)") or shown.startswith("(error)"), f"{block}: {command}: {came}"
                assert not shown or came == shown, f"{block}: {command}"


def exchanges(block: Block) -> list[tuple[str, str]]:
    """(arguments of redis-cli, what the page shows that it prints), in their order."""
    found = re.findall(r"^\$ redis-cli (.*)\n((?:(?!\$ ).*\n)*)", block.text, re.MULTILINE)
    return [(command.partition(" #")[0], shown.strip()) for command, shown in found]
