"""One server, looked at once a second over one connection, whoever watches: what it says, and what it said before."""

from __future__ import annotations

import contextlib
import math
import time
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import redis
import redis.exceptions

from replay_server.connection import Address
from replay_server.dashboard.history import History

TIMEOUT_S = 3.0
"""Patience with a server; after that it counts as lost until it answers again."""
MOST_TABLES = 64
"""Tables looked at one by one; INFO's totals are of all of them."""
MOST_WEIGHTS = 32
"""Keys of weights looked at."""
MOST_ACTORS = 4096
FURTHER_ACTORS = 16
"""Actors looked for beyond those known of a table that has a learner or an actor."""
SECTIONS = (
    "server", "transport", "clients", "memory", "stats", "cpu", "replay", "gradients", "commandstats", "latencystats",
    "errorstats", "requests",
)  # fmt: skip
RECENT = 10
"""Readings over which the rate of one actor is taken: actors report about once a second."""
ACTOR_FIELDS = (
    "frames", "steps_per_s", "episodes", "score_mean", "version", "blocked_s", "push_s", "started_at", "updated_at",
)  # fmt: skip
LATENCIES = {"add": "replay.add", "item": "replay.item", "sample": "replay.sample", "update": "replay.update"}
"""Short names of the commands whose latency is shown."""


@dataclass(frozen=True)
class Reading:
    """What one look brought."""

    time_s: float
    """Seconds since 1970."""
    info: Mapping[str, Any] = field(default_factory=dict)
    """INFO, fields with parts as maps."""
    tables: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """REPLAY.INFO of each table."""
    learners: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """What the learner of a table reports, where there is one."""
    actors: Mapping[str, Mapping[int, Mapping[str, float]]] = field(default_factory=dict)
    """What the actors of a table report, by their number."""
    weights: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """WEIGHTS.INFO of each key; none of a server of an earlier version."""
    error: str = ""
    """Why there is nothing: the server did not answer."""


class ServerSource:
    """A server by its URL. `look` asks it (and may be called in another thread), `take` brings the state up to date.

    Attributes:
        name: the URL without a password.
        number: its own among all that are watched.
        state: "connecting", "up", "lost".
        reading: the newest that brought something.
        history: numbers of the whole server; counters as they count.
        tables: numbers of each table.
        restarts: when it was seen to be another process than before, seconds since 1970.
        lost_s: since when it has not answered, None while it does.
    """

    def __init__(self, url: str) -> None:
        self.address = Address.parse(url)
        self.url = url
        self.name = str(self.address)
        self.number = 0
        self.state = "connecting"
        self.error = ""
        self.reading = Reading(0.0)
        self.history = History()
        self.tables: dict[str, History] = {}
        self.restarts: list[float] = []
        self.lost_s: float | None = None
        self._heard: dict[str, dict[int, tuple[float, float]]] = {}
        """Of each actor: the time that its newest report bears, by its own clock, and when that came here, by ours."""
        self._recent: deque[Reading] = deque(maxlen=RECENT)
        self.looks = 0
        """How often it was looked at: who shows it sees by that whether there is anything new."""
        self._weights: list[str] = []
        self._connection: redis.Redis | None = None

    def close(self) -> None:
        """Closes the connection; the next look opens another one."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    # -- asking

    def look(self) -> Reading:
        """Asks the server; a reading with an error where it does not answer, or refuses."""
        now = time.time()
        try:
            return self._look(now)
        except (redis.exceptions.RedisError, OSError, ValueError) as error:
            self.close()
            return Reading(now, error=" ".join(str(error).split()) or type(error).__name__)

    def _connected(self) -> redis.Redis:
        if self._connection is None:
            self._connection = redis.Redis.from_url(
                self.url,
                max_connections=1,
                socket_timeout=TIMEOUT_S,
                socket_connect_timeout=TIMEOUT_S,
                decode_responses=True,
                encoding_errors="replace",
                client_name="dashboard",
                **self.address.redis_options(),
            )
        return self._connection

    def _look(self, now: float) -> Reading:
        connection = self._connected()
        names = list(self.reading.tables)[:MOST_TABLES]
        places = {name: self._own(f"{name}:actor:{{}}", self._places(name)) for name in names}
        learner_of = {name for name in names if self._own(f"{name}:learner", [0])}
        ask = connection.pipeline(transaction=False)
        ask.execute_command("INFO", *SECTIONS)
        ask.execute_command("REPLAY.LIST")
        ask.execute_command("WEIGHTS.LIST")
        keys = list(self._weights)[:MOST_WEIGHTS]
        for key in keys:
            ask.execute_command("WEIGHTS.INFO", key)
        for name in names:
            ask.execute_command("REPLAY.INFO", name)
            if name in learner_of:
                ask.execute_command("HGETALL", f"{name}:learner")
            for index in places[name]:
                ask.execute_command("HMGET", f"{name}:actor:{index}", *ACTOR_FIELDS)
        answers = iter(ask.execute(raise_on_error=False))
        info, listed, published = next(answers), next(answers), next(answers)
        for answer in (info, listed):
            if isinstance(answer, Exception):
                raise answer
        weights = {key: next(answers) for key in keys}
        weights = {key: as_map(each) for key, each in weights.items() if isinstance(each, list | dict)}
        weights = {key: each for key, each in weights.items() if each.get("version", -1) >= 0}
        # Those that are new are asked about with the next look.
        self._weights = [str(key) for key in published] if isinstance(published, list) else []
        tables, learners, actors = {}, {}, {}
        for name in names:
            about = next(answers)
            learner = next(answers) if name in learner_of else {}
            reports = {index: next(answers) for index in places[name]}
            if not isinstance(about, Exception):  # It was dropped since.
                tables[name] = as_map(about)
                learners[name] = _numbers(learner) if isinstance(learner, dict) else {}
                actors[name] = {
                    index: _numbers(dict(zip(ACTOR_FIELDS, values)))
                    for index, values in reports.items()
                    if isinstance(values, list) and any(value is not None for value in values)
                }
        more = [str(name) for name in listed if str(name) not in tables]
        if more and len(tables) < MOST_TABLES:
            ask = connection.pipeline(transaction=False)
            more = more[: MOST_TABLES - len(tables)]
            for name in more:
                ask.execute_command("REPLAY.INFO", name)
            for name, about in zip(more, ask.execute(raise_on_error=False)):
                if not isinstance(about, Exception):
                    tables[name] = as_map(about)
        return Reading(now, info, tables, learners, actors, weights)

    @property
    def _known(self) -> Reading:
        """The reading that says which actors there are."""
        return self.reading

    def _own(self, key: str, numbers: Iterable[int]) -> list[int]:
        """Those numbers whose key this server may have; `key` has {} in its place."""
        return list(numbers)

    def _places(self, table: str) -> Iterable[int]:
        """Numbers of actors to ask for: those there are and some more, none where nobody reports."""
        known = self._known.actors.get(table, {})
        if not known and not self._known.learners.get(table):
            return range(1)
        return range(min(max(known, default=-1) + 1 + FURTHER_ACTORS, MOST_ACTORS))

    # -- keeping

    def take(self, reading: Reading) -> None:
        """Makes a reading the newest, and adds its numbers to the history."""
        self.looks += 1
        if reading.error:
            self.error = reading.error
            if self.state != "lost":
                self.lost_s = reading.time_s
                self.history.add(reading.time_s, {})
                for history in self.tables.values():
                    history.add(reading.time_s, {})
            self.state = "lost"
            return
        before = self.reading.info.get("run_id")
        if before is not None and before != reading.info.get("run_id"):
            self.restarts.append(reading.time_s)
            self._recent.clear()
            self._heard.clear()
        self._recent.append(reading)
        self._hear(reading)
        known = self.reading.actors
        self.state, self.error, self.lost_s, self.reading = "up", "", None, reading
        self.history.add(reading.time_s, _server_numbers(reading.info))
        for name in [name for name in self.tables if name not in reading.tables]:
            del self.tables[name]
        for name, about in reading.tables.items():
            numbers = _table_numbers(about, reading, name)
            if reading.actors.get(name, {}).keys() != known.get(name, {}).keys():
                numbers["frames"] = None  # Of other actors than before: what they played until now is no rate.
            self.tables.setdefault(name, History()).add(reading.time_s, numbers)

    def _hear(self, reading: Reading) -> None:
        for table, reports in reading.actors.items():
            heard = self._heard.setdefault(table, {})
            for index, report in reports.items():
                stamp = report.get("updated_at", 0.0)
                if index not in heard or heard[index][0] != stamp:
                    heard[index] = (stamp, reading.time_s)

    # -- what is asked of it often

    @property
    def process(self) -> str:
        """Tells the process that answers from any other at the same address; "" before the first answer."""
        return str(self.reading.info.get("run_id", ""))

    @property
    def weight_keys(self) -> int:
        """How many keys of weights there are."""
        return len(self._weights)

    def silent_s(self, table: str, actor: int) -> float:
        """Seconds since an actor's report was last seen to change; actors' clocks may go as they like."""
        stamp = self._heard.get(table, {}).get(actor)
        return max(0.0, self.reading.time_s - stamp[1]) if stamp else 0.0

    def frame_rate(self, table: str, actor: int) -> float | None:
        """Frames a second of one actor over the last readings; None where it is not known, or began again since."""
        seen = [(each.time_s, each.actors.get(table, {}).get(actor, {})) for each in self._recent]
        seen = [(time_s, report) for time_s, report in seen if "frames" in report]
        if len(seen) < 2:
            return None
        (begin_s, before), (end_s, after) = seen[0], seen[-1]
        grown = after["frames"] - before["frames"]
        return grown / (end_s - begin_s) if grown >= 0 and end_s > begin_s else None

    @property
    def latency(self) -> dict[str, dict[str, float]]:
        """Microseconds by command and percentile: {"replay.add": {"p50": …, "p99": …}}, since the server began."""
        prefix = "latency_percentiles_usec_"
        return {
            name.removeprefix(prefix): dict(value)
            for name, value in self.reading.info.items()
            if name.startswith(prefix) and isinstance(value, dict)
        }

    @property
    def calls(self) -> dict[str, dict[str, float]]:
        """calls, usec_per_call, failed_calls, … by command."""
        return {
            name.removeprefix("cmdstat_"): dict(value)
            for name, value in self.reading.info.items()
            if name.startswith("cmdstat_") and isinstance(value, dict)
        }


def as_map(answer: Any) -> dict[str, Any]:
    """A map as RESP2 or RESP3 has it; numbers that come as strings as numbers, maps within as maps of numbers."""
    pairs = answer.items() if isinstance(answer, dict) else zip(answer[::2], answer[1::2])
    return {str(name): _number(value) for name, value in pairs}


def _number(value: Any) -> Any:
    if isinstance(value, str):
        try:
            return float(value) if any(letter in value for letter in ".en") else int(value)
        except ValueError:
            return value
    return value


def _numbers(fields: Mapping[str, Any]) -> dict[str, float]:
    found = {}
    for name, value in fields.items():
        with contextlib.suppress(TypeError, ValueError):
            if math.isfinite(number := float(value)):
                found[name] = number
    return found


def _server_numbers(info: Mapping[str, Any]) -> dict[str, float | None]:
    names = (
        "used_memory", "used_memory_rss", "connected_clients", "blocked_clients", "total_commands_processed",
        "total_net_input_bytes", "total_net_output_bytes", "gradients_waiting",
        "gradients_applied", "gradients_pushed", "gradients_dropped",
    )  # fmt: skip
    found: dict[str, float | None] = {name: info[name] for name in names if isinstance(info.get(name), int | float)}
    found["cpu_s"] = float(info.get("used_cpu_user_main_thread", 0)) + float(info.get("used_cpu_sys_main_thread", 0))
    # A wait that was not met is answered by an error, as actors and learners expect it to be.
    timeouts = info.get("errorstat_TIMEOUT")
    found["timeouts"] = float(timeouts.get("count", 0)) if isinstance(timeouts, dict) else 0.0
    if isinstance(info.get("total_error_replies"), int):
        found["errors"] = info["total_error_replies"] - found["timeouts"]
    for short, command in LATENCIES.items():
        recent = info.get(f"request_{command}")
        if isinstance(recent, dict):
            found |= {f"{short}_{name}": recent.get(f"answer_us_{name}") or None for name in ("p50", "p99")}
    return found


def _table_numbers(about: Mapping[str, Any], reading: Reading, name: str) -> dict[str, float | None]:
    names = (
        "size", "bytes", "added", "sampled", "removed", "stale_updates", "updates_applied", "waiting_add",
        "waiting_sample", "max_priority", "total_priority",
    )  # fmt: skip
    found: dict[str, float | None] = {each: about[each] for each in names if isinstance(about.get(each), int | float)}
    found["samples_per_insert"] = about["sampled"] / about["added"] if about.get("added") else None
    learner, actors = reading.learners.get(name, {}), reading.actors.get(name, {})
    if learner:
        wanted = ("loss", "td_error", "mean_q", "gradient_norm", "updates", "version", "waiting_share")
        found |= {f"learner_{each}": learner.get(each) for each in wanted}
    if actors:
        scores = sorted(each["score_mean"] for each in actors.values() if each.get("episodes") and "score_mean" in each)
        if scores:
            found |= {"score_min": scores[0], "score_median": scores[len(scores) // 2], "score_max": scores[-1]}
        found["frames"] = sum(each.get("frames", 0.0) for each in actors.values())
        found["staleness"] = staleness(learner, actors.values())
    return found


def staleness(learner: Mapping[str, float], actors: Iterable[Mapping[str, float]]) -> float | None:
    """Learner steps between the newest weights and the oldest that an actor plays with; None without both."""
    versions = [max(0.0, each.get("version", -1.0)) for each in actors]
    return max(0.0, learner["version"] - min(versions)) if versions and "version" in learner else None
