"""A learner on another host is sent steps and places without asking for them, and sees what the actors' host wrote."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.root

PASSWORD = "a password that nobody prints"
ENVIRONMENT = {"REPLAY_SERVER_PASSWORD": PASSWORD}

COMMON = """
import numpy as np, sys
import replay_server as rs
from pathlib import Path
STEPS = 400
def frame(number):
    return np.full((84, 84), number % 251, np.uint8)
client = rs.Client(sys.argv[1])
"""

WRITE = """
signature = {"frame": rs.Column("uint8", (84, 84), step_only=True), "number": rs.Column("int64"),
             "obs": rs.Window("frame", length=4), "next_obs": rs.Window("frame", length=4, offset=2)}
client.create_table(rs.Table("t", 1000, signature, sampler=rs.Uniform(), compression=sys.argv[2]))
with client.writer("t") as writer:
    for t in range(STEPS):
        writer.append({"frame": frame(t)}, final=t % 50 == 49)
        writer.create_item(columns={"number": np.int64(t)})
print("written", client.info("t")["size"])
"""

READ = """
def received():
    rows = dict(row.split(":") for row in Path("/proc/net/dev").read_text().splitlines() if ":" in row)
    return int(next(value for name, value in rows.items() if name.strip() == "eth0").split()[0])
client.table("t")
taken = {}
for coded in (None, False):
    before = received()
    batch = client.sample("t", 256, coded=coded)
    taken[coded] = received() - before
    for row, number in enumerate(batch.data["number"].tolist()):
        first, last = number // 50 * 50, number // 50 * 50 + 49
        for name, end in (("obs", number), ("next_obs", min(number + 2, last))):
            stack = np.stack([frame(max(end - k, first)) for k in (3, 2, 1, 0)])
            assert (batch.data[name][row] == stack).all(), (coded, name, number)
print("coded", taken[None], "plain", taken[False])
assert taken[None] < taken[False] / 3
print("read")
"""


@pytest.mark.parametrize("compression", ["none", "lz4"])
def test_a_learner_on_another_host_sees_what_was_written(network: Any, tmp_path: Path, compression: str) -> None:
    url = f"redis://:{PASSWORD}@{network.addresses['server']}:6401"
    serve = [sys.executable, "-m", "replay_server", "serve", "--host", network.addresses["server"], "--port", "6401"]
    network.start("server", serve, tmp_path / "server.log", ENVIRONMENT)
    write = [sys.executable, "-c", COMMON + WRITE, url, compression]
    assert network.start("actors0", write, tmp_path / "write.log").wait(timeout=60) == 0, tmp_path / "write.log"
    assert "written 400" in (tmp_path / "write.log").read_text()
    reader = network.start("learner", [sys.executable, "-c", COMMON + READ, url], tmp_path / "read.log")
    assert reader.wait(timeout=60) == 0, (tmp_path / "read.log").read_text()
    assert "read" in (tmp_path / "read.log").read_text()
