"""Hold embeddings to pixels before the first client does: each upstream is asked about one picture both ways, and must say the same.

A server that takes wrong embeddings answers all the same, and a client sees nothing but bad answers: other weights, another processor,
pixels normalised twice. What is compared are the log-probabilities of the first tokens (:mod:`foveate.decisions.agreement`). An upstream
that comes up later, or again, is compared then, before it gets a request (:meth:`foveate.engines.port.Relay.hold_to`). Does not cover
those that take no pictures but as embeddings, or give no log-probabilities: of them nothing can be said, and the log tells so.
"""

from __future__ import annotations

import secrets
from contextlib import AsyncExitStack, aclosing
from typing import Final

import msgspec
from msgspec.structs import replace

from foveate.core.clock import now
from foveate.core.document import Document, MediaHole
from foveate.core.errors import FoveateError, StartupError
from foveate.core.memory import Slot
from foveate.decisions.agreement import Comparison, Step, logprob_difference, logprobs_reason
from foveate.engines.port import Relay, RelayedMedia, RelayWork
from foveate.journey.serving import Serving
from foveate.journey.warm import SECONDS_MAX, encode, prepare, rgb_png
from foveate.models.check_picture import QUESTION, check_picture
from foveate.observe.logging import get_logger
from foveate.runtime.arena import Arena

_CONTENT: Final = (
    b'"messages":[{"role":"user","content":[',
    MediaHole(0, "image_url"),
    b',{"type":"text","text":"' + QUESTION.encode() + b'"}]}]',
)
_HEAD: Final = b'"temperature":0,"max_tokens":4,"logprobs":true,"top_logprobs":5,'
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


class UpstreamCheck:
    """Compares upstreams, by the version of the model that encodes for them."""

    def __init__(self, serving: Serving, relay: Relay, arena: Arena) -> None:
        self._serving = serving
        self._relay = relay
        self._arena = arena

    async def start(self) -> None:
        """Compare every upstream that is up, and from now on each one that comes up. Raises StartupError when one answers differently by
        embeddings than by pixels.
        """
        for server in self._relay.report():
            if server.healthy and server.models:
                found = await self.compare(server.name, server.models[0])
                if found.reason:
                    raise StartupError(f"The upstream {server.name}: {found.reason}.")
                self._relay.agrees(server.name)
        self._relay.hold_to(self._reason)

    async def _reason(self, server: str, model: str) -> str:
        return (await self.compare(server, model)).reason

    async def compare(self, server: str, model: str) -> Comparison:
        """Ask one upstream both ways. Raises nothing but cancellation: what goes wrong is a reason."""
        data, started = rgb_png(check_picture()), now()
        async with AsyncExitStack() as held:
            whole = self._arena.allocate(len(data))
            held.callback(self._arena.release, whole)
            self._arena.view(whole)[: len(data)] = data
            try:
                prepared = await prepare(data, self._serving, self._arena, held)
                picture = await encode(prepared, self._serving, self._arena, held)
            except FoveateError as error:
                return Comparison(what=server, reason=f"no picture could be encoded to compare by: {error.public}")
            # By names that were never used: upstreams keep what they made of a picture by its name.
            pixels = RelayedMedia(_fresh(), "image/png", (Slot(whole.offset, len(data)),), None, 1)
            rows = RelayedMedia(_fresh(), "", (), None, 1, picture)
            found = await _compared(server, model, pixels, rows, self._relay)
        return replace(found, rows=picture.rows, seconds=now() - started)


def _fresh() -> str:
    return f"foveate-check-{secrets.token_hex(16)}"


async def _compared(server: str, model: str, pixels: RelayedMedia, rows: RelayedMedia, relay: Relay) -> Comparison:
    try:
        by_pixels = await _asked(server, model, pixels, relay)
    except FoveateError as error:
        log.warning(
            "embeddings could not be compared: this upstream takes no pictures", upstream=server, error=error.detail
        )
        by_pixels = None
    try:
        by_rows = await _asked(server, model, rows, relay)
    except FoveateError as error:
        return Comparison(
            what=server,
            reason=f"it takes no embeddings: {error.public} Start vLLM with --enable-mm-embeds, or use --upstream-mode bytes",
        )
    if by_pixels is None:
        return Comparison(what=server)
    if not by_pixels:
        log.warning("embeddings could not be compared: this upstream gives no log-probabilities", upstream=server)
        return Comparison(what=server)
    apart, steps = logprob_difference(by_pixels, by_rows)
    reason = logprobs_reason(apart)
    if reason:
        reason = (
            f"it answers otherwise by embeddings from here than by pixels ({reason}): --model is not what it runs. Use "
            "--upstream-mode bytes, or name the right model"
        )
    else:
        log.info("embeddings agree with pixels", upstream=server, logprobs_differ_by=round(apart, 4))
    return Comparison(what=server, reason=reason, logprob_difference=apart, steps=steps)


async def _asked(server: str, model: str, media: RelayedMedia, relay: Relay) -> list[Step]:
    """Return the answer's tokens; empty where the server does not say. Raises what forwarding raises."""
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
    given = found.content if found is not None and found.content else []
    return [Step(one.token, {other.token: other.logprob for other in one.top_logprobs}) for one in given]
