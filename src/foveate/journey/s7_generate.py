"""Step 7: put the prompt together, hand it to the engine, and wait for the first token.

The prompt's token ids are final only when every picture's rows are known: here, or where prefill begins before all pictures are encoded
(:mod:`foveate.journey.overlap`). A request whose engine dies before the first token is asked again, once: of another engine, or of its
successor, which is waited for within a bound. In flight on two deaths, it is not tried a third time. One that came before its pictures and
found no place is asked again when they are there.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Final

import msgspec

from foveate.caches.encoder import EncoderEntry
from foveate.caches.processor import ProcessorEntry
from foveate.core.clock import now
from foveate.core.errors import EngineDied, EngineUnavailable, InvalidParameter, QueueFull
from foveate.core.stages import Span
from foveate.engines.arrivals import Arrivals
from foveate.engines.deaths import DEATHS_MAX
from foveate.engines.port import NOT_THERE, EngineEvent, EngineWork, PictureInput, PixelInput, TokenEvent
from foveate.journey.holds import Lease
from foveate.journey.job import Foreseen, Item, Job, Visual
from foveate.journey.restarts import engine_back
from foveate.journey.s1_admit import answer_tokens
from foveate.journey.tools import Tools
from foveate.journey.unfold import unfold

PROMPT_LOGPROBS_MAX: Final = 32_768
"""Log-probabilities told of one prompt: about 3 MB of JSON, some 50 ms of the engine's process."""


async def spell_out(job: Job, tools: Tools) -> None:
    """Set the prompt's final token ids, now that the pictures' true rows are known. Raises PromptTooLong."""
    assert job.prompt is not None
    facts = [each.facts for each in job.shown]
    if len(facts) < job.prompt.pictures:
        await unfold(job, tools)  # some frames of a video could not be decoded
    if facts:
        job.token_ids = await job.serving.text.tokenize(job.prompt, [each.replacement for each in facts])
    rows = sum(each.rows for each in facts)
    job.text_tokens = len(job.token_ids) - rows
    job.ledger.counts.text_tokens = job.text_tokens
    job.ledger.counts.visual_tokens = rows
    job.spelled = True


async def assemble(job: Job, tools: Tools) -> None:
    """Set ``job.work``, and ``job.arrivals`` where pictures are missing. Raises PromptTooLong, InvalidParameter."""
    if not job.spelled:
        await spell_out(job, tools)
    tokens_max = answer_tokens(job, tools, visual_tokens=job.ledger.counts.visual_tokens)
    _judge_prompt_logprobs(job)
    shown = job.shown
    for place, each in enumerate(shown):
        each.place = place if each.lease is None else None
    missing = {each.place for each in shown if each.place is not None}
    job.arrivals = Arrivals(missing) if missing else None
    job.work = EngineWork(
        request_id=job.request.id,
        token_ids=job.token_ids,
        pictures=[] if job.serving.takes_pixels else [input_of(each) for each in shown],
        pixels=[_pixels(each) for each in shown if job.serving.takes_pixels],
        sampling=msgspec.structs.replace(job.request.sampling, tokens_max=tokens_max),
        deadline=job.deadline,
        scope=job.scope,
        trace=job.ledger.onward,
        tool_use=job.request.tool_use,
        chat=job.request.kind == "chat",
        whole=not job.request.stream,
    )


def _judge_prompt_logprobs(job: Job) -> None:
    """Raises InvalidParameter where more would have to be told of the prompt than can be while others' tokens wait."""
    asked = job.request.sampling.prompt_logprobs
    entries = 0 if asked is None else len(job.token_ids) * (asked + 1)
    if entries > PROMPT_LOGPROBS_MAX:
        raise InvalidParameter(
            f"prompt_logprobs of {len(job.token_ids)} tokens and {asked} alternatives each are too many.",
            param="prompt_logprobs",
            limit=PROMPT_LOGPROBS_MAX,
            actual=entries,
        )


def input_of(item: Item) -> PictureInput:
    """Return a picture as the engine takes it; without its embeddings where they are only foreseen."""
    facts = item.facts
    if isinstance(facts, EncoderEntry):
        return PictureInput(facts.embeddings, facts.rows, facts.meta, facts.content)
    assert isinstance(facts, Foreseen), "an engine that takes embeddings is given those"
    assert item.key is not None
    return PictureInput(NOT_THERE, facts.rows, facts.meta, item.key.name())


def _pixels(item: Item) -> PixelInput:
    assert item.lease is not None
    assert item.key is not None
    entry = item.lease.entry
    assert isinstance(entry, ProcessorEntry), "an engine that takes pixels is given those"
    # By the encoder's version too: the engine encodes, and knows its embeddings by this name.
    return PixelInput(entry.prepared.inputs, entry.rows, entry.prepared.meta, item.key.name())


async def generate(job: Job, tools: Tools) -> AsyncGenerator[EngineEvent, None]:
    """Yield the engine's events. Closing it cancels the request in the engine at once.

    Raises QueueFull, EngineUnavailable, EngineFailed, DeadlineExceeded.
    """
    assert job.work is not None
    engine, work, begun, retry_left = job.serving.engine, job.work, False, True
    while True:
        if job.items and job.serving.encoder_version != job.encoder_version:
            raise EngineUnavailable(
                detail="the engine restarted with another encoder than the pictures were encoded by"
            )
        early = job.arrivals is not None and not job.arrivals.complete
        try:
            asked = tools.partings.through(engine.generate(work, job.arrivals), lambda: _leases(job))
            async with aclosing(asked) as events:
                async for event in events:
                    if not begun and isinstance(event, TokenEvent):
                        begun = True
                        _close_window(job, event)
                    yield event
            return
        except QueueFull:
            if begun or job.arrivals is None or not early:
                raise
            await asyncio.wait({job.arrivals.completed})
        except (EngineDied, EngineUnavailable) as error:
            # Not EngineFailed, of an engine that is still there: it failed on the request itself, and would again.
            wait_seconds = tools.limits.engine_wait_seconds
            deaths = error.deaths if isinstance(error, EngineDied) else 0
            if deaths >= DEATHS_MAX:
                raise
            if begun or not retry_left or not await engine_back(job.serving.engine, job.deadline, wait_seconds):
                raise
            work, retry_left = msgspec.structs.replace(work, deaths=deaths), False


def _leases(job: Job) -> list[Lease[Visual]]:
    """Return further leases on the pictures that the engine may be reading now."""
    return [item.lease.again() for each in job.items for item in each.seen if item.lease is not None]


def _close_window(job: Job, event: TokenEvent) -> None:
    """Enter the engine's stages, which follow one another: llm_queue from when its inputs were ready, llm_prefill until the first token is
    here, and what an engine that takes pixels does before and between. What was prefilled before its last picture was ready is told apart:
    that time belongs to the stages of this picture.
    """
    arrived = now()
    reached = max((item.ready_at for item in job.items), default=job.inputs_ready_at)
    job.ledger.prefilled_ahead(event.ahead, reached)
    given = event.spans or (Span("llm_prefill", reached, arrived),)
    if given[0].start > reached:
        given = (Span("llm_queue", reached, given[0].start), *given)
    for span in given:
        start = min(reached, arrived)
        reached = arrived if span is given[-1] else min(max(span.end, start), arrived)
        job.ledger.span(Span(span.stage, start, reached, span.cost_ms))
    job.ledger.spent.charge(given)
    job.ledger.first_token(arrived)
