"""Hold the path that pictures go to a reference: one fixed picture by both, before the first client's.

The path is the whole of it: media worker, processor, encoder, arena, and what the engine is given. The reference is made by transformers
alone (:mod:`foveate.models.reference`), in a process of its own. Compared are the embeddings, row by row, and the log-probabilities of a
greedy answer: the engine's own with either embeddings, or, where the whole model was loaded for it, transformers' own answer. Touches no
cache, no ledger and no metric.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, aclosing
from typing import Final

from msgspec.structs import replace

from foveate.core.clock import now
from foveate.core.errors import FoveateError, StartupError
from foveate.core.media import DataRef
from foveate.core.request import ImagePart, Sampling, TextPart, Turn
from foveate.decisions.agreement import (
    Comparison,
    Step,
    embeddings_reason,
    logprob_difference,
    logprobs_reason,
)
from foveate.encoders.reference_port import ReferenceInfo, ReferenceProcess
from foveate.engines.port import EngineWork, PictureInput, TokenEvent
from foveate.journey.embedding_difference import difference
from foveate.journey.produce import ALIGNMENT_BYTES
from foveate.journey.serving import Serving
from foveate.journey.warm import SECONDS_MAX, encode, prepare, rgb_png
from foveate.models.check_picture import QUESTION, check_picture
from foveate.runtime.arena import Arena
from foveate.runtime.tensors import read_bundle

TOKENS: Final = 8
"""Of the answers that are compared."""
TOP: Final = 5
WHAT: Final = "the fixed picture"
ITEM_BYTES: Final = {"float32": 4, "bfloat16": 2, "float16": 2}


async def check_embeddings(serving: Serving, reference: ReferenceProcess, arena: Arena) -> Comparison:
    """Compare, and refuse the path where it differs. Raises StartupError with the reason."""
    found = await compare(serving, reference, arena)
    if found.reason:
        raise StartupError(
            f"The self-check of embeddings failed, so pictures would be answered wrongly: {found.reason}. "
            "foveate check --embeddings tells more.",
            detail=repr(found),
        )
    return found


async def compare(serving: Serving, reference: ReferenceProcess, arena: Arena) -> Comparison:
    """Compare the path's embeddings with the reference's, and the answers. Raises StartupError where either cannot be had."""
    started = now()
    async with AsyncExitStack() as held:
        try:
            found = await _compare(serving, reference, arena, held)
        except StartupError:
            raise
        except FoveateError as error:
            raise StartupError(
                f"The self-check of embeddings could not be made: {error.public}",
                detail=f"{error.code}: {error.detail}",
            ) from error
    return replace(found, seconds=now() - started)


async def _compare(serving: Serving, reference: ReferenceProcess, arena: Arena, held: AsyncExitStack) -> Comparison:
    info = reference.info
    prepared = await prepare(rgb_png(check_picture()), serving, arena, held)
    ours = await encode(prepared, serving, arena, held)
    theirs = await _written(reference, info, ours.embeddings.tensors[0].dtype, arena, held)
    views = [read_bundle(arena.view(one.embeddings.slot), one.embeddings) for one in (theirs, ours)]
    apart = await asyncio.to_thread(difference, *views)
    found = Comparison(
        what=WHAT,
        reason=embeddings_reason(
            rows=(ours.rows, info.rows),
            grids=(ours.meta, info.meta),
            finite=apart.finite,
            same_shape=apart.same_shape,
            cosine_mean=apart.cosine,
            cosine_min=apart.cosine_min,
            norm_ratio=apart.norm_ratio,
        ),
        rows=ours.rows,
        rows_expected=info.rows,
        cosine_mean=apart.cosine,
        cosine_min=apart.cosine_min,
        norm_ratio=apart.norm_ratio,
    )
    if apart.cosine is None or ours.meta != info.meta:
        # The engine cannot be asked about both.
        return found
    turn = Turn("user", (ImagePart(0, "", DataRef("")), TextPart(QUESTION)))
    token_ids = serving.prompt_side.tokenize(serving.prompt_side.render([turn]), [prepared.replacement])
    by_ours = await _answer(token_ids, ours, serving)
    expected = _steps(info) or await _answer(token_ids, theirs, serving)
    apart_by, steps = logprob_difference(expected, by_ours)
    return replace(found, logprob_difference=apart_by, steps=steps, reason=found.reason or logprobs_reason(apart_by))


async def _written(
    reference: ReferenceProcess, info: ReferenceInfo, dtype: str, arena: Arena, held: AsyncExitStack
) -> PictureInput:
    out = arena.allocate(info.values * ITEM_BYTES[dtype] + ALIGNMENT_BYTES)
    held.callback(arena.release, out)
    return PictureInput(await reference.write(out, dtype), info.rows, info.meta)


def _steps(info: ReferenceInfo) -> list[Step]:
    return [Step(drawn, top) for drawn, top in zip(info.drawn, info.top, strict=True)]


async def _answer(token_ids: list[int], picture: PictureInput, serving: Serving) -> list[Step]:
    """Return the engine's greedy answer. The embeddings have no name, so nothing that is cached of others can answer for them."""
    sampling = Sampling(tokens_max=TOKENS, temperature=0, ignore_eos=True, logprobs=TOP)
    work = EngineWork(f"self-check-{now()}", token_ids, [picture], sampling, now() + SECONDS_MAX)
    steps: list[Step] = []
    async with aclosing(serving.engine.generate(work)) as events:
        async for event in events:
            if isinstance(event, TokenEvent):
                steps += [
                    Step(step.chosen.token_id, {one.token_id: one.logprob for one in step.top}) for step in event.steps
                ]
    return steps
