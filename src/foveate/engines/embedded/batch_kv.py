"""The KV cache of all running rows: one preallocated buffer a layer, rows padded on the left and ending at the same
column.

Right-aligned rows let one forward pass append one column to every row, and keep sliding-window masks (which count
columns) right. A row joins with the K/V of its own prefill and leaves at any step; the last row takes its place.
Padding is never read: its weight in the attention is exactly 0, and no row that held a non-finite value leaves it
behind (0 x NaN would be NaN).

Does not cover: layers without keys and values of their own (linear attention).
"""

from __future__ import annotations

from typing import Any

import torch
from transformers.cache_utils import Cache, CacheLayerMixin

_LENGTH_MIN = 64


def capacity(rows: int, length: int, tokens_max: int) -> tuple[int, int]:
    """Return the buffer's (rows, columns) to hold ``rows`` x ``length`` within ``tokens_max``: powers of two while they
    fit.

    Raises ValueError when even the exact rectangle does not fit.
    """
    if rows * length > tokens_max:
        raise ValueError(f"{rows} rows of {length} tokens exceed the KV capacity of {tokens_max} tokens")
    rows_wide = 1 << (rows - 1).bit_length()
    length_wide = max(_LENGTH_MIN, 1 << (length - 1).bit_length())
    if rows_wide * length_wide > tokens_max:
        rows_wide = rows
    return rows_wide, min(length_wide, tokens_max // rows_wide) if rows_wide * length <= tokens_max else length


class _AlignedLayer(CacheLayerMixin):  # type: ignore[misc]
    """One layer's buffer ``[rows, heads, columns, head size]``, seen by the model as the columns in use."""

    is_sliding = False

    def __init__(self, owner: BatchKV) -> None:
        super().__init__()
        self.owner = owner

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        raise RuntimeError("rows join with their prefilled keys and values; a token-decode step never starts a layer")

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        owner = self.owner
        first, end, next_end = owner.end - owner.width, owner.end, owner.end + key_states.shape[-2]
        self.keys[: owner.rows, :, end:next_end] = key_states
        self.values[: owner.rows, :, end:next_end] = value_states
        return self.keys[: owner.rows, :, first:next_end], self.values[: owner.rows, :, first:next_end]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.owner.width + query_length, 0

    def get_seq_length(self) -> int:
        return self.owner.width

    def get_max_length(self) -> int:
        return -1


class BatchKV:
    """K/V of ``rows`` rows; row ``i`` holds ``lengths[i]`` tokens. Owned by one thread.

    Every token-decode step: :meth:`reserve`, run the model with :attr:`cache` and :meth:`mask`, :meth:`advance`.
    """

    def __init__(self, tokens_max: int) -> None:
        self.tokens_max = tokens_max
        self.lengths: list[int] = []
        self.end = 0
        self.cache: Any = None
        self._layers: list[_AlignedLayer] = []
        self._capacity = (0, 0)

    @property
    def rows(self) -> int:
        """Running rows."""
        return len(self.lengths)

    @property
    def width(self) -> int:
        """Columns in use: the longest row's tokens."""
        return max(self.lengths, default=0)

    @property
    def tokens_used(self) -> int:
        """Tokens held, padding not counted."""
        return sum(self.lengths)

    @property
    def tokens_allocated(self) -> int:
        """Tokens the buffers have room for; at most ``tokens_max``."""
        return self._capacity[0] * self._capacity[1]

    def join(self, prefilled: Any, copies: int = 1) -> None:
        """Append ``copies`` rows, each with the K/V of ``prefilled`` (a ``Cache`` of one sequence, full length in every
        layer)."""
        length = prefilled.get_seq_length()
        if self.cache is None:
            self._layers = [_AlignedLayer(self) for _ in prefilled.layers]
            self.cache = Cache(layers=self._layers)
        rows, width = self.rows + copies, max(self.width, length)
        if rows > self._capacity[0] or width > self._capacity[1]:
            self._move(capacity(rows, width, self.tokens_max), end=width, like=prefilled)
        elif length > self.end:
            self._move(self._capacity, end=length, like=prefilled)
        for layer, source in zip(self._layers, prefilled.layers, strict=True):
            layer.keys[self.rows : rows, :, self.end - length : self.end] = source.keys
            layer.values[self.rows : rows, :, self.end - length : self.end] = source.values
        self.lengths += [length] * copies

    def leave(self, row: int, *, scrub: bool = False) -> None:
        """Remove a row; the last row takes its number. ``scrub`` zeroes what it held (needed when that may be NaN or
        infinite)."""
        last = self.rows - 1
        first = self.end - self.lengths[last]
        for layer in self._layers:
            for buffer in (layer.keys, layer.values):
                if scrub:
                    buffer[row].zero_()
                if row != last:
                    buffer[row, :, first : self.end] = buffer[last, :, first : self.end]
        self.lengths[row] = self.lengths[last]
        self.lengths.pop()
        if not self.lengths:
            self.end = 0

    def clear(self) -> None:
        """Remove all rows and give their memory back."""
        self.lengths, self.end, self.cache, self._layers, self._capacity = [], 0, None, [], (0, 0)

    def reserve(self) -> None:
        """Make room for one more column: by moving the rows to the left where the longest left padding behind, else by
        growing."""
        width, columns = self.width, self._capacity[1]
        if self.end < columns:
            return
        grown = capacity(self.rows, width + 1, self.tokens_max)
        # Moving is worth it only if it is not needed again soon.
        keep = width < columns and (width <= columns * 3 // 4 or grown[1] <= columns)
        self._move(self._capacity if keep else grown, end=width, like=self.cache)

    def advance(self) -> None:
        """Count the column that the step wrote."""
        self.end += 1
        self.lengths = [length + 1 for length in self.lengths]

    def mask(self, device: torch.device | str) -> torch.Tensor | None:
        """Return the attention mask of the next step, int64 [rows, width + 1], or ``None`` when there is no padding."""
        width = self.width
        if min(self.lengths) == width:
            return None
        padding = torch.tensor([[width - length] for length in self.lengths], device=device)
        return (torch.arange(width + 1, device=device) >= padding).long()

    def _move(self, size: tuple[int, int], *, end: int, like: Any) -> None:
        """Put the columns in use so that they end at ``end``, in buffers of ``size`` (rows, columns)."""
        rows, width, old_end = self.rows, self.width, self.end
        for layer, source in zip(self._layers, like.layers, strict=True):
            for name in ("keys", "values"):
                old, template = getattr(layer, name), getattr(source, name)
                held = old[:rows, :, old_end - width : old_end] if rows else None
                if size != self._capacity:
                    buffer = template.new_zeros(size[0], template.shape[1], size[1], template.shape[3])
                else:
                    buffer, held = old, None if held is None else held.clone()
                if held is not None:
                    buffer[:rows, :, end - width : end] = held
                setattr(layer, name, buffer)
            layer.is_initialized = True
        self._capacity, self.end = size, end
