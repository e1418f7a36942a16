"""Room in the arena for prompts' K/V on their way from prefill to token decode: a region of its own, so that it competes with no cache.

All versions of the model share it, and it is there in every topology: nothing of it is resident until it is written.

A prompt takes its slot before its prefill begins and keeps it until the process that draws its tokens has copied it. Whoever finds no room
waits, in order of arrival: that is what holds prefill back when token decode does not keep up.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict

from foveate.core.clock import now
from foveate.core.errors import DeadlineExceeded, InvalidParameter
from foveate.core.memory import Slot
from foveate.runtime.ranges import ALIGNMENT, Ranges

LIMIT_NAME = "topology.kv_bytes_max"


class Room:
    """One prompt's slot. Made with one holder; it is free again when the last of those who hold it lets go."""

    def __init__(self, rooms: KvRoom, slot: Slot) -> None:
        self._rooms = rooms
        self._holders = 1
        self.slot = slot

    def retain(self) -> Room:
        """Add a holder."""
        assert self._holders > 0, "what was given back cannot be held again"
        self._holders += 1
        return self

    def release(self) -> None:
        """Drop a holder."""
        assert self._holders > 0, "it was released more often than held"
        self._holders -= 1
        if self._holders == 0:
            self._rooms.give_back(self.slot)


class KvRoom:
    """``region`` of the arena, which nobody else may use. Owned by the event loop. Who waits is bounded by who is admitted."""

    def __init__(self, region: Slot) -> None:
        self.bytes_max = region.size
        self._origin = region.offset
        self._ranges = Ranges(region.size // ALIGNMENT * ALIGNMENT)
        self._waiting: OrderedDict[asyncio.Future[Slot], int] = OrderedDict()

    @property
    def used_bytes(self) -> int:
        """Bytes that prompts on their way occupy, alignment included."""
        return self._ranges.used

    @property
    def waiting(self) -> int:
        """Prompts that wait for room."""
        return len(self._waiting)

    async def take(self, size: int, *, deadline: float) -> Room:
        """Return room for ``size`` bytes, when there is. Raises InvalidParameter when there never is, DeadlineExceeded."""
        if size > self.bytes_max:
            raise InvalidParameter(
                "The prompt needs more memory between prefill and token decode than this server has.",
                limit_name=LIMIT_NAME,
                limit=self.bytes_max,
                actual=size,
            )
        future: asyncio.Future[Slot] = asyncio.get_running_loop().create_future()
        self._waiting[future] = size
        self._grant()
        try:
            done, _ = await asyncio.wait({future}, timeout=max(0.0, deadline - now()))
            if done:
                return Room(self, future.result())
            raise DeadlineExceeded(detail="the deadline passed while the prompt waited for room for its K/V")
        except BaseException:
            if future.done():
                self.give_back(future.result())
            else:
                del self._waiting[future]
                self._grant()
            raise

    def give_back(self, slot: Slot) -> None:
        """Take a slot back."""
        self._ranges.give_back(slot.offset - self._origin, slot.size)
        self._grant()

    def _grant(self) -> None:
        """Give room to those who wait, the first first: no small prompt passes a large one for ever."""
        while self._waiting:
            future, size = next(iter(self._waiting.items()))
            offset = self._ranges.take(size)
            if offset is None:
                return
            del self._waiting[future]
            future.set_result(Slot(self._origin + offset, size))
