"""deploy/replay-server.toml names every setting that the code knows, with its default, and is a file that serves."""

from __future__ import annotations

import dataclasses
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import replay_server as rs
from replay_server.build_info import native_settings
from replay_server.config import ServeConfig, load_config, tomllib

OWN_NAMES = {"bind": "host", "requirepass": "password_file"}
"""Settings of CONFIG that have another name at the top of the file."""


def lines_of(file: Path) -> tuple[list[str], list[str]]:
    """The commented settings, `name = value`, of the top and of [config]."""
    top, _, config = file.read_text().partition("\n[config]\n")
    config = config.partition("# [[tables]]")[0]
    return tuple(re.findall(r"^# ([a-z_-]+ = .+)$", part, re.MULTILINE) for part in (top, config))  # type: ignore[return-value]


@pytest.fixture
def file(repository: Path) -> Path:
    return repository / "deploy" / "replay-server.toml"


@pytest.fixture
def uncommented(file: Path, tmp_path: Path) -> Path:
    """The file with every setting in force; any free port."""
    top, config = lines_of(file)
    path = tmp_path / "all.toml"
    text = "\n".join([*top, "[config]", *config])
    path.write_text(text.replace("port = 6379", "port = 0", 1))
    return path


def native_name(name: str) -> str:
    return OWN_NAMES.get(name, name)


def test_every_setting_is_in_it_once(file: Path) -> None:
    top, config = ([line.partition(" = ")[0] for line in part] for part in lines_of(file))
    assert sorted(top) == sorted(each.name for each in dataclasses.fields(ServeConfig) if each.type not in
                                 ("dict[str, Any]", "list[Table]"))  # fmt: skip
    assert sorted(config) == sorted(
        each["name"] for each in native_settings() if each["effect"] and native_name(each["name"]) not in top
    ), "deploy/replay-server.toml and the table of settings in native/server/core/config.c differ"


def test_the_defaults_of_the_first_part_are_those_of_the_code(file: Path) -> None:
    values = tomllib.loads("\n".join(lines_of(file)[0]))
    natives = {each["name"]: each["default"] for each in native_settings()}
    for name, value in values.items():
        default = getattr(ServeConfig(), name)
        if default is None:  # the native server's own
            native = {own: name for name, own in OWN_NAMES.items()}.get(name, name)
            assert str(value) == natives[native], name
        else:
            assert value == default, name


def test_what_is_said_to_be_live_is(file: Path) -> None:
    live = {native_name(each["name"]): each["live"] for each in native_settings()}
    said: dict[str, bool] = {}
    names: list[str] = []
    about = ""
    for line in [*file.read_text().partition("# [[tables]]")[0].splitlines(), ""]:
        if match := re.match(r"# ([a-z_-]+) = ", line):
            names.append(match[1])
        elif line.startswith("# "):
            about += line
        else:
            said |= dict.fromkeys(names, about.endswith(" Live."))
            names, about = [], ""
    live |= {"allow_remote": True, "transport": False}
    assert said == {name: live[name] for name in said}


def test_all_settings_in_force_are_the_defaults_of_the_server(uncommented: Path, tmp_path: Path) -> None:
    """A server started with each line uncommented has the same settings as one that was told nothing."""

    def settings(client: rs.Client) -> dict[str, Any]:
        own = {each["name"] for each in native_settings()} - {"port", "dir"}
        return {str(name): value for name, value in client.redis.config_get("*").items() if name in own}

    command = [sys.executable, "-m", "replay_server", "serve", "--config", str(uncommented)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=tmp_path) as process:
        try:
            assert process.stdout is not None
            ready = re.match(r"ready url=(\S+)", process.stdout.readline())
            assert ready is not None
            with rs.Client(ready[1]) as client:
                given = settings(client)
        finally:
            process.terminate()
    with rs.Server() as server, rs.Client(server.url) as client:
        assert given == settings(client)


def test_the_file_as_it_stands_changes_nothing(file: Path) -> None:
    assert load_config(file) == ServeConfig()
