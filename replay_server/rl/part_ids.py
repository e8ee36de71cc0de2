"""Which actor of a run is which, and that it has one learner: an id is held on the server, and free when its part ends.

It is held by a lease: the key ``<table>:<part>-id:<number>`` with its holder's token, gone after `LEASE_S` seconds.
Taking is SET NX, so that of several one gets it. Renewing only ever prolongs: a part that was away for longer finds
another's token there, and takes another id. So two have the same one until the next renewal at most.
"""

from __future__ import annotations

import itertools
import secrets
from typing import Literal

import replay_server as rs
from replay_server.rl.shared_settings import incarnations_key

LEASE_S = 10.0
"""A part that has not renewed its lease for so long is taken for dead."""
_LEASE_MS = round(LEASE_S * 1000)
_OF_THE_JOB = "job"


class PartId:
    """The id of a part of the run at `table`: the smallest that is free, or the one that is wanted.

    `number` is the id, −1 before it has one.
    """

    def __init__(self, table: str, part: Literal["actor", "learner"], wanted: int | None = None) -> None:
        self.number = -1
        self.part = part
        self._table, self._wanted = table, wanted
        self._token = secrets.token_hex(8).encode()

    def take(self, client: rs.Client) -> bool:
        """Whether it has an id now; False where the one that is wanted is another's."""
        for number in itertools.count() if self._wanted is None else (self._wanted,):
            if client.redis.set(_key(self._table, self.part, number), self._token, nx=True, px=_LEASE_MS):
                self.number = number
                return True
        return False

    def renew(self, client: rs.Client) -> bool:
        """Keeps the id, or takes the smallest that is free where it went to another part; whether it is another id."""
        key, before = _key(self._table, self.part, self.number), self.number
        if client.redis.get(key) == self._token:
            client.redis.pexpire(key, _LEASE_MS)
        elif not client.redis.set(key, self._token, nx=True, px=_LEASE_MS):
            self._wanted = None
            self.take(client)
        return self.number != before

    def free(self, client: rs.Client) -> None:
        """Gives it back."""
        key = _key(self._table, self.part, self.number)
        if client.redis.get(key) == self._token:
            client.redis.delete(key)


def hold_for_job(client: rs.Client, table: str, actors: int) -> None:
    """Keeps the ids of the parts that a job starts by itself, and starts again: its learner's, and 0 … actors − 1."""
    keys = [_key(table, "learner", 0), *(_key(table, "actor", number) for number in range(actors))]
    client.redis.mset(dict.fromkeys(keys, _OF_THE_JOB))


def joined_actors(client: rs.Client, table: str, own: int) -> int:
    """How many living actors there are beside those of a job, which has `own`."""
    ids = [int(number) for number in client.redis.hkeys(incarnations_key(table))]
    keys = [_key(table, "actor", number) for number in ids if number >= own]
    return client.redis.exists(*keys) if keys else 0


def _key(table: str, part: str, number: int) -> str:
    return f"{table}:{part}-id:{number}"
