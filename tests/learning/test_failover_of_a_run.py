"""An Ape-X run whose server has a replica: learner, actor and evaluator go on there, whatever made it the primary.

The parts are real processes with nothing but the two hosts' URL. Sentinel is Redis's own.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from forked_program import ForkedProgram
from links import eventually, fail_over, sentinel_of
from replica_tables import Member, serve

RUN = [
    "--env", "CartPole-v1", "--actors", "1", "--envs-per-actor", "2", "--min-size-to-sample", "200", "--hidden", "16",
    "--eval-episodes", "1", "--eval-every-updates", "50", "--final-episodes", "0", "--precision", "float32",
    "--targets-ahead", "off", "--minutes", "30",
]  # fmt: skip
LONGEST_S = 600.0


class Parts:
    """Learner, actor and evaluator at the same server."""

    def __init__(self, url: str, folder: Path) -> None:
        self._folder = folder
        further = {
            "learner": [*RUN, "--logdir", str(folder / "run")],
            "actor": [],
            "evaluator": ["--logdir", str(folder / "evaluator")],
        }
        self._processes = {}
        for part, words in further.items():
            command = [part, "--server", url, *words]
            self._processes[part] = ForkedProgram(command, folder, folder / f"{part}.log")

    def reach(self, server: Member, updates: int) -> None:
        """Waits until the server has been told of so many updates."""
        self._wait(lambda: int(server.redis.hget("apex:learner", "updates") or 0) >= updates)

    def evaluate(self, server: Member) -> None:
        """Waits for another evaluation."""
        before = server.redis.llen("apex:evaluations")
        self._wait(lambda: server.redis.llen("apex:evaluations") > before)

    def end(self) -> None:
        """Ends the learner, as by Ctrl-C: it closes the table, and the others end by themselves."""
        self._processes["learner"].send_signal(signal.SIGINT)
        for part, process in self._processes.items():
            assert process.wait(LONGEST_S) == (130 if part == "learner" else 0), self._printed(part)

    def kill(self) -> None:
        for process in self._processes.values():
            process.kill()
            process.wait()

    def _wait(self, holds: Callable[[], bool]) -> None:
        deadline = time.monotonic() + LONGEST_S
        while not holds():
            assert time.monotonic() < deadline, "".join(map(self._printed, self._processes))
            for part, process in self._processes.items():
                assert process.poll() is None, self._printed(part)
            time.sleep(0.05)

    def _printed(self, part: str) -> str:
        return f"{part}:\n{(self._folder / f'{part}.log').read_text()}\n"


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[tuple[Member, Member]]:
    """A primary and its replica, both with a log."""
    kept = {"appendonly": "yes", "appendfsync": "everysec"}
    with serve(tmp_path / "primary", **kept) as primary, serve(tmp_path / "replica", **kept) as replica:
        replica.follow(primary.port)
        yield primary, replica


@pytest.fixture
def parts(pair: tuple[Member, Member], tmp_path: Path) -> Iterator[Parts]:
    begun = Parts(f"redis://{','.join(f'127.0.0.1:{each.port}' for each in pair)}", tmp_path)
    yield begun
    begun.kill()


def counts(server: Member) -> tuple[int, int]:
    """(transitions that the actor says were taken, items that the table was ever given)."""
    about: Any = server.client.info("apex")
    return int(server.redis.hget("apex:actor:0", "transitions") or 0), int(about["added"])


def test_a_run_goes_on_when_its_primary_is_killed_and_sentinel_chooses_the_replica(
    pair: tuple[Member, Member], parts: Parts, tmp_path: Path
) -> None:
    primary, replica = pair
    with sentinel_of(primary.port, tmp_path) as sentinel:
        eventually(lambda: sentinel.discover_slaves("mine"), "Sentinel knows the replica")
        parts.reach(primary, 100)
        acknowledged = primary.redis.hget("apex:learner", "updates")
        assert primary.redis.wait(1, 60_000) == 1
        fail_over(sentinel, primary.kill, replica.port)
        parts.reach(replica, int(acknowledged) + 100)
        parts.evaluate(replica)
    parts.end()


def test_a_planned_change_of_places_loses_and_doubles_no_transition(pair: tuple[Member, Member], parts: Parts) -> None:
    primary, replica = pair
    parts.reach(primary, 50)
    primary.redis.execute_command("FAILOVER")
    eventually(lambda: replica.redis.info("replication")["role"] == "master", "the replica is the primary")
    parts.reach(replica, 150)
    eventually(lambda: primary.redis.info("replication").get("master_link_status") == "up", "they changed places")
    replica.redis.execute_command("FAILOVER")  # and back
    eventually(lambda: primary.redis.info("replication")["role"] == "master", "they changed places again")
    parts.reach(primary, 250)
    parts.end()
    said, given = counts(primary)
    assert said == given
