"""The TOML file of `replay-server serve`: the server's settings, and its tables.

transport = "kernel"
host = "127.0.0.1"
port = 6379
unixsocket = "/run/replay.sock"
maxmemory = "2gb"
dir = "/var/lib/replay"
password_file = "/etc/replay/password"

[config]                       # as for CONFIG SET
client-stall-timeout = 60

[[tables]]                     # keys as rs.Table's arguments
name = "atari"
capacity = 1_000_000
sampler = { kind = "prioritized", priority_exponent = 0.6 }
rate_limiter = { kind = "min_size", min_size_to_sample = 1000 }
[tables.signature]
obs = { dtype = "uint8", shape = [4, 84, 84] }
action = { dtype = "int64" }
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .errors import SchemaError
from .table import Table

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # pyright: ignore[reportMissingImports]

_UNITS = {"": 1, "b": 1, "k": 1000, "kb": 1024, "m": 1000**2, "mb": 1024**2, "g": 1000**3, "gb": 1024**3}


class ConfigError(Exception):
    """The configuration file cannot be read, or a value in it is wrong; a usage error."""


@dataclass
class ServeConfig:
    """What a server is started with; a field's option of the same name wins over the file.

    Attributes:
        transport: "kernel", "dpdk" or "fstack".
        host: address to listen on.
        port: 0 = any free one, -1 = no TCP.
        unixsocket: path, None = none.
        unixsocketperm: permissions of that socket, as an octal string.
        maxmemory: bytes of the key-value store, 0 = no limit.
        maxclients: connections, None = the server's default.
        dir: where the server writes files.
        password_file: file whose first line is the password.
        allow_remote: listen on an address that is not loopback without a password.
        config: further settings by name, as for CONFIG SET.
        tables: created at the start.
    """

    transport: str = "kernel"
    host: str = "127.0.0.1"
    port: int = 6379
    unixsocket: str | None = None
    unixsocketperm: str | None = None
    maxmemory: int = 0
    maxclients: int | None = None
    dir: str | None = None
    password_file: str | None = None
    allow_remote: bool = False
    config: dict[str, Any] = field(default_factory=dict)
    tables: list[Table] = field(default_factory=list)


_TYPES: dict[str, tuple[type, ...]] = {
    "transport": (str,),
    "host": (str,),
    "port": (int,),
    "unixsocket": (str,),
    "unixsocketperm": (str,),
    "maxmemory": (int, str),
    "maxclients": (int,),
    "dir": (str,),
    "password_file": (str,),
    "allow_remote": (bool,),
    "config": (dict,),
    "tables": (list,),
}


def parse_size(text: str | int) -> int:
    """Bytes from "64mb" and the like, units as Redis has them: k = 1000, kb = 1024.

    Raises:
        ConfigError: it is no size.
    """
    match = re.fullmatch(r"(\d+)\s*([a-z]*)", str(text).strip().lower())
    if match is None or match[2] not in _UNITS:
        raise ConfigError(f"expected a size such as 1048576, 512mb or 2gb, got {text!r}")
    return int(match[1]) * _UNITS[match[2]]


def load_config(path: str | Path) -> ServeConfig:
    """Reads a configuration file.

    Raises:
        ConfigError: it cannot be read, a key is unknown, or a value is wrong; the message names file and key.
    """
    try:
        with open(path, "rb") as file:
            values = tomllib.load(file)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: {error}") from error
    for key, value in values.items():
        if key not in _TYPES:
            raise ConfigError(f"{path}: unknown key {key!r}: expected {', '.join(_TYPES)}")
        types = _TYPES[key]
        if not isinstance(value, types) or (isinstance(value, bool) and bool not in types):
            expected = " or ".join(kind.__name__ for kind in types)
            raise ConfigError(f"{path}: {key} must be {expected}, got {value!r}")
    for key in ("unixsocket", "password_file"):
        values[key] = values.get(key) or None  # "" = none
    try:
        if "maxmemory" in values:
            values["maxmemory"] = parse_size(values["maxmemory"])
        values["tables"] = [Table.from_spec(spec) for spec in values.get("tables", [])]
    except (ConfigError, SchemaError, TypeError) as error:
        raise ConfigError(f"{path}: {error}") from error
    return ServeConfig(**values)


def read_password(path: str | Path) -> str:
    """The first line of a password file.

    Raises:
        ConfigError: it cannot be read or is empty.
    """
    try:
        lines = Path(path).read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: {error}") from error
    if not lines or not lines[0]:
        raise ConfigError(f"{path}: expected the password on the first line, got an empty line")
    return lines[0]
