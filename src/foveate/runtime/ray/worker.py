"""A worker process on a node of the cluster, as the gateway holds it.

``on_exit`` comes after the last message. Nothing is written to the arena afterwards, whatever becomes of the process: only this side copies
into it. So a node that is lost, or a process that cannot be ended, is given up after a moment.
"""

from __future__ import annotations

import asyncio
import logging
import pickle
from collections import deque
from collections.abc import Callable
from typing import Any, Final, Literal, Union

import msgspec

from foveate.core.clock import now
from foveate.core.errors import ErrorRecord, StartupError
from foveate.runtime.local.channel import FRAME_BYTES_MAX, WRITE_BYTES_MAX, FrameTooLarge
from foveate.runtime.named_bytes import read_by_worker
from foveate.runtime.port import ArenaAccess, Progress, Ready, WorkerSpec
from foveate.runtime.ray.cluster import Host, HostLost, Hosts
from foveate.runtime.ray.parcel import BEAT_SECONDS, Parcel, add_bytes, unpack_bytes

logger = logging.getLogger(__name__)

_LINGER_SECONDS: Final = 1.0
"""How long an actor may take to tell of its process's end before it is given up, with its process."""
_QUIET_SECONDS: Final = 2.5 * BEAT_SECONDS
"""An actor that has said nothing for so long is not waited for when its process is killed: it would have said that it is there."""
_PATIENCE_SECONDS: Final = 10.0
"""How long an actor may take to be placed and started before the log tells of it."""
SILENT_SECONDS: Final = 3.0
"""How long nothing may be heard of an actor that says every half second that it is there."""
_TOGETHER_BYTES_MAX: Final = 32 * 2**20
"""Bytes of messages that travel in one call, but for a single larger message."""

_Fate = Literal["kept", "ended", "lost"]
"""What becomes of the actor when its process has ended or is given up."""


class RayWorker:
    """Implements :class:`foveate.runtime.port.Worker`. Starts once; a successor is another object."""

    def __init__(
        self, spec: WorkerSpec, hosts: Hosts, arena: ArenaAccess, on_ended: Callable[[RayWorker], None]
    ) -> None:
        """``on_ended`` is called once, when nothing of it is of use any more, whether or not it was ever ready."""
        self.spec = spec
        self._hosts = hosts
        self._arena = arena
        self._on_ended = on_ended
        self._on_message: Callable[[Any], None] | None = None
        self._on_exit: Callable[[], None] | None = None
        self._host: Host | None = None
        self._ready: asyncio.Future[Ready] | None = None
        self._is_ready = False
        self._held = False
        self._heard_at = 0.0
        self._kill_asked = False
        self._stop_seconds: float | None = None
        self._outbox: deque[tuple[bytes, Any]] = deque()
        self._outbox_bytes = 0
        self._more = asyncio.Event()
        self._running: asyncio.Task[None] | None = None
        self._sending: asyncio.Task[None] | None = None
        self._linger: asyncio.TimerHandle | None = None
        self._ended = asyncio.Event()
        self._encode = msgspec.msgpack.Encoder().encode
        self._decoder: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(
            Union[spec.sends, Progress]  # noqa: UP007 - built at run time
        )

    @property
    def alive(self) -> bool:
        """See the port."""
        return self._is_ready and not self._ended.is_set() and not self._kill_asked

    @property
    def suspended(self) -> bool:
        """See the port. So it is, too, where its actor or node has not been heard of for :data:`SILENT_SECONDS`."""
        return self._held or (self.alive and now() - self._heard_at > SILENT_SECONDS)

    @property
    def host(self) -> Host | None:
        """The actor that holds its process, once there is one."""
        return self._host

    @property
    def node(self) -> str:
        """Ray's id of the node that it is on; empty while it has none."""
        return "" if self._host is None else self._host.node

    async def start(
        self, *, on_message: Callable[[Any], None], on_exit: Callable[[], None], seconds_max: float
    ) -> Ready:
        """See the port. The process is ended when this raises or is cancelled."""
        if self._ready is not None:
            raise RuntimeError(f"{self.spec.title} was started before")
        loop = asyncio.get_running_loop()
        self._ready = loop.create_future()
        self._on_message, self._on_exit = on_message, on_exit
        self._running = loop.create_task(self._run(seconds_max), name=f"run {self.spec.title}")
        try:
            async with asyncio.timeout(seconds_max):
                return await self._ready
        except TimeoutError:
            self._give_up()
            raise StartupError(
                f"The process '{self.spec.title}' was not ready within {seconds_max:g} s. {self._why_not()}"
            ) from None
        except BaseException:
            self._give_up()
            raise

    def send(self, message: Any) -> None:
        """See the port. Raises FrameTooLarge."""
        if self._ready is None or self._ended.is_set() or self._kill_asked:
            return
        payload = self._encode(message)
        if len(payload) > FRAME_BYTES_MAX:
            raise FrameTooLarge(f"a message of {len(payload)} bytes; {FRAME_BYTES_MAX} are allowed")
        if self._outbox_bytes + len(payload) > WRITE_BYTES_MAX:
            self._fault(f"{self._outbox_bytes} bytes wait for it to read")
            return
        self._outbox.append((payload, message))
        self._outbox_bytes += len(payload)
        self._more.set()

    def kill(self) -> None:
        """See the port."""
        if self._kill_asked or self._running is None or self._ended.is_set():
            self._kill_asked = True
            return
        self._kill_asked = True
        if self._host is None:
            self._running.cancel()
            return
        self._host.ask_to_kill()
        quiet = self._is_ready and now() - self._heard_at > _QUIET_SECONDS
        self._linger = asyncio.get_running_loop().call_later(0 if quiet else _LINGER_SECONDS, self._abandon)

    async def stop(self, *, seconds_max: float) -> None:
        """See the port. When cancelled, the process is killed."""
        if self._running is None or self._ended.is_set():
            return
        if not self._is_ready:
            self.kill()
        self._stop_seconds = seconds_max
        self._more.set()
        try:
            async with asyncio.timeout(seconds_max + _LINGER_SECONDS):
                await self._ended.wait()
        except TimeoutError:
            logger.warning("%s did not stop within %g s and is killed", self.spec.title, seconds_max)
        finally:
            if not self._ended.is_set():
                self.kill()
        await self._ended.wait()

    async def wait(self) -> None:
        """Wait until nothing of it is of use any more; at once when it was never started."""
        if self._running is not None:
            await self._ended.wait()

    # ------------------------------------------------------------------------------------------------------------- run

    async def _run(self, seconds_max: float) -> None:
        """Be the worker, from taking an actor to the process's end. Ends in :meth:`_over`, however it ends."""
        how = "cause unknown"
        fate: _Fate = "ended"
        try:
            waits = asyncio.get_running_loop().call_later(_PATIENCE_SECONDS, self._tell_that_it_waits)
            try:
                self._host = host = await self._hosts.take(self.spec)
            finally:
                waits.cancel()
            spec = msgspec.structs.replace(self.spec, clock_ahead=host.clock_ahead)
            await host.begin(pickle.dumps(spec), seconds_max)
            self._sending = asyncio.get_running_loop().create_task(self._send(host), name=f"send {spec.title}")
            await self._listen(host)
            fate = "kept" if self._stop_seconds is None else "ended"
        except HostLost as error:
            how, fate = str(error).partition("\n")[0], "lost"
            logger.warning("%s is lost with its actor or node: %s", self.spec.title, how)
        except asyncio.CancelledError:
            how, fate = "given up", "lost"  # the actor did not tell in time what became of its process
        except Exception as error:
            how = repr(error)
            logger.exception("%s is given up", self.spec.title)
        finally:
            self._over(how, fate)

    async def _listen(self, host: Host) -> None:
        """Take what the process says until it has ended. Raises HostLost."""
        while True:
            parcels = await host.poll()
            self._heard_at = now()
            for parcel in parcels:
                await unpack_bytes(parcel, self._arena)
                if parcel.kind == "message":
                    self._said(parcel.payload)
                elif parcel.kind == "ready":
                    self._became_ready(msgspec.msgpack.decode(parcel.payload, type=Ready))
                elif parcel.kind in ("runs", "held"):
                    self._held = parcel.kind == "held"
                else:
                    if parcel.kind == "failed":
                        self._refused(msgspec.msgpack.decode(parcel.payload, type=ErrorRecord).error())
                    return

    def _tell_that_it_waits(self) -> None:
        logger.warning(
            "%s waits for a node of the Ray cluster that has room for %s", self.spec.title, self._hosts.needs(self.spec)
        )

    def _said(self, payload: bytes) -> None:
        assert self._on_message is not None
        message = self._decoder.decode(payload)
        try:
            self._on_message(message)
        except Exception:
            # A fault in handling one message must not cost the messages of all other requests.
            logger.exception("handling a worker's message of type %s failed", type(message).__name__)

    def _became_ready(self, ready: Ready) -> None:
        assert self._ready is not None
        if not self._ready.done():
            self._is_ready = True
            self._ready.set_result(ready)

    def _refused(self, error: Exception) -> None:
        assert self._ready is not None
        if not self._ready.done():
            self._ready.set_exception(error)

    async def _send(self, host: Host) -> None:
        """Hand messages on, in order, with the bytes that they name; then ask the process to end, once that is wanted."""
        try:
            while True:
                while self._outbox:
                    parcels = self._taken()
                    await host.deliver(parcels)
                if self._stop_seconds is not None:
                    await host.stop(self._stop_seconds)
                    return
                self._more.clear()
                await self._more.wait()
        except HostLost as error:
            self._fault(str(error).partition("\n")[0])
        except Exception:
            logger.exception("%s: sending failed", self.spec.title)
            self._fault("sending failed")

    def _taken(self) -> list[Parcel]:
        parcels: list[Parcel] = []
        size = 0
        while self._outbox and (not parcels or size < _TOGETHER_BYTES_MAX):
            payload, message = self._outbox.popleft()
            self._outbox_bytes -= len(payload)
            parcels.append(add_bytes(Parcel(payload=payload), read_by_worker(message), self._arena))
            size += parcels[-1].size
        return parcels

    # -------------------------------------------------------------------------------------------------------------- end

    def _give_up(self) -> None:
        """End what a failed start left."""
        assert self._ready is not None
        self._ready.cancel()
        self._is_ready = False  # it may have become ready while start was cancelled; nobody owns it then
        self.kill()

    def _why_not(self) -> str:
        if self._host is None:
            return f"No node of the Ray cluster had room for {self._hosts.needs(self.spec)} (ray status tells what there is)."
        return "Allow more time, or see its messages above."

    def _fault(self, what: str) -> None:
        if not self._ended.is_set():
            logger.error("%s is killed: %s", self.spec.title, what)
            self.kill()

    def _abandon(self) -> None:
        assert self._running is not None
        self._running.cancel()

    def _over(self, how: str, fate: _Fate) -> None:
        if self._linger is not None:
            self._linger.cancel()
        if self._sending is not None:
            self._sending.cancel()
        self._outbox.clear()
        if self._host is not None:
            if fate == "kept":
                self._hosts.keep(self.spec, self._host)
            elif fate == "lost":
                self._hosts.lost(self._host)
            else:
                self._host.end()
        self._refused(StartupError(f"The process '{self.spec.title}' ended while starting ({how})."))
        self._ended.set()
        self._on_ended(self)
        if self._is_ready and self._on_exit is not None:
            self._on_exit()
