"""What engine processes are told; :class:`PictureReady` only those that can make use of it. Their answers are ``EngineEvent`` and the
encoder's.
"""

from __future__ import annotations

import msgspec

from foveate.core.memory import Slot
from foveate.encoders.messages import CancelEncode, Encode, EncodeBegun, EncodeDone, EncodeRejected
from foveate.engines.port import EngineWork, FailEvent, FinishEvent, PictureInput, TokenEvent
from foveate.runtime.pulse import Ping, Pong


class Generate(msgspec.Struct, frozen=True, tag="generate"):
    """Answer a prompt. ``submitted_at`` is when the gateway asked: llm_queue counts from there."""

    work: EngineWork
    submitted_at: float


class PictureReady(msgspec.Struct, frozen=True, tag="picture_ready"):
    """A picture that was not there when its prompt was sent is there now; ``index``: its place among the prompt's.

    The last one of a prompt that is only prefilled brings ``out``, where its K/V are to go (:mod:`foveate.engines.embedded.messages`).
    What comes for a request that has ended is ignored.
    """

    request_id: str
    index: int
    picture: PictureInput
    out: Slot | None = None


class Cancel(msgspec.Struct, frozen=True, tag="cancel"):
    """Drop a request at once. One that has not ended is answered with :class:`Cancelled`, and nothing else of it follows."""

    request_id: str


class Cancelled(msgspec.Struct, frozen=True, tag="cancelled"):
    """A request was dropped: nothing of it is read any more, nor kept for others."""

    request_id: str


Receives = Generate | Cancel | Encode | CancelEncode | Ping
Sends = TokenEvent | FinishEvent | FailEvent | Cancelled | EncodeBegun | EncodeDone | EncodeRejected | Pong
