"""Completion for shells, tried in those that are installed."""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

shtab = pytest.importorskip("shtab", reason="needs the extra completion (make setup installs it)")

from replay_server import cli, completion  # noqa: E402
from replay_server.arguments import parser_of  # noqa: E402

pytestmark = pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The three scripts. Writing one imports each subcommand that is installed."""
    folder = tmp_path_factory.mktemp("completion")
    for shell, name in (("bash", "bash"), ("zsh", "_replay-server"), ("fish", "fish")):
        said = io.StringIO()
        with contextlib.redirect_stdout(said):
            assert cli.main(["completion", shell]) == 0
        (folder / name).write_text(said.getvalue())
    return folder


def bash(folder: Path, *words: str) -> list[str]:
    """What Tab behind these words offers, the last of which is being typed."""
    script = f"""
        source {folder / "bash"}
        COMP_WORDS=(replay-server "$@"); COMP_CWORD=$#
        $(complete -p replay-server | sed 's/.*-F \\([^ ]*\\).*/\\1/')
        printf '%s\\n' "${{COMPREPLY[@]}}"
    """
    done = subprocess.run(
        ["bash", "--norc", "-c", script, "bash", *words], capture_output=True, text=True, timeout=60, cwd=folder
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_bash_completes_subcommands(folder: Path) -> None:
    assert bash(folder, "") == [*cli.SUBCOMMANDS]
    assert set(bash(folder, "-")) == {"-V", "--version", "-h", "--help"}
    assert bash(folder, "se") == ["serve"]


def test_bash_completes_options_and_their_choices(folder: Path) -> None:
    assert bash(folder, "serve", "--unix") == ["--unixsocket", "--unixsocketperm"]
    assert bash(folder, "serve", "--transport", "") == ["kernel", "dpdk", "fstack"]
    assert bash(folder, "serve", "--port", "6379", "--transport", "d") == ["dpdk"]


def test_bash_offers_nothing_for_a_value_that_can_be_anything(folder: Path) -> None:
    assert bash(folder, "serve", "--port", "") == []


def test_bash_completes_files(folder: Path) -> None:
    assert bash(folder, "serve", "--config", "fis") == ["fish"]


def test_bash_completes_parts_of_subcommands(folder: Path) -> None:
    assert bash(folder, "completion", "") == ["bash", "zsh", "fish"]
    assert bash(folder, "bench", "lat") == ["latency"]
    assert bash(folder, "scheduler", "") == ["train"]


def test_a_word_that_names_a_subcommand_elsewhere_is_a_value(folder: Path) -> None:
    assert bash(folder, "serve", "--host", "bench", "--unixsocketp") == ["--unixsocketperm"]


def test_every_option_of_a_subcommand_is_offered(folder: Path) -> None:
    pytest.importorskip("gymnasium")
    for name in ("apex", "train", "actor"):
        parser = parser_of(lambda name=name: cli.subcommand(name)([]))
        assert parser is not None
        offered = [action for action in parser._actions if action.help != argparse.SUPPRESS]
        expected = {option for action in offered for option in action.option_strings}
        assert set(bash(folder, name, "-")) == expected


@pytest.mark.skipif(shutil.which("fish") is None, reason="fish is not installed")
def test_fish_completes_subcommands_options_and_choices(folder: Path) -> None:
    def offered(line: str) -> list[str]:
        script = f"source {folder / 'fish'}; complete -C {line!r}"
        done = subprocess.run(["fish", "--no-config", "-c", script], capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        return [each.partition("\t")[0] for each in done.stdout.splitlines()]

    assert set(cli.SUBCOMMANDS) <= set(offered("replay-server "))
    assert offered("replay-server serve --unix") == ["--unixsocket", "--unixsocketperm"]
    assert sorted(offered("replay-server serve --transport ")) == ["dpdk", "fstack", "kernel"]
    assert "latency" in offered("replay-server bench ")


@pytest.mark.skipif(shutil.which("zsh") is None, reason="zsh is not installed")
def test_zsh_completes_subcommands_options_and_choices(folder: Path, tmp_path: Path) -> None:
    """In a shell on a terminal of its own: the line as it is after Tab."""
    lines = tmp_path / "lines"
    (tmp_path / ".zshrc").write_text(
        f"fpath=({folder} $fpath); autoload -Uz compinit; compinit -u -d {tmp_path}/dump; PS1='READY '\n"
        f"show() {{ print -r -- $BUFFER >>{lines}; BUFFER=; }}; zle -N show; bindkey '^O' show\n"
    )
    typed = {"serve --unixsocketp": "serve --unixsocketperm", "comple": "completion",
             "serve --transport fs": "serve --transport fstack", "bench lat": "bench latency"}  # fmt: skip
    keys = "\n".join(f"zpty -w -n shell $'replay-server {words}\\t\\C-o'" for words in typed)
    script = f"""
        zmodload zsh/zpty zsh/datetime
        export ZDOTDIR={tmp_path} TERM=dumb
        zpty shell zsh -i
        zpty -r shell text '*READY*'
        {keys}
        until=$(( EPOCHSECONDS + 60 ))
        while [[ ! -e {lines} || $(wc -l <{lines}) -lt {len(typed)} ]] && (( EPOCHSECONDS < until )); do
            zpty -rt shell text
        done
    """
    done = subprocess.run(["zsh", "-f", "-c", script], capture_output=True, text=True, timeout=120)
    assert lines.exists(), done.stdout + done.stderr
    assert [line.rstrip() for line in lines.read_text().splitlines()] == [
        f"replay-server {words}" for words in typed.values()
    ]


def test_another_shell_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["completion", "tcsh"])
    assert ended.value.code == 2
    assert "bash" in capsys.readouterr().err


def test_values_of_serve_have_names_that_say_what_they_are() -> None:
    """Not those of the options again; from them completion knows files and words."""
    parser = cli.serve_parser()
    completion.mark_paths(parser)
    by_name = {action.option_strings[-1]: action for action in parser._actions}
    for file in ("--config", "--tls-cert-file", "--tls-key-file", "--tls-ca-cert-file", "--aclfile", "--password-file"):
        assert by_name[file].complete == shtab.FILE, file  # type: ignore[attr-defined]
    assert by_name["--dir"].complete == shtab.DIRECTORY  # type: ignore[attr-defined]
    assert by_name["--log-level"].choices == ("debug", "info", "notice", "warning", "error")
    help_text = parser.format_help()
    for option in by_name:
        assert option.removeprefix("--").replace("-", "_").upper() not in help_text.split() or option == "--host"


@pytest.mark.parametrize("words", [["completion", "bash"], ["serve", "--help"]])
def test_a_reader_that_went_away_is_no_traceback(words):
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "replay_server", *words]
    done = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, text=True, timeout=60)
    os.close(writing)
    assert (done.returncode, done.stderr) == (1, "")
