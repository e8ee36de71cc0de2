"""What a wrong option or subcommand is answered with."""

from __future__ import annotations

import argparse

import pytest

from replay_server import cli
from replay_server.arguments import Parser, did_you_mean


@pytest.mark.parametrize(
    ("word", "meant"),
    [
        ("--environment", "--env"),
        ("--lr", "--learning-rate"),
        ("--learning-rat", "--learning-rate"),
        ("--actor", "--actors"),
        ("--sed", "--seed"),
        ("--nothing-alike", ""),
    ],
)
def test_an_unknown_option_is_answered_with_the_nearest(word: str, meant: str, capsys) -> None:
    parser = Parser(prog="program")
    for option in ("--env", "--learning-rate", "--actors", "--seed"):
        parser.add_argument(option)
    parser.add_argument("--secret", help=argparse.SUPPRESS)
    with pytest.raises(SystemExit) as ended:
        parser.parse_args([f"{word}=1"])
    assert ended.value.code == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert last == f"program: error: unrecognized arguments: {word}=1" + (f"; did you mean {meant}?" if meant else "")


def test_a_hidden_option_is_not_proposed(capsys) -> None:
    parser = Parser()
    parser.add_argument("--lifeline", help=argparse.SUPPRESS)
    with pytest.raises(SystemExit):
        parser.parse_args(["--lifelines", "1"])
    assert "did you mean" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "meant"),
    [(["aepx"], "apex"), (["bench", "latencies"], "latency"), (["bench", "peer"], "peers"), (["servr"], "serve")],
)
def test_an_unknown_subcommand_is_answered_with_the_nearest(words: list[str], meant: str, capsys) -> None:
    assert cli.main(words) == 2
    assert f"{words[-1]!r}; did you mean {meant}?" in capsys.readouterr().err.splitlines()[0]


def test_of_several_that_begin_alike_the_longest_is_meant() -> None:
    assert did_you_mean("--tls-cert-files", ["--tls", "--tls-cert-file"]) == "; did you mean --tls-cert-file?"


def test_every_subcommand_proposes_options() -> None:
    from replay_server.completion import find_parser

    made = {name: find_parser(lambda name=name: cli.main([name])) for name in cli.SUBCOMMANDS if name != "bench"}
    assert {name: type(parser) for name, parser in made.items() if parser is not None} == {
        name: Parser for name, parser in made.items() if parser is not None
    }
    assert {"serve", "dashboard", "top", "doctor", "completion"} <= {name for name, each in made.items() if each}
