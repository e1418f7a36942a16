"""A prompt with pictures as vLLM's processed input: placeholders where they are, embeddings as they are.

vLLM checks neither rows nor width nor grid of what it is given, and a wrong array ends its core; so everything is checked here, and a
prompt that does not fit together fails alone. The arrays are copied: a slot is given back when a request is cancelled, while vLLM may
still have the message to send, and what it then sent would be kept under the picture's name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import blake3
import numpy as np
import torch
from vllm.inputs.engine import mm_input, tokens_input
from vllm.multimodal.inputs import MultiModalFieldConfig, MultiModalKwargsItems, PlaceholderRange

from foveate.core.errors import EngineFailed
from foveate.engines.pictures import load_picture
from foveate.engines.port import EngineWork
from foveate.models.port import Picture
from foveate.runtime.port import ArenaAccess

GRID = "image_grid_thw"


class Prompts:
    """Makes vLLM's inputs of prompts for one model. Used by one thread."""

    def __init__(
        self, arena: ArenaAccess, *, picture_token: int, merge: int | None, bytes_per_row: int, rows_max: int
    ) -> None:
        """``merge`` is the side of the square of patches that one row stands for, where the model has a grid of patches (Qwen's
        families); ``rows_max`` is how many rows one picture may have in the engine."""
        self._arena = arena
        self._picture_token = picture_token
        self._merge = merge
        self._bytes_per_row = bytes_per_row
        self._rows_max = rows_max

    def input(self, work: EngineWork) -> Any:
        """Return vLLM's input. Raises EngineFailed for pictures that do not fit the prompt, the model or the engine."""
        salt = blake3.blake3(work.scope.encode()).hexdigest() if work.scope else None
        offsets = placeholders(work.token_ids, self._picture_token, [given.rows for given in work.pictures])
        if not work.pictures:
            return tokens_input(prompt_token_ids=work.token_ids, cache_salt=salt)
        pictures = [
            load_picture(self._arena, given, self._bytes_per_row, torch.device("cpu")) for given in work.pictures
        ]
        for given in work.pictures:
            if given.rows > self._rows_max:
                raise EngineFailed(
                    detail=f"a picture of {given.rows} rows; this engine takes {self._rows_max} (max_num_batched_tokens)"
                )
        values, fields = self._fields(pictures)
        # A name that is not known must not be met again.
        names = [given.content or f"{work.request_id}:{place}" for place, given in enumerate(work.pictures)]
        return mm_input(
            prompt_token_ids=work.token_ids,
            mm_kwargs=MultiModalKwargsItems.from_hf_inputs(values, fields),
            mm_hashes={"image": names},
            mm_placeholders={
                "image": [
                    PlaceholderRange(offset=offset, length=given.rows)
                    for offset, given in zip(offsets, work.pictures, strict=True)
                ]
            },
            cache_salt=salt,
        )

    def _fields(self, pictures: Sequence[Picture]) -> tuple[Any, Mapping[str, MultiModalFieldConfig]]:
        """Return the arrays by the names that the model takes, and how they are divided into pictures."""
        arrays = [_row(picture) for picture in pictures]
        if self._merge is None:
            # Their models take a list of [rows, hidden].
            return {"image_embeds": arrays}, {"image_embeds": MultiModalFieldConfig.batched("image")}
        grids = torch.tensor([self._grid(picture) for picture in pictures], dtype=torch.int64)
        rows = torch.tensor([len(array) for array in arrays])
        return {"image_embeds": torch.cat(arrays), GRID: grids}, {
            "image_embeds": MultiModalFieldConfig.flat_from_sizes("image", rows),
            GRID: MultiModalFieldConfig.batched("image", keep_on_cpu=True),
        }

    def _grid(self, picture: Picture) -> list[int]:
        grid, rows = picture.meta.get(GRID, []), picture.embeddings.rows.shape[0]
        assert self._merge is not None
        fits = (
            len(grid) == 3
            and grid[0] == 1
            and all(side > 0 and side % self._merge == 0 for side in grid[1:])
            and grid[1] * grid[2] == rows * self._merge**2
        )
        if not fits:
            raise EngineFailed(detail=f"a grid {grid} for {rows} rows of {self._merge}x{self._merge} patches")
        return grid


def _row(picture: Picture) -> torch.Tensor:
    """Return a copy of the embeddings, DeepStack levels side by side after the main one, as vLLM's models split them."""
    found = picture.embeddings
    return torch.cat([found.rows, *found.deep], dim=-1) if found.deep else found.rows.clone()


def placeholders(token_ids: Sequence[int], picture_token: int, rows: Sequence[int]) -> list[int]:
    """Return where each picture's run of tokens begins. Raises EngineFailed when they are not ``rows``, each in one run."""
    at = np.flatnonzero(np.asarray(token_ids) == picture_token)
    if len(at) != sum(rows) or any(count < 1 for count in rows):
        raise EngineFailed(detail=f"{len(at)} picture tokens in the prompt, {list(rows)} embedding rows")
    ends = np.cumsum(rows, dtype=np.int64)
    starts = ends - np.asarray(rows, dtype=np.int64)
    if len(rows) and bool((at[ends - 1] - at[starts] != ends - 1 - starts).any()):
        raise EngineFailed(detail="a picture's tokens are not in one run")
    return [int(at[start]) for start in starts]
