"""Whether shards begin a cluster or join the one that the others have, where every host runs the same command.

All hosts have one list of addresses, the members: a shard of each host. A Kubernetes StatefulSet is such a list.

What holds:
- Only the first member ever begins a cluster: if its folder has no `cluster.json`, and each of the others has said that
  it knows of no cluster. One that does not answer may have one. It is waited for, and then the start is refused, unless
  the caller says `begin`.
- Only a member without `cluster.json` says that it knows of none (`_saying_so`). Any but the first one then waits for
  a cluster, and never begins one.
- So a first member that has lost its files does not begin a second cluster while another one has files of the first.
- Nor does it wait for ever. A member with `cluster.json` starts from that, if it is the first one, or if no member
  serves and the first one says that it knows of none.
- A member that has lost its files joins as another shard. Ids carry the number of the lost one, so no shard gets that
  again: it is taken out of the cluster first, as a dead one is.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import socketserver
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import redis

from .at_once import at_once
from .cluster_leave import forget
from .cluster_shards import PATIENCE_S, SCHEME, Shards, impatient, place_of, topology_of
from .errors import ServerError

_LOOK_S = 0.5
_QUESTION, _ANSWER = b"CLUSTER KNOWN\r\n", b"+no cluster is known here\r\n"
"""A server of ours answers the question with an error. A member that waits closes all other connections unanswered."""
_log = logging.getLogger("replay_server.cluster")


@dataclass(frozen=True)
class Membership:
    """What the shards of one host know of the members of their cluster.

    Attributes:
        places: the members, host:port, in the same order on every host.
        own: where these shards are, as clients are told.
        listens: host and port at which the first of these shards will listen.
        password: of the cluster.
        begins: the first member begins a cluster although others have not answered.
    """

    places: tuple[str, ...]
    own: tuple[str, ...]
    listens: tuple[str, int]
    password: str | None = field(repr=False)
    begins: bool

    def __post_init__(self) -> None:
        for place in self.places:
            host, _, port = place.rpartition(":")
            if not host or not port.isdigit():
                raise ServerError(f"expected members as host:port, got {place!r}")
        if not self.places:
            raise ServerError("expected members, host:port of each host, got none")

    def cluster_to_join(self, has_file: bool, patience_s: float, given_up: threading.Event) -> str | None:
        """The URL of those that have a cluster. None: these shards start by themselves, from their file or anew.

        Args:
            has_file: whether these shards were of a cluster before.
            patience_s: seconds that the first one waits for the others.
            given_up: ends the wait, once it is set.

        Raises:
            ServerError: others that do not answer may have a cluster; one refuses the password; or it was given up.
        """
        others = [place for place in self.places if place not in self.own]
        is_first = self.places[0] in self.own
        if is_first and has_file:
            return None
        until, is_said = time.monotonic() + patience_s, False
        with contextlib.ExitStack() as stack:
            while True:
                told = dict(zip(others, at_once(self._has_cluster, others), strict=True))
                if there := [place for place, has in told.items() if has]:
                    return SCHEME + ",".join(there)
                silent = ", ".join(place for place, has in told.items() if has is None)
                if (has_file and told[self.places[0]] is False) or (is_first and not silent):
                    return None
                if is_first and time.monotonic() > until:
                    if self.begins:
                        return None
                    raise ServerError(
                        f"this folder has no cluster.json, and {silent} did not answer: they may have a cluster. Start "
                        "these members; or, if they have none, begin one without them (--begin, begin=True)"
                    )
                if not is_said:
                    what = f"answers from {silent}" if is_first else f"a cluster, which {self.places[0]} begins"
                    what += "" if set(self.places) & set(self.own) else f" ({self.own[0]}, which waits, is no member)"
                    _log.warning("no member has told of a cluster so far: waiting for %s", what)
                    is_said = True
                    if not has_file:
                        stack.enter_context(_saying_so(*self.listens))
                if given_up.wait(_LOOK_S):
                    raise ServerError("the start was given up")

    def forget_lost(self, url: str) -> None:
        """Takes out of a cluster the shards that it has where these are to be: their files are lost.

        Raises:
            LeaveRefused: no other shard can take their slots of keys; or one of them answers, so that it is not lost.
            ServerError: the others do not answer any more; or a process has their ports, perhaps a shard that hangs.
        """
        host, first = self.listens
        try:
            with _holding(host, range(first, first + len(self.own))), Shards(url, self.password) as shards:
                topology = shards.topology
                for shard in [shard for shard in topology.shards if place_of(shard) in self.own]:
                    topology = forget(shards.clients, topology, shard.number, dead=True).topology
                    _log.warning(
                        "shard %d was at %s, and its files are not in this folder: it was taken out of the cluster "
                        "with all that it held, and another one joins in its place",
                        shard.number,
                        place_of(shard),
                    )
        except (ConnectionError, redis.RedisError) as error:
            raise ServerError(f"members: {error}") from error

    def _has_cluster(self, place: str) -> bool | None:
        """Whether a member has a cluster; None: it does not answer, or does not know yet."""
        with impatient(f"redis://{place}", password=self.password) as client:
            try:
                return bool(topology_of(client).shards) or None  # a shard that has just started is told later
            except redis.AuthenticationError as error:
                raise ServerError(f"member {place} refuses the password: {error}") from error
            except (redis.RedisError, ValueError):
                return False if _knows_of_none(place) else None


def _knows_of_none(place: str) -> bool:
    """Whether somebody waits there who knows of no cluster."""
    host, _, port = place.rpartition(":")
    address = host.strip("[]"), int(port)
    with contextlib.suppress(OSError), socket.create_connection(address, PATIENCE_S) as connection:
        connection.sendall(_QUESTION)
        with connection.makefile("rb") as answers:
            return answers.readline(len(_ANSWER)) == _ANSWER
    return False


class _Says(socketserver.StreamRequestHandler):
    """Answers the question. Clients find a connection that is closed, as where no server is."""

    timeout = PATIENCE_S

    def handle(self) -> None:
        with contextlib.suppress(OSError):
            if self.rfile.readline(len(_QUESTION)) == _QUESTION:
                self.wfile.write(_ANSWER)


@contextlib.contextmanager
def _holding(host: str, ports: Iterable[int]) -> Iterator[None]:
    """Has the ports of shards that are not there yet. ServerError: another process has one."""
    with contextlib.ExitStack() as stack:
        for port in ports:
            try:
                family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
                held = stack.enter_context(socket.socket(family, socket.SOCK_STREAM))
                held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                held.bind((host, port))
            except OSError as error:
                raise ServerError(f"cannot listen on {host} port {port}: {error.strerror or error}") from error
        yield


@contextlib.contextmanager
def _saying_so(host: str, port: int) -> Iterator[None]:
    """Tells others, at the address of a shard that is not there yet, that no cluster is known here."""

    class Listener(socketserver.ThreadingTCPServer):
        allow_reuse_address, daemon_threads = True, True

    try:
        Listener.address_family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        listener = Listener((host, port), _Says)
    except OSError as error:
        raise ServerError(f"cannot listen on {host} port {port}: {error.strerror or error}") from error
    with listener:
        answers = threading.Thread(target=listener.serve_forever, args=(0.1,), daemon=True)
        answers.start()
        try:
            yield
        finally:
            listener.shutdown()
            answers.join()
