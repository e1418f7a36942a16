"""A thread for files whose disk may hang: who waits for it does so until a deadline and no longer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Any, Final, TypeVar

from foveate.core.clock import now

T = TypeVar("T")
LAST_SECONDS: Final = 1.0
"""How long leaving waits for what is done last."""


class FileThread:
    """Does one piece of work after the other, from an async context."""

    def __init__(self, until: float) -> None:
        """``until``: when waiting ends, in monotonic seconds."""
        self._until = until
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="files")
        self._last: list[Callable[[], Any]] = []

    async def do(self, work: Callable[[], T], *, through: Callable[[], Any] | None = None) -> T:
        """Return what ``work`` returns. ``through`` is called on the event loop when the work is over, be it long after this.

        Raises what it raises, and TimeoutError. Work is not begun when its time is up.
        """
        if now() >= self._until:
            if through is not None:
                through()
            raise TimeoutError
        future = self._begin(work)
        if through is not None:
            future.add_done_callback(lambda _: through())
        await asyncio.wait((future,), timeout=max(self._until - now(), 0))
        if not future.done():
            raise TimeoutError
        return future.result()

    def last(self, work: Callable[[], Any]) -> None:
        """Have something done when the context is left, in reverse order, after the work under way. Nobody learns of its failure."""
        self._last.append(work)

    async def __aenter__(self) -> FileThread:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        ending = [self._begin(work) for work in reversed(self._last)]
        self._thread.shutdown(wait=False)
        if ending:
            await asyncio.wait(ending, timeout=LAST_SECONDS)

    def _begin(self, work: Callable[[], T]) -> asyncio.Future[T]:
        future = asyncio.get_running_loop().run_in_executor(self._thread, work)
        # Asked for, so that a failure after the waiting has ended is not reported as forgotten.
        future.add_done_callback(lambda done: done.cancelled() or done.exception())
        return future
