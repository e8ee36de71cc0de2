"""A server's address, and one blocking connection to it: scatter-gather out, straight into the caller's arrays in."""

from __future__ import annotations

import contextlib
import os
import socket
import ssl
import struct
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar
from urllib.parse import parse_qs, parse_qsl, quote, unquote, urlsplit

from . import commands
from .codec import Buffer, Reading
from .commands import Command, greet
from .config import ConfigError, read_password
from .driver import Operation, run
from .errors import ConnectionLost, LimitExceeded, ServerError
from .exchanges import Exchanges
from .shared_memory import Arena
from .socket_buffers import Pending, in_records

T = TypeVar("T")

PASSWORD_VARIABLE = "REPLAY_SERVER_PASSWORD"
"""Environment variable with the password for URLs that carry none."""
_URL = "the URL"
_MOST_DESCRIPTORS = 4  # one is expected; what does not fit is dropped by the kernel


@dataclass(frozen=True)
class Address:
    """Where a server listens, from its URL: `redis://[[user]:password@]host[:port]` or `unix://[[user]:password@]/path`.

    `redis://host[:port],host[:port]…` names a server and its replicas, in any order; the client finds the primary.

    `rediss://` is TLS. What it checks is said as redis-py has it: `?ssl_ca_certs=FILE` (whose certificates are trusted,
    in place of the system's), `ssl_cert_reqs=required|none`, `ssl_check_hostname=true|false`, and the client's own
    `ssl_certfile=FILE` and `ssl_keyfile=FILE`, joined by `&`.

    Raises:
        ValueError: the URL is neither.
    """

    url: str = field(repr=False)
    host: str = "127.0.0.1"
    port: int = 6379
    path: str | None = None
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    tls: tuple[tuple[str, str], ...] | None = None
    """Options of TLS as in the URL; None = no TLS."""
    abstract: str | None = None
    """Name of an abstract unix socket to connect to in place of host and port, as the server there has told it."""
    password_source: str = _URL
    several: tuple[Address, ...] = ()
    """All hosts, each by itself, where the URL names several; host and port are then those of the first."""

    @classmethod
    def parse(cls, url: str) -> Address:
        before, at, after = url.rpartition("@") if "@" in url else url.partition("://")
        listed, mark, query = after.partition("?")
        if "," in listed and url.startswith(("redis://", "rediss://")):
            hosts = tuple(cls.parse(f"{before}{at}{host}{mark}{query}") for host in listed.rstrip("/").split(","))
            return replace(hosts[0], url=url, several=hosts)
        parts = urlsplit(url)
        username = unquote(parts.username) if parts.username else None
        password = unquote(parts.password) if parts.password is not None else None
        if parts.scheme == "unix" and parts.path:
            password = parse_qs(parts.query).get("password", [password])[0]
            return cls(url, path=unquote(parts.path), username=username, password=password)
        if parts.scheme in ("redis", "rediss") and parts.hostname and parts.path in ("", "/", "/0"):
            tls = tls_options(parts.query) if parts.scheme == "rediss" else None
            return cls(url, parts.hostname, parts.port or 6379, None, username, password, tls)
        shown = url if "@" not in url else f"{parts.scheme}://…@{url.rpartition('@')[2]}"
        raise ValueError(f"expected redis://[:password@]host:port, rediss://… for TLS, or unix:///path, got {shown!r}")

    @classmethod
    def of_client(cls, url: str, password_file: str | None = None) -> Address:
        """As `parse`. Where the URL carries no password, it is that of the file, or else of the variable
        REPLAY_SERVER_PASSWORD.

        Raises:
            ValueError: there is a password in the URL and a file too, or the file cannot be read.
        """
        address = cls.parse(url)
        if password_file is not None:
            if address.has_password_in_url:
                raise ValueError(f"expected a password in the URL or in password_file, got both for {address}")
            try:
                password = read_password(password_file)
            except ConfigError as error:
                raise ValueError(f"password_file: {error}") from error
            return address._with_password(password, f"the file {password_file}")
        password = os.environ.get(PASSWORD_VARIABLE)
        if address.password is not None or not password:
            return address
        return address._with_password(password, PASSWORD_VARIABLE)

    def _with_password(self, password: str | None, source: str) -> Address:
        several = tuple(host._with_password(password, source) for host in self.several)
        return replace(self, password=password, password_source=source, several=several)

    @property
    def hosts(self) -> tuple[Address, ...]:
        """Those of the URL, each by itself."""
        return self.several or (self,)

    @property
    def has_password_in_url(self) -> bool:
        """Whether somebody who reads the URL reads a password."""
        return self.password is not None and self.password_source == _URL

    def greeting(self) -> Command[dict[str, Any]]:
        """What a connection begins with."""
        return greet(str(self), self.username, self.password, self.password_source)

    @property
    def is_local(self) -> bool:
        """Whether it is plainly on this host."""
        if self.several:
            return all(host.is_local for host in self.several)
        return self.path is not None or self.host in ("localhost", "::1") or self.host.startswith("127.")

    def __str__(self) -> str:
        """The address without its password."""
        if self.path is not None:
            return f"unix://{self.path}"
        if self.several:
            names = ",".join(str(host).partition("://")[2] for host in self.several)
            return f"{'redis' if self.tls is None else 'rediss'}://{names}"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'redis' if self.tls is None else 'rediss'}://{host}:{self.port}"

    @property
    def is_encrypted(self) -> bool:
        """Whether a connection is TLS: on the abstract socket of the same host it is not."""
        return self.tls is not None and self.abstract is None

    def tls_context(self) -> ssl.SSLContext:
        """What TLS checks, by the URL's options.

        Raises:
            OSError: a file cannot be read, or is no certificate or key.
        """
        options = dict(self.tls or ())
        context = ssl.create_default_context(cafile=options.get("ssl_ca_certs"))
        if options.get("ssl_check_hostname", "true").lower() in ("false", "no", "0"):
            context.check_hostname = False
        if options.get("ssl_cert_reqs", "required").lower() == "none":
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        if "ssl_certfile" in options:
            context.load_cert_chain(options["ssl_certfile"], options.get("ssl_keyfile"))
        return context

    def redis_options(self) -> dict[str, Any]:
        """What redis-py needs beside the URL: a password that is not in it; not to ask for notices of maintenance,
        which this server has none of (the refusal would count as an error of its clients); and to check host names in
        certificates, as this client does (redis-py before version 6 does not)."""
        options: dict[str, Any] = {}
        if self.password is not None and not self.has_password_in_url:
            options |= {"username": self.username or "default", "password": self.password}
        with contextlib.suppress(ImportError):  # redis-py before version 7 does not ask.
            from redis.maint_notifications import MaintNotificationsConfig

            options["maint_notifications_config"] = MaintNotificationsConfig(enabled=False)
        tls = dict(self.tls or ())
        if self.tls is not None and "ssl_check_hostname" not in tls and tls.get("ssl_cert_reqs", "").lower() != "none":
            options["ssl_check_hostname"] = True
        return options

    def open_socket(self, timeout_s: float) -> socket.socket:
        """A connected socket.

        Raises:
            ConnectionLost: nothing listens there, or it does not answer in time.
        """
        try:
            path = self.path if self.abstract is None else f"\0{self.abstract}"
            if path is not None:
                opened = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
                try:
                    opened.settimeout(timeout_s)
                    opened.connect(path)
                except BaseException:
                    opened.close()
                    raise
            else:
                opened = socket.create_connection((self.host, self.port), timeout_s)
                set_options(opened)
                if self.tls is not None:
                    opened = self._encrypt(opened)
        except OSError as error:
            raise ConnectionLost(
                f"cannot connect to {self}: {error.strerror or error}. Is the server running?"
            ) from error
        return opened

    def _encrypt(self, opened: socket.socket) -> socket.socket:
        """The same connection after the handshake; closed where that fails."""
        try:
            return self.tls_context().wrap_socket(opened, server_hostname=self.host)
        except BaseException:
            opened.close()
            raise


_TLS_OPTIONS = ("ssl_ca_certs", "ssl_cert_reqs", "ssl_check_hostname", "ssl_certfile", "ssl_keyfile")


def tls_options(query: str) -> tuple[tuple[str, str], ...]:
    """A URL's options of TLS.

    Raises:
        ValueError: one is not known.
    """
    options = tuple(parse_qsl(query))
    for name, _ in options:
        if name not in _TLS_OPTIONS:
            raise ValueError(f"expected options {', '.join(_TLS_OPTIONS)} in a rediss:// URL, got {name!r}")
    return options


def url_with_password(url: str, password: str | None) -> str:
    """A password put into a URL that has none."""
    if password is None:
        return url
    scheme, _, rest = url.partition("://")
    return f"{scheme}://:{quote(password, safe='')}@{rest}"


def url_without_password(url: str) -> str:
    """A URL without its password, before the host or among a unix socket's options. A user stays."""
    scheme, _, rest = url.partition("://")
    netloc = urlsplit(url).netloc
    login, _, place = netloc.rpartition("@")
    user = login.partition(":")[0]
    path, mark, query = rest[len(netloc) :].partition("?")
    options = [option for option in query.split("&") if unquote(option.partition("=")[0]) != "password"]
    return f"{scheme}://{user}{'@' if user else ''}{place}{path}{mark if any(options) else ''}{'&'.join(options)}"


def set_options(connected: socket.socket) -> None:
    """Small requests leave at once, and a host that vanished is noticed within a minute even by an endless wait."""
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (("TCP_KEEPIDLE", 15), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 6)):
        if hasattr(socket, option):
            connected.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)


class _Patience:
    """How long a socket's calls wait for progress.

    The kernel keeps it (SO_RCVTIMEO, SO_SNDTIMEO): Python's own timeouts take a system call to be set, and another
    before each call. TLS needs Python's.
    """

    def __init__(self, waiting: socket.socket, sending_s: float) -> None:
        self._socket, self._sending_s = waiting, sending_s
        self._is_plain = not isinstance(waiting, ssl.SSLSocket)
        self._receiving_s: float | None = None
        if self._is_plain:
            waiting.settimeout(None)
            self._set(socket.SO_SNDTIMEO, sending_s)

    def before_sending(self) -> None:
        if not self._is_plain:
            self._socket.settimeout(self._sending_s)

    def before_receiving(self, seconds: float | None) -> None:
        """Sets what a receive may take from now on; None = for ever."""
        if not self._is_plain:
            self._socket.settimeout(seconds)
        elif seconds != self._receiving_s:
            self._set(socket.SO_RCVTIMEO, seconds)
            self._receiving_s = seconds

    def before_looking(self) -> None:
        """Of TLS, whose receives take no flag."""
        self._socket.setblocking(False)

    def _set(self, option: int, seconds: float | None) -> None:
        whole, part = divmod(0.0 if seconds is None else max(seconds, 1e-6), 1.0)  # of the kernel, 0 is for ever
        self._socket.setsockopt(socket.SOL_SOCKET, option, struct.pack("@ll", int(whole), int(part * 1e6)))


class Connection(Exchanges):
    """One connection whose calls block, used by one thread at a time; only `abort` may come from another.

    Args:
        address: where to.
        connect_timeout: seconds for connecting and greeting.
        socket_timeout: seconds without progress, beyond a command's own wait, until the server counts as lost.

    Raises:
        ConnectionLost: it cannot be made.
        ServerError: the server refuses it (password, number of clients).
    """

    def __init__(self, address: Address, connect_timeout: float, socket_timeout: float) -> None:
        super().__init__(address, address.open_socket(connect_timeout), socket_timeout)
        self._patience = _Patience(self._socket, socket_timeout)
        self._begun = False  # the reply: a command's own wait is over once bytes of it have come
        self._descriptors: list[int] | None = None
        self._may_share = address.path is not None or address.abstract is not None
        try:
            self.execute(address.greeting())
        except BaseException:
            self.close()
            raise

    def execute(self, command: Command[T]) -> T:
        """`exchange`, as a call."""
        return run(self.exchange(command))

    def share(self) -> None:
        """Asks for shared memory now, where there may be some and none is there yet."""
        if self._may_share and self.arena is None:
            run(self._share())

    def _share(self) -> Operation[None]:
        """Asks for shared memory, once: without it replies come over the socket."""
        self._may_share = False
        self._descriptors = []
        try:
            size_bytes = yield from self.exchange(commands.share(0))
            if self._descriptors:
                self.arena = Arena(self._descriptors.pop(0), size_bytes)
        except ServerError:
            pass  # an old server, or one on which nothing is shared
        except LimitExceeded:
            pass  # all that may be shared is
        finally:
            for descriptor in self._descriptors:
                os.close(descriptor)
            self._descriptors = None

    def send(self, buffers: Sequence[Buffer]) -> None:
        """See `Exchanges`."""
        self._patience.before_sending()
        if len(buffers) == 1:
            self._socket.sendall(buffers[0])
            return
        if isinstance(self._socket, ssl.SSLSocket):
            for piece in in_records(buffers):
                self._socket.sendall(piece)
            return
        pending = Pending(buffers)
        while vectors := pending.next():
            pending.advance(self._socket.sendmsg(vectors))

    def receive(self, reading: Reading[T], wait_s: float | None) -> T:
        """See `Exchanges`."""
        self._begun = False
        if self._buffer.start == self._buffer.end:
            self._patience.before_receiving(wait_s)
        wanted = next(reading)
        try:
            while True:
                if wanted is None:
                    wanted = reading.send(self._line())
                else:
                    self._fill(wanted)
                    wanted = reading.send(b"")
        except StopIteration as stop:
            return stop.value

    def awaited_descriptor(self) -> int | None:
        """That a reply's first bytes come from; None: some are here, or none will come."""
        is_here = self._buffer.start != self._buffer.end
        if is_here or (isinstance(self._socket, ssl.SSLSocket) and self._socket.pending()):
            return None
        descriptor = self._socket.fileno()
        return None if descriptor < 0 else descriptor

    def _line(self) -> bytes:
        while (line := self._buffer.line()) is None:
            self._more()
        return line

    def _fill(self, target: memoryview) -> None:
        filled = self._buffer.take(target)
        while filled < len(target):
            filled += self._some(target[filled:])
        while not self._buffer.skip_line_end():
            self._more()

    def _more(self) -> None:
        count = self._some(self._buffer.space())
        self._buffer.end += count

    def _some(self, space: memoryview) -> int:
        """Receives what there is; how many bytes."""
        if self._begun:
            self._patience.before_receiving(self._socket_timeout)
        count = self._socket.recv_into(space) if self._descriptors is None else self._receive_descriptors(space)
        if count == 0:
            raise ConnectionResetError("the server closed the connection")
        self._begun = True
        return count

    def _receive_descriptors(self, space: memoryview) -> int:
        """As `recv_into`, with descriptors that come along."""
        assert self._descriptors is not None
        numbers = array("i")
        count, control, _, _ = self._socket.recvmsg_into(
            [space], socket.CMSG_LEN(_MOST_DESCRIPTORS * numbers.itemsize), getattr(socket, "MSG_CMSG_CLOEXEC", 0)
        )
        for level, kind, data in control:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                numbers.frombytes(data[: len(data) - len(data) % numbers.itemsize])
        self._descriptors += numbers
        return count

    def gone(self) -> bool:
        """See `Exchanges`."""
        try:
            if isinstance(self._socket, ssl.SSLSocket):
                self._patience.before_looking()
                self._socket.recv(1)
                return True  # the end, or bytes that nobody asked for
            return self._socket.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) == b""
        except (BlockingIOError, ssl.SSLWantReadError):
            return False
        except OSError:
            return True

    def detach(self) -> socket.socket:
        """The socket of an idle connection without TLS, for an owner that goes on with it."""
        self._complete = False
        return socket.socket(fileno=self._socket.detach())


def on_same_host(connection: Connection, address: Address, connect_timeout: float, socket_timeout: float) -> Connection:
    """A connection to the same server over its abstract unix socket, where it is on this host; else the one given.

    The server tells a TCP client of its own host the socket's name, which holds the run of that very server, and a
    nonce to be shown there. A client on another host does not find that name, and stays where it is.
    """
    try:
        name, nonce = connection.execute(commands.share_socket())
        nearer = Connection(replace(address, abstract=name), connect_timeout, socket_timeout)
    except (ServerError, ConnectionLost):
        if not connection.usable:
            raise
        return connection
    try:
        nearer.execute(commands.prove(nonce))
    except ServerError:
        nearer.close()
        return connection
    connection.close()
    return nearer
