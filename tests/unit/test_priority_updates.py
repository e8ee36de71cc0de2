"""Priorities that a device computes: when they are sent, whichever library's arrays they are."""

from __future__ import annotations

import numpy as np
import pytest

import replay_server as rs
from replay_server.priority_updates import MOST_UNDER_WAY, DeviceUpdates


class Computed:
    """An array of a device that the test says is done."""

    def __init__(self, value: float) -> None:
        self.value, self.is_done, self.waited = value, False, False

    def wait(self) -> np.ndarray:
        self.waited = True
        return np.array([self.value])


class Updates(DeviceUpdates):
    def _landing(self, priorities):
        return priorities if isinstance(priorities, Computed) else None


@pytest.fixture
def buffer():
    made = rs.Buffer(rs.Table("t", 100, {"k": rs.Column("int64")}))
    made.add({"k": np.arange(10)})
    return made


def priority_of(buffer, item) -> float:
    batch = buffer.sample(10, replace=False, details=True)
    return float(batch.priorities[batch.ids == item][0])


def test_priorities_are_sent_by_a_later_call_once_they_are_computed(buffer):
    item = buffer.sample(1).ids
    first, second = Computed(2.0), Computed(3.0)
    with Updates(buffer) as updates:
        updates.update_priorities(item, first)
        assert priority_of(buffer, item) == 1.0
        first.is_done = True
        updates.update_priorities(item, second)
        assert priority_of(buffer, item) == 2.0
        assert not second.waited
    assert priority_of(buffer, item) == 3.0


def test_at_most_a_few_wait_and_keep_their_order(buffer):
    item = buffer.sample(1).ids
    computed = [Computed(2.0 + number) for number in range(MOST_UNDER_WAY + 2)]
    updates = Updates(buffer)
    for each in computed:
        updates.update_priorities(item, each)
    assert [each.waited for each in computed] == [True] * 2 + [False] * MOST_UNDER_WAY
    assert priority_of(buffer, item) == 3.0
    updates.update_priorities(item, np.array([0.5]))  # on the host: after all of those before it
    assert all(each.waited for each in computed)
    assert priority_of(buffer, item) == 0.5
    updates.close()


def test_what_is_still_on_its_way_is_not_sent_where_the_block_fails(buffer):
    item = buffer.sample(1).ids

    def work() -> None:
        with Updates(buffer) as updates:
            updates.update_priorities(item, Computed(2.0))
            raise KeyError

    with pytest.raises(KeyError):
        work()
    assert priority_of(buffer, item) == 1.0
