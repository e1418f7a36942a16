"""Run things at once, and tell of one failure where several failed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Iterable
from contextlib import asynccontextmanager
from typing import Any

from foveate.core.errors import FoveateError


async def together(work: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Wait for all of ``work``. The first failure cancels the rest; raises the one to report."""
    async with scope() as tasks:
        for each in work:
            tasks.create_task(each)


@asynccontextmanager
async def scope() -> AsyncIterator[asyncio.TaskGroup]:
    """Hold tasks that the block begins: it ends when all have. The first failure, the block's own too, cancels the rest and the block;
    raises the one to report."""
    failed: BaseException | None = None
    try:
        async with asyncio.TaskGroup() as tasks:
            yield tasks
    except BaseExceptionGroup as group:
        failed = _first(group)
    if failed is not None:
        raise failed  # with its own cause


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """Return the error to report: of several media's errors the earliest in the prompt; our own bugs before all."""
    leaves: list[BaseException] = []
    pending: list[BaseException] = [group]
    while pending:
        error = pending.pop()
        if isinstance(error, BaseExceptionGroup):
            pending.extend(error.exceptions)
        else:
            leaves.append(error)
    return min(
        leaves, key=lambda error: error.part if isinstance(error, FoveateError) and error.part is not None else -1
    )
