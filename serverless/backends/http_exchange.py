"""A POST over HTTP and its whole answer, over connections that are kept and used again."""

from __future__ import annotations

import asyncio
import io
import ssl
import urllib.parse
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass

import aiohttp
import yarl

KEEP_S = 60.0
"""How long an unused connection is kept; the other side may close it before."""
AT_ONCE_BYTES = 1 << 18
"""A longer body is sent in pieces, between which others have their turn."""


class ExchangeFailed(Exception):
    """No whole answer: no connection, one that broke, or something that is no HTTP."""


class AnswerTooLong(Exception):
    """The answer is longer than what is taken."""


@dataclass(frozen=True)
class Answer:
    """What came back."""

    status: int
    reason: str
    headers: Mapping[str, str]
    """Their names in any case."""
    body: bytes
    """Of an answer whose status is not 200, perhaps only the beginning."""


class Exchanges:
    """Connections to services, as many at a time as there are exchanges. To be used on one event loop.

    Args:
        tls: how certificates are verified; None = by those of the system.
        connect_s: longest time to connect; None = that of the exchange.
        proxies: whether the proxies that the environment names are used.
    """

    def __init__(
        self, tls: ssl.SSLContext | None = None, *, connect_s: float | None = None, proxies: bool = False
    ) -> None:
        self._tls, self._connect_s, self._proxies = tls, connect_s, proxies
        self._session: aiohttp.ClientSession | None = None

    async def post(
        self,
        url: str,
        body: bytes,
        headers: Mapping[str, str],
        *,
        timeout_s: float,
        most_bytes: int,
        error_bytes: int,
    ) -> Answer:
        """Sends the body and returns the answer; the URL's path is sent as it stands, and no redirect is followed.

        Args:
            timeout_s: of everything, from the connection to the answer's last byte.
            most_bytes: the longest answer that is taken.
            error_bytes: what is read of an answer whose status is not 200.

        Raises:
            TimeoutError: no whole answer within `timeout_s`, however it trickles in.
            AnswerTooLong: it has more than `most_bytes`.
            ExchangeFailed: there is none.
        """
        if timeout_s <= 0:
            raise TimeoutError
        limits = aiohttp.ClientTimeout(total=timeout_s, sock_connect=self._connect_s)
        data = body if len(body) <= AT_ONCE_BYTES else io.BytesIO(body)
        try:
            async with self._opened().post(
                yarl.URL(url, encoded=True),
                data=data,
                headers=headers,
                allow_redirects=False,
                timeout=limits,
                proxy=self._proxy_of(url),
            ) as response:
                found = await _read(response, most_bytes, error_bytes)
                return Answer(response.status, response.reason or "", response.headers, found)
        except aiohttp.ClientError as error:  # among them that there was no connection in connect_s
            raise ExchangeFailed(f"{type(error).__name__}: {error}") from error
        except asyncio.TimeoutError:
            raise TimeoutError from None
        except OSError as error:
            raise ExchangeFailed(f"{type(error).__name__}: {error}") from error

    async def close(self) -> None:
        """Closes what is kept."""
        if self._session is not None:
            await self._session.close()

    def _proxy_of(self, url: str) -> str | None:
        """Not by aiohttp's `trust_env`: that reads ~/.netrc too, and refuses signed requests to hosts that it names."""
        parts = urllib.parse.urlsplit(url)
        proxy = urllib.request.getproxies().get(parts.scheme) if self._proxies else None
        return None if proxy is None or urllib.request.proxy_bypass(parts.netloc) else proxy

    def _opened(self) -> aiohttp.ClientSession:
        if self._session is None:  # It belongs to the loop that runs when it is made.
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0, ssl=self._tls or True, keepalive_timeout=KEEP_S),
                cookie_jar=aiohttp.DummyCookieJar(),
                headers={"Accept-Encoding": "identity"},
                auto_decompress=False,
            )
        return self._session


async def _read(response: aiohttp.ClientResponse, most_bytes: int, error_bytes: int) -> bytes:
    body = bytearray()
    async for piece in response.content.iter_any():
        body += piece
        if response.status != 200 and len(body) >= error_bytes:
            response.close()
            return bytes(body[:error_bytes])
        if len(body) > most_bytes:
            response.close()
            raise AnswerTooLong(f"expected an answer of at most {most_bytes} bytes, got more")
    return bytes(body)
