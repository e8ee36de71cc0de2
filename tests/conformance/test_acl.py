"""Users and what they may do: rules, refusals, the log and the file, as the real Redis has them."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from against_redis import Pair
from hypothesis import given, note, settings
from hypothesis import strategies as st

import replay_server

Reply = tuple[str, Any]
CATEGORIES_OF_OURS = {b"replay", b"weights", b"gradients"}


def ask(connection: Any, line: str) -> Reply:
    return connection.run(*(b"" if word == '""' else word.encode() for word in line.split()))


@pytest.fixture(autouse=True)
def _no_users_left(pair: Pair) -> Iterator[None]:
    yield
    for connection in (pair.redis, pair.ours):
        _, users = connection.run(b"ACL", b"USERS")
        others = [name for _, name in users if name != b"default"]
        if others:
            connection.run(b"ACL", b"DELUSER", *others)
        connection.run(b"ACL", b"SETUSER", b"default", b"reset", b"on", b"nopass", b"~*", b"&*", b"+@all")
        connection.run(b"ACL", b"LOG", b"RESET")


@contextlib.contextmanager
def logged_in(peers: Any, name: bytes, password: bytes = b"secret") -> Iterator[Pair]:
    """A connection of that user to each server."""
    pair = Pair(peers, 2)
    try:
        assert pair.run((b"AUTH", name, password)) == [("+", b"OK")]
        yield pair
    finally:
        pair.close()


# ---- categories -------------------------------------------------------------------------------------------------


def test_categories_are_those_of_redis_and_our_own(pair: Pair) -> None:
    theirs, ours = ({name for _, name in peer.run(b"ACL", b"CAT")[1]} for peer in (pair.redis, pair.ours))
    assert ours == theirs | CATEGORIES_OF_OURS


def names(connection: Any, category: bytes) -> set[bytes]:
    return {name for _, name in connection.run(b"ACL", b"CAT", category)[1]}


def test_every_command_is_in_the_categories_that_redis_puts_it_in(pair: Pair) -> None:
    categories = [name for _, name in pair.redis.run(b"ACL", b"CAT")[1]]
    everything = {category: (names(pair.redis, category), names(pair.ours, category)) for category in categories}
    of_redis = set().union(*(theirs for theirs, _ in everything.values()))
    of_ours = set().union(*(ours for _, ours in everything.values()))
    both = of_redis & of_ours
    assert len(both) > 100
    for category, (theirs, ours) in everything.items():
        assert ours & both == theirs & both, category


def test_commands_of_tables_weights_and_gradients_have_categories(pair: Pair) -> None:
    assert {b"replay.add", b"replay.sample"} <= names(pair.ours, b"replay")
    assert {b"weights.get", b"weights.publish"} <= names(pair.ours, b"weights")
    assert {b"grad.push", b"grad.take", b"grad.publish"} <= names(pair.ours, b"gradients")
    assert b"grad.take" in names(pair.ours, b"blocking")
    pair.words("ACL CAT nonsense")
    pair.words('ACL CAT ""')


# ---- rules ------------------------------------------------------------------------------------------------------

RULES = st.sampled_from(
    [
        "on", "off", "ON", "nopass", "resetpass", "reset", "sanitize-payload", "skip-sanitize-payload",
        "allkeys", "resetkeys", "~*", "~a*", "~b", "%R~a*", "%W~a*", "%RW~c*", "%wr~d", "%X~e", "%RR~e",
        "allchannels", "resetchannels", "&*", "&news.*", "&news.*", "&x",
        "allcommands", "nocommands", "+@all", "-@all", "+@hash", "-@hash", "+@nonsense", "+get", "-get",
        "+GET", "+nope",
        "-nope", "+config|get", "-config|get", "-config", "+config", "+config|nope", "+config|get|x",
        "+config|", "+select|0", "+xadd", "-xadd", "+XADD|x", "-migrate", "+cluster|slots", "-cluster", "+module|load",
        "-module", "+xgroup|create", "-xgroup", "+xgroup|nope", "+@stream", "-@stream", "+@geo", "-@hyperloglog",
        "+select|0", "+select|1", "-select", "-select|0", ">secret", ">other", "<secret", "<nobody", "#abc",
        "#" + "ab" * 32, "!" + "ab" * 32, "!" + "AB" * 32, "(+get ~x*)", "(+get", "~x*)", "(%R~y &z resetchannels)",
        "()", "clearselectors", "", "nonsense", "+", "-", "~", "&", "%", "+@", "(nonsense)", "(+nope)", "~a b", "&a b",
    ]
).map(lambda word: word.encode())  # fmt: skip


def normal(reply: Reply) -> Reply:
    """Without the order of single commands in a description, which Redis leaves open."""
    kind, value = reply
    if kind == "$" and isinstance(value, bytes) and b"@all" in value:
        return kind, sorted(value.split(b" "))
    if isinstance(value, list):
        return kind, [normal(item) if isinstance(item, tuple) else item for item in value]
    return reply


def same(pair: Pair, *command: bytes) -> Reply:
    theirs, ours = pair.redis.run(*command), pair.ours.run(*command)
    assert normal(ours) == normal(theirs), command
    return ours


def test_random_rules_make_the_same_users(pair: Pair) -> None:
    @settings(max_examples=80, deadline=None, database=None, derandomize=True)
    @given(st.lists(st.lists(RULES, min_size=1, max_size=4), min_size=1, max_size=6))
    def run(changes: list[list[bytes]]) -> None:
        note(repr(changes))
        for peer in (pair.redis, pair.ours):
            peer.run(b"ACL", b"DELUSER", b"alice")
        for rules in changes:
            if rules[-1].startswith(b"(") and not rules[-1].endswith(b")"):
                rules = [*rules, b"+ping)"]
            same(pair, b"ACL", b"SETUSER", b"alice", *rules)
            same(pair, b"ACL", b"GETUSER", b"alice")
            same(pair, b"ACL", b"LIST")

    run()


def all_names(connection: Any) -> set[bytes]:
    """Of commands and their parts."""
    rows = [row for _, row in connection.run(b"COMMAND")[1]]
    return {name for row in rows for name in (row[0][1], *(part[0][1] for _, part in row[9][1]))}


def test_rules_may_name_every_command_of_redis(pair: Pair) -> None:
    theirs, ours = all_names(pair.redis), all_names(pair.ours)
    absent = sorted(theirs - ours)
    assert b"module|load" in absent
    assert b"restore-asking" in absent
    for rules in ([b"+" + name for name in absent], [b"+@all", *(b"-" + name for name in absent)]):
        for peer in (pair.redis, pair.ours):
            peer.run(b"ACL", b"DELUSER", b"alice")
        assert same(pair, b"ACL", b"SETUSER", b"alice", *rules) == ("+", b"OK")
        same(pair, b"ACL", b"GETUSER", b"alice")
        same(pair, b"ACL", b"LIST")
    assert not {name.decode() for name in absent} & {
        name.decode() for _, category in pair.ours.run(b"ACL", b"CAT")[1] for name in names(pair.ours, category)
    }
    for rule in (b"+xadd2", b"-migrat", b"+xgroup|nope", b"+module|nope", b"-xadd|x"):
        same(pair, b"ACL", b"SETUSER", b"alice", rule)
    for words in (b"module load x", b"restore-asking k"):
        kind, _ = pair.ours.run(b"ACL", b"DRYRUN", b"alice", *words.split())
        assert kind == "-", words
    pair.run((b"ACL", b"DELUSER", b"alice"))


def test_a_file_of_users_that_names_absent_commands_is_loaded_and_saved(tmp_path: Path) -> None:
    path = tmp_path / "users.acl"
    lines = {
        "user alice on nopass ~* resetchannels -@all +get +restore-asking +module|load",
        "user bob off sanitize-payload resetchannels -@all +@stream +@geo -xtrim",
        "user carol on nopass ~* &* +@all -restore-asking -cluster|slots -xgroup -function|dump",
        "user default on nopass ~* &* +@all",
    }
    path.write_text("\n".join(lines) + "\n")
    with replay_server.Server([], config={"aclfile": str(path)}) as server, redis.Redis.from_url(server.url) as admin:
        told = [set(line.split()) for line in admin.acl_list()]
        for line in lines:
            assert set(line.split()) - {"sanitize-payload"} in [words - {"sanitize-payload"} for words in told]
        before = admin.acl_list()
        admin.acl_save()
        admin.acl_load()
        assert admin.acl_list() == before
        with redis.Redis.from_url(server.url, username="alice", password="x") as alice:
            assert alice.get("key") is None
            with pytest.raises(redis.ResponseError, match="unknown command"):
                alice.execute_command("RESTORE-ASKING", "key", "0", "payload")
            with pytest.raises(redis.ResponseError, match="no permissions to run the 'set'"):
                alice.set("key", "1")


def test_a_failed_rule_changes_nothing(pair: Pair) -> None:
    pair.words("ACL SETUSER alice on >secret ~a* +get")
    before = pair.ours.run(b"ACL", b"GETUSER", b"alice")
    pair.words("ACL SETUSER alice ~b* +nope")
    pair.words("ACL SETUSER alice ~b* (+get ~c")
    assert pair.ours.run(b"ACL", b"GETUSER", b"alice") == before
    pair.words("ACL SETUSER bob +nope")
    pair.words("ACL GETUSER bob")


def test_subcommands_and_their_arguments_are_checked_as_in_redis(pair: Pair) -> None:
    for line in (
        "ACL", "ACL nonsense", "ACL WHOAMI", "ACL WHOAMI x", "ACL USERS", "ACL USERS x", "ACL GETUSER",
        "ACL GETUSER nobody",
        "ACL DELUSER", "ACL DELUSER nobody", "ACL DELUSER default", "ACL DELUSER nobody default", "ACL SETUSER",
        "ACL GENPASS 0", "ACL GENPASS 4097", "ACL GENPASS x", "ACL GENPASS -1", "ACL LOG x", "ACL LOG 1.5",
        "ACL LOG -1",
        "ACL LOG RESET", "ACL LOAD", "ACL SAVE", "ACL LOAD x", "ACL DRYRUN nobody get a", "ACL DRYRUN default nope a",
        "ACL DRYRUN default get", "ACL DRYRUN default get a", "ACL DRYRUN default config|get a", "ACL DRYRUN default",
        "ACL DRYRUN default pubsub nope", "ACL DRYRUN default pubsub numpat", "AUTH a b c", "AUTH x", "AUTH nobody x",
        "AUTH default anything", "HELLO 2 AUTH nobody x",
    ):  # fmt: skip
        pair.words(line)
    assert len(pair.ours.run(b"ACL", b"GENPASS")[1]) == 64
    assert len(pair.ours.run(b"ACL", b"GENPASS", b"5")[1]) == 2
    assert pair.ours.run(b"ACL", b"GENPASS") != pair.ours.run(b"ACL", b"GENPASS")
    same(pair, b"ACL", b"SETUSER", b"with space", b"on")
    same(pair, b"ACL", b"SETUSER", b"with\0zero", b"on")
    assert pair.ours.run(b"ACL", b"HELP")[0] == "*"


# ---- what is allowed --------------------------------------------------------------------------------------------

USERS = [
    "reader on >secret %R~* +@all",
    "writer on >secret %W~* +@all",
    "some on >secret ~a* %R~r* %W~w* +@all -@dangerous",
    "few on >secret ~* +get +set +config|get +select|0 +client|id -@all +get +config|get +select|0",
    "two on >secret +@read ~a* (+set ~b*) (+@hash %W~a*)",
    "channels on >secret +@pubsub +ping &news.* &one",
]

# A request for each command that Redis and this server have: its keys are a, b, r1 and w1.
REQUESTS = [
    "get a", "get b", "get r1", "get w1", "set a 1", "set b 1", "set r1 1", "set w1 1", "set w1 1 get", "set w1 1 ex 5",
    "getset w1 1", "getdel w1", "getex w1", "append w1 x", "incr w1", "strlen w1", "strlen b", "mget a r1", "mget a w1",
    "mset a 1 w1 2", "mset a 1 r1 2", "del w1 a", "del r1", "unlink w1", "exists w1 r1", "exists b", "type w1",
    "touch w1",
    "ttl w1", "expire w1 5", "expire r1 5", "persist w1", "rename a w1", "rename r1 w1", "rename w1 a", "copy r1 w1",
    "copy w1 r1", "lpush w1 1", "lpop w1", "llen w1", "lrange w1 0 1", "lset w1 0 x", "hset w1 f v",
    "hget w1 f", "hlen w1",
    "hexists w1 f", "hdel w1 f", "hgetall r1", "setrange w1 0 x", "getrange w1 0 1", "object encoding w1",
    "object nope w1",
    "config get a", "config set a b", "select 0", "select 1", "client id", "client list", "flushall", "keys *",
    "info", "ping",
    "multi", "publish news.a x", "publish other x", "subscribe news.a", "subscribe news.a other", "psubscribe news.*",
    "psubscribe news.a", "psubscribe one", "unsubscribe other", "pubsub channels", "auth x y", "hello",
    "dbsize", "swapdb 0 1", "zunionstore r1 1 a", "zunionstore r1 0 a", "zinterstore r1 2 a", "zdiffstore w1 1 b",
    "zdiffstore r1 x a", "zunion 0 b", "zunion 1 b",
    "echo x", "scan 0", "randomkey", "time", "setnx w1 1", "msetnx w1 1", "setex w1 1 x", "substr r1 0 1",
]  # fmt: skip


def test_dryrun_and_the_commands_themselves_are_refused_as_in_redis(pair: Pair, peers: Any) -> None:
    known = {name.decode() for _, name in pair.ours.run(b"COMMAND", b"LIST")[1]}
    for user in USERS:
        pair.words(f"ACL SETUSER {user}")
        name = user.split()[0]
        for request in (request for request in REQUESTS if request.split()[0] in known):
            pair.words(f"ACL DRYRUN {name} {request}")
    refused = {
        "some": ["get b", "config get a", "set r1 1", "keys *"],
        "few": ["set a 1", "config set a b", "select 1"],
    }
    refused["channels"] = ["publish other x", "subscribe news.a other", "psubscribe news.a", "get a"]
    for name, requests in refused.items():
        with logged_in(peers, name.encode()) as session:
            for request in requests:
                kind, text = session.words(request)
                assert kind == "-", request
                assert text.startswith(b"NOPERM"), request
    with logged_in(peers, b"two") as session:
        for request in ("get a", "get b", "set b 1", "set a 1", "hset a f v", "hget a f", "acl whoami", "ping"):
            session.words(request)
        pair.run((b"FLUSHALL",))


def test_every_command_asks_for_the_same_rights_to_its_keys(pair: Pair) -> None:
    """Each command with as many keys as its table says, as users who may only read, only write, or know of no key."""
    for user in ("reader on >secret %R~* +@all", "writer on >secret %W~* +@all", "nobody on >secret ~none +@all"):
        pair.words(f"ACL SETUSER {user}")
    ours = {name for _, name in pair.ours.run(b"COMMAND", b"LIST")[1]}
    compared = 0
    for _, fields in pair.redis.run(b"COMMAND")[1]:
        name, arity, first = fields[0][1], fields[1][1], fields[3][1]
        if name not in ours or first == 0 or name in (b"object", b"memory"):
            continue
        request = [name] + [b"key"] * (abs(arity) - 1)
        if name == b"pfmerge":  # without a source Redis asks for no right at all, not even to the key that is written
            request.append(b"key")
        for user in (b"reader", b"writer", b"nobody"):
            same(pair, b"ACL", b"DRYRUN", user, *request)
            compared += 1
    assert compared > 150


def test_tables_and_weights_are_keys(pair: Pair, our_peer: Any) -> None:
    pair.ours.run(*b"ACL SETUSER actor on >secret +@replay +@weights %W~exp.* %R~policy".split())
    actor = our_peer.connect()
    actor.run(b"AUTH", b"actor", b"secret")
    try:
        for line, refusal in (
            ("REPLAY.INFO other", b"one of the keys"),
            ("REPLAY.INFO exp.a", b"one of the keys"),  # may write, not read
            ("REPLAY.DROP exp.a", None),
            ("REPLAY.LIST", None),
            ("WEIGHTS.GET policy", None),
            ("WEIGHTS.GET other", b"one of the keys"),
            ("WEIGHTS.PUBLISH policy * x", b"one of the keys"),
            ("GET policy", b"'get' command"),
        ):
            kind, text = ask(actor, line)
            denied = kind == "-" and text.startswith(b"NOPERM")
            assert denied == (refusal is not None), line
            assert refusal is None or refusal in text, line
        large = b"x" * 300_000  # lands apart from the request's other arguments, and is refused all the same
        kind, text = actor.run(b"WEIGHTS.PUBLISH", b"policy", b"*", large)
        assert kind == "-"
        assert text.startswith(b"NOPERM")
        assert ask(actor, "REPLAY.LIST")[0] == "*"
    finally:
        actor.close()


# ---- logging in -------------------------------------------------------------------------------------------------


def test_logging_in_out_and_being_removed(pair: Pair, peers: Any) -> None:
    pair.words("ACL SETUSER alice on >secret +@all ~* &*")
    pair.words("ACL SETUSER idle off >secret +@all")
    visitor = Pair(peers, 2)
    try:
        for line in ("ACL WHOAMI", "AUTH alice wrong", "AUTH idle secret", "AUTH alice secret", "ACL WHOAMI", "RESET",
                     "ACL WHOAMI", "HELLO 3 AUTH alice secret SETNAME me", "ACL WHOAMI",
                     "HELLO 2 AUTH alice wrong"):  # fmt: skip
            if line.startswith("HELLO 3"):
                for connection in (visitor.redis, visitor.ours):
                    connection.run(*line.encode().split())
            else:
                visitor.words(line)
        pair.words("ACL DELUSER alice")
        for connection in (visitor.redis, visitor.ours):
            with pytest.raises((ConnectionError, OSError)):
                connection.run(b"PING")
    finally:
        visitor.close()
    with logged_in_as_new_user(pair, peers) as session:  # who removes itself gets the reply first
        assert session.words("ACL DELUSER alice") == (":", 1)
        for connection in (session.redis, session.ours):
            with pytest.raises((ConnectionError, OSError)):
                connection.run(b"PING")


@contextlib.contextmanager
def logged_in_as_new_user(pair: Pair, peers: Any) -> Iterator[Pair]:
    pair.words("ACL SETUSER alice on >secret +@all ~* &*")
    with logged_in(peers, b"alice") as session:
        yield session


def test_the_default_user_can_be_asked_for_a_password_and_be_switched_off(pair: Pair, peers: Any) -> None:
    pair.words("ACL SETUSER alice on >secret +@all ~* &*")
    for rules in (">pass", "resetpass", "nopass off", "on >one >two"):
        pair.words(f"ACL SETUSER default {rules}")
        visitor = Pair(peers, 2)
        for line in ("PING", "GET a", "AUTH one", "AUTH default two", "PING", "AUTH alice secret", "ACL WHOAMI"):
            visitor.words(line)
        visitor.close()
        pair.words("PING")  # who was in stays in


def test_clients_learn_their_user(pair: Pair, our_peer: Any) -> None:
    pair.words("ACL SETUSER alice on >secret +@all ~* &*")
    alice = our_peer.connect()
    alice.run(b"AUTH", b"alice", b"secret")
    assert b"user=alice " in alice.run(b"CLIENT", b"INFO")[1]
    assert pair.ours.run(b"CLIENT", b"KILL", b"USER", b"alice") == (":", 1)
    alice.close()


# ---- the log ----------------------------------------------------------------------------------------------------


def entries(connection: Any) -> list[dict[bytes, Any]]:
    _, found = connection.run(b"ACL", b"LOG")
    return [
        {name: value for (_, name), (_, value) in zip(fields[::2], fields[1::2], strict=True)} for _, fields in found
    ]


def test_the_log_tells_what_was_refused_to_whom(pair: Pair, peers: Any) -> None:
    pair.words("ACL SETUSER some on >secret ~a* &x +@all -@dangerous")
    visitor = Pair(peers, 2)
    for line in ("AUTH some wrong", "AUTH nobody wrong", "AUTH some wrong", "AUTH some secret", "GET b",
        "GET b", "KEYS *",
                 "PUBLISH y z", "config get x", "GET c", "GET b"):  # fmt: skip
        visitor.words(line)
    theirs, ours = entries(pair.redis), entries(pair.ours)
    told = [b"count", b"reason", b"context", b"object", b"username"]
    assert [[entry[name] for name in told] for entry in ours] == [[entry[name] for name in told] for entry in theirs]
    assert [list(entry) for entry in ours] == [list(entry) for entry in theirs]
    assert b"cmd=get user=some" in ours[0][b"client-info"]
    pair.words("ACL LOG RESET")
    assert entries(pair.ours) == []
    visitor.close()


# ---- files and settings -----------------------------------------------------------------------------------------


def test_users_are_saved_and_loaded(tmp_path: Path) -> None:
    path = tmp_path / "users.acl"
    path.write_text("user alice on >secret ~a* +get\n\nuser default on nopass ~* &* +@all\n")
    with replay_server.Server([], config={"aclfile": str(path)}) as server, redis.Redis.from_url(server.url) as admin:
        assert admin.acl_users() == ["alice", "default"]
        with redis.Redis.from_url(server.url, username="alice", password="secret") as alice:
            assert alice.get("a") is None
            with pytest.raises(redis.exceptions.NoPermissionError):
                alice.get("b")
        admin.acl_setuser("bob", enabled=True, passwords=["+word"], commands=["+@read"], keys=["*"])
        admin.acl_save()
        assert path.stat().st_mode & 0o077 == 0
        admin.acl_deluser("bob")
        admin.acl_load()
        assert admin.acl_users() == ["alice", "bob", "default"]
        assert b"word" not in path.read_bytes()
        good = path.read_text()
        for bad in (
            "user carol +nope\n",
            "alice on\n",
            "user alice on\nuser alice off\n",
            "user carol (+get\n",
            "user\n",
        ):
            path.write_text(good + bad)
            with pytest.raises(redis.ResponseError, match="ACL errors detected, no change"):
                admin.acl_load()
            assert admin.acl_users() == ["alice", "bob", "default"]
        path.write_text("user bob on nopass ~* +@all\n")
        admin.acl_load()  # its own connection stays, as the default user's
        assert admin.acl_users() == ["bob", "default"]
        path.write_text("user default on >secret ~* &* +@all\n")
        admin.acl_load()
        with socket.create_connection(("127.0.0.1", int(server.url.rpartition(":")[2])), 60) as stranger:
            stranger.sendall(b"GET a\r\n")
            assert stranger.recv(100).startswith(b"-NOAUTH")
            path.write_text("user default on nopass ~* &* +@all\n")
            admin.acl_load()  # who was asked for a password is not any more, and is no stranger to the limits
            stranger.sendall(b"*3\r\n$3\r\nSET\r\n$1\r\na\r\n$1000000\r\n" + b"v" * 1_000_000 + b"\r\n")
            assert stranger.recv(100) == b"+OK\r\n"
        path.unlink()
        with pytest.raises(redis.ResponseError, match="opening file"):
            admin.acl_load()


def test_a_broken_file_of_users_stops_the_start(tmp_path: Path) -> None:
    path = tmp_path / "users.acl"
    path.write_text("user alice +nope\n")
    with pytest.raises(replay_server.ServerError, match="Unknown command or category name"):
        replay_server.Server([], config={"aclfile": str(path)})
    with pytest.raises(replay_server.ServerError, match=r"missing\.acl"):
        replay_server.Server([], config={"aclfile": str(tmp_path / "missing.acl")})


def answers(server: replay_server.Server, password: str | None) -> bool:
    """Whether a new connection with this password may run commands."""
    with redis.Redis(port=int(server.url.rpartition(":")[2]), password=password) as client:
        try:
            return bool(client.ping())
        except redis.AuthenticationError:
            return False


def test_requirepass_is_the_default_users_password() -> None:
    with replay_server.Server([], password="first") as server, redis.Redis.from_url(server.url) as admin:
        assert not answers(server, None)
        assert len(admin.acl_getuser("default")["passwords"]) == 1
        admin.config_set("requirepass", "second")
        assert answers(server, "second")
        assert not answers(server, "first")
        admin.config_set("requirepass", "")
        assert answers(server, None)
        assert "nopass" in admin.acl_getuser("default")["flags"]


def test_new_users_may_have_all_channels_by_setting() -> None:
    config = {"acl-pubsub-default": "allchannels"}
    with replay_server.Server([], config=config) as server, redis.Redis.from_url(server.url) as admin:
        admin.acl_setuser("alice", enabled=True)
        assert admin.acl_getuser("alice")["channels"] in ("&*", ["&*"])
        settings = {"acl-pubsub-default": "allchannels", "aclfile": "", "acllog-max-len": "128"}
        assert admin.config_get("acl*") == settings
