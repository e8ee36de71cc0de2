"""``replay-server bench …``: which benchmark, and a folder for its sockets."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import tempfile
from collections.abc import Callable, Sequence

from replay_server.arguments import did_you_mean

BENCHMARKS = {
    "server": "push and sample rate and latency for 1, 2, 4, 8 pushers and a learner; memory an item",
    "peers": "the same work by this project and by its peers (cpprb, Reverb, TorchRL, ...), in turns; --setup "
    "installs them",
    "fairness": "how soon a PING is answered while a learner streams, over TCP, a unix socket and shared memory",
    "shards": "what sampling and adding over 4 and 8 shards cost the servers, beside one server",
    "link": "a learner on another host over a line of 1 Gb/s, with coded blocks and without",
    "lab": "a server on a virtual device in user space, and a client's command on the other side of it",
    "latency": "the transports side by side: kernel sockets, DPDK, F-Stack, and Redis, over the same veth",
    "store": "the store beside Redis by redis-benchmark's tests: rate, processor time, latency, memory a key",
    "disk": "batches of a table on disk that is larger than memory, beside the disk's own rate; PING meanwhile",
    "snapshot": "what saving 5 GB costs those who are served meanwhile",
    "durability": "what the append-only file costs, beside none and Redis; replicas: copy and lag; restarts",
    "samplers": "batches a second of a learner alone: NumPy and torch, TCP and shared memory, several in flight",
    "transferqueue": "TransferQueue's puts and gets with its own storage and with this server's",
    "dashboard": "what being looked at once a second costs a server with 64 actors",
    "gradients": "a flush of gradients summed up in the server, beside one that pulls them all",
    "learning": "what PPO, IMPACT, IMPALA and Ape-X learn, beside other libraries on the same jobs",
    "learner": "updates a second of the learner's loop beside plain torch; where a job's processor time goes",
    "functions": "what a platform adds to the work of its functions: cold and warm, and in a round of actors",
    "invocations": "what 1,000 functions under way at a time cost who waits for them: one event loop, or threads",
    "pictures": "pictures and bill of one run of replay-server train, from its directory",
    "curves": "the evaluations of several runs of replay-server apex in one picture",
    "figures": "the figures of in-network experience sampling (PDP 2022), kernel against bypass",
    "minions": "a learned scheduler of actors against chance and fixed numbers, and its figures 5 and 9",
    "scalers": "how many actors a round gets, by scaler: reward, time and cost of whole jobs; figures of the papers",
    "curvature": "what a boosting score costs, with and without its short cuts",
    "replayed": "rounds with up to 1,000 functions at a time, simulated from a real job, and beside real ones",
    "queue": "the runs that the papers' claims still lack, one after the other, at the lowest priority",
    "stellaris": "asynchronous learners against synchronous ones, on a simulated clock; what each part is worth",
}
"""Name → what it does."""
PAPERS = {
    "figures": "in_network",
    "minions": "minions",
    "scalers": "nitro",
    "curvature": "nitro.curvature",
    "replayed": "nitro.replayed",
    "queue": "queue",
    "stellaris": "stellaris",
}
"""Those that reproduce papers → their module in `replay_server.bench.papers`, which an installed wheel leaves out."""


class LeftOut(ImportError):
    """The benchmark is not in this installation; the message says where it is."""


def usage() -> str:
    """What there is, for people."""
    width = max(map(len, BENCHMARKS)) + 1

    def lines(of_papers: bool) -> list[str]:
        return [f"  {name:{width}}{about}" for name, about in BENCHMARKS.items() if (name in PAPERS) == of_papers]

    return "\n".join(
        [
            f"usage: replay-server bench {'|'.join(BENCHMARKS)} [options]",
            "",
            *lines(of_papers=False),
            "",
            "Tables and figures of papers, from a checkout alone:",
            *lines(of_papers=True),
            "",
            "  --json FILE  --plot FILE.png; `replay-server bench server --help` lists the rest",
        ]
    )


def find(name: str) -> Callable[[list[str], str], int]:
    """The `main` of a benchmark: of the module, or the package, of its name, imported here. Raises LeftOut."""
    if name not in PAPERS:
        return importlib.import_module(f"replay_server.bench.{name}").main
    if importlib.util.find_spec("replay_server.bench.papers") is None:
        folder = "bench/papers/" + PAPERS[name].partition(".")[0]
        raise LeftOut(
            f"it reproduces a paper, and its code, {folder}, is not part of an installed package. In a checkout "
            f"of the project run `make setup`, then `.venv/bin/replay-server bench {name}`"
        )
    return importlib.import_module(f"replay_server.bench.papers.{PAPERS[name]}").main


def main(argv: Sequence[str]) -> int:
    """Runs a benchmark. Returns the exit status: 0, 1 on failure, 2 for wrong usage."""
    if not argv or argv[0] in ("-h", "--help"):
        print(usage())
        return 0 if argv else 2
    name, rest = argv[0], list(argv[1:])
    if name not in BENCHMARKS:
        print(
            f"unknown benchmark {name!r}{did_you_mean(name, BENCHMARKS)}\n\n{usage()}",
            file=sys.stderr,
        )
        return 2
    with tempfile.TemporaryDirectory(prefix="replay-bench-") as folder:
        try:
            return find(name)(rest, folder)
        except (LeftOut, RuntimeError, FileNotFoundError) as error:
            print(f"replay-server bench {name}: {error}", file=sys.stderr)
            return 1
