"""Who may do what with tables, weights and gradients: every command of ours without a login, without the right to it,
and without the right to its key, taken from the server's own table of commands."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import replay_server as rs

SIGNATURE = {"x": rs.Column("float32", (2,))}

# What a command needs of its key. One that is missing here, or has the wrong rights, fails the tests below.
RIGHTS = {
    "replay.add": "W",
    "replay.append": "W",
    "replay.await": "any",
    "replay.close": "W",
    "replay.closetable": "W",
    "replay.config": "W",
    "replay.create": "W",
    "replay.del": "W",
    "replay.drop": "W",
    "replay.end": "W",
    "replay.get": "R",
    "replay.info": "R",
    "replay.item": "W",
    "replay.opentable": "W",
    "replay.reset": "W",
    "replay.sample": "R",
    "replay.spec": "R",
    "replay.update": "W",
    "weights.del": "W",
    "weights.get": "R",
    "weights.info": "R",
    "weights.publish": "W",
    "grad.await": "any",
    "grad.del": "W",
    "grad.drop": "W",
    "grad.state": "R",
    "grad.info": "any",
    "grad.publish": "W",
    "grad.push": "W",
    "grad.take": "R",
}
MOVABLE = {"grad.publish": "KEY 1 1 name KEY blob"}  # arguments of commands whose keys only they themselves find
WITHOUT_KEY = {"replay.list", "replay.prove", "replay.release", "replay.share", "weights.list", "grad.list"}
ADMINISTRATION = {"replay.restore", "replay.save"}


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[rs.Server]:
    tables = [rs.Table(name, 100, SIGNATURE) for name in ("exp.a", "secret.t")]
    with rs.Server(tables, directory=tmp_path, password="root") as server:
        yield server
        assert server.running, server.log()


@pytest.fixture
def stranger(guarded: rs.Server, open_raw: Callable[[str], Any]) -> Callable[[], Any]:
    """Opens connections that have not logged in."""
    return lambda: open_raw(guarded.url)


@pytest.fixture
def root(stranger: Callable[[], Any]) -> Any:
    made = stranger()
    assert made.command("AUTH", "root") == "OK"
    for key in ("exp.w", "secret.w"):
        assert made.command("WEIGHTS.PUBLISH", key, "*", b"w") == 1
    return made


@pytest.fixture
def log_in(root: Any, stranger: Callable[[], Any]) -> Callable[[str], Any]:
    """A connection of a user with these rights alone."""

    def make(rules: str, name: str = "someone") -> Any:
        assert root.command("ACL", "SETUSER", name, "reset", "on", ">pass", *rules.split()) == "OK"
        made = stranger()
        assert made.command("AUTH", name, "pass") == "OK"
        return made

    return make


def ours(root: Any) -> dict[str, Any]:
    """Rows of COMMAND: name, arity, flags, first key, last key, step, categories."""
    rows = {row[0].decode(): row for row in root.command("COMMAND")}
    return {name: row for name, row in rows.items() if name.startswith(("replay.", "weights.", "grad."))}


def words(statuses: Any) -> set[str]:
    return {status if isinstance(status, str) else status.decode() for status in statuses}


def request(row: Any, key: str) -> list[str]:
    """So many arguments as its arity asks for, `key` in the places of keys."""
    name, arity, flags, first, last, step = row[:6]
    if "movablekeys" in words(flags):
        return [name.decode(), *(key if word == "KEY" else word for word in MOVABLE[name.decode()].split())]
    arguments = [name.decode()] + ["1"] * (abs(arity) - 1)
    if first:
        for place in range(first, (last if last > 0 else len(arguments) + last) + 1, step):
            arguments[place] = key
    return arguments


def is_denied(reply: Any) -> bool:
    return isinstance(reply, Exception) and str(reply).startswith("NOPERM")


def refusals(connection: Any, row: Any, key: str) -> list[Any]:
    """What the command is answered alone, in a transaction, and in a script (where it may run there)."""
    arguments = request(row, key)
    replies = [connection.command(*arguments)]
    flags = words(row[2])
    if "no_multi" not in flags:
        assert connection.command("MULTI") == "OK"
        replies.append(connection.command(*arguments))
        assert "EXECABORT" in str(connection.command("EXEC"))
        if "noscript" not in flags:
            replies.append(connection.command("EVAL", "return redis.call(unpack(ARGV))", 0, *arguments))
    return replies


# ---- every command --------------------------------------------------------------------------------------------------


def test_it_is_said_here_of_every_command_what_it_needs(root):
    table = ours(root)
    assert set(table) == set(RIGHTS) | WITHOUT_KEY | ADMINISTRATION
    assert {name for name, row in table.items() if row[3] == 0} == WITHOUT_KEY | ADMINISTRATION


def test_nothing_of_ours_runs_without_a_login(root, stranger):
    for name, row in ours(root).items():
        reply = stranger().command(*request(row, "exp.a"))
        assert isinstance(reply, Exception), name
        assert str(reply).startswith("NOAUTH"), name


def test_nothing_of_ours_runs_without_the_right_to_the_command(root, log_in):
    for name, row in ours(root).items():
        if name == "replay.prove":  # a login of its own: it may be sent by anyone, and asks for a secret
            continue
        connection = log_in(f"~* &* +@all -{name}")
        for reply in refusals(connection, row, "exp.a"):
            assert isinstance(reply, Exception), name
            assert f"run the '{name}' command" in str(reply) or "can't run this command" in str(reply), (name, reply)


def test_nothing_of_ours_runs_without_the_right_to_its_key(root, log_in):
    table = ours(root)
    for name, rights in RIGHTS.items():
        for pattern in ("~other*", "%R~exp.*", "%W~exp.*"):
            connection = log_in(f"+@all {pattern}")
            held = {"~other*": set(), "%R~exp.*": {"R"}, "%W~exp.*": {"W"}}[pattern]
            enough = bool(held) if rights == "any" else set(rights) <= held
            if enough:
                assert not is_denied(connection.command(*request(table[name], "exp.nothing"))), (name, pattern)
                continue
            for reply in refusals(connection, table[name], "exp.a"):
                assert isinstance(reply, Exception), (name, pattern)
                assert "keys used as arguments" in str(reply) or "at least one of the keys" in str(reply), (name, reply)


def test_administration_comes_with_no_category_but_its_own(root):
    table = ours(root)
    assert {name: words(table[name][6]) for name in ADMINISTRATION} == {
        name: {"@admin", "@dangerous", "@slow"} for name in ADMINISTRATION
    }
    assert {name for name, row in table.items() if "@admin" in words(row[6])} == ADMINISTRATION


def test_commands_are_told_to_be_in_the_categories_that_rights_are_given_by(root):
    table = ours(root)
    for category in root.command("ACL", "CAT"):
        members = {name.decode() for name in root.command("ACL", "CAT", category)} & set(table)
        told = {name for name, row in table.items() if "@" + category.decode() in words(row[6])}
        assert told == members, category


def test_publishing_asks_for_the_right_to_gradients_and_to_weights(root, log_in):
    connection = log_in("+grad.publish %W~exp.*")
    for keys in (("exp.g", "secret.w"), ("secret.g", "exp.w")):
        assert is_denied(connection.command("GRAD.PUBLISH", keys[0], 1, 1, "name", keys[1], b"w")), keys
    assert root.command("WEIGHTS.GET", "secret.w")[1] == b"w"


# ---- what the recipes of docs/security.md give ----------------------------------------------------------------------


@pytest.mark.parametrize("rules", [
    "+@replay +@weights %W~exp.* %R~policy",
    "+@replay +@weights +grad.push %R~exp.* %R~policy %W~grads",
    "+@replay +@weights +@gradients ~grads %RW~policy",
    "+@write +@read +@blocking +@fast ~*",
])  # fmt: skip
def test_actors_and_learners_neither_save_nor_restore(root, log_in, tmp_path, rules):
    assert root.command("REPLAY.SAVE", "old").decode().endswith("/old.snapshot")
    connection = log_in(rules)
    assert is_denied(connection.command("REPLAY.SAVE", "new"))
    assert is_denied(connection.command("REPLAY.RESTORE", "old"))
    assert sorted(os.listdir(tmp_path)) == ["old.snapshot"]


def test_a_restore_replaces_no_table_that_its_user_may_not_write(guarded, root, log_in):
    with rs.Client(guarded.url) as client:
        client.add("secret.t", {"x": np.ones((1, 2), np.float32)})
        root.command("REPLAY.SAVE", "old")
        for name in ("exp.a", "secret.t"):
            client.add(name, {"x": np.ones((90, 2), np.float32)})
        for keys in ("%W~exp.*", "%RW~exp.* %R~secret.*", ""):
            reply = log_in(f"+replay.restore {keys}").command("REPLAY.RESTORE", "old")
            assert is_denied(reply), keys
            assert "nothing was restored" in str(reply)
            assert "secret.t" not in str(reply)
            assert [client.info(name)["size"] for name in ("exp.a", "secret.t")] == [90, 91]
        entry = root.command("ACL", "LOG", "1")[0]
        assert b"exp.a" in entry or b"secret.t" in entry
        lines = log_in("+replay.restore %W~exp.* %W~secret.*").command("REPLAY.RESTORE", "old")
        assert lines[0].startswith(b"restored old.snapshot")
        assert [client.info(name)["size"] for name in ("exp.a", "secret.t")] == [0, 1]


# ---- names ----------------------------------------------------------------------------------------------------------


def test_names_are_told_to_those_who_have_a_right_to_them(root, log_in):
    for pattern, names in (("%W~exp.*", {b"exp"}), ("%R~exp.*", {b"exp"}), ("", set()), ("~*", {b"exp", b"secret"})):
        connection = log_in(f"+@replay +@weights +info +eval {pattern}")
        assert {name.split(b".")[0] for name in connection.command("REPLAY.LIST")} == names, pattern
        assert {name.split(b".")[0] for name in connection.command("WEIGHTS.LIST")} == names, pattern
        assert len(connection.command("EVAL", "return redis.call('REPLAY.LIST')", 0)) == len(names)
        text = connection.command("INFO", "replay")
        assert {name for name in (b"exp", b"secret") if b"table_" + name in text} == names, pattern
        assert b"tables:2\r\n" in text
        text = connection.command("INFO", "persistence")
        assert {name for name in (b"exp", b"secret") if b":name=" + name in text} == names, pattern
    connection = log_in("(+replay.list ~secret.*) (+weights.list ~exp.*)")
    assert connection.command("REPLAY.LIST") == [b"secret.t"]
    assert connection.command("WEIGHTS.LIST") == [b"exp.w"]
