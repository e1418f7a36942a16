"""What Foveate asks of an engine.

Engine differences are data: ``accepts`` says in which form an engine takes pictures, and the journey prepares that form.
Every implementation passes ``tests/contracts/test_engine_contract.py``.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Literal, Protocol

import msgspec

from foveate.core.errors import ErrorRecord
from foveate.core.media import EncodedImage, PreparedImage
from foveate.core.memory import Slot, TensorBundle
from foveate.core.request import Sampling
from foveate.core.stages import Span

Form = Literal["embeddings", "pixels", "bytes", "url"]
FinishReason = Literal["stop", "length", "abort"]


class PictureInput(msgspec.Struct, frozen=True):
    """One picture of a prompt: its embeddings (:class:`foveate.core.media.EncodedImage`) and the processor's ``meta``.

    ``content`` names the embeddings: equal names mean equal embeddings, whenever and wherever they were made. Empty: unknown.
    """

    embeddings: TensorBundle
    rows: int
    meta: dict[str, list[int]]
    content: str = ""


class EngineWork(msgspec.Struct, frozen=True):
    """A prompt ready for prefill: token ids with every picture's placeholder already expanded, and the pictures.

    ``sampling.tokens_max`` is at least 1 and already fits the context. ``deadline`` is monotonic seconds;
    past it the engine gives up the request. KV of this prompt may be reused for requests of the same ``scope`` only.
    """

    request_id: str
    token_ids: list[int]
    pictures: list[PictureInput]
    sampling: Sampling
    deadline: float
    scope: str = ""


class TokenLogprob(msgspec.Struct, frozen=True, array_like=True):
    """Log-probability of one token; ``text`` is the token's own text and ``bytes_`` its UTF-8 bytes (possibly part of a character)."""

    token_id: int
    text: str
    bytes_: bytes
    logprob: float


class TokenStep(msgspec.Struct, frozen=True, array_like=True):
    """The drawn token of one step with the alternatives asked for, most likely first."""

    chosen: TokenLogprob
    top: list[TokenLogprob]


class TokenEvent(msgspec.Struct, frozen=True, tag="token"):
    """New output of one choice. ``text`` never splits a character and may be empty; ``token_ids`` are those drawn since the last event.

    The first event of a request carries ``spans``: llm_queue and llm_prefill, the latter ending when the engine sent this event.
    """

    request_id: str
    choice: int
    text: str
    token_ids: list[int]
    steps: list[TokenStep] = []
    spans: tuple[Span, ...] = ()


class FinishEvent(msgspec.Struct, frozen=True, tag="finish"):
    """A choice is complete. ``output_tokens`` counts its tokens, the end-of-sequence token included; ``cached_tokens`` are prompt tokens
    whose KV was reused. ``last`` is true on the last choice to finish: nothing of the request follows, and everything it held is free.
    ``token_ms``, on that event: the time of all engine steps that the request's tokens had a part in, each step's split evenly over its
    tokens; 0 where the engine does not say.
    """

    request_id: str
    choice: int
    reason: FinishReason
    output_tokens: int
    last: bool
    cached_tokens: int = 0
    token_ms: float = 0.0


class FailEvent(msgspec.Struct, frozen=True, tag="fail"):
    """The request failed as a whole; nothing of it follows, and everything it held is free."""

    request_id: str
    error: ErrorRecord


EngineEvent = TokenEvent | FinishEvent | FailEvent


class EngineInfo(msgspec.Struct, frozen=True):
    """What an engine says of itself once it is ready.

    ``embedding_bytes_per_row`` counts one embedding row with all its DeepStack levels, in the encoder's dtype.
    """

    model: str
    encoder_version: str
    embedding_bytes_per_row: int
    context_tokens_max: int


class Engine(Protocol):
    """A language model that answers prompts."""

    accepts: frozenset[Form]

    @property
    def ready(self) -> bool:
        """Whether a request can be answered now."""
        ...

    @property
    def info(self) -> EngineInfo:
        """What the engine said of itself; only after it was ready once."""
        ...

    async def start(self) -> None:
        """Load and wait until ready. Raises StartupError."""
        ...

    def generate(self, work: EngineWork) -> AsyncGenerator[EngineEvent, None]:
        """Answer one prompt.

        The iterator ends after the event that is ``last``. Closing it early cancels the request at once. Raises QueueFull,
        EngineUnavailable or EngineFailed (the process died; ``detail`` says so) instead of yielding :class:`FailEvent`.
        """
        ...

    async def stop(self, *, seconds_max: float) -> None:
        """End the engine."""
        ...


class Encoder(Protocol):
    """A vision encoder: in the engine's process when aggregated, in encode workers otherwise."""

    async def encode(self, prepared: PreparedImage, out: Slot, *, deadline: float) -> EncodedImage:
        """Encode one picture into ``out`` (at least rows x ``embedding_bytes_per_row`` bytes, plus 64 for each level).

        Cancelling it before it starts is free; later its result is dropped. Raises EncodeFailed, EngineUnavailable, QueueFull.
        """
        ...
