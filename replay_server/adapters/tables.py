"""The table that an adapter's buffer is: in this process, or on a server."""

from __future__ import annotations

from typing import Any

import numpy as np

from replay_server import Buffer, Client, Table


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
