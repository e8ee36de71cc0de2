"""Which actor of a run is which: an id is held on the server by a lease, and is free again when its actor has ended.

The lease of actor i is the key ``<table>:actor-id:<i>`` with its holder's token, and is gone after `LEASE_S` seconds.
Taking is SET NX, so that of several one gets it. Renewing only ever prolongs: an actor that was away for longer finds
another's token there, and takes another id. So two have the same one until the next renewal at most.
"""

from __future__ import annotations

import itertools
import secrets

import replay_server as rs
from replay_server.rl.shared_settings import incarnations_key

LEASE_S = 10.0
"""An actor that has not renewed its lease for so long is taken for dead."""
_OF_THE_JOB = "job"


class ActorId:
    """The id of an actor of the run at `table`: the smallest that is free, or the one that is wanted.

    `number` is the id, −1 before it has one.
    """

    def __init__(self, table: str, wanted: int | None = None) -> None:
        self.number = -1
        self._table, self._wanted = table, wanted
        self._token = secrets.token_hex(8).encode()

    def take(self, client: rs.Client) -> bool:
        """Whether it has an id now; False where the one that is wanted is another's."""
        for number in itertools.count() if self._wanted is None else (self._wanted,):
            if client.redis.set(_key(self._table, number), self._token, nx=True, px=_LEASE_MS):
                self.number = number
                return True
        return False

    def renew(self, client: rs.Client) -> bool:
        """Keeps the id, or takes the smallest that is free where it went to another actor; whether it is another id."""
        key, before = _key(self._table, self.number), self.number
        if client.redis.get(key) == self._token:
            client.redis.pexpire(key, _LEASE_MS)
        elif not client.redis.set(key, self._token, nx=True, px=_LEASE_MS):
            self._wanted = None
            self.take(client)
        return self.number != before

    def free(self, client: rs.Client) -> None:
        """Gives it back."""
        key = _key(self._table, self.number)
        if client.redis.get(key) == self._token:
            client.redis.delete(key)


def hold_for_job(client: rs.Client, table: str, actors: int) -> None:
    """Keeps the ids 0 … actors − 1 for the actors that a job starts by itself, and starts again."""
    client.redis.mset({_key(table, number): _OF_THE_JOB for number in range(actors)})


def joined_actors(client: rs.Client, table: str, own: int) -> int:
    """How many living actors there are beside those of a job, which has `own`."""
    ids = [int(number) for number in client.redis.hkeys(incarnations_key(table))]
    return client.redis.exists(*keys) if (keys := [_key(table, number) for number in ids if number >= own]) else 0


_LEASE_MS = round(LEASE_S * 1000)


def _key(table: str, number: int) -> str:
    return f"{table}:actor-id:{number}"
