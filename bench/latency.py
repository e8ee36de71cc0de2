"""`replay-server bench latency`: the transports side by side, each over a veth pair of its own, in turns.

The server has one processor, its clients another. Within a round every measurement visits all sides one after the
other, another one first in each round; ratios are taken within a round. Latencies are a client's, from the first byte
sent to the last byte of the reply; rates are what that one client reaches without a pause.

With ``--delay-us``, ``--rate-mbit`` or ``--faults`` there is a line between server and clients (`bench/line.py`). The
kernel's TCP then has CUBIC and windows of up to 32 MB, whatever the machine's own choice.
"""

from __future__ import annotations

import contextlib
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from replay_server.arguments import Parser
from replay_server.bench import messages, result
from replay_server.bench.client import Role
from replay_server.bench.server import fill
from replay_server.bench.sides import BASELINE, SIDES, Host, Side, Turn, start

Round = dict[str, float]


@dataclass(frozen=True)
class Measurement:
    """One load, named in the results.

    Attributes:
        request: of a side, given whether it is Redis.
        size_bytes: of what it is about, for the rate in MB/s; 0: not of interest.
        rate_per_s: requests begun each second; 0: each after the reply to the last.
        faults: of the line, as the setting dpdk-faults.
    """

    name: str
    about: str
    request: Callable[[bool], bytes]
    size_bytes: int = 0
    connections: int = 1
    rate_per_s: float = 0
    faults: str = ""


def measurements(capacity: int) -> list[Measurement]:
    """Everything that is measured, with tables of so many items."""
    atari, weights = messages.ATARI, 4 * messages.PARAMETERS
    pushed_frames = len(messages.push_frames(50))
    return [
        Measurement("echo", "64 bytes there and back", lambda _: messages.echo(64)),
        # Far enough apart that a server which sleeps really does: systems look for work a while before they sleep.
        Measurement("echo_1k", "the same 1,000 times a second", lambda _: messages.echo(64), rate_per_s=1000),
        Measurement("echo_50", "the same on 50 connections", lambda _: messages.echo(64), connections=50),
        Measurement("upload", "SET of 1 MB", lambda _: messages.put("blob", 10**6), 10**6),
        Measurement("download", "GET of 1 MB", lambda _: messages.fetch("blob"), 10**6),
        Measurement(
            "push_50",
            "push of 50 whole Atari transitions",
            lambda redis: messages.push(atari, 50, redis),
            50 * atari.item_bytes,
        ),
        Measurement(
            "push_50_frames",
            "push of 50 Atari transitions, frames once",
            lambda redis: messages.push_frames(50, redis),
            pushed_frames,
        ),
        Measurement(
            "sample_32",
            "sample of 32",
            lambda redis: messages.sample(32, capacity, redis),
            32 * atari.item_bytes,
        ),
        Measurement(
            "sample_512",
            "sample of 512",
            lambda redis: messages.sample(512, capacity, redis),
            512 * atari.item_bytes,
        ),
        Measurement("publish_weights", "weights published, 13.17 MB", messages.publish, weights),
        Measurement("fetch_weights", "weights fetched", messages.pull_weights, weights),
    ]


@dataclass(frozen=True)
class Aim:
    """A ratio to the sleeping kernel that a side is to reach."""

    measurement: str
    what: str
    side: str
    bound: float
    at_most: bool = True


# Of the sides in user space. The echo's suppose a system that sleeps at once when it has nothing to do.
AIMS = (
    *(
        Aim("echo", what, side, bound)
        for side in ("dpdk_af_xdp", "fstack_af_xdp")
        for what, bound in (("latency_us_p50", 0.30), ("latency_us_p99", 0.40))
    ),
    Aim("echo", "latency_us_p50", "dpdk_af_packet", 0.42),
    Aim("upload", "requests_per_s", "dpdk_af_xdp", 1.1, at_most=False),
    Aim("upload", "requests_per_s", "fstack_af_xdp", 1.0, at_most=False),
    Aim("download", "requests_per_s", "dpdk_af_xdp", 0.9, at_most=False),
    Aim("download", "requests_per_s", "fstack_af_xdp", 0.9, at_most=False),
)
USUAL = [name for name in SIDES if name != "fstack_af_packet"]
BASELINES = (BASELINE, "kernel_busy_poll", "kernel_offloads", "kernel_loopback", "redis")
COMPARED = ("latency_us_p50", "latency_us_p99", "requests_per_s")


# ---- measuring -------------------------------------------------------------------------------------------------------


def prepare(host: Host, capacity: int) -> None:
    """Fills the tables, or Redis's keys, and puts what is fetched."""
    atari = messages.ATARI
    with host.awake():
        host.redis.set("blob", messages.random_bytes(10**6))
        if host.client is None:
            for first in range(0, capacity, 100):
                block = {f"item:{first + i}": messages.random_bytes(atari.item_bytes) for i in range(100)}
                host.redis.mset(block)
            host.redis.set(messages.WEIGHTS, messages.weights_blob())
            return
        fill(host.client.url, atari, capacity)
        host.redis.execute_command("WEIGHTS.PUBLISH", messages.WEIGHTS, "*", messages.weights_blob())


def values(measurement: Measurement, turn: Turn) -> Round:
    """What one turn says."""
    made = turn.measured.request("client", "request")
    rate = turn.measured.rounds_per_s("client")
    found = {
        "latency_us_p50": made["latency_us_p50"],
        "latency_us_p99": made["latency_us_p99"],
        "requests_per_s": rate,
        "retransmits": float(turn.measured.content["retransmits"]),
        "server_core_us": turn.server_core_us_per_round,
    }
    if measurement.size_bytes:
        found["mb_per_s"] = rate * measurement.size_bytes / 1e6
    if turn.server_cpu_us_per_round is not None:
        found["server_cpu_us"] = turn.server_cpu_us_per_round
        found["server_cycles"] = turn.server_cpu_us_per_round * processor_mhz()
    return {name: round(value, 3) for name, value in found.items()}


def processor_mhz() -> float:
    """The clock that the processor's time stamps count; 0 where the system does not tell it."""
    rows = Path("/proc/cpuinfo").read_text().splitlines()
    return next((float(row.rpartition(":")[2]) for row in rows if row.startswith("cpu MHz")), 0.0)


def one_round(
    hosts: Sequence[Host], measured: Sequence[Measurement], seconds: float, number: int, line: Mapping[str, Any]
) -> Round:
    """Every measurement on every side, over a line of these properties (none: directly)."""
    # TCP has to find its window first, which takes round trips.
    warm_up_s = min(0.1, seconds) + 40 * line.get("delay_us", 0.0) / 1e6
    found: Round = {}
    turned = [hosts[(number + i) % len(hosts)] for i in range(len(hosts))]
    for measurement in measured:
        for host in turned:
            request = measurement.request(host.side.is_redis)
            roles = [Role("client", {"request": request}, measurement.connections, rate_per_s=measurement.rate_per_s)]
            # What waits between requests is to be the server: the client looks for replies without sleeping then.
            spin = measurement.rate_per_s > 0
            with contextlib.ExitStack() as stack:
                if line:
                    stack.enter_context(host.line(**line, faults=f"seed={number + 1},{measurement.faults}"))
                before = host.tcp_counts() if line else {}
                taken = values(measurement, host.turn(roles, seconds, warm_up_s=warm_up_s, spin=spin))
                after = host.tcp_counts() if line else {}
            taken |= {f"server_{name}": float(count - before[name]) for name, count in after.items()}
            for what, value in taken.items():
                found[f"{measurement.name}.{host.side.name}.{what}"] = value
    return found


def ratios(names: Sequence[str], sides: Sequence[Side]) -> dict[str, tuple[str, str]]:
    """Of each side in user space over each of the kernel's, and of these over the sleeping one."""
    found = {}
    for name in names:
        measurement, side, what = name.rsplit(".", 2)
        if what not in COMPARED:
            continue
        for baseline in BASELINES if SIDES[side].bypasses else (BASELINE,):
            if side != baseline and any(other.name == baseline for other in sides):
                found[f"{measurement} {what} {side} / {baseline}"] = (name, f"{measurement}.{baseline}.{what}")
    return found


# ---- telling ---------------------------------------------------------------------------------------------------------


def table(content: Mapping[str, Any], measured: Sequence[Measurement], sides: Sequence[Side]) -> list[str]:
    """Lines of Markdown: a row for each measurement, a column for each side; in brackets the ratio to the baseline."""
    lines = []
    for what, title, unit in (
        ("latency_us_p50", "latency, median", "µs"),
        ("latency_us_p99", "latency, p99", "µs"),
        ("requests_per_s", "requests a second", ""),
        ("mb_per_s", "MB a second", ""),
        ("server_cpu_us", "server's processor time a request", "µs"),
        ("server_cycles", "the same in cycles of the processor's clock", ""),
    ):
        lines += ["", f"| {title}{', ' + unit if unit else ''} | " + " | ".join(side.name for side in sides) + " |"]
        lines.append("|---" * (len(sides) + 1) + "|")
        for measurement in measured:
            cells = [_cell(content, measurement.name, side.name, what) for side in sides]
            if any(cells):
                lines.append(f"| {measurement.about} | " + " | ".join(cells) + " |")
    return lines


def _cell(content: Mapping[str, Any], measurement: str, side: str, what: str) -> str:
    median = content["median"].get(f"{measurement}.{side}.{what}")
    if median is None:
        return ""
    ratio = content["ratio"].get(f"{measurement} {what} {side} / {BASELINE}")
    return f"{median:,.4g}" + (f" ({ratio:.2f})" if ratio is not None else "")


def findings(rounds: Sequence[Mapping[str, float]]) -> list[dict[str, Any]]:
    """Each aim with the median ratio over the rounds, its range, and whether it is met; of sides that were measured."""
    found = []
    for aim in AIMS:
        of, over = f"{aim.measurement}.{aim.side}.{aim.what}", f"{aim.measurement}.{BASELINE}.{aim.what}"
        taken = [measured[of] / measured[over] for measured in rounds if measured.get(over) and of in measured]
        if not taken:
            continue
        median = statistics.median(taken)
        met = median <= aim.bound if aim.at_most else median >= aim.bound
        found.append(
            {
                "what": f"{aim.measurement} {aim.what} {aim.side} / {BASELINE}",
                "aim": f"{'≤' if aim.at_most else '≥'} {aim.bound}",
                "median": median,
                "spread": [min(taken), max(taken)],
                "met": met,
            }
        )
    return found


def main(argv: list[str], folder: str, say: Callable[[str], None] = print) -> int:
    del folder  # each side has its own
    parser = Parser("replay-server bench latency", description=__doc__)
    parser.add_argument("--side", action="append", help=f"may be repeated ({', '.join(SIDES)})")
    parser.add_argument("--measurement", action="append", help="may be repeated (all)")
    parser.add_argument("--rounds", type=int, default=5, help="(%(default)s)")
    parser.add_argument("--seconds", type=float, default=0.5, help="of each turn (%(default)s)")
    parser.add_argument("--capacity", type=int, default=4000, help="items in the table (%(default)s)")
    parser.add_argument(
        "--mtu", type=int, default=1500, help="of every side, in bytes (1500; AF_XDP carries up to 3300)"
    )
    parser.add_argument("--connections", type=int, help="of each measurement (its own number)")
    parser.add_argument("--delay-us", type=float, default=0, help="of a line in between, one way (%(default)s)")
    parser.add_argument("--rate-mbit", type=float, default=0, help="of that line, in Mb/s; 0: no bound (%(default)s)")
    parser.add_argument("--faults", nargs="+", metavar="TEXT", help="of that line, such as loss=0.001; each in turn")
    parser.add_argument("--quick", action="store_true", help="one short round: that it works, not how fast")
    parser.add_argument("--json", metavar="FILE", help="write the results there")
    parser.add_argument("--plot", metavar="FILE.png", help="draw the results there")
    options = parser.parse_args(argv)
    if options.quick:
        options.rounds, options.seconds, options.capacity = 1, 0.05, 600
    measured = measurements(options.capacity)
    if options.measurement:
        known = [measurement.name for measurement in measured]
        if unknown := [name for name in options.measurement if name not in known]:
            raise RuntimeError(f"no measurement is called {unknown[0]!r}: expected some of {', '.join(known)}")
        measured = [measurement for measurement in measured if measurement.name in options.measurement]
    if options.connections:
        measured = [replace(measurement, connections=options.connections) for measurement in measured]
    line: dict[str, Any] = {}
    if options.delay_us or options.rate_mbit or options.faults:
        line = {"delay_us": options.delay_us, "rate_mbit": options.rate_mbit}
        measured = [
            replace(each, name=f"{each.name} {text}", about=f"{each.about}, {text}", faults=text)
            for text in options.faults or ["loss=0"]
            for each in measured
        ]
    machine = result.machine()
    with contextlib.ExitStack() as stack:
        tables = [messages.ATARI.table(options.capacity), messages.frames_table(options.capacity)]
        lab = {"relayed": True, "cubic": True} if line else {}
        hosts, about = start(options.side or USUAL, stack, tables, mtu=options.mtu, **lab)
        sides = [host.side for host in hosts]
        for name, reason in about["not_measured"].items():
            say(f"not measured: {name}: {reason}")
        for host in hosts:
            prepare(host, options.capacity)
        rounds = []
        for number in range(options.rounds):
            rounds.append(one_round(hosts, measured, options.seconds, number, line))
            name = measured[0].name
            medians = (f"{side.name} {rounds[-1][f'{name}.{side.name}.latency_us_p50']:.1f}" for side in sides)
            say(f"round {number + 1}/{options.rounds}  {name} p50, µs: " + "  ".join(medians))
    settings = {name: value for name, value in vars(options).items() if name not in ("json", "plot")}
    settings |= {"sides": {side.name: side.about for side in sides}, **about}
    if line:
        settings["kernel_tcp"] = "CUBIC, windows of up to 32 MB"
    settings["cpu"] = (
        "server_cpu_us is the server process's time where it sleeps and INFO's transport_busy_us where it polls; "
        "server_core_us is the time that its processor was not idle. server_cycles is server_cpu_us times the "
        "processor's clock as /proc/cpuinfo tells it. Instructions are not counted: virtual machines often have no "
        "counters for them."
    )
    command = " ".join(["replay-server bench latency", *argv])
    content = result.document("latency", command, machine, settings, rounds, ratios(list(rounds[0]), sides))
    content["aims"] = findings(rounds)
    for row in table(content, measured, sides):
        say(row)
    say("")
    for aim in () if options.quick else content["aims"]:
        low, high = aim["spread"]
        say(
            f"{'met    ' if aim['met'] else 'NOT MET'} {aim['what']}: {aim['median']:.2f} ({low:.2f}–{high:.2f}), "
            f"aim {aim['aim']}"
        )
    if options.json:
        result.write(options.json, content)
    if options.plot:
        from replay_server.bench.plot import plot_sides

        plot_sides(content, [measurement.name for measurement in measured], [side.name for side in sides], options.plot)
    return 0
