"""docs/reference/configuration.md: every setting of the file of `replay-server serve`, from the code that reads it."""

from __future__ import annotations

import dataclasses
import inspect
import re
from dataclasses import dataclass
from pathlib import Path

import replay_server as rs
from replay_server import config
from replay_server.build_info import native_settings
from replay_server.config import ServeConfig
from replay_server.selectors import LIMITERS, SELECTORS

REPOSITORY = Path(__file__).resolve().parents[2]
SOURCE = REPOSITORY / "native/server/core/config.c"
ROWS = REPOSITORY / "native/server/core/config_replication.h"
COMMENTED = REPOSITORY / "deploy/replay-server.toml"
"""The file with every setting explained, from which the explanations are taken."""

KINDS = {
    "SETTING_NUMBER": "whole number",
    "SETTING_BYTES": "bytes, or as `64kb`, `512mb`, `2gb`",
    "SETTING_OCTAL": "octal number",
    "SETTING_EVENTS": "letters of `Ag$lshzxeKEtmdn`",
}
AT_START = {"port": "6379", "maxclients": "10000", "dir": "."}
"""Defaults of `replay-server serve` where the server that is asked here was started otherwise, or may have had to take
less (`ulimit -n`)."""

AT_THE_TOP = {
    "bind": "The key `host` at the top.",
    "requirepass": "The password of the user `default`; give it by `password_file` at the top, or the environment.",
}
"""Settings whose keys at the top have other names."""

HEAD = """# Configuration

`replay-server serve --config FILE.toml` reads a TOML file. An option on the command line of the same name wins over it;
an unknown key, a wrong type or a value out of range is refused at the start, with the file and the key (exit status 2).
With `rs.Server(config={...})` the settings of `[config]` are the same.

```toml
host = "127.0.0.1"
port = 6379
dir = "/var/lib/replay-server"
maxmemory = "2gb"

[config]
client-stall-timeout = 60
appendonly = true

[[tables]]
name = "atari"
capacity = 1_000_000
sampler = { kind = "prioritized", priority_exponent = 0.6 }
rate_limiter = { kind = "min_size", min_size_to_sample = 1000 }
[tables.signature]
obs = { dtype = "uint8", shape = [4, 84, 84] }
action = { dtype = "int64" }
```

## At the top

| key | type | default | meaning |
|---|---|---|---|
"""
TABLES = """
## `[[tables]]`

One section a table, created at the start; the keys are the arguments of [`rs.Table`](python.md#rstable). `signature` is
a section of its own: column name = `{ dtype = …, shape = […] }`, with `step_only = true` for a column of steps, or
`{ window = COLUMN, length = L, offset = o }`. Nested columns are written as paths, such as `"obs/image"`, or nested in
the file too: `obs = { image = { dtype = …, shape = […] }, … }`.

| key | default | meaning |
|---|---|---|
"""
CONFIG = """
## `[config]`

The server's settings by their `CONFIG` names. Those marked *live* can be changed while it runs, by `CONFIG SET`;
the others are read at the start. `true` and `false` may be written for yes and no. `bind`, `port`,
`unixsocket`, `unixsocketperm`, `dir`, `maxclients`, `maxmemory` and the password have keys at the top.

| setting | value | default | live | meaning |
|---|---|---|---|---|
"""
NO_EFFECT = """
### Without effect

Settings of Redis that tune what does not exist here, or tunes itself. `CONFIG SET` checks and keeps them, and
`CONFIG GET` shows them.

| setting | value | default | meaning |
|---|---|---|---|
"""
FIXED = """
### Fixed

Settings of Redis that clients ask for; they are answered by `CONFIG GET` and cannot be changed: """


@dataclass
class Setting:
    """One line of the table in config.c."""

    name: str
    live: bool
    values: str


def page() -> str:
    """The whole page."""
    text = HEAD + "".join(_top_rows())
    text += TABLES + "".join(_table_rows()) + CONFIG
    with rs.Server() as server, rs.Client(server.url) as client:
        defaults = {**client.redis.config_get("*"), **AT_START}
    explained = explanations()
    if unknown := [setting.name for setting in settings() if setting.name not in defaults]:
        raise LookupError(f"the server that is built does not know {', '.join(unknown)}: make setup builds it anew")
    for setting in settings():
        default = f"`{defaults[setting.name]}`" if defaults[setting.name] else "empty"
        live = "live" if setting.live else ""
        meaning = explained.get(setting.name, AT_THE_TOP.get(setting.name, ""))
        text += f"| `{setting.name}` | {setting.values} | {default} | {live} | {_cell(meaning)} |\n"
    text += NO_EFFECT + "".join(_no_effect_rows())
    fixed = re.findall(r'FIXED\("([^"]+)", "([^"]*)"\)', SOURCE.read_text())
    return text + FIXED + ", ".join(f"`{name}` = `{value}`" if value else f"`{name}`" for name, value in fixed) + ".\n"


def settings() -> list[Setting]:
    """The settings that can be given, in the order of the source."""
    text = SOURCE.read_text()
    words = {
        name: ", ".join(f"`{word}`" for word in re.findall(r'"([^"]+)"', body))
        for name, body in re.findall(r"\b(\w+)\[[^\]]*\] = \{([^}]*)\};", text + _log_source() + _eviction_source())
    }
    table = text[text.index("settings[] = {") : text.index("#define SETTINGS")]
    found = []
    for name, kind, live, low, high in re.findall(
        r'NUMBER\("([^"]+)",\s*(\w+),\s*(\w+),\s*\w+,\s*([^,]+),\s*([^;]+?)\),?\n', table
    ):
        found.append(Setting(name, live == "true", KINDS[kind] + _range(kind, low, high)))
    for name, kind, low, high in re.findall(r'ROW\("([^"]+)", (\w+), \w+, [^,]+, ([^,]+), ([^)]+)\)', ROWS.read_text()):
        values = "`yes`, `no`" if kind == "FLAG" else KINDS[f"SETTING_{kind}"] + _range(kind, low, high)
        found.append(Setting(name, True, values))
    for name, live in re.findall(r'(?:TEXT|BY_COMMAND)\("([^"]+)",\s*(\w+)', table):
        found.append(Setting(name, live == "true", "text"))
    for name, live in re.findall(r'FLAG\("([^"]+)",\s*(\w+)', table):
        found.append(Setting(name, live == "true", "`yes`, `no`"))
    for name, live, choices in re.findall(r'CHOICE\("([^"]+)",\s*(\w+),\s*\w+,\s*(\w+)\)', table):
        found.append(Setting(name, live == "true", words[choices]))
    for name, live in re.findall(r'\{"([^"]+)",\s*SETTING_\w+,\s*(\w+)', table):
        found.append(Setting(name, live == "true", "`CLASS HARD SOFT SECONDS` …"))
    return sorted(found, key=lambda setting: setting.name)


def _no_effect_rows() -> list[str]:
    rows = []
    for each in sorted(native_settings(), key=lambda setting: setting["name"]):
        if each["effect"]:
            continue
        values = {"flag": "`yes`, `no`", "choice": ", ".join(f"`{word}`" for word in each.get("choices", []))}
        kind = f"SETTING_{each['kind'].upper()}"
        least, most = str(each.get("minimum")), str(each.get("maximum"))
        most = most if most not in (str(2**31 - 1), str(2**63 - 1)) else ""
        least = least if least != str(-(2**31)) else "0"
        value = values.get(each["kind"]) or KINDS[kind] + _range(kind, least, most)
        rows.append(
            f"| `{each['name']}` | {value} | `{each['default']}` | Accepted for compatibility; has no effect. |\n"
        )
    return rows


def _log_source() -> str:
    return (SOURCE.parents[2] / "base" / "log.c").read_text()


def _eviction_source() -> str:
    return (REPOSITORY / "native/store/eviction.c").read_text()


def _range(kind: str, low: str, high: str) -> str:
    """The range as people read it; limits without a meaning of their own are left out."""
    if kind == "SETTING_EVENTS" or kind == "SETTING_OCTAL":
        return ""
    least = {"1 << 20": "1 MiB"}.get(low, low)
    if not re.fullmatch(r"-?\d+", high):
        return f", {least} or more" if least not in ("0",) else ""
    return f", {least} to {int(high):,}"


def explanations() -> dict[str, str]:
    """What the commented file says of each setting: the comment lines above its (commented) assignment."""
    found: dict[str, str] = {}
    gathered: list[str] = []
    for line in COMMENTED.read_text().splitlines() if COMMENTED.exists() else []:
        if assigned := re.match(r"#?\s*([a-z][a-z0-9_-]*)\s*=", line):  # several in a row share their comment
            found.setdefault(assigned[1], " ".join(gathered).removesuffix(" Live."))
        elif line.startswith("#") and not re.match(r"# -+ .* -+$", line):
            gathered.append(line.lstrip("# ").rstrip())
        else:
            gathered = []
    return {name: text for name, text in found.items() if text}


def _top_rows() -> list[str]:
    meanings = _attributes(ServeConfig)
    kinds = {str: "text", int: "whole number", bool: "true, false", dict: "section", list: "sections"}
    rows = []
    for field in dataclasses.fields(ServeConfig):
        kind = " or ".join(kinds[each] for each in config._TYPES[field.name])
        default = "" if field.default in (None, dataclasses.MISSING) else f"`{_toml(field.default)}`"
        rows.append(f"| `{field.name}` | {kind} | {default} | {_cell(meanings[field.name])} |\n")
    return rows


def _table_rows() -> list[str]:
    meanings = _attributes(rs.Table)
    kinds = {**SELECTORS, **LIMITERS}
    names = {each.__name__: kind for kind, each in kinds.items()}
    rows = []
    for field in dataclasses.fields(rs.Table):
        default = "required" if field.default is dataclasses.MISSING else ""
        if field.default not in (None, dataclasses.MISSING):
            default = f"`{_toml(field.default)}`"
        meaning = re.sub(r"`([A-Z]\w+)`", lambda match: f"`{names.get(match[1], match[1])}`", meanings[field.name])
        rows.append(f"| `{field.name}` | {default} | {_cell(meaning)} |\n")
    return rows


def _toml(value: object) -> str:
    for kind, part in {**SELECTORS, **LIMITERS}.items():
        if isinstance(value, part):
            fields = "".join(f", {name} = {_toml(each)}" for name, each in vars(value).items())
            return f'{{ kind = "{kind}"{fields} }}'
    if isinstance(value, bool):
        return str(value).lower()
    return f'"{value}"' if isinstance(value, str) else str(value)


def _attributes(thing: type) -> dict[str, str]:
    """The entries under Args or Attributes of a docstring, by name, each on one line."""
    section = re.split(r"\n(?:Args|Attributes):\n", inspect.getdoc(thing) or "")[1].split("\n\n")[0]
    found: dict[str, str] = {}
    for line in section.splitlines():
        if entry := re.match(r"    (\w+): (.*)", line):
            name = entry[1]
            found[name] = entry[2]
        else:
            found[name] += " " + line.strip()
    return found


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
