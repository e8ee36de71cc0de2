"""``replay-server bench peers``: the same loads on this server and on Redis (MSET to push, MGET to sample), in turns.

Redis is the store that a replay memory is often kept in. What differs, and has to be said with every figure: MGET draws
uniformly, has no priorities and computes no weights. Both servers run all the time; within a round the loads alternate,
and the ratio is taken within a round.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import redis

from replay_server.bench import result
from replay_server.bench.items import KINDS, ItemKind
from replay_server.bench.load import Target, resident_bytes, run
from replay_server.bench.server import add_arguments, fill, line, loads, start, url_of
from replay_server.bench.worker import pack


@contextmanager
def redis_server(folder: str, socket: str) -> Iterator[Target]:
    """A redis-server without persistence; raises FileNotFoundError, saying what to install, where there is none."""
    program = shutil.which("redis-server")
    if program is None:
        raise FileNotFoundError("redis-server is not installed: apt-get install redis-server")
    path = f"{folder}/redis.sock"
    port = 0 if socket == "unix" else _free_port()
    process = subprocess.Popen(
        [
            program,
            "--port",
            str(port),
            "--bind",
            "127.0.0.1",
            "--unixsocket",
            path,
            "--save",
            "",
            "--appendonly",
            "no",
            "--dir",
            folder,
        ],
        stdout=subprocess.DEVNULL,
    )
    try:
        client = redis.Redis(unix_socket_path=path)
        for _ in range(100):
            try:
                client.ping()
                break
            except redis.ConnectionError:
                time.sleep(0.05)
        else:
            raise RuntimeError("redis-server did not start within 5 s")
        client.close()
        yield Target("redis", f"unix://{path}" if socket == "unix" else f"redis://127.0.0.1:{port}", process.pid)
    finally:
        process.terminate()
        process.wait(timeout=10)


def _free_port() -> int:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


def fill_redis(url: str, kind: ItemKind, capacity: int) -> None:
    """The same number of items, each one value."""
    client = redis.Redis.from_url(url)
    client.flushall()
    packed = pack(kind.random(100, np.random.default_rng(1)))
    for begin in range(0, capacity, 100):
        client.mset({f"item:{begin + i}": packed[i].tobytes() for i in range(min(100, capacity - begin))})
    client.close()


def main(argv: list[str], folder: str, say: Callable[[str], None] = print) -> int:
    parser = argparse.ArgumentParser("replay-server bench peers", description=__doc__)
    add_arguments(parser)
    options = parser.parse_args(argv)
    host = result.machine()
    rounds: list[dict[str, float]] = []
    for number in range(options.rounds):
        measured: dict[str, float] = {}
        for kind in [KINDS[name] for name in options.item or ["atari", "hopper"]]:
            capacity = options.capacity or kind.capacity
            with start(kind, capacity, options.socket, folder) as server, redis_server(folder, options.socket) as peer:
                url = url_of(server, options.socket, folder, kind)
                own = Target("replay", url, server.pid)
                before = {target.system: resident_bytes(target.pid) for target in (own, peer)}
                fill(url, kind, capacity)
                fill_redis(peer.url, kind, capacity)
                for target in (own, peer):
                    grown = resident_bytes(target.pid) - before[target.system]
                    measured[f"{kind.name}.{target.system}.memory_bytes_per_item"] = round(grown / capacity, 1)
                for load in loads(options, kind):
                    # Who goes first changes with the round.
                    for target in (own, peer) if number % 2 == 0 else (peer, own):
                        values = run(target, kind, load, seed=1 + 100 * number)
                        measured |= {f"{kind.name}.{target.system}.{load.name}.{what}": v for what, v in values.items()}
                        progress = f"round {number + 1}/{options.rounds} {kind.name:12} {target.system:7}"
                        say(f"{progress} {load.name:16} {line(values)}")
        rounds.append(measured)
    ratios = {
        name.replace(".replay.", ".", 1) + " replay / redis": (name, name.replace(".replay.", ".redis.", 1))
        for name in rounds[0]
        if ".replay." in name
    }
    command = " ".join(["replay-server bench peers", *argv])
    content = result.document("peers", command, host, vars(options), rounds, ratios)
    for name, ratio in content["ratio"].items():
        say(f"{name:70} {ratio:8.2f}")
    if options.json:
        result.write(options.json, content)
    if options.plot:
        from replay_server.bench.plot import plot_loads

        plot_loads(content, options.plot)
    return 0
