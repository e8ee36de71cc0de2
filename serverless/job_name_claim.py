"""A job's claim on its name on a server, and the removal of what it leaves there.

Several jobs share a server: all that one has is named after it (`replay_server.rl.function_contract.Names`), and a name
belongs to one job at a time. The claim is a key with an expiry that is renewed while the job lives, so that the name of
a job that was killed is free again after `CLAIM_S`.

The claim is a lock of redis-py, which renews and gives back in one step what is still this job's. A lock says nothing
of other keys, so a job removes what it has by a script that looks at the claim first: each removal happens while the
claim is this job's, or not at all. A job that was stopped for too long never touches what the next owner of the name
has.

A script reaches one shard, so on shards all keys of a job have the slot of the claim. The table has a part on every
shard, out of a script's reach. There each run has a table of its own: the tables are listed first, the claim is looked
at next, and what was listed is dropped last. The next owner begins after that look, so its table is not on the list.
"""

from __future__ import annotations

import contextlib
import threading
import uuid
from collections.abc import Iterator

import redis.exceptions
from redis.lock import Lock

import replay_server as rs
from replay_server.rl.function_contract import Names

CLAIM_S = 30
"""How long a claim holds that nobody renews, in seconds."""
KEYS_AT_ONCE = 500
"""Keys that one script removes."""
REFUSALS = (rs.ReplayError, redis.exceptions.RedisError, redis.exceptions.RedisClusterException, OSError)
"""What is raised where a server does not do what it is asked, or is away."""

Command = tuple[str | bytes, ...]

_IF_HELD = """
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
redis.call(ARGV[2], unpack(KEYS, 2))
return 1
"""
"""Keys: the claim, then what a command takes. Arguments: the claim's token, the command. Answer: 1, or 0 where the
claim is not this job's, and nothing was done."""


class JobInUse(Exception):
    """Another job of that name lives on the server."""


class JobNameClaim:
    """The claim of one job. A context manager; its end gives the name back.

    What an earlier job of this name has left is removed at the beginning.

    Args:
        keep: leave table and weights where they are at the end.

    Raises:
        JobInUse: the name belongs to a job that lives.
    """

    def __init__(self, client: rs.Client, names: Names, keep: bool = False) -> None:
        self._client = client
        self._names = names
        self._keep = keep
        self._token = uuid.uuid4().hex
        self._ended = threading.Event()
        self._lost = threading.Event()
        if names.job in client.tables():
            raise JobInUse(
                f"expected job name {names.job!r} to be free on this server, and a table has it: give another"
            )
        self._lock = Lock(client.redis, self._key, timeout=CLAIM_S, thread_local=False)
        if not self._lock.acquire(blocking=False, token=self._token):
            raise JobInUse(
                f"expected job name {names.job!r} to be free on this server, and a job of that name runs: give another "
                f"--job, or wait {CLAIM_S} s if it was killed"
            )
        self._renewing = threading.Thread(target=self._renew_while_it_lives, name="lease", daemon=True)
        self._renewing.start()
        try:
            self._remove_job()
        except BaseException:
            self._keep = True
            self.close()
            raise

    def __enter__(self) -> JobNameClaim:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Removes what the job has on the server, unless it is to be kept, and gives the name back."""
        if self._ended.is_set():
            return
        with contextlib.suppress(*REFUSALS):
            if not self._keep:
                self._remove_job()  # This may take long: the claim is renewed meanwhile.
        self._ended.set()
        self._renewing.join(5.0)
        with contextlib.suppress(*REFUSALS):
            self._lock.release()

    @property
    def _key(self) -> str:
        return f"{self._names.prefix}:lease"

    def check(self) -> None:
        """Raises JobInUse where the claim has passed to another job: this one was not there to renew it in time."""
        if self._lost.is_set():
            raise JobInUse(
                f"the claim on job name {self._names.job!r} was not renewed for {CLAIM_S} s, and another job has that "
                "name now: this one ends, and leaves to the other what is on the server; resume it under another --job"
            )

    def renew(self) -> None:
        """Makes the claim hold for `CLAIM_S` from now, if nobody else has it; `check` tells."""
        try:
            self._lock.reacquire()
        except redis.exceptions.LockError:
            # It expired (this process was stopped, or the server away), and may be another's by now.
            if not self._ended.is_set() and not self._lock.acquire(blocking=False, token=self._token):
                self._lost.set()

    def _renew_while_it_lives(self) -> None:
        while not self._ended.wait(CLAIM_S / 3):
            with contextlib.suppress(*REFUSALS):
                self.renew()

    def _if_held(self, command: str | bytes, *names: str | bytes) -> bool:
        """Gives a command these names, in one step with a look at the claim; whether it was this job's."""
        keys = [self._key, *names]
        return self._client.redis.eval(_IF_HELD, len(keys), *keys, self._token, command) == 1

    def _remove_job(self) -> None:
        """Removes what any job of this name has on the server, the claim apart, as long as the claim is this job's."""
        names = self._names
        tables = [each for each in self._client.tables() if names.shards and each.startswith(names.tables)]
        if all(self._if_held(*command) for command in _removal(self._client, names, but=self._key)):
            for table in tables:
                with contextlib.suppress(rs.TableNotFound):  # of a job that ended before all shards had it
                    self._client.drop_table(table)


def _removal(client: rs.Client, names: Names, but: str) -> Iterator[Command]:
    """Commands that remove what a job has on the server, the key `but` apart, and on shards the tables."""
    if not names.shards and names.fragments in client.tables():
        yield "REPLAY.DROP", names.fragments
    yield "WEIGHTS.DEL", *names.weights
    if gradients := [key for key in client.gradient_keys() if key.startswith(f"{names.prefix}:")]:
        yield "GRAD.DEL", *gradients
    keys: list[bytes] = []
    for key in client.redis.scan_iter(match=f"{names.prefix}:*", count=1000):
        if key != but.encode():
            keys.append(key)
        if len(keys) == KEYS_AT_ONCE:
            yield "DEL", *keys
            keys = []
    if keys:
        yield "DEL", *keys
