"""`replay-server cluster start|status|checkpoint|move|forget|stop`: shards of one replay."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import redis

from .arguments import Parser, did_you_mean
from .at_once import at_once
from .client import Client
from .cluster import Cluster
from .cluster_arguments import SHARD_TRANSPORTS
from .cluster_checkpoint import checkpoint_of
from .cluster_leave import forget, number_of
from .cluster_members import IMPATIENT, failing_in, shards_in
from .cluster_moves import move
from .cluster_shards import SCHEME, SILENT, Shards, tables_of
from .config import ConfigError, ServeConfig, load_config, parse_size, read_password
from .connection import PASSWORD_VARIABLE
from .errors import ReplayError
from .replica_group import REPLACE_AFTER_S
from .table import Table
from .topology import parse_slots

if TYPE_CHECKING:
    from .jobs.placed_cluster import PlacedCluster

EXIT_FAILURE, EXIT_USAGE, EXIT_SERVER_LOST, EXIT_INTERRUPTED = 1, 2, 5, 130
START_S = 30.0
"""In which each shard must be ready."""
_WORDS = (None, "latest", "checkpoint")
"""What --restore says that is no file."""


def main(arguments: list[str]) -> int:
    """Runs one of the parts; its exit status."""
    if arguments and arguments[0] in PARTS:
        return PARTS[arguments[0]][1](arguments[1:])
    names = " | ".join(PARTS)
    asked = arguments[:1] in (["-h"], ["--help"])
    said = "" if asked or not arguments else f"unknown part {arguments[0]!r}{did_you_mean(arguments[0], PARTS)}\n"
    about = "".join(f"\n  {name:<12}{text}" for name, (text, _) in PARTS.items())
    print(
        f"{said}usage: replay-server cluster {{{names}}} [options]\n{about}", file=sys.stdout if asked else sys.stderr
    )
    return 0 if asked else EXIT_USAGE


def _fail(message: str, status: int) -> int:
    print(f"replay-server cluster: {message}", file=sys.stderr)
    return status


# ---- start -----------------------------------------------------------------------------------------------------------


def _start_parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="replay-server cluster start",
        description="Runs shards, a process each, and watches them: one that dies is started again. Prints one line "
        "when all are ready: ready url=redis+cluster://… pids=…",
        epilog=f"The password comes from --password-file or the variable {PASSWORD_VARIABLE}. Exit status: 0 stopped "
        "by a signal, or because every shard was, 1 failure, 2 usage.",
    )
    parser.add_argument("--shards", type=int, metavar="N", help="how many (default 2; with --shard-of or --members 1)")
    parser.add_argument(
        "--replicas",
        type=int,
        default=0,
        metavar="N",
        help="of each shard (default 0): processes of this host with a copy of it. When the shard dies or hangs, one "
        "takes its place",
    )
    parser.add_argument(
        "--shard-of",
        metavar="URL",
        help=f"a cluster that runs, {SCHEME}host:port, which these shards join, with its tables and its password",
    )
    parser.add_argument(
        "--members",
        metavar="HOST:PORT,…",
        help="the first shard of each host, the same list on all of them: these shards join the cluster that the "
        "others have. If none has one, the first of the list begins it",
    )
    parser.add_argument(
        "--begin",
        action="store_true",
        help="with --members: the first one begins a cluster although others have not answered for 30 s. They must "
        "have none",
    )
    parser.add_argument(
        "--take-over",
        type=int,
        metavar="N",
        help="with --shard-of: takes the place of that cluster's shard N, with all that it holds, while clients go on",
    )
    _add_on(parser, "who starts them: ray (Ray on this host, for them alone), or ray:ADDRESS (a Ray cluster that runs)")
    parser.add_argument("--per-node", type=int, metavar="K", help="with --on: shards on each node; else as many as fit")
    parser.add_argument(
        "--transport",
        choices=SHARD_TRANSPORTS,
        help="network stack (default kernel). dpdk: shards share the device that --config names, with a queue and a "
        "processor for each",
    )
    parser.add_argument("--host", metavar="HOST", help="address to listen on (default 127.0.0.1)")
    parser.add_argument(
        "--port",
        type=int,
        metavar="P",
        help="of the first shard; the others have the next ones (default 7000; 0 = any)",
    )
    parser.add_argument("--announce", metavar="HOST", help="what clients are told in place of --host")
    parser.add_argument(
        "--config",
        metavar="FILE.toml",
        help="settings and tables, as for serve; options here win. Shards that join a cluster have its tables: one of "
        "FILE that it lacks is left out, and named",
    )
    about = "where files are written: a folder a shard, and the topology; made if it is missing"
    parser.add_argument("--dir", metavar="PATH", help=about)
    parser.add_argument("--maxmemory", metavar="BYTES", help="limit of each shard's key-value store, e.g. 2gb")
    parser.add_argument("--password-file", metavar="PATH", help="file whose first line is the password")
    parser.add_argument(
        "--restore",
        metavar="WHAT",
        nargs="?",
        const="latest",
        help="each shard begins with a snapshot. latest (also without WHAT): the newest of its folder. checkpoint: "
        "that of the last `cluster checkpoint` in --dir. A file: the manifest that `cluster checkpoint` printed, in "
        "another --dir, for any number of --shards",
    )
    parser.add_argument(
        "--pin", action=argparse.BooleanOptionalAction, default=None,
        help="each shard has a core to itself (default: where there are more cores than shards)",
    )  # fmt: skip
    return parser


def _add_on(parser: argparse.ArgumentParser, about: str) -> None:
    parser.add_argument("--on", metavar="ENGINE", help=about)
    parser.add_argument(
        "--name", default="replay", metavar="NAME", help="with --on: of this cluster on the engine (default replay)"
    )


def _merged(options: argparse.Namespace) -> ServeConfig:
    settings = load_config(options.config) if options.config else ServeConfig(port=7000)
    for name in ("transport", "host", "port", "dir", "password_file"):
        if (value := getattr(options, name)) is not None:
            setattr(settings, name, value)
    if options.maxmemory is not None:
        settings.maxmemory = parse_size(options.maxmemory)
    if settings.transport not in SHARD_TRANSPORTS or settings.unixsocket is not None:
        names = " or ".join(SHARD_TRANSPORTS)
        raise ConfigError(f"shards are served over {names}, without unixsocket; got transport {settings.transport!r}")
    if settings.transport != "kernel" and settings.host != "127.0.0.1":
        raise ConfigError(f"host belongs to the kernel transport; with {settings.transport} use dpdk-address")
    if settings.allow_remote:
        settings.config["protected-mode"] = "no"
    if settings.maxclients is not None:
        settings.config["maxclients"] = settings.maxclients
    return settings


def _start(arguments: list[str]) -> int:
    options = _start_parser().parse_args(arguments)
    password = os.environ.get(PASSWORD_VARIABLE) or None
    try:
        settings = _merged(options)
        if settings.password_file is not None:
            password = read_password(settings.password_file)
    except ConfigError as error:
        return _fail(str(error), EXIT_USAGE)
    asked, signals = threading.Event(), list[int]()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, _: (signals.append(number), asked.set()))
    if options.per_node is not None and options.on is None:
        return _fail("--per-node goes with --on", EXIT_USAGE)
    if options.take_over is not None and (options.shard_of is None or options.shards not in (None, 1)):
        return _fail("--take-over goes with --shard-of, and without --shards", EXIT_USAGE)
    if options.replicas and (options.shard_of is not None or options.on is not None):
        return _fail("--replicas does not go with --shard-of and --on: replicas are started on this host", EXIT_USAGE)
    apart = options.on or options.shard_of or options.members or options.replicas or options.pin is not None
    if settings.transport == "dpdk" and apart:
        return _fail(
            "--transport dpdk does not go with --on, --shard-of, --members, --replicas and --pin: its shards are on "
            "one device of this host, each with a processor of its own",
            EXIT_USAGE,
        )
    if options.on is not None:
        return _start_on_engine(options, settings, password, asked)
    try:
        cluster = Cluster(
            settings.tables if options.shard_of is None else (),
            (1 if options.shard_of or options.members else 2) if options.shards is None else options.shards,
            settings.host,
            settings.port,
            password,
            settings.dir or ".",
            settings.maxmemory,
            settings.config,
            announce=options.announce,
            restore=options.restore,
            pin=options.pin,
            shard_of=options.shard_of,
            take_over=options.take_over,
            transport=settings.transport,
            replicas=options.replicas,
            members=None if options.members is None else options.members.split(","),
            begin=options.begin,
            given_up=asked,
        )
    except (ReplayError, ValueError, OSError, redis.RedisError) as error:
        return 0 if signals else _fail(str(error), EXIT_FAILURE)  # a start that fails sets `asked`, too
    with cluster:
        if options.shard_of is not None or options.members is not None:
            _name_left_out(settings.tables, cluster)
        print(f"ready url={_open_url(cluster.url)} pids={','.join(map(str, cluster.pids))}", flush=True)
        while not asked.wait(0.1) and not cluster.was_stopped:
            pass
    return 0


def _name_left_out(tables: Iterable[Table], cluster: Cluster) -> None:
    """Says which tables of the file the shards that joined do not have. One file may serve all hosts of a cluster, so
    this is no error."""
    if names := {table.name for table in tables}:
        with contextlib.suppress(ReplayError), Client(cluster.servers[0].url, **IMPATIENT) as client:
            for name in sorted(names.difference(client.tables())):
                print(
                    f"replay-server cluster: table {name!r} of the file is left out, since the cluster that was joined "
                    "lacks it: create it by a client",
                    file=sys.stderr,
                )


def _start_on_engine(
    options: argparse.Namespace, settings: ServeConfig, password: str | None, asked: threading.Event
) -> int:
    """Has Ray run the shards. On a Ray cluster that was there they go on when this has returned."""
    from .jobs.placed_cluster import PlacedCluster, connected

    own = (options.shard_of, options.members, options.begin or None, options.take_over, options.announce, options.pin)
    if any(value is not None for value in own) or settings.host != "127.0.0.1":
        return _fail(
            "--on does not go with --shard-of, --members, --begin, --take-over, --announce, --pin and --host: a shard "
            "listens where Ray has its node",
            EXIT_USAGE,
        )
    given = {
        "port": settings.port,
        "password": password,
        "directory": os.path.abspath(settings.dir or "."),
        "maxmemory": settings.maxmemory,
        "config": settings.config,
        "restore": os.path.abspath(options.restore) if options.restore not in _WORDS else options.restore,
        "start_timeout": START_S,
    }
    try:
        with connected(options.on) as engine:
            shards = 2 if options.shards is None else options.shards
            cluster = PlacedCluster.start(
                engine, options.name, settings.tables, shards, options.per_node, given, given_up=asked
            )
            if told := cluster.told_in_time(asked):
                print(f"ready url={_open_url(told['url'])} pids={','.join(map(str, told['pids']))}", flush=True)
            if engine.own:
                while not asked.wait(0.5) and cluster.told_in_time(asked) is not None:
                    pass
            if engine.own or asked.is_set():
                cluster.stop()
    except (ReplayError, ValueError, OSError) as error:
        return 0 if asked.is_set() else _fail(str(error), EXIT_FAILURE)
    return 0


def _open_url(url: str) -> str:
    """A cluster's URL without its password."""
    return SCHEME + url.rpartition("@")[2].removeprefix(SCHEME)


# ---- status and stop -------------------------------------------------------------------------------------------------


def _url_parser(part: str, about: str) -> argparse.ArgumentParser:
    parser = Parser(
        prog=f"replay-server cluster {part}",
        description=about,
        epilog=f"A password that is not in the URL comes from the variable {PASSWORD_VARIABLE}. Exit status: 0 done, "
        "1 failure, 2 usage, 5 no shard answers.",
    )
    where = parser.add_mutually_exclusive_group()
    where.add_argument(
        "--server", default=f"{SCHEME}127.0.0.1:7000", metavar="URL", help=f"shards (default {SCHEME}127.0.0.1:7000)"
    )
    where.add_argument(
        "--dir",
        metavar="PATH",
        help="in place of --server, on the shards' host: the folder of `cluster start`. Shards over DPDK are reached "
        "by their admin ports, since their own host reaches them by no other way",
    )
    return parser


def _with_shards(server: str, run: Callable[[Shards], int], folder: str | None = None) -> int:
    try:
        shards = Shards(server) if folder is None else shards_in(Path(folder))
    except ValueError as error:
        return _fail(str(error), EXIT_USAGE)
    except ConnectionError as error:
        return _fail(str(error), EXIT_SERVER_LOST)
    except redis.RedisError as error:
        return _fail(str(error), EXIT_FAILURE)
    with shards:
        try:
            return run(shards)
        except (redis.RedisError, ReplayError, ValueError) as error:
            return _fail(str(error), EXIT_FAILURE)


def _asked(client: redis.Redis, tell: Callable[[redis.Redis], dict[str, Any]]) -> dict[str, Any]:
    """What a server tells, and the folder of its files; `{"running": False}` where it does not answer."""
    try:
        told = {"running": True, **tell(client)}
        with contextlib.suppress(redis.ResponseError):  # the user may not ask for it
            told["folder"] = str(client.config_get("dir")["dir"])
        return told
    except SILENT:
        return {"running": False}


def _shard_status(client: redis.Redis) -> dict[str, Any]:
    info: Mapping[str, Any] = client.info()
    return {
        "pid": info["process_id"],
        "uptime_s": info["uptime_in_seconds"],
        "version": info.get("cluster_topology_version", 0),
        "keys": client.dbsize(),
        "memory_bytes": info["used_memory"],
        "clients": info["connected_clients"],
        "tables": {name: int(told[b"size"]) for name, told in tables_of(client).items()},
    }


def _replica_status(client: redis.Redis) -> dict[str, Any]:
    info: Mapping[str, Any] = client.info("replication")
    return {"link": info.get("master_link_status", "")}


def status_of(shards: Shards) -> dict[str, Any]:
    """The topology, what each shard and its replicas tell of themselves, and why shards do not serve, as far as the
    folders of their supervisors are on this host."""
    told = json.loads(shards.topology.to_json())
    asked = [(*pair, _shard_status) for pair in zip(shards.topology.shards, told["shards"], strict=True)]
    for place, shard in [pair[:2] for pair in asked]:
        asked += [(*pair, _replica_status) for pair in zip(place.replicas, shard["replicas"], strict=True)]
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(shards.asking(shards.place(place), REPLACE_AFTER_S)) for place, *_ in asked]
        answers = at_once(lambda each: _asked(each[0], each[1][2]), zip(clients, asked, strict=True))
    folders = {Path(answer.pop("folder")).parent for answer in answers if "folder" in answer}
    for (_, server, _), answer in zip(asked, answers, strict=True):
        server.update(answer)
    for shard in told["shards"]:
        shard["slot_count"] = sum(last - first + 1 for first, last in shard["slots"])
        shard["leaving"] = shard["shard"] in shards.topology.leaving
    told["failing"] = {number: why for folder in folders for number, why in failing_in(folder, shards.topology).items()}
    return told


def _show(told: Mapping[str, Any]) -> None:
    print(f"topology {told['version']}, {len(told['shards'])} shards")
    for shard in told["shards"]:
        place = f"{shard['shard']:>4}  {shard['host']}:{shard['port']:<6}{shard['slot_count']:>6} slots"
        if not shard["running"]:
            print(f"{place}  does not answer")
            _show_replicas(shard["replicas"])
            continue
        items = "".join(f"  {name} {size:,}" for name, size in shard["tables"].items())
        leaves = "  leaves" if shard["leaving"] else ""
        memory = f"{shard['memory_bytes'] / 2**20:,.1f} MiB"
        print(f"{place}  pid {shard['pid']}  {shard['keys']:,} keys  {memory}{items}{leaves}")
        _show_replicas(shard["replicas"])
    for each in told["moves"]:
        first, last = each["slots"]
        print(f"      slots {first}-{last} move from {each['from']} to {each['to']}")
    if supervisor := told.get("supervisor"):
        print(f"      {supervisor['restarts']} started again")
    for number, why in {**told["failing"], **(supervisor or {}).get("failing", {})}.items():
        print(f"{number:>4}  does not serve so far: {why}")
    if told["gone"]:
        print(f"      shards that were taken out: {', '.join(map(str, told['gone']))}")


def _show_replicas(replicas: Sequence[Mapping[str, Any]]) -> None:
    for replica in replicas:
        state = ", and is cut off from it" if replica["running"] else ", and does not answer"
        state = "" if replica.get("link") == "up" else state
        print(f"      {replica['host']}:{replica['port']} is its replica{state}")


def _status(arguments: list[str]) -> int:
    parser = _url_parser("status", "Shows the shards of a cluster: where they are, and what they hold.")
    parser.add_argument("--json", action="store_true", help="as one line of JSON")
    _add_on(parser, "ray:ADDRESS, in place of --server: asks the supervisor there where the shards are")
    options = parser.parse_args(arguments)
    supervisor: dict[str, Any] = {}

    def show(shards: Shards) -> int:
        told = status_of(shards)
        if supervisor:
            told["supervisor"] = supervisor
        if options.json:
            print(json.dumps(told))
        else:
            _show(told)
        return 0 if all(shard["running"] for shard in told["shards"]) else EXIT_FAILURE

    if options.on is None:
        return _with_shards(options.server, show, options.dir)

    def ask(cluster: PlacedCluster) -> int:
        told = cluster.told()
        if told is None:
            return _fail(f"the cluster {options.name!r} has ended", EXIT_SERVER_LOST)
        supervisor.update({name: told[name] for name in ("restarts", "failing")})
        return _with_shards(told["url"], show)

    return _with_placed(options, ask)


def _with_placed(options: argparse.Namespace, run: Callable[[PlacedCluster], int]) -> int:
    from .jobs.placed_cluster import PlacedCluster, connected

    if not options.on.startswith("ray:"):
        return _fail(f"expected ray:ADDRESS, the Ray cluster that the shards are on, got {options.on!r}", EXIT_USAGE)
    try:
        with connected(options.on) as engine:
            return run(PlacedCluster(engine, options.name))
    except ReplayError as error:
        return _fail(str(error), EXIT_FAILURE)


def _checkpoint(arguments: list[str]) -> int:
    parser = _url_parser(
        "checkpoint",
        "Has every shard write a snapshot, and then writes a manifest of them into the cluster's folder. Prints the "
        "manifest's path: cluster start --restore begins with it. Run it on the shards' host, as a user who may write "
        "into that folder.",
    )
    _add_on(parser, "ray:ADDRESS, in place of --server: the supervisor there writes it, into a folder that nodes share")
    options = parser.parse_args(arguments)

    def shown(manifest: Path) -> int:
        print(manifest)
        return 0

    if options.on is None:
        return _with_shards(options.server, lambda shards: shown(checkpoint_of(shards)), options.dir)
    return _with_placed(options, lambda cluster: shown(cluster.checkpoint()))


def _move(arguments: list[str]) -> int:
    parser = _url_parser("move", "Moves slots of keys, with what is in them, to another shard, while clients go on.")
    parser.add_argument("--slots", required=True, metavar="SLOTS", help="such as 0-99,200")
    parser.add_argument("--to", required=True, type=int, metavar="N", help="the shard's number")
    options = parser.parse_args(arguments)
    try:
        slots = parse_slots(options.slots)
    except ValueError as error:
        return _fail(str(error), EXIT_USAGE)

    def run(shards: Shards) -> int:
        after = move(shards.clients, shards.topology, slots, options.to, lambda text: print(text, flush=True))
        print(f"topology {after.version}: slots {options.slots} are on shard {options.to}")
        return 0

    return _with_shards(options.server, run, options.dir)


def _forget(arguments: list[str]) -> int:
    parser = _url_parser(
        "forget",
        "Takes a shard out of a cluster for good, while clients go on: its slots of keys move to the others, and it "
        "goes when its items have been sampled away or deleted. Its number is not given again.",
    )
    parser.add_argument("shard", metavar="SHARD", help="its number, or its address, host:port")
    parser.add_argument(
        "--timeout", type=float, default=60.0, metavar="S", help="seconds until its items must have left (default 60)"
    )
    parser.add_argument("--lose-items", action="store_true", help="items that it still holds are lost, not waited for")
    parser.add_argument(
        "--dead", action="store_true", help="it does not answer, and all that it holds is lost: items, keys, weights"
    )
    options = parser.parse_args(arguments)

    def run(shards: Shards) -> int:
        number = number_of(shards.topology, options.shard)
        done = forget(
            shards.clients,
            shards.topology,
            number,
            timeout=options.timeout,
            lose_items=options.lose_items,
            dead=options.dead,
            told=lambda text: print(text, flush=True),
        )
        lost = "all that it held is" if done.items is None else f"{sum(done.items.values()):,} items are"
        print(f"topology {done.topology.version}: without shard {number}; {lost} lost with it")
        return 0

    return _with_shards(options.server, run, options.dir)


def _stop(arguments: list[str]) -> int:
    parser = _url_parser("stop", "Stops every shard of a cluster in order (SHUTDOWN), and so what watches them.")
    parser.add_argument("--timeout", type=float, default=60.0, metavar="S", help="seconds to wait for it (default 60)")
    _add_on(parser, "ray:ADDRESS, in place of --server: ends its processes there, and those that do not answer, too")
    options = parser.parse_args(arguments)

    def end(cluster: PlacedCluster) -> int:
        cluster.stop(options.timeout)
        return 0

    def stop(shards: Shards) -> int:
        for client in shards.clients.values():
            with contextlib.suppress(redis.ConnectionError):
                client.shutdown()
        deadline = time.monotonic() + options.timeout
        for number, client in shards.clients.items():
            while _answers(client):
                if time.monotonic() > deadline:
                    return _fail(f"shard {number} still answers after {options.timeout:g} s", EXIT_FAILURE)
                time.sleep(0.05)
        return 0

    return _with_shards(options.server, stop, options.dir) if options.on is None else _with_placed(options, end)


def _answers(client: redis.Redis) -> bool:
    try:
        return bool(client.ping())
    except redis.ConnectionError:
        return False


PARTS: dict[str, tuple[str, Callable[[list[str]], int]]] = {
    "start": ("run shards on this host, and watch them", _start),
    "status": ("where the shards are, and what they hold", _status),
    "checkpoint": ("write a snapshot of every shard, and a manifest of them", _checkpoint),
    "move": ("move slots of keys to another shard", _move),
    "forget": ("take a shard out for good", _forget),
    "stop": ("stop them all", _stop),
}
