"""From a step's logits to what clients are sent: tokens, text, log-probabilities, and what becomes of each row."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import torch

from foveate.core.clock import now
from foveate.core.errors import EngineFailed, FoveateError
from foveate.core.stages import Span
from foveate.encoders.worker import Post
from foveate.engines.embedded.detokenize import Vocabulary
from foveate.engines.embedded.requests import Row
from foveate.engines.embedded.sampling import draw_tokens, logprobs
from foveate.engines.port import FinishReason, TokenEvent, TokenLogprob, TokenStep

_LOG = logging.getLogger("foveate.engine")

Outcome = FinishReason | FoveateError | None
"""What becomes of a row after a step: it goes on, has ended, or has failed its request."""


class Output:
    """Draws tokens and sends them as soon as they are drawn."""

    def __init__(self, vocabulary: Vocabulary, end_tokens: frozenset[int], post: Post) -> None:
        self.vocabulary = vocabulary
        self._end_tokens = end_tokens
        self._end_token_list = sorted(end_tokens)
        self._post = post

    def emit(self, rows: Sequence[Row], logits: torch.Tensor, *, first: bool = False) -> list[Outcome]:
        """Draw a token a row from float32 ``logits`` [rows, vocabulary] and send it; ``first``: those of one prefill.

        A row whose logits are not finite fails its request, and so does one whose token cannot be turned into text.
        """
        finite: list[bool] = torch.isfinite(logits).all(dim=-1).tolist()
        outcomes: list[Outcome] = [None if sound else EngineFailed(detail="non-finite logits") for sound in finite]
        sound = [index for index, is_finite in enumerate(finite) if is_finite]
        if not sound:
            return outcomes
        if len(sound) < len(rows):
            logits = logits[sound]
        sound_rows = [rows[index] for index in sound]
        tokens = draw_tokens(logits, [row.choice.row for row in sound_rows], self._end_token_list)
        steps = self._logprob_steps(sound_rows, logits, tokens)
        for place, index in enumerate(sound):
            outcomes[index] = self._accept(rows[index], tokens[place], steps[place], first=first and place == 0)
        return outcomes

    def _accept(self, row: Row, token: int, steps: list[TokenStep], *, first: bool) -> Outcome:
        job, choice = row.job, row.choice
        try:
            text, reason = choice.accept(token, self._end_tokens)
        except Exception as error:
            _LOG.exception("request %s: token %d has no text", job.id, token)
            return EngineFailed(detail=f"token {token} has no text: {type(error).__name__}: {error}")
        if first:
            queued = Span("llm_queue", job.submitted_at, job.started_at)
            spans = (*job.before, queued, Span("llm_prefill", job.started_at, now()))
            event = TokenEvent(job.id, choice.index, text, [token], steps, spans, ahead=tuple(job.ahead))
        else:
            event = TokenEvent(job.id, choice.index, text, [token], steps)
        self._post.send(event)
        return reason

    def _logprob_steps(self, rows: Sequence[Row], logits: torch.Tensor, tokens: list[int]) -> list[list[TokenStep]]:
        steps: list[list[TokenStep]] = [[] for _ in rows]
        counts = [row.job.sampling.logprobs for row in rows]
        wanted = [index for index, count in enumerate(counts) if count is not None]
        if not wanted:
            return steps
        drawn = [tokens[index] for index in wanted]
        values, ids, tops = logprobs(logits[wanted], drawn, max(count for count in counts if count is not None))
        for place, index in enumerate(wanted):
            alternatives = list(zip(ids[place], tops[place], strict=True))[: counts[index]]
            chosen = self._describe(drawn[place], values[place])
            steps[index] = [TokenStep(chosen, [self._describe(token, value) for token, value in alternatives])]
        return steps

    def _describe(self, token: int, logprob: float) -> TokenLogprob:
        return TokenLogprob(token, self.vocabulary.token_text(token), self.vocabulary.token_bytes(token), logprob)
