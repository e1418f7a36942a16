"""The verdict on a topology: its parts add up, it names gain and cost, and it says when the rounds disagree."""

import pytest

from foveate.bench.load import Told
from foveate.bench.trade import ELSEWHERE, PERCENTILES, around, compare, signed, stage_rows


def told(other_ms: float = 10, **stages: float) -> Told:
    """An answer whose first token came after these stages and some time elsewhere."""
    return Told("multimodal", "", other_ms + sum(stages.values()), "", 200, stages)


def test_the_sentence() -> None:
    base = [told(encoder_queue=1, vision_encode=50, embedding_transfer=0, llm_queue=60, llm_prefill=20)] * 10
    split = [told(encoder_queue=6, vision_encode=50, embedding_transfer=2, llm_queue=15, llm_prefill=20)] * 10
    trade = compare("e-pd", "multimodal", "p99", [(base, split), (base, split)])
    assert trade.sentence() == (
        "e-pd at p99, multimodal: −38 ms (llm_queue −45, encoder_queue +5, embedding_transfer +2): gained 45, paid 7, "
        "encoder's queue and transfer +7; faster in every round (−38 to −38)"
    )


@pytest.mark.parametrize("name", PERCENTILES)
def test_the_parts_add_up_where_percentiles_would_not(name: str) -> None:
    """The requests that wait for the encoder and those with long prefills are different ones."""
    base = [told(encoder_queue=number, llm_prefill=100 - number) for number in range(100)]
    split = [told(5 + number % 7, encoder_queue=number * 2, llm_queue=number % 11) for number in range(97)]
    trade = compare("e-pd", "multimodal", name, [(base, split), (split, base), (base, split)])
    assert sum(trade.parts.values()) == pytest.approx(trade.total)
    assert trade.gained - trade.paid == pytest.approx(-trade.total)


def test_it_looks_at_the_requests_around_the_percentile() -> None:
    answers = [told(0, llm_queue=number) for number in range(200)]
    assert around(answers, 0.5)["llm_queue"] == pytest.approx(99.5)
    assert around(answers, 0.95)["llm_queue"] == pytest.approx(190, abs=1)
    assert 196 <= around(answers, 0.99)["llm_queue"] <= 199
    assert around(answers[:1], 0.99) == {**around(answers[:1], 0.5), ELSEWHERE: 0}


def test_rounds_that_disagree_are_no_verdict() -> None:
    slow, fast = [told(llm_prefill=30)], [told(llm_prefill=20)]
    assert compare("e-pd", "text", "p50", [(slow, fast), (fast, slow)]).outcome == (
        "no clear difference: faster in 1 of 2 rounds"
    )
    assert compare("e-pd", "text", "p50", [(fast, slow)] * 3).outcome == "slower in every round"
    assert compare("e-pd", "text", "p50", [(slow, slow)] * 2).outcome.startswith("no clear difference")
    assert "nothing of the spread" in compare("e-pd", "text", "p50", [(slow, fast)]).outcome


def test_a_part_that_hardly_differs_is_not_named() -> None:
    base, other = [told(llm_prefill=30.0)], [told(llm_prefill=30.3)]
    assert "(no stage differs by half a millisecond)" in compare("e-pd", "text", "p50", [(base, other)]).sentence()
    assert (signed(0.4), signed(-0.4), signed(-2.6)) == ("0", "0", "−3")


def test_stages_that_nobody_passed_have_no_row() -> None:
    rows = stage_rows("agg", "text", [told(llm_queue=1, llm_prefill=20), told(llm_queue=3, llm_prefill=40)])
    assert rows == ["| agg | text | llm_queue | 3.0 | 3.0 | 3.0 |", "| agg | text | llm_prefill | 40.0 | 40.0 | 40.0 |",
                    "| agg | text | ttft | 53.0 | 53.0 | 53.0 |"]  # fmt: skip
