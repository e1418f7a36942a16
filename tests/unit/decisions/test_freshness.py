"""RFC 9111 as tables, and what must hold whatever an origin says."""

from __future__ import annotations

from collections.abc import Callable
from email.utils import formatdate

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.unit.decisions.test_http_fields import WALL, fields_of

from foveate.decisions.freshness import Moment, Terms, initial_age, judge, lifetime, renew

MOMENT = Moment(asked_at=100.0, answered_at=102.0, wall=WALL)


def date(seconds: float) -> str:
    """An HTTP date so many seconds after the answer came."""
    return formatdate(WALL + seconds, usegmt=True)


def kept(*lines: str, shared: bool = True, moment: Moment = MOMENT) -> Terms:
    terms = judge(fields_of(*lines), moment, shared=shared)
    assert isinstance(terms, Terms), terms
    return terms


@pytest.mark.parametrize(
    ("lines", "shared", "private"),
    [
        (["Cache-Control: max-age=60"], 60, 60),
        (["Cache-Control: max-age=60, s-maxage=10"], 10, 60),
        (["Cache-Control: s-maxage=10"], 10, 0),
        (["Cache-Control: max-age=60", f"Expires: {date(5)}"], 60, 60),
        ([f"Date: {date(0)}", f"Expires: {date(30)}"], 30, 30),
        ([f"Date: {date(-20)}", f"Expires: {date(30)}"], 50, 50),
        ([f"Expires: {date(30)}"], 30, 30),
        ([f"Date: {date(0)}", f"Expires: {date(-1)}"], 0, 0),
        (["Expires: 0"], 0, 0),
        ([f"Date: {date(0)}", f"Last-Modified: {date(-86400 * 365)}"], 0, 0),
        (["Cache-Control: public, immutable"], 0, 0),
        ([], 0, 0),
    ],
)
def test_lifetime(lines: list[str], shared: float, private: float) -> None:
    """§4.2.1, by who will meet the answer. Without a declaration it is none: §4.2.2 is not used."""
    fields = fields_of(*lines)
    assert (lifetime(fields, MOMENT, shared=True), lifetime(fields, MOMENT, shared=False)) == (shared, private)


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ([], 2),
        (["Age: 30"], 32),
        ([f"Date: {date(-10)}"], 10),
        ([f"Date: {date(-10)}", "Age: 30"], 32),
        ([f"Date: {date(-100)}", "Age: 30"], 100),
        # A clock that is ahead of ours tells nothing.
        ([f"Date: {date(500)}"], 2),
    ],
)
def test_age(lines: list[str], expected: float) -> None:
    """§4.2.3: the answer took two seconds to come."""
    assert initial_age(fields_of(*lines), MOMENT) == expected


@pytest.mark.parametrize(
    ("lines", "shared", "private"),
    [
        (["Cache-Control: no-store, max-age=60"], "no_store", "no_store"),
        (["Cache-Control: private, max-age=60"], "private", "kept"),
        (['Cache-Control: private="x", max-age=60', 'ETag: "a"'], "private", "kept"),
        (["Cache-Control: max-age=60", "Set-Cookie: a=b"], "set_cookie", "set_cookie"),
        (["Cache-Control: max-age=60", "Vary: *"], "vary", "vary"),
        (["Cache-Control: max-age=60", "Vary: Accept, User-Agent, Accept-Encoding, Origin"], "kept", "kept"),
        (["Cache-Control: max-age=0"], "no_freshness", "no_freshness"),
        (["Cache-Control: max-age=60", "Age: 60"], "no_freshness", "no_freshness"),
        (["Cache-Control: no-cache, max-age=60"], "no_freshness", "no_freshness"),
        (["Cache-Control: no-cache, max-age=60", 'ETag: "a"'], "kept", "kept"),
        (['ETag: "a"'], "kept", "kept"),
        ([f"Date: {date(0)}", f"Last-Modified: {date(-1)}"], "kept", "kept"),
        # Changed in the very second in which it was sent: it may have changed after, and nobody could tell.
        ([f"Date: {date(0)}", f"Last-Modified: {date(0)}"], "no_freshness", "no_freshness"),
        ([f"Last-Modified: {date(-1)}"], "no_freshness", "no_freshness"),
        ([], "no_freshness", "no_freshness"),
    ],
)
def test_what_is_kept(lines: list[str], shared: str, private: str) -> None:
    for whose, expected in ((True, shared), (False, private)):
        terms = judge(fields_of(*lines), MOMENT, shared=whose)
        assert (terms if isinstance(terms, str) else "kept") == expected


def test_fresh_until_its_time_is_up_to_the_second() -> None:
    terms = kept("Cache-Control: max-age=60", "Age: 20")
    until = MOMENT.answered_at + 60 - 22
    assert terms.fresh_until == until
    assert terms.fresh(until - 0.001)
    assert not terms.fresh(until)


def test_no_cache_is_never_fresh() -> None:
    assert not kept("Cache-Control: no-cache, max-age=60", 'ETag: "a"').fresh(MOMENT.answered_at)


def test_the_entity_tag_is_asked_with_rather_than_the_date() -> None:
    lines = [f"Date: {date(0)}", f"Last-Modified: {date(-9)}"]
    assert kept(*lines).validator == ("If-Modified-Since", date(-9))
    assert kept(*lines, 'ETag: W/"a"').validator == ("If-None-Match", 'W/"a"')


LATER = Moment(asked_at=500.0, answered_at=501.0, wall=WALL + 400)


def test_a_304_begins_a_new_life_with_what_it_does_not_say_left_as_it_was() -> None:
    terms = kept("Cache-Control: max-age=60", 'ETag: "a"', "Age: 50")
    renewed = renew(terms, fields_of(), LATER, shared=True)
    assert isinstance(renewed, Terms)
    assert renewed.fresh_until == 501 + 60 - 1
    assert renewed.validator == ("If-None-Match", '"a"')
    renewed = renew(terms, fields_of("Cache-Control: max-age=5", 'ETag: "a"', "Age: 2"), LATER, shared=True)
    assert isinstance(renewed, Terms)
    assert renewed.fresh_until == 501 + 5 - 3


def test_a_304_that_forbids_keeping_is_obeyed() -> None:
    terms = kept("Cache-Control: max-age=60", 'ETag: "a"')
    assert renew(terms, fields_of("Cache-Control: no-store"), LATER, shared=True) == "no_store"
    assert renew(terms, fields_of("Cache-Control: private"), LATER, shared=True) == "private"
    assert renew(terms, fields_of("Set-Cookie: a=b"), LATER, shared=True) == "set_cookie"
    assert renew(terms, fields_of("Vary: *"), LATER, shared=True) == "vary"


@pytest.mark.parametrize(
    ("before", "told", "same"),
    [
        (['ETag: "a"'], ['ETag: "a"'], True),
        (['ETag: "a"'], ['ETag: W/"a"'], True),
        (['ETag: "a"'], ['ETag: "b"'], False),
        ([f"Date: {date(0)}", f"Last-Modified: {date(-9)}"], [f"Last-Modified: {date(-9)}"], True),
        ([f"Date: {date(0)}", f"Last-Modified: {date(-9)}"], [f"Last-Modified: {date(-8)}"], False),
        (['ETag: "a"', f"Last-Modified: {date(-9)}"], [f"Last-Modified: {date(-8)}"], True),
    ],
)
def test_a_304_about_another_answer_says_nothing(before: list[str], told: list[str], same: bool) -> None:
    """§4.3.4."""
    terms = kept("Cache-Control: max-age=60", *before)
    assert (renew(terms, fields_of(f"Date: {date(400)}", *told), LATER, shared=True) != "other") is same


seconds = st.integers(0, 10**6)
answers = st.builds(
    lambda *lines: [line for line in lines if line],
    st.one_of(st.just(""), st.builds(lambda age: f"Cache-Control: max-age={age}", seconds)),
    st.one_of(st.just(""), st.builds(lambda age: f"Cache-Control: s-maxage={age}", seconds)),
    st.one_of(st.just(""), st.builds(lambda at: f"Expires: {date(at)}", st.integers(-(10**6), 10**6))),
    st.one_of(st.just(""), st.builds(lambda at: f"Date: {date(at)}", st.integers(-(10**6), 10**6))),
    st.one_of(st.just(""), st.builds(lambda age: f"Age: {age}", seconds)),
    st.sampled_from(["", 'ETag: "a"']),
    st.sampled_from(["", "Cache-Control: no-cache", "Cache-Control: no-store", "Cache-Control: private"]),
)


@given(answers, st.booleans())
def test_nothing_outlives_what_was_declared(lines: list[str], shared: bool) -> None:
    """From the moment of asking on: the answer cannot have been made later than it came, nor be younger than it says."""
    fields = fields_of(*lines)
    terms = judge(fields, MOMENT, shared=shared)
    if isinstance(terms, str):
        return
    declared = lifetime(fields, MOMENT, shared=shared)
    assert terms.fresh_until - MOMENT.answered_at <= max(declared - fields.age - 2.0, 0.0)
    assert terms.validator is not None or terms.fresh(MOMENT.answered_at)
    assert not any("no-store" in line for line in lines)
    assert not (shared and any("private" in line for line in lines))


def weaker(lines: list[str]) -> list[Callable[[Moment], Moment] | list[str]]:
    """Ways in which an answer can only be kept for less long."""
    return [
        [*lines, "Cache-Control: no-cache"],
        [*(line for line in lines if not line.startswith("Age")), "Age: 2000000"],
        lambda moment: replace(moment, asked_at=moment.asked_at - 50),
    ]


@given(answers, st.integers(0, 2), st.booleans())
def test_more_doubt_never_keeps_longer(lines: list[str], way: int, shared: bool) -> None:
    change = weaker(lines)[way]
    doubted, moment = (lines, change(MOMENT)) if callable(change) else (change, MOMENT)
    before = judge(fields_of(*lines), MOMENT, shared=shared)
    after = judge(fields_of(*doubted), moment, shared=shared)
    if isinstance(after, Terms):
        assert isinstance(before, Terms)
        assert after.fresh_until <= before.fresh_until
