"""One version of the model, whole: its side of the prompt, its media workers, its encoder and its language model.

Two may serve at once (:mod:`foveate.journey.roll_out`). A request is answered by one of them alone, from its contents on, and counts among
its users until it ends; a version that was replaced is stopped when it has none.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from foveate.encoders.pool import EncoderPool
from foveate.encoders.port import Encoder
from foveate.engines.port import Engine
from foveate.engines.roles import Roles
from foveate.journey.text import TextWork
from foveate.media.pool import MediaPool
from foveate.models.port import PromptSide


@dataclass(eq=False)
class Serving:
    """The collaborators that belong to one version. ``name`` is the directory or hub id that it was loaded from.

    ``encoder`` is whatever encodes for it; ``encoders`` the same where workers of ours may do it, so that they can be counted and changed;
    ``roles`` is the engine where its processes' roles can be changed.
    ``restarts`` tells how many of its engine's processes were replaced; ``stop`` ends all of them.
    """

    name: str
    prompt_side: PromptSide
    text: TextWork
    media: MediaPool
    encoder: Encoder
    engine: Engine
    restarts: Callable[[], int]
    stop: Callable[[], Awaitable[None]]
    encoders: EncoderPool | None = None
    roles: Roles | None = None
    users: int = field(default=0, init=False)
    _unused: asyncio.Event = field(default_factory=asyncio.Event, init=False)

    @property
    def takes_pixels(self) -> bool:
        """Whether pictures go to its engine as pixels: the rest of the processor and the encoder are the engine's own."""
        return "pixels" in self.engine.accepts

    @property
    def processor_version(self) -> str:
        """What every key of its model inputs carries."""
        return self.prompt_side.processor_version

    @property
    def encoder_version(self) -> str:
        """What every key of its embeddings carries."""
        return self.engine.info.encoder_version

    def enter(self) -> Callable[[], None]:
        """Add a user; return what takes it back, once."""
        self.users += 1
        self._unused.clear()
        left = False

        def leave() -> None:
            nonlocal left
            if left:
                return
            left = True
            self.users -= 1
            if not self.users:
                self._unused.set()

        return leave

    async def unused(self) -> None:
        """Wait until it has no users."""
        while self.users:
            await self._unused.wait()
