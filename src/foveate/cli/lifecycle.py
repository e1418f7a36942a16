"""The life of a server process: open the door, load behind it, answer, drain on the first signal, end at once on the second."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import setproctitle
import uvloop

from foveate.api.app import create_app
from foveate.api.server import HttpServer, bind
from foveate.assembly import journey
from foveate.assembly.upstream import upstream_journey
from foveate.core.errors import SettingsRefused
from foveate.dashboard import routes as dashboard
from foveate.journey.deferred import Deferred
from foveate.journey.service import Journey
from foveate.models.files import DEMO_NAME
from foveate.observe.logging import configure, get_logger
from foveate.settings import Settings

T = TypeVar("T")
LAST_SECONDS = 1.0
log = get_logger(__name__)

SWITCH_SECONDS = 0.001
"""How long a thread of the gateway may keep the interpreter from the event loop. Python's default of 5 ms is the whole budget for lag."""


def serve_until_signalled(read: Callable[[], Settings]) -> None:
    """Run the server until SIGTERM or SIGINT: the first lets open requests finish, the second ends at once. Raises StartupError.

    ``read`` reads the settings: once now, and again at SIGHUP.
    """
    settings = read()
    setproctitle.setproctitle("foveate: gateway")
    sys.setswitchinterval(SWITCH_SECONDS)
    configure(json=settings.log.format == "json", level=settings.log.level)
    # Taken before anything is loaded: a port in use should not cost a minute of loading first.
    listener = bind(settings.server.host, settings.server.port)
    uvloop.run(_serve(settings, listener, read))


async def _serve(settings: Settings, listener: socket.socket, read: Callable[[], Settings]) -> None:
    signals = _Signals()
    hurried = await _run(settings, listener, signals, read)
    log.info("ended at once, as the second signal asked" if hurried else "ended")
    logging.shutdown()
    sys.stdout.flush()
    # Not a return: taking the interpreter with the model libraries apart, and waiting for a thread that still imports them, takes
    # seconds in which nothing more can happen. All that had to be written is written, and every worker has ended or ends with this process.
    os._exit(0)


async def _run(settings: Settings, listener: socket.socket, signals: _Signals, read: Callable[[], Settings]) -> bool:
    """Open the door, load behind it, answer until the first signal, drain, end. Returns whether a second signal cut that short."""
    door = Deferred(
        model=settings.model.served_name or settings.model.path or DEMO_NAME,
        body_bytes_max=settings.server.body_bytes_max,
        inline_bytes_min=settings.server.inline_bytes_min,
    )
    build = upstream_journey if settings.engine.kind == "upstream" else journey
    inside = build(settings, say=log.info, read=read)
    app = create_app(door, open_max=settings.limits.requests_max)
    dashboard.install(app, door)
    async with HttpServer(app, listener, keep_alive_seconds=settings.server.keep_alive_seconds) as server:
        service = await _unless(signals.first, inside.__aenter__())
        if service is None:
            return False
        try:
            door.become(service)
            host, port = listener.getsockname()[:2]
            log.info(f"ready on http://{host}:{port}", model=service.models[0], **_apart(settings))
            async with _reloading(service, signals):
                await signals.first.wait()
            log.info("shutting down", open_requests=service.open_requests, seconds_max=settings.server.drain_seconds)
            service.drain()
            await _unless(signals.second, server.stop(settings.server.drain_seconds))
            # Whatever is still open, because the second signal came, is told so.
            await server.stop(0.0)
        finally:
            await _unless(signals.second, inside.__aexit__(None, None, None))
    return signals.second.is_set()


def _apart(settings: Settings) -> dict[str, str | int]:
    """Return what the operator is told of a topology in which not everything is in the engine's process."""
    chosen = settings.topology
    if chosen.kind == "agg":
        return {}
    told: dict[str, str | int] = {"topology": chosen.kind, "encoders": chosen.encoders}
    return told | ({"prefill": chosen.prefill, "decode": chosen.decode} if chosen.kind == "e-p-d" else {})


@asynccontextmanager
async def _reloading(service: Journey, signals: _Signals) -> AsyncIterator[None]:
    """Within it, SIGHUP reloads; one that came while the server was loading does so at once."""

    async def reload() -> None:
        while True:
            await signals.reload.wait()
            signals.reload.clear()
            try:
                await service.reload()
            except SettingsRefused:
                continue  # logged where it was refused, with the reason
            except Exception:
                log.exception("reload failed, the old rules stay")

    task = asyncio.create_task(reload(), name="reload on SIGHUP")
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait((task,), timeout=LAST_SECONDS)


async def _unless(event: asyncio.Event, work: Coroutine[Any, Any, T]) -> T | None:
    """Return the work's result, or ``None`` when the event comes first; the work is then cancelled, and waited for a second at most."""
    doing = asyncio.ensure_future(work)
    waiting = asyncio.ensure_future(event.wait())
    try:
        await asyncio.wait((doing, waiting), return_when=asyncio.FIRST_COMPLETED)
    finally:
        waiting.cancel()
        if not doing.done():
            doing.cancel()
            await asyncio.wait((doing,), timeout=LAST_SECONDS)
    return None if doing.cancelled() or not doing.done() else doing.result()


class _Signals:
    """SIGTERM and SIGINT, and SIGHUP, as events."""

    def __init__(self) -> None:
        self.first = asyncio.Event()
        self.second = asyncio.Event()
        self.reload = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._arrived)
        self._at_terminal = os.isatty(sys.stderr.fileno())
        loop.add_signal_handler(signal.SIGHUP, self._hung_up)

    def _arrived(self) -> None:
        (self.second if self.first.is_set() else self.first).set()

    def _hung_up(self) -> None:
        """Reload; but a server whose terminal was closed ends, as a user of terminals expects."""
        if self._at_terminal and not os.isatty(sys.stderr.fileno()):
            self._arrived()
        else:
            self.reload.set()
