"""Pages and pictures that are made from the code or from result files are current, and leave nothing out."""

from __future__ import annotations

import dataclasses
import inspect
import re

import pytest
import reference_configuration
import reference_python
import reference_settings
from generate import COMMAND, DOCS, PAGES
from parsers import parser_of, subcommands

from replay_server import cli
from replay_server.config import ServeConfig
from replay_server.dtypes import COLUMN_DTYPES
from replay_server.table import MAX_WINDOW, Column, Window

pytest.importorskip("gymnasium", reason="parsers of training need gymnasium (make setup installs it)")


@pytest.mark.parametrize("name", PAGES)
def test_the_page_is_what_the_code_says(name: str) -> None:
    assert (DOCS / name).read_text() == PAGES[name](), f"docs/{name} is not current: run {COMMAND}"


def test_the_page_on_python_has_no_marks_of_the_interpreter() -> None:
    text = (DOCS / "reference/python.md").read_text()
    assert not re.findall(r"<\w+>| object at 0x|<class ", re.sub(r"`[^`\n]*`", "", text))


def test_limits_in_docstrings_are_those_of_the_code() -> None:
    assert f"up to {MAX_WINDOW:,}" in (Window.__doc__ or "")
    told = (Column.__doc__ or "").replace("float16 to float64", "float16 float32 float64")
    told = re.sub(r"(u?int)8 to u?int64", r"\g<1>8 \g<1>16 \g<1>32 \g<1>64", told)
    assert [name for name in COLUMN_DTYPES if not re.search(rf"\b{name}\b", told)] == []


def test_every_subcommand_has_a_parser() -> None:
    without = [" ".join(words) for words in subcommands() if parser_of(words) is None]
    assert without in ([], ["completion"]), "their options are not in docs/reference/commands.md"
    assert {words[0] for words in subcommands()} == set(cli.SUBCOMMANDS)


def test_every_public_name_is_described() -> None:
    listed = {name for names in reference_python.GROUPS.values() for name in names}
    assert reference_python.public_names() <= listed, "tests/docs/reference_python.py: GROUPS lacks a public name"


def test_every_public_method_has_a_docstring() -> None:
    for names in reference_python.GROUPS.values():
        for name in names:
            thing = reference_python._named(name)
            bare = [
                method
                for method, function in inspect.getmembers(thing, inspect.isfunction)
                if not method.startswith("_")
                and function.__module__.startswith("replay_server")
                and not inspect.getdoc(function)
            ]
            assert not bare, f"{name}: {bare}"


def test_defaults_told_by_serve_are_those_of_its_settings() -> None:
    """Its options have none of their own, since a file may give them: the help says them in words."""
    parser = parser_of(["serve"])
    assert parser is not None
    told = {
        action.dest: found[1]
        for action in parser._actions
        if (found := re.search(r"\(default ([^:);]+)", action.help or ""))
    }
    assert {"host", "port", "transport", "maxmemory"} <= set(told)
    for field in dataclasses.fields(ServeConfig):
        if field.name in told and field.default is not None:
            assert told[field.name] == str(field.default), field.name


def test_every_setting_of_every_algorithm_is_explained() -> None:
    pytest.importorskip("torch", reason="algorithms are in torch")
    from replay_server.learner.algorithms import ALGORITHMS
    from replay_server.rl.settings import ApexSettings
    from replay_server.serverless.settings import TrainSettings

    for kind in (ApexSettings, TrainSettings, *(settings for settings, _ in ALGORITHMS.values())):
        missing = [name for name, meaning in reference_settings._docs(kind).items() if not meaning]
        assert missing == [], f"{kind.__name__}: say what they do below each of them"


def test_every_setting_of_the_source_is_told() -> None:
    source = reference_configuration.SOURCE.read_text()
    table = source[source.index("settings[] = {") : source.index("#define SETTINGS")]
    names = set(re.findall(r'^ +(?:[A-Z]+\(|\{)"([a-z-]+)"', table, re.MULTILINE))
    assert len(names) > 90
    text = (DOCS / "reference/configuration.md").read_text()
    assert [name for name in names if f"`{name}`" not in text] == []


def test_every_setting_is_explained() -> None:
    explained = {**reference_configuration.AT_THE_TOP, **reference_configuration.explanations()}
    missing = [setting.name for setting in reference_configuration.settings() if not explained.get(setting.name)]
    assert missing == [], f"say what they do in {reference_configuration.COMMENTED}"
