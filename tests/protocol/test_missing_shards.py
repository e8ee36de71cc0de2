"""A shard that is lost, or does not answer: the client leaves it out, waits for it or raises, as its caller chose."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time

import numpy as np
import pytest
from shards import start, url_of

import replay_server as rs


@pytest.fixture
def losing():
    """Three shards of 100 items each, the last of which can be stopped."""
    with contextlib.ExitStack() as stack:
        servers = start(stack, 3)
        with rs.Client(url_of(*servers)) as client:
            client.create_table(rs.Table("t", 300, {"k": rs.Column("int64")}, sampler=rs.Uniform()))
            ids = client.add("t", {"k": np.arange(300)})
        yield servers, ids


def test_a_lost_shard_is_left_out_and_the_batch_says_so(losing):
    servers, ids = losing
    with rs.Client(url_of(*servers), missing="leave_out") as client:
        assert client.sample("t", 64).missing == ()
        servers[2].stop()
        for _ in range(5):
            batch = client.sample("t", 64)
            assert batch.missing == (2,)
            assert set(batch.ids >> np.uint64(56)) == {0, 1}
            np.testing.assert_allclose(batch.probabilities, 1 / 200)
        assert client.update_priorities("t", ids, np.ones(300)) == (200, 100)
        info = client.info("t")
        assert (info["size"], info["missing"]) == (200, [2])


def test_a_shard_that_does_not_answer_is_left_out_and_taken_in_again(losing, eventually):
    servers, _ = losing
    with rs.Client(url_of(*servers), missing="leave_out", missing_after=0.2) as client:
        assert client.sample("t", 64).missing == ()
        os.kill(servers[1].pid, signal.SIGSTOP)
        try:
            for _ in range(3):
                batch = client.sample("t", 64)
                assert batch.missing == (1,)
                assert set(batch.ids >> np.uint64(56)) == {0, 2}
        finally:
            os.kill(servers[1].pid, signal.SIGCONT)
        eventually(lambda: client.sample("t", 64).missing == (), "the shard is asked again")


def test_a_lost_shard_is_an_error_where_the_caller_chose_that(losing):
    servers, _ = losing
    with rs.Client(url_of(*servers), missing="error") as client:
        client.sample("t", 64)
        servers[2].stop()
        began = time.monotonic()
        with pytest.raises(rs.ConnectionLost):
            client.sample("t", 64)
        assert time.monotonic() - began < 30


def test_a_lost_shard_is_waited_for_and_its_return_noticed(losing):
    servers, _ = losing
    port = int(servers[2].url.rpartition(":")[2])
    with rs.Client(url_of(*servers), reconnect_timeout=60) as client:
        client.sample("t", 64)
        servers[2].stop()
        got: list[rs.Batch] = []
        waiter = threading.Thread(target=lambda: got.append(client.sample("t", 64)))
        waiter.start()
        table = rs.Table("t", 100, {"k": rs.Column("int64")}, sampler=rs.Uniform())
        with rs.Server([table], port=port, config={"shard": 2}):
            waiter.join(60)
        assert len(got) == 1
        assert got[0].missing == ()


def test_choices_that_are_none_are_refused():
    with pytest.raises(ValueError, match="missing must be one of wait, leave_out, error"):
        rs.Client("redis+cluster://a:1", missing="forget")
