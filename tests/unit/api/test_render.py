"""Answers byte for byte: whole and streamed, chat and completion, with several choices and log-probabilities."""

from __future__ import annotations

import json
from typing import Any

import pytest
from msgspec.structs import replace
from tests.unit.api.asking import client
from tests.unit.api.fake import TIMING, FakeService, chat, finish, logprob, token

from foveate.core.tool_use import ToolCallDelta
from foveate.engines.port import TokenStep

USAGE = {
    "prompt_tokens": 20,
    "completion_tokens": 2,
    "total_tokens": 22,
    "prompt_tokens_details": {"cached_tokens": 4, "image_tokens": 12, "images": 1, "frames": 0},
}


async def streamed(service: FakeService, body: dict[str, Any], path: str = "/v1/chat/completions") -> list[Any]:
    """Return the frames of a stream; every one is checked to be exactly ``data: …`` and a blank line."""
    async with client(service) as http:
        reply = await http.post(path, json={**body, "stream": True})
    assert reply.status_code == 200
    assert reply.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert reply.headers["server-timing"] == TIMING
    frames = reply.text.split("\n\n")
    assert frames.pop() == ""
    assert all(frame.startswith("data: ") and "\n" not in frame for frame in frames)
    assert frames.pop() == "data: [DONE]"
    return [json.loads(frame.removeprefix("data: ")) for frame in frames]


async def test_whole_chat() -> None:
    async with client(FakeService()) as http:
        reply = await http.post("/v1/chat/completions", json=chat())
    body = reply.json()
    assert body.pop("id") == reply.headers["x-request-id"]
    assert body.pop("created") > 1_700_000_000
    assert body == {
        "object": "chat.completion",
        "model": "m",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "Hello", "refusal": None},
                "logprobs": None,
                "finish_reason": "stop",
            }
        ],
        "usage": USAGE,
    }
    assert reply.headers["content-type"] == "application/json"
    assert reply.headers["server-timing"] == TIMING
    assert reply.headers["cache-control"] == "no-store"
    assert reply.headers["x-request-id"].startswith("chatcmpl-")


async def test_streamed_chat() -> None:
    chunks = await streamed(
        FakeService(script=[token("Hé"), token(""), token("\n\nlo"), finish(reason="length")]), chat()
    )
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    assert len({(chunk["id"], chunk["created"], chunk["model"]) for chunk in chunks}) == 1
    assert all("usage" not in chunk for chunk in chunks)
    assert [chunk["choices"] for chunk in chunks] == [
        [{"index": 0, "delta": {"role": "assistant", "content": ""}, "logprobs": None, "finish_reason": None}],
        [{"index": 0, "delta": {"content": "Hé"}, "logprobs": None, "finish_reason": None}],
        [{"index": 0, "delta": {"content": "\n\nlo"}, "logprobs": None, "finish_reason": None}],
        [{"index": 0, "delta": {}, "logprobs": None, "finish_reason": "length"}],
    ]


async def test_streamed_usage_comes_last_and_is_null_before() -> None:
    chunks = await streamed(FakeService(), chat(stream_options={"include_usage": True}))
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"] == USAGE
    assert [chunk["usage"] for chunk in chunks[:-1]] == [None] * 4


async def test_choices_are_told_apart() -> None:
    script = [
        token("a", 1),
        token("b", 0),
        token("c", 1),
        finish(1, last=False),
        token("d", 0),
        finish(0, reason="length"),
    ]
    chunks = await streamed(FakeService(script=list(script)), chat(n=2))
    told = [(chunk["choices"][0]["index"], chunk["choices"][0]["delta"].get("content")) for chunk in chunks]
    assert told == [(0, ""), (1, ""), (1, "a"), (0, "b"), (1, "c"), (1, None), (0, "d"), (0, None)]
    async with client(FakeService(script=list(script))) as http:
        whole = (await http.post("/v1/chat/completions", json=chat(n=2))).json()
    assert [
        (choice["index"], choice["message"]["content"], choice["finish_reason"]) for choice in whole["choices"]
    ] == [
        (0, "bd", "length"),
        (1, "ac", "stop"),
    ]


STEPS = [
    TokenStep(logprob("Hel", -0.5), [logprob("Hel", -0.5), logprob("He", -1.5)]),
    TokenStep(logprob("é", -0.25), [logprob("é", -0.25), logprob("o", float("-inf"))]),
]  # fmt: skip
SCRIPT = [token("Hel", steps=STEPS[:1]), token("", steps=STEPS[1:]), finish()]


async def test_chat_logprobs() -> None:
    expected = [
        {
            "token": "Hel", "logprob": -0.5, "bytes": [72, 101, 108],
            "top_logprobs": [
                {"token": "Hel", "logprob": -0.5, "bytes": [72, 101, 108]},
                {"token": "He", "logprob": -1.5, "bytes": [72, 101]},
            ],
        },
        {
            "token": "é", "logprob": -0.25, "bytes": [195, 169],
            "top_logprobs": [
                {"token": "é", "logprob": -0.25, "bytes": [195, 169]},
                {"token": "o", "logprob": -9999.0, "bytes": [111]},
            ],
        },
    ]  # fmt: skip
    asked = chat(logprobs=True, top_logprobs=2)
    async with client(FakeService(script=list(SCRIPT))) as http:
        whole = (await http.post("/v1/chat/completions", json=asked)).json()
    assert whole["choices"][0]["logprobs"] == {"content": expected, "refusal": None}
    chunks = await streamed(FakeService(script=list(SCRIPT)), asked)
    told = [chunk["choices"][0]["logprobs"] for chunk in chunks]
    assert told[0] is None
    assert told[1]["content"] == expected[:1]
    assert told[2]["content"] == expected[1:]
    assert told[3] is None


async def test_steps_without_logprobs_asked_are_not_told() -> None:
    chunks = await streamed(FakeService(script=list(SCRIPT)), chat())
    assert all(chunk["choices"][0]["logprobs"] is None for chunk in chunks)
    assert len(chunks) == 3


async def test_whole_completion() -> None:
    expected = {
        "tokens": ["Hel", "é"],
        "token_logprobs": [-0.5, -0.25],
        "top_logprobs": [{"Hel": -0.5, "He": -1.5}, {"é": -0.25, "o": -9999.0}],
        "text_offset": [0, 3],
    }
    asked = {"model": "m", "prompt": "x", "logprobs": 2}
    async with client(FakeService(script=list(SCRIPT))) as http:
        whole = (await http.post("/v1/completions", json=asked)).json()
    assert whole["id"].startswith("cmpl-")
    assert whole["object"] == "text_completion"
    assert whole["choices"] == [{"index": 0, "text": "Hel", "logprobs": expected, "finish_reason": "stop"}]
    assert whole["usage"] == USAGE
    chunks = await streamed(FakeService(script=list(SCRIPT)), asked, "/v1/completions")
    assert [chunk["choices"][0]["text"] for chunk in chunks] == ["Hel", "", ""]
    assert [(chunk["choices"][0]["logprobs"] or {}).get("text_offset") for chunk in chunks] == [[0], [3], None]
    assert chunks[-1]["choices"][0]["finish_reason"] == "stop"


async def test_streamed_completion_usage() -> None:
    body = {"prompt": "x", "stream_options": {"include_usage": True}}
    chunks = await streamed(FakeService(), body, "/v1/completions")
    assert chunks[-1]["usage"] == USAGE
    assert chunks[-1]["choices"] == []


@pytest.mark.parametrize("script", [[token("a")], []])
async def test_an_answer_that_does_not_finish_is_a_failure(script: list[Any]) -> None:
    async with client(FakeService(script=script)) as http:
        reply = await http.post("/v1/chat/completions", json=chat())
    assert reply.status_code == 500
    assert reply.json()["error"]["code"] == "engine_failed"


def parts() -> list[Any]:
    begun = ToolCallDelta(0, "c1", "look", "")
    more = [ToolCallDelta(0, None, None, '{"a"'), ToolCallDelta(0, None, None, ": 1}")]
    said = [replace(token(""), reasoning="Hm. "), replace(token("I look."), calls=[begun])]
    return [*said, *(replace(token(""), calls=[one]) for one in more), replace(finish(), reason="tool_calls")]


async def test_calls_and_reasoning_whole() -> None:
    async with client(FakeService(script=parts())) as http:
        reply = await http.post("/v1/chat/completions", json=chat())
    (choice,) = reply.json()["choices"]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"] == {
        "role": "assistant",
        "content": "I look.",
        "refusal": None,
        "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"a": 1}'}}],
        "reasoning": "Hm. ",
        "reasoning_content": "Hm. ",
    }


async def test_calls_alone_have_no_content() -> None:
    script = [replace(token(""), calls=[ToolCallDelta(0, "c1", "look", "{}")]), finish()]
    async with client(FakeService(script=script)) as http:
        reply = await http.post("/v1/chat/completions", json=chat())
    assert reply.json()["choices"][0]["message"]["content"] is None


async def test_calls_and_reasoning_in_a_stream() -> None:
    chunks = await streamed(FakeService(script=parts()), chat())
    assert [chunk["choices"][0]["delta"] for chunk in chunks[1:]] == [
        {"reasoning": "Hm. ", "reasoning_content": "Hm. "},
        {
            "content": "I look.",
            "tool_calls": [{"index": 0, "id": "c1", "type": "function", "function": {"name": "look", "arguments": ""}}],
        },
        {"tool_calls": [{"index": 0, "function": {"arguments": '{"a"'}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": ": 1}"}}]},
        {},
    ]


async def test_what_stopped_a_choice_and_what_the_prompt_was_made_of() -> None:
    script = [replace(token("x"), prompt_logprobs=b"[null]"), replace(finish(), stopped_by=7)]
    async with client(FakeService(script=script)) as http:
        chat_reply = (await http.post("/v1/chat/completions", json=chat())).json()
        body = {"model": "m", "prompt": "x"}
        completion = (await http.post("/v1/completions", json=body)).json()["choices"][0]
    assert (chat_reply["prompt_logprobs"], chat_reply["choices"][0]["stop_reason"]) == ([None], 7)
    assert (completion["prompt_logprobs"], completion["stop_reason"]) == ([None], 7)
    chunks = await streamed(FakeService(script=script), chat())
    assert chunks[-1]["choices"][0]["stop_reason"] == 7
