"""What travels between the gateway and a worker's actor: encoded messages, each with copies of the bytes that it names.

Arrays are handed to Ray as they lie in the arena; Ray copies them into its object store while it takes them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np

from foveate.core.memory import Slot
from foveate.runtime.port import ArenaAccess

_CHUNK_BYTES: Final = 4 * 2**20
"""Bytes that are copied before other work of the event loop has its turn: about a millisecond."""

BEAT_SECONDS: Final = 0.5

Kind = Literal["message", "ready", "failed", "exited", "runs", "held"]


@dataclass(slots=True)
class Parcel:
    """One message as msgpack, and the bytes that go with it: ``arrays`` (uint8) belong at ``offsets`` of the arena.

    ``kind``, from an actor: a message of the worker's, what it said when it was ready, why it did not start, that it has ended; and,
    every :data:`BEAT_SECONDS`, whether the system lets it run or holds it (SIGSTOP).
    """

    kind: Kind = "message"
    payload: bytes = b""
    offsets: list[int] = field(default_factory=list)
    arrays: list[Any] = field(default_factory=list)

    @property
    def size(self) -> int:
        """Bytes, the message's included."""
        return len(self.payload) + sum(int(array.nbytes) for array in self.arrays)


def machine() -> str:
    """Return what tells machines apart: the boot id of the kernel, which containers of one machine share, as they share its clock."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def add_bytes(parcel: Parcel, slots: Iterable[Slot], arena: ArenaAccess) -> Parcel:
    """Put views of ``slots`` into the parcel: they must stay as they are until it was taken."""
    for slot in slots:
        parcel.offsets.append(slot.offset)
        parcel.arrays.append(np.frombuffer(arena.view(slot), np.uint8))
    return parcel


async def unpack_bytes(parcel: Parcel, arena: ArenaAccess) -> None:
    """Copy the parcel's bytes to where they belong. Cancelled, it writes no more. Raises ValueError for a place outside the arena."""
    for offset, array in zip(parcel.offsets, parcel.arrays, strict=True):
        view = arena.view(Slot(offset, int(array.nbytes)))
        target = np.frombuffer(view, np.uint8)
        for at in range(0, len(target), _CHUNK_BYTES):
            if at:
                await asyncio.sleep(0)
            np.copyto(target[at : at + _CHUNK_BYTES], array[at : at + _CHUNK_BYTES])
