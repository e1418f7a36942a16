"""Do equal work once: callers with the same key share one task.

The task belongs to the :class:`SingleFlight`, not to the caller who came first, so a caller that goes away never hurts
the others. When the last one goes away the work is cancelled. A failure reaches every caller of that flight and is not
kept: the next caller tries again.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Awaitable, Callable, Hashable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Generic, TypeVar

from foveate.core.errors import Draining, FoveateError

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")
L = TypeVar("L")
N = TypeVar("N")


class Notice(Generic[N]):
    """What work tells before its end, once, to all who wait for it: those who come later hear it when they come."""

    def __init__(self) -> None:
        self._told: list[N] = []
        self._hearers: list[Callable[[N], None]] = []

    def tell(self, news: N) -> None:
        """Tell it."""
        self._told = [news]
        for hear in tuple(self._hearers):
            hear(news)

    @contextmanager
    def heard(self, hear: Callable[[N], None]) -> Iterator[None]:
        """Have ``hear`` called with it, if it is told before the block ends."""
        for news in self._told:
            hear(news)
        self._hearers.append(hear)
        try:
            yield
        finally:
            self._hearers.remove(hear)


class _Flight(Generic[V]):
    """One piece of work, what it tells before its end, and the number of callers that wait for it."""

    __slots__ = ("notice", "task", "waiters")

    def __init__(self, task: asyncio.Task[V], notice: Notice[Any]) -> None:
        self.task = task
        self.notice = notice
        self.waiters = 0


class SingleFlight(Generic[K, V]):
    """Shared work by key.

    ``drop`` takes back the flight's own hold on a result, once, after the last caller took its lease.

    Use as an async context, or :meth:`aclose` it: that cancels what is in flight, whose callers get Draining, and waits
    for its end.
    """

    def __init__(self, drop: Callable[[V], None]) -> None:
        self._drop = drop
        self._flights: dict[K, _Flight[V]] = {}
        self._tasks: set[asyncio.Task[V]] = set()
        self._closed = False

    def __len__(self) -> int:
        """Keys in flight."""
        return len(self._flights)

    async def share(
        self,
        key: K,
        start: Callable[[], Awaitable[V]],
        lease: Callable[[V], L],
        *,
        ended: Callable[[], None] = lambda: None,
        anew: Callable[[FoveateError], bool] = lambda error: False,
        notice: Notice[N] | None = None,
        hear: Callable[[N], None] = lambda news: None,
    ) -> tuple[L, bool]:
        """Wait for the result of ``start()``; return a lease on it and whether the work was under way already.

        ``lease`` is called once for each caller that is still there, before the flight's own hold on the result is
        dropped. Raises what the work raises (a FoveateError as a copy of one's own, so that a caller may complete it),
        and Draining when closed.

        Work that was joined may have used up its time before this caller came: on an error that is ``anew`` the caller
        begins once anew, or joins who did.

        ``hear`` is called with what the work tells before its end, whoever began it: ``notice`` is where ``start`` tells it.

        ``ended`` is called once, when ``start`` and what it needs is done with: when the work that this call began is
        over, even if it was cancelled before it ran; when this call ends without having begun any.
        """
        begun = False
        try:
            flight = self._flights.get(key)
            if flight is not None:
                try:
                    return await self._wait(key, flight, lease, hear), True
                except FoveateError as error:
                    if not anew(error):
                        raise
            if self._closed:
                raise Draining(detail="shared work was asked for after its owner had closed")
            flight = self._flights.get(key)
            if flight is not None:
                return await self._wait(key, flight, lease, hear), True
            flight = self._begin(key, start, notice or Notice())
            begun = True
            flight.task.add_done_callback(lambda _: ended())
            return await self._wait(key, flight, lease, hear), False
        finally:
            if not begun:
                ended()

    async def aclose(self) -> None:
        """Cancel the work in flight and wait until it has ended."""
        self._closed = True
        self._flights.clear()
        while self._tasks:
            tasks = tuple(self._tasks)
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            await asyncio.sleep(0)

    async def __aenter__(self) -> SingleFlight[K, V]:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def _wait(self, key: K, flight: _Flight[V], lease: Callable[[V], L], hear: Callable[[N], None]) -> L:
        flight.waiters += 1
        try:
            with flight.notice.heard(hear):
                # asyncio.wait, unlike awaiting the task, neither cancels it with this caller nor takes its cancellation for this caller's.
                await asyncio.wait((flight.task,))
            return lease(_result(flight.task))
        finally:
            flight.waiters -= 1
            self._leave(key, flight)

    def _begin(self, key: K, start: Callable[[], Awaitable[V]], notice: Notice[Any]) -> _Flight[V]:
        async def work() -> V:
            try:
                return await start()
            finally:
                # A flight is over the moment its result exists: who comes later finds the result in a cache or begins
                # anew.
                if self._flights.get(key) is flight:
                    del self._flights[key]

        task = asyncio.get_running_loop().create_task(work())
        flight = _Flight(task, notice)
        self._flights[key] = flight
        self._tasks.add(task)
        task.add_done_callback(lambda _: self._landed(flight))
        return flight

    def _leave(self, key: K, flight: _Flight[V]) -> None:
        if flight.waiters:
            return
        if flight.task.done():
            self._settle(flight)
            return
        # Nobody may join work that is being cancelled.
        if self._flights.get(key) is flight:
            del self._flights[key]
        flight.task.cancel()

    def _landed(self, flight: _Flight[V]) -> None:
        if not flight.waiters:
            self._settle(flight)

    def _settle(self, flight: _Flight[V]) -> None:
        """Drop the flight's own hold, once. A failure that nobody waits for any more concerns nobody."""
        if flight.task not in self._tasks:
            return
        self._tasks.discard(flight.task)
        if not flight.task.cancelled() and flight.task.exception() is None:
            self._drop(flight.task.result())


def _result(task: asyncio.Task[V]) -> V:
    if task.cancelled():
        raise Draining(detail="shared work was cancelled by its owner")
    error = task.exception()
    if isinstance(error, FoveateError):
        raise copy.copy(error) from error
    if error is not None:
        raise error
    return task.result()
