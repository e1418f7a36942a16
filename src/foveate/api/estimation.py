"""``POST /v1/estimate``: what a chat request would cost and whether it would be admitted, without running the model."""

from __future__ import annotations

import msgspec

from foveate.api.body import Body
from foveate.api.errors import ErrorBody, part_of, told
from foveate.api.exchange import Exchange
from foveate.api.replies import AdjustmentReply, adjustment_replies
from foveate.api.wire import Wire
from foveate.core.request import Request
from foveate.journey.port import Estimate, ItemEstimate, ItemKind


class ItemReply(msgspec.Struct, frozen=True):
    """The price of one medium, in prompt order. ``part`` is the content part's index in its message; what is null is not known, because
    of ``error``. ``processor_cached`` and ``encoder_cached`` tell what those caches hold now,
    ``media_cached`` that its bytes came out of the media cache.
    """

    part: int
    param: str
    kind: ItemKind
    bytes: int | None
    width: int | None
    height: int | None
    pixels: int | None
    frames: int | None
    seconds: float | None
    visual_tokens: int | None
    processor_cached: bool
    encoder_cached: bool
    media_cached: bool
    error: ErrorBody | None


class EstimateReply(msgspec.Struct, frozen=True):
    """Answer of `POST /v1/estimate`. ``refusals`` holds what the request would be refused with, as in an error's body, and is empty exactly
    when ``admitted`` is true. Sums count all that is known, also of what is refused; ``complete`` tells that nothing is null.
    """

    admitted: bool
    complete: bool
    tier: str
    bytes: int
    pixels: int
    frames: int
    text_tokens: int
    visual_tokens: int
    processor_cache_hits: int
    encoder_cache_hits: int
    items: list[ItemReply]
    adjustments: list[AdjustmentReply]
    refusals: list[ErrorBody]


class Estimation(Exchange):
    """One request of ``/v1/estimate``: a chat's body, priced instead of answered."""

    async def answer(self, wire: Wire, request: Request, body: Body) -> None:
        """See :class:`Exchange`."""
        self.recorded = True  # by the journey, however it ends
        estimate = await self.service.estimate(request, body.unpacked)
        await wire.reply(200, msgspec.json.encode(estimate_reply(estimate)))


def estimate_reply(estimate: Estimate) -> EstimateReply:
    """Return the estimate as clients are told it."""
    return EstimateReply(
        admitted=estimate.admitted,
        complete=estimate.complete,
        tier=estimate.tier,
        bytes=estimate.bytes,
        pixels=estimate.pixels,
        frames=estimate.frames,
        text_tokens=estimate.text_tokens,
        visual_tokens=estimate.visual_tokens,
        processor_cache_hits=estimate.processor_cache_hits,
        encoder_cache_hits=estimate.encoder_cache_hits,
        items=[_item_reply(item) for item in estimate.items],
        adjustments=adjustment_replies(estimate.adjustments),
        refusals=[told(refusal.error()) for refusal in estimate.refusals],
    )


def _item_reply(item: ItemEstimate) -> ItemReply:
    return ItemReply(
        part=part_of(item.param, item.part),
        param=item.param,
        kind=item.kind,
        bytes=item.bytes,
        width=item.width,
        height=item.height,
        pixels=item.pixels,
        frames=item.frames,
        seconds=item.seconds,
        visual_tokens=item.visual_tokens,
        processor_cached=item.processor_cached,
        encoder_cached=item.encoder_cached,
        media_cached=item.media_cached,
        error=None if item.error is None else told(item.error.error()),
    )
