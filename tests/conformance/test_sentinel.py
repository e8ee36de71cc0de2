"""Redis's unmodified Sentinel watches a primary and its replica of ours, and promotes the replica in its place."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path

import redis
from links import eventually, sentinel_of, settled, start


def test_sentinel_promotes_the_replica_of_a_primary_that_died(tmp_path: Path) -> None:
    with start("ours", tmp_path / "a") as first, start("ours", tmp_path / "b") as second:
        second.follow(first.port)
        eventually(second.is_up, "a link")
        first.client.set("k", "kept")
        settled(first, second)
        with sentinel_of(first.port, tmp_path) as sentinel:
            known = eventually(lambda: sentinel.discover_slaves("mine"), "the discovery of the replica")
            assert known == [("127.0.0.1", second.port)]
            assert sentinel.discover_master("mine") == ("127.0.0.1", first.port)
            os.kill(first.client.info("server")["process_id"], signal.SIGKILL)
            with contextlib.suppress(redis.ConnectionError):
                first.client.ping()
            eventually(lambda: sentinel.discover_master("mine") == ("127.0.0.1", second.port), "a failover")
            eventually(lambda: second.client.role()[0] == b"master", "the promotion")
            assert second.client.get("k") == b"kept"
            assert second.client.set("k", "written")
