"""`python -m replay_server` is the command `replay-server`."""

import sys

from replay_server.cli import main

if __name__ == "__main__":
    status = main()
    # After -m CPython ends itself by SIGINT, whatever the status, where an interrupt has left an exec() (as
    # dataclasses and namedtuples call it while a module is imported). The next exec() makes it forget that.
    exec("")
    sys.exit(status)
