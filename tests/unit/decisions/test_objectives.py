"""What counts for an objective, and when it is an alert."""

from __future__ import annotations

import pytest

from foveate.decisions.objectives import WINDOWS, Seen, Targets, Window, alert, burn_rate, judge

BOTH = Targets(200.0, 30.0)


@pytest.mark.parametrize(
    ("targets", "seen", "met"),
    [
        (BOTH, Seen(True, 200.0, 30.0, 900.0), {"ttft": True, "tpot": True, "all": True}),
        (BOTH, Seen(True, 200.1, 30.0, 900.0), {"ttft": False, "tpot": True, "all": False}),
        (BOTH, Seen(True, 10.0, 31.0, 900.0), {"ttft": True, "tpot": False, "all": False}),
        (BOTH, Seen(True, 10.0, None, 900.0), {"ttft": True, "all": True}),
        (BOTH, Seen(True, None, None, 5.0), {"ttft": False, "tpot": False, "all": False}),
        (BOTH, Seen(False, None, None, 5.0), None),
        (BOTH, Seen(False, None, None, 500.0), {"ttft": False, "tpot": False, "all": False}),
        (Targets(200.0), Seen(True, 100.0, 9999.0, 9999.0), {"ttft": True, "all": True}),
        (Targets(None, 30.0), Seen(True, 9999.0, None, 9999.0), None),
        (Targets(None, 30.0), Seen(False, None, None, 9999.0), None),
        (Targets(), Seen(True, 1.0, 1.0, 1.0), None),
    ],
    ids=[
        *("kept", "late", "slow", "one token", "failed", "refused", "gave up", "ttft alone", "tpot of one token"),
        *("gave up without a ttft target", "no target"),
    ],
)
def test_judgements(targets: Targets, seen: Seen, met: dict[str, bool] | None) -> None:
    assert judge(targets, seen) == met


def test_a_burn_rate_of_one_spends_the_budget() -> None:
    assert (burn_rate(100, 5), burn_rate(10, 10), burn_rate(0, 0)) == (pytest.approx(1), pytest.approx(20), 0)


@pytest.mark.parametrize(
    ("high", "raised"),
    [
        ({}, None),
        ({"5m": 20.0}, None),
        ({"1h": 20.0}, None),
        ({"5m": 20.0, "1h": 15.0}, "page"),
        ({"5m": 20.0, "1h": 14.0}, None),
        ({"6h": 7.0, "30m": 7.0}, "ticket"),
        ({"6h": 7.0, "1h": 20.0}, None),
        (dict.fromkeys(WINDOWS, 20.0), "page"),
    ],
)
def test_an_alert_needs_both_windows(high: dict[Window, float], raised: str | None) -> None:
    assert alert({window: high.get(window, 0.0) for window in WINDOWS}) == raised
