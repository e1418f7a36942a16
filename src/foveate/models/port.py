"""The four faces of a model, one for each kind of process that touches it.

========================  =================  ===========================================
face                      used by            needs
========================  =================  ===========================================
:class:`PromptSide`       the gateway        configuration, tokenizer, no weights
:class:`PictureProcessor` media workers      processor configuration, no weights
:class:`VisionTower`      encoders           vision weights
:class:`LanguageModel`    the engine         language weights
========================  =================  ===========================================
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from foveate.core.media import ImageOptions, ProcessorOptions
from foveate.core.request import Turn
from foveate.core.tool_use import ToolUse

if TYPE_CHECKING:
    import numpy as np
    import torch


class VisualEstimate(msgspec.Struct, frozen=True):
    """What a picture will cost, from its displayed width and height alone.

    ``tokens`` is the number of prompt tokens (for admission), ``rows_max`` an upper bound of its embedding rows,
    ``input_bytes_max`` an upper bound of the bytes of the vision tower's inputs, each tensor aligned to 64 bytes.
    """

    tokens: int
    rows_max: int
    input_bytes_max: int


class RenderedPrompt(msgspec.Struct, frozen=True):
    """A conversation after the chat template, pictures still one placeholder each.

    ``segments`` alternate: even ones are template text (special tokens count), odd ones are special-token spellings
    that the *user* wrote and that must be tokenized as ordinary text. ``pictures`` is the number of placeholders.
    """

    segments: tuple[str, ...]
    pictures: int


class PromptSide(Protocol):
    """Counts, renders and tokenizes. Thread-safe: may be called from the event loop and from a thread at once."""

    family: str
    context_tokens_max: int
    processor_version: str
    vocabulary_size: int

    def options(self, options: ImageOptions) -> ImageOptions:
        """Return ``options`` without the fields that make no difference for this model: equal results, equal keys."""
        ...

    def wanted(self, asked: ProcessorOptions) -> ImageOptions:
        """Return what a request asks of the processor. Raises UnsupportedParameter for what it cannot be told, InvalidParameter."""
        ...

    def estimate(self, width: int, height: int, options: ImageOptions) -> VisualEstimate:
        """Price a picture of ``width`` x ``height`` displayed pixels.

        Raises ImageShapeRefused when the processor cannot take the shape.
        """
        ...

    def given_accepted(self) -> None:
        """Raise EmbeddingsRefused where the model takes no embeddings that a client computed itself."""
        ...

    def given(self, rows: int, grid: tuple[int, ...]) -> tuple[str, dict[str, list[int]]]:
        """Return what stands in the prompt for a client's own embeddings, and their meta, both as in PreparedImage.

        Raises EmbeddingsInvalid when rows and grid do not belong together.
        """
        ...

    def render(self, turns: Sequence[Turn], tool_use: ToolUse | None = None) -> RenderedPrompt:
        """Apply the chat template with a generation prompt.

        Raises PromptInvalid when the template refuses the messages, UnsupportedParameter when it does not show the tools.
        """
        ...

    def plain(self, text: str) -> RenderedPrompt:
        """Wrap a plain completion prompt: no template, special-token spellings are ordinary text."""
        ...

    def tokens_min(self, prompt: RenderedPrompt) -> int:
        """Return a number of tokens that the prompt has at least, judged by its length alone: cheap, and enough to refuse a megabyte."""
        ...

    def tokenize(self, prompt: RenderedPrompt, replacements: Sequence[str]) -> list[int]:
        """Return token ids, the i-th placeholder replaced by ``replacements[i]`` (see PreparedImage.replacement)."""
        ...


class ProcessedPicture(msgspec.Struct):
    """One picture's model inputs in process memory.

    ``arrays`` are the vision tower's keyword arguments, C-contiguous.
    """

    replacement: str
    rows: int
    arrays: dict[str, np.ndarray]
    meta: dict[str, list[int]]


class PictureProcessor(Protocol):
    """Pixels to model inputs, one picture a call."""

    def process(self, pixels: np.ndarray, options: ImageOptions) -> ProcessedPicture:
        """Turn ``pixels`` (uint8, [height, width, 3], RGB, upright) into the vision tower's inputs."""
        ...


class Embeddings(msgspec.Struct):
    """One picture's embeddings: ``rows`` [n, hidden]; ``deep`` DeepStack levels of the same shape (often none)."""

    rows: torch.Tensor
    deep: tuple[torch.Tensor, ...] = ()


class VisionTower(Protocol):
    """Model inputs to embeddings. Not thread-safe; one thread owns it."""

    encoder_version: str
    embedding_bytes_per_row: int
    embedding_dtype: str
    embedding_levels: int

    def encode(
        self, pictures: Sequence[Mapping[str, torch.Tensor]], *, together: bool = False
    ) -> list[Embeddings | Exception]:
        """Encode pictures (mappings of the tower's keyword arguments); a failing one yields its exception alone.

        ``together``: those of equal shapes may share a pass, which may change the last bits.
        """
        ...


class Picture(msgspec.Struct):
    """A picture as the language model sees it: embeddings and the processor's ``meta``."""

    embeddings: Embeddings
    meta: dict[str, list[int]]


class Positions(msgspec.Struct):
    """Positions of a prompt.

    ``ids`` is [1, P] or, for M-RoPE, [3, 1, P]; ``next`` is the position of the first generated token.
    """

    ids: torch.Tensor
    next: int


class LanguageModel(Protocol):
    """Prefill and token decode over explicit caches. Not thread-safe; one thread owns it."""

    vocabulary_size: int
    context_tokens_max: int
    picture_token_id: int
    eos_token_ids: frozenset[int]

    def positions(self, token_ids: Sequence[int], pictures: Sequence[Picture]) -> Positions:
        """Return the prompt's positions (never kept on the model: ``rope_deltas`` is shared state).

        Of the pictures only ``meta`` and the number of rows count.
        """
        ...

    def chunk_borders(self, token_ids: Sequence[int]) -> Sequence[int] | None:
        """Return the allowed prefill chunk ends in rising order, or ``None`` when every place is allowed.

        Families whose pictures attend bidirectionally allow a border only between pictures, or only at the prompt's
        end.
        """
        ...

    def new_cache(self) -> Any:
        """Return an empty KV cache for one sequence (transformers ``Cache``, full K/V also for sliding layers)."""
        ...

    def fork(self, cache: Any, tokens: int) -> Any:
        """Return a KV cache of its own with the first ``tokens`` of one sequence's ``cache``."""
        ...

    def prefill(
        self,
        token_ids: Sequence[int],
        pictures: Sequence[Picture],
        positions: Positions,
        cache: Any,
        start: int,
        end: int,
    ) -> torch.Tensor:
        """Run rows ``start``..``end`` of the prompt into ``cache``; return the last logits, float32 [vocabulary].

        Of pictures without a part in these only the number of rows counts.
        """
        ...

    def decode(
        self, token_ids: torch.Tensor, positions: torch.Tensor, cache: Any, mask: torch.Tensor | None
    ) -> torch.Tensor:
        """One token decode step of a batch.

        ``token_ids`` int64 [B], ``positions`` int64 [B], ``cache`` a batched left-padded cache, ``mask`` int64 [B, L+1]
        with 0 on padding (``None`` for an unpadded batch of one). Returns float32 logits [B, vocabulary].
        """
        ...
