"""COMMAND tells of commands what Redis 7.0 tells, and CLIENT's subcommands answer as Redis's."""

from __future__ import annotations

from typing import Any

import pytest
from against_redis import Pair, comparable

# What this server has and Redis 7.0 has not, and what it says of its own prose.
OWN_SUBCOMMANDS = {
    *(b"client|" + word for word in (b"setinfo", b"no-touch")),
    *(b"cluster|" + word for word in (b"settopology", b"topology", b"hold", b"release")),
}
# Of these there is what tells that there are none; of what there is, all must be as in Redis.
LEFT_OUT = {b"module|" + word for word in (b"load", b"loadex", b"unload")}
PENDING: set[bytes] = set()
# They take the further argument of Redis 7.2, WITHSCORE.
LONGER = {b"zrank", b"zrevrank"}


def plain(reply: tuple[str, Any]) -> Any:
    """Sets without order, keys without the notes on them, which are prose."""
    kind, value = reply
    if kind == "~":
        return kind, sorted(plain(item) for item in value)
    if kind in "*%" and value is not None:
        items = [plain(item) for item in value]
        if ("$", b"notes") in items:
            at = items.index(("$", b"notes"))
            del items[at : at + 2]
        return kind, items
    return reply


def described(info: tuple[str, Any]) -> tuple[bytes, list[Any]]:
    parts = info[1]
    flags = sorted(flag for _, flag in parts[2][1])
    categories = sorted(category for _, category in parts[6][1])
    subcommands = sorted(described(part) for part in parts[9][1] if part[1][0][1] not in OWN_SUBCOMMANDS | LEFT_OUT)
    return parts[0][1], [
        parts[1],
        flags,
        *parts[3:6],
        (parts[2][0], parts[6][0]),
        categories,
        plain(parts[7]),
        plain(parts[8]),
        subcommands,
    ]


def names(pair: Pair) -> list[bytes]:
    ours = {name for _, name in pair.ours.run(b"COMMAND", b"LIST")[1]}
    theirs = {name for _, name in pair.redis.run(b"COMMAND", b"LIST")[1]}
    return sorted((ours & theirs) - PENDING)


def test_every_command_is_described_as_redis_describes_it(pair: Pair) -> None:
    wrong = {}
    for name in names(pair):
        redis, ours = (server.run(b"COMMAND", b"INFO", name)[1][0] for server in (pair.redis, pair.ours))
        if name in LONGER:
            assert ours[1][1] == (":", -redis[1][1][1])
            ours[1][1] = redis[1][1]
        if described(redis) != described(ours):
            wrong[name] = (described(redis), described(ours))
    assert not wrong, "\n" + "\n".join(
        f"{name.decode()}: "
        + "; ".join(f"Redis {theirs}, we {own}" for theirs, own in zip(redis[1], ours[1], strict=True) if theirs != own)
        for name, (redis, ours) in wrong.items()
    )


def test_every_help_begins_and_ends_as_that_of_redis(pair: Pair) -> None:
    helps = [name for name in names(pair) if name.endswith(b"|help") and not name.startswith(b"cluster|")]
    assert len(helps) > 10
    for name in helps:
        redis, ours = (server.run(*name.split(b"|"))[1] for server in (pair.redis, pair.ours))
        assert (redis[0], redis[-2:]) == (ours[0], ours[-2:]), name


def test_every_help_says_of_each_subcommand_what_command_docs_says(pair: Pair) -> None:
    for name in [name.split(b"|")[0] for name in names(pair) if name.endswith(b"|help") and b"cluster" not in name]:
        docs = pair.ours.run(b"COMMAND", b"DOCS", name)[1][1][1]
        parts = docs[docs.index(("$", b"subcommands")) + 1][1]
        told = {
            part.split(b"|")[1].upper(): row[1][1][1] for (_, part), row in zip(parts[::2], parts[1::2], strict=True)
        }
        lines = [line for _, line in pair.ours.run(name, b"HELP")[1]]
        helped = {line.split()[0]: text.strip() for line, text in zip(lines[1::2], lines[2::2], strict=True)}
        assert helped == {**told, b"HELP": b"Prints this help."}, name


def test_group_and_age_of_every_command_are_those_of_redis(pair: Pair) -> None:
    for name in names(pair):
        facts = []
        for server in (pair.redis, pair.ours):
            words = server.run(b"COMMAND", b"DOCS", name)[1][1][1]
            facts.append([words[words.index(("$", key)) + 1] for key in (b"since", b"group")])
        assert facts[0] == facts[1], name


@pytest.mark.parametrize(
    "line",
    [
        "GET k",
        "SET k v",
        "SET k v GET EX 5",
        "MSET a 1 b 2",
        "MGET a b c",
        "DEL a b",
        "RENAME a b",
        "LRANGE l 0 -1",
        "HSET h f v",
        "GET",
        "GET a b",
        "NOSUCH a",
        "PING",
        "PUBLISH a b",
        "SSUBSCRIBE a b",
        "ZUNIONSTORE d 2 a b",
        "ZUNIONSTORE d 3 a b",
        "BITFIELD a GET u8",
        "BITFIELD a GET u8 0 SET x",
        "ZINTERSTORE d 0 a",
        "ZDIFFSTORE d x a",
        "ZUNION 0 a",
        "LMPOP 0 a LEFT",
        "CLIENT LIST",
        "CLIENT NOSUCH",
        "CONFIG GET x",
        "",
    ],
)
def test_keys_are_found_as_redis_finds_them(pair: Pair, line: str) -> None:
    for word in (b"GETKEYS", b"GETKEYSANDFLAGS"):
        command = (b"COMMAND", word, *line.encode().split())
        redis, ours = (server.run(*command) for server in (pair.redis, pair.ours))
        assert plain(comparable(command, ours)) == plain(comparable(command, redis)), command


@pytest.mark.parametrize(
    "line",
    [
        "COMMAND INFO nosuch get|x",
        "COMMAND DOCS nosuch",
        "COMMAND COUNT x",
        "COMMAND NOSUCH",
        "COMMAND LIST x",
        "COMMAND LIST FILTERBY PATTERN",
        "COMMAND LIST FILTERBY NOSUCH x",
        "COMMAND LIST FILTERBY MODULE x",
        "COMMAND LIST FILTERBY PATTERN get",
        "COMMAND LIST FILTERBY PATTERN CLIENT|LI*",
        "COMMAND LIST FILTERBY ACLCAT nosuch",
    ],
)
def test_lists_and_errors_are_those_of_redis(pair: Pair, line: str) -> None:
    pair.words(line)


def test_the_count_is_that_of_the_list(pair: Pair) -> None:
    listed = [name for _, name in pair.ours.run(b"COMMAND", b"LIST")[1]]
    assert pair.ours.run(b"COMMAND", b"COUNT") == (":", sum(b"|" not in name for name in listed))
    assert len(pair.ours.run(b"COMMAND")[1]) == pair.ours.run(b"COMMAND", b"COUNT")[1]
    assert len(set(listed)) == len(listed)


# ---- CLIENT -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "line",
    [
        "CLIENT",
        "CLIENT NOSUCH",
        "CLIENT LIST x",
        "CLIENT LIST TYPE nosuch",
        "CLIENT LIST TYPE master",
        "CLIENT LIST ID x",
        "CLIENT LIST ID",
        "CLIENT LIST ID 123456789",
        "CLIENT KILL",
        "CLIENT KILL 1.2.3.4:5",
        "CLIENT KILL ID",
        "CLIENT KILL ID x",
        "CLIENT KILL ID 0",
        "CLIENT KILL ID 123456789",
        "CLIENT KILL TYPE nosuch",
        "CLIENT KILL TYPE replica",
        "CLIENT KILL USER nosuch",
        "CLIENT KILL ADDR 1.2.3.4:5 SKIPME maybe",
        "CLIENT KILL ADDR 1.2.3.4:5 SKIPME no",
        "CLIENT UNBLOCK x",
        "CLIENT UNBLOCK 1 nosuch",
        "CLIENT UNBLOCK 123456789",
        "CLIENT UNBLOCK 1 ERROR x",
        "CLIENT PAUSE x",
        "CLIENT PAUSE -1",
        "CLIENT PAUSE 1 nosuch",
        "CLIENT PAUSE 1 ALL x",
        "CLIENT UNPAUSE",
        "CLIENT NO-EVICT on",
        "CLIENT NO-EVICT off",
        "CLIENT NO-EVICT x",
        "CLIENT REPLY x",
        "CLIENT REPLY on",
        "CLIENT SETNAME a",
        "CLIENT GETNAME",
        "CLIENT GETREDIR",
        "CLIENT TRACKINGINFO",
        "CLIENT TRACKING",
        "CLIENT TRACKING off",
        "CLIENT CACHING yes",
        "CLIENT CACHING maybe",
        "CLIENT ID x",
    ],
)
def test_client_subcommands_answer_as_redis(pair: Pair, line: str) -> None:
    pair.words(line)


def test_the_line_of_a_client_has_the_fields_of_redis(pair: Pair) -> None:
    lines = [server.run(b"CLIENT", b"INFO")[1].decode() for server in (pair.redis, pair.ours)]
    redis, ours = ([field.partition("=")[0] for field in line.split()] for line in lines)
    assert ours[: len(redis)] == redis


def test_a_pause_holds_commands_back_and_keeps_their_order(our_peer: Any) -> None:
    first, second = our_peer.connect(), our_peer.connect()
    first.run(b"SET", b"paused", b"before")
    assert first.run(b"CLIENT", b"PAUSE", b"100000", b"WRITE") == ("+", b"OK")
    second.send((b"SET", b"paused", b"after"), (b"GET", b"paused"))
    assert first.run(b"GET", b"paused") == ("$", b"before")
    assert b"flags=bU" in first.run(b"CLIENT", b"LIST")[1]
    assert first.run(b"CLIENT", b"UNPAUSE") == ("+", b"OK")
    assert [second.read(), second.read()] == [("+", b"OK"), ("$", b"after")]
    assert first.run(b"CLIENT", b"PAUSE", b"50") == ("+", b"OK")
    assert second.run(b"GET", b"paused") == ("$", b"after")
    first.close()
    second.close()


def test_a_client_that_waits_for_the_end_of_a_pause_may_go(our_peer: Any) -> None:
    first, second = our_peer.connect(), our_peer.connect()
    first.run(b"CLIENT", b"PAUSE", b"100000", b"WRITE")
    second.send((b"SET", b"gone", b"x"))
    while b"flags=bU" not in first.run(b"CLIENT", b"LIST")[1]:
        pass
    second.close()
    while b"flags=bU" in first.run(b"CLIENT", b"LIST")[1]:
        pass
    first.run(b"CLIENT", b"UNPAUSE")
    assert first.run(b"EXISTS", b"gone") == (":", 0)
    first.close()


def test_kill_closes_the_clients_that_match(our_peer: Any) -> None:
    first, second, third = (our_peer.connect() for _ in range(3))
    second.run(b"SUBSCRIBE", b"x")
    assert first.run(b"CLIENT", b"KILL", b"TYPE", b"pubsub") == (":", 1)
    with pytest.raises(ConnectionError):
        second.read()
    number = str(third.run(b"CLIENT", b"ID")[1]).encode()
    assert first.run(b"CLIENT", b"LIST", b"ID", number)[1].count(b"\n") == 1
    assert first.run(b"CLIENT", b"KILL", b"ID", number) == (":", 1)
    with pytest.raises(ConnectionError):
        third.read()
    number = str(first.run(b"CLIENT", b"ID")[1]).encode()
    assert first.run(b"CLIENT", b"KILL", b"ID", number, b"SKIPME", b"yes") == (":", 0)
    assert first.run(b"CLIENT", b"KILL", b"ID", number, b"SKIPME", b"no") == (":", 1)
    with pytest.raises(ConnectionError):
        first.read()
    for connection in (first, second, third):
        connection.close()
