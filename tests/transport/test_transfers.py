"""Bytes over every transport arrive as they were sent: large ones both ways, through a cut link, tables, weights."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import redis

import replay_server as rs

WEIGHTS_BYTES = 13_171_348
"""Of the network of the paper: 3,292,837 float32."""


def random_bytes(seed: int, size_bytes: int) -> bytes:
    return np.random.default_rng(seed).bytes(size_bytes)


class Background(threading.Thread):
    """Runs something in a thread, which stands where its maker does; `result` hands on what it returned or raised."""

    def __init__(self, work: Callable[[], Any]) -> None:
        super().__init__(daemon=True)
        self._work = work
        self._outcome: Any = None
        self._error: BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            self._outcome = self._work()
        except BaseException as error:
            self._error = error

    def result(self, seconds: float = 120.0) -> Any:
        self.join(seconds)
        assert not self.is_alive(), f"not done after {seconds} s"
        if self._error is not None:
            raise self._error
        return self._outcome


# ---- large values ----------------------------------------------------------------------------------------------------


def test_64_megabytes_pass_in_each_direction_and_in_both_at_once(server: Any, client: Any) -> None:
    up, down = random_bytes(1, 64 << 20), random_bytes(2, 64 << 20)
    client.redis.set("down", up)
    assert client.redis.get("down") == up
    client.redis.set("down", down)

    def fetch() -> bytes:
        with rs.Client(server.url) as other:
            return other.redis.get("down")  # type: ignore[return-value]

    fetching = Background(fetch)
    client.redis.set("up", up)
    assert fetching.result() == down
    assert client.redis.get("up") == up
    client.redis.delete("up", "down")


@pytest.mark.parametrize("direction", ["up", "down"])
def test_a_transfer_goes_on_after_the_link_was_down(site: Any, server: Any, client: Any, direction: str) -> None:
    """The cable is out for longer than TCP waits before it first sends again."""
    value = random_bytes(3, 32 << 20)
    if direction == "down":
        client.redis.set("cut", value)
    moved = threading.Event()

    def transfer() -> bytes:
        with rs.Client(server.url) as other:
            assert other.redis.ping()
            moved.set()
            for _ in range(4):
                if direction == "up":
                    assert other.redis.set("cut", value)
                else:
                    assert other.redis.get("cut") == value
            return value

    transferring = Background(transfer)
    assert moved.wait(60)
    time.sleep(0.02)
    site.lab.set_link(False)
    time.sleep(1.0)
    assert transferring.is_alive(), "it was done before the link was cut"
    site.lab.set_link(True)
    transferring.result()
    assert client.redis.get("cut") == value
    client.redis.delete("cut")


# ---- tables ----------------------------------------------------------------------------------------------------------


def atari(keys: np.ndarray) -> dict[str, np.ndarray]:
    """Transitions that follow from their keys."""
    frames = np.random.default_rng(7).integers(0, 256, (256, 4, 84, 84), np.uint8)
    return {
        "key": keys,
        "obs": frames[keys % 256],
        "next_obs": frames[(keys * 7 + 1) % 256],
        "reward": (keys / 3).astype(np.float32),
    }


ATARI = {
    "key": rs.Column("int64"),
    "obs": rs.Column("uint8", (4, 84, 84)),
    "next_obs": rs.Column("uint8", (4, 84, 84)),
    "reward": rs.Column("float32"),
}


def test_batches_are_bit_by_bit_what_was_added(client: Any, make_table: Any) -> None:
    name = make_table(1000, ATARI)
    ids = np.concatenate(
        [client.add(name, atari(np.arange(begin, begin + 50)), np.full(50, 0.5)) for begin in range(0, 1000, 50)]
    )
    assert len(np.unique(ids)) == 1000
    batch = None
    for _ in range(5):
        batch = client.sample(name, 512, out=batch)  # 29 MB
        expected = atari(batch.data["key"])
        for column, values in expected.items():
            np.testing.assert_array_equal(batch.data[column], values)
        np.testing.assert_array_equal(ids[batch.data["key"]], batch.ids)
        np.testing.assert_allclose(batch.probabilities, 1 / 1000)
    assert client.update_priorities(name, batch.ids, np.ones(512)) == (512, 0)
    held = client.get(name, ids[:3])
    np.testing.assert_array_equal(held.data["obs"], atari(np.arange(3))["obs"])
    assert client.delete(name, ids[:3]) == 3


def compressed(make_table: Any, signature: dict[str, Any], compression: str) -> str:
    try:
        return make_table(1000, signature, sampler=rs.Uniform(), compression=compression)
    except rs.ReplayError as error:
        if "built without" not in str(error):
            raise
        pytest.skip(str(error))


@pytest.mark.parametrize("compression", ["none", "lz4"])
def test_ragged_windows_are_bit_by_bit_what_was_written(client: Any, make_table: Any, compression: str) -> None:
    signature = {
        "frame": rs.Column("uint8", (84, 84), step_only=True),
        "action": rs.Column("int32"),
        "frames": rs.Window("frame", max_length=30),
        "actions": rs.Window("action", max_length=30),
    }
    name = compressed(make_table, signature, compression)
    frames = np.random.default_rng(8).integers(0, 4, (300, 84, 84), np.uint8)
    with client.writer(name) as writer:
        for step, frame in enumerate(frames):
            writer.append({"frame": frame, "action": step}, final=step % 60 == 59)
            newest = slice(-1 - step % 30, None)
            writer.create_item(columns={"frames": newest, "actions": newest})
    batch = client.sample(name, 128)
    for row, number in enumerate(batch.data["action"].tolist()):
        shown = np.arange(max(number - number % 30, number // 60 * 60), number + 1)
        np.testing.assert_array_equal(batch.data["actions"][row], shown, err_msg=str(number))
        np.testing.assert_array_equal(batch.data["frames"][row], frames[shown], err_msg=str(number))


@pytest.mark.parametrize("compression", ["none", "lz4"])
@pytest.mark.parametrize("coded", [True, False])
def test_windows_are_bit_by_bit_what_was_written(client: Any, make_table: Any, compression: str, coded: bool) -> None:
    signature = {
        "frame": rs.Column("uint8", (84, 84), step_only=True),
        "number": rs.Column("int64"),
        "obs": rs.Window("frame", length=4),
        "next_obs": rs.Window("frame", length=4, offset=3),
    }
    name = compressed(make_table, signature, compression)
    frames = np.random.default_rng(8).integers(0, 4, (600, 84, 84), np.uint8)
    with client.writer(name) as writer:
        for step, frame in enumerate(frames):
            writer.append({"frame": frame}, final=step % 60 == 59)
            writer.create_item(columns={"number": np.int64(step)})
    batch = client.sample(name, 256, coded=coded)
    for row, number in enumerate(batch.data["number"].tolist()):
        first, last = number // 60 * 60, number // 60 * 60 + 59
        for column, end in (("obs", number), ("next_obs", min(number + 3, last))):
            shown = [max(end - back, first) for back in (3, 2, 1, 0)]
            np.testing.assert_array_equal(batch.data[column][row], frames[shown], err_msg=f"{column} of {number}")


def test_a_background_sampler_keeps_up_with_a_writer(server: Any, client: Any, make_table: Any) -> None:
    name = make_table(500, ATARI, rate_limiter=rs.MinSize(50))
    stop = threading.Event()

    def write() -> int:
        added = 0
        with rs.Client(server.url) as other:
            while not stop.is_set():
                other.add(name, atari(np.arange(added, added + 50)), timeout=60)
                added += 50
        return added

    writing = Background(write)
    with client.sampler(name, 64, prefetch=2, timeout=60) as batches:
        for _, batch in zip(range(30), batches):
            for column, values in atari(batch.data["key"]).items():
                np.testing.assert_array_equal(batch.data[column], values)
    stop.set()
    assert writing.result() == client.info(name)["added"]


# ---- waiting ---------------------------------------------------------------------------------------------------------


def test_a_wait_ends_after_its_time_with_its_reason(client: Any, table: Any) -> None:
    for timeout in (0.05, 0.5):
        begin = time.monotonic()
        with pytest.raises(rs.Timeout) as raised:
            client.sample(table, 1, timeout=timeout)
        assert time.monotonic() - begin >= timeout
        assert raised.value.reason


def test_a_wait_ends_when_items_come(server: Any, client: Any, table: Any, items: Any, eventually: Any) -> None:
    def wait() -> np.ndarray:
        with rs.Client(server.url) as other:
            return other.sample(table, 2, timeout=60).data["k"]

    waiting = Background(wait)
    eventually(lambda: client.info(table)["waiting_sample"] == 1, "it waits")
    client.add(table, items(1, 2))
    assert sorted(waiting.result()) == [1, 2]


# ---- weights ---------------------------------------------------------------------------------------------------------


def test_weights_of_13_megabytes_reach_every_actor(server: Any, client: Any) -> None:
    generator = np.random.default_rng(9)
    layers = {
        "body": generator.standard_normal(3_000_000, np.float32),
        "head": generator.random((292_837,), np.float32),
    }
    assert sum(layer.nbytes for layer in layers.values()) == WEIGHTS_BYTES

    def fetch() -> dict[str, np.ndarray]:
        with rs.Client(server.url) as other:
            fetched = other.fetch_weights("network")
            assert fetched is not None
            assert other.fetch_weights("network", newer_than=fetched[0]) is None
            return fetched[1]

    version = client.publish_weights("network", layers)
    for arrays in [thread.result() for thread in [Background(fetch) for _ in range(4)]]:
        for layer, values in layers.items():
            np.testing.assert_array_equal(arrays[layer], values)
    assert client.publish_weights("network", layers) == version + 1


# ---- who else speaks -------------------------------------------------------------------------------------------------


def test_a_port_where_nobody_listens_refuses(site: Any, server: Any) -> None:
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((site.address, 6380), 60)


def test_a_client_that_hangs_up_while_it_waits_is_forgotten(
    site: Any, client: Any, table: Any, eventually: Any
) -> None:
    with redis.Redis(site.address, 6379) as waiting:
        connection = waiting.connection_pool.get_connection()
        connection.send_command("REPLAY.SAMPLE", table, 1, "BLOCK", 0)
        eventually(lambda: client.info(table)["waiting"] == 1, "it waits")
        connection.disconnect()
    eventually(lambda: client.info(table)["waiting"] == 0, "it is forgotten")
