"""How long a kept answer of an origin holds, and how it is asked again afterwards (RFC 9111). Pure: no clock, no I/O.

Nothing is fresh that its origin did not declare so: there is no heuristic freshness. Nothing stale is ever used: ``stale-while-revalidate``
and ``stale-if-error`` are permissions that are not taken, and ``must-revalidate`` holds without being said.
"""

from __future__ import annotations

from typing import Final, Literal, get_args

import msgspec
from msgspec.structs import replace

from foveate.decisions.http_fields import Directives, Fields, read_date

Refusal = Literal["no_store", "private", "set_cookie", "vary", "no_freshness"]
"""Why an answer's fields forbid to keep it. ``no_freshness``: it has neither time left nor a validator, so it could never be used again."""

NotKept = Literal[Refusal, "status", "unframed", "not_media"]
NOT_KEPT: Final[tuple[NotKept, ...]] = get_args(NotKept)
"""The same, and what its fields do not tell. ``status``: it is no plain 200. ``unframed``: nothing says whether it is whole. ``not_media``:
its bytes are no picture or video (an error page that says 200).
"""

_NOTHING_SAID: Final = Directives()


class Moment(msgspec.Struct, frozen=True):
    """When an answer came: it was ``asked_at`` and its fields were there at ``answered_at`` (monotonic seconds), which was ``wall`` (Unix
    seconds).
    """

    asked_at: float
    answered_at: float
    wall: float


class Terms(msgspec.Struct, frozen=True):
    """How a kept answer may be used: as it is before ``fresh_until`` (monotonic seconds), afterwards when its origin says that it has not
    changed. ``validator`` is the request field that asks so, with its value; ``None``: it cannot be asked.

    ``fields`` are those the terms were judged by, for :func:`renew`.
    """

    fresh_until: float
    validator: tuple[str, str] | None
    fields: Fields

    def fresh(self, now: float) -> bool:
        """Whether the answer may be used as it is."""
        return now < self.fresh_until


def judge(fields: Fields, moment: Moment, *, shared: bool) -> Terms | Refusal:
    """Return on which terms an answer (200) may be kept, or why it may not. ``shared``: several tenants will meet it."""
    directives = fields.directives or _NOTHING_SAID
    if directives.no_store:
        return "no_store"
    if directives.private and shared:
        return "private"
    if fields.sets_cookie:
        return "set_cookie"
    if fields.varies:
        return "vary"
    left = 0.0 if directives.no_cache else lifetime(fields, moment, shared=shared) - initial_age(fields, moment)
    validator = _validator(fields, moment)
    if left <= 0 and validator is None:
        return "no_freshness"
    return Terms(moment.answered_at + max(left, 0.0), validator, fields)


def renew(terms: Terms, fields: Fields, moment: Moment, *, shared: bool) -> Terms | Refusal | Literal["other"]:
    """Return the terms after the origin said (304) that a kept answer has not changed, or why it may not be kept any longer.

    What the 304 does not say again stays as it was (RFC 9111 §3.2); its age is its own. ``other``: the 304 is about an answer that is not
    this one, and says nothing of it (§4.3.4).
    """
    if not _same(terms.fields, fields):
        return "other"
    before = terms.fields
    return judge(
        replace(
            fields,
            directives=before.directives if fields.directives is None else fields.directives,
            expires_at=before.expires_at if fields.expires_at is None else fields.expires_at,
            etag=before.etag if fields.etag is None else fields.etag,
            last_modified=before.last_modified if fields.last_modified is None else fields.last_modified,
            varies=before.varies if fields.varies is None else fields.varies,
        ),
        moment,
        shared=shared,
    )


def lifetime(fields: Fields, moment: Moment, *, shared: bool) -> float:
    """Return for how many seconds, from its making, an answer was declared fresh (RFC 9111 §4.2.1); 0 where that was not declared."""
    directives = fields.directives or _NOTHING_SAID
    if shared and directives.shared_max_age is not None:
        return float(directives.shared_max_age)
    if directives.max_age is not None:
        return float(directives.max_age)
    if fields.expires_at is None:
        return 0.0
    return max(fields.expires_at - (moment.wall if fields.date_at is None else fields.date_at), 0.0)


def initial_age(fields: Fields, moment: Moment) -> float:
    """Return how many seconds old an answer was at most when it came (RFC 9111 §4.2.3)."""
    apparent = 0.0 if fields.date_at is None else max(moment.wall - fields.date_at, 0.0)
    return max(apparent, fields.age + moment.answered_at - moment.asked_at)


def _validator(fields: Fields, moment: Moment) -> tuple[str, str] | None:
    """Return what to ask with. A date is only as good as a second: what changed twice within one has the same (RFC 9110 §8.8.2.2)."""
    if fields.etag is not None:
        return "If-None-Match", fields.etag
    if fields.last_modified is None or fields.date_at is None:
        return None
    modified_at = read_date(fields.last_modified, moment.wall)
    if modified_at is None or fields.date_at < modified_at + 1:
        return None
    return "If-Modified-Since", fields.last_modified


def _same(kept: Fields, told: Fields) -> bool:
    """Whether a 304's own validators, where it has any, are those of the kept answer."""
    if told.etag is not None and kept.etag is not None:
        return told.etag.removeprefix("W/") == kept.etag.removeprefix("W/")
    if told.etag is None and kept.etag is None and None not in (told.last_modified, kept.last_modified):
        return told.last_modified == kept.last_modified
    return True
