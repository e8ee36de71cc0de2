"""`replay-server dashboard`: live pages of servers and jobs in the browser."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import socket
import sys
import threading
import time
from pathlib import Path

from replay_server.arguments import Parser
from replay_server.dashboard.watch import Watch, password_from_environment

EXIT_FAILED, EXIT_IN_USE, EXIT_INTERRUPTED = 1, 3, 130
LAST_LOOK_S = 3.0
DEFAULT_URL = "redis://127.0.0.1:6379"
LOOPBACK = ("127.0.0.1", "::1", "localhost")


def make_parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = Parser(
        prog="replay-server dashboard",
        description="Live pages of servers and jobs in the browser. Every server is asked once a second over one "
        "connection, whatever the number of tabs. Without --url and --logdir: the server at "
        f"{DEFAULT_URL} and the runs in runs/.",
        epilog="A password that is in no URL comes from the variable REPLAY_SERVER_PASSWORD. Whoever reaches the page "
        "sees all of it: let it be reached (--allow-remote) only behind something that asks who they are. "
        "Exit status: 0 stopped, 1 failure, 2 usage, 3 address in use, 130 interrupted.",
    )
    parser.add_argument(
        "--url",
        action="append",
        default=[],
        metavar="URL",
        help="a server, redis://host:port or unix:///path, or a cluster, redis+cluster://host:port; again for more",
    )
    parser.add_argument(
        "--logdir", action="append", default=[], type=Path, metavar="DIR",
        help="a run directory, or a folder of them, live or old; again for more",
    )  # fmt: skip
    parser.add_argument("--compare", type=Path, metavar="DIR", help="an earlier run directory, drawn beside the others")
    parser.add_argument(
        "--host", default="127.0.0.1", help="address to listen on (default: 127.0.0.1); others need --allow-remote"
    )
    parser.add_argument("--port", type=int, default=8080, help="port; 0 = any free one (default: 8080)")
    parser.add_argument("--allow-remote", action="store_true", help="show it to other hosts: it asks for no password")
    parser.add_argument("--lifeline", action="store_true", help=argparse.SUPPRESS)
    return parser


def main(argv: list[str] | None = None) -> int:
    """Serves the pages until it is stopped; its exit status."""
    parser = make_parser()
    options = parser.parse_args(argv)
    if not 0 <= options.port <= 65535:
        parser.error(f"--port: expected 0 to 65535, got {options.port}")
    if options.host not in LOOPBACK and not options.allow_remote:
        parser.error(
            f"--host {options.host}: other hosts could read these pages, which ask for no password. Use "
            "ssh -L 8080:127.0.0.1:8080 instead, or add --allow-remote if a proxy asks for the password"
        )
    if not options.url and not options.logdir:
        options.url, options.logdir = [DEFAULT_URL], [Path("runs")]
    for folder in (*options.logdir, options.compare):
        if folder is not None and not folder.is_dir() and folder != Path("runs"):
            parser.error(f"no such folder: {folder}")
    try:
        watch = Watch(options.url, options.logdir, options.compare, password_from_environment())
    except ValueError as error:
        parser.error(str(error))
    try:
        listener = listen(options.host, options.port)
    except OSError as error:
        print(f"replay-server: dashboard: cannot listen on {options.host}:{options.port}: {error.strerror}. "
              "--port 0 takes any free port", file=sys.stderr)  # fmt: skip
        return EXIT_IN_USE
    from replay_server.dashboard.web import serve

    if options.lifeline:
        with contextlib.suppress(OSError):
            os.nice(3)  # The job comes first.
        threading.Thread(target=_end_with_parent, name="lifeline", daemon=True).start()
    try:
        asyncio.run(serve(watch, listener, options.host))
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    finally:
        watch.close()
    return 0


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens. OSError where the address is in use or not this host's."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(64)
    except BaseException:
        listener.close()
        raise
    return listener


def _end_with_parent() -> None:
    """Ends this process when whoever started it is gone: standard input is at its end then."""
    while os.read(0, 4096):
        pass
    from replay_server.dashboard.web import is_page_open

    if is_page_open():
        time.sleep(LAST_LOOK_S)  # It comes to show how the job ended.
    os._exit(0)
