"""The rows that are decoded together: each with its choice and its row of K/V, joined and left at any step.

Does not cover: who is told of what they draw (:mod:`foveate.engines.embedded.output`), and of their ends (the loop).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from foveate.core.clock import now
from foveate.core.errors import FoveateError
from foveate.engines.embedded.batch_kv import BatchKV
from foveate.engines.embedded.output import Outcome, Output
from foveate.engines.embedded.requests import Row
from foveate.models.port import LanguageModel


class RunningRows:
    """Owned by the language-model thread; counts may be read by others."""

    def __init__(self, model: LanguageModel, output: Output, *, kv_tokens_max: int, device: torch.device) -> None:
        self._model = model
        self._output = output
        self._device = device
        self._rows: list[Row] = []
        self._kv = BatchKV(kv_tokens_max)

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def kv_tokens_used(self) -> int:
        """KV tokens that they hold, padding not counted."""
        return self._kv.tokens_used

    @property
    def tokens_max(self) -> int:
        """KV tokens that the longest of them may reach."""
        return max((row.job.view.tokens_total for row in self._rows), default=0)

    @property
    def with_pictures(self) -> int:
        """How many belong to prompts with pictures."""
        return sum(row.job.view.pictures for row in self._rows)

    @property
    def all(self) -> Sequence[Row]:
        """Those of this moment."""
        return tuple(self._rows)

    def join(self, prefilled: Any, rows: Sequence[Row]) -> None:
        """Let rows begin behind one prompt's K/V. After an error what the buffers hold is lost to all: :meth:`clear` them."""
        if rows:
            self._kv.join(prefilled, len(rows))
            self._rows += rows

    def step(self) -> tuple[Sequence[Row], Sequence[Outcome]]:
        """Draw one token for each row, and send it. Returns the rows and what became of each; those that ended have left, and their K/V are
        free. After an error what the buffers hold is lost to all: :meth:`clear` them.
        """
        rows = list(self._rows)
        started = now()
        self._kv.reserve()
        logits = self._model.decode(
            torch.tensor([row.choice.last_token for row in rows], device=self._device),
            torch.tensor([row.choice.next_position for row in rows], device=self._device),
            self._kv.cache,
            self._kv.mask(self._device),
        )
        self._kv.advance()
        for row in rows:
            row.choice.next_position += 1
        outcomes = self._output.emit(rows, logits)
        share_ms = (now() - started) * 1e3 / len(rows)
        for row in rows:
            row.job.token_ms += share_ms
        # From the last row down: a row that leaves is replaced by the last one, which is dealt with already.
        for index in range(len(rows) - 1, -1, -1):
            if outcomes[index] is not None:
                self._leave(index, scrub=isinstance(outcomes[index], FoveateError))
        return rows, outcomes

    def drop(self, request_id: str) -> None:
        """Take a request's rows out."""
        for index in range(len(self._rows) - 1, -1, -1):
            if self._rows[index].job.id == request_id:
                self._leave(index)

    def clear(self) -> Sequence[Row]:
        """Take all rows out and return them; the buffers start anew."""
        rows, self._rows = self._rows, []
        self._kv.clear()
        return rows

    def _leave(self, index: int, *, scrub: bool = False) -> None:
        self._kv.leave(index, scrub=scrub)
        self._rows[index] = self._rows[-1]
        self._rows.pop()
