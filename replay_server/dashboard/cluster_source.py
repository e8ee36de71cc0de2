"""A cluster, looked at as one server: its shards' numbers together, each shard's own, and the topology."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import redis
import redis.exceptions

from replay_server.cluster_address import ClusterAddress, slot_of
from replay_server.cluster_tables import whole_info
from replay_server.dashboard.server_source import Reading, ServerSource
from replay_server.topology import SlotRange, Topology

MOST_AT_ONCE = 16
"""Shards that are asked at the same time."""
_SUMS = (
    "used_memory", "used_memory_rss", "maxmemory", "connected_clients", "blocked_clients", "total_commands_processed",
    "total_net_input_bytes", "total_net_output_bytes", "total_error_replies", "used_cpu_user_main_thread",
    "used_cpu_sys_main_thread", "gradients_waiting", "gradients_applied", "gradients_pushed", "gradients_dropped",
)  # fmt: skip
_LARGEST = ("latency_percentiles_usec_", "request_")
"""How what of INFO is a latency begins: the slowest shard's."""


class ShardSource(ServerSource):
    """One shard of a cluster. Keys are spread over shards, and so are the reports of learner and actors."""

    def __init__(self, url: str, cluster: ClusterSource) -> None:
        super().__init__(url)
        self._cluster = cluster
        self.told: Topology | None = None
        """The topology as it told it last; None of a server that has none."""
        self.slots: Sequence[SlotRange] | None = None
        """Of keys, as the cluster's topology says; None where there is none."""

    @property
    def _known(self) -> Reading:
        return self._cluster.reading

    def _own(self, key: str, numbers: Iterable[int]) -> list[int]:
        if self.slots is None:
            return list(numbers)
        slots = self.slots
        return [
            number
            for number in numbers
            if any(first <= slot <= last for slot in [slot_of(key.format(number))] for first, last in slots)
        ]

    def look(self) -> Reading:
        reading = super().look()
        if not reading.error:
            with contextlib.suppress(redis.exceptions.RedisError, OSError, ValueError):
                self.told = Topology.from_json(self._connected().execute_command("CLUSTER", "TOPOLOGY"))
        return reading


class ClusterSource(ServerSource):
    """Shards as one server: what is shown of a server is there of all of them together.

    While a shard does not answer, the whole counts as lost: the numbers would be those of a part.

    Attributes:
        shards: by number; before one has told the topology, by the place in the URL.
        topology: the newest that a shard has told; None = none has.
    """

    def __init__(self, url: str) -> None:
        self.cluster = ClusterAddress.of_client(url)
        super().__init__(self.cluster.servers[0].url)
        self.url, self.name = url, str(self.cluster)
        self.shards = {place: ShardSource(each.url, self) for place, each in enumerate(self.cluster.servers)}
        self.topology: Topology | None = None
        self._looked: Mapping[int, Reading] = {}

    def close(self) -> None:
        for shard in self.shards.values():
            shard.close()

    def look(self) -> Reading:
        """Asks every shard, all at once; those, too, that a topology names and nobody knew of."""
        self._looked = self._ask()
        if self._follow():
            self._looked = self._ask()
        return _whole(self._looked)

    def take(self, reading: Reading) -> None:
        for number, each in self._looked.items():
            if number in self.shards:
                self.shards[number].take(each)
        super().take(reading)

    @property
    def moving_slots(self) -> int:
        """Slots of keys that are on their way to another shard."""
        moves = self.topology.moves if self.topology else ()
        return sum(last - first + 1 for first, last in (move.slots for move in moves))

    def _ask(self) -> dict[int, Reading]:
        shards = self.shards
        with ThreadPoolExecutor(min(MOST_AT_ONCE, len(shards))) as pool:
            return dict(zip(shards, pool.map(ShardSource.look, shards.values()), strict=True))

    def _follow(self) -> bool:
        """Takes over the newest topology; whether its shards are others than those that were asked."""
        told = [shard.told for shard in self.shards.values() if shard.told is not None and shard.told.shards]
        newest = max(told, key=lambda each: each.version, default=None)
        if newest is None or (self.topology is not None and newest.version <= self.topology.version):
            return False
        self.topology = newest
        known = {str(shard.address): shard for shard in self.shards.values()}
        shards: dict[int, ShardSource] = {}
        for place in newest.shards:
            source = ShardSource(self.cluster.url_of(place.host, place.port, place.tls_port), self)
            source = known.pop(str(source.address), source)
            source.slots = place.slots
            shards[place.number] = source
        for gone in known.values():
            gone.close()
        changed = list(shards.items()) != list(self.shards.items())
        self.shards = shards
        return changed


def _whole(readings: Mapping[int, Reading]) -> Reading:
    """What all shards say, as one server would say it."""
    parts = list(readings.values())
    time_s = min(part.time_s for part in parts)
    if lost := {number: part.error for number, part in readings.items() if part.error}:
        return Reading(time_s, error="; ".join(f"shard {number}: {error}" for number, error in lost.items()))
    names = dict.fromkeys(name for part in parts for name in part.tables)
    return Reading(
        time_s,
        _whole_of_info([part.info for part in parts]),
        {name: _whole_of_table(name, readings) for name in names},
        {name: _joined(part.learners.get(name, {}) for part in parts) for name in names},
        {name: _joined(part.actors.get(name, {}) for part in parts) for name in names},
        _joined(part.weights for part in parts),
    )


def _joined(maps: Any) -> dict[Any, Any]:
    """Each key is on one shard."""
    return {key: value for each in maps for key, value in each.items()}


def _whole_of_info(infos: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    whole = dict(infos[0])
    whole.update({name: sum(info.get(name, 0) for info in infos) for name in _SUMS if name in whole})
    whole["run_id"] = " ".join(str(info.get("run_id")) for info in infos)
    whole["process_id"] = ", ".join(str(info.get("process_id")) for info in infos)
    whole["tables"] = max(info.get("tables", 0) for info in infos)
    for name in dict.fromkeys(name for info in infos for name in info):
        maps = [value for info in infos if isinstance(value := info.get(name), dict)]
        if name.startswith(_LARGEST):
            whole[name] = _merged(maps, max)
        elif name.startswith(("cmdstat_", "errorstat_")):
            whole[name] = _merged(maps, sum)
    return whole


def _merged(maps: Sequence[Mapping[str, Any]], how: Any) -> dict[str, Any]:
    return {name: how([each[name] for each in maps if name in each]) for name in dict.fromkeys(_joined(maps))}


def _whole_of_table(name: str, readings: Mapping[int, Reading]) -> dict[str, Any]:
    """As the client puts it together, with the histogram of priorities as REPLAY.INFO has it."""
    parts = {number: part.tables[name] for number, part in readings.items() if name in part.tables}
    whole = whole_info({number: {**part, "priorities": dict(part["priorities"])} for number, part in parts.items()})
    del whole["shards"]
    return {**whole, "priorities": list(whole["priorities"].items())}
