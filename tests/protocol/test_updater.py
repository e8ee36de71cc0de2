"""Priorities that are sent while nobody waits for the reply: what is done, when errors come, and what it leaves."""

from __future__ import annotations

import os
import random
import signal
import time

import numpy as np
import pytest
from forked import Child

import replay_server as rs

# An interrupt within Python's own library leaves a socket to the destructor that closes it, or is swallowed by one.
pytestmark = [
    pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning"),
    pytest.mark.filterwarnings("ignore:Exception ignored:pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore:This process:DeprecationWarning"),
]
ITEMS = 8


class Interrupted(BaseException):
    """What the signal's handler raises, as Python's own raises KeyboardInterrupt."""


@pytest.fixture
def table(client, make_table) -> str:
    """Prioritized, α = 1, so that probabilities are shares of the raw priorities."""
    return make_table(100, {"k": rs.Column("int64")}, sampler=rs.Prioritized(priority_exponent=1.0))


@pytest.fixture
def ids(client, table) -> np.ndarray:
    return client.add(table, {"k": np.arange(ITEMS)})


def priorities(client: rs.Client, table: str, ids: np.ndarray) -> list[float]:
    """Raw priorities, as the probabilities tell them."""
    return list(np.round(client.get(table, ids).probabilities * client.info(table)["total_priority"], 6))


def test_updates_are_done_in_order_and_counted(client, table, ids):
    with client.updater(table) as updates:
        for number in range(1, 51):
            updates.update_priorities(ids, np.full(ITEMS, float(number)))
        assert updates.applied == 49 * ITEMS  # the reply to the last one was not read yet
        client.delete(table, ids[:3])
        updates.update_priorities(ids, np.full(ITEMS, 51.0))
        assert updates.flush() == (51 * ITEMS - 3, 3)
    assert priorities(client, table, ids[3:]) == [51.0] * (ITEMS - 3)


def test_an_update_is_sent_while_the_server_answers_nothing(client, table, ids, server):
    with client[table].updater() as updates:
        updates.update_priorities(ids, np.full(ITEMS, 2.0))
        updates.flush()
        os.kill(server.pid, signal.SIGSTOP)
        try:
            updates.update_priorities(ids, np.full(ITEMS, 3.0))  # would wait for `socket_timeout`, and raise
            assert updates.applied == ITEMS
        finally:
            os.kill(server.pid, signal.SIGCONT)
        assert updates.flush() == (2 * ITEMS, 0)
    assert priorities(client, table, ids) == [3.0] * ITEMS


def test_what_an_update_raises_is_raised_by_the_next_call_which_sends_nothing(client, table, ids):
    updates = client.updater(table)
    client.drop_table(table)
    updates.update_priorities(ids, np.ones(ITEMS))
    with pytest.raises(rs.TableNotFound, match=table):
        updates.update_priorities(ids, np.ones(ITEMS))
    assert updates.flush() == (0, 0)
    updates.update_priorities(ids, np.ones(ITEMS))
    with pytest.raises(rs.TableNotFound, match=table):
        updates.close()
    updates.close()


def test_a_wrong_priority_is_refused_at_once(client, table, ids):
    with client.updater(table) as updates:
        updates.update_priorities(ids, np.full(ITEMS, 2.0))
        with pytest.raises(rs.PriorityError, match="-1"):
            updates.update_priorities(ids, np.full(ITEMS, -1.0))
        assert updates.flush() == (ITEMS, 0)
    assert priorities(client, table, ids) == [2.0] * ITEMS


def test_an_update_whose_connection_was_lost_is_sent_again(client, table, ids, server):
    with rs.Client(server.url) as other, client.updater(table) as updates:
        for number in range(1, 6):
            updates.update_priorities(ids, np.full(ITEMS, float(number)))
            own = other.redis.client_id()
            for connection in other.redis.client_list():
                if int(connection["id"]) != own:
                    other.redis.client_kill_filter(_id=connection["id"])
        assert updates.flush() == (5 * ITEMS, 0)
    assert priorities(client, table, ids) == [5.0] * ITEMS


def cut_connections(url: str) -> None:
    with rs.Client(url) as other:
        own = other.redis.client_id()
        for connection in other.redis.client_list():
            if int(connection["id"]) != own:
                other.redis.client_kill_filter(_id=connection["id"])


def test_what_is_sent_again_is_what_was_given(table, ids, server):
    with rs.Client(server.url) as client, client.updater(table) as updates:
        given, of = np.full(ITEMS, 2.0), ids.copy()
        updates.update_priorities(of, given)
        cut_connections(server.url)
        given[:], of[:] = 9.0, of[0]
        updates.flush()
        assert priorities(client, table, ids) == [2.0] * ITEMS


def test_a_loss_is_found_late_and_the_update_is_sent_again_all_the_same(table, ids, server):
    with rs.Client(server.url, reconnect_timeout=0.2) as client, client.updater(table) as updates:
        updates.update_priorities(ids, np.full(ITEMS, 2.0))
        cut_connections(server.url)
        time.sleep(0.5)
        assert updates.flush() == (ITEMS, 0)
        assert priorities(client, table, ids) == [2.0] * ITEMS


def test_updates_go_on_after_interrupts_at_any_moment(client, table, ids):
    def strike(number: int, frame: object) -> None:
        raise Interrupted

    before = signal.signal(signal.SIGALRM, strike)
    moments, interrupted = random.Random(7), 0
    updates = client.updater(table)
    try:
        for number in range(1, 401):
            try:
                try:
                    signal.setitimer(signal.ITIMER_REAL, 10 ** moments.uniform(-5, -3))
                    updates.update_priorities(ids, np.full(ITEMS, float(number)))
                finally:
                    signal.setitimer(signal.ITIMER_REAL, 0)
            except Interrupted:
                interrupted += 1
    finally:
        signal.signal(signal.SIGALRM, before)
    assert interrupted > 10
    updates.update_priorities(ids, np.full(ITEMS, 7.0))
    applied, stale = updates.flush()
    assert applied % ITEMS == 0
    assert 0 < applied <= 401 * ITEMS
    assert stale == 0
    assert priorities(client, table, ids) == [7.0] * ITEMS


def test_a_connection_goes_back_to_the_client_where_an_updater_is_closed_or_dropped(server, table, ids, eventually):
    with rs.Client(server.url) as watcher, rs.Client(server.url) as client:
        client.info(table)
        before = len(watcher.redis.client_list())
        for _ in range(20):
            with client.updater(table) as updates:
                updates.update_priorities(ids, np.ones(ITEMS))
            client.updater(table).update_priorities(ids, np.ones(ITEMS))
        eventually(lambda: len(watcher.redis.client_list()) <= before, "the connections of dropped updaters are closed")


def test_a_forked_child_is_refused_and_takes_no_reply_of_its_parent(client, table, ids):
    with client.updater(table) as updates:
        updates.update_priorities(ids, np.full(ITEMS, 2.0))

        def in_child() -> list[str]:
            said = []
            for call in (updates.flush, lambda: updates.update_priorities(ids, np.ones(ITEMS))):
                try:
                    call()
                except rs.ReplayError as error:
                    said.append(str(error))
            return said

        assert ["forked" in text for text in Child(in_child).result()] == [True, True]
        updates.update_priorities(ids, np.full(ITEMS, 3.0))
        assert updates.flush() == (2 * ITEMS, 0)
