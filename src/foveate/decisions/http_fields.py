"""Read the header fields by which an origin says how long its answer holds (RFC 9110, RFC 9111). Pure; strict where doubt would keep more.

What cannot be read counts as the least that it could mean: a lifetime as none, a list of directives as ``no-store``, a validator as absent.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Final

import msgspec

SECONDS_MAX: Final = 2**31
"""What a longer time counts as (RFC 9111 §1.2.2)."""

VALIDATOR_CHARACTERS_MAX: Final = 512
"""Longer entity tags are not kept; they are sent back with every revalidation."""

_TOKEN: Final = r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+"
_DIRECTIVE: Final = re.compile(rf'[ \t]*(?:({_TOKEN})(?:=(?:"((?:[^"\\]|\\.)*)"|([^\s",;]*)))?[ \t]*)?(?:,|\Z)')
"""One member of the list, with what ends it. No two repetitions of it meet, so that a long field takes no more than linear time."""

_ENTITY_TAG: Final = re.compile(r'(?:W/)?"[\x21\x23-\x7e]*"')
_MONTHS: Final = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_TIME: Final = r"(?P<hour>\d\d):(?P<minute>\d\d):(?P<second>\d\d)"
_DATES: Final = tuple(
    re.compile(form)
    for form in (
        rf"(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun), (?P<day>\d\d) (?P<month>[A-Z][a-z]{{2}}) (?P<year>\d{{4}}) {_TIME} GMT",
        rf"(?:Mon|Tues|Wednes|Thurs|Fri|Satur|Sun)day, (?P<day>\d\d)-(?P<month>[A-Z][a-z]{{2}})-(?P<year>\d\d) {_TIME} GMT",
        rf"(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun) (?P<month>[A-Z][a-z]{{2}}) (?P<day>[ \d]\d) {_TIME} (?P<year>\d{{4}})",
    )
)
"""The three forms of RFC 9110 §5.6.7; all are in UTC."""


class Directives(msgspec.Struct, frozen=True):
    """What a ``Cache-Control`` field asks of a cache. Times in seconds; ``None``: not said.

    ``private`` and ``no_cache`` hold for the whole answer, also where the origin named single fields with them.
    """

    no_store: bool = False
    no_cache: bool = False
    private: bool = False
    max_age: int | None = None
    shared_max_age: int | None = None


class Fields(msgspec.Struct, frozen=True):
    """An answer's fields as far as they concern a cache. Times are Unix seconds, ``age`` is in seconds.

    ``expires_at`` is 0 where ``Expires`` is no date. ``varies`` tells that another request of ours could get another answer.
    """

    directives: Directives | None = None
    expires_at: float | None = None
    date_at: float | None = None
    age: float = 0.0
    etag: str | None = None
    last_modified: str | None = None
    varies: bool | None = None
    sets_cookie: bool = False


def read_fields(all_of: Callable[[str], Sequence[str]], wall: float) -> Fields:
    """Read an answer that came at ``wall`` (Unix seconds); ``all_of`` gives the values of every field of a name, in order."""
    expires, tags, vary = (_distinct(all_of(name)) for name in ("Expires", "ETag", "Vary"))
    dates = _distinct(all_of("Date"))
    modified = _distinct(all_of("Last-Modified"))
    return Fields(
        directives=_directives(all_of("Cache-Control"), all_of("Pragma")),
        expires_at=None if not expires else (read_date(expires[0], wall) or 0.0 if len(expires) == 1 else 0.0),
        date_at=read_date(dates[0], wall) if len(dates) == 1 else None,
        age=_age(all_of("Age")),
        etag=tags[0] if len(tags) == 1 and _is_tag(tags[0]) else None,
        last_modified=modified[0] if len(modified) == 1 and read_date(modified[0], wall) is not None else None,
        varies=_varies(vary) if vary else None,
        sets_cookie=bool(all_of("Set-Cookie")),
    )


def read_date(text: str, wall: float) -> float | None:
    """Return an HTTP date in Unix seconds, ``None`` where it is none.

    ``wall`` tells the century of a year of two digits: one that would be more than fifty years ahead is past.
    """
    for form in _DATES:
        found = form.fullmatch(text.strip(" \t"))
        if found is None:
            continue
        part = found.groupdict()
        year = int(part["year"])
        try:
            if len(part["year"]) == 2:
                here = datetime.fromtimestamp(wall, UTC).year
                year += here // 100 * 100
                year -= 100 if year > here + 50 else 0
            # A leap second is the one before.
            time = (int(part["hour"]), int(part["minute"]), min(int(part["second"]), 59))
            moment = datetime(year, _MONTHS.index(part["month"]) + 1, int(part["day"]), *time, tzinfo=UTC)
        except ValueError:
            return None
        return moment.timestamp()
    return None


def read_directives(values: Sequence[str]) -> Directives:
    """Read the ``Cache-Control`` fields of an answer, as if they were one list. What is no list of directives means ``no-store``.

    Unknown directives say nothing. Two different times, or one that is no number, mean none left (RFC 9111 §4.2.1).
    """
    found: dict[str, list[str | None]] = {}
    for value in values:
        at = 0
        while at < len(value):
            match = _DIRECTIVE.match(value, at)
            if match is None:
                return Directives(no_store=True)
            at = match.end()
            if match[1] is not None:
                argument = match[3] if match[2] is None else re.sub(r"\\(.)", r"\1", match[2])
                found.setdefault(match[1].lower(), []).append(argument)
    return Directives(
        no_store="no-store" in found,
        no_cache="no-cache" in found,
        private="private" in found,
        max_age=_lifetime(found.get("max-age")),
        shared_max_age=_lifetime(found.get("s-maxage")),
    )


def _directives(values: Sequence[str], pragma: Sequence[str]) -> Directives | None:
    if values:
        return read_directives(values)
    # Of HTTP/1.0, and only where nothing newer is said (RFC 9111 §5.4, which leaves it open what an origin means by it).
    return Directives(no_cache=True) if read_directives(pragma).no_cache else None


def _lifetime(arguments: list[str | None] | None) -> int | None:
    if arguments is None:
        return None
    seconds = {_seconds(argument or "") for argument in arguments}
    return (seconds.pop() or 0) if len(seconds) == 1 else 0


def _seconds(text: str) -> int | None:
    """Return a time of non-negative whole seconds (ASCII digits), ``None`` where it is none."""
    if not text.isascii() or not text.isdecimal():
        return None
    return SECONDS_MAX if len(text) > 10 else min(int(text), SECONDS_MAX)


def _age(values: Sequence[str]) -> float:
    """Return the first member of ``Age``, 0 where it is no time (RFC 9111 §5.1)."""
    return float(_seconds(values[0].partition(",")[0].strip(" \t")) or 0) if values else 0.0


def _varies(values: Sequence[str]) -> bool:
    """Whether the answer depends on what may differ between two requests of this server for one URL.

    All of them carry the same fields but for the conditions of a revalidation, and what concerns the connection alone; ``*`` is whatever
    the origin likes.
    """
    names = {name.strip(" \t").lower() for value in values for name in value.split(",")} - {""}
    odd = ("*", "connection")
    return any(name in odd or name.startswith("if-") or not re.fullmatch(_TOKEN, name) for name in names)


def _is_tag(text: str) -> bool:
    return len(text) <= VALIDATOR_CHARACTERS_MAX and _ENTITY_TAG.fullmatch(text) is not None


def _distinct(values: Sequence[str]) -> list[str]:
    return list(dict.fromkeys(value.strip(" \t") for value in values))
