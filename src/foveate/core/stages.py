"""The names of the stages a request passes before and after its first token.

The same names are used as ``Server-Timing`` metrics, as log fields (``<name>_ms``), as the Prometheus label ``stage`` and as span names.
"""

from __future__ import annotations

from typing import Final, Literal

import msgspec

Stage = Literal[
    "admission",
    "media_fetch",
    "media_decode",
    "mm_processor",
    "encoder_queue",
    "vision_encode",
    "embedding_transfer",
    "llm_queue",
    "llm_prefill",
    "upstream",
]

STAGES: Final[tuple[Stage, ...]] = (
    "admission",
    "media_fetch",
    "media_decode",
    "mm_processor",
    "encoder_queue",
    "vision_encode",
    "embedding_transfer",
    "llm_queue",
    "llm_prefill",
    "upstream",
)
"""Stages before the first token, in the order of the journey. ``tpot`` is reported beside them but is not part of the sum.

``upstream`` stands for all that happens inside a server behind this one, which nobody here can see."""

Modality = Literal["text", "multimodal"]


class Span(msgspec.Struct, frozen=True, array_like=True):
    """One stretch of one stage: ``start`` and ``end`` in monotonic seconds (:func:`foveate.core.clock.now`).

    ``cost_ms`` is what it took of what is paid for, where that was measured: of media_decode and mm_processor processor time, of
    vision_encode its share of the batch.
    """

    stage: Stage
    start: float
    end: float
    cost_ms: float = 0.0
