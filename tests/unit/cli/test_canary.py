"""What an operator types and reads."""

import pytest
import typer

from foveate.cli.canary import lines, parse_share

VERSION = {
    "model": "/models/new",
    "processor_version": "p" * 64,
    "encoder_version": "e" * 64,
    "requests": 40,
    "errors": 1,
    "fresh": 30,
    "ttft_ms_median": 123.456,
    "ttft_ms_p95": None,
}
REPORT = {
    "state": "on_trial",
    "share": 0.05,
    "reason": None,
    "stable": VERSION,
    "canary": VERSION,
    "comparisons": {
        "compared": 7,
        "cosine_mean": 0.98765,
        "cosine_min": 0.9,
        "norm_ratio_mean": 1.01,
        "not_finite": 0,
        "rows_differ": 2,
        "failed": 0,
        "skipped": 3,
    },
    "warmed": 5,
    "not_held": 4,
    "still_ending": 1,
}


@pytest.mark.parametrize(("text", "share"), [("5%", 0.05), ("0.05", 0.05), ("100%", 1.0), ("0", 0.0), ("2.5%", 0.025)])
def test_a_share_is_a_percentage_or_a_part(text: str, share: float) -> None:
    assert parse_share(text) == pytest.approx(share)


@pytest.mark.parametrize("text", ["", "five", "5", "101%", "-1%", "nan", "inf%", "%", "5%%"])
def test_what_is_no_share_is_refused(text: str) -> None:
    with pytest.raises(typer.BadParameter):
        parse_share(text)


def test_a_report_is_told_whole() -> None:
    told = "\n".join(lines(REPORT))
    for part in (
        "on trial, 5 % of contents",
        "/models/new",
        "40 requests, 1 errors",
        "123.5 ms",
        "– ms",
        "7 pictures",
        "0.9877",
        "2 rows differ",
        "3 skipped",
        "5 contents",
        "1 versions",
    ):
        assert part in told, part


def test_an_empty_report_is_short() -> None:
    nothing = {**REPORT, "state": "none", "share": 0.0, "canary": None, "comparisons": None, "warmed": 0, "not_held": 0}
    assert lines({**nothing, "still_ending": 0})[0] == "state       none"
