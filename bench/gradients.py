"""`replay-server bench gradients`: a flush of gradients summed up in the server, beside one that pulls them all.

In each flush as many gradients as there are learners wait in the server. Both sides get the same ones, in turns, who
goes first changing from flush to flush, and both end with the weighted mean in hand as float32:

sum    asks for names and versions once the staleness rule holds (`GRAD.TAKE … UNTIL … HEADERS`), chooses weights, and
       takes the sum (`GRAD.TAKE … SUM`): one vector leaves the server.
pull   takes the vectors once the rule holds (`GRAD.TAKE … UNTIL`), chooses the same weights, and sums up here, in
       float64 as the server does, block by block.

After it the gradients leave with a publication of weights (`GRAD.PUBLISH`). Bytes are those that left the server by its
own count (`total_net_output_bytes`), all of a side's commands with their answers' heads; times are of the client, and
processor times those of the server's process.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import replay_server as rs
from replay_server.arguments import Parser
from replay_server.bench import result
from replay_server.bench.load import cpu_seconds

KEY, POLICY = "bench-gradients", "bench-policy"
DTYPES = ("float32", "bfloat16")
_BLOCK = 65_536


def weights_of(versions: np.ndarray, version: int) -> np.ndarray:
    """Stellaris's: a mean whose weights fall with staleness, 1 / max(1, s)^(1/3), divided by their sum."""
    factors = np.maximum(version - versions, 1) ** (-1 / 3)
    return factors / factors.sum()


def weighted_sum(vectors: list[np.ndarray], weights: np.ndarray) -> np.ndarray:
    """Σ w_k x_k, float32 (N,), summed in float64 over blocks that stay in the cache."""
    out = np.empty_like(vectors[0])
    for begin in range(0, len(out), _BLOCK):
        block = slice(begin, begin + _BLOCK)
        total = weights[0] * vectors[0][block].astype(np.float64)
        for weight, vector in zip(weights[1:], vectors[1:], strict=True):
            total += weight * vector[block]
        out[block] = total
    return out


def flush_by_sum(client: rs.Client, learners: int, version: int) -> np.ndarray:
    """The side that has the server sum up."""
    headers = client.gradient_headers(KEY, learners, until=(version, 1.0), timeout=60)
    taken = client.take_gradients(KEY, learners, weights=weights_of(headers.versions, version), timeout=60)
    assert taken.sum is not None
    return taken.sum


def flush_by_pull(client: rs.Client, learners: int, version: int) -> np.ndarray:
    """The side that pulls every vector."""
    taken = client.take_gradients(KEY, learners, until=(version, 1.0), timeout=60)
    return weighted_sum(taken.vectors, weights_of(taken.versions, version))


SIDES = {"sum": flush_by_sum, "pull": flush_by_pull}


class Flushes:
    """Flushes of one dtype and length, and what each side took."""

    def __init__(self, server: rs.Server, client: rs.Client, learners: int, elements: int, dtype: str) -> None:
        self._server, self._client, self._learners, self._dtype = server, client, learners, dtype
        generator = np.random.default_rng(1)
        self._vectors = [generator.standard_normal(elements).astype(np.float32) for _ in range(learners)]
        self._version = 10
        self.seconds: dict[str, list[float]] = {side: [] for side in SIDES}
        self.cpu_s = dict.fromkeys(SIDES, 0.0)
        self.bytes = dict.fromkeys(SIDES, 0)

    def _sent(self) -> int:
        """Bytes that have left the server, this answer apart."""
        return self._client.redis.info("stats")["total_net_output_bytes"]

    def run(self, sides: tuple[str, ...]) -> None:
        """One flush, by each of the sides in turn.

        Raises:
            RuntimeError: they do not agree on the sum.
        """
        client, version = self._client, self._version
        names = [f"{learner}:{version}:{self._dtype}" for learner in range(self._learners)]
        for learner, vector in enumerate(self._vectors):
            client.push_gradient(KEY, version - learner % 3, names[learner], vector, self._dtype)
        sums = []
        for side in sides:
            before = self._sent()
            own = self._sent() - before
            cpu, begin = cpu_seconds(self._server.pid), time.perf_counter()
            sums.append(SIDES[side](client, self._learners, version))
            self.seconds[side].append(time.perf_counter() - begin)
            self.cpu_s[side] += cpu_seconds(self._server.pid) - cpu
            self.bytes[side] += self._sent() - before - 2 * own
        most = 2**-8 if self._dtype == "bfloat16" else 0.0  # the server rounds the sum to the gradients' dtype
        if not np.allclose(sums[0], sums[1], rtol=most, atol=0):
            raise RuntimeError("the server's sum is not that of the vectors it sent")
        self._version = client.publish_applied(KEY, names, version + 1, {POLICY: {"step": np.array([version])}})

    def measured(self, name: str) -> dict[str, float]:
        """What a round of them comes to."""
        found: dict[str, float] = {}
        for side, seconds in self.seconds.items():
            count = len(seconds)
            found[f"{name}.{side}.bytes_per_flush"] = self.bytes[side] / count
            found[f"{name}.{side}.total_mb"] = self.bytes[side] / 1e6
            found[f"{name}.{side}.ms_p50"] = float(np.percentile(seconds, 50)) * 1e3
            found[f"{name}.{side}.ms_p99"] = float(np.percentile(seconds, 99)) * 1e3
            found[f"{name}.{side}.server_cpu_ms_per_flush"] = self.cpu_s[side] / count * 1e3
        return found


def one_round(server: rs.Server, options: argparse.Namespace) -> dict[str, float]:
    """Every length and dtype, its flushes one after the other."""
    measured: dict[str, float] = {}
    with rs.Client(server.url) as client:
        for elements in options.elements:
            for dtype in options.dtypes:
                client.delete_gradients(KEY)
                client.redis.execute_command("WEIGHTS.DEL", POLICY)
                flushes = Flushes(server, client, options.learners, elements, dtype)
                for flush in range(options.flushes):
                    flushes.run(("sum", "pull") if flush % 2 else ("pull", "sum"))
                measured |= flushes.measured(f"{elements}.{dtype}")
    return {name: round(value, 4) for name, value in measured.items()}


def ratios(options: argparse.Namespace) -> dict[str, tuple[str, str]]:
    """Pulling over summing up, of each length and dtype."""
    made: dict[str, tuple[str, str]] = {}
    for elements in options.elements:
        for dtype in options.dtypes:
            for what in ("bytes_per_flush", "ms_p50", "server_cpu_ms_per_flush"):
                name = f"{elements}.{dtype}"
                made[f"{name} pull / sum {what}"] = (f"{name}.pull.{what}", f"{name}.sum.{what}")
    return made


def main(argv: list[str], folder: str = "", say: Callable[[str], None] = print) -> int:
    """Runs it. Returns the exit status."""
    parser = Parser("replay-server bench gradients", description=__doc__)
    parser.add_argument("--learners", type=int, default=4, help="gradients in a flush (4)")
    parser.add_argument(
        "--elements",
        type=int,
        nargs="+",
        default=[150_000, 1_700_000],
        help="lengths of a gradient (150,000: two towers of 256 on MuJoCo; 1,700,000: the convolutions of Atari)",
    )
    parser.add_argument("--dtypes", nargs="+", choices=DTYPES, default=list(DTYPES), help="as gradients travel")
    parser.add_argument("--flushes", type=int, default=100, help="of each length and dtype in a round (100)")
    parser.add_argument("--rounds", type=int, default=3, help="rounds of everything (3)")
    parser.add_argument("--json", metavar="FILE", help="write the results there")
    options = parser.parse_args(argv)
    host = result.machine()
    rounds = []
    with rs.Server([]) as server:
        for number in range(options.rounds):
            rounds.append(one_round(server, options))
            say(f"round {number + 1}/{options.rounds} done")
    command = " ".join(["replay-server bench gradients", *argv])
    content: dict[str, Any] = result.document("gradients", command, host, vars(options), rounds, ratios(options))
    result.tell(content, say, width=52)
    if options.json:
        result.write(options.json, content)
    return 0
