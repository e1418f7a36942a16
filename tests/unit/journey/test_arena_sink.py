"""Bytes of unknown or announced length into the arena: capped, never copied twice beyond a step, given back or handed over."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foveate.core.errors import BodyTooLarge, FoveateError, MediaTooLarge, MediaUndecodable
from foveate.core.memory import Slot
from foveate.journey.arena_sink import STEPS_BYTES, ArenaSink
from foveate.journey.holds import SlotHold
from foveate.journey.in_flight import NoRoom
from foveate.runtime.arena import Arena

MiB = 2**20


def sink_of(arena: Arena, bytes_max: int, **options: type[FoveateError]) -> ArenaSink:
    return ArenaSink(arena, bytes_max, take=lambda size: SlotHold(arena, arena.allocate(size)), **options)


@pytest.fixture(scope="module")
def arena() -> Arena:
    return Arena(64 * MiB)


@settings(deadline=None, max_examples=40)
@given(chunks=st.lists(st.integers(0, 700_000), max_size=12), hint=st.booleans())
def test_what_was_written_is_what_is_there(arena: Arena, chunks: list[int], hint: bool) -> None:
    written = b"".join(bytes([65 + number]) * size for number, size in enumerate(chunks))
    with sink_of(arena, 16 * MiB) as sink:
        sink.open(len(written) if hint else None)
        for number, size in enumerate(chunks):
            sink.write(bytes([65 + number]) * size)
        assert sink.slot.size == len(written)
        if written:
            hold = sink.take()
            assert bytes(arena.view(hold.slot)) == written
            hold.release()
    assert arena.used_bytes == 0


def test_the_cap_holds_for_announcements_and_for_bytes(arena: Arena) -> None:
    with sink_of(arena, 1000) as sink:
        with pytest.raises(MediaTooLarge) as announced:
            sink.open(1001)
        assert (announced.value.limit, announced.value.actual) == (1000, 1001)
        assert announced.value.limit_name == "max_item_bytes"
    with sink_of(arena, 1000, too_large=BodyTooLarge) as sink:
        sink.open(10)
        sink.write(b"a" * 1000)
        with pytest.raises(BodyTooLarge):
            sink.write(b"b")
    assert arena.used_bytes == 0


def test_a_retry_begins_again(arena: Arena) -> None:
    with sink_of(arena, 1000) as sink:
        sink.open(None)
        sink.write(b"broken")
        sink.reset()
        sink.open(5)
        sink.write(b"whole")
        hold = sink.take()
        assert bytes(arena.view(hold.slot)) == b"whole"
        hold.release()


def test_nothing_is_refused_as_media(arena: Arena) -> None:
    with sink_of(arena, 1000) as sink:
        sink.open(0)
        with pytest.raises(MediaUndecodable):
            sink.take()
    assert arena.used_bytes == 0


def test_growing_copies_little_and_takes_the_rest_at_once(arena: Arena) -> None:
    with sink_of(arena, 16 * MiB) as sink:
        sink.open(None)
        sizes: list[int] = []
        for _ in range(60):
            sink.write(b"x" * (100 * 1024))
            if not sizes or arena.used_bytes != sizes[-1]:
                sizes.append(arena.used_bytes)
        assert sizes == [*STEPS_BYTES, 16 * MiB]
    assert sink.slot == Slot(0, 0)


def test_who_announces_much_and_sends_little_takes_little(arena: Arena) -> None:
    with sink_of(arena, 16 * MiB) as sink:
        sink.open(16 * MiB)
        sink.write(b"x")
        assert arena.used_bytes == STEPS_BYTES[0]


def test_an_announced_length_is_taken_exactly(arena: Arena) -> None:
    with sink_of(arena, 16 * MiB) as sink:
        sink.open(5 * MiB)
        sink.write(b"x" * (3 * MiB))
        assert arena.used_bytes == 5 * MiB


def test_bytes_are_told_as_they_come_and_as_a_retry_forgets_them(arena: Arena) -> None:
    told: list[int] = []
    with ArenaSink(arena, 1000, take=lambda size: SlotHold(arena, arena.allocate(size)), grow=told.append) as sink:
        sink.open(None)
        sink.write(b"a" * 300)
        sink.reset()
        sink.write(b"b" * 1000)
        with pytest.raises(MediaTooLarge):
            sink.write(b"c")
    assert told == [300, -300, 1000]
    assert arena.used_bytes == 0


def test_whoever_counts_the_bytes_may_refuse_them(arena: Arena) -> None:
    def full(size: int) -> None:
        raise NoRoom(size)

    with ArenaSink(arena, 1000, take=lambda size: SlotHold(arena, arena.allocate(size)), grow=full) as sink:
        sink.open(None)
        with pytest.raises(NoRoom):
            sink.write(b"a")
        assert sink.slot.size == 0
    assert arena.used_bytes == 0


@pytest.mark.parametrize(
    ("options", "said"),
    [({}, "The media has 11 bytes"), ({"too_large": BodyTooLarge}, "The request body has 11 bytes")],
)
def test_a_refusal_says_what_is_too_large(arena: Arena, options: dict[str, type[FoveateError]], said: str) -> None:
    with sink_of(arena, 10, **options) as sink, pytest.raises(FoveateError, match=said):
        sink.write(b"x" * 11)
