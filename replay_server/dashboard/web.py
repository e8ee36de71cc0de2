"""The web server behind the pages: NiceGUI on uvicorn, on a socket that is open already."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
from typing import Any

import fastapi
import uvicorn
from nicegui import Client, ui
from starlette.middleware.trustedhost import TrustedHostMiddleware
from uvicorn.config import WS_PROTOCOLS

from replay_server.dashboard.page import Pages
from replay_server.dashboard.watch import Watch


def is_page_open() -> bool:
    """Whether a browser is connected to a page. From any thread."""
    return any(client.has_socket_connection for client in list(Client.instances.values()))


async def serve(watch: Watch, listener: socket.socket, host: str) -> None:
    """Looks at everything and serves the pages, until a signal or cancellation. Prints the address when it is ready."""
    application = fastapi.FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    Pages(watch)
    ui.run_with(
        application, title="Replay server", favicon="📈", dark=None, show_welcome_message=False, reconnect_timeout=10.0
    )
    if host in ("127.0.0.1", "::1", "localhost"):
        # A page elsewhere that gives its own name this address is refused: it could read what stands here.
        application.add_middleware(TrustedHostMiddleware, allowed_hosts=["127.0.0.1", "localhost", "::1"])
    # Where uvicorn has it: the older one warns that it is outdated.
    protocol: Any = "websockets-sansio" if "websockets-sansio" in WS_PROTOCOLS else "auto"
    config = uvicorn.Config(application, log_level="warning", lifespan="on", ws=protocol, timeout_graceful_shutdown=1)
    server = uvicorn.Server(config)
    # uvicorn ends at a signal and raises it again: SIGTERM is met here, SIGINT ends the program through asyncio.run.
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, lambda: setattr(server, "should_exit", True))
    looking = asyncio.create_task(watch.run())
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        while not server.started and not serving.done() and not looking.done():
            await asyncio.sleep(0.02)
        if server.started:
            port = listener.getsockname()[1]
            shown = f"[{host}]" if ":" in host else host
            print(f"dashboard http://{shown}:{port}/", flush=True)
        done, _ = await asyncio.wait((looking, serving), return_when=asyncio.FIRST_COMPLETED)
        for each in done:
            each.result()
    finally:
        server.should_exit = True
        looking.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await looking
        await serving
