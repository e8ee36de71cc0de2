"""Waiting: with which reason, until when, and who is woken."""

from __future__ import annotations

import contextlib
import threading

import numpy as np
import pytest

import replay_server as rs


class Background(threading.Thread):
    """Runs a call in a thread and keeps what came of it."""

    def __init__(self, call) -> None:
        super().__init__(daemon=True)
        self._call, self.result, self.error = call, None, None
        self.start()

    def run(self) -> None:
        try:
            self.result = self._call()
        except BaseException as error:
            self.error = error

    def outcome(self):
        self.join(60)
        assert not self.is_alive(), "it still waits"
        return self.error or self.result


@pytest.mark.parametrize(
    ("parts", "before", "wanted", "reason"),
    [
        ({}, [], 1, "the table holds 0"),
        ({"rate_limiter": rs.MinSize(3)}, [1, 2], 1, "min_size_to_sample = 3"),
        ({"sampler": rs.Fifo()}, [1, 2], 3, "a fifo sample of 3 waits"),
        ({"rate_limiter": rs.SampleToInsertRatio(1.0, 2, 2.0)}, [1, 2], 3, "waits for inserts"),
    ],
)
@pytest.mark.parametrize("timeout", [0, 0.05])
def test_a_sample_that_cannot_be_says_why(client, make_table, items, parts, before, wanted, reason, timeout):
    name = make_table(**parts)
    client.add(name, items(*before))
    with pytest.raises(rs.Timeout, match=reason) as caught:
        client.sample(name, wanted, timeout=timeout)
    assert reason in caught.value.reason
    assert f"sample of {wanted} from '{name}'" in str(caught.value)
    assert client.info(name)["sampled"] == 0


def test_all_priorities_zero_is_a_reason_in_error_and_info(client, table, items):
    client.add(table, items(1, 2), [0.0, 0.0])
    with pytest.raises(rs.Timeout, match="all priorities are zero"):
        client.sample(table, 1, timeout=0.02)
    assert "all priorities are zero" in client.info(table)["reason"]


def test_an_add_that_cannot_be_says_why_and_stores_nothing(client, make_table, items):
    name = make_table(sampler=rs.Fifo(), rate_limiter=rs.Queue(2), max_times_sampled=1)
    client.add(name, items(1, 2))
    for timeout in (0, 0.05):
        with pytest.raises(rs.Timeout, match="the queue holds 2 of 2"):
            client.add(name, items(3), timeout=timeout)
    info = client.info(name)
    assert (info["size"], info["added"], info["reserved_slots"]) == (2, 2, 0)


def test_a_batch_that_could_never_pass_is_refused_at_once(client, make_table, items):
    ratio = make_table(rate_limiter=rs.SampleToInsertRatio(1.0, 1, 2.0))
    client.add(ratio, items(1))
    with pytest.raises(rs.LimitExceeded, match="error_buffer"):
        client.sample(ratio, 9)
    queue = make_table(sampler=rs.Fifo(), rate_limiter=rs.Queue(2))
    with pytest.raises(rs.LimitExceeded, match="queue of 2"):
        client.add(queue, items(1, 2, 3))
    small = make_table(capacity=2)
    with pytest.raises(rs.LimitExceeded, match="never fit"):
        client.add(small, items(1, 2, 3))


def test_a_waiting_sample_is_counted_and_woken_by_an_add(client, make_table, items, eventually):
    name = make_table(rate_limiter=rs.MinSize(3))
    waiter = Background(lambda: client.sample(name, 4))
    eventually(lambda: client.info(name)["waiting"] == 1, "the sample waits")
    info = client.info(name)
    assert info["waiting_sample"] == 1
    assert "min_size_to_sample = 3" in info["reason"]
    client.add(name, items(1, 2))
    client.add(name, items(3))
    assert len(waiter.outcome()) == 4
    assert client.info(name)["waiting"] == 0


def test_a_waiting_sample_is_woken_by_a_priority(client, table, items, eventually):
    ids = client.add(table, items(1, 2), [0.0, 0.0])
    waiter = Background(lambda: client.sample(table, 2))
    eventually(lambda: client.info(table)["waiting"] == 1, "the sample waits")
    client.update_priorities(table, ids[1:], [1.0])
    assert waiter.outcome().data["k"].tolist() == [2, 2]


def test_a_waiting_sample_is_woken_by_configuration(client, make_table, items, eventually):
    name = make_table(rate_limiter=rs.MinSize(50))
    client.add(name, items(1))
    waiter = Background(lambda: client.sample(name, 1))
    eventually(lambda: client.info(name)["waiting"] == 1, "the sample waits")
    client.configure(name, rate_limiter=rs.MinSize(1))
    assert len(waiter.outcome()) == 1


def test_waiting_clients_of_a_dropped_table_are_told(client, make_table, items, eventually):
    samples = make_table(rate_limiter=rs.MinSize(50))
    queue = make_table(sampler=rs.Fifo(), rate_limiter=rs.Queue(1), max_times_sampled=1)
    client.add(queue, items(1))
    waiters = [Background(lambda: client.sample(samples, 1)), Background(lambda: client.add(queue, items(2)))]
    eventually(lambda: client.info(samples)["waiting"] + client.info(queue)["waiting"] == 2, "both wait")
    client.drop_table(samples)
    client.drop_table(queue)
    assert [type(waiter.outcome()) for waiter in waiters] == [rs.TableNotFound] * 2


def test_a_queue_passes_every_item_once_in_order(client, make_table, items):
    name = make_table(sampler=rs.Fifo(), rate_limiter=rs.Queue(4), max_times_sampled=1)
    seen: list[int] = []

    def consume() -> None:
        while len(seen) < 300:
            seen.extend(client.sample(name, 3, timeout=60).data["k"].tolist())

    consumer = Background(consume)
    for start in range(0, 300, 2):
        client.add(name, items(start, start + 1), timeout=60)
    assert consumer.outcome() is None
    assert seen == list(range(300))


def test_a_ratio_holds_samples_per_insert(client, make_table, items):
    name = make_table(1000, rate_limiter=rs.SampleToInsertRatio(4.0, 20, 80.0))

    def learn() -> None:
        for _ in range(30):
            client.sample(name, 16, timeout=60)

    learner = Background(learn)
    added = 0
    while learner.is_alive():
        with contextlib.suppress(rs.Timeout):
            client.add(name, items(1, 2, 3, 4), timeout=0.05)
            added += 4
        info = client.info(name)
        if info["added"] > 20:
            assert abs(info["added"] * 4.0 - info["sampled"] - 4.0 * 20) <= 80.0
    assert learner.outcome() is None
    assert added >= 480 / 4 - 20 - 20


def test_waiting_samples_are_served_in_order(client, make_table, items, eventually):
    name = make_table(sampler=rs.Fifo(), max_times_sampled=1, rate_limiter=rs.Queue(10))
    waiters = []
    for number in range(3):
        waiters.append(Background(lambda: client.sample(name, 2).data["k"].tolist()))
        eventually(lambda number=number: client.info(name)["waiting_sample"] == number + 1, "the sample waits")
    client.add(name, items(*range(6)))
    assert [waiter.outcome() for waiter in waiters] == [[0, 1], [2, 3], [4, 5]]


def test_a_timeout_that_is_no_time_is_refused(client, table):
    for timeout in (-1, float("nan")):
        with pytest.raises(ValueError, match="timeout"):
            client.sample(table, 1, timeout=timeout)


def test_a_wait_for_ever_may_be_written_as_infinity(client, make_table, items, eventually):
    name = make_table()
    for number, timeout in enumerate((float("inf"), 1e10)):
        assert len(client.add(name, items(number), timeout=timeout)) == 1
        assert client.info(name)["added"] == number + 1
        assert len(client.sample(name, 1, timeout=timeout)) == 1
    client.reset(name)
    waiter = Background(lambda: len(client.sample(name, 1, timeout=float("inf"))))
    eventually(lambda: client.info(name)["waiting_sample"] == 1, "the sample waits")
    client.add(name, items(1))
    assert waiter.outcome() == 1


def test_others_are_served_while_one_waits(client, table, items, eventually):
    waiter = Background(lambda: client.sample(table, 1))
    eventually(lambda: client.info(table)["waiting"] == 1, "the sample waits")
    other = {f"n{i}": np.zeros(1) for i in range(3)}
    assert client.publish_weights("beside", other) >= 1
    client.add(table, items(1))
    waiter.outcome()


def test_a_client_that_is_closed_ends_its_waits(server, table, eventually):
    with rs.Client(server.url) as watcher:
        waiting = rs.Client(server.url)
        waiter = Background(lambda: waiting.sample(table, 1))
        eventually(lambda: watcher.info(table)["waiting"] == 1, "the sample waits")
        waiting.close()
        assert isinstance(waiter.outcome(), rs.ConnectionLost)
        eventually(lambda: watcher.info(table)["waiting"] == 0, "the server forgets who left")


def test_a_sampler_that_is_closed_cancels_its_wait(server, table, client, eventually):
    batches = client.sampler(table, 1)
    eventually(lambda: client.info(table)["waiting_sample"] >= 1, "the sampler waits")
    batches.close()
    assert list(batches) == []
    eventually(lambda: client.info(table)["waiting"] == 0, "the server forgets it")


def test_an_add_that_waits_is_cancelled_by_closing_its_client_and_stores_nothing(server, client, items, eventually):
    client.create_table(rs.Table.queue("cancelled", {"x": rs.Column("float32", (2,)), "k": rs.Column("int64")}, 1))
    client.add("cancelled", items(1))
    waiting = rs.Client(server.url)
    waiter = Background(lambda: waiting.add("cancelled", items(2)))
    eventually(lambda: client.info("cancelled")["waiting_add"] == 1, "the add waits")
    waiting.close()
    assert isinstance(waiter.outcome(), rs.ConnectionLost)
    eventually(lambda: client.info("cancelled")["waiting"] == 0, "the server forgets it")
    info = client.info("cancelled")
    assert (info["added"], info["reserved_slots"]) == (1, 0)
    client.drop_table("cancelled")


@pytest.mark.parametrize("what", ["sample", "add"])
def test_client_unblock_ends_a_wait_with_its_reason(client, make_table, items, eventually, what):
    name = make_table(sampler=rs.Fifo(), rate_limiter=rs.Queue(1), max_times_sampled=1)
    if what == "add":
        client.add(name, items(1))
    call = {"sample": lambda: client.sample(name, 1), "add": lambda: client.add(name, items(2))}[what]
    waiter = Background(call)
    eventually(lambda: client.info(name)["waiting"] == 1, "it waits")
    blocked = [entry["id"] for entry in client.redis.client_list() if f"replay.{what}" in entry["cmd"].lower()]
    assert any(client.redis.client_unblock(int(number)) for number in blocked)
    error = waiter.outcome()
    assert isinstance(error, rs.Timeout)
    assert ("the queue holds" if what == "add" else "too few items") in error.reason


def test_everything_changes_on_a_live_table(client, items):
    signature = {"k": rs.Column("int64"), "policy_version": rs.Column("int64")}
    client.create_table(rs.Table("live", 8, signature, sampler=rs.Fifo()))
    client.add("live", {"k": np.arange(4), "policy_version": np.arange(4)}, [2.0, 9.0, 0.5, 9.0])
    for sampler, order in [(rs.Lifo(), [3, 2, 1, 0]), (rs.MaxHeap(), [1, 3, 0, 2]), (rs.MinHeap(), [2, 0, 1, 3])]:
        client.configure("live", sampler=sampler)
        assert client.sample("live", 4).data["k"].tolist() == order
        assert client.table("live").sampler == sampler
    client.configure("live", remover=rs.MaxHeap(), max_bytes=3 * 16)
    assert sorted(client.sample("live", 3).data["k"].tolist()) == [0, 2, 3]
    client.configure("live", max_staleness=1)
    assert sorted(client.sample("live", 2).data["k"].tolist()) == [2, 3]
    assert client.sample("live", 1, policy_version=4).data["k"].tolist() == [3]
    info = client.info("live")
    assert (info["stale_items"], info["policy_version"], info["max_staleness"]) == (2, 4, 1)
    assert (info["sampler"], info["remover"]) == ("min_heap", "max_heap")
    client.configure("live", max_staleness=-1, sampler=rs.Prioritized(0.5), remover=rs.Prioritized(2.0))
    table = client.table("live")
    assert (table.max_staleness, table.sampler, table.remover) == (None, rs.Prioritized(0.5), rs.Prioritized(2.0))
    client.drop_table("live")
