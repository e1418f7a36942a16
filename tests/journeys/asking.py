"""Ask a journey as the API would, and read the answer whole."""

import asyncio
import base64
import itertools
from typing import Any

import msgspec

from foveate.bench.pictures import circle, data_url, encoded
from foveate.core.budget import ANYONE, Adjustment, Budget, Caller
from foveate.core.clock import now
from foveate.core.media import DataRef, MediaRef
from foveate.core.request import ImagePart, Request, Sampling, TextPart, Turn
from foveate.engines.port import FinishEvent, TokenEvent
from foveate.journey.service import Journey

numbers = itertools.count(1)
RED, BLUE, GREEN = (220, 30, 30), (40, 60, 220), (30, 170, 60)
QUESTION = "What is in this image?"


class Answered(msgspec.Struct):
    """What came back."""

    text: str
    timing: dict[str, float]
    reason: str
    images: int
    visual_tokens: int
    adjustments: tuple[Adjustment, ...]
    tokens: tuple[int, ...] = ()


def picture(colour: tuple[int, int, int], shade: int | None = None, size: int = 224) -> DataRef:
    """A circle as a data URL; without a shade it is a picture that no cache holds: a number behind its end makes its bytes its own."""
    number = b"" if shade is not None else b"%08d" % next(numbers)
    return DataRef(data_url(encoded(circle(colour, size, 240 if shade is None else shade), "PNG") + number, "png"))


def data_of(ref: DataRef) -> bytes:
    """The bytes behind a data URL."""
    return base64.b64decode(ref.url.partition(",")[2])


def request(*refs: MediaRef, text: str = QUESTION, tokens: int = 24) -> Request:
    """A chat request with these pictures before the text."""
    parts = [ImagePart(index, f"messages[0].content[{index}].image_url", ref) for index, ref in enumerate(refs)]
    sampling = Sampling(tokens_max=tokens, temperature=0)
    turns = (Turn("user", (*parts, TextPart(text))),)
    return Request(f"chatcmpl-{next(numbers)}", "m", "chat", sampling, now(), turns=turns, stream=True)


def by(asked: Request, tenant: str = ANYONE, **fields: Any) -> Request:
    """The same request of this tenant, by a tier with these limits."""
    return msgspec.structs.replace(asked, caller=Caller(tenant, Budget(**fields)))


async def ask(service: Journey, asked: Request) -> Answered:
    """Take a request through its whole journey."""
    text, reason = "", ""
    tokens: list[int] = []
    async with service.answer(asked, None) as answer:
        await answer.begin()
        async for event in answer.events():
            if isinstance(event, TokenEvent):
                text += event.text
                tokens += event.token_ids
            elif isinstance(event, FinishEvent):
                reason = event.reason
        entries = [entry.split(";dur=") for entry in answer.server_timing().split(", ")]
        usage = answer.usage()
        adjustments = answer.adjustments()
    timing = {name: float(value) for name, value in entries}
    return Answered(text, timing, reason, usage.images, usage.visual_tokens, adjustments, tuple(tokens))


def cached_bytes(service: Journey) -> int:
    """Arena bytes that the caches account for."""
    tools = service.tools
    return sum(cache.stats().bytes for cache in (tools.processor_cache, tools.encoder_cache, tools.media_cache))


async def settled(service: Journey) -> None:
    """Wait until nothing is under way, workers' late answers included."""
    async with asyncio.timeout(30):
        await service.idle()
        while service.tools.arena.used_bytes != cached_bytes(service) or service.tools.roll_out.stable.media.busy:
            await asyncio.sleep(0.01)
