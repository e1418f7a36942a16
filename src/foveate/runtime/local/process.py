"""A worker process as the gateway holds it.

The kernel's handle of the process (a pidfd) is used for every signal, so a reused pid is never hit. ``on_exit`` comes
after the last message, when the process has truly ended and can no longer write to the arena.
"""

from __future__ import annotations

import asyncio
import logging
import os
import pickle
import signal
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any, Union

from foveate.core.errors import StartupError
from foveate.runtime.local.channel import GatewayChannel, frame
from foveate.runtime.local.forkserver import NUMBER
from foveate.runtime.local.launcher import ForkServer
from foveate.runtime.port import Progress, Ready, StartFailed, WorkerSpec

logger = logging.getLogger(__name__)

_LINGER_SECONDS = 1.0
"""How long a process may outlive its channel, or a channel its process, before both are ended."""
_LOOK_SECONDS = 0.5
"""How often a process that starts is looked at, whether the system holds it."""


class LocalWorker:
    """Implements :class:`foveate.runtime.port.Worker`. Starts once; a successor is another object."""

    def __init__(self, spec: WorkerSpec, forkserver: ForkServer, on_ended: Callable[[LocalWorker], None]) -> None:
        """``on_ended`` is called once, when nothing of the process is left, whether or not it was ever ready."""
        self.spec = spec
        self.pid: int | None = None
        self._forkserver = forkserver
        self._on_ended = on_ended
        self._on_message: Callable[[Any], None] | None = None
        self._on_exit: Callable[[], None] | None = None
        self._channel: GatewayChannel | None = None
        self._sentinel: socket.socket | None = None
        self._pidfd: int | None = None
        self._ready: asyncio.Future[Ready] | None = None
        self._is_ready = False
        self._channel_ended = False
        self._process_ended = False
        self._kill_asked = False
        self._status: int | None = None
        self._linger: asyncio.TimerHandle | None = None
        self._ended = asyncio.Event()

    @property
    def alive(self) -> bool:
        """See the port."""
        return self._is_ready and not self._process_ended and not self._kill_asked

    @property
    def suspended(self) -> bool:
        """See the port."""
        try:
            # "pid (name) state ...": the name may hold anything.
            state = Path(f"/proc/{self.pid}/stat").read_bytes().rpartition(b") ")[2][:1]
        except OSError:
            return False  # it has ended
        return state == b"T"

    @property
    def ended(self) -> bool:
        """Whether it was started and nothing of it is left."""
        return self._ended.is_set()

    async def start(
        self, *, on_message: Callable[[Any], None], on_exit: Callable[[], None], seconds_max: float
    ) -> Ready:
        """See the port. The process is ended when this raises or is cancelled."""
        if self._ready is not None:
            raise RuntimeError(f"{self.spec.title} was started before")
        loop = asyncio.get_running_loop()
        self._ready = loop.create_future()
        self._on_message, self._on_exit = on_message, on_exit
        try:
            async with asyncio.timeout(seconds_max):
                await self._launch(loop)
                return await self._until_ready(self._ready)
        except TimeoutError:
            self._give_up()
            raise StartupError(
                f"The process '{self.spec.title}' was not ready within {seconds_max:g} s. Allow more time, or see its messages above."
            ) from None
        except BaseException:
            self._give_up()
            raise

    def send(self, message: Any) -> None:
        """See the port. Raises FrameTooLarge."""
        if self._channel is not None and not self._process_ended:
            self._channel.send(message)

    def kill(self) -> None:
        """See the port."""
        self._kill_asked = True
        if self._pidfd is None:
            return
        try:
            signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
        except ProcessLookupError:
            logger.debug("%s has ended already", self.spec.title)

    async def stop(self, *, seconds_max: float) -> None:
        """See the port. When cancelled, the process is killed."""
        if self._channel is None or self.ended:
            return
        self._channel.finish()
        try:
            async with asyncio.timeout(seconds_max):
                await self._ended.wait()
        except TimeoutError:
            logger.warning("%s did not stop within %g s and is killed", self.spec.title, seconds_max)
        finally:
            if not self.ended:
                self.kill()
        await self._ended.wait()

    async def wait(self) -> None:
        """Wait until nothing of the process is left; at once when it was never started."""
        if self._ready is not None:
            await self._ended.wait()

    # ------------------------------------------------------------------------------------------------------------ start

    async def _launch(self, loop: asyncio.AbstractEventLoop) -> None:
        connection, theirs = socket.socketpair()
        self._sentinel, their_sentinel = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        connection.setblocking(False)
        self._sentinel.setblocking(False)
        try:
            self._forkserver.launch(theirs, their_sentinel)
        except BaseException:
            connection.close()
            self._sentinel.close()
            self._sentinel = None
            raise
        finally:
            theirs.close()
            their_sentinel.close()
        channel = GatewayChannel(
            Union[self.spec.sends, Ready, StartFailed, Progress],  # noqa: UP007 - built at run time
            on_message=self._received,
            on_closed=self._channel_closed,
            on_fault=self._fault,
        )
        loop.add_reader(self._sentinel, self._read_sentinel)
        await loop.create_unix_connection(lambda: channel, sock=connection)
        self._channel = channel
        channel.send_frame(frame(pickle.dumps(self.spec)))

    async def _until_ready(self, ready: asyncio.Future[Ready]) -> Ready:
        """Wait for it. Raises StartupError for a process that the system holds: it would be waited for as long as loading may take."""
        held = False
        while not ready.done():
            await asyncio.wait({ready}, timeout=_LOOK_SECONDS)
            # Twice in a row: who stops a process for a moment, to look at it, may.
            held_before, held = held, self.suspended
            if held and held_before and not ready.done():
                raise StartupError(f"The process '{self.spec.title}' was stopped while it started, and is killed.")
        return ready.result()

    def _give_up(self) -> None:
        """End what a failed start left. A process that does not exist yet will find its channel closed, and end."""
        assert self._ready is not None
        self._ready.cancel()
        self._is_ready = False  # it may have become ready while start was cancelled; nobody owns it then
        self.kill()
        if self._pidfd is None:
            self._process_ended = True
            if self._channel is None:
                self._channel_ended = True
        if self._channel is not None:
            self._channel.abort()
        self._end_if_over()

    # ----------------------------------------------------------------------------------------------------------- events

    def _received(self, message: Any) -> None:
        assert self._on_message is not None
        assert self._ready is not None
        if self._is_ready or isinstance(message, Progress):
            self._on_message(message)
        elif self._ready.done():
            return
        elif isinstance(message, Ready):
            self._is_ready = True
            self._ready.set_result(message)
        elif isinstance(message, StartFailed):
            self._ready.set_exception(message.error.error())
        else:
            self._fault(f"{type(message).__name__} came before it was ready")

    def _fault(self, what: str) -> None:
        logger.error("%s is killed: %s", self.spec.title, what)
        self.kill()

    def _read_sentinel(self) -> None:
        assert self._sentinel is not None
        data, fds, _, _ = socket.recv_fds(self._sentinel, NUMBER.size, 1)
        if fds:
            (self.pid,) = NUMBER.unpack(data)
            self._pidfd = fds[0]
            if self._kill_asked:
                self.kill()
            return
        loop = asyncio.get_running_loop()
        loop.remove_reader(self._sentinel)
        if data:
            (self._status,) = NUMBER.unpack(data)
            self._process_over()
        elif self._pidfd is None:
            self._process_over()  # the forkserver died before it forked
        else:
            # The forkserver died, and the kernel kills its children with it: wait for this one's end.
            self._end_without_forkserver()

    def _process_over(self) -> None:
        if self._pidfd is not None:
            asyncio.get_running_loop().remove_reader(self._pidfd)
        self._process_ended = True
        self._end_if_over()

    def _channel_closed(self) -> None:
        self._channel_ended = True
        self._end_if_over()

    def _end_if_over(self) -> None:
        if self.ended:
            return
        if not (self._process_ended and self._channel_ended):
            # One follows the other at once, unless a stray thread or a copy of the socket keeps it.
            if self._linger is None:
                self._linger = asyncio.get_running_loop().call_later(_LINGER_SECONDS, self._end_lingering)
            return
        if self._linger is not None:
            self._linger.cancel()
        self._release()
        assert self._ready is not None
        if not self._ready.done():
            self._ready.set_exception(
                StartupError(
                    f"The process '{self.spec.title}' ended while starting ({self._how()}). Its messages above say why."
                )
            )
        self._ended.set()
        self._on_ended(self)
        if self._is_ready and self._on_exit is not None:
            logger.debug("%s has ended (%s)", self.spec.title, self._how())
            self._on_exit()

    def _end_lingering(self) -> None:
        if not self._process_ended:
            self._end_without_forkserver()
        elif self._channel is not None:
            self._channel.abort()

    def _end_without_forkserver(self) -> None:
        self.kill()
        if self._pidfd is not None:
            asyncio.get_running_loop().add_reader(self._pidfd, self._process_over)

    def _release(self) -> None:
        if self._sentinel is not None:
            asyncio.get_running_loop().remove_reader(self._sentinel)
            self._sentinel.close()
        if self._pidfd is not None:
            os.close(self._pidfd)
            self._pidfd = None

    def _how(self) -> str:
        if self._status is None:
            return "cause unknown"
        code = os.waitstatus_to_exitcode(self._status)
        return f"exit code {code}" if code >= 0 else f"killed by {signal.Signals(-code).name}"
