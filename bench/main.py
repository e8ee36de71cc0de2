"""``replay-server bench …``: which benchmark, and a folder for its sockets."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence

USAGE = """usage: replay-server bench server|peers|fairness|link|lab|snapshot|curves [options]

  server   push and sample rate and latency for 1, 2, 4, 8 pushers and a learner; memory an item
  peers    the same work by this project and by its peers (cpprb, Reverb, TorchRL, ...), in turns; --setup installs them
  fairness how soon a PING is answered while a learner streams, over TCP, a unix socket and shared memory
  link     a learner on another host over a line of 1 Gb/s, with coded blocks and without (as root)
  lab      a server on a virtual device in user space, and a client's command on the other side of it
  snapshot what saving 5 GB costs those who are served meanwhile
  curves   the evaluations of several runs of replay-server apex in one picture

  --json FILE  --plot FILE.png; `replay-server bench server --help` lists the rest"""


def main(argv: Sequence[str]) -> int:
    """Runs a benchmark. Returns the exit status: 0, 1 on failure, 2 for wrong usage."""
    if not argv or argv[0] in ("-h", "--help"):
        print(USAGE)
        return 0 if argv else 2
    name, rest = argv[0], list(argv[1:])
    if name not in ("server", "peers", "fairness", "link", "lab", "snapshot", "curves"):
        print(
            f"unknown benchmark {name!r}: expected server, peers, fairness, link, lab, snapshot or curves\n\n{USAGE}",
            file=sys.stderr,
        )
        return 2
    if name == "server":
        from replay_server.bench.server import main as run
    elif name == "fairness":
        from replay_server.bench.fairness import main as run
    elif name == "snapshot":
        from replay_server.bench.snapshot import main as run
    elif name == "link":
        from replay_server.bench.link import main as run
    elif name == "lab":
        from replay_server.bench.lab import main as run
    elif name == "curves":
        from replay_server.bench.curves import main as curves

        try:
            return curves(rest)
        except FileNotFoundError as error:
            print(f"replay-server bench curves: {error}", file=sys.stderr)
            return 1
    else:
        from replay_server.bench.peers import main as run
    with tempfile.TemporaryDirectory(prefix="replay-bench-") as folder:
        try:
            return run(rest, folder)
        except (RuntimeError, FileNotFoundError) as error:
            print(f"replay-server bench {name}: {error}", file=sys.stderr)
            return 1
