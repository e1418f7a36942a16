"""Knows every open exchange: bounds their number, and ends those that remain when the server stops."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from foveate.core.errors import FoveateError, QueueFull


class Abortable(Protocol):
    """Something open that can be ended."""

    def abort(self, error: FoveateError) -> None:
        """End it with this error."""
        ...


class Gate:
    """Admits at most ``open_max`` exchanges at a time. What a request costs is the journey's to bound; this bounds
    reading bodies.
    """

    def __init__(self, *, open_max: int) -> None:
        self._open_max = open_max
        self._open: set[Abortable] = set()
        self._empty = asyncio.Event()
        self._empty.set()
        self._closed_by: FoveateError | None = None

    @property
    def open(self) -> int:
        """Exchanges that have begun and not ended."""
        return len(self._open)

    @contextmanager
    def enter(self, exchange: Abortable) -> Iterator[None]:
        """Count an exchange as open. Raises QueueFull, or the error the gate was closed with."""
        if self._closed_by is not None:
            raise self._closed_by
        if len(self._open) >= self._open_max:
            raise QueueFull(limit=self._open_max)
        self._open.add(exchange)
        self._empty.clear()
        try:
            yield
        finally:
            self._open.discard(exchange)
            if not self._open:
                self._empty.set()

    def close(self, error: FoveateError) -> None:
        """End every open exchange, and refuse every later one, with ``error``."""
        self._closed_by = error
        for exchange in list(self._open):
            exchange.abort(error)

    async def emptied(self, *, seconds_max: float) -> bool:
        """Wait until no exchange is open; tell whether that happened in time."""
        try:
            async with asyncio.timeout(seconds_max):
                await self._empty.wait()
        except TimeoutError:
            return False
        return True
