"""URLs with several hosts: clients find the primary among them, and follow it when another host becomes it."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import numpy as np
import pytest
from links import eventually

import replay_server as rs
from replay_server.connection import Address

WEIGHTS = {"layer.weight": np.arange(4.0, dtype=np.float32)}


@pytest.fixture
def pair() -> Iterator[tuple[rs.Server, rs.Server]]:
    """A server, and its replica, which has all of it."""
    with rs.Server() as first, rs.Server() as second, rs.Client(second.url) as client:
        follow(second, first)
        eventually(lambda: client.redis.info("replication")["master_link_status"] == "up", "the first copy")
        yield first, second


def ask(server: rs.Server, *command: str | int) -> object:
    with rs.Client(server.url) as client:
        return client.redis.execute_command(*command)


def follow(server: rs.Server, primary: rs.Server) -> None:
    ask(server, "REPLICAOF", *primary.url.removeprefix("redis://").split(":"))


def fail_over(old: rs.Server, new: rs.Server) -> None:
    ask(new, "REPLICAOF", "NO", "ONE")
    follow(old, new)


def url_of(*servers: rs.Server) -> str:
    return "redis://" + ",".join(server.url.removeprefix("redis://") for server in servers)


def test_the_primary_is_found_wherever_it_stands_in_the_url(pair):
    first, second = pair
    for servers in ((first, second), (second, first)):
        with rs.Client(url_of(*servers)) as client:
            client.command("SET", "here", "yes")
            assert client.redis.info("server")["process_id"] == first.pid
            assert str(client._address) == url_of(*servers)


def test_a_write_that_a_replica_refuses_is_done_at_the_new_primary(pair, eventually):
    first, second = pair
    with rs.Client(url_of(first, second)) as client:
        table = rs.Table("t", 100, {"k": rs.Column("int64")})
        client.create_table(table)
        client.add("t", {"k": np.arange(3)})
        assert client.redis.wait(1, 10_000) == 1
        fail_over(first, second)
        client.create_table(table)
        assert len(client.add("t", {"k": np.arange(10)})) == 10  # once: the old primary refused it whole
        assert client.info("t")["size"] == 13
        assert client.redis.info("server")["process_id"] == second.pid


def test_weights_go_on_after_the_primary_was_killed(pair):
    first, second = pair
    with rs.Client(url_of(first, second), reconnect_timeout=30.0) as client:
        assert client.publish_weights("policy", WEIGHTS, version=1) == 1
        first.stop(timeout=0)
        promotion = threading.Timer(0.3, ask, (second, "REPLICAOF", "NO", "ONE"))
        promotion.start()
        assert client.publish_weights("policy", WEIGHTS, version=2) == 2
        promotion.join()
        version, arrays = client.fetch_weights("policy") or (0, {})
        assert version == 2
        assert np.array_equal(arrays["layer.weight"], WEIGHTS["layer.weight"])


def test_where_no_host_is_a_primary_the_error_says_what_each_is(pair):
    _, second = pair
    gone = rs.Server()
    gone.stop()
    with (
        rs.Client(url_of(second, gone), reconnect_timeout=0.2) as client,
        pytest.raises(rs.ConnectionLost, match=r"no primary answers: .*is a replica; cannot connect to"),
    ):
        client.tables()


def test_a_writer_finds_the_new_primary(pair):
    first, second = pair
    table = rs.Table(
        "steps",
        100,
        {"frame": rs.Column("uint8", (2,), step_only=True), "obs": rs.Window("frame", length=2)},
    )
    with rs.Client(url_of(first, second)) as client:
        client.create_table(table)
        with client.writer("steps") as writer:

            def write(number: int) -> int:
                writer.append({"frame": np.full(2, number, np.uint8)})
                writer.create_item()
                return len(writer.flush())

            assert [write(number) for number in range(4)] == [1] * 4
            fail_over(first, second)
            client.create_table(table)
            assert [write(number) for number in (4, 5)] == [1, 1]  # what a replica refuses is sent to the primary
        assert client.info("steps")["size"] >= 2


async def _follows(first: rs.Server, second: rs.Server) -> tuple[int, int]:
    async with rs.aio.Client(url_of(second, first)) as client:
        await client.command("SET", "a", 1)
        fail_over(first, second)
        await client.command("SET", "b", 2)
        info = await client.redis.info("server")
        return info["process_id"], len(await client.redis.keys())


def test_the_asyncio_client_follows_too(pair):
    first, second = pair
    process, keys = rs.aio.run(_follows(first, second))
    assert process == second.pid
    assert keys >= 1


@pytest.mark.parametrize("url", ["redis://a:1,", "redis://,b", "redis://a,unix:///x"])
def test_a_list_with_an_empty_or_other_host_is_refused(url: str):
    with pytest.raises(ValueError, match="expected redis://"):
        rs.Client(url)


def test_a_comma_in_the_path_of_a_socket_is_of_the_path():
    assert Address.parse("unix:///a,b").path == "/a,b"


def test_hosts_share_the_login_and_the_options():
    address = Address.parse("rediss://me:se%40cret@a:1,b?ssl_check_hostname=false")
    assert [(host.host, host.port, host.username, host.password) for host in address.hosts] == [
        ("a", 1, "me", "se@cret"),
        ("b", 6379, "me", "se@cret"),
    ]
    assert all(host.tls == (("ssl_check_hostname", "false"),) for host in address.hosts)
    assert str(address) == "rediss://a:1,b:6379"
