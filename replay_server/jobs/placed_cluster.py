"""Starts, finds and ends a cluster whose shards Ray has placed (`replay_server.jobs.ray_shards`)."""

from __future__ import annotations

import contextlib
import json
import secrets
import threading
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayError
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group

from replay_server.cluster import ShardNotStarted
from replay_server.codec import pack
from replay_server.errors import ServerError
from replay_server.jobs.job_server import START_WITHIN_S
from replay_server.jobs.ray_shards import DETACHED, NAMESPACE, Supervisor, end_hosts
from replay_server.rl.ray_cluster import RayCluster
from replay_server.table import Table
from replay_server.topology import MOST_SHARDS

ROOM_S = 30.0
"""In which Ray must have found nodes with room."""
_ANSWER_S = 60.0
_LOOK_S = 0.1


def connected(on: str) -> RayCluster:
    """The Ray cluster that is meant by `ray` (one of our own on this host) or `ray:ADDRESS`.

    Raises:
        ServerError: there is none, or another engine is meant.
    """
    engine, _, address = on.partition(":")
    if engine != "ray":
        raise ServerError(f"expected ray or ray:ADDRESS, got {on!r}")
    try:
        return RayCluster(address or None)
    except (ValueError, OSError, RuntimeError) as error:
        raise ServerError(f"expected a Ray cluster {f'at {address}' if address else 'here'}: {error}") from error


class PlacedCluster:
    """A cluster that runs on Ray: what its supervisor tells, and its end.

    Args:
        engine: closed by `close`.
        name: of the cluster.

    Raises:
        ServerError: there is none of that name.
    """

    def __init__(self, engine: RayCluster, name: str) -> None:
        self.engine, self.name = engine, name
        try:
            self._supervisor = ray.get_actor(name, NAMESPACE)
        except ValueError:
            raise ServerError(f"no cluster of the name {name!r} is on this Ray cluster") from None

    @classmethod
    def start(
        cls,
        engine: RayCluster,
        name: str,
        tables: Iterable[Table],
        shards: int,
        per_node: int | None,
        options: Mapping[str, Any],
        lease_s: float = 0.0,
        given_up: threading.Event | None = None,
    ) -> PlacedCluster:
        """Starts one. On a Ray cluster of our own, Ray sets nothing aside: there is but one node.

        Args:
            engine: where.
            name: that no other one has there.
            tables: shared out, as by `Cluster`.
            shards: how many.
            per_node: on each node; None = Ray spreads them as it can.
            options: of `Cluster`: port, password, directory (an absolute path, on every node; None = a temporary one),
                maxmemory, config, restore, start_timeout.
            lease_s: it ends when nobody has called `told` for so long; 0 = never.
            given_up: ends the start with a ServerError once it is set.

        Raises:
            ServerError: the name is taken, Ray has no room, or a shard did not start. Nothing is left behind.
        """
        if not 1 <= shards <= MOST_SHARDS:
            raise ServerError(f"expected 1 to {MOST_SHARDS} shards, got {shards}")
        if per_node is not None and per_node < 1:
            raise ServerError(f"expected at least one shard on a node, got {per_node}")
        with contextlib.suppress(ValueError):
            ray.get_actor(name, NAMESPACE)
            raise ServerError(f"a cluster of the name {name!r} is on this Ray cluster already")
        setup = {
            "tables": [table.pack() for table in tables],
            "shards": shards,
            "per_node": per_node or 1,
            "run": secrets.token_hex(8),
            "lease_s": lease_s,
            "options": dict(options),
        }
        further = {**DETACHED, "name": name}
        group: PlacementGroup | None = None
        cluster: PlacedCluster | None = None
        try:
            if not engine.own:
                group = _group(name, shards, per_node)
                _wait_for_room(group, shards, per_node)
            engine.place(Supervisor, name, group, pack(setup), num_cpus=0, threads=4, further=further)
            cluster = cls(engine, name)
            begun = cluster._supervisor.begin.remote()
            while not ray.wait([begun], timeout=_LOOK_S)[0]:  # shards that load are waited for
                if given_up is not None and given_up.is_set():
                    raise ServerError("the start was given up")
            number, why = ray.get(begun)
            if why:
                raise ServerError(why) if number is None else ShardNotStarted(number, why)
        except BaseException as error:
            try:
                if cluster is not None:
                    cluster.stop(0.0)
            finally:
                if group is not None:
                    remove_placement_group(group)
            if isinstance(error, (RayError, ValueError)):  # ValueError: somebody else has taken the name meanwhile
                raise ServerError(f"Ray did not start the supervisor: {error}") from error
            raise
        return cluster

    def told(self) -> dict[str, Any] | None:
        """What the supervisor tells (`Supervisor.told`); None when it has ended.

        Raises:
            ServerError: it does not answer now, or has not found the shards again.
        """
        try:
            told: Any = ray.get(self._supervisor.told.remote(), timeout=_ANSWER_S)
        except RayError as error:
            if not self._there():
                return None
            raise ServerError(f"the supervisor of {self.name!r} does not answer: {error}") from error
        if not told:
            raise ServerError(f"the supervisor of {self.name!r} has not found all shards again so far")
        return json.loads(told)

    def told_in_time(self, given_up: threading.Event) -> dict[str, Any] | None:
        """`told`, where a supervisor that is away is waited for: Ray starts it again. {} when `given_up` is set first.

        Raises:
            ServerError: it has not answered within `START_WITHIN_S`.
        """
        until = time.monotonic() + START_WITHIN_S
        while not given_up.is_set():
            try:
                return self.told()
            except ServerError:
                if time.monotonic() > until:
                    raise
                given_up.wait(_LOOK_S)
        return {}

    def checkpoint(self) -> Path:
        """As `Cluster.checkpoint`, by the supervisor: the shards' folders must be one that its node can see.

        Returns:
            The manifest, on that node.

        Raises:
            ServerError: as of `Cluster.checkpoint`, or the supervisor does not answer.
        """
        try:
            manifest, why = ray.get(self._supervisor.checkpoint.remote())
        except RayError as error:
            raise ServerError(f"the supervisor of {self.name!r} does not answer: {error}") from error
        if why:
            raise ServerError(why)
        return Path(manifest)

    def stop(self, timeout: float = 10.0) -> None:
        """Ends shards, supervisor and placement group. A server that has not ended after `timeout` s is killed."""
        stopped, until = False, time.monotonic() + timeout + _ANSWER_S
        while not stopped and self._there() and time.monotonic() < until:
            try:
                ray.get(self._supervisor.stop.remote(timeout), timeout=timeout + _ANSWER_S)
                stopped = True
            except RayError:  # Ray starts it again at this moment
                time.sleep(_LOOK_S)
        groups = [] if stopped else _groups(self.name)
        ray.kill(self._supervisor)
        until = time.monotonic() + _ANSWER_S
        while self._there() and time.monotonic() < until:
            time.sleep(_LOOK_S)
        if not stopped:
            for group in groups:
                remove_placement_group(group)
            end_hosts(self.name)

    def _there(self) -> bool:
        try:
            ray.get_actor(self.name, NAMESPACE)
        except ValueError:
            return False
        return True

    def close(self) -> None:
        """Gives Ray up, without an end to the shards unless Ray is our own."""
        self.engine.close()

    def __enter__(self) -> PlacedCluster:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _group(name: str, shards: int, per_node: int | None) -> PlacementGroup:
    """Room for shards, a processor each: with `per_node`, a bundle for a node, and each bundle on another one."""
    bundles = [{"CPU": float(min(per_node or 1, shards - first))} for first in range(0, shards, per_node or 1)]
    return placement_group(
        bundles, "STRICT_SPREAD" if per_node else "SPREAD", name=f"{NAMESPACE}/{name}", lifetime="detached"
    )


def _groups(name: str) -> list[PlacementGroup]:
    """The placement groups of a cluster: Ray finds them by name only for who has made them."""
    return [
        PlacementGroup(ray.PlacementGroupID.from_hex(each["placement_group_id"]))
        for each in ray.util.placement_group_table().values()
        if each["name"] == f"{NAMESPACE}/{name}" and each["state"] != "REMOVED"
    ]


def _wait_for_room(group: PlacementGroup, shards: int, per_node: int | None) -> None:
    if not group.wait(ROOM_S):
        what = f"{group.bundle_count} nodes with {per_node} processors each" if per_node else f"{shards} processors"
        raise ServerError(f"Ray found no {what} free within {ROOM_S:g} s: `ray status` tells what there is")
