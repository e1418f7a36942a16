"""W3C trace context: which trace a request belongs to (https://www.w3.org/TR/trace-context/, version 00)."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

import msgspec

_TRACEPARENT: Final = re.compile(rb"(?!ff)[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(?:-.{0,128})?")
_SAMPLED: Final = 1


class TraceContext(msgspec.Struct, frozen=True):
    """A span under which others go: the caller's, or a request's own. ``sampled``: whoever made it records this trace."""

    trace_id: int
    span_id: int
    sampled: bool

    def header(self) -> str:
        """Return it as the value of a ``traceparent`` header, for whoever is asked next."""
        return f"00-{self.trace_id:032x}-{self.span_id:016x}-{int(self.sampled):02x}"


def trace_context(headers: Iterable[tuple[bytes, bytes]]) -> TraceContext | None:
    """Return the context that these headers (lower-case names) carry; None where there is none, several, or what is none.

    A trace context that cannot be read is no reason to refuse a request.
    """
    found = [value.strip() for name, value in headers if name == b"traceparent"]
    match = _TRACEPARENT.fullmatch(found[0]) if len(found) == 1 else None
    if match is None or (found[0].startswith(b"00") and len(found[0]) != 55):
        return None
    trace_id, span_id = int(match[1], 16), int(match[2], 16)
    return TraceContext(trace_id, span_id, bool(int(match[3], 16) & _SAMPLED)) if trace_id and span_id else None
