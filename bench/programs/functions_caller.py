"""Calls functions in rounds, all of a round at a time, and tells what that cost this process.

    functions_caller.py http|lambda uvloop|asyncio|threads URL CERTIFICATE INVOCATIONS ROUNDS

uvloop and asyncio are the product's platforms, on one event loop or the other. threads is what they were before: a
thread for each invocation with a new connection over HTTP, and two for one through botocore's blocking client, one of
them because that client has one time limit for all its calls. One round more than ROUNDS comes before the others.
Prints JSON: processor and wall seconds of each round; of the process its threads while all ran, and its memory before
and at the peak.
"""

from __future__ import annotations

import http.client
import json
import os
import resource
import ssl
import sys
import threading
import time
import urllib.parse
from concurrent.futures import Future, wait
from pathlib import Path
from typing import Any

from replay_server.rl.function_contract import WarmRequest, encode_request
from replay_server.serverless.backends.backend import Attempt, Backend, Invocation, Platform, unrecorded

TIMEOUT_S = 300.0


class BlockingHttp:
    """A connection and its handshakes for each invocation, waited for in the caller's thread."""

    name = "http"
    memory_mb = 1024

    def __init__(self, url: str, certificate: str) -> None:
        parts = urllib.parse.urlsplit(url)
        self._host, self._port = parts.hostname or "", parts.port
        self._tls = ssl.create_default_context(cafile=certificate)

    def invoke(self, payload: bytes, timeout_s: float) -> bytes:
        from replay_server.serverless.cloud_event import CONTENT_TYPE, REQUEST_TYPE

        connection = http.client.HTTPSConnection(self._host, self._port, timeout=timeout_s, context=self._tls)
        try:
            headers = {"ce-id": "1", "ce-type": REQUEST_TYPE, "Content-Type": CONTENT_TYPE, "Connection": "close"}
            connection.request("POST", "/", payload, headers)
            return connection.getresponse().read()
        finally:
            connection.close()

    def prewarm(self, count: int, attempt: Attempt = unrecorded) -> None:
        """Nothing: the service is warm."""

    def close(self) -> None:
        """Nothing is kept."""


class BlockingLambda(BlockingHttp):
    """botocore's own client, in a thread of its own for each call."""

    name = "lambda"

    def __init__(self, url: str, certificate: str, invocations: int) -> None:
        import botocore.session
        from botocore.config import Config

        config = Config(read_timeout=TIMEOUT_S, max_pool_connections=invocations, retries={"total_max_attempts": 1})
        self._client: Any = botocore.session.get_session().create_client(
            "lambda", region_name="eu-central-1", endpoint_url=url, config=config, verify=certificate
        )

    def invoke(self, payload: bytes, timeout_s: float) -> bytes:
        from replay_server.serverless.entry_lambda import decode_event, encode_event

        done: Future[Any] = Future()

        def call() -> None:
            try:
                answer = self._client.invoke(FunctionName="function", Payload=encode_event(payload))
                done.set_result(answer["Payload"].read())
            except Exception as error:
                done.set_exception(error)

        threading.Thread(target=call, daemon=True).start()
        return decode_event(json.loads(done.result(timeout_s)))


def platform_of(name: str, way: str, url: str, certificate: str, invocations: int) -> Platform:
    if way == "threads":
        return BlockingHttp(url, certificate) if name == "http" else BlockingLambda(url, certificate, invocations)
    if way == "asyncio":
        sys.modules["uvloop"] = None  # type: ignore[assignment]  # as where it is not installed
    if name == "http":
        from replay_server.serverless.backends.http import HttpPlatform

        return HttpPlatform(url, ca_file=certificate)
    from replay_server.serverless.backends.aws_lambda import LambdaPlatform

    return LambdaPlatform(
        "function", region="eu-central-1", endpoint_url=url, memory_mb=1024, function_timeout_s=TIMEOUT_S
    )


def memory_bytes(field: str) -> int:
    """VmRSS or VmHWM of this process."""
    (line,) = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(f"{field}:")]
    return int(line.split()[1]) * 1024


def main(name: str, way: str, url: str, certificate: str, invocations: int, rounds: int) -> dict[str, Any]:
    os.environ |= {"AWS_ACCESS_KEY_ID": "none", "AWS_SECRET_ACCESS_KEY": "none", "AWS_CA_BUNDLE": certificate}
    threads = 0

    def seen(invocation: Invocation) -> None:
        nonlocal threads
        threads = threads or threading.active_count()  # The first has ended: all of them were under way.
        if invocation.outcome != "ok":
            raise RuntimeError(f"expected an answer, got {invocation.error}")

    found: dict[str, Any] = {"cpu_s": [], "wall_s": []}
    platform = platform_of(name, way, url, certificate, invocations)
    with Backend(platform, concurrency=invocations, timeout_s=TIMEOUT_S, retries=0, on_invocation=seen) as backend:
        before = memory_bytes("VmRSS")
        for number in range(rounds + 1):
            payloads = [encode_request(WarmRequest(request=f"r{number}-{each}")) for each in range(invocations)]
            cpu_s, wall_s = time.process_time(), time.perf_counter()
            futures = [backend.submit(payload) for payload in payloads]
            wait(futures)
            found["cpu_s"].append(time.process_time() - cpu_s)
            found["wall_s"].append(time.perf_counter() - wall_s)
            for future in futures:
                future.result()
    return {**found, "threads": threads, "memory_bytes": before, "peak_bytes": memory_bytes("VmHWM")}


if __name__ == "__main__":
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    print(json.dumps(main(*sys.argv[1:5], int(sys.argv[5]), int(sys.argv[6]))))
