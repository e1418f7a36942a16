"""A large request body on its way into the arena. What of it must be media is charged to its tenant as it comes.

Otherwise a tenant's requests that wait for a place, or whose bodies trickle, would fill the arena without anybody counting them.
"""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType

from foveate.core.budget import Caller
from foveate.core.errors import BodyTooLarge
from foveate.core.limits import SKELETON_BYTES_MAX
from foveate.journey.arena_sink import ArenaSink
from foveate.journey.holds import SlotHold
from foveate.journey.tools import Tools


class Upload(ArenaSink):
    """The body of one request. ``charge`` is whoever takes the body's to release; it is released here when nobody does."""

    def __init__(self, tools: Tools, bytes_max: int, caller: Caller, *, take: Callable[[int], SlotHold]) -> None:
        super().__init__(
            tools.arena,
            bytes_max,
            take=take,
            grow=self._arrived,
            too_large=BodyTooLarge,
            limit_name="server.body_bytes_max",
        )
        self.tenant = caller.tenant
        self.charge = tools.in_flight.arrive(caller)
        self._received = 0

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self.taken:
            self.charge.release()
        super().__exit__(kind, error, trace)

    def _arrived(self, size: int) -> None:
        """Charge what cannot be text, as the bytes that its base64 stands for. Raises HouseFull, MediaTotalTooLarge."""
        self._received += size
        self.charge.top_up("bytes", max(0, self._received - SKELETON_BYTES_MAX) * 3 // 4)
