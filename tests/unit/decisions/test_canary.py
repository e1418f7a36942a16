"""Who meets a new version, and what evidence takes it back."""

import math

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from foveate.decisions.canary import (
    ERRORS_MIN,
    Differences,
    Evidence,
    Record,
    Thresholds,
    meets_new,
    place,
    share_at_least,
    verdict,
)

LIMITS = Thresholds(cosine_min=0.9, norm_ratio_max=2.0, error_ratio_max=2.0, latency_ratio_max=1.5, samples_min=20)
GOOD = Evidence(
    old=Record(500, 5, 100, 100.0, 200.0),
    new=Record(500, 5, 100, 110.0, 220.0),
    differences=Differences(compared=100, cosine_mean=0.99, cosine_min=0.95, norm_ratio_mean=1.02),
    same_processor=True,
)
digests = st.text("0123456789abcdef", min_size=64, max_size=64)
shares = st.floats(0, 1)


@given(digests, st.text(), shares)
def test_a_content_always_meets_the_same_version(digest: str, salt: str, share: float) -> None:
    assert 0 <= place(digest, salt) < 1
    assert meets_new(digest, salt, share) == meets_new(digest, salt, share)
    assert not meets_new(digest, salt, 0.0)
    assert meets_new(digest, salt, 1.0)


@given(digests, st.text(), shares, shares)
def test_a_larger_share_moves_contents_to_the_new_version_and_none_back(
    digest: str, salt: str, one: float, other: float
) -> None:
    small, large = sorted((one, other))
    assert meets_new(digest, salt, small) <= meets_new(digest, salt, large)


@pytest.mark.parametrize("share", [0.05, 0.25, 0.5, 0.9])
def test_the_share_is_that_of_contents(share: float) -> None:
    of = 20_000
    met = sum(meets_new(f"{number:064x}", "roll-out", share) for number in range(of))
    assert abs(met - share * of) < 5 * math.sqrt(of * share * (1 - share))


def test_each_roll_out_begins_with_other_contents() -> None:
    first = {number for number in range(2000) if meets_new(f"{number:064x}", "one", 0.1)}
    second = {number for number in range(2000) if meets_new(f"{number:064x}", "two", 0.1)}
    assert len(first & second) < len(first) / 3


def changed(evidence: Evidence, part: str = "", **fields: object) -> Evidence:
    if not part:
        return msgspec.structs.replace(evidence, **fields)
    inner = msgspec.structs.replace(getattr(evidence, part), **fields)
    return msgspec.structs.replace(evidence, **{part: inner})


def test_nothing_speaks_against_a_good_version_or_an_unknown_one() -> None:
    assert verdict(GOOD, LIMITS) is None
    assert verdict(Evidence(Record(), Record(), Differences(), same_processor=True), LIMITS) is None


@pytest.mark.parametrize(
    ("evidence", "fault"),
    [
        (changed(GOOD, alive=False), "engine"),
        (changed(GOOD, "differences", not_finite=1), "not_finite"),
        (changed(GOOD, "differences", rows_differ=1), "rows"),
        (changed(GOOD, "differences", cosine_mean=0.89), "cosine"),
        (changed(GOOD, "differences", norm_ratio_mean=2.1), "norm"),
        (changed(GOOD, "differences", norm_ratio_mean=0.4), "norm"),
        (changed(GOOD, "differences", failed=10), "errors"),
        (changed(GOOD, "new", errors=40), "errors"),
        (changed(GOOD, "new", ttft_ms_median=151.0), "latency"),
    ],
)
def test_each_fault_is_found_and_told_with_its_setting(evidence: Evidence, fault: str) -> None:
    found = verdict(evidence, LIMITS)
    assert found is not None
    assert found.fault == fault
    assert found.why.endswith(".")
    if fault not in ("engine", "not_finite", "rows"):
        assert "canary." in found.why


@pytest.mark.parametrize(
    "evidence",
    [
        # Another processor may give other rows: that is not a fault, only something that no cosine can be told of.
        changed(changed(GOOD, "differences", rows_differ=50), same_processor=False),
        # Too few to judge by.
        changed(GOOD, "differences", compared=19, cosine_mean=0.1, norm_ratio_mean=9.0),
        changed(GOOD, "new", fresh=19, ttft_ms_median=900.0),
        changed(GOOD, "old", fresh=19, ttft_ms_median=1.0),
        changed(GOOD, "old", fresh=0, ttft_ms_median=None),
        changed(GOOD, "new", requests=4, errors=4),
        # Twice as many errors as the old version, but within chance.
        changed(GOOD, "new", errors=12),
        # As many as the old version.
        changed(changed(GOOD, "new", errors=200), "old", errors=200),
    ],
)
def test_what_is_no_evidence_takes_nothing_back(evidence: Evidence) -> None:
    assert verdict(evidence, LIMITS) is None


def test_a_version_that_always_fails_goes_after_few_requests() -> None:
    evidence = changed(GOOD, "new", requests=ERRORS_MIN, errors=ERRORS_MIN)
    assert verdict(evidence, LIMITS) is not None


@given(st.integers(0, 1000), st.integers(0, 1000))
def test_the_lower_bound_is_below_the_share_and_rises_with_certainty(found: int, of: int) -> None:
    found = min(found, of)
    bound = share_at_least(found, of)
    assert 0 <= bound <= (found / of if of else 0) + 1e-12
    assert share_at_least(found * 10, of * 10) >= bound


def test_the_lower_bound_is_wilson_s() -> None:
    assert share_at_least(10, 100) == pytest.approx(0.0552, abs=1e-4)  # Wilson (1927), 95 %
