"""Hold embeddings to pixels before the first client does: each upstream is asked about one picture both ways, and must say the same.

A server that takes wrong embeddings answers all the same, and a client sees nothing but bad answers: other weights, another processor,
pixels normalised twice. What is compared are the log-probabilities of the first token. Does not cover: upstreams that are down at the
start, and those that take no pictures but as embeddings, of which nothing can be said.
"""

from __future__ import annotations

import secrets
from contextlib import AsyncExitStack, aclosing
from typing import Final

import msgspec

from foveate.core.clock import now
from foveate.core.document import Document, MediaHole
from foveate.core.errors import FoveateError, StartupError
from foveate.core.memory import Slot
from foveate.engines.port import Relay, RelayedMedia, RelayWork
from foveate.journey.serving import Serving
from foveate.journey.warm import SECONDS_MAX, SIDE, encode, patchwork_png, prepare
from foveate.observe.logging import get_logger
from foveate.runtime.arena import Arena

DIFFERENCE_MAX: Final = 0.25
"""Of a log-probability. A vision tower in bfloat16 there and float32 here differ by some hundredths; pixels that were normalised twice
differed by 0.73 in a model of random weights, whose answers hang least on a picture.
"""
COMMON_MIN: Final = 3
"""Of the five most likely tokens, so many must be the same, to be compared at all."""

_CONTENT: Final = (
    b'"messages":[{"role":"user","content":[',
    MediaHole(0, "image_url"),
    b',{"type":"text","text":"What colours does this picture have?"}]}]',
)
_HEAD: Final = b'"temperature":0,"max_tokens":1,"logprobs":true,"top_logprobs":5,'
log = get_logger(__name__)


class _Token(msgspec.Struct):
    token: str
    logprob: float
    top_logprobs: list[_Token] = []


class _Logprobs(msgspec.Struct):
    content: list[_Token] | None = None


class _Choice(msgspec.Struct):
    logprobs: _Logprobs | None = None


class _Answer(msgspec.Struct):
    choices: list[_Choice]


async def check_upstreams(serving: Serving, relay: Relay, arena: Arena) -> None:
    """Compare every upstream that is up. Raises StartupError when one answers differently by embeddings than by pixels."""
    data = patchwork_png(SIDE)
    async with AsyncExitStack() as held:
        whole = arena.allocate(len(data))
        held.callback(arena.release, whole)
        arena.view(whole)[: len(data)] = data
        picture = await encode(await prepare(data, serving, arena, held), serving, arena, held)
        for server in relay.report():
            if server.up and server.models:
                # By names that were never used: upstreams keep what they made of a picture by its name.
                pixels = RelayedMedia(_fresh(), "image/png", (Slot(whole.offset, len(data)),), None, 1)
                rows = RelayedMedia(_fresh(), "", (), None, 1, picture)
                await _check(server.name, server.models[0], pixels, rows, relay)


def _fresh() -> str:
    return f"foveate-check-{secrets.token_hex(16)}"


async def _check(server: str, model: str, pixels: RelayedMedia, rows: RelayedMedia, relay: Relay) -> None:
    try:
        by_pixels = await _asked(server, model, pixels, relay)
    except FoveateError as error:
        log.warning(
            "embeddings could not be compared: this upstream takes no pictures", upstream=server, error=error.detail
        )
        return
    try:
        by_rows = await _asked(server, model, rows, relay)
    except FoveateError as error:
        raise StartupError(
            f"The upstream {server} takes no embeddings: {error.public} Start vLLM with --enable-mm-embeds, or use --upstream-mode bytes.",
            detail=error.detail,
        ) from error
    common = by_pixels.keys() & by_rows.keys()
    if not by_pixels:
        log.warning("embeddings could not be compared: this upstream gives no log-probabilities", upstream=server)
        return
    apart = max((abs(by_pixels[token] - by_rows[token]) for token in common), default=float("inf"))
    if len(common) < min(COMMON_MIN, len(by_pixels)) or apart > DIFFERENCE_MAX:
        raise StartupError(
            f"The upstream {server} answers otherwise by embeddings from here than by pixels (log-probabilities differ by {apart:.2f}, "
            f"{DIFFERENCE_MAX} is allowed): --model is not what it runs. Use --upstream-mode bytes, or name the right model.",
            detail=f"{by_pixels} {by_rows}",
        )
    log.info("embeddings agree with pixels", upstream=server, logprobs_differ_by=round(apart, 4))


async def _asked(server: str, model: str, media: RelayedMedia, relay: Relay) -> dict[str, float]:
    """Return the most likely first tokens; empty where the server does not say. Raises what forwarding raises."""
    work = RelayWork(
        request_id="check-0",
        kind="chat",
        model=model,
        document=Document(_CONTENT, head=_HEAD),
        media=(media,),
        text_tokens=1,
        stream=False,
        usage=False,
        salt="",
        deadline=now() + SECONDS_MAX,
        only=server,
    )
    async with aclosing(relay.forward(work)) as events:
        answer = b"".join([event.data async for event in events])
    found = msgspec.json.decode(answer, type=_Answer).choices[0].logprobs
    first = found.content[0] if found is not None and found.content else None
    return {} if first is None else {one.token: one.logprob for one in first.top_logprobs}
