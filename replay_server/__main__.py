"""`python -m replay_server` is the command `replay-server`."""

import sys

from replay_server.cli import main

if __name__ == "__main__":
    sys.exit(main())
