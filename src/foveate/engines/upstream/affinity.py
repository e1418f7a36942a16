"""What a server probably still has cached of a request: equal beginnings of prompts, and pictures that it saw.

A prompt is a chain of links: blocks of text and pictures, each named by a hash of all before it, so that an equal name is an equal
beginning. A picture's name alone is remembered too: its embeddings help whatever stands before it. Nothing here knows a server's real
caches; what was forgotten there costs a longer prefill, never a wrong answer.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import Final

import msgspec
from blake3 import blake3

from foveate.core.document import MediaHole
from foveate.engines.port import RelayWork

BLOCK_BYTES: Final = 512
"""Of a prompt's JSON; some 128 tokens, eight of vLLM's cache blocks."""
LINKS_MAX: Final = 256
"""A chain's length; what comes later in a long prompt is not told apart."""
REMEMBERED_MAX: Final = 65536
"""Links and pictures remembered of one server, 16 bytes each and their places in the list: some 10 MB."""
TEXT_BYTES_PER_TOKEN: Final = 4


class Link(msgspec.Struct, frozen=True):
    """One step of a prompt: its name, the tokens it stands for, and the picture's own name where it is one."""

    name: bytes
    tokens: int
    picture: str = ""


def chain(work: RelayWork) -> tuple[Link, ...]:
    """Return the prompt's first links. A block of text that may still grow is none."""
    return tuple(link for link, _ in zip(_links(work), range(LINKS_MAX), strict=False))


def _links(work: RelayWork) -> Iterator[Link]:
    document = work.document
    name = _named(work.model.encode(), work.salt.encode(), document.first)
    waiting = b""
    for piece in document.content:
        if isinstance(piece, MediaHole):
            if waiting:
                name = _named(name, waiting)
                # Less than a block is mostly the JSON around the picture, the same in every request.
                yield Link(name, 0)
                waiting = b""
            media = work.media[piece.index]
            name = _named(name, media.name.encode())
            yield Link(name, media.tokens, media.name)
            continue
        waiting += piece
        for start in range(0, len(waiting) - BLOCK_BYTES + 1, BLOCK_BYTES):
            name = _named(name, waiting[start : start + BLOCK_BYTES])
            yield Link(name, BLOCK_BYTES // TEXT_BYTES_PER_TOKEN)
        waiting = waiting[len(waiting) // BLOCK_BYTES * BLOCK_BYTES :]


def _named(*what: bytes) -> bytes:
    hasher = blake3()
    for part in what:
        hasher.update(len(part).to_bytes(8, "little"))
        hasher.update(part)
    return hasher.digest(length=16)


class Memory:
    """What one server was sent, as far back as it is worth knowing."""

    def __init__(self, most: int = REMEMBERED_MAX) -> None:
        self._most = most
        self._names: OrderedDict[bytes | str, None] = OrderedDict()

    def matched(self, links: Sequence[Link]) -> int:
        """Return how many tokens of a prompt the server probably has: its beginning, and pictures anywhere."""
        tokens = 0
        beginning = True
        for link in links:
            beginning = beginning and link.name in self._names
            if beginning or (link.picture and link.picture in self._names):
                tokens += link.tokens
        return tokens

    def note(self, links: Sequence[Link]) -> None:
        """Remember that the server was sent this."""
        for link in links:
            self._keep(link.name)
            if link.picture:
                self._keep(link.picture)

    def forget(self) -> None:
        """It was restarted, or may have been."""
        self._names.clear()

    def _keep(self, name: bytes | str) -> None:
        self._names[name] = None
        self._names.move_to_end(name)
        if len(self._names) > self._most:
            self._names.popitem(last=False)
