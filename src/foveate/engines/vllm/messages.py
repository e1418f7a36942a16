"""What vLLM's processes are told beyond what every engine is, where one prefills and another draws the tokens.

A prompt's keys and values stay in the blocks of the process that prefilled it until the other has read them, or says that it will not, or
the gateway says that nobody will.
"""

from __future__ import annotations

from typing import Any

import msgspec

from foveate.engines import messages
from foveate.engines.port import EngineWork


class Prefill(msgspec.Struct, frozen=True, tag="prefill"):
    """Prefill a prompt and hold its K/V. Answered with :class:`Prefilled`, a FailEvent, or Cancelled; each ends it."""

    work: EngineWork
    submitted_at: float


class Prefilled(msgspec.Struct, frozen=True, tag="prefilled"):
    """A prompt's K/V are held.

    ``started_at`` is when its prefill began, ``ended_at`` when it was over. ``cached_tokens`` as in
    :class:`foveate.engines.port.FinishEvent`. ``params`` are vLLM's own (``kv_transfer_params``): where they are.
    """

    request_id: str
    started_at: float
    ended_at: float
    cached_tokens: int
    params: dict[str, Any]


class TokenDecode(msgspec.Struct, frozen=True, tag="token_decode"):
    """Fetch the K/V of a prompt that another process prefilled, and draw its tokens. ``submitted_at`` is when its prefill was asked for.

    Answered as Generate is. Once it is taken, which a FailEvent with ``queue_full`` alone denies, the other process's K/V are let go
    whatever becomes of it. Its pictures are read all the same: vLLM computes a prompt anew that it had to preempt.
    """

    work: EngineWork
    submitted_at: float
    prefilled: Prefilled


class NotFetched(msgspec.Struct, frozen=True, tag="not_fetched"):
    """A prompt's K/V could not be read, all or in part: this process has computed the rest. Its request goes on as any."""

    request_id: str


class LetGo(msgspec.Struct, frozen=True, tag="let_go"):
    """Give up what is held of a request's prompt: nobody will read it. Not answered; what is not held is not missed."""

    request_id: str


Starts = messages.Generate | Prefill | TokenDecode
Receives = messages.Receives | Prefill | TokenDecode | LetGo
Sends = messages.Sends | Prefilled | NotFetched
