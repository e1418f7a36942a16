"""A request's JSON as a server gets it: the client's document, its holes filled.

A picture's bytes become base64 while they are sent, slice by slice out of the arena, so that sixteen megabytes of them neither stand twice
in memory nor hold up the event loop.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Iterator
from typing import Final

import msgspec
import pybase64

from foveate.core.document import MediaHole
from foveate.core.memory import Slot
from foveate.engines.port import PictureInput, RelayedMedia, RelayWork
from foveate.engines.upstream.config import Mode
from foveate.engines.upstream.npy import npy
from foveate.runtime.arena import Arena

SLICE_BYTES: Final = 3 * 64 * 1024
"""Encoded at a time: a multiple of three, so that slices' base64 joins without padding between. 0.1 ms."""
WHOLE_BYTES_MAX: Final = 256 * 1024
"""Bodies up to this size are sent as one piece of memory."""

Segment = bytes | Slot


class Filling(msgspec.Struct, frozen=True):
    """How a server wants a request: its own name for the model, media as bytes or URLs, uuids beside them or not.

    ``held`` are the names of media that it is trusted to still have: only their uuid is sent. ``usage``: ask for it in a stream.
    ``stored``: embeddings are found by name in the store, None: there is no store.
    """

    model: str
    mode: Mode
    uuids: bool
    held: Collection[str] = ()
    usage: bool = True
    stored: bool | None = None


class Body:
    """One request body; ``named_only`` tells whether any medium in it is named and not sent."""

    def __init__(self, work: RelayWork, filling: Filling, arena: Arena) -> None:
        self._arena = arena
        self._open = True
        self.named_only = False
        self._segments = list(self._written(work, filling))

    @property
    def size(self) -> int:
        """Bytes of the whole."""
        return sum(len(one) if isinstance(one, bytes) else (one.size + 2) // 3 * 4 for one in self._segments)

    def data(self) -> bytes | AsyncIterator[bytes]:
        """Return it as one piece where it is small, else piece by piece."""
        return b"".join(self._pieces()) if self.size <= WHOLE_BYTES_MAX else self._slowly()

    def close(self) -> None:
        """Read nothing more of the arena: its slots may be given back."""
        self._open = False

    async def _slowly(self) -> AsyncIterator[bytes]:
        for piece in self._pieces():
            yield piece

    def _pieces(self) -> Iterator[bytes]:
        for segment in self._segments:
            if isinstance(segment, bytes):
                yield segment
                continue
            for start in range(0, segment.size, SLICE_BYTES):
                if not self._open:
                    raise ConnectionAbortedError("the request ended while its body was sent")
                yield pybase64.b64encode(self._arena.view(segment)[start : start + SLICE_BYTES])

    def _written(self, work: RelayWork, filling: Filling) -> Iterator[Segment]:
        document = work.document
        yield b"{" + document.head
        if work.salt:
            yield b'"cache_salt":' + _text(work.salt) + b","
        for piece in document.content:
            if isinstance(piece, MediaHole):
                yield from self._part(piece, work.media[piece.index], filling)
            else:
                yield piece
        yield b',"model":' + _text(filling.model) + _stream_options(work, filling) + b"}"

    def _part(self, hole: MediaHole, media: RelayedMedia, filling: Filling) -> Iterator[Segment]:
        kind = hole.kind.encode()
        if media.embeddings is not None:
            yield from _embeds(media.name, media.embeddings, self._arena, filling.stored)
            return
        yield b'{"type":"' + kind + b'","' + kind + b'":'
        if filling.mode == "url" and media.url is not None:
            yield b'{"url":' + _text(media.url) + hole.inside + b"}" + hole.beside + b"}"
            return
        if not media.slots or (filling.uuids and not hole.inside and media.name in filling.held):
            self.named_only = True
            yield b'null,"uuid":' + _text(media.name) + hole.beside + b"}"
            return
        yield b'{"url":"data:' + media.mime.encode() + b";base64,"
        for place, slot in enumerate(media.slots):
            yield b"," * bool(place)
            yield slot
        yield b'"' + hole.inside + b"}"
        yield (b',"uuid":' + _text(media.name) if filling.uuids else b"") + hole.beside + b"}"


def _embeds(name: str, picture: PictureInput, arena: Arena, stored: bool | None) -> Iterator[Segment]:
    """Write a picture's embeddings as vLLM takes them: a .npy file, and beside it what the model needs besides (Qwen-VL's grid); of what is
    stored the latter only.
    """
    # vLLM keeps by name what a picture came with: one that came without embeddings must not be met where they are sent.
    called = f"{name}-inline" if stored is False else name
    yield b'{"type":"image_embeds","uuid":' + _text(called) + b',"image_embeds":'
    meta = b",".join(_text(key) + b":" + msgspec.json.encode(value) for key, value in picture.meta.items())
    if stored:
        yield b"{" + meta + b"}}"
        return
    yield b'{"image_embeds":"' if meta else b'"'
    yield from npy(picture, arena)
    yield b'",' + meta + b"}}" if meta else b'"}'


def _text(value: str) -> bytes:
    return msgspec.json.encode(value)


def _stream_options(work: RelayWork, filling: Filling) -> bytes:
    """What the client asked, and usage in any case where it may be asked for: it tells the tokens, which the ledger counts."""
    others = work.document.stream_options
    asked = work.stream and (filling.usage or work.usage)
    if not asked and others is None:
        return b""
    return b',"stream_options":{"include_usage":' + (b"true" if asked else b"false") + (others or b"") + b"}"
