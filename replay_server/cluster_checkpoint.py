"""Checkpoints of a whole cluster: the snapshots of all shards in one folder, and the manifest that names them."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from .at_once import at_once
from .client import Client
from .cluster_shards import Shards, newest_of
from .errors import ServerError
from .topology import Topology
from .whole_file import write_whole

CHECKPOINT_FILE = "checkpoint.json"
"""In the cluster's folder: the manifest of the last checkpoint of all shards."""
_LOCK_FILE = "checkpoint.lock"
_OWN_NAME = re.compile(r"cluster-checkpoint-(\d+)\.snapshot")
"""Of the files that manifests name. The servers do not remove them, since they have names."""


def write_checkpoint(
    directory: Path,
    urls: Mapping[int, str],
    folders: Mapping[int, Path],
    topology: Topology,
    ask: Callable[[], Topology],
) -> Path:
    """Has each shard write a snapshot, all at about the same time, and then writes the manifest. The snapshots of the
    one before are removed then. Waits for another one that is being written.

    Args:
        directory: the cluster's folder.
        urls: of all shards, by number.
        folders: of the servers that lead, in `directory`.
        topology: theirs.
        ask: the newest one that they have.

    Returns:
        The manifest.

    Raises:
        ServerError: slots move, a shard's folder is not here, the topology changed meanwhile, or the manifest cannot
            be written. The manifest of before stays.
        ReplayError: a shard could not write its snapshot.
    """
    if topology.moves:
        raise ServerError("expected no slot to be moving while shards are cut: finish the move, then try again")
    if absent := [folder.name for folder in folders.values() if not folder.is_dir()]:
        raise ServerError(
            f"expected the folders of all shards in {directory} of this host, and {absent[0]} is not there: "
            "checkpoint where all of them can be seen"
        )
    manifest = directory / CHECKPOINT_FILE
    with _alone(directory):
        name = f"cluster-checkpoint-{_number(manifest) + 1}"  # an attempt that failed may have left such files
        files = at_once(lambda url: _saved(url, name), urls.values())
        if _places(ask()) != _places(topology):
            raise ServerError("expected the topology to stay while the shards were cut, and it has changed: try again")
        names = [os.path.relpath(file, directory) for file in files]
        try:
            write_whole(manifest, json.dumps({"topology": json.loads(topology.to_json()), "snapshots": names}))
        except OSError as error:
            raise ServerError(f"{manifest} cannot be written: {error.strerror or error}") from error
        for file in directory.glob("shard-*/*.snapshot"):
            if _OWN_NAME.fullmatch(file.name) and file.stem != name:
                with contextlib.suppress(OSError):  # the next checkpoint tries again
                    file.unlink()
    return manifest


def _places(topology: Topology) -> Topology:
    """Without what goes up and down while the shards stay as they are: the list of replicas that can be read from."""
    return replace(topology, version=0, shards=tuple(replace(shard, replicas=()) for shard in topology.shards))


@contextlib.contextmanager
def _alone(directory: Path) -> Iterator[None]:
    """Nobody else writes a checkpoint there meanwhile."""
    file = directory / _LOCK_FILE
    with contextlib.ExitStack() as stack:
        try:
            fcntl.flock(stack.enter_context(open(file, "w")), fcntl.LOCK_EX)
        except OSError as error:
            raise ServerError(f"{file} cannot be locked: {error.strerror or error}") from error
        yield


def _number(manifest: Path) -> int:
    """Of the checkpoint that a manifest names; 0: there is none."""
    try:
        names = json.loads(manifest.read_text())["snapshots"]
        matches = [_OWN_NAME.fullmatch(os.path.basename(name)) for name in names]
    except FileNotFoundError:
        return 0
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ServerError(f"{manifest} cannot be read: {error}; if it is of no use, remove it") from error
    return max((int(match[1]) for match in matches if match), default=0)


def checkpoint_of(shards: Shards) -> Path:
    """`write_checkpoint` of a cluster that another process of this host runs, or of a folder that all hosts share.

    Raises:
        ServerError: there too, or it is no cluster, or its shards are in folders of several supervisors.
        ReplayError: as there.
    """
    folders = {number: Path(str(client.config_get("dir")["dir"])) for number, client in shards.clients.items()}
    if not folders:
        raise ServerError("expected a cluster, and these servers have no topology")
    directory = next(iter(folders.values())).parent
    if others := [number for number, folder in folders.items() if not _is_of(folder, directory, number)]:
        raise ServerError(
            f"expected all shards to be run by one supervisor, in one folder, and shard {others[0]} is in "
            f"{folders[others[0]]}, not in {directory}"
        )
    urls = {shard.number: shards.url_of(shards.place(shard)) for shard in shards.topology.shards}
    return write_checkpoint(
        directory, urls, folders, shards.topology, lambda: newest_of(shards.clients.values(), shards.topology)
    )


def read_checkpoint(manifest: Path, now: Topology | None) -> tuple[Topology, list[str]]:
    """What a manifest says.

    Args:
        manifest: the file.
        now: the topology that its cluster has had since.

    Returns:
        The topology of the checkpoint, as it is to follow `now`, and the absolute paths of the snapshots.

    Raises:
        ServerError: it cannot be read, or names a snapshot that is not there any more.
    """
    try:
        told = json.loads(manifest.read_text())
        topology = Topology.from_json(json.dumps(told["topology"]))
        names = [str(manifest.parent / name) for name in told["snapshots"]]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ServerError(f"{manifest} cannot be read: {error}") from error
    if missing := [name for name in names if not os.path.exists(name)]:
        raise ServerError(f"{manifest} names {missing[0]}, which is not there any more")
    version = max(topology.version, now.version if now else 0)
    gone = topology.gone | (now.gone if now else frozenset())
    gone -= {shard.number for shard in topology.shards}
    return replace(topology, version=version, gone=gone), [os.path.abspath(name) for name in names]


def folder_of(directory: Path, number: int, generation: int = 0) -> Path:
    """The folder of a shard's files in that of its cluster. Replicas that took its place have generations from 1 on."""
    return directory / (f"shard-{number}-{generation}" if generation else f"shard-{number}")


def _is_of(folder: Path, directory: Path, number: int) -> bool:
    """Whether it is one of a shard's folders there."""
    generation = folder.name.removeprefix(f"shard-{number}").removeprefix("-")
    return folder == folder_of(directory, number, int(generation) if generation.isdigit() else 0)


def _saved(url: str, name: str) -> str:
    with Client(url) as client:
        return client.checkpoint(name)
