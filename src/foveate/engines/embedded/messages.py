"""What the embedded engine's process is configured with, and what it is told beyond what every engine is.

A process may prefill a prompt for another one to go on with, which draws all its tokens: the keys and values lie in the arena meanwhile.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from foveate.core.memory import Slot, TensorBundle
from foveate.core.stages import Span
from foveate.engines import messages
from foveate.engines.port import EngineWork
from foveate.runtime.named_bytes import NOT_READ


class Prefill(msgspec.Struct, frozen=True, tag="prefill"):
    """Prefill a prompt into ``out`` and draw nothing.

    Answered with :class:`Prefilled`, or, when it failed or was cancelled, with :class:`SlotFree`; until then ``out`` is in use. A failure
    is told by a FailEvent besides. Where pictures are not there yet, ``out`` comes with the last of them: until then others may have it.
    """

    work: EngineWork
    submitted_at: float
    out: Slot | None


class Prefilled(msgspec.Struct, frozen=True, tag="prefilled"):
    """A prompt's keys and values and the logits behind its last token lie in its slot (:mod:`foveate.engines.embedded.handover`).

    ``started_at`` is when its prefill began, ``written_at`` when they lay there. ``next_position`` is the first answer token's;
    ``cached_tokens`` and ``token_ms`` as in :class:`foveate.engines.port.FinishEvent`, ``ahead`` as in its TokenEvent.
    """

    request_id: str
    kv: TensorBundle
    next_position: int
    started_at: float
    written_at: float
    cached_tokens: int
    token_ms: float
    ahead: tuple[Span, ...] = ()


class TokenDecode(msgspec.Struct, frozen=True, tag="token_decode"):
    """Go on behind a prompt that another process prefilled: its pictures are in the K/V, their embeddings are not read again.

    ``submitted_at`` is when its prefill was asked for. Besides its events it is answered with :class:`SlotFree`, once, as soon as the slot
    is not read any more.
    """

    work: Annotated[EngineWork, NOT_READ]
    submitted_at: float
    prefilled: Prefilled


class SlotFree(msgspec.Struct, frozen=True, tag="slot_free"):
    """The process does not touch the slot of the request's K/V any more."""

    request_id: str


Starts = messages.Generate | Prefill | TokenDecode
Receives = messages.Receives | messages.PictureReady | Prefill | TokenDecode
Sends = messages.Sends | Prefilled | SlotFree


class EmbeddedConfig(msgspec.Struct, frozen=True):
    """The engine process's configuration; fields are the settings of the same names
    (:class:`foveate.settings.EngineSettings`)."""

    model_dir: str
    model: str
    device: str = "cpu"
    dtype: str = "float32"
    queue_depth_max: int = 256
    batch_size_max: int = 32
    prefill_chunk_tokens: int = 512
    kv_tokens_max: int = 131072
    prefix_cache_bytes_max: int = 0
    encoder_queue_max: int = 256
    encoder_batch_max: int = 1
    encoder_batch_tokens_max: int = 0
    step_seconds_max: float = 120.0
    encoder: bool = True
    """Whether the process holds a vision tower."""
    own_encoder: str = ""
    """``package.module:Class`` of an operator's own vision encoder; empty: the checkpoint's."""
