"""Wait for what must be over before anything goes on: a slot that another process may still touch is in use, whoever has given up."""

from __future__ import annotations

import asyncio
from typing import Any


async def settled(future: asyncio.Future[Any]) -> None:
    """Wait until ``future`` is done, however often this is cancelled meanwhile; that is raised afterwards. Its own error is not raised."""
    cancelled = False
    while not future.done():
        try:
            await asyncio.wait({future})
        except asyncio.CancelledError:
            cancelled = True
    if not future.cancelled():
        future.exception()  # retrieved: whoever waits here has an error of their own to tell
    if cancelled:
        raise asyncio.CancelledError
