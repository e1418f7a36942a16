"""Large request bodies: received into the arena, where a media worker takes the inline pictures out of them.

Does not cover: which bodies are large, and their bytes on the wire.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

import msgspec

from foveate.core.budget import Caller
from foveate.core.clock import now
from foveate.core.errors import ArenaFull
from foveate.core.limits import ARENA_LIMIT
from foveate.core.media import Blob
from foveate.journey.holds import EarlyHold, SlotHold
from foveate.journey.port import Unpacked
from foveate.journey.room import take
from foveate.journey.tools import Tools
from foveate.journey.upload import Upload
from foveate.media.messages import JobFailed, Unpack, UnpackDone


class Bodies:
    """Those of one server, under the limits of ``tools``."""

    def __init__(self, tools: Tools) -> None:
        self._tools = tools

    @contextmanager
    def received(self, bytes_max: int, caller: Caller) -> Iterator[Upload]:
        """Open a buffer for one."""
        room = min(bytes_max, self._tools.limits.body_bytes_max)
        buffer = Upload(self._tools, room, caller, take=self._take)
        with buffer:
            buffer.open(room)
            yield buffer

    @asynccontextmanager
    async def unpacked(self, buffer: Upload) -> AsyncIterator[Unpacked]:
        """Let a media worker take the inline pictures out of one that was received; they are there until the block is left."""
        body = buffer.take()
        charge = buffer.charge
        try:
            out = take(self._tools, body.slot.size)
            hold = EarlyHold(out)
        except BaseException:
            body.release()
            charge.release()
            raise
        try:
            try:
                done = await self._unpack(body, out, buffer.tenant)
            finally:
                body.release()
            # Its room was the body's size: what base64 and text took of it goes back now, not when the request ends.
            end = max(
                (entry.blob.slot.offset + entry.blob.slot.size for entry in done.blobs if entry.blob is not None),
                default=out.slot.offset,
            )
            out.shrink(max(end - out.slot.offset, 1))
            blobs = tuple(entry.error if entry.blob is None else entry.blob for entry in done.blobs)
            charge.top_up("bytes", sum(blob.size for blob in blobs if isinstance(blob, Blob)))
            yield Unpacked(
                done.skeleton,
                tuple(blob for blob in blobs if blob is not None),
                started_at=done.started_at,
                ended_at=now(),
                hold=hold,
                charge=charge,
                cpu_ms=done.cpu_ms,
            )
        finally:
            hold.release()
            charge.release()

    def _take(self, size: int) -> SlotHold:
        """Bodies on their way may fill half of the arena, so that slow or idle uploads do not keep everyone else's pictures out."""
        arena = self._tools.arena
        others = arena.used_bytes - self._cached_bytes()
        if others + size > arena.capacity_bytes // 2:
            raise ArenaFull(
                detail="bodies and work under way hold half of the arena",
                limit_name=ARENA_LIMIT,
                limit=arena.capacity_bytes // 2,
                actual=others + size,
                retry_after_seconds=1.0,
            )
        return take(self._tools, size)

    def _cached_bytes(self) -> int:
        tools = self._tools
        return sum(cache.stats().bytes for cache in (tools.processor_cache, tools.encoder_cache, tools.media_cache))

    async def _unpack(self, body: SlotHold, out: SlotHold, tenant: str) -> UnpackDone:
        started = now()
        held = (body.retain(), out.retain())

        def release() -> None:
            for hold in held:
                hold.release()

        job = Unpack(body.slot, out.slot)
        deadline = started + self._tools.limits.item_seconds_max
        serving = self._tools.roll_out.stable
        leave = serving.enter()
        try:
            reply = await serving.media.run(job, whom=tenant, on_done=release, deadline=deadline)
        finally:
            leave()
        if isinstance(reply, JobFailed):
            raise reply.error.error()
        assert isinstance(reply, UnpackDone)
        return msgspec.structs.replace(reply, started_at=started)
