"""Functions behind HTTP, on real functions-framework services: ours on loopback, and ones by URL."""

from __future__ import annotations

import base64
import contextlib
import http.client
import http.server
import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from replay_server.rl.function_contract import (
    ActorRequest,
    Measured,
    Response,
    WarmRequest,
    decode_request,
    decode_response,
    encode_request,
    encode_response,
)
from replay_server.serverless.backends.backend import Backend, FunctionError, FunctionLost, FunctionTimeout
from replay_server.serverless.cloud_event import CONTENT_TYPE, REQUEST_TYPE, RESPONSE_TYPE

pytest.importorskip("aiohttp")
pytest.importorskip("functions_framework")

from replay_server.serverless.backends.http import HttpPlatform
from replay_server.serverless.backends.http_service import HttpService

GARBAGE = b"\x01"
TIMEOUT_S = 300.0
"""It only ends a test that hangs: on a loaded machine a service takes long to begin."""
TOKEN = "a-token-of-the-test"


@pytest.fixture(scope="module")
def platform() -> Iterator[HttpPlatform]:
    with HttpPlatform() as made:
        yield made


@pytest.fixture(scope="module")
def service() -> Iterator[HttpService]:
    """One that nobody but the test speaks to."""
    made = HttpService(TOKEN, {})
    try:
        made.wait_ready(time.monotonic() + TIMEOUT_S)
        yield made
    finally:
        made.end()


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    """One of localhost, with its key in the same file."""
    file = tmp_path / "certificate.pem"
    done = subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2",
         "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost", "-keyout", "-", "-out", "-"],
        check=True, capture_output=True,
    )  # fmt: skip
    file.write_bytes(done.stdout)
    return file


def waiting_request(url: str) -> bytes:
    return encode_request(ActorRequest("wait", url, "job", {}, "ppo", round=1, version=1))


def answer(platform: HttpPlatform, payload: bytes = GARBAGE) -> Response:
    return decode_response(platform.invoke(payload, TIMEOUT_S))


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def group(pid: int) -> list[int]:
    """Processes of a service's group that live."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and alive(int(entry.name)):
            with contextlib.suppress(OSError):
                if os.getpgid(int(entry.name)) == pid:
                    found.append(int(entry.name))
    return found


def waits_at(url: str) -> bool:
    """Whether a function has connected to a server that never answers."""
    server = f"0100007F:{int(url.rpartition(':')[2]):04X}"
    connections = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()]
    return any(fields[2] == server and fields[3] == "01" for fields in connections)


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline, "it did not come about in time"
        time.sleep(0.05)


# ---- services of ours -----------------------------------------------------------------------------------------------


def test_the_handler_answers_in_a_service_that_stays_warm(platform: HttpPlatform) -> None:
    first, second = answer(platform), answer(platform)
    assert first.failure is not None
    assert first.failure.type == "ContractError"
    assert first.measured.cold
    assert (second.measured.instance, second.measured.invocation) == (first.measured.instance, 2)


def test_invocations_at_the_same_time_have_a_service_each(
    platform: HttpPlatform, meeting: Callable[[int], str]
) -> None:
    url = meeting(3)
    with ThreadPoolExecutor(3) as threads:
        answers = list(threads.map(lambda _: answer(platform, waiting_request(url)), range(3)))
    assert len({each.measured.instance for each in answers}) == 3
    assert all("all are here" in str(each.failure) for each in answers)
    assert len(platform.services()) == 3


def test_services_listen_on_loopback_only_and_ask_for_a_token(platform: HttpPlatform, service: HttpService) -> None:
    inodes = {
        os.readlink(link)[len("socket:[") : -1]
        for pid in group(service.pid)
        for link in Path(f"/proc/{pid}/fd").iterdir()
        if os.readlink(link).startswith("socket:")
    }
    lines = [line.split() for table in ("tcp", "tcp6") for line in Path(f"/proc/net/{table}").read_text().splitlines()]
    listening = {fields[1] for fields in lines if fields[3] == "0A" and fields[9] in inodes}
    assert listening == {f"0100007F:{service.port:04X}"}
    assert post(service, headers={"Authorization": "Bearer another"})[0] == 401
    assert post(service, headers={"Authorization": ""})[0] == 401


def test_an_invocation_that_takes_too_long_is_ended_with_its_service(platform: HttpPlatform, silent_url: str) -> None:
    answer(platform)
    before = platform.services()
    with pytest.raises(FunctionTimeout, match="no answer within") as raised:
        platform.invoke(waiting_request(silent_url), 0.5)
    (gone,) = set(before) - set(platform.services())
    wait_until(lambda: not group(gone))
    assert raised.value.instance


def test_a_service_that_dies_is_a_lost_function(platform: HttpPlatform, silent_url: str) -> None:
    answer(platform)
    before = platform.services()
    with ThreadPoolExecutor(1) as threads:
        running = threads.submit(platform.invoke, waiting_request(silent_url), TIMEOUT_S)
        wait_until(lambda: waits_at(silent_url))
        for pid in before:
            for each in group(pid):
                os.kill(each, signal.SIGKILL)
        with pytest.raises(FunctionLost, match="was lost"):
            running.result(TIMEOUT_S)
    wait_until(lambda: not any(group(pid) for pid in before))  # the idle ones may end a moment later
    assert answer(platform).measured.cold  # those that died idle are not handed out


def test_a_prewarmed_service_has_imported_what_actors_need() -> None:
    with HttpPlatform() as platform:
        platform.prewarm(1)
        (service,) = platform.services()
        platform.prewarm(1)
        assert platform.services() == [service]
        assert answer(platform, encode_request(WarmRequest())).measured.invocation == 2


def test_closing_ends_what_runs(silent_url: str) -> None:
    platform = HttpPlatform()
    answer(platform)
    (service,) = platform.services()
    with ThreadPoolExecutor(1) as threads:
        running = threads.submit(platform.invoke, waiting_request(silent_url), TIMEOUT_S)
        wait_until(lambda: waits_at(silent_url))
        platform.close()
        with pytest.raises(FunctionLost, match="closed"):
            running.result(TIMEOUT_S)
    wait_until(lambda: not group(service))  # killed, which a busy machine takes a moment for
    with pytest.raises(FunctionLost, match="closed"):
        platform.invoke(GARBAGE, 1.0)


ORPHAN = """
import os, signal
from replay_server.serverless.backends.http import HttpPlatform
platform = HttpPlatform()
platform.invoke(b"\\x01", 60.0)
print(platform.services()[0], flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_services_end_with_who_started_them(tmp_path: Path) -> None:
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", ORPHAN], env=environment, stdout=subprocess.PIPE, timeout=60)
    assert done.returncode == -signal.SIGKILL
    wait_until(lambda: not group(int(done.stdout)))
    wait_until(lambda: not list(tmp_path.glob("replay-function-*")))


# ---- the service itself ---------------------------------------------------------------------------------------------

BINARY = {
    "Authorization": f"Bearer {TOKEN}",
    "ce-specversion": "1.0",
    "ce-id": "17",
    "ce-source": "/test",
    "ce-type": REQUEST_TYPE,
    "Content-Type": CONTENT_TYPE,
}


def post(
    service: HttpService, body: bytes = GARBAGE, headers: dict[str, str] | None = None, method: str = "POST"
) -> tuple[int, dict[str, str], bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", service.port, timeout=60)
    with contextlib.closing(connection):
        connection.request(method, "/", body, {**BINARY, **(headers or {})})
        response = connection.getresponse()
        return response.status, dict(response.headers), response.read()


def test_the_answer_is_an_event_about_the_one_that_was_sent(service: HttpService) -> None:
    status, headers, body = post(service)
    assert (status, headers["ce-id"], headers["ce-type"]) == (200, "17", RESPONSE_TYPE)
    assert headers["ce-specversion"] == "1.0"
    assert headers["content-type"] == CONTENT_TYPE
    assert headers["ce-source"].endswith(service.instance)
    assert decode_response(body).measured.instance == service.instance


def test_events_in_structured_mode_are_taken_too(service: HttpService) -> None:
    event = {
        "specversion": "1.0", "id": "18", "source": "/test", "type": REQUEST_TYPE, "datacontenttype": CONTENT_TYPE,
        "data_base64": base64.b64encode(encode_request(WarmRequest(work=()))).decode(),
    }  # fmt: skip
    connection = http.client.HTTPConnection("127.0.0.1", service.port, timeout=60)
    with contextlib.closing(connection):
        sent = {"Authorization": BINARY["Authorization"], "Content-Type": "application/cloudevents+json"}
        connection.request("POST", "/", json.dumps(event), sent)
        response = connection.getresponse()
        assert response.headers["ce-id"] == "18"
        assert decode_response(response.read()).result == {}


@pytest.mark.parametrize(
    ("method", "changes", "status", "told"),
    [
        ("POST", {"ce-type": "another"}, 400, b"of type another"),
        ("POST", {"ce-specversion": "7.0"}, 400, b"CloudEvent"),
        ("POST", {"ce-id": "", "ce-type": ""}, 400, b"expected"),
        ("DELETE", {}, 405, b"POST"),
    ],
)
def test_what_is_no_event_for_the_function_is_refused(
    service: HttpService, method: str, changes: dict[str, str], status: int, told: bytes
) -> None:
    came, _, body = post(service, headers=changes, method=method)
    assert came == status
    assert told in body


# ---- a service by URL -----------------------------------------------------------------------------------------------


def test_a_service_by_url_is_called_with_the_token_of_a_file(service: HttpService, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("old\n")
    with HttpPlatform(f"http://127.0.0.1:{service.port}/any/path", token_file=token) as platform:
        with pytest.raises(FunctionError, match="status 401"):
            platform.invoke(GARBAGE, TIMEOUT_S)
        token.write_text(f"{TOKEN}\n")
        assert answer(platform).measured.instance == service.instance
        platform.prewarm(1)
        assert platform.services() == []
    assert service.alive


def test_the_token_may_come_from_the_environment(service: HttpService, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REPLAY_FUNCTION_TOKEN", TOKEN)
    with HttpPlatform(f"http://127.0.0.1:{service.port}") as platform:
        assert answer(platform).measured.instance == service.instance


@contextlib.contextmanager
def peer(reply: bytes, tls: ssl.SSLContext | None = None, hold: bool = False, pause_s: float = 0.0) -> Iterator[int]:
    """A service that reads a request and sends the same bytes whatever came; its port."""

    def serve() -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = listener.accept()
                with (
                    contextlib.suppress(OSError),
                    connection,
                    tls.wrap_socket(connection, server_side=True) if tls else connection as stream,
                ):
                    came = b""
                    while not came.endswith(b"\r\n\r\n" + GARBAGE) and (more := stream.recv(65536)):
                        came += more  # what is left unread would reset the connection
                    for piece in [reply[i : i + 1] for i in range(len(reply))] if pause_s else [reply]:
                        stream.sendall(piece)
                        time.sleep(pause_s)
                    while hold and stream.recv(65536):
                        pass

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=serve, daemon=True).start()
        yield listener.getsockname()[1]


def reply(status: str, body: bytes = b"", headers: str = f"ce-type: {RESPONSE_TYPE}\r\n", length: int = -1) -> bytes:
    length = len(body) if length < 0 else length
    return f"HTTP/1.1 {status}\r\n{headers}Content-Length: {length}\r\n\r\n".encode() + body


@pytest.mark.parametrize(
    ("bytes_back", "kind", "told"),
    [
        (reply("500 Oops", b"the reason" + b"x" * 10_000), FunctionLost, "status 500 Oops: the reason"),
        (reply("503 Service Unavailable"), FunctionLost, "status 503"),
        (reply("429 Too Many Requests"), FunctionLost, "status 429"),
        (reply("404 Not Found", b"no such service"), FunctionError, "no such service"),
        (reply("302 Found"), FunctionError, "status 302"),
        (reply("200 OK", b"<html>", headers=""), FunctionLost, "is the URL the function's"),
        (reply("200 OK", b"half", length=8), FunctionLost, "not completed"),
        (reply("200 OK", b"x" * 2000), FunctionError, "at most 1000 bytes"),
        (b"SSH-2.0-other\r\n", FunctionLost, "ClientResponseError"),
        (b"", FunctionLost, "ServerDisconnected|ConnectionReset"),
    ],
)
def test_what_a_service_should_not_answer(bytes_back: bytes, kind: type[FunctionError], told: str) -> None:
    with peer(bytes_back) as port, HttpPlatform(f"http://127.0.0.1:{port}", answer_bytes=1000) as platform:
        with pytest.raises(FunctionError, match=told) as raised:
            platform.invoke(GARBAGE, TIMEOUT_S)
        assert type(raised.value) is kind
        assert len(str(raised.value)) < 500


class Keeping(http.server.ThreadingHTTPServer):
    """A service that keeps connections, counts them, and answers once as many requests are there as `meeting` says."""

    daemon_threads = True
    request_queue_size = 1024

    def __init__(self, tls: ssl.SSLContext | None = None, meeting: int = 1) -> None:
        super().__init__(("127.0.0.1", 0), KeepingHandler)
        self.tls, self.meeting, self.connections = tls, threading.Barrier(meeting), 0
        self.url = f"http{'s' if tls else ''}://localhost:{self.server_port}"

    def get_request(self) -> tuple[socket.socket, object]:
        stream, address = super().get_request()
        self.connections += 1
        return (self.tls.wrap_socket(stream, server_side=True) if self.tls else stream), address

    def __enter__(self) -> Keeping:
        threading.Thread(target=self.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.shutdown()
        self.server_close()


class KeepingHandler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Keeping

    def do_POST(self) -> None:
        request = decode_request(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.meeting.wait(TIMEOUT_S)
        self.wfile.write(reply("200 OK", encode_response(Response(request.request, Measured(), result={}))))

    def log_message(self, format: str, *values: object) -> None:
        """Nothing."""


def test_connections_and_their_handshakes_are_used_again(certificate: Path) -> None:
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(certificate)
    with Keeping(tls) as service, HttpPlatform(service.url, ca_file=certificate) as platform:
        for _ in range(5):
            assert answer(platform, encode_request(WarmRequest())).result == {}
        assert service.connections == 1


def waiting_threads() -> int:
    """Those of platforms and backends; services of ours have readers besides."""
    names = [each.name for each in threading.enumerate() if each.name.startswith("http")]
    return len([name for name in names if name != "http-printed"])


def test_a_backend_waits_for_a_hundred_functions_in_one_thread() -> None:
    before = waiting_threads()
    with Keeping(meeting=100) as service, Backend(HttpPlatform(service.url), concurrency=100) as backend:
        for _ in range(2):
            payloads = [encode_request(WarmRequest(request=f"w{number}")) for number in range(100)]
            futures = [backend.submit(payload, retries=0) for payload in payloads]
            assert all(decode_response(future.result(TIMEOUT_S)).result == {} for future in futures)
            assert waiting_threads() == before + 1
        assert service.connections == 100


@pytest.mark.parametrize("sent", [b"", reply("200 OK", b"half", length=8)])
def test_a_service_that_stops_answering_costs_no_more_than_the_time_limit(sent: bytes) -> None:
    with (
        peer(sent, hold=True) as port,
        HttpPlatform(f"http://127.0.0.1:{port}") as platform,
        pytest.raises(FunctionTimeout, match=r"within 0\.3 s"),
    ):
        platform.invoke(GARBAGE, 0.3)


def test_an_answer_that_trickles_in_costs_no_more_than_the_time_limit() -> None:
    answer = reply("200 OK", headers=f"x: {'a' * 100}\r\n")
    with (
        peer(answer, pause_s=0.05) as port,
        HttpPlatform(f"http://127.0.0.1:{port}") as platform,
        pytest.raises(FunctionTimeout, match=r"within 0\.3 s"),
    ):
        platform.invoke(GARBAGE, 0.3)


def test_nobody_there_is_a_lost_function() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with HttpPlatform(f"http://127.0.0.1:{port}") as platform, pytest.raises(FunctionLost, match="Cannot connect"):
        platform.invoke(GARBAGE, TIMEOUT_S)


@pytest.mark.parametrize("url", ["ftp://host/", "host:80", "https://", "http://user:secret@host/"])
def test_a_url_of_no_service_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="expected") as raised:
        HttpPlatform(url)
    assert "secret" not in str(raised.value)


def test_certificates_are_verified(certificate: Path) -> None:
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(certificate)
    with peer(reply("200 OK", b"data"), tls) as port:
        with HttpPlatform(f"https://localhost:{port}") as platform, pytest.raises(FunctionLost, match="CERTIFICATE"):
            platform.invoke(GARBAGE, TIMEOUT_S)
        with HttpPlatform(f"https://localhost:{port}", ca_file=certificate) as platform:
            assert platform.invoke(GARBAGE, TIMEOUT_S) == b"data"
        with (
            HttpPlatform(f"https://127.0.0.1:{port}", ca_file=certificate) as platform,
            pytest.raises(FunctionLost, match="CERTIFICATE"),
        ):
            platform.invoke(GARBAGE, TIMEOUT_S)
