"""Which actor of a run is which, and that it has one learner: an id is held on the server, and free when its part ends.

It is held by a lease: the key ``<table>:<part>-id:<number>`` with its holder's token, gone after `LEASE_S` seconds. The
lease is a lock of redis-py: of several parts one takes it. The server compares the token and prolongs or removes the
key in one step, so a part never touches a lease that has passed to another. A part that was away for longer finds at
its next renewal that the lease is gone, and takes another id. So two have the same one until the next renewal at most.

The token names the process that holds the lease. A part on the same host that finds this process ended takes the id at
once; elsewhere it waits until the lease ends.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import secrets
from pathlib import Path
from typing import Literal

from redis.exceptions import LockError
from redis.lock import Lock

import replay_server as rs
from replay_server.rl.shared_settings import incarnations_key

LEASE_S = 10.0
"""A part that has not renewed its lease for so long is taken for dead."""
_OF_THE_JOB = "job"


class PartId:
    """The id of a part of the run at `table`: the smallest that is free, or the one that is wanted.

    `number` is the id, −1 before it has one.
    """

    def __init__(self, table: str, part: Literal["actor", "learner"], wanted: int | None = None) -> None:
        self.number = -1
        self.part = part
        self._table, self._wanted = table, wanted
        self._token = f"{_own_host()}/{os.getpid()}/{_begun(os.getpid())}/{secrets.token_hex(8)}"
        self._lock: Lock | None = None

    def take(self, client: rs.Client) -> bool:
        """Whether it has an id now; False where the one that is wanted is another's."""
        for number in itertools.count() if self._wanted is None else (self._wanted,):
            # Another thread than the one that takes it may renew it.
            lock = Lock(client.redis, _key(self._table, self.part, number), timeout=LEASE_S, thread_local=False)
            if lock.acquire(blocking=False, token=self._token) or self._take_over(lock):
                self.number, self._lock = number, lock
                return True
        return False

    def _take_over(self, lock: Lock) -> bool:
        """Takes an id whose holder has ended without giving it back."""
        holder = lock.redis.get(lock.name)
        if not isinstance(holder, bytes) or not _has_ended(holder.decode(errors="replace")):
            return False
        with contextlib.suppress(LockError):  # Its lease has just ended, or another part did the same.
            lock.do_release(holder.decode())
        return lock.acquire(blocking=False, token=self._token)

    def renew(self, client: rs.Client) -> bool:
        """Keeps the id, or takes the smallest that is free where it went to another part; whether it is another id."""
        before, lock = self.number, self._held_through(client)
        try:
            lock.reacquire()
        except LockError:  # The lease ended before it was renewed.
            if not lock.acquire(blocking=False, token=self._token):
                self._wanted = None
                self.take(client)
        return self.number != before

    def free(self, client: rs.Client) -> None:
        """Gives it back, if it still has it."""
        if self._lock is not None:
            with contextlib.suppress(LockError):
                self._held_through(client).release()

    def _held_through(self, client: rs.Client) -> Lock:
        """The lock of the id that it has, on a connection that is open now: they are replaced after an outage."""
        if self._lock is None:
            raise ValueError(f"expected a part that has taken an id, got {self.part} without one: call take first")
        self._lock.redis = client.redis
        return self._lock


def hold_for_job(client: rs.Client, table: str, actors: int) -> None:
    """Keeps the ids of the parts that a job starts by itself, and starts again: its learner's, and 0 … actors − 1."""
    keys = [_key(table, "learner", 0), *(_key(table, "actor", number) for number in range(actors))]
    held = client.redis.pipeline(transaction=False)  # the keys of a cluster are on several shards
    for key in keys:
        held.set(key, _OF_THE_JOB)
    held.execute()


def joined_actors(client: rs.Client, table: str, own: int) -> int:
    """How many living actors there are beside those of a job, which has `own`."""
    ids = [int(number) for number in client.redis.hkeys(incarnations_key(table))]
    keys = [_key(table, "actor", number) for number in ids if number >= own]
    return client.redis.exists(*keys) if keys else 0


def _key(table: str, part: str, number: int) -> str:
    return f"{table}:{part}-id:{number}"


# ---- the process that a token names ----------------------------------------------------------------------------------


def _own_host() -> str:
    """This run of the host, and this process's namespace of process ids: a container has one of its own."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot}/{os.readlink('/proc/self/ns/pid')}"


def _begun(process: int) -> str:
    """When a process that lives began, in the kernel's ticks; "" = there is none."""
    try:
        state, *fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if state in "ZX" else fields[18]


def _has_ended(token: str) -> bool:
    """Whether it names a process of this host that has ended. What it cannot see from here, it takes for alive."""
    host, _, names = token.rpartition("]/")
    process, _, more = names.partition("/")
    return f"{host}]" == _own_host() and process.isdigit() and _begun(int(process)) != more.partition("/")[0]
