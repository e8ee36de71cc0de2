"""What an actor or a learner talks through sets up anew what a server has forgotten, whenever the server was away."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

import replay_server as rs
from replay_server.rl.connection import PersistentClient

TABLE = rs.Table("t", 10, {"k": rs.Column("int64")})


def set_up(client: rs.Client) -> None:
    if "t" not in client.tables():
        client.create_table(TABLE)


def test_a_server_that_came_back_while_nothing_was_asked_is_set_up_first(tmp_path: Path) -> None:
    path = tmp_path / "s"
    first = rs.Server(unix=path, port=-1)
    with contextlib.closing(PersistentClient(first.url, on_connect=set_up)) as server:
        assert server.call(lambda client: client.tables()) == ["t"]
        first.stop()
        with rs.Server(unix=path, port=-1):
            assert server.call(lambda client: client.tables()) == ["t"]
            assert server.reconnections == 1
            assert server.call(lambda client: client.add("t", {"k": [1]})).size == 1
            assert server.reconnections == 1


def test_a_server_that_stays_away_is_given_up(tmp_path: Path) -> None:
    first = rs.Server(unix=tmp_path / "s", port=-1)
    with contextlib.closing(PersistentClient(first.url, patience_s=0.2)) as server:
        first.stop()
        with pytest.raises(rs.ConnectionLost, match=r"no server for 0\.2 s"):
            server.call(lambda client: client.tables())
