"""The caller's trace context is read strictly: what is none is ignored, never passed on."""

from __future__ import annotations

import pytest

from foveate.core.trace_context import TraceContext, trace_context

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


def read(*values: str) -> TraceContext | None:
    return trace_context([(b"accept", b"*/*"), *((b"traceparent", value.encode("latin-1")) for value in values)])


def test_it_is_passed_on_as_it_is_read() -> None:
    for sampled in (True, False):
        context = TraceContext(1, 2, sampled)
        assert read(context.header()) == context


@pytest.mark.parametrize(("flags", "sampled"), [("01", True), ("00", False), ("03", True), ("02", False)])
def test_a_context(flags: str, sampled: bool) -> None:
    assert read(f"00-{TRACE}-{SPAN}-{flags}") == TraceContext(int(TRACE, 16), int(SPAN, 16), sampled)


def test_a_later_version_may_say_more() -> None:
    assert read(f"01-{TRACE}-{SPAN}-01-what-comes") == TraceContext(int(TRACE, 16), int(SPAN, 16), True)


@pytest.mark.parametrize(
    "value",
    [
        *("", "00", f"ff-{TRACE}-{SPAN}-01", f"00-{TRACE.upper()}-{SPAN}-01", f"00-{'0' * 32}-{SPAN}-01"),
        *(
            f"00-{TRACE}-{'0' * 16}-01",
            f"00-{TRACE}-{SPAN}-01-more",
            f"00-{TRACE[:-1]}-{SPAN}-01",
            f"00-{TRACE}-{SPAN}-1",
        ),
        *(f"00-{TRACE}-{SPAN}-01\nx: y", f"01-{TRACE}-{SPAN}-01-{'x' * 5000}", "data:image/png;base64,QUJD" * 100),
    ],
)
def test_what_is_no_context(value: str) -> None:
    assert read(value) is None


def test_two_contexts_are_none() -> None:
    assert read(f"00-{TRACE}-{SPAN}-01", f"00-{TRACE}-{SPAN}-01") is None
    assert read() is None
