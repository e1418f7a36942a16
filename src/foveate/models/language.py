"""Prefill and token decode of a checkpoint's language model, over caches that the caller holds.

Pictures enter as embeddings through transformers' ``mm_encoder_outputs``, which does the placement, DeepStack and masks
of each family. Positions are always passed explicitly: with M-RoPE transformers otherwise keeps ``rope_deltas`` on the
model, shared by all sequences. Does not cover batching policy, sampling, or building batched caches. Not thread-safe;
one thread owns it.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import torch

from foveate.models.families import Family, picture_token_id, wrong_transformers
from foveate.models.port import Embeddings, Picture, Positions


class TransformersLanguageModel:
    """:class:`foveate.models.port.LanguageModel` over a transformers model, which the vision tower shares."""

    def __init__(self, family: Family, model: Any) -> None:
        self._family = family
        self._model = model
        self._device: torch.device = model.device
        self._dtype: torch.dtype = model.dtype
        self.picture_token_id = picture_token_id(model.config)
        self._mrope = hasattr(model.base_model, "get_rope_index")
        accepted = inspect.signature(model.forward).parameters
        # The argument was renamed after 5.19.
        cache_name = next((name for name in ("past_key_values", "cache") if name in accepted), None)
        if cache_name is None or "mm_encoder_outputs" not in accepted:
            raise wrong_transformers("forward's cache or mm_encoder_outputs")
        self._cache_name = cache_name
        types = ("mm_token_type_ids", "token_type_ids")
        self._types_name = next((name for name in types if name in accepted), None)
        text = model.config.get_text_config()
        self.vocabulary_size = int(text.vocab_size)
        self.context_tokens_max = int(text.max_position_embeddings)
        self.eos_token_ids = _eos(model)

    def positions(self, token_ids: Sequence[int], pictures: Sequence[Picture]) -> Positions:
        """Return the prompt's positions.

        With M-RoPE by the model's own ``get_rope_index``. Raises ValueError when the pictures' rows are not as many as
        their tokens.
        """
        rows = sum(picture.embeddings.rows.shape[0] for picture in pictures)
        tokens = token_ids.count(self.picture_token_id)
        if rows != tokens:
            raise ValueError(f"{tokens} picture tokens in the prompt, {rows} embedding rows")
        length = len(token_ids)
        if not self._mrope:
            return Positions(torch.arange(length, device=self._device)[None], length)
        if not pictures:
            return Positions(torch.arange(length, device=self._device)[None, None].expand(3, 1, -1), length)
        grids = [picture.meta["image_grid_thw"] for picture in pictures]
        ids = torch.tensor([token_ids])
        found, delta = self._model.base_model.get_rope_index(
            ids,
            mm_token_type_ids=(ids == self.picture_token_id).int(),
            image_grid_thw=torch.tensor(grids, dtype=torch.int64).reshape(-1, 3),
        )
        return Positions(found.to(self._device), length + int(delta))

    def chunk_borders(self, token_ids: Sequence[int]) -> Sequence[int] | None:
        """Return the allowed prefill chunk ends in rising order; ``None``:

        every place. Gemma 3's pictures must not be cut.
        """
        if not self._family.attends_within_pictures:
            return None
        ids = torch.tensor(token_ids) == self.picture_token_id
        inside = ids[:-1] & ids[1:]
        borders: list[int] = ((~inside).nonzero().flatten() + 1).tolist()
        return [*borders, len(token_ids)]

    def new_cache(self) -> Any:
        """Return an empty KV cache for one sequence: a ``DynamicCache``, full K/V also for sliding layers."""
        from transformers import DynamicCache

        # Without a configuration every layer keeps all keys and values; the sliding window stays in the mask.
        return DynamicCache()

    def fork(self, cache: Any, tokens: int) -> Any:
        """Return a KV cache of its own with the first ``tokens`` of one sequence's ``cache``."""
        forked = self.new_cache()
        for number, layer in enumerate(cache.layers):
            forked.update(layer.keys[..., :tokens, :], layer.values[..., :tokens, :], number)
        return forked

    @torch.inference_mode()
    def prefill(
        self,
        token_ids: Sequence[int],
        pictures: Sequence[Picture],
        positions: Positions,
        cache: Any,
        start: int,
        end: int,
    ) -> torch.Tensor:
        """Run rows ``start``..``end`` of the prompt into ``cache``; return the last logits, float32 [vocabulary]."""
        ids = torch.tensor([token_ids[start:end]], device=self._device)
        of_picture = ids[0] == self.picture_token_id
        extra: dict[str, Any] = {}
        if self._types_name is not None:
            # Gemma 3 finds its pictures by places in the whole sequence, so it needs the types of cached rows too.
            since = 0 if self._family.attends_within_pictures else start
            typed = torch.tensor([token_ids[since:end]], device=self._device) == self.picture_token_id
            extra[self._types_name] = typed.int()
        count = int(of_picture.sum())
        if count:
            before = token_ids[:start].count(self.picture_token_id)
            extra["mm_encoder_outputs"] = {"image": self._features(pictures, before, before + count)}
        result = self._model(
            input_ids=ids,
            position_ids=positions.ids[..., start:end],
            **{self._cache_name: cache},
            use_cache=True,
            logits_to_keep=1,
            **extra,
        )
        logits: torch.Tensor = result.logits[0, -1]
        return logits.float()

    def _features(self, pictures: Sequence[Picture], first: int, last: int) -> Any:
        """Return rows ``first``..``last`` of all pictures' embeddings in the shape that the family's forward takes."""
        from transformers.modeling_outputs import BaseModelOutputWithPooling

        cuts: list[tuple[Embeddings, int, int]] = []
        offset = 0
        for embeddings in (picture.embeddings for picture in pictures):
            count = embeddings.rows.shape[0]
            low, high = max(first - offset, 0), min(last - offset, count)
            if low < high:
                cuts.append((embeddings, low, high))
            offset += count
        rows = self._joined([each.rows[low:high] for each, low, high in cuts])
        features = BaseModelOutputWithPooling(pooler_output=rows[None] if self._family.stacked else [rows])
        levels = range(len(cuts[0][0].deep))
        if levels:
            features.deepstack_features = [
                [self._joined([each.deep[level][low:high] for each, low, high in cuts])] for level in levels
            ]
        return features

    def _joined(self, parts: list[torch.Tensor]) -> torch.Tensor:
        return torch.cat(parts).to(self._device, self._dtype)

    @torch.inference_mode()
    def decode(
        self, token_ids: torch.Tensor, positions: torch.Tensor, cache: Any, mask: torch.Tensor | None
    ) -> torch.Tensor:
        """One token decode step of a batch; see the port. Returns float32 logits [B, vocabulary]."""
        where = positions.to(self._device).view(-1, 1)
        result = self._model(
            input_ids=token_ids.to(self._device).view(-1, 1),
            position_ids=where[None].expand(3, -1, -1) if self._mrope else where,
            attention_mask=None if mask is None else mask.to(self._device),
            **{self._cache_name: cache},
            use_cache=True,
            logits_to_keep=1,
        )
        logits: torch.Tensor = result.logits[:, -1]
        return logits.float()


def _eos(model: Any) -> frozenset[int]:
    """End-of-sequence ids: the generation configuration's, else the text configuration's."""
    for found in (model.generation_config.eos_token_id, model.config.get_text_config().eos_token_id):
        if found is not None:
            return frozenset(found if isinstance(found, list | tuple) else (found,))
    return frozenset()
