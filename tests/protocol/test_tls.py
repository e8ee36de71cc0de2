"""TLS on the kernel's sockets: what it carries is what is carried without it, and who may not come in does not."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import socket
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import redis

import replay_server as rs
import replay_server.aio
from replay_server.connection import Address

TABLE = rs.Table("t", capacity=2000, signature={"x": rs.Column("float32", (1000,))})


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an authority (ca.crt), and certificates of it for server and client; other.crt signs itself."""
    if shutil.which("openssl") is None:
        pytest.skip("needs the openssl command to make certificates: apt-get install openssl")
    folder = tmp_path_factory.mktemp("certificates")
    (folder / "names").write_text("subjectAltName=IP:127.0.0.1,DNS:localhost")

    def run(*words: str) -> None:
        subprocess.run(["openssl", *words], check=True, capture_output=True, cwd=folder, timeout=60)

    new_key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"]
    for name in ("ca", "other"):
        run("req", "-x509", *new_key, "-nodes", "-subj", f"/CN={name}", "-keyout", f"{name}.key", "-out", f"{name}.crt")
    for name in ("server", "client"):
        run("req", *new_key, "-nodes", "-subj", f"/CN={name}", "-keyout", f"{name}.key", "-out", f"{name}.csr")
        signed = ["-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial", "-extfile", "names", "-out", f"{name}.crt"]
        run("x509", "-req", "-in", f"{name}.csr", *signed)
    run("ec", "-in", "server.key", "-aes256", "-passout", "pass:word", "-out", "locked.key")
    return folder


def settings(folder: Path, **more: object) -> dict[str, object]:
    own = {"tls-cert-file": str(folder / "server.crt"), "tls-key-file": str(folder / "server.key")}
    asked = {name.replace("_", "-"): value for name, value in more.items()}
    return {"tls-port": 0, **own, "tls-ca-cert-file": str(folder / "ca.crt"), "tls-auth-clients": "no", **asked}


@pytest.fixture(scope="module")
def server(certificates: Path) -> Iterator[rs.Server]:
    with rs.Server([TABLE], config=settings(certificates), password="secret") as running:
        yield running


def tls_url(server: rs.Server) -> str:
    assert server.tls_url is not None
    return server.tls_url


def port_of(server: rs.Server) -> int:
    return int(tls_url(server).partition("?")[0].rpartition(":")[2])


@contextlib.contextmanager
def raw(server: rs.Server, certificates: Path) -> Iterator[ssl.SSLSocket]:
    context = ssl.create_default_context(cafile=str(certificates / "ca.crt"))
    with (
        socket.create_connection(("127.0.0.1", port_of(server)), 60) as plain,
        context.wrap_socket(plain, server_hostname="127.0.0.1") as connected,
    ):
        yield connected


def read_exactly(connected: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        more = connected.recv(count - len(data))
        assert more, "the server closed"
        data += more
    return data


# ---- what it carries --------------------------------------------------------------------------------------------


def test_values_of_every_size_pass(server: rs.Server) -> None:
    with redis.Redis.from_url(tls_url(server)) as client:
        for size in (0, 1, 100, 16383, 16384, 16385, 65536, 1 << 20, 10_000_001):
            value = os.urandom(size)
            client.set("value", value)
            assert client.get("value") == value, size


def test_deep_pipelines_pass_in_both_directions(server: rs.Server) -> None:
    with redis.Redis.from_url(tls_url(server)) as client:
        values = [bytes([i % 256]) * (i % 500) for i in range(5_000)]
        pipeline = client.pipeline(transaction=False)
        for number, value in enumerate(values):
            pipeline.set(f"key:{number}", value)
        pipeline.execute()
        for number in range(len(values)):
            pipeline.get(f"key:{number}")
        assert pipeline.execute() == values


def test_a_stream_cut_at_odd_places_is_followed(server: rs.Server, certificates: Path) -> None:
    with raw(server, certificates) as connected:
        connected.sendall(b"*2\r\n$4\r\nAUTH\r\n$6\r\nsecret\r\n")
        assert read_exactly(connected, 5) == b"+OK\r\n"
        request = b"*2\r\n$4\r\nECHO\r\n$5\r\nhello\r\n" * 3
        for at in range(0, len(request), 5):  # a record for every five bytes
            connected.sendall(request[at : at + 5])
        assert read_exactly(connected, 33) == b"$5\r\nhello\r\n" * 3


def test_batches_pass_as_without_tls(server: rs.Server) -> None:
    with rs.Client(tls_url(server)) as client:
        client.reset("t")
        sent = np.random.default_rng(1).random((700, 1000), dtype=np.float32)
        ids = client.add("t", {"x": sent})
        assert np.array_equal(client.get("t", ids).data["x"], sent)
        assert client.sample("t", 512).data["x"].shape == (512, 1000)
        assert client.redis.ping()
        with client.sampler("t", 64) as batches:
            assert next(iter(batches)).data["x"].shape == (64, 1000)
        version = client.publish_weights("policy", {"w": sent})
        fetched = client.fetch_weights("policy", newer_than=version - 1)
        assert fetched is not None
        assert np.array_equal(fetched[1]["w"], sent)


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("run", [rs.aio.run, asyncio.run], ids=["uvloop", "asyncio"])
def test_the_asyncio_client_passes_the_same(server: rs.Server, run: object, shared: bool) -> None:
    async def main() -> None:
        async with rs.aio.Client(tls_url(server), shared_memory=shared) as client:
            await client.reset("t")
            sent = np.random.default_rng(2).random((700, 1000), dtype=np.float32)
            ids = await client.add("t", {"x": sent})
            got = await client.get("t", ids)
            assert np.array_equal(got.data["x"], sent)
            assert await client.redis.ping()

    run(main())  # type: ignore[operator]


def test_a_client_connects_anew_after_its_connection_was_closed(server: rs.Server) -> None:
    with rs.Client(tls_url(server)) as client:
        client.info("t")
        with redis.Redis.from_url(server.url) as admin:
            admin.client_kill_filter(_type="normal", skipme=True)
        assert client.info("t")["capacity"] == 2000


def test_who_never_reads_holds_up_nobody(server: rs.Server, certificates: Path) -> None:
    with redis.Redis.from_url(tls_url(server)) as client, raw(server, certificates) as sleeper:
        client.set("large", bytes(4 << 20))
        sleeper.sendall(b"*2\r\n$4\r\nAUTH\r\n$6\r\nsecret\r\n" + b"*2\r\n$3\r\nGET\r\n$5\r\nlarge\r\n" * 8)
        for _ in range(200):
            assert client.ping()
        # And when it wakes, its replies are whole.
        reply = b"$4194304\r\n" + bytes(4 << 20) + b"\r\n"
        assert read_exactly(sleeper, 5 + 8 * len(reply)) == b"+OK\r\n" + reply * 8


def test_many_connections_at_once(server: rs.Server, certificates: Path) -> None:
    with contextlib.ExitStack() as stack:
        connections = [stack.enter_context(raw(server, certificates)) for _ in range(150)]
        for connected in connections:
            connected.sendall(b"*2\r\n$4\r\nAUTH\r\n$6\r\nsecret\r\n*1\r\n$4\r\nPING\r\n")
        assert all(read_exactly(connected, 12) == b"+OK\r\n+PONG\r\n" for connected in connections)


def test_the_redis_command_line_connects(server: rs.Server, certificates: Path) -> None:
    if shutil.which("redis-cli") is None:
        pytest.skip("needs redis-cli: apt-get install redis-tools")
    words = ["redis-cli", "--tls", "--cacert", str(certificates / "ca.crt"), "-p", str(port_of(server))]
    words += ["-a", "secret", "--no-auth-warning", "ping"]
    assert subprocess.run(words, capture_output=True, timeout=60).stdout == b"PONG\n"


# ---- who may not come in ----------------------------------------------------------------------------------------


def test_speech_without_tls_is_cut_off_and_others_are_served(server: rs.Server) -> None:
    with socket.create_connection(("127.0.0.1", port_of(server)), 60) as plain:
        plain.sendall(b"*1\r\n$4\r\nPING\r\n" * 100)
        plain.settimeout(60)
        with contextlib.suppress(ConnectionResetError):
            while answer := plain.recv(4096):
                assert b"PONG" not in answer
    with socket.create_connection(("127.0.0.1", port_of(server)), 60) as idle:
        idle.sendall(b"\x16\x03\x01")  # the beginning of a handshake that never goes on
        with redis.Redis.from_url(tls_url(server)) as client:
            assert client.ping()


def test_a_server_of_another_authority_is_not_trusted(server: rs.Server, certificates: Path) -> None:
    bare = tls_url(server).partition("?")[0]
    for url in (bare, f"{bare}?ssl_ca_certs={certificates / 'other.crt'}"):
        with rs.Client(url, reconnect_timeout=0) as client, pytest.raises(rs.ConnectionLost, match="CERTIFICATE"):
            client.info("t")

        async def ask(url: str = url) -> None:
            async with rs.aio.Client(url, reconnect_timeout=0) as client:
                await client.info("t")

        with pytest.raises(rs.ConnectionLost, match="CERTIFICATE"):
            asyncio.run(ask())
    with rs.Client(f"{bare}?ssl_cert_reqs=none") as client:
        assert client.info("t")["capacity"] == 2000
    with pytest.raises(ValueError, match="ssl_nonsense"):
        rs.Client(f"{bare}?ssl_nonsense=1")


def test_clients_show_a_certificate_where_they_are_asked_to(certificates: Path) -> None:
    with rs.Server([TABLE], port=-1, config=settings(certificates, tls_auth_clients="yes")) as server:
        assert server.url == server.tls_url
        own = f"&ssl_certfile={certificates / 'client.crt'}&ssl_keyfile={certificates / 'client.key'}"
        with rs.Client(server.url + own) as client:
            assert client.info("t")["capacity"] == 2000
            assert client.redis.ping()
        for wrong in ("", f"&ssl_certfile={certificates / 'other.crt'}&ssl_keyfile={certificates / 'other.key'}"):
            with rs.Client(server.url + wrong, reconnect_timeout=0) as client, pytest.raises(rs.ConnectionLost):
                client.info("t")


def test_settings_that_do_not_fit_stop_the_start(certificates: Path) -> None:
    missing = str(certificates / "missing.crt")
    for config, complaint in (
        (settings(certificates, tls_cert_file=""), "tls-cert-file"),
        (settings(certificates, tls_cert_file=missing), r"missing\.crt"),
        (settings(certificates, tls_key_file=str(certificates / "client.key")), "tls-key-file"),
        (settings(certificates, tls_key_file=str(certificates / "locked.key")), "tls-key-file"),
        (settings(certificates, tls_auth_clients="yes", tls_ca_cert_file=""), "tls-auth-clients no"),
        (settings(certificates, tls_protocols="SSLv3"), "tls-protocols"),
        (settings(certificates, tls_ciphers="nonsense"), "tls-ciphers"),
    ):
        with pytest.raises(rs.ServerError, match=complaint):
            rs.Server([], config=config)
    locked = settings(certificates, tls_key_file=str(certificates / "locked.key"), tls_key_file_pass="word")
    with rs.Server([], config=locked) as server, redis.Redis.from_url(tls_url(server)) as client:
        assert client.ping()


def test_old_protocols_are_refused_unless_named(certificates: Path, server: rs.Server) -> None:
    context = ssl.create_default_context(cafile=str(certificates / "ca.crt"))
    context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_2
    only_new = settings(certificates, tls_protocols="TLSv1.3")
    with rs.Server([], config=only_new) as strict:
        for running, served in ((server, True), (strict, False)):
            with socket.create_connection(("127.0.0.1", port_of(running)), 60) as plain:
                try:
                    context.wrap_socket(plain, server_hostname="127.0.0.1").close()
                    accepted = True
                except (ssl.SSLError, ConnectionResetError):
                    accepted = False
                assert accepted == served


def test_redis_py_is_told_to_check_the_host() -> None:
    """Its versions before 6 do so only where they are asked to."""
    for query, told in (
        ("", {"ssl_check_hostname": True}),
        ("?ssl_ca_certs=ca.crt", {"ssl_check_hostname": True}),
        ("?ssl_cert_reqs=none", {}),
        ("?ssl_check_hostname=false", {}),
    ):
        options = Address.parse(f"rediss://127.0.0.1:1{query}").redis_options()
        assert {name: value for name, value in options.items() if name.startswith("ssl")} == told
    assert not any(name.startswith("ssl") for name in Address.parse("redis://127.0.0.1:1").redis_options())
    for client in (rs.Client, rs.aio.Client):
        made = client("rediss://127.0.0.1:1").redis
        assert made.connection_pool.connection_kwargs["ssl_check_hostname"] is True


def test_a_handshake_that_does_not_end_is_given_up(certificates: Path) -> None:
    """However busily it goes on: it costs memory, and nobody has shown who they are."""
    config = settings(certificates, client_stall_timeout=1)
    with rs.Server([], config=config) as server, raw(server, certificates) as finished:
        records = ssl.MemoryBIO()
        handshake = ssl.create_default_context().wrap_bio(ssl.MemoryBIO(), records)
        with contextlib.suppress(ssl.SSLWantReadError):
            handshake.do_handshake()
        hello = records.read()
        begun = [socket.create_connection(("127.0.0.1", port_of(server)), 20) for _ in range(3)]
        begun[0].sendall(hello)
        begun[1].sendall(hello[:50])
        for connected in begun:
            with contextlib.suppress(ConnectionResetError):
                while connected.recv(4096):
                    pass
            connected.close()
        finished.sendall(b"PING\r\n")
        assert read_exactly(finished, 7) == b"+PONG\r\n"
