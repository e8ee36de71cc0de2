"""What a wrong option or subcommand is answered with."""

from __future__ import annotations

import argparse
import threading

import pytest

from replay_server import cli
from replay_server.arguments import Parser, did_you_mean, parser_of
from replay_server.bench.main import BENCHMARKS, find


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
    made = {name: parser_of(lambda name=name: cli.subcommand(name)([])) for name in cli.SUBCOMMANDS if name != "bench"}
    assert {"serve", "dashboard", "top", "doctor", "completion"} <= {name for name, each in made.items() if each}


def test_every_benchmark_proposes_options() -> None:
    pytest.importorskip("torch")
    pytest.importorskip("matplotlib")
    for name in BENCHMARKS:
        assert parser_of(lambda name=name: find(name)([], "")) is not None, name


def test_a_parser_is_told_without_its_subcommand_running_and_others_parse_meanwhile() -> None:
    ran = []
    parsing, parsed = threading.Event(), threading.Event()

    def subcommand() -> None:
        parsing.set()
        assert parsed.wait(60)
        parser = Parser()
        parser.add_argument("--depth", type=int)
        parser.parse_args([])
        ran.append(True)

    def parse_beside() -> None:
        parsing.wait(60)
        parser = Parser()
        parser.add_argument("--width", type=int)
        widths.append(parser.parse_args(["--width", "3"]).width)
        parsed.set()

    widths: list[int] = []
    beside = threading.Thread(target=parse_beside)
    beside.start()
    found = parser_of(subcommand)
    beside.join()
    assert found is not None
    assert [action.dest for action in found._actions] == ["help", "depth"]
    assert (ran, widths) == ([], [3])
    subcommand()
    assert ran == [True], "parsers parse again afterwards"
