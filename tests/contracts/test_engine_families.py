"""Every family that the vLLM engine takes: the same greedy tokens as from the embedded engine, which is held to transformers' own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.contracts.bench import Bench
from tests.families import build_family

from foveate import models
from foveate.core.request import Sampling
from foveate.engines.embedding_file import HEADER_BYTES
from foveate.engines.vllm.config import FAMILIES
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
        images = [await bench.encode(one) for one in prepared]
        found = []
        for count in range(3):
            work = bench.work("what is in this image?", *prepared[:count], sampling=TOKENS, images=images[:count])
            _, tokens, _ = await bench.answer(work)
            found.append([token for event in tokens for token in event.token_ids])
        return found, max(image.embeddings.used for image in images)
    finally:
        await bench.engine.stop(seconds_max=10)


@pytest.mark.parametrize("family", sorted(FAMILIES))
async def test_the_same_tokens(family: str, tmp_path: Path, runtime: LocalRuntime) -> None:
    """vLLM has room for one picture by name, so that of two the second goes with the request."""
    directory = build_family(family, tmp_path / family)
    expected, size = await answers("embedded", directory, runtime)
    assert len({tuple(tokens) for tokens in expected}) > 1, "the pictures make a difference"
    room = size * 3 // 2 + HEADER_BYTES
    found, _ = await answers("vllm", directory, runtime, embeddings="connector", embeddings_bytes_max=room)
    assert found == expected
