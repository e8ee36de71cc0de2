"""Background prefetch through the server."""

from __future__ import annotations

import contextlib
import socket
import threading
import time

import numpy as np
import pytest

import replay_server as rs


def test_batches_keep_coming_and_stay_as_they_were(client, table, items):
    client.add(table, items(*range(50)))
    kept, copies = [], []
    with client.sampler(table, 32, prefetch=2) as batches:
        for batch, _ in zip(batches, range(100), strict=False):
            np.testing.assert_array_equal(batch.data["x"][:, 0], batch.data["k"])
            kept.append(batch.data["k"][1:])  # a view is enough to keep a batch
            copies.append(batch.data["k"][1:].copy())
    for view, copy in zip(kept, copies, strict=True):
        np.testing.assert_array_equal(view, copy)


def test_dropped_batches_are_used_again(client, table, items):
    client.add(table, items(1))
    seen = set()
    with client.sampler(table, 4096, prefetch=2) as batches:
        for _ in range(60):
            batch = next(batches)
            seen.add(batch.data["x"].ctypes.data)
            del batch
    assert len(seen) <= 8


def test_beta_may_be_annealed(client, make_table, items):
    name = make_table(sampler=rs.Prioritized(1.0))
    client.add(name, items(1, 2), [1.0, 3.0])
    with client.sampler(name, 64, importance_sampling_exponent=0.0, prefetch=1) as batches:
        assert (next(batches).weights == 1).all()
        batches.importance_sampling_exponent = 1.0
        for _ in range(3):
            batch = next(batches)
        assert batch.weights.min() == pytest.approx(1 / 3)


def test_close_cancels_a_wait(client, table, eventually):
    batches = client.sampler(table, 1)
    outcome: list[list[rs.Batch]] = []
    waiter = threading.Thread(target=lambda: outcome.append(list(batches)))
    waiter.start()
    eventually(lambda: client.info(table)["waiting"] == 1, "the sampler waits")
    batches.close()
    waiter.join(60)
    assert outcome == [[]]
    eventually(lambda: client.info(table)["waiting"] == 0, "the server forgets it")
    batches.close()


def test_an_exception_in_the_loop_closes_the_sampler(client, table, items):
    client.add(table, items(1))
    before = threading.active_count()
    with contextlib.suppress(KeyError), client.sampler(table, 4) as batches:
        for _ in batches:
            raise KeyError
    assert threading.active_count() == before


def test_a_timeout_is_raised_with_its_reason_and_ends_it(client, table):
    with client.sampler(table, 1, timeout=0.02) as batches:
        with pytest.raises(rs.Timeout, match="the table holds 0"):
            next(batches)
        assert list(batches) == []


def test_a_lost_server_is_raised(items):
    table = rs.Table("t", 10, {"k": rs.Column("int64")})
    with rs.Server([table]) as server, rs.Client(server.url, reconnect_timeout=0.1) as client:
        client.add("t", {"k": [1]})
        with client.sampler("t", 1, prefetch=1) as batches:
            next(batches)
            server.stop()
            with pytest.raises(rs.ConnectionLost):
                for _ in batches:
                    pass


def test_a_table_made_anew_changes_what_the_sampler_yields(client, make_table, items, eventually):
    name = make_table()
    client.add(name, items(1))
    with client.sampler(name, 2, prefetch=1) as batches:
        assert set(next(batches).data) == {"x", "k"}
        eventually(lambda: client.info(name)["sampled"] == 4, "the next batch is there, and no further one is drawn")
        client.drop_table(name)
        client.create_table(rs.Table(name, 10, {"y": rs.Column("int8")}))
        client.add(name, {"y": [1]})
        for batch in batches:
            if set(batch.data) == {"y"}:
                break


@pytest.mark.parametrize(("workers", "in_flight"), [(1, 4), (2, None), (2, 5), (3, 3)])
def test_requests_in_flight_are_bounded_and_each_item_comes_once(client, make_table, items, workers, in_flight):
    name = make_table(2000, rate_limiter=rs.Queue(2000), sampler=rs.Fifo(), max_times_sampled=1)
    bound = in_flight or workers
    with client.sampler(name, 10, prefetch=bound, workers=workers, in_flight=in_flight) as batches:
        deadline = time.monotonic() + 10
        while client.info(name)["waiting"] < bound and time.monotonic() < deadline:
            time.sleep(0.001)
        assert client.info(name)["waiting"] == bound
        client.add(name, items(*range(2000)))
        first = next(batches)
        time.sleep(0.05)
        assert client.info(name)["sampled"] <= 10 * (bound + 2), "no more is drawn than the caller is ahead of"
        keys = first.data["k"].tolist()
        for _ in range(199):
            keys += next(batches).data["k"].tolist()
    assert sorted(keys) == list(range(2000))


@pytest.mark.parametrize(("workers", "in_flight"), [(1, 4), (3, 5)])
def test_several_requests_end_with_a_closed_table_after_its_last_batch(client, make_table, items, workers, in_flight):
    name = make_table(1000, rate_limiter=rs.Queue(1000), sampler=rs.Fifo(), max_times_sampled=1)
    client.add(name, items(*range(995)))
    with client.sampler(name, 10, workers=workers, in_flight=in_flight) as batches:
        got = [next(batches)]
        client.close_table(name)
        got += batches
        assert batches.table_closed is not None
        assert list(batches) == [], "it stays ended"
    assert sorted(np.concatenate([batch.data["k"] for batch in got]).tolist()) == list(range(990))
    assert client.info(name)["size"] == 5


def test_a_timeout_of_one_of_several_requests_ends_them_all(client, table, eventually):
    with client.sampler(table, 1, timeout=0.05, workers=2, in_flight=4) as batches:
        with pytest.raises(rs.Timeout, match="the table holds 0"):
            next(batches)
        assert list(batches) == []
    eventually(lambda: client.info(table)["waiting"] == 0, "nobody waits any more")


def test_settings_that_cannot_be_are_refused(client, table):
    for arguments in ({"prefetch": 0}, {"batch_size": 0}, {"workers": 0}, {"workers": 2, "in_flight": 1}):
        with pytest.raises(ValueError):
            client.sampler(table, **{"batch_size": 1, **arguments})


class HeldBack:
    """A way to a server on which the first request for a sample waits until it is let through."""

    def __init__(self, port: int) -> None:
        self._port, self._first = port, threading.Lock()
        self.let_through = threading.Event()
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = self._listening.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listening.accept()
                far = socket.create_connection(("127.0.0.1", self._port))
                for ends in ((near, far, True), (far, near, False)):
                    threading.Thread(target=self._pass_on, args=ends, daemon=True).start()

    def _pass_on(self, source: socket.socket, target: socket.socket, asks: bool) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                if asks and b"REPLAY.SAMPLE" in data and self._first.acquire(blocking=False):
                    self.let_through.wait(60)
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        self._listening.close()


def test_a_batch_is_not_kept_back_by_an_earlier_request_that_waits_on(server, client, make_table, items, eventually):
    name = make_table(100, rate_limiter=rs.Queue(100), sampler=rs.Fifo(), max_times_sampled=1)
    port = client.redis.config_get("port")["port"]
    with (
        contextlib.closing(HeldBack(int(port))) as way,
        rs.Client(f"redis://127.0.0.1:{way.port}", shared_memory=False) as other,
        other.sampler(name, 10, prefetch=2, in_flight=2) as batches,
    ):
        eventually(lambda: client.info(name)["waiting"] == 1, "the second request is the server's first")
        way.let_through.set()
        eventually(lambda: client.info(name)["waiting"] == 2, "both requests are there")
        client.add(name, items(*range(10)))
        assert sorted(next(batches).data["k"].tolist()) == list(range(10))
