"""A cable with faults: carries frames between two interfaces and loses, doubles and reorders some of them.

``python relay.py INTERFACE INTERFACE [--loss P] [--duplicate P] [--reorder P] [--seed N]``, on a lab's relay host. It
says "ready" when it carries, and at SIGTERM what it did, as JSON. For stacks whose port has no faults to inject: this
system may have no netem.
"""

from __future__ import annotations

import argparse
import json
import random
import select
import signal
import socket
import sys
import time

ETH_P_ALL = 0x0003
SO_RCVBUFFORCE, SO_SNDBUFFORCE = 33, 32
SOL_PACKET, PACKET_IGNORE_OUTGOING = 263, 23
BUFFER_BYTES = 32 << 20
HELD_SECONDS = 0.002
"""How long a frame waits for another that shall overtake it."""


class Direction:
    """From one interface to the other."""

    def __init__(self, source: socket.socket, sink: socket.socket, faults: argparse.Namespace, seed: int) -> None:
        self.source, self.sink, self.faults = source, sink, faults
        self.random = random.Random(seed)
        self.held: bytes | None = None
        self.held_until = 0.0
        self.counts = dict.fromkeys(("carried", "lost", "duplicated", "reordered"), 0)

    def carry(self) -> None:
        """Takes what has come and passes it on."""
        for _ in range(256):
            try:
                frame = self.source.recv(65536)
            except BlockingIOError:
                return
            self._pass(frame)

    def _pass(self, frame: bytes) -> None:
        faults, counts = self.faults, self.counts
        if self.random.random() < faults.loss:
            counts["lost"] += 1
            return
        if self.held is None and self.random.random() < faults.reorder:
            self.held, self.held_until = frame, time.monotonic() + HELD_SECONDS
            counts["reordered"] += 1
            return
        self._send(frame)
        if self.random.random() < faults.duplicate:
            counts["duplicated"] += 1
            self._send(frame)
        self.let_go()

    def let_go(self) -> None:
        """Sends a frame that was held back."""
        if self.held is not None:
            frame, self.held = self.held, None
            self._send(frame)

    def _send(self, frame: bytes) -> None:
        self.counts["carried"] += 1
        while True:
            try:
                self.sink.send(frame)
                return
            except BlockingIOError:
                select.select([], [self.sink], [], 0.01)


def interface(name: str) -> socket.socket:
    made = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
    for option in (SO_RCVBUFFORCE, SO_SNDBUFFORCE):
        try:
            made.setsockopt(socket.SOL_SOCKET, option, BUFFER_BYTES)
        except PermissionError:  # in a user namespace
            made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER_BYTES)
    made.setsockopt(SOL_PACKET, PACKET_IGNORE_OUTGOING, 1)
    made.bind((name, ETH_P_ALL))
    made.setblocking(False)
    return made


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("interfaces", nargs=2)
    for fault in ("loss", "duplicate", "reorder"):
        parser.add_argument(f"--{fault}", type=float, default=0.0)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    left, right = (interface(name) for name in arguments.interfaces)
    directions = {
        left: Direction(left, right, arguments, arguments.seed),
        right: Direction(right, left, arguments, arguments.seed + 1),
    }
    stopped: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, frame: stopped.append(number))
    print("ready", flush=True)
    while not stopped:
        waits = any(direction.held is not None for direction in directions.values())
        ready, _, _ = select.select([left, right], [], [], HELD_SECONDS / 2 if waits else 0.1)
        for end in ready:
            directions[end].carry()
        now = time.monotonic()
        for direction in directions.values():
            if direction.held is not None and now >= direction.held_until:
                direction.let_go()
    print(json.dumps([direction.counts for direction in directions.values()]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
