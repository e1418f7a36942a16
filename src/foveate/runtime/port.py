"""What the rest of Foveate may ask of a runtime, and what a worker's code may ask of the process it runs in.

The gateway holds :class:`Worker` objects; the code inside a worker process is handed a :class:`WorkerContext`. A
worker is an entry point ``package.module:function`` called as ``function(context)``; it must send :class:`Ready` when
it can take work (or raise :class:`foveate.core.errors.StartupError`), then receive messages until
:meth:`WorkerContext.receive` returns ``None``, and return. Messages are msgspec structs with unique string tags; each
worker entry declares its own unions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import msgspec

from foveate.core.errors import ErrorRecord
from foveate.core.memory import Slot
from foveate.runtime.arena import Arena


class Ready(msgspec.Struct, frozen=True, tag="ready"):
    """First message of a worker that can take work; ``info`` is what its owner wants to know (versions, sizes)."""

    info: dict[str, Any]


class StartFailed(msgspec.Struct, frozen=True, tag="start_failed"):
    """First and last message of a worker that cannot start."""

    error: ErrorRecord


class Progress(msgspec.Struct, frozen=True, tag="progress"):
    """Sent any number of times before :class:`Ready`: one line on what is being loaded."""

    text: str


class WorkerSpec(msgspec.Struct, frozen=True):
    """A worker to start. ``config`` is a msgpack-able value handed to the entry point.

    ``memory_bytes_max`` (0: none) is what the process may allocate beyond what it holds when it reports ready;
    ``threads`` is the number of threads numerical libraries may use; ``cpus`` are the only cores that it may run on (empty: any).
    ``clock_ahead`` is for :func:`foveate.core.clock.follow`; the runtime fills it in. ``needs`` names what it takes of a node, where that
    is another role's; empty: its own.
    """

    role: str
    index: int
    entry: str
    config: Any
    receives: Any
    sends: Any
    memory_bytes_max: int = 0
    threads: int = 1
    cpus: tuple[int, ...] = ()
    clock_ahead: float = 0.0
    needs: str = ""

    @property
    def title(self) -> str:
        """The process title, for example ``foveate: media 0``."""
        return f"foveate: {self.role} {self.index}"


class ArenaAccess(Protocol):
    """The arena as a worker sees it: bytes of slots it was given, nothing else."""

    def view(self, slot: Slot) -> memoryview:
        """Return the slot's bytes, writable, without a copy."""
        ...


class WorkerContext(Protocol):
    """What a worker's entry point is given."""

    spec: WorkerSpec
    arena: ArenaAccess

    def receive(self, timeout_seconds: float | None = None) -> Any | None:
        """Return the next message; ``None`` when the gateway is gone or asks to stop.

        Raises TimeoutError when none came within ``timeout_seconds``.
        """
        ...

    def pending(self) -> bool:
        """Tell whether :meth:`receive` would return at once."""
        ...

    def send(self, message: Any) -> None:
        """Send a message to the gateway. May be called from any thread of the worker."""
        ...


class Worker(Protocol):
    """A worker process as the gateway sees it."""

    spec: WorkerSpec

    @property
    def alive(self) -> bool:
        """Whether the process is ready and has not ended."""
        ...

    @property
    def suspended(self) -> bool:
        """Whether the system holds the process (SIGSTOP), so that whatever it does takes for ever; false where that cannot be told."""
        ...

    async def start(
        self, *, on_message: Callable[[Any], None], on_exit: Callable[[], None], seconds_max: float
    ) -> Ready:
        """Start the process and wait until it is ready.

        ``on_message`` is called on the event loop for every message after :class:`Ready` (and for :class:`Progress`
        before it); ``on_exit`` exactly once when the process has ended for whatever reason after it was ready. Raises
        the worker's StartupError, or StartupError when it ends or takes longer than ``seconds_max``.
        """
        ...

    def send(self, message: Any) -> None:
        """Queue a message. On a worker that has ended this does nothing: ``on_exit`` tells."""
        ...

    def kill(self) -> None:
        """End the process at once (SIGKILL)."""
        ...

    async def stop(self, *, seconds_max: float) -> None:
        """Ask the process to end (its ``receive`` returns ``None``), wait, kill it after ``seconds_max``, reap it."""
        ...

    async def wait(self) -> None:
        """Wait until nothing of the process is left; at once when it was never started."""
        ...


class Runtime(Protocol):
    """Starts workers and owns the arena."""

    arena: Arena

    def worker(self, spec: WorkerSpec) -> Worker:
        """Return a worker that is not started yet."""
        ...

    def processes(self) -> list[tuple[str, int]]:
        """Return what each process of this machine is and its pid, this one's first. May be called from any thread."""
        ...

    async def close(self) -> None:
        """End every process and give the arena back."""
        ...
