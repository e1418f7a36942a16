"""The right to use a cache entry: while a lease is open, the entry's memory is neither freed nor reused."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Any, Generic, TypeVar

from foveate.decisions.eviction import Held

E = TypeVar("E")


class Lease(Generic[E]):
    """One use of ``entry``.

    Leaving the context, or :meth:`release`, gives it back; releasing twice is harmless, as closing a file is.
    """

    __slots__ = ("_give_back", "_held", "_repin", "entry")

    def __init__(
        self, held: Held[Any, E], give_back: Callable[[Held[Any, E]], None], repin: Callable[[Held[Any, E]], None]
    ) -> None:
        self.entry = held.value
        self._held: Held[Any, E] | None = held
        self._give_back = give_back
        self._repin = repin

    @property
    def open(self) -> bool:
        """Whether the entry may still be used through this lease."""
        return self._held is not None

    def again(self) -> Lease[E]:
        """Return another lease on the same entry, to be released on its own.

        Raises RuntimeError when this one was released.
        """
        if self._held is None:
            raise RuntimeError("a released lease cannot be leased from")
        self._repin(self._held)
        return Lease(self._held, self._give_back, self._repin)

    def release(self) -> None:
        """Give the entry back."""
        held, self._held = self._held, None
        if held is not None:
            self._give_back(held)

    def __enter__(self) -> Lease[E]:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()
