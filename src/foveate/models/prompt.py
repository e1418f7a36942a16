"""What the gateway knows of a model: the price of a picture, the prompt's text, its tokens. No weights.

Everything here may be called from several threads. Does not cover generation limits or sampling.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import msgspec

from foveate.core.errors import EmbeddingsRefused, PromptInvalid
from foveate.core.media import ImageOptions, ProcessorOptions
from foveate.core.request import Turn
from foveate.core.tool_use import ToolUse
from foveate.models.asked import wanted
from foveate.models.families import Family, picture_token_id
from foveate.models.given import GivenPictures
from foveate.models.port import RenderedPrompt, VisualEstimate
from foveate.models.resizing import pixel_bytes, resizing
from foveate.models.template import ChatTemplate, template_of
from foveate.models.tokens import Tokenization, control_tokens

_ESTIMATES_MAX = 4096


class TransformersPromptSide:
    """:class:`foveate.models.port.PromptSide` over a transformers processor and configuration."""

    def __init__(
        self, family: Family, processor: Any, config: Any, processor_version: str, *, pixels: bool = False
    ) -> None:
        """``pixels``: pictures are handed to the engine as such, so that this is what lies in the arena."""
        text = config.get_text_config()
        self.family = family.name
        self._title = family.title
        self.context_tokens_max = int(text.max_position_embeddings)
        self.vocabulary_size = int(text.vocab_size)
        self.processor_version = processor_version
        self._sizing = family.sizing(processor)
        self._resizing = resizing(family, self._sizing) if pixels else None
        self._picture_id = picture_token_id(config)
        self._picture_token: str = processor.tokenizer.convert_ids_to_tokens(self._picture_id)
        self._placeholder: str = processor.image_token
        self._tokenization = Tokenization(processor.tokenizer, self._picture_id)
        self._template = ChatTemplate(processor, control_tokens(processor, template_of(processor)), family.wrap)
        self._given = GivenPictures(family, processor, config, self._picture_token)
        self._estimate = lru_cache(_ESTIMATES_MAX)(self._estimate_anew)

    def options(self, options: ImageOptions) -> ImageOptions:
        """Return ``options`` without the fields that make no difference for this model; the size to fit stays, it comes first."""
        reduced = self._sizing.options(options)
        return msgspec.structs.replace(reduced, fit_width=options.fit_width, fit_height=options.fit_height)

    def wanted(self, asked: ProcessorOptions) -> ImageOptions:
        """Return what a request asks of the processor. Raises UnsupportedParameter for what it cannot be told, InvalidParameter."""
        return wanted(asked, self._sizing.takes(), self._title)

    def estimate(self, width: int, height: int, options: ImageOptions) -> VisualEstimate:
        """Price a picture of ``width`` x ``height`` displayed pixels:

        exact, Gemma 3's newlines at the picture's edges excepted.

        Raises ImageShapeRefused when the processor cannot take the shape.
        """
        return self._estimate(width, height, self._sizing.options(options))

    def _estimate_anew(self, width: int, height: int, options: ImageOptions) -> VisualEstimate:
        cost = self._sizing.cost(width, height, options)
        size = cost.input_bytes
        if self._resizing is not None:
            size = pixel_bytes(self._resizing, width, height, options)
        return VisualEstimate(tokens=cost.tokens, rows_max=cost.rows, input_bytes_max=size)

    def given_accepted(self) -> None:
        """Raise EmbeddingsRefused where the family takes no embeddings that a client computed itself."""
        if self._resizing is not None:
            raise EmbeddingsRefused
        self._given.accepted()

    def given(self, rows: int, grid: tuple[int, ...]) -> tuple[str, dict[str, list[int]]]:
        """Return what stands for such embeddings, and their meta. Raises EmbeddingsInvalid."""
        return self._given.picture(rows, grid)

    def render(self, turns: Sequence[Turn], tool_use: ToolUse | None = None) -> RenderedPrompt:
        """Apply the chat template with a generation prompt.

        Raises PromptInvalid when the template refuses the messages, UnsupportedParameter when it does not show the tools.
        """
        return self._template.render(turns, tool_use)

    def plain(self, text: str) -> RenderedPrompt:
        """Wrap a plain completion prompt: no template, special-token spellings are ordinary text."""
        return self._template.plain(text)

    def tokens_min(self, prompt: RenderedPrompt) -> int:
        """Return a number of tokens that the prompt has at least, judged by its length alone."""
        return self._tokenization.least(prompt.segments)

    def tokenize(self, prompt: RenderedPrompt, replacements: Sequence[str]) -> list[int]:
        """Return token ids with the i-th placeholder replaced by ``replacements[i]``.

        Raises ValueError when the numbers differ, PromptInvalid when the tokens that stand for pictures are not those
        of the replacements.
        """
        if len(replacements) != prompt.pictures:
            raise ValueError(f"{prompt.pictures} pictures in the prompt, {len(replacements)} replacements")
        waiting = iter(replacements)
        segments = [
            segment if index % 2 else self._replaced(segment, waiting) for index, segment in enumerate(prompt.segments)
        ]
        found = self._tokenization.ids(segments)
        rows = sum(replacement.count(self._picture_token) for replacement in replacements)
        if found.count(self._picture_id) != rows:
            raise PromptInvalid(
                param="messages", detail=f"{found.count(self._picture_id)} picture tokens for {rows} rows"
            )
        return found

    def _replaced(self, segment: str, waiting: Any) -> str:
        first, *others = segment.split(self._placeholder)
        return first + "".join(next(waiting) + other for other in others)
