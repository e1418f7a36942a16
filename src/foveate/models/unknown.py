"""The prompt side of a model that this server knows nothing of: other servers run it, and no copy of its files was given.

What media cost in tokens is not known then, and no limit on tokens can be kept; every other limit is. Prompts are neither rendered nor
tokenized: whoever runs the model does that.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from foveate.core.errors import EmbeddingsRefused, PromptInvalid
from foveate.core.media import ImageOptions, ProcessorOptions
from foveate.core.request import Turn
from foveate.core.tool_use import ToolUse
from foveate.models.port import RenderedPrompt, VisualEstimate

CONTEXT_UNKNOWN: Final = 2**31 - 1
_NOTHING: Final = VisualEstimate(tokens=0, rows_max=0, input_bytes_max=0)


class UnknownModel:
    """:class:`foveate.models.port.PromptSide` of an unknown model."""

    family = "unknown"
    context_tokens_max = CONTEXT_UNKNOWN
    processor_version = "unknown"
    vocabulary_size = 0

    def options(self, options: ImageOptions) -> ImageOptions:
        """Return no options: nothing is processed here, so nothing makes a difference."""
        return ImageOptions()

    def wanted(self, asked: ProcessorOptions) -> ImageOptions:
        """Return no options: they are for whoever runs the model."""
        return ImageOptions()

    def estimate(self, width: int, height: int, options: ImageOptions) -> VisualEstimate:
        """Return zero for everything: not known."""
        return _NOTHING

    def given_accepted(self) -> None:
        """Refuse: nobody here knows the model."""
        raise EmbeddingsRefused

    def given(self, rows: int, grid: tuple[int, ...]) -> tuple[str, dict[str, list[int]]]:
        """Refuse: nobody here knows the model."""
        raise EmbeddingsRefused

    def render(self, turns: Sequence[Turn], tool_use: ToolUse | None = None) -> RenderedPrompt:
        """Raises PromptInvalid: there is no template."""
        raise PromptInvalid(detail="there is no chat template of an unknown model")

    def plain(self, text: str) -> RenderedPrompt:
        """Return the text as it is."""
        return RenderedPrompt((text,), 0)

    def tokens_min(self, prompt: RenderedPrompt) -> int:
        """Return 0: there is no tokenizer."""
        return 0

    def tokenize(self, prompt: RenderedPrompt, replacements: Sequence[str]) -> list[int]:
        """Raises PromptInvalid: there is no tokenizer."""
        raise PromptInvalid(detail="there is no tokenizer of an unknown model")
