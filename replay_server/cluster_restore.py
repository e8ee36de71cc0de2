"""A checkpoint of shards as the files that others begin with, which are in another folder, and perhaps not as many."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from .cluster_address import even_slots
from .cluster_checkpoint import folder_of, read_checkpoint
from .cluster_members import FILE
from .cluster_reshard import reshard
from .errors import ServerError
from .snapshot_file import new_name
from .table import Table
from .topology import MOST_SHARDS, Topology


def bring_here(
    manifest: Path, directory: Path, shards: int, tables: Iterable[Table], made: list[Path]
) -> tuple[Topology, list[int], list[str]]:
    """Makes the snapshots of new shards out of those of a checkpoint that is elsewhere. As many shards go on as they
    were. Others have slots in equal parts, and new ids.

    Args:
        manifest: of the checkpoint; its folder stays as it is.
        directory: of the new shards, in which nothing of a cluster may be.
        shards: how many.
        tables: the new shards have these instead of those of the same names.
        made: gets the folders that are new, also where this fails.

    Returns:
        The topology that they begin with, their numbers, and their snapshots in the same order.

    Raises:
        ServerError: the checkpoint is not whole or does not fit; or the snapshots cannot be written.
    """
    there = manifest.parent / FILE
    taken = [name for name in (FILE, *(f"shard-{n}" for n in range(MOST_SHARDS))) if (directory / name).exists()]
    if taken:
        raise ServerError(f"{directory} holds {taken[0]} already: restore {manifest} in another directory")
    now = Topology.from_json(there.read_text()) if there.exists() else None
    topology, files = read_checkpoint(manifest, now)
    as_many = len(files) == shards
    if not as_many and topology.leaving:
        raise ServerError(f"{manifest} is of shards of which one was leaving: restore it on {len(files)} shards first")
    numbers = [shard.number for shard in topology.shards][:shards]
    if len(numbers) < shards:
        first = topology.next_number(shards - len(numbers))
        numbers += range(first, first + shards - len(numbers))
    name = new_name()
    out = [folder_of(directory, number) / name for number in numbers]
    try:
        for file in out:
            file.parent.mkdir(parents=True)
            made.append(file.parent)
        if as_many:
            for source, file in zip(files, out, strict=True):
                shutil.copyfile(source, file)
        else:
            place = {shard.number: at for at, shard in enumerate(topology.shards)}
            before = [place[owner] for owner in topology.owners()]
            after = [at for at in range(shards) for _ in even_slots(at, shards)]
            reshard(files, before, {table.name: table for table in tables}, numbers, after, out)
            topology = replace(topology, shards=())
    except OSError as error:
        raise ServerError(f"the snapshots of the new shards cannot be written: {error}") from error
    return topology, numbers, [str(file) for file in out]
