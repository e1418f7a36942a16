"""A relayed request as a chain of links (:mod:`foveate.engines.affinity`): blocks of its JSON, and its media.

A picture's name alone is remembered too: its embeddings help an upstream whatever stands before it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from foveate.core.document import MediaHole
from foveate.engines.affinity import LINKS_MAX, Link, named
from foveate.engines.port import RelayWork

BLOCK_BYTES: Final = 512
"""Of a prompt's JSON; some 128 tokens, eight of vLLM's cache blocks."""
TEXT_BYTES_PER_TOKEN: Final = 4


def chain(work: RelayWork) -> tuple[Link, ...]:
    """Return the prompt's first links. A block of text that may still grow is none."""
    return tuple(link for link, _ in zip(_links(work), range(LINKS_MAX), strict=False))


def _links(work: RelayWork) -> Iterator[Link]:
    document = work.document
    name = named(work.model.encode(), work.salt.encode(), document.first)
    waiting = b""
    for piece in document.content:
        if isinstance(piece, MediaHole):
            if waiting:
                name = named(name, waiting)
                # Less than a block is mostly the JSON around the picture, the same in every request.
                yield Link(name, 0)
                waiting = b""
            media = work.media[piece.index]
            name = named(name, media.name.encode())
            yield Link(name, media.tokens, media.name)
            continue
        waiting += piece
        for start in range(0, len(waiting) - BLOCK_BYTES + 1, BLOCK_BYTES):
            name = named(name, waiting[start : start + BLOCK_BYTES])
            yield Link(name, BLOCK_BYTES // TEXT_BYTES_PER_TOKEN)
        waiting = waiting[len(waiting) // BLOCK_BYTES * BLOCK_BYTES :]
