"""What is read back finds its way into the cache, and no slot is lost or given back while a thread may write to it."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from tests.unit.caches.test_kept_file import OURS, filed, kept, payload

from foveate.caches.encoder import EncoderCache
from foveate.caches.kept_file import KeptReader
from foveate.caches.keys import EncoderKey
from foveate.core.kept import SkipReason
from foveate.journey.restoring import BATCH_ENTRIES, Restoring, look
from foveate.runtime.arena import Arena

SIZE = 128
"""What an entry of 96 bytes occupies."""


@pytest.fixture
def arena() -> Iterator[Arena]:
    made = Arena(1 << 20)
    yield made
    made.close()


@pytest.fixture
def reader() -> Iterator[KeptReader]:
    """Of a file with entries 1 to 4, of which the second is damaged."""
    data = filed([(kept(content), payload(content)) for content in range(1, 5)])
    fd = os.memfd_create("kept")
    os.write(fd, data.replace(payload(2), payload(9)))
    yield KeptReader(fd, OURS)
    os.close(fd)


def fit(key: EncoderKey) -> SkipReason | None:
    return None


def test_what_is_good_is_in_the_cache_the_hottest_last_to_go(arena: Arena, reader: KeptReader) -> None:
    cache = EncoderCache(4 * SIZE, arena.release)
    restoring = Restoring(arena, 4 * SIZE)
    batch = restoring.allocate(look(reader, fit))
    assert reader.done
    batch.load(reader)
    batch.through()
    restoring.give(cache)
    assert restoring.skipped == {"damaged": 1}
    assert arena.used_bytes == cache.stats().bytes == 3 * SIZE
    assert cache.stats().pinned == cache.stats().hits == cache.stats().misses == 0
    for content in (1, 3, 4):
        lease = cache.peek(kept(content).key)
        assert lease is not None
        assert bytes(arena.view(lease.entry.slot)) == payload(content)
        assert lease.entry.embeddings.tensors == kept(content).tensors
        assert (lease.entry.rows, lease.entry.meta) == (3, kept(content).meta)


def test_the_coldest_goes_first_when_room_is_needed(arena: Arena, reader: KeptReader) -> None:
    cache = EncoderCache(4 * SIZE, arena.release)
    restoring = Restoring(arena, 4 * SIZE)
    batch = restoring.allocate(look(reader, fit))
    batch.load(reader)
    batch.through()
    restoring.give(cache)
    cache.shrink(2 * SIZE)
    assert cache.keys() == [kept(1).key]


def test_what_does_not_fit_is_the_coldest(arena: Arena, reader: KeptReader) -> None:
    cache = EncoderCache(2 * SIZE, arena.release)
    restoring = Restoring(arena, 2 * SIZE)
    batch = restoring.allocate(look(reader, lambda key: "version" if key == kept(1).key else None))
    batch.load(reader)
    batch.through()
    restoring.give(cache)
    assert cache.keys() == [kept(3).key]
    assert restoring.skipped == {"version": 1, "capacity": 1, "damaged": 1}
    assert arena.used_bytes == SIZE


def test_slots_of_a_thread_that_is_late_come_back_when_it_is_through(arena: Arena, reader: KeptReader) -> None:
    cache = EncoderCache(4 * SIZE, arena.release)
    restoring = Restoring(arena, 4 * SIZE)
    batch = restoring.allocate(look(reader, fit))
    restoring.give(cache)
    assert arena.used_bytes == 4 * SIZE
    batch.load(reader)
    batch.through()
    assert (arena.used_bytes, len(cache.keys()), restoring.skipped) == (0, 0, {})


def test_slots_that_no_thread_came_to_come_back(arena: Arena, reader: KeptReader) -> None:
    restoring = Restoring(arena, 4 * SIZE)
    batch = restoring.allocate(look(reader, fit))
    batch.through()
    assert (arena.used_bytes, restoring.skipped) == (0, {})


def test_a_look_is_bounded(arena: Arena) -> None:
    count = BATCH_ENTRIES + 5
    fd = os.memfd_create("kept")
    os.write(fd, filed([(kept(content), payload(content)) for content in range(count)]))
    reader = KeptReader(fd, OURS)
    assert [len(look(reader, fit).found) for _ in range(2)] == [BATCH_ENTRIES, 5]
    assert reader.done
    os.close(fd)
