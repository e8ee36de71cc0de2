"""Writes native/server/admin/command_facts.c: what COMMAND INFO of a Redis server says of each command, one line each.

    python native/tools/emit_command_facts.py unix:///run/redis.sock > native/server/admin/command_facts.c

Facts alone, no prose: since when, categories, tips, where the keys stand. Clients read them to find keys and to route
commands, so they must be what Redis says.
"""

from __future__ import annotations

import sys
from typing import Any

import redis

HEADER = """/* command_facts: what Redis 7.0 tells of its commands beside arity, flags and places of keys. Written by
 * native/tools/emit_command_facts.py from a running Redis; not edited by hand. In alphabetical order. */
#include "server/admin/command_facts.h"

#include <stddef.h>

/* clang-format off */
const struct command_facts command_facts[] = {
"""
FOOTER = """};
/* clang-format on */
const size_t command_facts_count = sizeof command_facts / sizeof *command_facts;
"""
LEFT_OUT = {"stream", "geo", "hyperloglog", "sentinel"}


def text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def spec_line(spec: dict[bytes, Any]) -> str:
    """FLAGS;index 1;range 0 1 0: the parts that COMMAND INFO has, without notes, which are prose."""
    begin, find = spec[b"begin_search"], spec[b"find_keys"]
    where = {b"index": (b"index",), b"keyword": (b"keyword", b"startfrom"), b"unknown": ()}[begin[b"type"]]
    which = {
        b"range": (b"lastkey", b"keystep", b"limit"),
        b"keynum": (b"keynumidx", b"firstkey", b"keystep"),
        b"unknown": (),
    }[find[b"type"]]
    parts = [
        " ".join(text(flag) for flag in spec[b"flags"]),
        " ".join([text(begin[b"type"]), *(text(begin[b"spec"][name]) for name in where)]),
        " ".join([text(find[b"type"]), *(text(find[b"spec"][name]) for name in which)]),
    ]
    return ";".join(parts)


def quoted(value: str) -> str:
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'


def main(url: str) -> None:
    client = redis.Redis.from_url(url, protocol=3)
    connection = client.connection_pool.get_connection()

    def ask(*words: str) -> Any:
        connection.send_command(*words)
        return connection.read_response()

    docs = {text(name): facts for name, facts in ask("COMMAND", "DOCS").items()}
    rows: dict[str, str] = {}
    for command in ask("COMMAND"):
        if text(docs[text(command[0])][b"group"]) in LEFT_OUT:
            continue
        parts = docs[text(command[0])].get(b"subcommands", {})
        for info in [command, *command[9]]:
            name = text(info[0])
            about = docs.get(name) or parts.get(info[0])
            columns = [
                name,
                text(about[b"since"]),
                " ".join(text(category) for category in info[6]),
                "\n".join(text(tip) for tip in info[7]),
                "\n".join(spec_line(spec) for spec in info[8]),
            ]
            rows[name] = "    {" + ", ".join(quoted(column) for column in columns) + "},\n"
    sys.stdout.write(HEADER + "".join(rows[name] for name in sorted(rows)) + FOOTER)


if __name__ == "__main__":
    main(sys.argv[1])
