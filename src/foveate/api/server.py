"""Runs the application on a socket that is already bound, and stops it in order.

Covers binding (so that "port taken" is known before a model loads), serving, and a stop with a deadline. Signals are
the caller's: nothing here installs a handler. The caller provides the event loop (uvloop:
``asyncio.Runner(loop_factory=uvloop.new_event_loop)``).
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
from collections.abc import Generator
from typing import Final

import uvicorn
from fastapi import FastAPI

from foveate.api.gate import Gate
from foveate.api.protocol import ConnectionLimits, LimitedProtocol, limited_protocol
from foveate.core.errors import Draining, StartupError

BACKLOG: Final = 2048
KEEP_ALIVE_SECONDS: Final = 30.0

_LAST_WORDS_SECONDS: Final = 0.5
"""How long exchanges that were ended may take to tell their clients."""


def bind(host: str, port: int, *, backlog: int = BACKLOG) -> socket.socket:
    """Return a listening TCP socket; port 0 takes a free one.

    It listens at once, so that a second server on the same port fails here and now. Raises StartupError.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except OSError as error:
        raise StartupError(
            f"Cannot listen on {host}: it is not an address of this machine.", detail=str(error)
        ) from None
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(backlog)
    except OSError as error:
        listener.close()
        raise StartupError(_bind_sentence(host, port, error), detail=str(error)) from None
    listener.setblocking(False)
    return listener


def _bind_sentence(host: str, port: int, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"Port {port} is taken. Stop the process that uses it, or choose another with --port."
    if error.errno == errno.EACCES:
        return f"Port {port} needs privileges. Choose one above 1023 with --port."
    return f"Cannot listen on {host}:{port}: {os.strerror(error.errno or 0)}."


class _Uvicorn(uvicorn.Server):
    """uvicorn without its signal handlers, and telling when it accepts connections."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.accepting = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.accepting.set()

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield


class HttpServer:
    """The HTTP server. It serves within its context; leaving the context ends it at once if :meth:`stop` has not ended
    it before.
    """

    def __init__(
        self,
        app: FastAPI,
        listener: socket.socket,
        *,
        limits: ConnectionLimits | None = None,
        keep_alive_seconds: float = KEEP_ALIVE_SECONDS,
    ) -> None:
        self._gate: Gate = app.state.gate
        self._listener = listener
        self._serving: asyncio.Task[None] | None = None
        self._server = _Uvicorn(
            uvicorn.Config(
                app,
                loop="none",
                http=limited_protocol(limits or ConnectionLimits()),
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,
                backlog=BACKLOG,
                timeout_keep_alive=max(1, round(keep_alive_seconds)),
                timeout_graceful_shutdown=1,
            )
        )

    @property
    def port(self) -> int:
        """The port that is listened on."""
        return int(self._listener.getsockname()[1])

    async def __aenter__(self) -> HttpServer:
        self._serving = asyncio.create_task(self._server.serve([self._listener]), name="http server")
        accepting = asyncio.ensure_future(self._server.accepting.wait())
        await asyncio.wait((self._serving, accepting), return_when=asyncio.FIRST_COMPLETED)
        accepting.cancel()
        if self._serving.done():
            self._serving.result()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop(0.0)

    async def stop(self, deadline_seconds: float) -> None:
        """Stop: no new connections; open exchanges may finish until the deadline, then they end with an error
        (Draining).

        Returns when the last connection is closed. Stopping what has stopped does nothing.
        """
        if self._serving is None or self._serving.done():
            return
        for server in self._server.servers:
            server.close()
        for connection in list(self._server.server_state.connections):
            connection.shutdown()
        if not await self._gate.emptied(seconds_max=deadline_seconds):
            self._gate.close(Draining())
            await self._gate.emptied(seconds_max=_LAST_WORDS_SECONDS)
        for connection in list(self._server.server_state.connections):
            if isinstance(connection, LimitedProtocol):
                connection.end()
        self._server.should_exit = True
        await self._serving
