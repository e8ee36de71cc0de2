"""A job's claim on its name on a server, and the removal of what it leaves there.

Several jobs share a server: all that one has is named after it (`replay_server.rl.function_contract.Names`), and a name
belongs to one job at a time. The claim is a key with an expiry that is renewed while the job lives, so that the name of
a job that was killed is free again after `LEASE_S`.
"""

from __future__ import annotations

import contextlib
import threading
import uuid
from typing import Any

import redis.exceptions

import replay_server as rs
from replay_server.rl.function_contract import Names
from replay_server.rl.gradient_queue import remove_gradients

LEASE_S = 30
"""How long a claim holds that nobody renews, in seconds."""


class JobInUse(Exception):
    """Another job of that name lives on the server."""


class Lease:
    """The claim of one job. A context manager; its end gives the name back.

    What a job of this name that is no more has left is removed at the beginning.

    Args:
        keep: leave table and weights where they are at the end.

    Raises:
        JobInUse: the name belongs to a job that lives.
    """

    def __init__(self, client: rs.Client, names: Names, keep: bool = False) -> None:
        self._client = client
        self._names = names
        self._keep = keep
        self._token = uuid.uuid4().hex.encode()
        self._ended = threading.Event()
        self._lost = threading.Event()
        if names.job in client.tables():
            raise JobInUse(
                f"expected job name {names.job!r} to be free on this server, and a table has it: give another"
            )
        if not client.redis.set(self._key, self._token, nx=True, ex=LEASE_S):
            raise JobInUse(
                f"expected job name {names.job!r} to be free on this server, and a job of that name runs: give another "
                f"--job, or wait {LEASE_S} s if it was killed"
            )
        remove_job(client, names, but=self._key)
        self._renewing = threading.Thread(target=self._renew_while_it_lives, name="lease", daemon=True)
        self._renewing.start()

    def __enter__(self) -> Lease:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Removes what the job has on the server, if that is to be, and gives the name back."""
        if self._ended.is_set():
            return
        self._ended.set()
        self._renewing.join(5.0)
        with contextlib.suppress(rs.ReplayError, redis.exceptions.RedisError, OSError):
            if self._stored() != self._token:
                return  # It expired, and another job may live under this name.
            if not self._keep:
                remove_job(self._client, self._names, but=self._key)
            self._client.redis.delete(self._key)

    @property
    def _key(self) -> str:
        return f"{self._names.job}:lease"

    def _stored(self) -> Any:
        return self._client.redis.get(self._key)

    def check(self) -> None:
        """Raises JobInUse where the claim has passed to another job: this one was not there to renew it in time."""
        if self._lost.is_set():
            raise JobInUse(
                f"the claim on job name {self._names.job!r} was not renewed for {LEASE_S} s, and another job has that "
                "name now: this one ends, and leaves to the other what is on the server; resume it under another --job"
            )

    def renew(self) -> None:
        """Makes the claim hold for `LEASE_S` from now, if nobody else has it; `check` tells."""
        # It may have expired meanwhile (this process was stopped, the server away), and the key be another's.
        if self._stored() == self._token:
            self._client.redis.expire(self._key, LEASE_S)
        elif not self._client.redis.set(self._key, self._token, nx=True, ex=LEASE_S):
            self._lost.set()

    def _renew_while_it_lives(self) -> None:
        while not self._ended.wait(LEASE_S / 3):
            with contextlib.suppress(rs.ReplayError, redis.exceptions.RedisError, OSError):
                self.renew()


def remove_job(client: rs.Client, names: Names, but: str = "") -> None:
    """Removes a job's table, weights, gradients and keys; what belongs to others stays. The key `but` stays, too."""
    with contextlib.suppress(rs.TableNotFound):
        client.drop_table(names.fragments)
    client.redis.execute_command("WEIGHTS.DEL", *names.weights)
    remove_gradients(client, names)
    for key in client.redis.scan_iter(match=f"{names.job}:*", count=1000):
        if key != but.encode():
            client.redis.delete(key)
