"""Sampling against plain re-computations of each rule."""

from __future__ import annotations

import math

import pytest
import torch

from foveate.core.request import Sampling
from foveate.engines.embedded.sampling import RowSampling, draw_tokens, filter_logits, logprobs, row_sampling

VOCABULARY = 3000


def rows_of(*settings: Sampling) -> list[RowSampling]:
    return [row_sampling(each, 0, VOCABULARY, "cpu") for each in settings]


def random_logits(rows: int, scale: float = 3.0) -> torch.Tensor:
    return torch.randn(rows, VOCABULARY, generator=torch.Generator().manual_seed(1)) * scale


def nucleus(logits: torch.Tensor, top_k: int, top_p: float, min_p: float) -> set[int]:
    """Return the tokens that stay, one row, the obvious way."""
    probability = torch.softmax(logits.double(), -1)
    order = sorted(range(len(logits)), key=lambda token: -float(logits[token]))
    order = [token for token in order if probability[token] >= min_p * probability.max()]
    if top_k:
        order = order[:top_k]
    total = float(sum(probability[token] for token in order))
    kept: set[int] = set()
    reached = 0.0
    for token in order:
        if kept and reached >= top_p:
            break
        kept.add(token)
        reached += float(probability[token]) / total
    return kept


CASES = [
    (0, 1.0, 0.0),
    (5, 1.0, 0.0),
    (0, 0.9, 0.0),
    (40, 0.5, 0.0),
    (0, 1.0, 0.1),
    (7, 0.8, 0.05),
    (0, 0.0, 0.0),
    (5000, 1.0, 0.0),
]


@pytest.mark.parametrize("scale", [3.0, 0.01], ids=["peaked", "flat"])
def test_filters_keep_the_right_tokens_in_one_batch(scale: float) -> None:
    """The flat distribution needs more than the first candidates for top-p."""
    logits = random_logits(len(CASES), scale)
    top_k, top_p, min_p = zip(*CASES, strict=True)
    filtered = filter_logits(logits, top_k, top_p, min_p)
    for row, case in enumerate(CASES):
        kept = set(torch.isfinite(filtered[row]).nonzero().flatten().tolist())
        expected = nucleus(logits[row], *case)
        assert len(kept ^ expected) <= (1 if case[1] < 1 else 0), "a rounding at the nucleus' edge at most"
        assert torch.equal(filtered[row][sorted(kept)], logits[row][sorted(kept)])


def test_draws_follow_the_distribution() -> None:
    logits = torch.log(torch.tensor([[0.5, 0.3, 0.2]]))
    row = row_sampling(Sampling(1, temperature=1.0, seed=3), 0, 3, "cpu")
    counts = torch.zeros(3)
    for _ in range(4000):
        counts[draw_tokens(logits, [row], [])[0]] += 1
    assert (counts / 4000 - torch.tensor([0.5, 0.3, 0.2])).abs().max() < 0.03


def test_temperature_sharpens() -> None:
    logits = torch.log(torch.tensor([[0.6, 0.4]]))
    row = row_sampling(Sampling(1, temperature=0.1, seed=3), 0, 2, "cpu")
    drawn = [draw_tokens(logits, [row], [])[0] for _ in range(300)]
    assert drawn.count(1) / 300 < 0.08  # (0.4 / 0.6) ** 10 = 0.017


def test_a_seed_gives_the_same_in_any_batch() -> None:
    logits = random_logits(4)
    seeded = Sampling(1, temperature=1.0, seed=11)
    other = Sampling(1, temperature=1.0, top_p=0.3, seed=5)
    alone = draw_tokens(logits[2:3], rows_of(seeded), [])
    company = draw_tokens(logits, rows_of(other, Sampling(1, temperature=0), seeded, other), [])
    assert company[2] == alone[0]
    assert company[1] == int(logits[1].argmax())


def test_top_k_of_one_is_greedy() -> None:
    logits = random_logits(1)
    assert draw_tokens(logits, rows_of(Sampling(1, temperature=5.0, top_k=1)), []) == [int(logits.argmax())]


def test_penalties_are_openais() -> None:
    logits = torch.tensor([[3.0, 2.0, 1.0]])
    row = row_sampling(Sampling(9, temperature=0, presence_penalty=0.5, frequency_penalty=0.3), 0, 3, "cpu")
    drawn = []
    for _ in range(5):
        drawn += draw_tokens(logits, [row], [])
        row.record(drawn[-1])
    # After k draws token 0 scores 3 - 0.5 - 0.3 k: above 2 for k = 1, below it for k = 2. Token 1 once: 1.2.
    assert drawn == [0, 0, 1, 0, 0]
    assert torch.equal(logits, torch.tensor([[3.0, 2.0, 1.0]])), "the caller's logits stay as they are"


def test_end_tokens_are_barred_before_the_minimum() -> None:
    logits = torch.tensor([[5.0, 4.0, 1.0], [5.0, 4.0, 1.0]])
    rows = rows_of(Sampling(9, temperature=0, tokens_min=1), Sampling(9, temperature=0))
    assert draw_tokens(logits, rows, [0, 1]) == [2, 0]
    rows[0].record(2)
    assert draw_tokens(logits, rows, [0, 1]) == [0, 0]


def test_unseeded_rows_differ_and_choices_have_their_own_seed() -> None:
    logits = torch.zeros(1, VOCABULARY)
    unseeded = {draw_tokens(logits, rows_of(Sampling(1)), [])[0] for _ in range(5)}
    assert len(unseeded) > 1
    seeded = Sampling(1, seed=2**63 - 1)
    wrapped = row_sampling(seeded, 1, VOCABULARY, "cpu")
    assert draw_tokens(logits, [wrapped], []) == draw_tokens(logits, rows_of(Sampling(1, seed=0)), [])


def test_logprobs() -> None:
    logits = random_logits(2)
    drawn, ids, values = logprobs(logits, [7, 8], 4)
    whole = torch.log_softmax(logits, -1)
    assert drawn == pytest.approx([float(whole[0, 7]), float(whole[1, 8])])
    assert ids[1] == whole[1].topk(4).indices.tolist()
    assert values[0] == pytest.approx(whole[0].topk(4).values.tolist())
    assert logprobs(logits, [7, 8], 0)[1:] == ([[], []], [[], []])
    assert math.isclose(sum(math.exp(value) for value in logprobs(logits, [0, 0], VOCABULARY)[2][0]), 1, abs_tol=1e-4)
