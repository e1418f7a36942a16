"""The embedded engine's KV cache of prompts: what earlier requests prefilled, for later ones that begin alike.

A prompt is kept with its keys and values and the logits behind its last token, so that an equal prompt needs no forward pass at all, and
one that begins alike (the next turn of a conversation, another question about the same picture) only the rest. What two prompts share
is decided token by token; a picture's tokens are compared by its content's name (:class:`foveate.engines.port.PictureInput`), never by
where its embeddings lie. Least recently used goes first. Owned by the language model's thread.

Does not cover: answers' tokens (only prompts are kept), and prompts with a picture that has no name.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch

from foveate.engines.port import PictureInput
from foveate.models.port import Positions

WORTH_TOKENS: Final = 16
"""A shorter common beginning is prefilled again: it costs less than copying it and another forward pass. vLLM's block has 16 tokens too."""

Prompt = tuple[int | str, ...]
"""Token ids, with the name of the picture in place of each picture token."""


@dataclass(frozen=True, slots=True)
class Prefix:
    """A prefilled prompt. ``cache`` is never written to again; ``logits`` are float32 [vocabulary]."""

    prompt: Prompt
    cache: Any
    logits: torch.Tensor
    positions: Positions

    @property
    def bytes(self) -> int:
        """Bytes of all tensors."""
        tensors = [tensor for layer in self.cache.layers for tensor in (layer.keys, layer.values)]
        return sum(int(tensor.nbytes) for tensor in (*tensors, self.logits, self.positions.ids))


class Prefixes:
    """Prefilled prompts within ``bytes_max``, each met by requests of its own scope only."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._kept: OrderedDict[tuple[str, Prompt], Prefix] = OrderedDict()
        self.bytes = 0
        self.changes = 0
        """How often a prompt was added: a search that found nothing need not be repeated before."""

    def __len__(self) -> int:
        return len(self._kept)

    def find(self, scope: str, prompt: Prompt) -> tuple[Prefix, int] | None:
        """Return the kept prompt that begins most like ``prompt``, and how many tokens they share; ``None`` when not worth it.

        O(kept prompts), each compared no further than it can win.
        """
        best: tuple[tuple[str, Prompt], int] | None = None
        if (scope, prompt) in self._kept:
            best = (scope, prompt), len(prompt)
        else:
            for key in self._kept:
                at_least = WORTH_TOKENS if best is None else best[1] + 1
                if key[0] == scope and len(key[1]) >= at_least and key[1][:at_least] == prompt[:at_least]:
                    best = key, _shared(key[1], prompt, at_least)
        if best is None:
            return None
        self._kept.move_to_end(best[0])
        return self._kept[best[0]], best[1]

    def keep(self, scope: str, prefix: Prefix) -> None:
        """Keep a prompt, and give up those used longest ago until all fit; one that alone does not fit is not kept."""
        size = prefix.bytes
        if size > self._bytes_max or (scope, prefix.prompt) in self._kept:
            return
        self._kept[scope, prefix.prompt] = prefix
        self.bytes += size
        self.changes += 1
        while self.bytes > self._bytes_max:
            self.bytes -= self._kept.popitem(last=False)[1].bytes


def prompt_of(token_ids: Sequence[int], pictures: Sequence[PictureInput], picture_token_id: int) -> Prompt | None:
    """Return what the prompt is known by; ``None`` when a picture has no name, or its rows are not as many as its tokens."""
    names = [picture.content for picture in pictures for _ in range(picture.rows)]
    if not all(names) or token_ids.count(picture_token_id) != len(names):
        return None
    left = iter(names)
    return tuple(next(left) if token == picture_token_id else token for token in token_ids)


def _shared(one: Prompt, other: Prompt, start: int) -> int:
    """Return how many tokens two prompts share that share ``start``."""
    end = min(len(one), len(other))
    return next((place for place in range(start, end) if one[place] != other[place]), end)
