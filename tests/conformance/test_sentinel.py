"""Debian's unmodified Sentinel watches a primary and its replica of ours, and promotes the replica in its place."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest
import redis
import redis.sentinel
from links import eventually, free_port, settled, start

CONFIG = """port {port}
dir {folder}
sentinel monitor mine 127.0.0.1 {primary} 1
sentinel down-after-milliseconds mine 1000
sentinel failover-timeout mine 10000
"""


def test_sentinel_promotes_the_replica_of_a_primary_that_died(tmp_path: Path) -> None:
    program = shutil.which("redis-sentinel")
    if program is None:
        pytest.skip("needs redis-sentinel: apt-get install redis-sentinel")
    with start("ours", tmp_path / "a") as first, start("ours", tmp_path / "b") as second:
        second.follow(first.port)
        eventually(second.is_up, "a link")
        first.client.set("k", "kept")
        settled(first, second)
        port = free_port()
        file = tmp_path / "sentinel.conf"
        file.write_text(CONFIG.format(port=port, folder=tmp_path, primary=first.port))
        with open(tmp_path / "sentinel.log", "wb") as log:
            watcher = subprocess.Popen([program, str(file)], stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        sentinel = redis.sentinel.Sentinel([("127.0.0.1", port)])
        try:
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
        finally:
            watcher.terminate()
            watcher.wait(timeout=60)
