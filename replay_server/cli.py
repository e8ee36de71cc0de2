"""The command `replay-server`: `serve` becomes the native server; other subcommands are imported when called."""

from __future__ import annotations

import argparse
import importlib
import os
import re
import sys
from collections.abc import Callable, Sequence

from .arguments import Parser, did_you_mean
from .config import ConfigError, ServeConfig, load_config, parse_size, read_password
from .connection import PASSWORD_VARIABLE
from .errors import ServerError
from .extras import how_to_install
from .reload import reload_command
from .server import TRANSPORTS, find_executable, server_arguments, setup_message

EXIT_FAILURE, EXIT_USAGE, EXIT_INTERRUPTED = 1, 2, 130

SUBCOMMANDS = {
    "serve": "run a server",
    "cluster": "run and watch many shards of one replay",
    "apex": "the whole Ape-X job on one machine",
    "actor": "one Ape-X actor for a server elsewhere",
    "learner": "the Ape-X learner for a server elsewhere",
    "evaluator": "what plays an Ape-X run's newest weights, for a server elsewhere",
    "evaluate": "play games with a network that a run kept",
    "train": "serverless training: actor and learner functions, in rounds",
    "scheduler": "train a learned scheduler of a job's actors, on whole jobs",
    "bench": "measure this server and others",
    "top": "servers and jobs, live, in the terminal",
    "dashboard": "servers and jobs, live, in the browser",
    "doctor": "what is wrong with this host for DPDK, and what to type",
    "completion": "a script that completes these words in bash, zsh or fish",
}
_ELSEWHERE = {
    "cluster": ("replay_server.cluster_command", "main"),
    "top": ("replay_server.dashboard.top", "main"),
    "dashboard": ("replay_server.dashboard.main", "main"),
    "apex": ("replay_server.jobs.apex", "main_apex"),
    "actor": ("replay_server.jobs.parts", "main_actor"),
    "learner": ("replay_server.jobs.parts", "main_learner"),
    "evaluator": ("replay_server.jobs.parts", "main_evaluator"),
    "evaluate": ("replay_server.jobs.evaluate_run", "main_evaluate"),
    "train": ("replay_server.serverless.train", "main_train"),
    "scheduler": ("replay_server.serverless.scheduler.main", "main"),
    "bench": ("replay_server.bench.main", "main"),
    "doctor": ("replay_server.doctor", "main"),
    "completion": ("replay_server.completion", "main"),
}

COMPUTING = frozenset(("apex", "actor", "learner", "evaluator", "evaluate", "train", "scheduler"))
"""Subcommands that compute with torch, beside each other where cores are few."""


def _usage() -> str:
    lines = [f"  {name:<11}{text}" for name, text in SUBCOMMANDS.items()]
    return "\n".join(
        [
            "usage: replay-server SUBCOMMAND [OPTIONS]",
            "",
            *lines,
            "",
            "replay-server SUBCOMMAND --help tells its options; replay-server --version [--json] what is installed.",
        ]
    )


def _fail(message: str, status: int) -> int:
    print(f"replay-server: {message}", file=sys.stderr)
    return status


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one subcommand; its exit status."""
    try:
        try:
            return _run(list(sys.argv[1:] if arguments is None else arguments))
        finally:
            sys.stdout.flush()
    except BrokenPipeError:  # Whoever reads it has read enough, as `head` has: no traceback, now or at the end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_FAILURE


def _run(given: list[str]) -> int:
    if not given or given[0] in ("-h", "--help", "help"):
        print(_usage(), file=sys.stdout if given else sys.stderr)
        return 0 if given else EXIT_USAGE
    name, rest = given[0], given[1:]
    if name in ("-V", "--version"):
        if rest not in ([], ["--json"]):
            return _fail(f"{name} takes --json, or nothing; got {' '.join(rest)!r}", EXIT_USAGE)
        return importlib.import_module("replay_server.build_info").main(rest)
    try:
        if name in SUBCOMMANDS:
            return _dispatch(name, rest)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    return _fail(f"unknown subcommand {name!r}{did_you_mean(name, SUBCOMMANDS)}\n{_usage()}", EXIT_USAGE)


def subcommand(name: str) -> Callable[[list[str]], int | None]:
    """The function of a subcommand, imported here. ModuleNotFoundError where a library is not installed."""
    if name == "serve":
        return serve
    module_name, function_name = _ELSEWHERE[name]
    return getattr(importlib.import_module(module_name), function_name)


def _dispatch(name: str, rest: list[str]) -> int:
    if name in COMPUTING:
        # Torch's threads sleep while they wait for each other. By default they spin, and where another process has one
        # of the cores they hold the other one until that thread gets its turn: hundreds of times an update.
        os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    try:
        # Called in here: a subcommand imports large libraries only after it has read its arguments.
        status = subcommand(name)(rest)
    except ModuleNotFoundError as error:
        if error.name and error.name.split(".")[0] == "replay_server":
            raise
        return _fail(f"{name} needs {error.name}: {how_to_install(error.name)}", EXIT_FAILURE)
    return 0 if status is None else int(status)


# ---- serve -----------------------------------------------------------------------------------------------------------


def serve_parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="replay-server serve",
        usage="%(prog)s [options]",
        description="Runs a replay server. It prints one line when it is ready: ready url=… unix=… pid=…",
        epilog=f"The password comes from --password-file or the variable {PASSWORD_VARIABLE}, never from an argument. "
        "Exit status: 0 stopped by a signal, or in order, 1 failure, 2 usage, 3 address in use, 4 snapshot refused.",
    )
    parser.add_argument(
        "--host", metavar="HOST", help="address to listen on (default 127.0.0.1); other than loopback needs a password"
    )
    parser.add_argument("--port", type=int, metavar="P", help="TCP port (default 6379); 0 = any free one, -1 = no TCP")
    parser.add_argument("--unixsocket", metavar="PATH", help="listen on a unix socket as well")
    parser.add_argument("--unixsocketperm", metavar="OCTAL", help="its permissions (default 700)")
    parser.add_argument("--transport", choices=TRANSPORTS, help="network stack (default kernel)")
    _add_settings(parser)
    parser.add_argument(
        "--config", metavar="FILE.toml", help="settings and tables; options given here win; SIGHUP reads it again"
    )
    parser.add_argument(
        "--check", action="store_true", help="only look whether settings, tables, users and certificates are in order"
    )
    parser.add_argument("--maxmemory", metavar="BYTES", help="limit of the key-value store, e.g. 2gb (default 0: none)")
    parser.add_argument("--maxclients", type=int, metavar="N", help="connections at a time")
    parser.add_argument("--dir", metavar="PATH", help="where files are written: a folder that exists")
    parser.add_argument(
        "--restore",
        metavar="FILE",
        nargs="?",
        const="latest",
        help="begin with a snapshot, or a file of Redis (dump.rdb); without FILE the newest snapshot in --dir",
    )
    parser.add_argument("--password-file", metavar="PATH", help="file whose first line is the password")
    parser.add_argument(
        "--allow-remote", action="store_true", default=None, help="serve other hosts without a password"
    )
    return parser


# Options of serve that are settings of the native server (CONFIG GET shows them): option and setting, what --help calls
# its value or the words that it may be, its help.
_SETTINGS: tuple[tuple[str, str | tuple[str, ...], str], ...] = (
    ("dpdk-device", "DEVICE", "PCI address, or virtual device: net_af_xdp0,iface=veth0"),
    ("dpdk-address", "ADDRESS", "its IPv4 address and mask: 10.0.0.2/24; --host is then not given"),
    ("dpdk-gateway", "ADDRESS", "its gateway"),
    ("dpdk-mtu", "N", "bytes (default: the device's)"),
    ("dpdk-lcore", "N", "processor that the server polls on (default: where it is started)"),
    ("dpdk-memory", "BYTES", "for packets, e.g. 512mb"),
    ("dpdk-eal", "ARGUMENTS", "more arguments for DPDK's EAL, in one string"),
    ("dpdk-offloads", "NAMES", "work of the device: auto (all that it can, the default), none, or names"),
    ("dpdk-queues", "N", "servers on the device, each with a queue pair and a processor (default 1)"),
    ("dpdk-queue", "I", "this one's, from 0; the server with 0 owns the device"),
    ("fstack-config", "FILE", "F-Stack's config.ini (default: made from the options above)"),
    ("tls-port", "P", "port for TLS (rediss://) beside --port; 0 = any free one"),
    ("tls-cert-file", "FILE", "the server's certificate, PEM"),
    ("tls-key-file", "FILE", "its key, PEM"),
    ("tls-ca-cert-file", "FILE", "who signs clients' certificates, PEM"),
    ("tls-auth-clients", ("yes", "no", "optional"), "whether clients show a certificate (default yes)"),
    ("aclfile", "FILE", "file of users, as ACL SAVE writes it"),
    ("metrics-port", "P", "HTTP port with /metrics for Prometheus and /healthz; 0 = any free one"),
    ("metrics-host", "HOST", "its address (default 127.0.0.1); another needs --allow-remote"),
    (
        "log-level",
        ("debug", "info", "notice", "warning", "error"),
        "lines on standard error from there on (default notice)",
    ),
    ("log-format", ("text", "json"), "text (default), or one object a line"),
    ("protected-mode", ("yes", "no"), "yes (default): other hosts are refused while there is no password"),
    ("busy-poll-us", "N", "with --transport kernel: look so long for events before sleeping"),
)


def _add_settings(parser: argparse.ArgumentParser) -> None:
    groups = {
        "dpdk fstack busy": parser.add_argument_group("transports", "see docs/nic-host.md"),
        "tls aclfile protected": parser.add_argument_group("TLS and users", "see docs/security.md"),
        "metrics log": parser.add_argument_group("metrics and log", "see docs/metrics.md and docs/operations.md"),
    }
    groups["dpdk fstack busy"].add_argument(
        "--admin-port",
        type=int,
        metavar="P",
        help="another port, on the kernel's loopback; -1 = none (default beside dpdk and fstack: any free one)",
    )
    for name, value, help_text in _SETTINGS:
        group = next(group for subjects, group in groups.items() if name.split("-")[0] in subjects.split())
        if isinstance(value, tuple):
            group.add_argument(f"--{name}", choices=value, help=help_text)
        else:
            group.add_argument(f"--{name}", metavar=value, type=int if value in ("N", "P") else str, help=help_text)


def merged_settings(options: argparse.Namespace) -> ServeConfig:
    """The file's settings with the options given on the command line over them."""
    settings = load_config(options.config) if options.config else ServeConfig()
    own = "transport host port unixsocket unixsocketperm maxclients dir password_file allow_remote"
    for name in own.split():
        if (value := getattr(options, name)) is not None:
            setattr(settings, name, value)
    for name, _, _ in _SETTINGS:
        if (value := getattr(options, name.replace("-", "_"))) is not None:
            settings.config[name] = value
    if settings.transport not in TRANSPORTS:
        raise ConfigError(f"transport must be one of {', '.join(TRANSPORTS)}, got {settings.transport!r}")
    if options.admin_port is not None or (settings.transport != "kernel" and "admin-port" not in settings.config):
        settings.config["admin-port"] = options.admin_port or 0
    if settings.transport != "kernel" and options.host is not None:
        raise ConfigError(f"--host belongs to the kernel transport; with {settings.transport} use --dpdk-address")
    if options.maxmemory is not None:
        settings.maxmemory = parse_size(options.maxmemory)
    if not -1 <= settings.port <= 65535:
        raise ConfigError(f"port must be between 0 and 65535, or -1 for no TCP; got {settings.port}")
    if settings.port == -1 and settings.unixsocket is None and int(settings.config.get("tls-port", -1)) < 0:
        raise ConfigError("port -1 without --unixsocket or --tls-port leaves nothing to listen on")
    if settings.unixsocketperm is not None and not re.fullmatch("[0-7]{3,4}", settings.unixsocketperm):
        raise ConfigError(f"unixsocketperm must be octal, such as 700; got {settings.unixsocketperm!r}")
    return settings


def serve_settings(arguments: Sequence[str]) -> tuple[ServeConfig, str | None, argparse.Namespace]:
    """What the arguments of `serve`, the file that they name and the environment say: settings, password, options.

    Raises:
        ConfigError: something is not as it should be.
        SystemExit: an argument is not; argparse has said which.
    """
    options = serve_parser().parse_args(arguments)
    settings = merged_settings(options)
    password = os.environ.get(PASSWORD_VARIABLE) or None
    if settings.password_file is not None:
        password = read_password(settings.password_file)
    return settings, password, options


def serve(arguments: Sequence[str]) -> int:
    """Checks the arguments and becomes the native server: same process id, same terminal, same signals."""
    try:
        settings, password, options = serve_settings(arguments)
    except ConfigError as error:
        return _fail(str(error), EXIT_USAGE)
    try:
        executable = str(find_executable(settings.transport))
    except ServerError as error:
        return _fail(str(error), EXIT_FAILURE)
    native_arguments = server_arguments(
        host=settings.host,
        port=settings.port,
        unix=settings.unixsocket,
        maxmemory=settings.maxmemory,
        maxclients=settings.maxclients,
        directory=settings.dir,
        unix_permissions=settings.unixsocketperm,
        allow_remote=settings.allow_remote,
        restore=options.restore,
    )
    setup = os.memfd_create("replay-server-setup", 0)
    with open(os.dup(setup), "wb") as file:
        reload = reload_command(arguments) if options.config else ()
        file.write(setup_message(settings.tables, password, settings.config, reload))
    os.lseek(setup, 0, os.SEEK_SET)
    os.set_inheritable(setup, True)
    environment = {name: value for name, value in os.environ.items() if name != PASSWORD_VARIABLE}
    sys.stdout.flush()
    if options.check:
        native_arguments.append("--check")
    try:
        os.execve(executable, [executable, *native_arguments, "--setup-fd", str(setup)], environment)
    except OSError as error:
        return _fail(f"cannot run {executable}: {error.strerror}", EXIT_FAILURE)
