"""What is read out of header fields, and that doubt keeps less."""

from __future__ import annotations

import time
from calendar import timegm

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foveate.decisions.http_fields import SECONDS_MAX, Directives, Fields, read_date, read_directives, read_fields

WALL = 1_800_000_000.0


def fields_of(*lines: str) -> Fields:
    """Read ``Name: value`` lines."""
    pairs = [line.split(":", 1) for line in lines]
    return read_fields(lambda name: [value.strip() for found, value in pairs if found.lower() == name.lower()], WALL)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (["max-age=60"], Directives(max_age=60)),
        (["Max-Age=60, PUBLIC"], Directives(max_age=60)),
        (['max-age="60"'], Directives(max_age=60)),
        (["public", "max-age=60"], Directives(max_age=60)),
        (["max-age=60, s-maxage=10"], Directives(max_age=60, shared_max_age=10)),
        (["max-age=60,,  ,no-cache"], Directives(max_age=60, no_cache=True)),
        (['private="set-cookie, x", max-age=1'], Directives(private=True, max_age=1)),
        (['no-cache="set-cookie"'], Directives(no_cache=True)),
        (["no-store"], Directives(no_store=True)),
        (["immutable, stale-while-revalidate=60, stale-if-error=60"], Directives()),
        (['community="UCI, no-store"'], Directives()),
        ([""], Directives()),
        # No number, two numbers, a sign, a fraction, other digits: no time left.
        (["max-age"], Directives(max_age=0)),
        (["max-age="], Directives(max_age=0)),
        (["max-age=60, max-age=61"], Directives(max_age=0)),
        (["max-age=60, max-age=60"], Directives(max_age=60)),
        (["max-age=-1"], Directives(max_age=0)),
        (["max-age=1.5"], Directives(max_age=0)),
        (["max-age=٦٠"], Directives(max_age=0)),
        (["max-age=99999999999999999999"], Directives(max_age=SECONDS_MAX)),
        # What is no list of directives.
        (["max-age=60; public"], Directives(no_store=True)),
        (['max-age="60'], Directives(no_store=True)),
        (["max-age =60"], Directives(no_store=True)),
        (["max-age=60 no-store"], Directives(no_store=True)),
    ],
)
def test_directives(values: list[str], expected: Directives) -> None:
    assert read_directives(values) == expected


@pytest.mark.parametrize("text", [" " * 8000 + ";", "a" * 8000 + ";", 'a="' + '\\"' * 4000, "a," * 4000, "\t " * 4000])
def test_a_long_field_is_read_in_no_time(text: str) -> None:
    """Ten times the work of an ordinary field for a hundred times its length would be linear; a second is far from it."""
    began = time.process_time()
    read_directives([text])
    assert time.process_time() - began < 1


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Sun, 06 Nov 1994 08:49:37 GMT", (1994, 11, 6, 8, 49, 37)),
        ("Sunday, 06-Nov-94 08:49:37 GMT", (1994, 11, 6, 8, 49, 37)),
        ("Sunday, 06-Nov-33 08:49:37 GMT", (2033, 11, 6, 8, 49, 37)),
        ("Sun Nov  6 08:49:37 1994", (1994, 11, 6, 8, 49, 37)),
        ("Sat, 31 Dec 2016 23:59:60 GMT", (2016, 12, 31, 23, 59, 59)),
        ("0", None),
        ("-1", None),
        ("", None),
        ("Sun, 06 Nov 1994 08:49:37 +0200", None),
        ("Sun, 06 Nov 1994 08:49:37 UTC", None),
        ("Sun, 6 Nov 1994 08:49:37 GMT", None),
        ("Sun, 31 Feb 2020 08:49:37 GMT", None),
        ("Sun, 06 Nov 1994 24:49:37 GMT", None),
        ("Sun, 06 Nov 0000 08:49:37 GMT", None),
        ("Sun, 06 Nov 1994 08:49:37 GMT, again", None),
    ],
)
def test_dates(text: str, expected: tuple[int, ...] | None) -> None:
    assert read_date(text, WALL) == (None if expected is None else timegm(expected))


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ([], Fields()),
        (["Expires: 0"], Fields(expires_at=0.0)),
        (["Expires: Thu, 01 Jan 1970 00:00:10 GMT"], Fields(expires_at=10.0)),
        (["Expires: Thu, 01 Jan 2071 00:00:10 GMT", "Expires: Thu, 01 Jan 1970 00:00:10 GMT"], Fields(expires_at=0.0)),
        (["Date: Thu, 01 Jan 1970 00:00:10 GMT"], Fields(date_at=10.0)),
        (["Age: 5"], Fields(age=5.0)),
        (["Age: 5, 7"], Fields(age=5.0)),
        (["Age: x"], Fields()),
        (["Pragma: no-cache"], Fields(directives=Directives(no_cache=True))),
        (["Pragma: no-cache", "Cache-Control: max-age=9"], Fields(directives=Directives(max_age=9))),
        (['ETag: "a"'], Fields(etag='"a"')),
        (['ETag: W/"a"'], Fields(etag='W/"a"')),
        (["ETag: a"], Fields()),
        (['ETag: "a" b"'], Fields()),
        (['ETag: "a"', 'ETag: "b"'], Fields()),
        ([f'ETag: "{"a" * 600}"'], Fields()),
        (
            ["Last-Modified: Thu, 01 Jan 1970 00:00:10 GMT"],
            Fields(last_modified="Thu, 01 Jan 1970 00:00:10 GMT"),
        ),
        (["Last-Modified: yesterday"], Fields()),
        (["Set-Cookie: a=b"], Fields(sets_cookie=True)),
        (["Vary: Accept-Encoding, Origin", "Vary: User-Agent"], Fields(varies=False)),
        (["Vary: Origin", "Vary: *"], Fields(varies=True)),
        (["Vary: Accept, *"], Fields(varies=True)),
        (["Vary: If-None-Match"], Fields(varies=True)),
        (["Vary: Connection"], Fields(varies=True)),
        (["Vary: what is this?"], Fields(varies=True)),
    ],
)
def test_fields(lines: list[str], expected: Fields) -> None:
    assert fields_of(*lines) == expected


@given(st.lists(st.text(max_size=40), max_size=4))
def test_anything_is_read(values: list[str]) -> None:
    """Whatever an origin sends, reading it raises nothing, and a refusal to be kept is never lost beside it."""
    read_fields(lambda name: values, WALL)
    assert read_directives([*values, "no-store"]).no_store
