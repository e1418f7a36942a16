"""From logits to tokens: vectorised over the rows of a batch, random only through each row's own generator.

The order is vLLM's: minimum tokens, penalties, (greedy rows end here), temperature, min-p, top-k, top-p, draw.
Log-probabilities reported to clients are of the model's own distribution, before any of that (vLLM's ``raw_logprobs``,
its default).
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from foveate.core.request import Sampling

_TEMPERATURE_MIN = 1e-5
"""Below it a temperature means greedy, as in vLLM: dividing by it would overflow."""

_CANDIDATES = 1024
"""Top-p looks at this many most likely tokens first; sorting a whole vocabulary costs milliseconds and is rarely
needed."""

_SEED_SPAN = 2**63


@dataclass(slots=True)
class RowSampling:
    """One row's sampling state. ``counts`` (float32 [vocabulary]) counts its generated tokens, only where a penalty
    needs it."""

    sampling: Sampling
    generator: torch.Generator | None
    counts: torch.Tensor | None
    drawn: int = 0

    @property
    def greedy(self) -> bool:
        """Whether nothing about the row is random."""
        return self.generator is None

    def record(self, token_id: int) -> None:
        """Count a drawn token."""
        self.drawn += 1
        if self.counts is not None:
            self.counts[token_id] += 1


def row_sampling(sampling: Sampling, choice: int, vocabulary_size: int, device: torch.device | str) -> RowSampling:
    """Return the fresh state of a request's ``choice``-th row. With a seed, that row's seed is ``seed + choice``."""
    generator = None
    if sampling.temperature >= _TEMPERATURE_MIN:
        seed = secrets.randbelow(_SEED_SPAN) if sampling.seed is None else (sampling.seed + choice) % _SEED_SPAN
        generator = torch.Generator(device=device)
        generator.manual_seed(seed)
    penalised = sampling.presence_penalty != 0 or sampling.frequency_penalty != 0
    counts = torch.zeros(vocabulary_size, device=device) if penalised else None
    return RowSampling(sampling, generator, counts)


def draw_tokens(logits: torch.Tensor, rows: Sequence[RowSampling], end_tokens: Sequence[int]) -> list[int]:
    """Draw one token a row from ``logits`` (float32 [rows, vocabulary]; not changed). ``end_tokens`` are barred before
    ``tokens_min``."""
    adjusted = _bar_end_tokens(logits, rows, end_tokens)
    adjusted = _apply_penalties(adjusted, rows)
    tokens: list[int] = adjusted.argmax(dim=-1).tolist()
    random = [index for index, row in enumerate(rows) if not row.greedy]
    if random:
        chosen = _draw_random(adjusted[random], [rows[index] for index in random])
        for index, token in zip(random, chosen, strict=True):
            tokens[index] = token
    return tokens


def filter_logits(
    logits: torch.Tensor, top_k: Sequence[int], top_p: Sequence[float], min_p: Sequence[float]
) -> torch.Tensor:
    """Return ``logits`` [rows, vocabulary] with -inf at the tokens that min-p, top-k (0: off) and top-p exclude.

    min-p (arXiv 2407.01082) keeps tokens at least ``min_p`` times as likely as the likeliest. Top-p keeps the smallest
    set of likeliest tokens, of those that the others left, whose probability reaches ``top_p``; the likeliest token
    always stays.
    """
    if any(min_p):
        floor = torch.tensor([math.log(value) if value > 0 else -math.inf for value in min_p], device=logits.device)
        logits = logits.masked_fill(logits < logits.amax(-1, keepdim=True) + floor[:, None], -math.inf)
    filtered = [index for index in range(len(top_k)) if top_k[index] > 0 or top_p[index] < 1]
    if not filtered:
        return logits
    subset = _filter_sorted(
        logits[filtered], [top_k[index] for index in filtered], [top_p[index] for index in filtered]
    )
    if len(filtered) == len(top_k):
        return subset
    return logits.index_copy(0, torch.tensor(filtered, device=logits.device), subset)


def logprobs(
    logits: torch.Tensor, tokens: Sequence[int], alternatives: int
) -> tuple[list[float], list[list[int]], list[list[float]]]:
    """Return, for each row of ``logits`` [rows, vocabulary], the drawn token's log-probability and the ``alternatives``
    likeliest tokens' ids and log-probabilities, likeliest first."""
    values = torch.log_softmax(logits, dim=-1)
    drawn = values.gather(1, torch.tensor(tokens, device=logits.device)[:, None])[:, 0].tolist()
    top = values.topk(min(alternatives, values.shape[-1]), dim=-1)
    return drawn, top.indices.tolist(), top.values.tolist()


def _bar_end_tokens(logits: torch.Tensor, rows: Sequence[RowSampling], end_tokens: Sequence[int]) -> torch.Tensor:
    barred = [index for index, row in enumerate(rows) if row.drawn < row.sampling.tokens_min]
    if not barred or not end_tokens:
        return logits
    logits = logits.clone()
    at = torch.tensor(barred, device=logits.device)[:, None]
    logits[at, torch.tensor(list(end_tokens), device=logits.device)] = -math.inf
    return logits


def _apply_penalties(logits: torch.Tensor, rows: Sequence[RowSampling]) -> torch.Tensor:
    """OpenAI's formula: ``logit - count * frequency_penalty - (count > 0) * presence_penalty``, counts over generated
    tokens."""
    penalised = [(index, row, row.counts) for index, row in enumerate(rows) if row.counts is not None and row.drawn]
    if not penalised:
        return logits
    at = torch.tensor([index for index, _, _ in penalised], device=logits.device)
    counts = torch.stack([counts for _, _, counts in penalised])
    frequency = torch.tensor([[row.sampling.frequency_penalty] for _, row, _ in penalised], device=logits.device)
    presence = torch.tensor([[row.sampling.presence_penalty] for _, row, _ in penalised], device=logits.device)
    return logits.index_add(0, at, -(counts * frequency + (counts > 0) * presence))


def _draw_random(logits: torch.Tensor, rows: Sequence[RowSampling]) -> list[int]:
    settings = [row.sampling for row in rows]
    temperature = torch.tensor([each.temperature for each in settings], device=logits.device)
    logits = filter_logits(
        logits / temperature[:, None],
        [each.top_k for each in settings],
        [each.top_p for each in settings],
        [each.min_p for each in settings],
    )
    # The argmax of p / Exp(1) is distributed as p (the exponential race, equal to Gumbel-max): one noise vector a row
    # from the row's own generator, so that what a seed gives does not depend on the batch.
    noise = torch.empty_like(logits)
    for index, row in enumerate(rows):
        noise[index].exponential_(generator=row.generator)
    chosen: list[int] = (torch.softmax(logits, dim=-1) / noise).argmax(dim=-1).tolist()
    return chosen


def _filter_sorted(logits: torch.Tensor, top_k: Sequence[int], top_p: Sequence[float]) -> torch.Tensor:
    size = logits.shape[-1]
    limits = [min(k, size) if k > 0 else size for k in top_k]
    width = min(size, max(_CANDIDATES, *(limit for limit, k in zip(limits, top_k, strict=True) if k > 0), 1))
    thresholds = torch.tensor(top_p, device=logits.device)[:, None]
    keep_at_most = torch.tensor(limits, device=logits.device)[:, None]
    while True:
        values, indices = logits.topk(width, dim=-1)
        kept = values.masked_fill(torch.arange(width, device=logits.device) >= keep_at_most, -math.inf)
        # Rows without top-k are normalised over the whole vocabulary, of which ``values`` may be only the likeliest
        # part.
        whole = keep_at_most > width
        total = torch.where(whole, logits.logsumexp(-1, keepdim=True), kept.logsumexp(-1, keepdim=True))
        reached = (kept - total).exp().cumsum(-1)
        if width == size or not bool((whole & (reached[:, -1:] < thresholds)).any()):
            break
        width = size
    before = torch.cat([torch.zeros_like(reached[:, :1]), reached[:, :-1]], dim=-1)
    exclude = (before >= thresholds) & (thresholds < 1)
    exclude[:, 0] = False
    return torch.full_like(logits, -math.inf).scatter(1, indices, kept.masked_fill(exclude, -math.inf))
