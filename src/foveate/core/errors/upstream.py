"""What servers behind this one answer when they do not answer: passed on with their own words, in this server's classes."""

from __future__ import annotations

from foveate.core.errors.base import Failed, FoveateError, Kind, Overloaded, Refused

ANSWER_BYTES_MAX = 16 * 1024
"""Of an upstream's own error, at most so much is passed on."""


class UpstreamRefused(Refused):
    """The upstream refused the request (4xx that has no class of its own)."""

    code = "upstream_refused"
    sentence = "The server behind this one refused the request."


class UpstreamNotFound(UpstreamRefused):
    """The upstream does not know what the request names (404)."""

    code = "upstream_not_found"
    kind = Kind.NOT_FOUND


class UpstreamTooLarge(UpstreamRefused):
    """The request is too large for the upstream (413)."""

    code = "upstream_too_large"
    kind = Kind.TOO_LARGE


class UpstreamUnprocessable(UpstreamRefused):
    """The upstream cannot process the request (422)."""

    code = "upstream_unprocessable"
    kind = Kind.UNDECODABLE


class UpstreamBusy(Overloaded):
    """Every upstream that could take the request has too much to do (429)."""

    code = "upstream_busy"
    kind = Kind.RATE
    sentence = "The servers behind this one are at capacity. Try again shortly."


class UpstreamUnavailable(Overloaded):
    """No upstream that could take the request can be reached, or all say that they cannot answer now (503)."""

    code = "upstream_unavailable"
    sentence = "No server behind this one can answer now. Try again shortly."


class UpstreamFailed(Failed):
    """The upstream failed on the request, or its answer was cut off or cannot be read."""

    code = "upstream_failed"
    kind = Kind.DEPENDENCY
    retryable = True
    sentence = "The server behind this one failed while answering."


class UpstreamUnusable(Failed):
    """The upstream does not let this server in: the operator's to mend, not the client's (401, 403)."""

    code = "upstream_unusable"
    kind = Kind.DEPENDENCY
    sentence = "The server behind this one does not accept this server's requests."


class UpstreamUnknown(Refused):
    """There is no upstream of the name that an operator gave."""

    code = "upstream_unknown"
    kind = Kind.NOT_FOUND
    sentence = "No upstream has this name."


def refusal_of(status: int) -> type[FoveateError]:
    """Return the class for an upstream's status of 400 and above."""
    if status in _BY_STATUS:
        return _BY_STATUS[status]
    return UpstreamRefused if status < 500 else UpstreamFailed


_BY_STATUS: dict[int, type[FoveateError]] = {
    401: UpstreamUnusable,
    403: UpstreamUnusable,
    404: UpstreamNotFound,
    413: UpstreamTooLarge,
    422: UpstreamUnprocessable,
    429: UpstreamBusy,
    503: UpstreamUnavailable,
}
