"""Checkpoints of a whole cluster: the snapshots of all shards in one folder, and the manifest that names them."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from .client import Client
from .cluster_shards import Shards, newest_of, place_of
from .errors import ServerError
from .topology import Topology
from .whole_file import write_whole

CHECKPOINT_FILE = "checkpoint.json"
"""In the cluster's folder: the manifest of the last checkpoint of all shards."""


def write_checkpoint(directory: Path, urls: Mapping[int, str], topology: Topology, ask: Callable[[], Topology]) -> Path:
    """Has each shard write a snapshot, all at about the same time, and then writes the manifest.

    Args:
        directory: the cluster's folder, with a folder of each shard in it.
        urls: of all shards, by number.
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
    if absent := [number for number in urls if not folder_of(directory, number).is_dir()]:
        raise ServerError(
            f"expected the folders of all shards in {directory} of this host, and shard-{absent[0]} is not there: "
            "checkpoint where all of them can be seen"
        )
    with ThreadPoolExecutor(len(urls)) as pool:
        files = list(pool.map(_saved, urls.values()))
    if ask().version != topology.version:
        raise ServerError("expected the topology to stay while the shards were cut, and it has changed: try again")
    names = [os.path.relpath(file, directory) for file in files]
    manifest = directory / CHECKPOINT_FILE
    try:
        write_whole(manifest, json.dumps({"topology": json.loads(topology.to_json()), "snapshots": names}))
    except OSError as error:
        raise ServerError(f"{manifest} cannot be written: {error.strerror or error}") from error
    return manifest


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
    if others := [number for number, folder in folders.items() if folder != folder_of(directory, number)]:
        raise ServerError(
            f"expected all shards to be run by one supervisor, in one folder, and shard {others[0]} is in "
            f"{folders[others[0]]}, not in {directory}"
        )
    urls = {shard.number: shards.url_of(place_of(shard)) for shard in shards.topology.shards}
    return write_checkpoint(
        directory, urls, shards.topology, lambda: newest_of(shards.clients.values(), shards.topology)
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
        raise ServerError(f"{manifest} names {missing[0]}, which is not there any more (setting snapshot-keep)")
    version = max(topology.version, now.version if now else 0)
    gone = topology.gone | (now.gone if now else frozenset())
    gone -= {shard.number for shard in topology.shards}
    return replace(topology, version=version, gone=gone), [os.path.abspath(name) for name in names]


def folder_of(directory: Path, number: int) -> Path:
    """The folder of a shard's files in that of its cluster."""
    return directory / f"shard-{number}"


def _saved(url: str) -> str:
    with Client(url) as client:
        return client.checkpoint()
