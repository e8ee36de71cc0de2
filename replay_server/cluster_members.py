"""How the shards of one supervisor enter a cluster, stay of one mind with the others, and part with those that go."""

from __future__ import annotations

import contextlib
import itertools
import json
import logging
import secrets
import shutil
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit

import redis

from .at_once import at_once
from .client import Client
from .cluster_address import even_slots
from .cluster_leave import leaving_reason
from .cluster_replicas import ShardFolders
from .cluster_shards import PATIENCE_S, SCHEME, Shards, impatient, newest, newest_of, place_of, topology_of
from .cluster_tables import changes_like, check_can_be_shared, part_like, share_of
from .cluster_takeover import change_places, follow
from .errors import ConnectionLost, ServerError
from .server import Server, port_of, tls_port_of
from .table import Table
from .topology import ShardPlace, Topology, answering, slot_ranges
from .whole_file import write_whole

if TYPE_CHECKING:
    from .cluster_device import SharedDevice

FILE = "cluster.json"
"""In the cluster's folder: the topology, and which of its shards are of the folder."""
LOOK_S = 0.1
IMPATIENT: dict[str, Any] = {"connect_timeout": PATIENCE_S, "socket_timeout": PATIENCE_S, "reconnect_timeout": 0.0}
"""Timeouts of a client that waits for a shard no longer than `PATIENCE_S`."""
_LINGER_S = 3.0
"""That a shard which was taken out still answers clients that have not noticed."""
_MOST_IDS = 100
"""That are known of a shard: it has a new one whenever another server leads, or may."""
_ATTEMPTS = 20
"""To enter a topology that others change at the same time."""
_log = logging.getLogger("replay_server.cluster")


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


def failing_in(directory: Path, topology: Topology) -> dict[int, str]:
    """Why shards of a cluster do not serve, by number, as its folder says; {} where that is not on this host."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        text = (directory / FILE).read_text()
        if _share_ids(Topology.from_json(text), topology):  # else it is that of another cluster
            return {int(number): str(why) for number, why in json.loads(text).get("failing", {}).items()}
    return {}


def way_to(server: Server) -> str:
    """Where the process that started a server reaches it: what is served in user space is not for its own host."""
    return server.admin_url or server.url


def shards_in(directory: Path) -> Shards:
    """Clients of the shards of a cluster that runs on this host, by its folder: through the admin ports of those that
    have one.

    Raises:
        ValueError: it is no cluster's folder.
        ConnectionError: no shard answers; or those of another cluster do, which has the same ports by now.
    """
    try:
        text = (directory / FILE).read_text()
        topology, told = Topology.from_json(text), json.loads(text)
        ways = {int(number): str(place) for number, place in told.get("admin", {}).items()}
        ids = {shard.id for shard in topology.shards}.union(*told.get("ids", {}).values())
    except (OSError, ValueError, AttributeError) as error:
        raise ValueError(f"expected the folder of a cluster, and {directory / FILE} cannot be read: {error}") from error
    places = [ways.get(shard.number, place_of(shard)) for shard in topology.shards]
    shards = Shards(f"{SCHEME}{','.join(places)}", ways=ways)
    if ids.isdisjoint(shard.id for shard in shards.topology.shards):
        shards.close()
        raise ConnectionError(f"no shard of {directory} answers: at {','.join(places)} is another cluster by now")
    return shards


def _told_by(client: redis.Redis) -> Topology | None:
    """The topology of a shard; None where it does not answer."""
    with contextlib.suppress(redis.RedisError, ValueError):
        return topology_of(client)
    return None


def _share_ids(one: Topology, other: Topology) -> bool:
    return not {shard.id for shard in one.shards}.isdisjoint(shard.id for shard in other.shards)


class Members:
    """The shards of one supervisor as members of a cluster; see `cluster.Cluster`."""

    numbers: list[int]
    servers: list[Server]
    _tables: list[Table]
    _topology: Topology
    _lock: threading.RLock
    """Held while these shards or their topology change; not while servers start, or may have to be waited for."""
    _heard: tuple[dict[int, Topology], Topology | None] = {}, None
    """The topologies of these shards that answered last, by number, and of another one."""
    _gone: list[tuple[float, Server]]
    """Shards that were taken out, and when they are stopped."""
    _parts: list[tuple[Table, int, str | None]]
    """Of a cluster that was joined: each table as a shard has it, that shard's number, and why it is closed."""
    _turns: itertools.count[int]
    _own_ids: dict[int, list[str]]
    """By number of the shard: its ids in topologies, of servers that have led it, or may."""
    failing: dict[int, str]
    _unwritten = False
    """Whether the topology in the folder is older than `_topology`."""
    _shares: int
    """Over how many shards tables were shared out; some may have been taken out since."""
    _shard_of: str | None
    _takes_over: int | None
    """The number of a shard that this one follows first, and whose part it then takes."""
    _password: str | None
    _announced: str
    _directory: Path
    _config: dict[str, Any]
    _device: SharedDevice | None
    _folders: dict[int, ShardFolders]
    """By number of the shard; see `_files`."""
    _start_timeout: float

    @property
    def _login(self) -> str:
        return f":{quote(self._password, safe='')}@" if self._password else ""

    def _complete(self, number: int, patient: bool = True) -> None:
        """Gives a shard the tables that it lacks, and the settings of those that it has, as the others have them; as
        they had them, if none answers.

        It joined, and so follows the shards that somebody else runs; or it was started again from files of before a
        client created them, or from none. Not `patient`: it has to answer within `PATIENCE_S`."""
        topology = self._topology
        beside_it = [shard for shard in topology.shards if shard.number != number]
        if self._shard_of is None:
            self._parts = []  # of an earlier restart: a table may have been dropped since
        staying = {  # one that leaves has closed its tables
            each.number: each for each in self._others(topology) or beside_it if each.number not in topology.leaving
        }
        with self._clients(staying, topology, patient=False) as clients:
            there = answering(clients)
        for beside in [staying[each] for each in there]:
            try:
                with Client(self._way_to(beside.number, topology), **IMPATIENT) as client:
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
        with Client(self._way_to(number), **({} if patient else IMPATIENT)) as client:
            has = client.tables()
            for table, like, closed in self._parts:
                if table.name in has:
                    given = next((each for each in self._tables if each.name == table.name), None)
                    began = given and share_of(given, like, self._shares)
                    if changes := changes_like(client.table(table.name), table, began):
                        client.configure(table.name, **changes)
                else:
                    client.create_table(part_like(table, like, number))
                    if closed is not None:
                        client.close_table(table.name, closed or None)

    def _entered(self) -> bool:
        """Tells all shards the topology with these in it, as often as somebody changes it meanwhile. False where their
        numbers went to others that joined at the same time: then they are stopped, and what they wrote is gone."""
        if self._takes_over is not None:
            self._take_over(self._takes_over)
            return True
        ids = {number: secrets.token_hex(20) for number in self.numbers}
        ids.update({shard.number: shard.id for shard in self._topology.shards if shard.number in ids})
        joins_anew = self._shard_of is not None and self._topology.shards[-1].number < self.numbers[0]
        try:
            if self._shard_of is not None:  # before clients know of them
                for number in self.numbers:
                    self._complete(number)
                for table, _, _ in self._parts if joins_anew else ():
                    check_can_be_shared(table)
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

    def _take_over(self, number: int) -> None:
        """Follows a shard, takes its part, and then tells all shards: as often as somebody changes the topology
        meanwhile, since nobody else has what is written here from now on."""
        server, place, own_id = self.servers[0], self._topology.shard(number), secrets.token_hex(20)
        host, port = self._host_of(server), port_of(server)
        old = redis.Redis.from_url(self._url_of(place), socket_timeout=self._start_timeout)
        with old, self._connection(number) as new:
            new.config_set("replica-announce-ip", host)
            follow(old, new, self._topology, number, self._password, self._start_timeout)
            change_places(old, new, number, host, port)
            while True:
                self._topology = self._made({number: own_id})
                try:
                    self._push(shard.number for shard in self._topology.shards)
                    break
                except redis.ResponseError as error:
                    _log.warning("the topology with shard %d here is told again: %s", number, error)
                    time.sleep(LOOK_S)
                    self._topology = self._newest(self._topology)
                    if number in self._topology.gone:
                        raise ServerError(f"shard {number} was taken out of the cluster meanwhile") from error
            self._unwritten = True
            with contextlib.suppress(redis.RedisError):  # its supervisor tells it, too
                old.execute_command(*self._topology.arguments(number))
        with contextlib.suppress(OSError):  # what cannot be written now is written later
            self._write_topology()
            self._unwritten = False

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
            known = before.get(number)
            even = () if self._shard_of else slot_ranges(even_slots(place, len(self.numbers)))
            host, port, tls_port = self._host_of(server), port_of(server), tls_port_of(server)
            slots = known.slots if known else even
            own.append(ShardPlace(number, ids[number], host, port, "", slots, tls_port))
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
            if not topology.moves or file is not None:  # a move may wait for these shards to come back
                break
            if time.monotonic() > until:
                raise ServerError("shard_of: slots of keys are moving there; join when that is done")
            time.sleep(LOOK_S)
        if self._password is not None and _is_open(topology):
            raise ServerError("shard_of: the cluster has no password, so these shards may have none")
        ids = {shard.number: shard.id for shard in topology.shards}
        if file is None and self._takes_over is not None:
            try:
                topology.shard(self._takes_over)
            except ValueError as error:
                raise ServerError(f"take_over: {error}") from error
            self.numbers = [self._takes_over]
            return topology
        if file is None:
            try:
                first = topology.next_number(len(self.numbers))
            except ValueError as error:
                raise ServerError(f"shard_of: {error}") from error
            self.numbers = list(range(first, first + len(self.numbers)))
            return topology
        if self._takes_over not in (None, *self.numbers):
            raise ServerError(
                f"{self._directory} holds the files of other shards: take shard {self._takes_over} over in another "
                "folder"
            )
        if not _share_ids(topology, file):  # it may be the same one, begun anew
            with self._clients([each.number for each in self._others(file)], file, patient=False) as clients:
                told = at_once(_told_by, clients.values())
            if any(each is not None and _share_ids(each, file) for each in told):
                raise ServerError(
                    f"shard_of: {url.rpartition('@')[2]} is another cluster than that of {self._directory}, whose "
                    "other shards still answer: name one of them, or join in another folder"
                )
        self._takes_over = None  # that was done before
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

    def _leave_out_gone(self, file: Topology | None) -> None:
        """Of the folder's shards, begins with those alone that are still of the cluster, and that no other server has
        taken over."""
        parted = self._parted(file, self._topology) if file is not None else self._topology.gone
        self.numbers = [number for number in self.numbers if number not in parted]
        if not self.numbers:
            raise ServerError(
                f"the shards of {self._directory} have moved or were taken out of the cluster, and their numbers are "
                "not given again: begin in another folder"
            )

    def _parted(self, before: Topology, now: Topology) -> set[int]:
        """Those of these shards that have gone since, or whose numbers other servers have by now."""
        ids = {shard.number: shard.id for shard in before.shards}
        others = {
            shard.number
            for shard in now.shards
            if ids.get(shard.number, shard.id) != shard.id and shard.id not in self._own_ids.get(shard.number, ())
        }
        return {number for number in self.numbers if number in others or number in now.gone}

    def _read_topology(self) -> Topology | None:
        file = self._directory / FILE
        if not file.exists():
            return None
        try:
            text = file.read_text()
            before = Topology.from_json(text)
            told = json.loads(text)
            numbers = told.get("own", [shard.number for shard in before.shards])
            self._shares = told.get("shares", len(numbers))
            for number, chain in told.get("chains", {}).items():
                self._files(int(number)).chain = [int(generation) for generation in chain]
            self._own_ids = {int(number): list(ids) for number, ids in told.get("ids", {}).items()}
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
        chains = {number: self._files(number).chain for number in self.numbers}
        own = {"own": self.numbers, "shares": self._shares, "chains": chains, "ids": self._own_ids}
        own["failing"] = self.failing
        own["admin"] = {
            number: urlsplit(server.admin_url).netloc.rpartition("@")[2]
            for number, server in zip(self.numbers, self.servers, strict=False)
            if server.admin_url
        }
        write_whole(self._directory / FILE, json.dumps({**json.loads(self._topology.to_json()), **own}))

    def _files(self, number: int) -> ShardFolders:
        """The folders of a shard's files."""
        if number not in self._folders:
            is_logged = str(self._config.get("appendonly")).lower() in ("true", "yes")
            log_folder = str(self._config.get("appenddirname", "appendonlydir")) if is_logged else None
            log_name = str(self._config.get("appendfilename", "appendonly.aof"))
            self._folders[number] = ShardFolders(self._directory, number, log_folder, log_name)
        return self._folders[number]

    def _url_of(self, shard: ShardPlace) -> str:
        return f"redis://{self._login}{place_of(shard)}"

    def _way_to(self, number: int, topology: Topology | None = None) -> str:
        """Where this process reaches a shard."""
        with self._lock:
            if number in self.numbers:
                return way_to(self._server_of(number))
            return self._url_of((topology or self._topology).shard(number))

    def _connection(self, number: int, topology: Topology | None = None, patient: bool = True) -> redis.Redis:
        url = self._way_to(number, topology)
        return redis.Redis.from_url(url, socket_timeout=self._start_timeout) if patient else impatient(url)

    def _push(self, numbers: Iterable[int], patient: bool = True) -> None:
        """Tells shards the topology; others that do not answer are told by who runs them."""
        with self._clients(numbers, patient=patient) as clients:
            self._topology.push_to(clients)

    def _tell(self, change: Callable[[Topology], Topology], first: int) -> None:
        """Tells all shards, and replicas of these, the topology after a change: a shard first, the others as far as
        they answer. As often as somebody else changes it meanwhile.

        Raises:
            redis.ResponseError: that was too often; nothing is sure, and it is to be told again.
        """
        for left in reversed(range(_ATTEMPTS)):
            before, self._topology = self._topology, change(self._topology)
            self._unwritten = True
            with self._clients(patient=False) as clients:
                try:
                    self._topology.push_to(clients, first)
                except redis.ResponseError:
                    told = [each for each in at_once(_told_by, clients.values()) if each is not None]
                    self._topology = newest([each for each in (before, *told) if each != self._topology])
                    if not left:
                        raise
                    continue
            at_once(self._tell_replica, self._replicas())
            return

    def _tell_replica(self, replica: tuple[int, Server]) -> None:
        """Tells the topology to a replica of a shard of this number, if it answers."""
        number, server = replica
        with impatient(server.url) as client, contextlib.suppress(redis.RedisError):
            client.execute_command(*self._topology.arguments(number))

    def _own(self, number: int, *ids: str) -> None:
        """Notes that these are ids of a shard, so that a supervisor which is started again knows it by them."""
        others = [each for each in self._own_ids.get(number, []) if each not in ids]
        self._own_ids[number], self._unwritten = [*others, *ids][-_MOST_IDS:], True

    def _note_failing(self, number: int, why: str | None) -> None:
        """Why a shard does not serve; None: it does. The folder has it, where `cluster status` reads it."""
        with self._lock:
            why = why if number in self.numbers else None  # it was taken out
            if self.failing.get(number) != why:
                others = {each: told for each, told in self.failing.items() if each != number}
                self.failing, self._unwritten = others if why is None else {**others, number: why}, True

    def _server_of(self, number: int) -> Server:
        with self._lock:
            return self.servers[self.numbers.index(number)]

    def _replicas(self) -> list[tuple[int, Server]]:
        """The replicas of these shards, with the shards' numbers."""
        return []

    @contextlib.contextmanager
    def _clients(
        self, numbers: Iterable[int] | None = None, topology: Topology | None = None, patient: bool = True
    ) -> Iterator[dict[int, redis.Redis]]:
        """Clients of shards by number; of all. Not `patient`: each answers within `PATIENCE_S`."""
        chosen = [shard.number for shard in self._topology.shards] if numbers is None else numbers
        clients = {number: self._connection(number, topology, patient) for number in chosen}
        try:
            yield clients
        finally:
            for client in clients.values():
                client.close()

    def _refresh(self) -> Topology:
        """Takes over the newest topology that somebody else has pushed; returns what the shards have now. All are asked
        at once, before the lock is taken: nobody else waits for one that hangs. OSError: it cannot be written."""
        with contextlib.ExitStack() as stack:
            with self._lock:
                runs = [number for number in self.numbers if self._server_of(number).running]
                others = [shard.number for shard in self._others(self._topology)]
                beside = [others[next(self._turns) % len(others)]] if others else []
                clients = stack.enter_context(self._clients([*runs, *beside], patient=False))
            answers = dict(zip(clients, at_once(_told_by, clients.values()), strict=True))
        theirs = answers.pop(beside[0]) if beside else None
        told = {number: each for number, each in answers.items() if each is not None}
        with self._lock:
            self._heard = told, theirs
            self._adopt()
            return self._topology

    def _adopt(self) -> None:
        """Takes over the newest topology that was heard of, and tells it to those of these shards that missed it. One
        of the other shards was asked, too: these may have been cut off, and it may not know of these, if it was started
        again from files of before they joined."""
        told, theirs = self._heard
        before, found = self._topology, newest([self._topology, *told.values()])
        if theirs is not None:
            numbers = {shard.number for shard in theirs.shards} | theirs.gone
            with contextlib.suppress(redis.RedisError, ValueError):
                if theirs.version >= found.version and not numbers.issuperset(self.numbers):
                    own = [self._topology.shard(number) for number in self.numbers]
                    joined = theirs.with_shards(replace(each, slots=()) for each in own if each.number not in numbers)
                    with self._clients((numbers - theirs.gone) | set(told), joined, patient=False) as clients:
                        joined.push_to(clients)
                    theirs = joined
                found = newest([found, theirs])
        self._topology = found
        self._unwritten |= found is not before
        with contextlib.suppress(redis.ResponseError):  # one has a newer one by now: the next look finds it
            missed = {number for number, own in told.items() if own.version < found.version}
            self._push(missed.intersection(self.numbers), patient=False)
        self._unwritten |= self._part_with(self._parted(before, found))
        self._keep()

    def _keep(self) -> None:
        """Writes the topology, unless the folder has it: also what could not be written the last time."""
        if self._unwritten:
            self._write_topology()
            self._unwritten = False

    def _part_with(self, gone: set[int]) -> bool:
        """Lets go of these shards that were taken out or taken over; whether there are any."""
        pairs = list(zip(self.numbers, self.servers, strict=True))
        stop_at = time.monotonic() + _LINGER_S
        self._gone += [(stop_at, server) for number, server in pairs if number in gone]
        self.numbers = [number for number, _ in pairs if number not in gone]
        self.servers = [server for number, server in pairs if number not in gone]
        for number in gone:
            self._note_failing(number, None)
        return len(self.numbers) < len(pairs)

    def _stop_gone(self, now: float) -> None:
        """Stops shards that were taken out, when clients have had time to notice."""
        due = [server for stop_at, server in self._gone if now >= stop_at]
        if self._device is not None:
            due = [server for server in due if not self._device.holds(server)]
        for server in due:
            server.stop()
        with self._lock:
            self._gone = [each for each in self._gone if each[1] not in due]
