"""A prompt for an engine as a chain of links (:mod:`foveate.engines.affinity`): blocks of its token ids, and its pictures by content."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np

from foveate.engines.affinity import LINKS_MAX, Link, named
from foveate.engines.port import EngineWork

BLOCK_TOKENS: Final = 64
"""Four blocks of vLLM's prefix cache."""


def chain(work: EngineWork, picture_token_id: int) -> tuple[Link, ...]:
    """Return the prompt's first links, as far as its pictures have names. A block of text that may still grow is none.

    Pictures are no use but at their place: what an engine keeps of a prompt is its KV, and embeddings are kept for all engines.
    """
    return tuple(link for link, _ in zip(_links(work, picture_token_id), range(LINKS_MAX), strict=False))


def _links(work: EngineWork, picture_token_id: int) -> Iterator[Link]:
    ids = np.asarray(work.token_ids, np.int64)
    places = _places(work, ids, picture_token_id)
    if len(places) < len(work.visuals):
        return
    name = named(work.scope.encode())
    at = 0
    for picture, (start, end) in zip(work.visuals, places, strict=True):
        for begin in range(at, start, BLOCK_TOKENS):
            stop = min(begin + BLOCK_TOKENS, start)
            name = named(name, ids[begin:stop].tobytes())
            yield Link(name, stop - begin)
        if not picture.content:
            return
        name = named(name, picture.content.encode())
        yield Link(name, end - start)
        at = end
    for begin in range(at, len(ids) - BLOCK_TOKENS + 1, BLOCK_TOKENS):
        name = named(name, ids[begin : begin + BLOCK_TOKENS].tobytes())
        yield Link(name, BLOCK_TOKENS)


def _places(work: EngineWork, ids: np.ndarray, picture_token_id: int) -> Sequence[tuple[int, int]]:
    """Return where each picture's tokens begin and end; none when the prompt does not fit its pictures, which is the engine's to refuse."""
    found = np.flatnonzero(ids == picture_token_id)
    ends = np.cumsum([picture.rows for picture in work.visuals], dtype=np.int64)
    if not len(ends) or ends[-1] != len(found) or min(picture.rows for picture in work.visuals) < 1:
        return ()
    return [(int(found[end - one.rows]), int(found[end - 1]) + 1) for one, end in zip(work.visuals, ends, strict=True)]
