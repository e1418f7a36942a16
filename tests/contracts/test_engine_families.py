"""Every family that the vLLM engine takes: the same greedy tokens as from the embedded engine, which is held to transformers' own."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from tests.contracts.bench import Bench
from tests.families import build_family

from foveate import models
from foveate.core.errors import EngineFailed
from foveate.core.media import PreparedImage
from foveate.core.request import Sampling
from foveate.core.stages import Span
from foveate.engines.embedding_file import HEADER_BYTES
from foveate.engines.vllm.config import CAUSAL_ON_CPU, FAMILIES, PIXEL_FAMILIES
from foveate.models.pixels import VALUES
from foveate.runtime.local.runtime import LocalRuntime

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(300)]

TOKENS = Sampling(8, temperature=0, ignore_eos=True)
RED, BLUE = (220, 30, 30), (30, 60, 220)


async def answers(name: str, directory: Path, runtime: LocalRuntime, **changes: Any) -> tuple[list[list[int]], int]:
    """Return the tokens of an answer about no picture, one, and two, and the bytes of the larger picture's embeddings."""
    bench = Bench(name, runtime, models.resolve_model(str(directory)), **changes)
    await bench.engine.start()
    try:
        prepared = [bench.prepare(color) for color in (RED, BLUE)]
        images = [] if bench.pixels else [await bench.encode(one) for one in prepared]
        found = []
        for count in range(3):
            work = bench.work("what is in this image?", *prepared[:count], sampling=TOKENS, images=images[:count])
            _, tokens, _ = await bench.answer(work)
            found.append([token for event in tokens for token in event.token_ids])
            if bench.pixels and count:
                stages_close(tokens[0].spans)
        if bench.pixels:
            await held_to_the_price(bench, prepared[0])
        return found, max((image.embeddings.used for image in images), default=0)
    finally:
        await bench.engine.stop(seconds_max=10)


def stages_close(spans: Sequence[Span]) -> None:
    """vLLM's processor and encoder have their own stages, and nothing is counted twice or left out."""
    order = ["mm_processor", "llm_queue", "llm_prefill", "vision_encode", "llm_prefill"]
    assert [span.stage for span in spans] == order
    assert all(before.end == after.start for before, after in pairwise(spans))
    processed, encoded = spans[0], spans[3]
    assert processed.cost_ms > 0
    assert 0 < encoded.end - encoded.start < spans[-1].end - spans[0].start
    assert encoded.cost_ms == pytest.approx((encoded.end - encoded.start) * 1e3)


async def held_to_the_price(bench: Bench, prepared: PreparedImage) -> None:
    """A picture of which vLLM makes something else than was priced fails alone, before the engine sees it."""
    right = bench.work("what is in this image?", prepared, sampling=TOKENS)
    (picture,) = right.pixels
    more = replace(picture, meta={**picture.meta, VALUES: [picture.meta[VALUES][0] + 1]})
    for wrong in (more, replace(picture, rows=picture.rows + 1)):
        with pytest.raises(EngineFailed):
            await bench.answer(replace(right, request_id=f"wrong {wrong.rows}", pixels=[wrong]))
    assert await bench.answer(right)
    assert bench.engine.ready


HERE = (FAMILIES | PIXEL_FAMILIES) - CAUSAL_ON_CPU - {"pixtral", "smolvlm"}
"""Pixtral is as Mistral 3 and SmolVLM as Idefics3, so that each is spared the start of two engines."""


@pytest.mark.parametrize("family", sorted(HERE))
async def test_the_same_tokens(family: str, tmp_path: Path, runtime: LocalRuntime) -> None:
    """vLLM has room for one picture by name, so that of two the second goes with the request; pixels go with it all."""
    directory = build_family(family, tmp_path / family)
    expected, size = await answers("embedded", directory, runtime)
    assert len({tuple(tokens) for tokens in expected}) > 1, "the pictures make a difference"
    room = size * 3 // 2 + HEADER_BYTES
    found, _ = await answers("vllm", directory, runtime, embeddings="connector", embeddings_bytes_max=room)
    assert found == expected
