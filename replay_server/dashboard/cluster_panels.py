"""What is shown of a cluster beside what is shown of a server: its shards, how even they are, its topology."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from replay_server.dashboard import words
from replay_server.dashboard.cluster_source import ClusterSource, ShardSource
from replay_server.dashboard.view import Cells, Fact, Panel, Tile


def shard_tiles(cluster: ClusterSource) -> list[Tile]:
    """How many shards there are, the topology, and how many samples were not used."""
    return [
        Tile("Shards", lambda: _shards(cluster)),
        Tile("Topology", lambda: _topology(cluster)),
        Tile("Surplus", lambda: _surplus(cluster)),
    ]


def shard_panel(cluster: ClusterSource) -> Panel:
    """A row for each shard."""
    return Panel(
        "Shards", 12, rows=lambda: shard_rows(cluster), height=112,
        columns=(("name", "shard"), ("state", "state"), ("items", "items"), ("share", "of all"),
                 ("priority", "of all priority"), ("added", "added/s"), ("sampled", "sampled/s"),
                 ("surplus", "surplus"), ("memory", "memory"), ("processor", "processor"), ("slots", "slots"),
                 ("moving", "slots that move")),
    )  # fmt: skip


def shard_facts(cluster: ClusterSource) -> dict[int, dict[str, Any]]:
    """Numbers of each shard as they are, by its number; None for what is not known."""
    sums = {number: _sums(shard) for number, shard in cluster.shards.items()}
    all_items = sum(each["items"] for each in sums.values())
    all_priority = sum(each["total_priority"] for each in sums.values())
    places = {place.number: place for place in cluster.topology.shards} if cluster.topology else {}
    moves = cluster.topology.moves if cluster.topology else ()
    found: dict[int, dict[str, Any]] = {}
    for number, shard in cluster.shards.items():
        own = sums[number]
        slots = places[number].slots if number in places else None
        found[number] = {
            "url": shard.name,
            "state": shard.state,
            "error": shard.error,
            **own,
            "share_of_items": own["items"] / all_items if all_items else None,
            "share_of_priority": own["total_priority"] / all_priority if all_priority else None,
            "added_per_s": _rate(shard, "added"),
            "sampled_per_s": _rate(shard, "sampled"),
            "surplus": _share_unused([own]),
            "used_memory": shard.reading.info.get("used_memory"),
            "processor": _newest(shard.history.rate("cpu_s")),
            "slots": None if slots is None else _count(slots),
            "slots_leaving": _count([move.slots for move in moves if move.source == number]),
            "slots_coming": _count([move.slots for move in moves if move.target == number]),
        }
    return found


def shard_rows(cluster: ClusterSource) -> list[dict[str, Any]]:
    """The same in words."""
    cells = Cells()
    for number, facts in shard_facts(cluster).items():
        leaving, coming = facts["slots_leaving"], facts["slots_coming"]
        moving = [f"{words.number(leaving)} leave"] * bool(leaving) + [f"{words.number(coming)} come"] * bool(coming)
        cells.add(
            name=f"{number} · {facts['url'].partition('://')[2]}",
            state=facts["state"],
            tone="" if facts["state"] == "up" else "warn",
            items=words.number(facts["items"]),
            share=words.percent(facts["share_of_items"]),
            priority=words.percent(facts["share_of_priority"]),
            added=words.number(facts["added_per_s"]),
            sampled=words.number(facts["sampled_per_s"]),
            surplus=words.percent(facts["surplus"]),
            memory=words.size(facts["used_memory"]),
            processor=words.percent(facts["processor"]),
            slots=words.number(facts["slots"]),
            moving=", ".join(moving) or words.NOTHING,
        )
    return cells.rows


def _shards(cluster: ClusterSource) -> Fact:
    up = sum(shard.state == "up" for shard in cluster.shards.values())
    shares = [facts["share_of_items"] for facts in shard_facts(cluster).values()]
    known = [share for share in shares if share is not None]
    detail = f"{words.percent(min(known))} to {words.percent(max(known))} of the items each" if known else ""
    return Fact(f"{up} of {len(cluster.shards)} up", detail, "" if up == len(cluster.shards) else "bad")


def _topology(cluster: ClusterSource) -> Fact:
    if cluster.topology is None:
        return Fact(words.NOTHING, "the shards have none")
    moving = cluster.moving_slots
    return Fact(f"version {cluster.topology.version}", f"{words.number(moving)} slots move", "warn" if moving else "")


def _surplus(cluster: ClusterSource) -> Fact | None:
    """Clients tell it to rate limiters that count samples alone; there is nothing to show of other tables."""
    share = _share_unused([_sums(shard) for shard in cluster.shards.values()])
    return None if share is None else Fact(words.percent(share), "of what was sampled was not used")


def _share_unused(sums: list[Mapping[str, float]]) -> float | None:
    sampled, unused = (sum(each[name] for each in sums) for name in ("sampled_where_told", "unused"))
    return unused / sampled if sampled else None


def _sums(shard: ShardSource) -> dict[str, float]:
    tables = list(shard.reading.tables.values())
    told = [about for about in tables if about.get("unused")]
    return {
        "items": sum(about.get("size", 0) for about in tables),
        "total_priority": sum(about.get("total_priority", 0.0) for about in tables),
        "sampled_where_told": sum(about.get("sampled", 0) for about in told),
        "unused": sum(about["unused"] for about in told),
    }


def _count(slots: Any) -> int:
    return sum(last - first + 1 for first, last in slots)


def _rate(shard: ShardSource, name: str) -> float | None:
    rates = [_newest(history.rate(name)) for history in shard.tables.values()]
    return sum(rate for rate in rates if rate is not None) if any(rate is not None for rate in rates) else None


def _newest(rates: list[float | None]) -> float | None:
    return rates[-1] if rates else None
