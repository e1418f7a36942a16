"""Prefill of one prompt, chunk by chunk, into a KV cache of its own, from where earlier prompts that begin alike leave off.

Does not cover: which chunks run when (:func:`foveate.decisions.batching.plan_step`).
"""

from __future__ import annotations

from bisect import bisect_right

import torch

from foveate.core.clock import now
from foveate.engines.embedded.handover import read_prompt
from foveate.engines.embedded.messages import Prefilled
from foveate.engines.embedded.prefixes import WORTH_TOKENS, Prefix, Prefixes, prompt_of
from foveate.engines.embedded.requests import Job, progressed
from foveate.engines.pictures import expected_picture, load_picture
from foveate.engines.port import PictureInput
from foveate.models.port import LanguageModel, Picture
from foveate.runtime.port import ArenaAccess


class Prefill:
    """``prefix_bytes_max`` bounds what is kept of finished prompts; 0: nothing."""

    def __init__(
        self,
        model: LanguageModel,
        arena: ArenaAccess,
        *,
        embedding_bytes_per_row: int,
        device: torch.device,
        prefix_bytes_max: int,
    ) -> None:
        self._model = model
        self._arena = arena
        self._bytes_per_row = embedding_bytes_per_row
        self._device = device
        self._prefixes = Prefixes(prefix_bytes_max) if prefix_bytes_max else None

    def recall(self, job: Job) -> torch.Tensor | None:
        """Let a job that has not begun start behind what is kept of its prompt; return the last logits when that is all of it.

        A prompt that another process prefilled is there as a whole. Raises EngineFailed when it cannot be read.
        """
        if job.given is not None:
            return self._take_over(job, job.given)
        prefixes = self._prefixes
        if prefixes is None or job.cache is not None or job.searched == prefixes.changes:
            return None
        job.searched = prefixes.changes
        prompt = job.prompt = job.prompt or prompt_of(
            job.work.token_ids, job.work.pictures, self._model.picture_token_id
        )
        found = None if prompt is None else prefixes.find(job.work.scope, prompt)
        if found is None:
            return None
        prefix, shared = found
        whole = shared == job.view.prompt_tokens == len(prefix.prompt)
        if whole and job.view.held:
            # Nothing is answered before all pictures are there: whoever makes them is still at it. Then it is found again.
            job.searched = -1
        elif whole:
            job.started_at = now()
            job.positions, job.cache, job.cached_tokens = prefix.positions, prefix.cache, shared
            job.next_position = prefix.positions.next
            return prefix.logits
        # The last token always runs: without it there are no logits.
        shared = self._border(job, min(shared, job.view.prompt_tokens - 1))
        if shared >= max(WORTH_TOKENS, job.view.done + 1):
            job.prefix, job.cached_tokens = prefix, shared
            job.view = progressed(job.view, shared)
        return None

    def run(self, job: Job, end: int) -> torch.Tensor | None:
        """Run the prompt up to ``end``, before which all pictures are there; return the last logits when that is the prompt's end.

        Raises EngineFailed for embeddings that cannot be used, and whatever the model raises.
        """
        if job.cache is None:
            self._begin(job)
        for index in job.arrived:
            job.pictures[index] = self._load(job.work.pictures[index])
        job.arrived.clear()
        assert job.positions is not None
        logits = self._model.prefill(job.work.token_ids, job.pictures, job.positions, job.cache, job.view.done, end)
        job.view = progressed(job.view, end)
        if end < job.view.prompt_tokens:
            return None
        if self._prefixes is not None and job.prompt is not None and bool(torch.isfinite(logits).all()):
            self._prefixes.keep(job.work.scope, Prefix(job.prompt, job.cache, logits, job.positions))
        return logits

    def _take_over(self, job: Job, given: Prefilled) -> torch.Tensor:
        job.started_at = now()
        job.cache, logits = read_prompt(self._arena, given.kv, job.view.prompt_tokens, self._device)
        job.next_position = given.next_position
        return logits

    def _begin(self, job: Job) -> None:
        job.started_at = now()
        job.pictures = [self._load(given) if given.there else expected_picture(given) for given in job.work.pictures]
        job.arrived.clear()
        job.positions = self._model.positions(job.work.token_ids, job.pictures)
        job.next_position = job.positions.next
        prefix, job.prefix = job.prefix, None
        job.cache = self._model.new_cache() if prefix is None else self._model.fork(prefix.cache, job.view.done)

    def _load(self, given: PictureInput) -> Picture:
        return load_picture(self._arena, given, self._bytes_per_row, self._device)

    def _border(self, job: Job, shared: int) -> int:
        """Return the last place up to ``shared`` where the prompt may be cut."""
        borders = job.view.borders
        if borders is None:
            return shared
        place = bisect_right(borders, shared)
        return borders[place - 1] if place else 0
