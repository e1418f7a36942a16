"""What is remembered of a video beside its name, so that it can be looked at again without its bytes: its facts and its frames.

Only for the sampling that it was sent with: which frames another one would take is known to who reads the bytes.
"""

from __future__ import annotations

from typing import Final

import msgspec

from foveate.caches.aliases import Content
from foveate.core.media import FramePick, ImageHeader, VideoHeader
from foveate.core.memory import Slot
from foveate.decisions.frames import FrameSampling
from foveate.journey.job import Film, Item


class NamedFilm(msgspec.Struct, frozen=True, array_like=True):
    """A film without its bytes. ``frame`` is the header of one frame; ``encoded`` are places in the bytes, where frames came as a list."""

    sampling: FrameSampling
    wanted: int
    header: VideoHeader
    frame: ImageHeader
    picks: tuple[FramePick, ...]
    encoded: tuple[tuple[Slot, ImageHeader], ...]


_DECODER: Final = msgspec.msgpack.Decoder(NamedFilm)


def packed(item: Item) -> bytes | None:
    """Return what is to be remembered of a video whose frames are there, some 20 bytes a frame; ``None`` of anything else."""
    film = item.film
    if film is None or item.header is None or item.blob is None or not item.frames:
        return None
    there = {frame.moment for frame in item.frames}
    start = item.blob.slot.offset
    named = NamedFilm(
        film.sampling,
        film.wanted,
        film.header,
        item.header,
        tuple(pick for pick in film.picks if pick.seconds in there),
        tuple((Slot(slot.offset - start, slot.size), header) for slot, header in film.encoded),
    )
    return msgspec.msgpack.encode(named)


def unpacked(content: Content) -> NamedFilm | None:
    """Return what is remembered of a named video; ``None`` when it is no video, or none whose frames were there."""
    return None if content.film is None else _DECODER.decode(content.film)


def film_of(named: NamedFilm) -> Film:
    """Return the film as it was when it was sent; its slots begin at 0."""
    return Film(named.header, named.sampling, named.wanted, named.picks, named.encoded)
