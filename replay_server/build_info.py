"""What this installation is: versions, transports, vector instructions, libraries; and the native server's settings."""

from __future__ import annotations

import json
import platform
import subprocess
from importlib import metadata
from typing import Any

from . import __version__
from .errors import ServerError
from .server import TRANSPORTS, find_executable

PACKAGES = ("numpy", "cffi", "msgpack", "redis", "uvloop", "torch", "gymnasium", "ray", "rich", "nicegui")
"""Told with their versions where they are installed."""


def _ask(transport: str, question: str) -> Any:
    executable = find_executable(transport)
    try:
        answer = subprocess.run([executable, question], capture_output=True, timeout=30, check=True)
        return json.loads(answer.stdout)
    except subprocess.CalledProcessError as error:
        said = error.stderr.decode("utf-8", "replace").strip().splitlines()
        raise ServerError(f"{executable} {question}: {said[-1] if said else error}") from error
    except (OSError, subprocess.TimeoutExpired, ValueError) as error:
        raise ServerError(f"{executable} {question}: {error}") from error


def native_build(transport: str = "kernel") -> dict[str, Any]:
    """What a native server was built from and runs with.

    Returns:
        `program`, `version`, `redis_version` (whose behaviour the store follows), `compiler`, `c_library`,
        `build_type`, `sanitized`, `simd` (`compiled`: list, `used`: the one chosen for this processor) and
        `libraries` (name → version, None = built without it).

    Raises:
        ServerError: it was not built, or does not run here.
    """
    return _ask(transport, "--build-info")


def native_settings() -> list[dict[str, Any]]:
    """The settings that can be set, in the order of the native server's table.

    Returns:
        Of each `name`, `kind` (number, bytes, octal, flag, choice, events, text, output-limits), `live` (may be changed
        while the server runs), `effect` (false = accepted for compatibility alone), `default` as CONFIG GET writes it,
        and `minimum` and `maximum`, or `choices`.

    Raises:
        ServerError: the native server does not run here.
    """
    return _ask("kernel", "--settings")


def build_info() -> dict[str, Any]:
    """All of it: `version`, `python`, `system`, `packages` (installed ones, name → version), and `transports`: name →
    `native_build`, {"error": why} for one that does not run here, None for one that was not built."""
    transports: dict[str, dict[str, Any] | None] = {}
    for transport in TRANSPORTS:
        try:
            find_executable(transport)
        except ServerError:
            transports[transport] = None
            continue
        try:
            transports[transport] = native_build(transport)
        except ServerError as error:
            transports[transport] = {"error": str(error)}
    packages = {}
    for name in PACKAGES:
        try:
            packages[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return {
        "version": __version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "packages": packages,
        "transports": transports,
    }


def describe(info: dict[str, Any]) -> str:
    """`build_info` for people: the version first, the transports second, as scripts may rely on."""
    built = {name: facts for name, facts in info["transports"].items() if facts is not None}
    lines = [f"replay-server {info['version']}", f"transports: {' '.join(built)}"]
    told = [facts for facts in built.values() if "error" not in facts]
    if told:
        first = told[0]
        libraries = {name: version for facts in told for name, version in facts["libraries"].items()}
        sanitized = ", sanitizers" if first["sanitized"] else ""
        lines += [
            f"simd: {first['simd']['used']} (built with {' '.join(first['simd']['compiled'])})",
            "libraries: " + ", ".join(_library(name, version) for name, version in libraries.items()),
            f"build: {first['compiler']}, {first['build_type']}{sanitized}, {first['c_library']}",
            f"store: as Redis {first['redis_version']}",
        ]
    lines += [f"{name}: {facts['error']}" for name, facts in built.items() if "error" in facts]
    packages = ", ".join(f"{name} {version}" for name, version in info["packages"].items())
    return "\n".join([*lines, f"python: {info['python']} ({packages})", f"system: {info['system']}"])


def _library(name: str, version: str | None) -> str:
    if version is None:
        return f"no {name}"
    return version if version.lower().startswith(name) else f"{name} {version}"


def main(arguments: list[str]) -> int:
    """`replay-server --version [--json]`."""
    info = build_info()
    print(json.dumps(info, indent=2) if arguments == ["--json"] else describe(info))
    return 0
