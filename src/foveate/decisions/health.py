"""Whether a server behind this one is asked: by what its answers and the looks at its health say. Pure: time comes with each question."""

from __future__ import annotations

import msgspec

from foveate.decisions.routing import SHARE_FIRST


class Health(msgspec.Struct, frozen=True):
    """What is known of a server: ``failures`` in a row, and since when it is up or down (monotonic seconds).

    Nothing is known of a new one, so it is down until it was looked at. ``eased`` tells that it came back from a failure, so that its
    share grows; the first time up it is whole at once.
    """

    up: bool = False
    failures: int = 0
    since: float = 0.0
    eased: bool = False


def answered(health: Health) -> Health:
    """A request was answered: the row of failures ends. It does not bring a server up: only a look at its health does."""
    return msgspec.structs.replace(health, failures=0) if health.failures else health


def looked_well(health: Health, now: float) -> Health:
    """A look at its health found it well."""
    if health.up:
        return answered(health)
    return Health(up=True, since=now, eased=health.since > 0)


def failed(health: Health, now: float, *, failures_max: int, gone: bool = False) -> Health:
    """A request or a look at its health failed. ``gone``: nobody listens there, which is enough at once."""
    failures = health.failures + 1
    if health.up and (gone or failures >= failures_max):
        return Health(up=False, failures=failures, since=now)
    return msgspec.structs.replace(health, failures=failures, since=health.since or now)


def share(health: Health, now: float, recover_seconds: float) -> float:
    """Return the part of its capacity that a server may be given now, from 0 (down) to 1."""
    if not health.up:
        return 0.0
    if not health.eased or now - health.since >= recover_seconds:
        return 1.0
    return SHARE_FIRST + (1 - SHARE_FIRST) * (now - health.since) / recover_seconds
