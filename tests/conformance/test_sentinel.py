"""Redis's unmodified Sentinel watches a primary and its replica of ours, and promotes the replica in its place."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from links import eventually, fail_over, sentinel_of, settled, start


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
            process = first.client.info("server")["process_id"]
            fail_over(sentinel, lambda: os.kill(process, signal.SIGKILL), second.port)
            eventually(lambda: second.client.role()[0] == b"master", "the promotion")
            assert second.client.get("k") == b"kept"
            assert second.client.set("k", "written")
