"""Backup, restore and upgrade as docs/operations.md has them."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import replay_server as rs

TABLE = rs.Table("t", capacity=100, signature={"x": rs.Column("float32", (2,))})


def fill(client: rs.Client, count: int) -> None:
    client.add("t", {"x": np.arange(2 * count, dtype=np.float32).reshape(count, 2)})
    client.redis.set("count", count)


def test_a_backup_is_copied_while_the_server_serves_and_restored_elsewhere(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "backup").mkdir()
    with rs.Server([TABLE], directory=tmp_path / "data") as server, rs.Client(server.url) as client:
        fill(client, 10)
        client.checkpoint("nightly.snapshot")
        shutil.copy(tmp_path / "data" / "nightly.snapshot", tmp_path / "backup")
        fill(client, 5)
    with rs.Server(restore=tmp_path / "backup" / "nightly.snapshot") as server, rs.Client(server.url) as client:
        assert client.info("t")["size"] == 10
        assert client.redis.get("count") == b"10"


def test_a_name_of_ones_own_is_replaced_and_never_removed(tmp_path: Path) -> None:
    settings = {"snapshot-keep": 1}
    with rs.Server([TABLE], directory=tmp_path, config=settings) as server, rs.Client(server.url) as client:
        for _ in range(2):
            fill(client, 1)
            client.checkpoint("nightly.snapshot")
        for _ in range(3):
            client.checkpoint()
    names = sorted(path.name for path in tmp_path.glob("*.snapshot"))
    assert names[0] == "nightly.snapshot"
    assert len(names) == 2, "one of those that the server named"
    with rs.Server(directory=tmp_path, restore="nightly.snapshot") as server, rs.Client(server.url) as client:
        assert client.info("t")["size"] == 2


def test_with_rules_a_stop_writes_what_the_next_start_takes(tmp_path: Path) -> None:
    """Steps 3 and 4 of an upgrade lose nothing that was added before the stop."""
    command = [sys.executable, "-m", "replay_server", "serve", "--port", "0", "--dir", str(tmp_path), "--restore"]
    (tmp_path / "replay.toml").write_text('[config]\nsave = "3600 1"\n')
    sizes = []
    for _ in range(2):
        with subprocess.Popen(
            [*command, "--config", str(tmp_path / "replay.toml")], stdout=subprocess.PIPE, text=True
        ) as process:
            assert process.stdout is not None
            with rs.Client(process.stdout.readline().split()[1].removeprefix("url=")) as client:
                client.create_table(TABLE)
                sizes.append(client.info("t")["size"])
                fill(client, 10)
            process.terminate()
            assert process.wait(60) == 0
    assert sizes == [0, 10]


def test_a_damaged_file_is_refused_with_its_place(tmp_path: Path) -> None:
    with rs.Server([TABLE], directory=tmp_path) as server, rs.Client(server.url) as client:
        fill(client, 10)
        path = Path(client.checkpoint("nightly.snapshot"))
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(rs.ServerError, match=r"exit status 4.*nightly\.snapshot.*byte \d+"):
        rs.Server(directory=tmp_path, restore="nightly.snapshot")
