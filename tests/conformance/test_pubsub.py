"""Publish and subscribe as Redis 7.0 does it: replies, messages and their order, for plain clients and for redis-py."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
import redis
import redis.asyncio
from against_redis import Pair, command, run_random_sequences, some, words
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

CHANNELS = st.sampled_from([b"a", b"b", b"news", b"new", b"", b"\x00\r\n"])
PATTERNS = st.sampled_from([b"a*", b"n?ws", b"*", b"[ab]", b""])
MESSAGES = st.sampled_from([b"", b"hello", b"x" * 5_000, b"\r\n\x00"])


class Watcher:
    """Connections that listen, each to the server of the pair with the same place."""

    def __init__(self, peers: Any, protocol: int) -> None:
        self.connections = [peer.connect(protocol) for peer in peers]

    def run(self, *words: bytes, replies: int = 1) -> list[Any]:
        for connection in self.connections:
            connection.send(words)
        return self.read(replies)

    def read(self, replies: int = 1) -> list[Any]:
        redis_read, ours = ([connection.read() for _ in range(replies)] for connection in self.connections)
        assert ours == redis_read
        return redis_read

    def close(self) -> None:
        for connection in self.connections:
            connection.close()


@pytest.fixture(params=[2, 3], ids=["resp2", "resp3"])
def watcher(peers: Any, request: pytest.FixtureRequest) -> Iterator[Watcher]:
    connected = Watcher(peers, request.param)
    yield connected
    connected.close()


def test_messages_come_as_redis_sends_them(pair: Pair, watcher: Watcher) -> None:
    watcher.run(b"SUBSCRIBE", b"a", b"b", b"a", replies=3)
    watcher.run(b"PSUBSCRIBE", b"a*", replies=1)
    watcher.run(b"SSUBSCRIBE", b"a", replies=1)
    assert pair.words("PUBLISH a hello") == (":", 2)
    watcher.read(2)
    assert pair.words("PUBLISH b hello") == (":", 1)
    watcher.read(1)
    assert pair.words("SPUBLISH a hello") == (":", 1)
    watcher.read(1)
    pair.run((b"PUBLISH", b"abc", b"y" * 100_000))
    assert len(watcher.read(1)[0][1][3][1]) == 100_000
    assert pair.words("PUBLISH c hello") == (":", 0)
    pair.words("PUBSUB NUMSUB a b c")
    pair.words("PUBSUB NUMPAT")
    pair.words("PUBSUB SHARDNUMSUB a b")
    pair.words("PUBSUB CHANNELS b*")
    pair.words("PUBSUB SHARDCHANNELS")
    watcher.run(b"UNSUBSCRIBE", b"a", b"nosuch", replies=2)
    watcher.run(b"PUNSUBSCRIBE", replies=1)
    watcher.run(b"SUNSUBSCRIBE", replies=1)
    watcher.run(b"UNSUBSCRIBE", replies=1)
    watcher.run(b"UNSUBSCRIBE", replies=1)
    assert pair.words("PUBSUB NUMSUB a") == ("*", [("$", b"a"), (":", 0)])


def test_a_subscriber_may_run_few_commands_with_resp2_and_all_with_resp3(watcher: Watcher) -> None:
    watcher.run(b"SUBSCRIBE", b"a")
    watcher.run(b"PING")
    watcher.run(b"PING", b"x")
    watcher.run(b"GET", b"k")
    watcher.run(b"PUBSUB", b"NUMPAT")
    watcher.run(b"UNSUBSCRIBE", b"a")
    watcher.run(b"GET", b"k")
    watcher.run(b"PING")


def test_a_subscriber_hears_itself_before_its_reply(peers: Any) -> None:
    both = Watcher(peers, 3)
    both.run(b"SUBSCRIBE", b"a")
    both.run(b"PSUBSCRIBE", b"*")
    first, second, reply = both.run(b"PUBLISH", b"a", b"m", replies=3)
    assert first[0] == second[0] == ">"
    assert reply == (":", 2)
    both.close()


def test_messages_come_although_replies_are_off(pair: Pair, watcher: Watcher) -> None:
    for connection in watcher.connections:
        connection.send((b"CLIENT", b"REPLY", b"OFF"), (b"SUBSCRIBE", b"quiet"))
    watcher.read(1)
    pair.words("PUBLISH quiet m")
    watcher.read(1)


def test_no_message_stands_in_the_midst_of_a_long_reply(our_peer: Any) -> None:
    subscriber, publisher = our_peer.connect(3), our_peer.connect()
    publisher.run(b"DEL", b"members")
    publisher.run(b"SADD", b"members", *(b"%d" % number for number in range(10)))
    subscriber.run(b"SUBSCRIBE", b"channel")
    subscriber.send(*[(b"SRANDMEMBER", b"members", b"-300000")] * 5)
    publisher.send(*[(b"PUBLISH", b"channel", b"message")] * 2000)
    assert [publisher.read() for _ in range(2000)] == [(":", 1)] * 2000
    replies = [subscriber.read() for _ in range(2005)]
    long = [reply for reply in replies if reply[0] == "*"]
    assert [len(members) for _, members in long] == [300_000] * 5
    assert {kind for _, members in long for kind, _ in members} == {"$"}
    for each in (subscriber, publisher):
        each.close()


def test_reset_ends_all_subscriptions(pair: Pair, watcher: Watcher) -> None:
    watcher.run(b"SUBSCRIBE", b"r1")
    watcher.run(b"PSUBSCRIBE", b"r*")
    watcher.run(b"RESET")
    assert pair.words("PUBLISH r1 m") == (":", 0)
    watcher.run(b"GET", b"nosuch")


def test_who_disconnects_is_subscribed_no_more(our_peer: Any) -> None:
    listener, other = our_peer.connect(), our_peer.connect()
    for i in range(200):
        listener.run(b"SUBSCRIBE", b"gone:%d" % i)
        listener.run(b"PSUBSCRIBE", b"gone:%d*" % i)
    listener.close()
    deadline = time.monotonic() + 60
    while other.run(b"PUBSUB", b"NUMPAT")[1] > 0 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert other.run(b"PUBSUB", b"NUMPAT") == (":", 0)
    assert other.run(b"PUBSUB", b"CHANNELS", b"gone:*") == ("*", [])
    other.close()


@pytest.mark.parametrize(
    "line",
    [
        "SUBSCRIBE",
        "PSUBSCRIBE",
        "SSUBSCRIBE",
        "PUBLISH a",
        "PUBLISH a b c",
        "SPUBLISH a",
        "PUBSUB",
        "PUBSUB nosuch",
        "PUBSUB CHANNELS a b",
        "PUBSUB SHARDCHANNELS a b",
        "PUBSUB NUMPAT a",
        "PUBSUB NUMSUB",
        "PUBSUB SHARDNUMSUB",
        "PUBSUB HELP x",
        "pubsub|channels",
    ],
)
def test_wrong_words_are_refused_alike(pair: Pair, line: str) -> None:
    pair.words(line)


def test_random_publishing_without_subscribers(pair: Pair) -> None:
    run_random_sequences(
        pair,
        [
            command("publish", CHANNELS, MESSAGES),
            command("spublish", CHANNELS, MESSAGES),
            command("pubsub", words("numsub", "shardnumsub", "NUMSUB"), some(CHANNELS, 0, 3)),
            command("pubsub", words("channels", "shardchannels", "numpat", "channels a*")),
        ],
        examples=20,
    )


STEPS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from([b"SUBSCRIBE", b"UNSUBSCRIBE"]), CHANNELS),
        st.tuples(st.sampled_from([b"SSUBSCRIBE", b"SUNSUBSCRIBE"]), CHANNELS),
        st.tuples(st.sampled_from([b"PSUBSCRIBE", b"PUNSUBSCRIBE"]), PATTERNS),
        st.tuples(st.sampled_from([b"PUBLISH", b"SPUBLISH"]), CHANNELS, MESSAGES),
    ),
    max_size=25,
)


@pytest.mark.parametrize("protocol", [2, 3])
def test_random_sequences_of_subscribers_and_publishers(peers: Any, protocol: int) -> None:
    """Two listeners and one that publishes; what is matched by several patterns has no order."""

    @settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck), database=None, derandomize=True)
    @given(st.lists(st.tuples(st.integers(0, 1), STEPS), max_size=6))
    def run(turns: list[tuple[int, list[tuple[bytes, ...]]]]) -> None:
        heard: list[list[Any]] = []
        for peer in peers:
            listeners = [peer.connect(protocol) for _ in range(2)]
            publisher = peer.connect(protocol)
            log: list[Any] = [[], []]
            for index, steps in turns:
                for step in steps:
                    if step[0] in (b"PUBLISH", b"SPUBLISH"):
                        log.append(publisher.run(*step))
                    else:
                        listeners[index].send(step)
                        while True:  # up to the reply: messages may come before it
                            reply = listeners[index].read()
                            log[index].append(reply)
                            if reply[1][0][1].endswith(b"subscribe"):
                                break
            for index, listener in enumerate(listeners):
                listener.send((b"PSUBSCRIBE", b"end"))
                while True:
                    reply = listener.read()
                    log[index].append(reply)
                    if reply[1][:2] == [("$", b"psubscribe"), ("$", b"end")]:
                        break
                log[index].sort(key=repr)
                listener.close()
            publisher.close()
            heard.append(log)
        assert heard[1] == heard[0]

    run()


# ---- redis-py ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("protocol", [2, 3])
def test_redis_py_runs_a_listening_thread(our_peer: Any, protocol: int) -> None:
    heard: list[Any] = []
    arrived = threading.Event()

    def on_message(message: dict[str, Any]) -> None:
        heard.append((message["channel"], message["data"]))
        if len(heard) == 3:
            arrived.set()

    with redis.Redis(unix_socket_path=str(our_peer.unix_path), protocol=protocol) as client:
        pubsub = client.pubsub(ignore_subscribe_messages=True)
        pubsub.subscribe(**{"thread:a": on_message})
        pubsub.psubscribe(**{"thread:b*": on_message})
        thread = pubsub.run_in_thread(sleep_time=0.01)
        deadline = time.monotonic() + 60
        while client.pubsub_numpat() < 1 and time.monotonic() < deadline:
            time.sleep(0.01)
        assert client.publish("thread:a", "1") == 1
        assert client.publish("thread:b2", "2") == 1
        assert client.publish("thread:a", b"\x00\xff") == 1
        assert arrived.wait(60)
        thread.stop()
        thread.join(60)
        pubsub.close()
    assert heard == [(b"thread:a", b"1"), (b"thread:b2", b"2"), (b"thread:a", b"\x00\xff")]


def test_redis_py_listens_with_asyncio(our_peer: Any) -> None:
    async def listen() -> list[bytes]:
        heard = []
        async with redis.asyncio.Redis(unix_socket_path=str(our_peer.unix_path)) as client, client.pubsub() as pubsub:
            await pubsub.subscribe("async")
            while (await pubsub.get_message(timeout=60)) is None:
                pass
            for i in range(5):
                await client.publish("async", str(i))
            while len(heard) < 5:
                message = await pubsub.get_message(ignore_subscribe_messages=True, timeout=60)
                if message:
                    heard.append(message["data"])
        return heard

    assert asyncio.run(listen()) == [b"0", b"1", b"2", b"3", b"4"]
