"""What a server runs at SIGHUP: the arguments of `serve` and the configuration file, read as they were at the start.

Not for people. The server gives it the folder that `serve` was called in and its arguments; it writes to standard
output what `serve` would hand to a new server, or says on standard error what is wrong and exits with 2. Settings on
standard input, a msgpack map, are written into the file instead: CONFIG REWRITE.
"""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgpack

from .config import ConfigError, ServeConfig, load_config
from .server import setup_message

POLITE = 10
"""Added to its niceness: the server goes on serving on the same processors."""

_CODE = (
    "import sys; sys.path[:] = [folder for folder in sys.path if folder]; "
    "from replay_server.reload import main; sys.exit(main(sys.argv[1:]))"
)
"""The folder that the server is in is not one to import from."""


def reload_command(arguments: Sequence[str]) -> list[str]:
    """The program, with its arguments, that reads again what `serve` is given here and now."""
    return [sys.executable, "-c", _CODE, os.getcwd(), *arguments]


def native_settings_of(settings: ServeConfig) -> dict[str, Any]:
    """All that a server is told at its start, tables and password apart, by the names of CONFIG."""
    own = {
        "bind": settings.host, "port": settings.port, "unixsocket": settings.unixsocket,
        "unixsocketperm": settings.unixsocketperm, "maxmemory": settings.maxmemory, "maxclients": settings.maxclients,
        "dir": settings.dir,
    }  # fmt: skip
    open_to_all = {"protected-mode": "no"} if settings.allow_remote else {}
    return {**{name: value for name, value in own.items() if value is not None}, **settings.config, **open_to_all}


def rewrite_file(arguments: Sequence[str], changes: dict[str, str]) -> None:
    """Writes settings, by the names of CONFIG, into the file that the arguments of `serve` name.

    Raises:
        ConfigError: the file cannot be read or changed, or an option of the command line wins over it.
        OSError: it cannot be written.
    """
    from .cli import merged_settings, serve_parser
    from .rewrite import names_of, replace_text, rewritten

    options = serve_parser().parse_args(arguments)
    path = Path(options.config)
    load_config(path)  # whatever is wrong with it is said as at the start
    with open(path, encoding="utf-8", newline="") as file:
        text = file.read()
    new = rewritten(text, changes)
    with tempfile.NamedTemporaryFile("w", suffix=".toml", encoding="utf-8", newline="") as trial:
        trial.write(new)
        trial.flush()
        options.config = trial.name
        natives = native_settings_of(merged_settings(options))
    for name in changes:
        given = {one: natives[one] for one in names_of(name) if one in natives}
        if wins := [f"{one} = {value}" for one, value in given.items() if str(value) != changes.get(one)]:
            raise ConfigError(f"an option of the command line wins over the file: {', '.join(wins)}")
    if new != text:
        replace_text(path, new)


def main(arguments: Sequence[str]) -> int:
    """Writes the setup of the server, or the file; the exit status: 0, or 2 for what `serve` would refuse."""
    from .cli import serve_settings

    with contextlib.suppress(OSError):
        os.nice(POLITE)
    changes = sys.stdin.buffer.read()
    try:
        os.chdir(arguments[0])
        if changes:
            rewrite_file(arguments[1:], msgpack.unpackb(changes))
            return 0
        settings, password, _ = serve_settings(arguments[1:])
    except (ConfigError, OSError) as error:
        print(error, file=sys.stderr)  # the server puts it in its log
        return 2
    sys.stdout.buffer.write(setup_message(settings.tables, password, native_settings_of(settings)))
    sys.stdout.buffer.flush()
    return 0
