"""A process of the benchmark's own: the receiver of a plain copy, or the sender of PINGs."""

import sys

from replay_server.bench.durability import main

raise SystemExit(main(sys.argv[1:]))
