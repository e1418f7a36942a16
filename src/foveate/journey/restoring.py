"""What is read back of a kept encoder cache, on its way from the file through arena slots into the cache."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Final, NamedTuple

from foveate.caches.encoder import EncoderCache, EncoderEntry
from foveate.caches.kept_file import Found, Kept, KeptFault, KeptReader
from foveate.caches.keys import EncoderKey
from foveate.core.errors import ArenaFull
from foveate.core.kept import SkipReason
from foveate.core.memory import Slot, TensorBundle
from foveate.runtime.arena import Arena, aligned

BATCH_BYTES: Final = 8 * 1024 * 1024
BATCH_ENTRIES: Final = 256
"""What a thread reads before the time is looked at again."""

Unfit = Callable[[EncoderKey], SkipReason | None]
"""Says why a key is of no use now."""


class Seen(NamedTuple):
    """What the next entries are: those of use, why the others are of none, and why there are no more if that is a fault."""

    found: list[Found]
    unfit: list[SkipReason]
    fault: KeptFault | None = None


def look(reader: KeptReader, unfit: Unfit) -> Seen:
    """Look at the next entries without their payloads. To be called in a thread."""
    seen = Seen([], [])
    size = 0
    try:
        for _ in range(BATCH_ENTRIES):
            entry = reader.next()
            if entry is None:
                break
            reason = unfit(entry.kept.key)
            if reason is not None:
                seen.unfit.append(reason)
                continue
            seen.found.append(entry)
            size += entry.kept.used
            if size >= BATCH_BYTES:
                break
    except KeptFault as fault:
        return seen._replace(fault=fault)
    return seen


@dataclass
class Batch:
    """Entries to be loaded, each into a slot. The slots are the thread's while it loads."""

    restoring: Restoring
    places: list[tuple[Found, Slot, memoryview]] = field(default_factory=list)
    good: list[bool] = field(default_factory=list)

    def load(self, reader: KeptReader) -> None:
        """Read the payloads; to be called in a thread."""
        for found, _, view in self.places:
            self.good.append(reader.load(found, view))

    def through(self) -> None:
        """Take the slots back from the thread, those included that it did not come to."""
        for (found, slot, _), good in zip_longest(self.places, self.good):
            self.restoring.loaded(found.kept, slot, good=good)


class Restoring:
    """Allocates, collects, gives. Lives on the event loop."""

    def __init__(self, arena: Arena, room: int) -> None:
        """``room``: bytes of the cache."""
        self.skipped: dict[SkipReason, int] = {}
        """Entries that are not used, by reason; the rest of a file that ends too early, or its whole, counts as one."""
        self._arena = arena
        self._room = room
        self._loaded: list[tuple[Kept, Slot]] = []
        self._over = False

    def skip(self, reason: SkipReason) -> None:
        """Count what is not used."""
        self.skipped[reason] = self.skipped.get(reason, 0) + 1

    def allocate(self, seen: Seen) -> Batch:
        """Return slots for as many entries as there is room for."""
        for reason in seen.unfit:
            self.skip(reason)
        batch = Batch(self)
        for entry in seen.found:
            size = aligned(entry.kept.used)
            try:
                slot = self._arena.allocate(entry.kept.used) if size <= self._room else None
            except ArenaFull:
                slot = None
            if slot is None:
                self.skip("capacity")
                continue
            self._room -= size
            batch.places.append((entry, slot, self._arena.view(slot)))
        return batch

    def loaded(self, kept: Kept, slot: Slot, *, good: bool | None) -> None:
        """Take a slot back. ``good``: whether what was read into it is what was kept; ``None``: nothing was."""
        if good and not self._over:
            self._loaded.append((kept, slot))
            return
        self._arena.release(slot)
        self._room += aligned(slot.size)
        if good is False and not self._over:
            self.skip("damaged")

    def give(self, cache: EncoderCache) -> None:
        """Give what was loaded to the cache. What a thread still loads then is given back when it is through."""
        self._over = True
        # The coldest first: what was put last is what an eviction policy keeps longest.
        for kept, slot in reversed(self._loaded):
            bundle = TensorBundle(slot, kept.tensors, kept.used)
            entry = EncoderEntry(kept.replacement, kept.rows, kept.meta, bundle, kept.cost_ms, kept.key.name())
            if not cache.restore(kept.key, entry, aligned(slot.size)):
                self._arena.release(slot)
