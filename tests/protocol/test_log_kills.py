"""Servers are killed at random moments under load. Their append-only files must bring back what was acknowledged.

Each kill is SIGKILL to the process: the machine goes on, so what was written is there. Lost power, where only what was
fsynced is there, is simulated by `tests/native/test_failing_machine.c`.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import redis
from test_table_log import COLUMNS, batch, kill, serve, wait_until

import replay_server as rs
from replay_server.bench.result import machine

PUSHERS = 4
KEYS_EACH = 10_000_000
"""Items that a pusher may name."""
PUBLISH_EACH = 16
"""After so many gradients they are published together."""
NAMES_KEPT = 4000
"""Of a key's gradients: the server remembers the newest 4,096 names."""
KINDS = ("items", "updates", "deletions", "weights", "gradients")
SEED = 0


class Pusher(threading.Thread):
    """One client. It sends one request after the other, and notes what it asked for and when it was answered."""

    def __init__(self, url: str, number: int, seed: list[int]) -> None:
        super().__init__()
        self.client, self.number, self.rng = rs.Client(url, reconnect_timeout=0.0), number, np.random.default_rng(seed)
        self.sent = Counter[str]()
        self.ids: dict[int, tuple[int, float, float]] = {}
        """By key: id, priority and time."""
        self.updating: dict[int, float] = {}
        self.updated: dict[int, float] = {}
        self.deleting: set[int] = set()
        self.deleted: dict[int, float] = {}
        self.published: dict[str, list[float]] = {f"w{number}": [], f"p{number}": []}
        """By key of weights: when version 1, 2, … was acknowledged."""
        self.pushed: list[float] = []
        self.failure: BaseException | None = None

    def run(self) -> None:
        try:
            while True:
                self._turn()
        except (redis.ConnectionError, ConnectionError):
            pass
        except BaseException as error:
            self.failure = error

    def _ask(self, *words: Any) -> tuple[Any, float]:
        return self.client.redis.execute_command(*words), time.monotonic()

    def _turn(self) -> None:
        n = int(self.rng.integers(1, 20))
        keys = self.number * KEYS_EACH + self.sent["items"] + np.arange(n)
        priorities = self.rng.random(n) + 0.5
        self.sent["items"] += n
        columns = [word for name, data in batch(keys).items() for word in (name, data.tobytes())]
        ids, at = self._ask("REPLAY.ADD", "t", n, priorities.tobytes(), "COLUMNS", 2, *columns)
        items = np.frombuffer(ids, np.uint64).tolist()
        self.ids |= {
            key: (item, priority, at)
            for key, item, priority in zip(keys.tolist(), items, priorities.tolist(), strict=True)
        }
        chosen = self.rng.choice(keys, min(3, n), replace=False).tolist()
        chosen_ids = np.array([self.ids[key][0] for key in chosen], np.uint64)
        again = self.rng.random(len(chosen)) + 2
        self.updating |= dict(zip(chosen, again.tolist(), strict=True))
        _, at = self._ask("REPLAY.UPDATE", "t", chosen_ids.tobytes(), again.tobytes())
        self.updated |= dict.fromkeys(chosen, at)
        self.deleting.add(chosen[0])
        _, self.deleted[chosen[0]] = self._ask("REPLAY.DEL", "t", chosen_ids[:1].tobytes())
        self._publish(f"w{self.number}", "WEIGHTS.PUBLISH", f"w{self.number}", "*")
        self.sent["gradients"] += 1
        number = len(self.pushed)
        _, at = self._ask("GRAD.PUSH", f"g{self.number}", 0, number, "float32", np.full(4, number, "<f4").tobytes())
        self.pushed.append(at)
        if len(self.pushed) % PUBLISH_EACH == 0:
            key = f"p{self.number}"
            version, names = len(self.published[key]) + 1, range(len(self.pushed) - PUBLISH_EACH, len(self.pushed))
            self._publish(key, "GRAD.PUBLISH", f"g{self.number}", version, PUBLISH_EACH, *names, key)

    def _publish(self, key: str, *words: Any) -> None:
        """The blob is the version as text."""
        self.sent[key] += 1
        _, at = self._ask(*words, str(self.sent[key]))
        self.published[key].append(at)


class Outcome:
    """What one kill has left of what was acknowledged.

    `counts` has for each kind how many were acknowledged, how many of these were found and how many were lost, and how
    many are there more often than they were sent. An item that is gone and was to be deleted counts for its update and
    its deletion, not as an item.
    """

    def __init__(self, killed_at: float) -> None:
        self.killed_at = killed_at
        self.counts = Counter(
            {f"{kind}.{what}": 0 for kind in KINDS for what in ("acknowledged", "found", "lost", "doubled")}
        )
        self.oldest_lost_s = 0.0
        self._found_at, self._lost_at = float("-inf"), float("inf")

    def check(self, client: rs.Client, pushers: list[Pusher], added: int, updated: int) -> None:
        """`added`, `updated`: the table's counters at the start."""
        info = client.info("t")
        drawn = client.sample("t", info["size"], replace=False) if info["size"] else None
        keys = drawn.data["key"].tolist() if drawn else []
        there = dict(zip(keys, drawn.ids.tolist(), strict=True)) if drawn else {}
        priorities = priorities_of(client, there)
        sent = sum(pusher.sent["items"] for pusher in pushers)
        self.counts["items.doubled"] += len(keys) - len(there) + max(0, info["added"] - added - sent)
        sent = sum(len(pusher.updating) for pusher in pushers)
        self.counts["updates.doubled"] += max(0, info["updates_applied"] - updated - sent)
        for pusher in pushers:
            self._found_at, self._lost_at = float("-inf"), float("inf")
            self._check_items(pusher, there, priorities)
            for key in pusher.published:
                self._check_weights(client, pusher, key)
            self._check_gradients(client, pusher)
            assert self._found_at < self._lost_at, "something is there that was acknowledged after what is lost"
        assert all(key % KEYS_EACH < pushers[key // KEYS_EACH].sent["items"] for key in there), "nobody sent an item"

    def _acknowledged(self, kind: str, at: float, is_there: bool) -> None:
        self.counts[f"{kind}.acknowledged"] += 1
        self.counts[f"{kind}.{'found' if is_there else 'lost'}"] += 1
        if is_there:
            self._found_at = max(self._found_at, at)
        else:
            self._lost_at = min(self._lost_at, at)
            self.oldest_lost_s = max(self.oldest_lost_s, self.killed_at - at)

    def _check_items(self, pusher: Pusher, there: dict[int, int], priorities: dict[int, float]) -> None:
        for key, (item, priority, at) in pusher.ids.items():
            if key not in there and key in pusher.deleting:
                for kind, done in (("updates", pusher.updated), ("deletions", pusher.deleted)):
                    for what in ("acknowledged", "found"):
                        self.counts[f"{kind}.{what}"] += key in done
                continue
            self._acknowledged("items", at, key in there)
            if key in pusher.deleted:
                self._acknowledged("deletions", pusher.deleted[key], False)
            is_updated = False
            if key in there:
                assert there[key] == item, "an item has another id than was acknowledged"
                is_updated = key in pusher.updating and np.isclose(priorities[key], pusher.updating[key], rtol=1e-12)
                assert is_updated or np.isclose(priorities[key], priority, rtol=1e-12), "a priority that nobody gave"
            if key in pusher.updated:
                self._acknowledged("updates", pusher.updated[key], is_updated)

    def _check_weights(self, client: rs.Client, pusher: Pusher, key: str) -> None:
        version, blob = client.redis.execute_command("WEIGHTS.GET", key) or (0, b"0")
        assert int(blob) == version, "weights of another version"
        self.counts["weights.doubled"] += max(0, version - pusher.sent[key])
        for number, at in enumerate(pusher.published[key], 1):
            self._acknowledged("weights", at, number <= version)

    def _check_gradients(self, client: rs.Client, pusher: Pusher) -> None:
        """Each waits once, with its vector, or was applied once: with the weights that were published of it."""
        waiting: list[int] = []
        key, first = f"g{pusher.number}", max(0, pusher.sent["gradients"] - NAMES_KEPT)
        if client.redis.execute_command("GRAD.INFO", key)[b"waiting"]:
            names, _, _, vectors = client.redis.execute_command("GRAD.TAKE", key, 1024)
            waiting = [int(name) for name in names]
            assert [np.frombuffer(vector, "<f4").tolist() for vector in vectors] == [[n] * 4 for n in waiting]
        version, _ = client.redis.execute_command("WEIGHTS.GET", f"p{pusher.number}") or (0, b"")
        applied = range(first, version * PUBLISH_EACH)
        names = range(first, pusher.sent["gradients"])
        states = dict(zip(names, client.redis.execute_command("GRAD.STATE", key, *names), strict=True))
        assert [name for name in names if states[name] == b"applied"] == list(applied), "not those of the weights"
        assert {name for name in names if states[name] == b"waiting"} == set(waiting)
        self.counts["gradients.doubled"] += len(waiting) - len(set(waiting)) + len(set(waiting) & set(applied))
        for number, at in list(enumerate(pusher.pushed))[first:]:
            self._acknowledged("gradients", at, states[number] in (b"waiting", b"applied"))


def priorities_of(client: rs.Client, there: dict[int, int]) -> dict[int, float]:
    """By key: the priorities that the items are drawn with. Their sum must be the table's total."""
    client.configure("t", sampler=rs.Prioritized(1.0))
    keys, found = list(there), dict[int, float]()
    total = client.info("t")["total_priority"]
    for start in range(0, len(keys), 5000):
        some = keys[start : start + 5000]
        got = client.get("t", np.array([there[key] for key in some], np.uint64))
        found |= dict(zip(some, (got.probabilities * total).tolist(), strict=True))
    np.testing.assert_allclose(sum(found.values()), total, rtol=1e-9)
    return found


def kill_under_load(folder: Path, policy: str, seconds: float, seed: list[int]) -> Outcome:
    table = rs.Table("t", 1_000_000, COLUMNS, sampler=rs.Uniform())
    with serve(folder, table, policy=policy) as (server, client):
        client.reset("t")
        for number in range(PUSHERS):
            client.redis.execute_command("WEIGHTS.DEL", f"w{number}", f"p{number}")
            client.redis.execute_command("GRAD.DEL", f"g{number}")
        before = client.info("t")
        pushers = [Pusher(server.url, number, [*seed, number]) for number in range(PUSHERS)]
        for pusher in pushers:
            pusher.start()
        wait_until(lambda: all(pusher.pushed or pusher.failure for pusher in pushers))
        time.sleep(seconds)
        outcome = Outcome(time.monotonic())
        kill(server)
        for pusher in pushers:
            pusher.join()
            assert pusher.failure is None, pusher.failure
    with serve(folder) as (_, client):
        outcome.check(client, pushers, before["added"], before["updates_applied"])
    return outcome


def kills(folder: Path, policy: str, number: int, least_s: float, spread_s: float) -> list[Outcome]:
    """As many kills, each after a random time of load, of servers that go on with the same files.

    The counts of each are written to kills.json, in the folder that REPLAY_RECORDS names, if any.
    """
    rng = np.random.default_rng(SEED)
    outcomes = [
        kill_under_load(folder, policy, least_s + spread_s * float(rng.random()), [SEED, turn])
        for turn in range(number)
    ]
    if records := os.environ.get("REPLAY_RECORDS"):
        file = Path(records) / "kills.json"
        file.parent.mkdir(parents=True, exist_ok=True)
        record = json.loads(file.read_text()) if file.exists() else {"name": "kills"}
        each = {name: [one.counts[name] for one in outcomes] for name in outcomes[0].counts}
        oldest_lost_s = [round(one.oldest_lost_s, 6) for one in outcomes]
        record[policy] = {
            "machine": machine(),
            "seed": SEED,
            "kills": number,
            "load_s": [least_s, least_s + spread_s],
            "total": {name: sum(counts) for name, counts in each.items()},
            "greatest": {"oldest_lost_s": max(oldest_lost_s)},
            "each": {name: counts for name, counts in each.items() if any(counts)} | {"oldest_lost_s": oldest_lost_s},
        }
        file.write_text(json.dumps(record, indent=1) + "\n")
    return outcomes


SLOW = [pytest.mark.slow, pytest.mark.timeout(3600)]


@pytest.mark.parametrize("number", [3, pytest.param(200, marks=SLOW)])
def test_a_kill_under_load_loses_and_doubles_nothing_acknowledged_with_always(tmp_path: Path, number: int) -> None:
    for outcome in kills(tmp_path, "always", number, 0.0, 0.4):
        assert outcome.counts["gradients.acknowledged"] > 0
        assert {name: n for name, n in outcome.counts.items() if n and name.endswith(("lost", "doubled"))} == {}


@pytest.mark.parametrize("number", [1, pytest.param(50, marks=SLOW)])
def test_a_kill_under_load_loses_only_what_is_newest_with_everysec(tmp_path: Path, number: int) -> None:
    for outcome in kills(tmp_path, "everysec", number, 1.2, 1.0):
        assert outcome.counts["gradients.found"] > 0
        assert {name: n for name, n in outcome.counts.items() if n and name.endswith("doubled")} == {}
        if number == 50:
            assert outcome.oldest_lost_s <= 1.1
