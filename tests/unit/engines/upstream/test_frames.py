"""Reading answers, however they are cut into pieces."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.engines.upstream.answering import chunk, work

from foveate.core.errors import UpstreamFailed
from foveate.engines.upstream.frames import DONE, Splitter, read

EVENTS = [json.dumps(chunk("a")).encode(), json.dumps(chunk("\n\n")).encode(), DONE]


@given(st.sampled_from([b"\n", b"\r\n"]), st.lists(st.integers(1, 40), max_size=12))
def test_events_are_the_same_however_they_arrive(end: bytes, sizes: list[int]) -> None:
    whole = b": ping" + end * 2 + b"".join(b"data: " + event + end * 2 for event in EVENTS)
    splitter, found, at = Splitter(), list[bytes](), 0
    for size in [*sizes, len(whole)]:
        found += splitter.feed(whole[at : at + size])
        at += size
    assert found == EVENTS


def test_an_event_that_goes_as_we_call_it_keeps_every_byte() -> None:
    asked = work(usage=True)
    payload = (
        b'{"id": "%s",  "model":"m", "choices":[{"index":1,"delta":{"content":"a"}}],"x":1.50}'
        % asked.request_id.encode()
    )
    found = read(payload, asked)
    assert found.data is payload
    assert (found.outputs, found.begins) == ((1,), True)


@pytest.mark.parametrize(
    ("delta", "output"),
    [
        ({"role": "assistant", "content": ""}, False),
        ({"role": "assistant", "content": None}, False),
        ({"content": "a"}, True),
        ({"reasoning_content": "a"}, True),
        ({"tool_calls": [{"index": 0}]}, True),
        ({"tool_calls": []}, False),
        ({}, False),
    ],
)
def test_what_counts_as_output(delta: dict[str, object], output: bool) -> None:
    payload = json.dumps({"id": "x", "choices": [{"index": 0, "delta": delta}]}).encode()
    assert read(payload, work()).begins == output


def test_an_end_without_output_begins_too_and_an_error_is_told() -> None:
    assert read(b'{"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}', work()).begins
    assert read(b'{"error":{"message":"no"}}', work()).error == b'{"message":"no"}'


@pytest.mark.parametrize("payload", [b"{", b"[]", b'{"choices":7}', b"[" * 5000, b'"x"'])
def test_what_cannot_be_read_is_the_upstreams_failure(payload: bytes) -> None:
    with pytest.raises(UpstreamFailed):
        read(payload, work())
