"""Samples the frames of a network port into a replay table, such as those of a switch's mirror port.

    sudo $(which python) examples/mirror_port.py --device net_af_packet0,iface=eth1 --seconds 60

DPDK polls the port in this thread, many frames a call. The bytes of a frame are read only if it is drawn: the others go
back to the pool unseen. With `--server` the table is on a replay server, where a learner may sample it meanwhile.

The device is DPDK's: `net_af_packet0,iface=NAME` for an interface of the kernel's, the PCI address of a NIC that is
bound for DPDK (docs/nic-host.md), or `net_pcap0,rx_pcap=FILE` for frames that were recorded. Needs an installation with
DPDK (docs/dpdk-bindings.md), and nothing else.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import time

import numpy as np

import replay_server as rs
from replay_server import dpdk
from replay_server.client import TableHandle

TABLE = "frames"


def make_table(capacity: int, frame_bytes: int) -> rs.Table:
    """One item a frame: when it came, how long it was, and its first bytes, with zeros behind shorter ones."""
    signature = {
        "time": rs.Column("float64"),
        "length": rs.Column("uint32"),
        "bytes": rs.Column("uint8", (frame_bytes,)),
    }
    return rs.Table(TABLE, capacity=capacity, signature=signature, sampler=rs.Uniform(), remover=rs.Fifo())


def draw(burst: dpdk.Burst, chosen: np.ndarray, frame_bytes: int) -> dict[str, np.ndarray]:
    """The columns of some frames of a burst, by their places."""
    heads = np.zeros((len(chosen), frame_bytes), np.uint8)
    for head, place in zip(heads, chosen, strict=True):
        frame = burst[place][:frame_bytes]  # the frame itself, not a copy
        head[: len(frame)] = frame
    return {"time": np.full(len(chosen), time.time()), "length": burst.lengths[chosen], "bytes": heads}


def sample(port: dpdk.Port, frames: rs.Buffer | TableHandle, options: argparse.Namespace) -> tuple[int, int]:
    """Frames that came, and frames that were drawn, until the time or the number of frames is reached."""
    random = np.random.default_rng(options.seed)
    came = drawn = 0
    end = time.monotonic() + options.seconds
    while time.monotonic() < end and (options.frames == 0 or came < options.frames):
        with port.rx_burst(limit=256) as burst:
            came += len(burst)
            chosen = np.flatnonzero(random.random(len(burst)) < options.share)
            if len(chosen) == 0:
                continue
            columns = draw(burst, chosen, options.frame_bytes)
        frames.add(columns)
        drawn += len(chosen)
    return came, drawn


def main() -> None:
    parser = argparse.ArgumentParser(description="Samples the frames of a network port into a replay table.")
    parser.add_argument("--device", required=True, help="DPDK's: net_af_packet0,iface=eth1, or a PCI address")
    parser.add_argument("--server", help="URL of the replay server (default: a table in this process)")
    parser.add_argument("--share", type=float, default=0.1, help="of the frames, that is drawn")
    parser.add_argument("--frame-bytes", type=int, default=128, help="that are kept of each, from its beginning")
    parser.add_argument("--capacity", type=int, default=100_000, help="frames in the table; the oldest leave")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--frames", type=int, default=0, help="end after so many, 0: not before the time")
    parser.add_argument("--processor", type=int, help="that this thread polls on (default: any)")
    parser.add_argument("--seed", type=int, default=1, help="of the draws")
    options = parser.parse_args()

    table = make_table(options.capacity, options.frame_bytes)
    if options.server:
        client = rs.Client(options.server)
        client.create_table(table)
        frames: rs.Buffer | TableHandle = client[TABLE]
    else:
        frames = rs.Buffer(table)

    is_virtual = options.device.startswith("net_")
    memory_and_devices = ["--no-huge", "-m", "64", "--no-pci"] if is_virtual else ["-a", options.device]
    with dpdk.Eal("--file-prefix", f"mirror-{os.getpid()}", *memory_and_devices) as eal:
        port = eal.attach(options.device) if is_virtual else eal.port(options.device)
        port.start(promiscuous=True)
        with contextlib.nullcontext() if options.processor is None else eal.pinned(options.processor):
            came, drawn = sample(port, frames, options)
        missed = port.statistics().missed_in
    print(f"{came} frames came, {missed} were missed, {drawn} were drawn")
    if drawn:
        batch = frames.sample(32)
        print(f"32 of them have {batch.data['length'].mean():.0f} bytes on average")


if __name__ == "__main__":
    main()
