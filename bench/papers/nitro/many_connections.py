"""How long the replay server is busy with one fetch of weights, and one addition of fragments, under many connections.

Every connection is a real one to a real server, held by one client in C; each asks for the newest weights, or adds one
actor's fragments, as fast as it is answered. Client and server share this machine, so that the times are an upper bound
on what a server with a machine of its own needs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np

import replay_server as rs
from replay_server.bench.client import Role, request, run
from replay_server.codec import bytes_of
from replay_server.learner.algorithms import Settings
from replay_server.rl.fragments import fragment_signature
from replay_server.rl.policy_networks import make_policy_network
from replay_server.rl.policy_spec import policy_spec
from replay_server.rl.weights import module_arrays

KEPT = 64
"""Fragments that the table holds: how many it keeps makes no difference to how long taking them in takes."""
LEAST_REQUESTS = 1000
"""Of one measurement: fewer would measure how connections are made."""
SENT_BYTES = 256 * 2**20
"""What one measurement sends or fetches at most, beyond one request of each connection."""


def measure(
    settings: Settings,
    environments: int,
    connections: Sequence[int],
    folder: str | Path,
    rounds: int = 20,
    say: Callable[[str], None] = lambda line: None,
) -> tuple[dict[int, float], dict[int, float]]:
    """Seconds of one fetch and of one addition, each by the number of connections.

    Args:
        settings: whose policy's weights and whose fragments are sent.
        environments: of one actor: so many fragments are added at a time.
        rounds: requests of each connection, fewer where they are large.

    Raises RuntimeError where the server answered with an error.
    """
    spec = policy_spec(settings)
    signature = fragment_signature(settings, spec)
    table = rs.Table("fragments", capacity=max(KEPT, environments), signature=signature, remover=rs.Fifo())
    columns = {name: np.zeros((environments, *column.shape), column.dtype) for name, column in signature.items()}
    blobs = [part for name, column in columns.items() for part in (name, bytes_of(column))]
    requests = {
        "fetch": (request(("WEIGHTS.GET", "policy")), 0),
        "ingest": (request(("REPLAY.ADD", "fragments", environments, b"", "COLUMNS", len(columns), *blobs)), 0),
    }
    arrays = module_arrays(make_policy_network(settings, spec))
    weights_bytes = sum(array.nbytes for array in arrays.values())
    requests["fetch"] = (requests["fetch"][0], weights_bytes)
    requests["ingest"] = (requests["ingest"][0], len(requests["ingest"][0]))
    found: dict[str, dict[int, float]] = {name: {} for name in requests}
    with rs.Server([table], config={"maxclients": max(connections) + 16}) as server, rs.Client(server.url) as client:
        client.publish_weights("policy", arrays)
        address = urlsplit(server.url).netloc
        for count in connections:
            for name, (content, size_bytes) in requests.items():
                wanted = max(rounds, LEAST_REQUESTS // count)
                times = max(1, min(wanted, SENT_BYTES // max(1, size_bytes * count)))
                role = Role("actors", {name: content}, connections=count, rounds=times)
                measured = run(address, [role], folder)
                found[name][count] = 1.0 / measured.rounds_per_s("actors")
                latency_ms = measured.latency_us("actors", name, "p50") / 1000
                say(
                    f"{count:5} connections: {name} of {size_bytes:,} bytes {found[name][count] * 1e6:9.1f} µs of the "
                    f"server, {latency_ms:8.2f} ms for one of all (median)"
                )
    return found["fetch"], found["ingest"]
