"""A prompt with pictures as vLLM's processed input: placeholders where they are, embeddings as they are.

vLLM checks neither rows nor width nor grid of what it is given, and a wrong array ends its core; so everything is checked here, and a
prompt that does not fit together fails alone. The arrays are copied, into the request or into a file that goes by the picture's name: a
slot is given back when a request is cancelled, while vLLM may still have to read it, and what it then read would be kept under that name.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import blake3
import msgspec
import numpy as np
import torch
from vllm.inputs.engine import mm_input, tokens_input
from vllm.multimodal.inputs import (
    MultiModalFieldConfig,
    MultiModalKwargsItem,
    MultiModalKwargsItems,
    PlaceholderRange,
)

from foveate.core.errors import EngineFailed
from foveate.engines.embedding_file import NO_GRID, Grid
from foveate.engines.pictures import load_picture
from foveate.engines.port import EngineWork, PictureInput
from foveate.engines.vllm.handover import Handover
from foveate.models.port import Picture
from foveate.runtime.port import ArenaAccess

GRID = "image_grid_thw"


class _Given(msgspec.Struct):
    """One picture as vLLM gets it: ``array`` of [rows, width], or the ``descriptor`` of a file that has it."""

    name: str
    rows: int
    grid: Grid
    array: torch.Tensor | None = None
    descriptor: int = -1


class Prompts:
    """Makes vLLM's inputs of prompts for one model. Used by one thread."""

    def __init__(
        self,
        arena: ArenaAccess,
        *,
        picture_token: int,
        merge: int | None,
        bytes_per_row: int,
        rows_max: int,
        handover: Handover | None = None,
    ) -> None:
        """``merge`` is the side of the square of patches that one row stands for, where the model has a grid of patches (Qwen's
        families); ``rows_max`` is how many rows one picture may have in the engine. ``handover``: embeddings go by name as long as there
        is room; without it, and beyond, they go with the request."""
        self._arena = arena
        self._picture_token = picture_token
        self._merge = merge
        self._bytes_per_row = bytes_per_row
        self._rows_max = rows_max
        self._handover = handover

    @contextmanager
    def taken(self, work: EngineWork) -> Iterator[tuple[Any, dict[str, int]]]:
        """Yield vLLM's input, and the descriptors of the embeddings that are not in it, by name; they stay open until the block is left.

        Raises EngineFailed for pictures that do not fit the prompt, the model or the engine.
        """
        salt = blake3.blake3(work.scope.encode()).hexdigest() if work.scope else None
        offsets = placeholders(work.token_ids, self._picture_token, [given.rows for given in work.pictures])
        if not work.pictures:
            yield tokens_input(prompt_token_ids=work.token_ids, cache_salt=salt), {}
            return
        with ExitStack() as scope:
            pictures = [
                # A name that is not known must not be met again.
                self._given(given, given.content or f"{work.request_id}:{place}", scope)
                for place, given in enumerate(work.pictures)
            ]
            prompt = mm_input(
                prompt_token_ids=work.token_ids,
                mm_kwargs=MultiModalKwargsItems({"image": self._items(pictures)}),
                mm_hashes={"image": [picture.name for picture in pictures]},
                mm_placeholders={
                    "image": [
                        PlaceholderRange(offset=offset, length=picture.rows)
                        for offset, picture in zip(offsets, pictures, strict=True)
                    ]
                },
                cache_salt=salt,
            )
            yield prompt, {picture.name: picture.descriptor for picture in pictures if picture.array is None}

    def _given(self, given: PictureInput, name: str, scope: ExitStack) -> _Given:
        """Check a picture and take its embeddings out of the arena, unless a file of them is there already."""
        if given.rows > self._rows_max:
            raise EngineFailed(
                detail=f"a picture of {given.rows} rows; this engine takes {self._rows_max} (max_num_batched_tokens)"
            )
        grid = self._grid(given)
        if self._handover is None:
            return _Given(name, given.rows, grid, _row(self._checked(given)))
        descriptor = self._handover.held(name, given.rows, grid)
        if descriptor is None:
            picture = self._checked(given)
            descriptor = self._handover.hand(name, [picture.embeddings.rows, *picture.embeddings.deep], grid)
            if descriptor is None:
                return _Given(name, given.rows, grid, _row(picture))
        scope.callback(self._handover.leave, name, kept=bool(given.content))
        return _Given(name, given.rows, grid, None, descriptor)

    def _checked(self, given: PictureInput) -> Picture:
        return load_picture(self._arena, given, self._bytes_per_row, torch.device("cpu"))

    def _items(self, pictures: Sequence[_Given]) -> list[MultiModalKwargsItem]:
        """Return what goes with each picture: its array, where that is not handed over, and the grid, where the model has one."""
        inline = [picture for picture in pictures if picture.array is not None]
        named = [picture for picture in pictures if picture.array is None]
        made = {id(one): item for group in (inline, named) for one, item in self._made(group)}
        return [made[id(picture)] for picture in pictures]

    def _made(self, pictures: Sequence[_Given]) -> Iterator[tuple[_Given, MultiModalKwargsItem]]:
        """Yield what goes with each of some pictures, all with arrays or all without."""
        values, fields = self._fields(pictures)
        if values:
            items = MultiModalKwargsItems.from_hf_inputs(values, fields)["image"]
        else:
            items = [MultiModalKwargsItem({}) for _ in pictures]
        yield from zip(pictures, items, strict=True)

    def _fields(self, pictures: Sequence[_Given]) -> tuple[Any, Mapping[str, MultiModalFieldConfig]]:
        """Return the arrays by the names that the model takes, and how they are divided into pictures."""
        arrays = [picture.array for picture in pictures if picture.array is not None]
        if not pictures:
            return {}, {}
        if self._merge is None:
            # Their models take a list of [rows, hidden].
            return ({"image_embeds": arrays} if arrays else {}), {
                "image_embeds": MultiModalFieldConfig.batched("image")
            }
        values = {GRID: torch.tensor([picture.grid for picture in pictures], dtype=torch.int64)}
        fields = {GRID: MultiModalFieldConfig.batched("image", keep_on_cpu=True)}
        if arrays:
            values["image_embeds"] = torch.cat(arrays)
            rows = torch.tensor([len(array) for array in arrays])
            fields["image_embeds"] = MultiModalFieldConfig.flat_from_sizes("image", rows)
        return values, fields

    def _grid(self, given: PictureInput) -> Grid:
        if self._merge is None:
            return NO_GRID
        grid, rows = given.meta.get(GRID, []), given.rows
        fits = (
            len(grid) == 3
            and grid[0] == 1
            and all(side > 0 and side % self._merge == 0 for side in grid[1:])
            and grid[1] * grid[2] == rows * self._merge**2
        )
        if not fits:
            raise EngineFailed(detail=f"a grid {grid} for {rows} rows of {self._merge}x{self._merge} patches")
        return grid[0], grid[1], grid[2]


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
