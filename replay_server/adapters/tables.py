"""The table that an adapter's buffer is, in this process or on a server, and what a saved buffer has of it."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from replay_server import Buffer, Client, Table
from replay_server.cluster_address import parse_address


def made_table(url: str | None, name: str, capacity: int, signature: dict[str, Any], sampler: Any) -> Any:
    """A `replay_server.Buffer`, or the handle of a server's table, which is created where it is not there.

    In this process the draws follow from NumPy's seed, as those of the libraries' own buffers do. A server's table has
    a seed of its own.
    """
    seed = int(np.random.randint(1, 2**31)) if url is None else 0
    made = Table(name, capacity, signature, sampler=sampler, seed=seed)
    if url is None:
        return Buffer(made)
    client = Client(url)
    client.create_table(made)
    return client[name]


def refuse_password(url: str | None) -> None:
    """ValueError for a URL with a password: a saved buffer holds the URL."""
    if url is not None and parse_address(url).has_password_in_url:
        raise ValueError(
            "expected a url without a password, which would be saved with the buffer: set the variable "
            "REPLAY_SERVER_PASSWORD"
        )


def snapshot_of(table: Buffer) -> bytes:
    """The bytes of a snapshot (docs/snapshot.md) of a table in this process."""
    with tempfile.TemporaryDirectory() as folder:
        return Path(table.checkpoint(str(Path(folder) / "buffer"))).read_bytes()


def restore(table: Buffer, snapshot: bytes) -> None:
    """Puts the table of `snapshot_of` in the place of this one. Raises as `replay_server.Buffer.restore` does."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "buffer.snapshot"
        file.write_bytes(snapshot)
        table.restore(str(file))
