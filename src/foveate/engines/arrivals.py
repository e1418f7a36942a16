"""Pictures that are still being encoded while the prompt they belong to is prefilled up to them. Lives on the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

import msgspec

from foveate.engines.port import EngineWork, PictureInput

OVERLAP: Final = "prefill_overlap"
"""The feature (``Engine.features``) of an engine that begins with a prompt before all of its pictures are there."""

Hear = Callable[[int, PictureInput], None]


class Arrivals:
    """One request's pictures that were not there when its prefill was asked for.

    Whoever encodes them puts each in; whoever has the prompt prefilled, and may have to ask another process half-way, is told of each.
    """

    def __init__(self, missing: set[int]) -> None:
        """``missing``: the pictures' places among the prompt's, from 0."""
        self._missing = set(missing)
        self._came: dict[int, PictureInput] = {}
        self._hearers: list[Hear] = []
        self.completed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done when all are there."""
        if not missing:
            self.completed.set_result(None)

    @property
    def complete(self) -> bool:
        """Whether all are there."""
        return not self._missing

    @property
    def last(self) -> tuple[int, PictureInput]:
        """The one that came last."""
        return next(reversed(self._came.items()))

    def put(self, index: int, picture: PictureInput) -> None:
        """A picture is there. Raises KeyError for one that is not missing."""
        self._missing.remove(index)
        self._came[index] = picture
        if not self._missing:
            self.completed.set_result(None)
        for hear in tuple(self._hearers):
            hear(index, picture)

    def filled(self, work: EngineWork) -> EngineWork:
        """Return ``work`` with the pictures that came."""
        pictures = [self._came.get(index, picture) for index, picture in enumerate(work.pictures)]
        return msgspec.structs.replace(work, pictures=pictures)

    @contextmanager
    def told(self, hear: Hear) -> Iterator[None]:
        """Have ``hear`` called with each picture that comes within the block, and its place."""
        self._hearers.append(hear)
        try:
            yield
        finally:
            self._hearers.remove(hear)
