"""A service that stands for a platform of functions: it answers a round's invocations once all of them are there.

    functions_service.py CERTIFICATE INVOCATIONS

Speaks HTTP/1.1 over TLS on loopback: CloudEvents at /, and the Invoke API of AWS Lambda. Prints its port. Ends when its
standard input does.
"""

from __future__ import annotations

import asyncio
import json
import re
import resource
import ssl
import sys

import replay_server as rs
from replay_server.rl.function_contract import Measured, Response, decode_request, encode_response
from replay_server.serverless.cloud_event import RESPONSE_TYPE
from replay_server.serverless.entry_lambda import decode_event, encode_event

LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
CLOSES = re.compile(rb"\r\nconnection: *close", re.IGNORECASE)


class Round:
    """Holds invocations until all of a round are there."""

    def __init__(self, size: int) -> None:
        self._size, self._here, self._all = size, 0, asyncio.Event()

    async def join(self) -> None:
        self._here += 1
        all_are_here = self._all
        if self._here == self._size:
            self._here, self._all = 0, asyncio.Event()
            all_are_here.set()
        await all_are_here.wait()


def answered(head: bytes, body: bytes) -> bytes:
    """The HTTP response to an invocation."""
    of_lambda = head.startswith(b"POST /2015-03-31/")
    payload = decode_event(json.loads(body)) if of_lambda else body
    answer = encode_response(Response(decode_request(payload).request, Measured("service", 2), result={}))
    content = encode_event(answer) if of_lambda else answer
    kind = b"X-Amz-Executed-Version: 1" if of_lambda else b"ce-type: " + RESPONSE_TYPE.encode()
    return b"HTTP/1.1 200 OK\r\n%b\r\nContent-Length: %d\r\n\r\n%b" % (kind, len(content), content)


async def main(certificate: str, size: int) -> None:
    this_round = Round(size)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = b""
        while not CLOSES.search(head):
            try:
                head = await reader.readuntil(b"\r\n\r\n")
                length = LENGTH.search(head)
                assert length is not None
                body = await reader.readexactly(int(length[1]))
            except (asyncio.IncompleteReadError, OSError):
                break
            await this_round.join()
            writer.write(answered(head, body))
        writer.close()

    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(certificate)
    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=tls, backlog=2 * size)
    print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    rs.aio.run(main(sys.argv[1], int(sys.argv[2])))
