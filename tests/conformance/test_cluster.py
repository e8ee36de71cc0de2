"""Two shards of ours and two nodes of a Redis cluster: the same requests, the same answers."""

from __future__ import annotations

import contextlib
import re
import socket
import subprocess
import time
from collections.abc import Iterator
from typing import Any

import pytest
import redis
from against_redis import COMPARED
from hypothesis import given, settings
from hypothesis import strategies as st

import replay_server

HALF = 8192
MOVING = {b"{a}": 15495, b"{b}": 3300}  # slots that leave the second and the first node: of keys with these tags
SETTINGS = settings(max_examples=60, deadline=None)


def free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


class Node:
    """One shard or node: raw connections, and an ordinary client to set it up with."""

    def __init__(self, peer: Any, port: int) -> None:
        self.port = port
        self.client = redis.Redis(port=port)
        self.connect = peer.connect


@pytest.fixture(scope="module")
def their_nodes(redis_program: str, peer_at: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Node]]:
    directory = tmp_path_factory.mktemp("cluster")
    with contextlib.ExitStack() as stack:
        nodes = []
        ports = free_ports(4)
        for port, bus in zip(ports[:2], ports[2:], strict=True):
            path = directory / f"{port}.sock"
            (directory / str(port)).mkdir()
            command = [redis_program, "--port", str(port), "--cluster-port", str(bus), "--cluster-enabled", "yes"]
            command += ["--unixsocket", str(path), "--dir", str(directory / str(port)), "--save", ""]
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
            stack.callback(process.wait)
            stack.callback(process.terminate)
            nodes.append(Node(peer_at(path, process), port))
        first, second = (node.client for node in nodes)
        first.execute_command("CLUSTER ADDSLOTSRANGE", 0, HALF - 1)
        second.execute_command("CLUSTER ADDSLOTSRANGE", HALF, 16383)
        first.execute_command("CLUSTER MEET", "127.0.0.1", ports[1], ports[3])
        deadline = time.monotonic() + 60
        while not all(node.client.cluster("info")["cluster_state"] == "ok" for node in nodes):
            assert time.monotonic() < deadline, "the nodes should have found each other within a minute"
            time.sleep(0.05)
        ids = [node.client.execute_command("CLUSTER MYID") for node in nodes]
        for slot, (source, target) in zip(MOVING.values(), [(1, 0), (0, 1)], strict=True):
            nodes[target].client.execute_command("CLUSTER SETSLOT", slot, "IMPORTING", ids[source])
            nodes[source].client.execute_command("CLUSTER SETSLOT", slot, "MIGRATING", ids[target])
        yield nodes


@pytest.fixture(scope="module")
def our_nodes(peer_at: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Node]]:
    directory = tmp_path_factory.mktemp("shards")
    with contextlib.ExitStack() as stack:
        nodes = []
        for name in ("first", "second"):
            path = directory / f"{name}.sock"
            server = stack.enter_context(replay_server.Server([], unix=path, config={"cluster-enabled": True}))
            nodes.append(Node(peer_at(path, server._process), int(server.url.rpartition(":")[2])))
        shards: list[Any] = []
        for number, (node, slots) in enumerate(zip(nodes, ["0-8191", "8192-16383"], strict=True)):
            shards += ["SHARD", number, f"{number:040x}", "127.0.0.1", node.port, "", slots]
        for slot, target in zip(MOVING.values(), [0, 1], strict=True):
            shards += ["MOVE", slot, target]
        for number, node in enumerate(nodes):
            assert node.client.execute_command("CLUSTER SETTOPOLOGY", 1, number, *shards) in (b"OK", True)
        yield nodes


@pytest.fixture(scope="module", params=[2, 3], ids=["resp2", "resp3"])
def connections(request: pytest.FixtureRequest, their_nodes: Any, our_nodes: Any) -> Iterator[list[tuple[Any, Any]]]:
    """For each of the two places a connection to Redis and one to ours."""
    pairs = [(a.connect(request.param), b.connect(request.param)) for a, b in zip(their_nodes, our_nodes, strict=True)]
    yield pairs
    for pair in pairs:
        for connection in pair:
            connection.close()


@pytest.fixture(scope="module")
def names(their_nodes: list[Node], our_nodes: list[Node]) -> dict[bytes, bytes]:
    """The nodes' ports, by what stands for them in a comparison."""
    return {
        b":%d" % node.port: b":%d" % place for nodes in (their_nodes, our_nodes) for place, node in enumerate(nodes)
    }


def comparable(reply: Any, names: dict[bytes, bytes]) -> Any:
    """A reply with ports by place, and the sum of a script's text left out."""
    kind, value = reply
    if isinstance(value, list):
        return kind, [comparable(each, names) for each in value]
    if kind == "-":
        for port, place in names.items():
            value = value.replace(port, place)
    return kind, value


def ask_both(pair: tuple[Any, Any], names: dict[bytes, bytes], *words: bytes) -> Any:
    theirs, ours = (comparable(connection.run(*words), names) for connection in pair)
    assert ours == theirs, f"{words!r}: Redis {theirs!r}, we {ours!r}"
    COMPARED.add(words[0].lower())
    COMPARED.add(b"|".join(words[:2]).lower())
    return theirs


KEYS = st.sampled_from([b"x", b"y", b"foo", b"bar", b"{x}1", b"{x}2", b"{a}1", b"{a}2", b"{b}1", b"{b}2", b"{}x", b""])
SCRIPTS = st.sampled_from(
    [
        b"return redis.call('get', KEYS[1])",
        b"redis.call('set', 'foo', 1); return redis.call('get', 'bar')",
        b"#!lua\nredis.call('get', '{x}1'); return redis.call('get', '{y}1')",
        b"#!lua flags=allow-cross-slot-keys\nredis.call('get', 'x'); return redis.call('get', 'y')",
        b"#!lua flags=no-cluster\nreturn 1",
        b"return redis.pcall('mget', 'x', 'foo')",
        b"return 1",
    ]
)
REQUESTS = st.one_of(
    st.tuples(st.just(b"SET"), KEYS, st.just(b"1")),
    st.tuples(st.just(b"GET"), KEYS),
    st.tuples(st.just(b"DEL"), KEYS, KEYS),
    st.tuples(st.just(b"MGET"), KEYS, KEYS, KEYS),
    st.tuples(st.just(b"MSET"), KEYS, st.just(b"1"), KEYS, st.just(b"2")),
    st.tuples(st.just(b"RENAME"), KEYS, KEYS),
    st.tuples(st.just(b"SUNIONSTORE"), KEYS, KEYS, KEYS),
    st.tuples(st.just(b"SORT"), KEYS, st.sampled_from([b"BY", b"GET"]), st.sampled_from([b"w_*", b"nosort", b"#"])),
    st.tuples(st.just(b"COPY"), KEYS, KEYS, st.just(b"DB"), st.sampled_from([b"0", b"1"])),
    st.tuples(st.just(b"MOVE"), KEYS, st.just(b"1")),
    st.tuples(st.just(b"SPUBLISH"), KEYS, st.just(b"message")),
    st.tuples(st.just(b"PUBLISH"), KEYS, st.just(b"message")),
    st.tuples(st.just(b"XREAD"), st.just(b"STREAMS"), KEYS, KEYS, st.just(b"0"), st.just(b"0")),
    st.tuples(st.just(b"BLPOP"), KEYS, KEYS, st.just(b"0.01")),
    st.tuples(st.just(b"EVAL"), SCRIPTS, st.just(b"1"), KEYS),
    st.tuples(st.just(b"EVAL"), SCRIPTS, st.just(b"0")),
    st.tuples(st.just(b"WATCH"), KEYS),
    st.tuples(st.just(b"OBJECT"), st.just(b"FREQ"), KEYS),
    st.sampled_from(
        [
            (b"ASKING",),
            (b"MULTI",),
            (b"EXEC",),
            (b"DISCARD",),
            (b"UNWATCH",),
            (b"READONLY",),
            (b"READWRITE",),
            (b"PING",),
        ]
    ),
    st.sampled_from(
        [(b"SELECT", b"0"), (b"SELECT", b"1"), (b"SWAPDB", b"0", b"1"), (b"ASKING",), (b"MULTI",), (b"EXEC",)]
    ),
)


@given(steps=st.lists(st.tuples(st.integers(0, 1), REQUESTS), max_size=30))
@SETTINGS
def test_requests_of_any_kind_are_answered_or_redirected_as_by_redis(
    connections: Any, names: dict[bytes, bytes], steps: list[tuple[int, tuple[bytes, ...]]]
) -> None:
    for pair in connections:
        for connection in pair:
            connection.run(b"DISCARD")
            connection.run(b"UNWATCH")
            connection.run(b"FLUSHALL")
    for place, words in steps:
        ask_both(connections[place], names, *words)


def test_keys_have_the_slots_that_they_have_in_redis(connections: Any, names: dict[bytes, bytes]) -> None:
    keys = [
        b"123456789",
        b"",
        b"{",
        b"}",
        b"{}",
        b"{}a",
        b"a{b}c",
        b"a{b}{c}",
        b"a{{b}}c",
        b"}{a}",
        b"a{b",
        b"\x00{\xff}",
    ]
    for key in keys:
        ask_both(connections[0], names, b"CLUSTER", b"KEYSLOT", key)


def test_keys_of_a_slot_are_counted_and_named(connections: Any, names: dict[bytes, bytes]) -> None:
    pair = connections[1]
    slot = str(ask_both(pair, names, b"CLUSTER", b"KEYSLOT", b"x")[1]).encode()
    for name in (b"{x}1", b"{x}2", b"y"):
        ask_both(pair, names, b"SET", name, b"1")
    ask_both(pair, names, b"CLUSTER", b"COUNTKEYSINSLOT", slot)
    replies = [connection.run(b"CLUSTER", b"GETKEYSINSLOT", slot, b"10") for connection in pair]
    assert sorted(replies[0][1]) == sorted(replies[1][1])
    for wrong in ((b"-1",), (b"16384",), (b"x",), ()):
        ask_both(pair, names, b"CLUSTER", b"COUNTKEYSINSLOT", *wrong)
    for wrong in ((b"-1", b"1"), (b"16384", b"1"), (b"0", b"-1"), (b"0", b"x"), (b"0",)):
        ask_both(pair, names, b"CLUSTER", b"GETKEYSINSLOT", *wrong)


def shape(reply: Any) -> Any:
    """The types in a reply, and the names in its maps."""
    kind, value = reply
    if not isinstance(value, list):
        return kind
    return kind, [each if each[0] == "$" and re.fullmatch(rb"[a-z-]+", each[1]) else shape(each) for each in value]


def test_slots_shards_and_hello_have_the_shape_of_redis(connections: Any) -> None:
    for words in ((b"CLUSTER", b"SLOTS"), (b"CLUSTER", b"LINKS")):
        theirs, ours = (connection.run(*words) for connection in connections[0])
        if words[1] == b"SLOTS":
            assert shape(ours) == shape(theirs)
            assert [each[1][:2] for each in ours[1]] == [each[1][:2] for each in theirs[1]]
    shards = [connection.run(b"CLUSTER", b"SHARDS") for connection in connections[0]]
    for theirs, ours in zip(*[sorted(each[1], key=str) for each in shards], strict=True):
        assert shape(ours) == shape(theirs)
    hello = [connection.run(b"HELLO")[1] for connection in connections[0]]
    for reply in hello:
        names = [each[1] for each in reply]
        assert names[names.index(b"mode") + 1] == b"cluster"


def fields(text: bytes) -> list[bytes]:
    return [line.split(b":")[0] for line in text.split() if b"_sent" not in line and b"_received" not in line]


def test_info_and_nodes_are_read_like_those_of_redis(their_nodes: list[Node], our_nodes: list[Node]) -> None:
    infos = []
    for nodes in (their_nodes, our_nodes):
        with contextlib.closing(nodes[0].connect()) as connection:
            infos.append(connection.run(b"CLUSTER", b"INFO")[1])
    assert fields(infos[1]) == fields(infos[0])
    parsed = [nodes[0].client.cluster("nodes") for nodes in (their_nodes, our_nodes)]
    slots = [sorted(str(node["slots"]) for node in each.values()) for each in parsed]
    assert slots[0] == slots[1]
    assert {node["flags"] for node in parsed[0].values()} == {node["flags"] for node in parsed[1].values()}
    for nodes in (their_nodes, our_nodes):
        assert nodes[0].client.info("cluster")["cluster_enabled"] == 1
        assert nodes[0].client.info("server")["redis_mode"] == "cluster"


def test_a_server_that_is_no_shard_refuses_as_a_redis_without_cluster_does(peers: Any) -> None:
    for words in ((b"CLUSTER", b"SLOTS"), (b"ASKING",), (b"READONLY",), (b"CLUSTER", b"KEYSLOT", b"x")):
        replies = []
        for peer in peers:
            with contextlib.closing(peer.connect()) as connection:
                replies.append(connection.run(*words))
        assert replies[1] == replies[0]
