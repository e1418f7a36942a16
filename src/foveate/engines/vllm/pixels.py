"""A prompt with pictures as pixels: vLLM's own processor makes its input of each, and our placeholders say where they go.

The processor runs on one thread of its own, so that the event loop goes on answering others. It is given one picture at a time: what a
request asks of one holds for that one, and what it makes can be held to what was priced. Its tower would else make other rows than the
prompt has room for, which ends vLLM's core.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import blake3
import msgspec
import numpy as np
import torch
from PIL import Image
from vllm.inputs.engine import mm_input
from vllm.multimodal.inputs import MultiModalKwargsItems, PlaceholderRange
from vllm.multimodal.processing.context import TimingContext
from vllm.multimodal.processing.inputs import ProcessorInputs

from foveate.core.clock import now
from foveate.core.errors import EngineFailed
from foveate.core.stages import Span
from foveate.engines.port import EngineWork, PixelInput
from foveate.models.pixels import LONGEST_EDGE, VALUES
from foveate.runtime.port import ArenaAccess
from foveate.runtime.tensors import read_bundle


class Processed(msgspec.Struct, frozen=True):
    """vLLM's input, and mm_processor: from when the request came until it was there, the wait for the thread included."""

    input: Any
    span: Span


class PixelPrompts:
    """Makes vLLM's inputs of prompts with pixels, for one model. Used on the event loop."""

    def __init__(self, arena: ArenaAccess, processor: Any, *, picture_token: int, rows_max: int) -> None:
        """``processor`` is vLLM's (``BaseMultiModalProcessor``); ``rows_max`` as in :class:`foveate.engines.vllm.pictures.Prompts`."""
        self._arena = arena
        self._processor = processor
        self._picture_token = picture_token
        self._rows_max = rows_max
        text = processor.dummy_inputs.get_dummy_text({"image": 1})
        self._alone: list[int] = processor.info.get_tokenizer().encode(text, add_special_tokens=False)
        # vLLM's processors are not made for more than one thread.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="vLLM's processor")

    async def input(self, work: EngineWork, submitted_at: float) -> Processed:
        """Return vLLM's input. Raises EngineFailed where vLLM's processor makes something else of a picture than was priced."""
        for given in work.pixels:
            if given.rows > self._rows_max:
                raise EngineFailed(
                    detail=f"a picture of {given.rows} rows; this engine takes {self._rows_max} (max_num_batched_tokens)"
                )
        places = ranges(work.token_ids, self._picture_token, [given.rows for given in work.pixels])
        loop, items, cost_ms = asyncio.get_running_loop(), [], 0.0
        for given in work.pixels:
            item, took_ms = await loop.run_in_executor(self._thread, self._process, given)
            items.append(item)
            cost_ms += took_ms
        names = [given.content or f"{work.request_id}:{place}" for place, given in enumerate(work.pixels)]
        made = mm_input(
            prompt_token_ids=work.token_ids,
            mm_kwargs=MultiModalKwargsItems({"image": items}),
            mm_hashes={"image": names},
            mm_placeholders={"image": places},
            cache_salt=blake3.blake3(work.scope.encode()).hexdigest() if work.scope else None,
        )
        return Processed(made, Span("mm_processor", submitted_at, now(), cost_ms))

    def _process(self, given: PixelInput) -> tuple[Any, float]:
        """Return what the model takes of one picture, and the thread's processor time in milliseconds."""
        started = time.thread_time()
        try:
            found = self._apply(given)
        except EngineFailed:
            raise
        except Exception as error:  # a foreign processor raises whatever it comes upon
            raise EngineFailed(detail=f"vLLM's processor: {type(error).__name__}: {error}") from error
        item, (place,) = found["mm_kwargs"]["image"][0], found["mm_placeholders"]["image"]
        values, expected = item["pixel_values"].data.numel(), given.meta.get(VALUES)
        if place.get_num_embeds() != given.rows or [values] != expected:
            raise EngineFailed(
                detail=f"vLLM makes {place.get_num_embeds()} rows of {values} values of a picture that was priced at {given.rows} rows "
                f"of {expected}"
            )
        return item, (time.thread_time() - started) * 1e3

    def _apply(self, given: PixelInput) -> Any:
        pixels = read_bundle(self._arena.view(given.pixels.slot), given.pixels)["pixels"]
        # A picture that says how its bytes lie: arrays one pixel wide would be taken for something else. This copies.
        picture = Image.fromarray(pixels)
        edge = given.meta.get(LONGEST_EDGE)
        told = {} if edge is None else {"size": {"longest_edge": edge[0]}}
        inputs = ProcessorInputs(
            list(self._alone),
            self._processor.info.parse_mm_data({"image": [picture]}),
            {"image": [given.content or "unnamed"]},
            hf_processor_mm_kwargs=told,
        )
        return self._processor.apply(inputs, TimingContext(enabled=False))


def ranges(token_ids: Sequence[int], picture_token: int, rows: Sequence[int]) -> list[PlaceholderRange]:
    """Return where each picture's rows go; other tokens may stand between them. Raises EngineFailed when the prompt has not ``rows``."""
    is_picture = np.asarray(token_ids) == picture_token
    at = np.flatnonzero(is_picture)
    if len(at) != sum(rows) or any(count < 1 for count in rows):
        raise EngineFailed(detail=f"{len(at)} picture tokens in the prompt, {list(rows)} embedding rows")
    found, start = [], 0
    for count in rows:
        first, last = int(at[start]), int(at[start + count - 1])
        mask = torch.from_numpy(is_picture[first : last + 1].copy())
        found.append(PlaceholderRange(offset=first, length=last + 1 - first, is_embed=mask))
        start += count
    return found
