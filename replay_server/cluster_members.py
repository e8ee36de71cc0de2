"""How the shards of one supervisor enter a cluster, stay of one mind with the others, and part with those that go."""

from __future__ import annotations

import contextlib
import itertools
import json
import secrets
import shutil
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from urllib.parse import quote, urlsplit

import redis

from .client import Client
from .cluster_address import even_slots
from .cluster_leave import leaving_reason
from .cluster_shards import PATIENCE_S, Shards, impatient, newest, newest_of, place_of, topology_of
from .cluster_tables import part_like
from .errors import ConnectionLost, ServerError
from .server import Server
from .table import Table
from .topology import ShardPlace, Topology, slot_ranges
from .whole_file import write_whole

FILE = "cluster.json"
"""In the cluster's folder: the topology, and which of its shards are of the folder."""
LOOK_S = 0.1
_LINGER_S = 3.0
"""That a shard which was taken out still answers clients that have not noticed."""
_ATTEMPTS = 20
"""To enter a topology that others change at the same time."""


def _is_open(topology: Topology) -> bool:
    """Whether one of the shards answers without a password."""
    for shard in topology.shards:
        with impatient(f"redis://{place_of(shard)}") as client:
            try:
                return bool(client.ping())
            except redis.AuthenticationError:
                return False
            except redis.RedisError:
                continue
    return False


class Members:
    """The shards of one supervisor as members of a cluster; see `cluster.Cluster`."""

    numbers: list[int]
    servers: list[Server]
    _topology: Topology
    _gone: list[tuple[float, Server]]
    """Shards that were taken out, and when they are stopped."""
    _parts: list[tuple[Table, int, str | None]]
    """Of a cluster that was joined: each table as a shard has it, that shard's number, and why it is closed."""
    _turns: itertools.count[int]
    _unwritten = False
    """Whether the topology in the folder is older than `_topology`."""
    _shares: int
    """Over how many shards tables were shared out; some may have been taken out since."""
    _shard_of: str | None
    _password: str | None
    _announced: str
    _directory: Path
    _start_timeout: float

    @property
    def _login(self) -> str:
        return f":{quote(self._password, safe='')}@" if self._password else ""

    def _complete(self, number: int) -> None:
        """Gives a shard the tables that it lacks, as the others have them; as they had them, if none answers.

        It joined, and so follows the shards that somebody else runs; or it was started again from files of before a
        client created them, or from none."""
        beside_it = [shard for shard in self._topology.shards if shard.number != number]
        if self._shard_of is None:
            self._parts = []  # of an earlier restart: a table may have been dropped since
        for beside in self._others(self._topology) or beside_it:
            if beside.number in self._topology.leaving:  # its tables are closed
                continue
            try:
                with Client(
                    self._url_of(beside), connect_timeout=PATIENCE_S, socket_timeout=PATIENCE_S, reconnect_timeout=0.0
                ) as client:
                    infos = {name: client.info(name) for name in client.tables()}
                    if any(info["closed_reason"] == leaving_reason(beside.number) for info in infos.values()):
                        continue  # it began to leave meanwhile
                    self._parts = [
                        (client.table(name), beside.number, info["closed_reason"] if info["closed"] else None)
                        for name, info in infos.items()
                    ]
                break
            except ConnectionLost:
                continue
        with Client(self.servers[self.numbers.index(number)].url) as client:
            there = client.tables()
            for table, like, closed in self._parts:
                if table.name not in there:
                    client.create_table(part_like(table, like, number))
                    if closed is not None:
                        client.close_table(table.name, closed or None)

    def _entered(self) -> bool:
        """Tells all shards the topology with these in it, as often as somebody changes it meanwhile. False where their
        numbers went to others that joined at the same time: then they are stopped, and what they wrote is gone."""
        ids = {number: secrets.token_hex(20) for number in self.numbers}
        ids.update({shard.number: shard.id for shard in self._topology.shards if shard.number in ids})
        joins_anew = self._shard_of is not None and self._topology.shards[-1].number < self.numbers[0]
        try:
            if self._shard_of is not None:  # before clients know of them
                for number in self.numbers:
                    self._complete(number)
            for left in reversed(range(_ATTEMPTS)):
                before, self._topology = self._topology, self._made(ids)
                try:
                    self._push(shard.number for shard in self._topology.shards)
                    break
                except redis.ResponseError:
                    if not left or not self._others(before):
                        raise
                    time.sleep(LOOK_S)
                    self._topology = self._newest(before)
                    given = any(ids.get(shard.number, shard.id) != shard.id for shard in self._topology.shards)
                    if given or self._topology.gone.intersection(ids):
                        if not joins_anew:
                            raise
                        self._undo()
                        return False
            self._write_topology()
            if self._shard_of is not None:  # what was created meanwhile
                for number in self.numbers:
                    self._complete(number)
        except BaseException:
            if joins_anew:
                self._retract(ids)
            raise
        return True

    def _retract(self, ids: Mapping[int, str]) -> None:
        """Takes shards out of the topology again that have just come, and that nobody will start."""
        with contextlib.suppress(redis.RedisError):
            now = self._newest(self._topology)
            if any(ids.get(shard.number) == shard.id for shard in now.shards):
                self._topology = now.without(ids)
                self._push(shard.number for shard in self._topology.shards)

    def _undo(self) -> None:
        """Stops shards that have just been started in new folders, and removes these."""
        for number, server in zip(self.numbers, self.servers, strict=True):
            server.stop(timeout=0)
            shutil.rmtree(self._directory / f"shard-{number}")
        self.servers.clear()

    def _made(self, ids: Mapping[int, str]) -> Topology:
        """The next version, with these shards where they are. Their slots are those of before."""
        before = {shard.number: shard for shard in self._topology.shards}
        own = []
        for place, (number, server) in enumerate(zip(self.numbers, self.servers, strict=True)):
            port, known = int(server.url.rpartition(":")[2]), before.get(number)
            tls_port = urlsplit(server.tls_url).port if server.tls_url else None
            even = () if self._shard_of else slot_ranges(even_slots(place, len(self.numbers)))
            host = self._host_of(server)
            slots = known.slots if known else even
            own.append(ShardPlace(number, ids[number], host, port, "", slots, tls_port or 0))
        return self._topology.with_shards(own)

    def _host_of(self, server: Server) -> str:
        """What clients are told."""
        return self._announced

    def _joined(self, url: str, file: Topology | None) -> Topology:
        """The topology of the cluster that these shards join; they get numbers, unless the folder has theirs."""
        until = time.monotonic() + self._start_timeout
        while True:
            try:
                with Shards(url, self._password) as shards:
                    topology = shards.topology
            except (ValueError, ConnectionError, redis.RedisError) as error:
                raise ServerError(f"shard_of: {error}") from error
            if not topology.shards:
                raise ServerError(f"shard_of: {url.rpartition('@')[2]} is no cluster: it has no topology")
            if not topology.moves:
                break
            if time.monotonic() > until:
                raise ServerError("shard_of: slots of keys are moving there; join when that is done")
            time.sleep(LOOK_S)
        if self._password is not None and _is_open(topology):
            raise ServerError("shard_of: the cluster has no password, so these shards may have none")
        ids = {shard.number: shard.id for shard in topology.shards}
        if file is None:
            try:
                first = topology.next_number(len(self.numbers))
            except ValueError as error:
                raise ServerError(f"shard_of: {error}") from error
            self.numbers = list(range(first, first + len(self.numbers)))
            return topology
        own = [file.shard(number) for number in self.numbers if number not in topology.gone]
        if taken := [shard.number for shard in own if ids.get(shard.number, shard.id) != shard.id]:
            raise ServerError(
                f"{self._directory} holds the files of shard {taken[0]}, and another one has this number by now: join "
                "in another folder"
            )
        # The cluster may have been started again from files of before these shards joined.
        return topology.with_shards(replace(shard, slots=()) for shard in own if shard.number not in ids)

    def _others(self, topology: Topology) -> list[ShardPlace]:
        """The shards that somebody else runs."""
        return [shard for shard in topology.shards if shard.number not in self.numbers]

    def _newest(self, topology: Topology) -> Topology:
        """This one, or a newer one that the others have."""
        with self._clients([shard.number for shard in self._others(topology)], topology) as clients:
            return newest_of(clients.values(), topology)

    def _leave_out_gone(self) -> None:
        """Of the folder's shards, begins with those alone that are still of the cluster."""
        self.numbers = [number for number in self.numbers if number not in self._topology.gone]
        if not self.numbers:
            raise ServerError(
                f"the shards of {self._directory} were taken out of the cluster, and their numbers are not given "
                "again: begin in another folder"
            )

    def _read_topology(self) -> Topology | None:
        file = self._directory / FILE
        if not file.exists():
            return None
        try:
            text = file.read_text()
            before = Topology.from_json(text)
            numbers = json.loads(text).get("own", [shard.number for shard in before.shards])
            self._shares = json.loads(text).get("shares", len(numbers))
        except (OSError, ValueError) as error:
            raise ServerError(f"{file} cannot be read: {error}") from error
        if len(numbers) not in (0, len(self.numbers)):
            raise ServerError(
                f"{self._directory} holds the files of {len(numbers)} shards, and {len(self.numbers)} were asked for: "
                "start as many, or in another folder"
            )
        self.numbers = numbers
        return before

    def _write_topology(self) -> None:
        own = {"own": self.numbers, "shares": self._shares}
        write_whole(self._directory / FILE, json.dumps({**json.loads(self._topology.to_json()), **own}))

    def _url_of(self, shard: ShardPlace) -> str:
        return f"redis://{self._login}{place_of(shard)}"

    def _connection(self, number: int, topology: Topology | None = None) -> redis.Redis:
        if number in self.numbers:
            url = self.servers[self.numbers.index(number)].url
        else:
            url = self._url_of((topology or self._topology).shard(number))
        return redis.Redis.from_url(url, socket_timeout=self._start_timeout)

    def _push(self, numbers: Iterable[int]) -> None:
        """Tells shards the topology; others that do not answer are told by who runs them."""
        with self._clients(numbers) as clients:
            self._topology.push_to(clients)

    @contextlib.contextmanager
    def _clients(
        self, numbers: Iterable[int] | None = None, topology: Topology | None = None
    ) -> Iterator[dict[int, redis.Redis]]:
        """Clients of shards by number; of all."""
        chosen = [shard.number for shard in self._topology.shards] if numbers is None else numbers
        clients = {number: self._connection(number, topology) for number in chosen}
        try:
            yield clients
        finally:
            for client in clients.values():
                client.close()

    def _adopt(self) -> None:
        """Takes over the newest topology that somebody else has pushed, and tells it to those of these shards that
        missed it. One of the other shards is asked, too: these may have been cut off, and it may not know of these, if
        it was started again from files of before they joined."""
        before = found = self._topology
        told = dict[int, int]()
        for number, server in zip(self.numbers, self.servers, strict=True):
            if server.running:
                with contextlib.suppress(redis.RedisError, ValueError), impatient(server.url) as client:
                    own = topology_of(client)
                    found, told[number] = newest([found, own]), own.version
        others = self._others(self._topology)
        if others:
            beside = others[next(self._turns) % len(others)]
            with (
                contextlib.suppress(redis.RedisError, ValueError),
                impatient(self._url_of(beside)) as client,
            ):
                theirs = topology_of(client)
                numbers = {shard.number for shard in theirs.shards} | theirs.gone
                if theirs.version >= found.version and not numbers.issuperset(self.numbers):
                    own = [self._topology.shard(number) for number in self.numbers]
                    joined = theirs.with_shards(replace(each, slots=()) for each in own if each.number not in numbers)
                    with self._clients((numbers - theirs.gone) | set(told), joined) as clients:
                        joined.push_to(clients)
                    theirs = joined
                found = newest([found, theirs])
        self._topology = found
        self._unwritten |= found is not before
        with contextlib.suppress(redis.ResponseError):  # one has a newer one by now: the next look finds it
            self._push(number for number, version in told.items() if version < found.version)
        self._unwritten |= self._part_with(found.gone)
        if self._unwritten:  # also what could not be written the last time
            self._write_topology()
            self._unwritten = False

    def _part_with(self, gone: frozenset[int]) -> bool:
        """Lets go of these shards that were taken out; whether there are any."""
        pairs = list(zip(self.numbers, self.servers, strict=True))
        stop_at = time.monotonic() + _LINGER_S
        self._gone += [(stop_at, server) for number, server in pairs if number in gone]
        self.numbers = [number for number, _ in pairs if number not in gone]
        self.servers = [server for number, server in pairs if number not in gone]
        return len(self.numbers) < len(pairs)

    def _stop_gone(self, now: float) -> None:
        """Stops shards that were taken out, when clients have had time to notice."""
        for stop_at, server in self._gone:
            if now >= stop_at:
                server.stop()
        self._gone = [(stop_at, server) for stop_at, server in self._gone if now < stop_at]
