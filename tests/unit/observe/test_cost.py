"""Prices, totals, and why two calls differ."""

from __future__ import annotations

from typing import Any

import pytest

from foveate.observe.cost import DIMENSIONS, OTHERS, CostBook, CostTable, Prices, priced, table_of
from foveate.observe.cost_tree import reasons, tree
from foveate.observe.ledger import RequestLedger
from foveate.observe.request_line import ItemLine, RequestLine
from foveate.observe.spending import QUANTITIES, Spent

PRICES = Prices(cpu_hour=0.04, encoder_gpu_hour=2.0, llm_gpu_hour=3.0, egress_gb=0.09)
HOUR = 3_600_000.0


def logged(request_id: str, **fields: Any) -> RequestLine:
    return RequestLine(
        time="2026-11-30T11:00:00.000Z", id=request_id, outcome="answered", **{"modality": "multimodal", **fields}
    )


def test_prices_are_of_hours_and_billions_of_bytes() -> None:
    spent = Spent(2_000_000_000, HOUR, HOUR, HOUR / 2, HOUR / 3, 123.0)
    found = priced(spent, PRICES)
    assert (found.cpu, found.encoder, found.llm, found.egress) == pytest.approx((0.08, 1.0, 1.0, 0.18))
    assert found.total == pytest.approx(2.26)
    assert priced(spent, Prices()).total == 0


def test_every_quantity_is_added() -> None:
    one = Spent(**{name: number for number, name in enumerate(QUANTITIES, 1)})
    one.add(one)
    assert [getattr(one, name) for name in QUANTITIES] == [2 * number for number in range(1, len(QUANTITIES) + 1)]


def test_totals_by_any_dimensions() -> None:
    table = CostTable(PRICES)
    for tenant, modality, ms in (("acme", "text", 10.0), ("acme", "multimodal", 30.0), ("web", "text", 5.0)):
        table.add((tenant, "m", modality, "default"), Spent(engine_token_ms=ms))
    by_tenant = table.report(["tenant"])
    assert [(row.tenant, row.modality, row.requests, row.engine_token_ms) for row in by_tenant.rows] == [
        ("acme", None, 2, 40.0),
        ("web", None, 1, 5.0),
    ]
    (whole,) = table.report([]).rows
    assert (whole.requests, whole.engine_token_ms) == (3, 45.0)
    assert len(table.report(DIMENSIONS).rows) == 3
    assert sum(row.cost.total for row in by_tenant.rows) == pytest.approx(whole.cost.total)


def test_combinations_are_bounded() -> None:
    table = CostTable(PRICES, rows_max=10)
    for number in range(50):
        table.add((f"t{number}", "m", "text", "default"), Spent(engine_token_ms=1.0))
    report = table.report(["tenant"])
    assert len(report.rows) == 11
    assert next(row for row in report.rows if row.tenant == OTHERS).requests == 40
    assert sum(row.engine_token_ms for row in report.rows) == 50


def test_the_latest_requests_are_kept_for_comparison_and_no_more() -> None:
    book = CostBook(PRICES, recent_max=2)
    for number in range(3):
        ledger = RequestLedger(request_id=f"r{number}", model="m", received_at=0.0, images=0)
        ledger.spent.engine_token_ms = 7.0
        book.note(ledger.end("answered", error_code=None, at=1.0), wall=0.0)
    assert book.recent("r0") is None
    found = book.recent("r2")
    assert found is not None
    assert found.engine_token_ms == 7.0
    assert book.report([]).rows[0].requests == 3


def test_totals_of_a_log_leave_out_what_was_never_understood() -> None:
    lines = [logged("a", encoder_ms=4.0), logged("b", modality="unknown"), logged("c", encoder_ms=6.0, tenant="acme")]
    report = table_of(lines, PRICES).report(["tenant"])
    assert [(row.tenant, row.requests, row.encoder_ms) for row in report.rows] == [("acme", 1, 6.0), ("", 1, 4.0)]


FIRST = logged(
    "first", ttft_ms=100.0, media_fetch_ms=10.0, vision_encode_ms=60.0, llm_prefill_ms=25.0, unattributed_ms=5.0, total_ms=150.0,
    encoder_ms=60.0, media_cpu_ms=4.0, engine_token_ms=50.0, items=[ItemLine(0, encoder_ms=60.0, media_cpu_ms=4.0)],
)  # fmt: skip
SECOND = logged(
    "second", ttft_ms=40.0, media_fetch_ms=10.0, llm_prefill_ms=25.0, unattributed_ms=5.0, total_ms=90.0,
    engine_token_ms=50.0, cache_saved_ms=64.0, items=[ItemLine(0, found="encoder_cache", cache_saved_ms=64.0)],
)  # fmt: skip


def test_the_tree_sets_contributions_side_by_side() -> None:
    nodes = {(node.depth, node.name): node for node in tree([FIRST, SECOND], PRICES)}
    assert nodes[0, "time to first token"].values == (100.0, 40.0)
    assert nodes[1, "vision_encode"].values == (60.0, None)
    assert (1, "mm_processor") not in nodes, "what happened in neither is left out"
    assert nodes[1, "item 0"].values == ("made", "found: encoder cache")
    assert nodes[2, "spared"].values == (None, 64.0)
    total = nodes[0, "cost"].values
    assert total[0] == pytest.approx(sum(nodes[1, name].values[0] for name in ("cpu", "encoder", "llm")))  # type: ignore[misc]
    assert nodes[1, "llm"].values[0] == nodes[1, "llm"].values[1]


def test_the_reasons_name_the_largest_contributions() -> None:
    said = " ".join(reasons(FIRST, SECOND))
    assert "60.0 ms earlier: vision_encode -60.0." in said
    assert "64.0 ms less" in said
    assert "its share of batches -60.0" in said
    assert "no contribution differs" in " ".join(reasons(FIRST, FIRST))


def test_requests_with_other_numbers_of_items_compare() -> None:
    text = logged("text", modality="text", ttft_ms=9.0)
    nodes = tree([text, FIRST, SECOND], PRICES)
    assert next(node.values for node in nodes if node.name == "item 0") == (None, "made", "found: encoder cache")
