"""Where fetched bytes go. The implementation (a growing slot of the arena) belongs to the journey."""

from __future__ import annotations

from typing import Protocol


class Sink(Protocol):
    """Takes one body, chunk by chunk. Calls come from one task, in order: ``open``, ``write`` …, perhaps ``reset``
    and again from ``open``.
    """

    def check(self, size: int) -> None:
        """Judge a body of ``size`` bytes that is here already. Raises MediaTooLarge when it is beyond the cap."""
        ...

    def open(self, size_hint: int | None) -> None:
        """A body begins; ``size_hint`` is what its origin announced. Raises MediaTooLarge when the announcement is
        beyond the cap.
        """
        ...

    def write(self, chunk: bytes) -> None:
        """Append. Raises MediaTooLarge at the first byte beyond the cap."""
        ...

    def reset(self) -> None:
        """Forget what was written: the transfer broke off and starts again."""
        ...
