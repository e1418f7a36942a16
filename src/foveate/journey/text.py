"""Rendering and tokenizing off the event loop when there is enough of it to be felt."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from foveate.core.request import Request, TextPart
from foveate.models.port import PromptSide, RenderedPrompt

T = TypeVar("T")

INLINE_CHARACTERS = 4096
"""Up to here the chat template and the tokenizer take well under a millisecond, less than a hop to a thread costs under load."""


TOOL_CHARACTERS = 2048
"""What one tool counts for: its description is looked through and written as JSON."""


class TextWork:
    """The prompt side of the model, called where it cannot hold up other requests' streams."""

    def __init__(self, prompt_side: PromptSide) -> None:
        self._side = prompt_side
        # One thread: the tokenizer parallelises inside, and the queue of waiting prompts is bounded by the number of requests.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="prompt")

    async def render(self, request: Request) -> RenderedPrompt:
        """Apply the chat template, or wrap a plain prompt. Raises PromptInvalid."""
        if request.prompt is not None:
            prompt = request.prompt
            return await self._run(len(prompt), lambda: self._side.plain(prompt))
        characters = sum(len(part.text) for turn in request.turns for part in turn.parts if isinstance(part, TextPart))
        if request.tool_use is not None:
            characters += TOOL_CHARACTERS * len(request.tool_use.tools)
        return await self._run(characters, lambda: self._side.render(request.turns, request.tool_use))

    async def tokenize(self, prompt: RenderedPrompt, replacements: Sequence[str]) -> list[int]:
        """Return the prompt's token ids with each picture's placeholder replaced."""
        characters = sum(map(len, prompt.segments)) + sum(map(len, replacements)) // 8
        return await self._run(characters, lambda: self._side.tokenize(prompt, replacements))

    async def _run(self, characters: int, work: Callable[[], T]) -> T:
        if characters <= INLINE_CHARACTERS:
            return work()
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    def close(self) -> None:
        """Let the thread end."""
        self._thread.shutdown(wait=False, cancel_futures=True)
