"""The official client against a real server: answers, streams, aborts, and errors as its own exceptions."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import openai
import pytest
from tests.unit.api.fake import FakeService, chat, finish, serving, token

from foveate.core.budget import Adjustment
from foveate.core.errors import (
    EncodeFailed,
    EngineFailed,
    EngineUnavailable,
    FetchFailed,
    FoveateError,
    MediaTooLarge,
    MediaUndecodable,
    MediaUnsupported,
    ModelNotFound,
    QueueFull,
)

MESSAGES: list[Any] = [
    {"role": "system", "content": "s"},
    {
        "role": "user",
        "content": [
            {"type": "text", "text": "a"},
            {"type": "image_url", "image_url": {"url": "https://h/x.png", "detail": "low"}},
        ],
    },
    {"role": "assistant", "content": "b"},
    {"role": "user", "content": "c"},
]


@asynccontextmanager
async def asking(service: FakeService, *, retries: int = 0) -> AsyncIterator[openai.AsyncOpenAI]:
    async with (
        serving(service) as server,
        openai.AsyncOpenAI(base_url=f"http://127.0.0.1:{server.port}/v1", api_key="x", max_retries=retries) as client,
    ):
        yield client


async def test_whole() -> None:
    service = FakeService()
    async with asking(service) as client:
        answer = await client.chat.completions.create(
            model="m", messages=MESSAGES, temperature=0, seed=1, user="u", max_completion_tokens=5
        )
    assert answer.choices[0].message.content == "Hello"
    assert answer.choices[0].finish_reason == "stop"
    assert answer._request_id == answer.id == service.requests[0].id
    assert answer.usage is not None
    assert answer.usage.prompt_tokens_details is not None
    assert answer.usage.prompt_tokens_details.cached_tokens == 4
    assert [len(turn.parts) for turn in service.requests[0].turns] == [1, 2, 1, 1]


async def test_a_message_of_an_answer_can_be_sent_back() -> None:
    service = FakeService()
    async with asking(service) as client:
        answer = await client.chat.completions.create(model="m", messages=MESSAGES)
        history: list[Any] = [*MESSAGES, answer.choices[0].message, {"role": "user", "content": "d"}]
        await client.chat.completions.create(model="m", messages=history)
    assert len(service.requests[1].turns) == 6


async def test_streamed() -> None:
    async with asking(FakeService()) as client:
        stream = await client.chat.completions.create(
            model="m", messages=MESSAGES, stream=True, stream_options={"include_usage": True}
        )
        chunks = [chunk async for chunk in stream]
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks[:-1]) == "Hello"
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[-2].choices[0].finish_reason == "stop"
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.total_tokens == 22


async def test_completions_and_models() -> None:
    async with asking(FakeService()) as client:
        answer = await client.completions.create(model="m", prompt="x")
        assert answer.choices[0].text == "Hello"
        assert [model.id async for model in await client.models.list()] == ["m", "org/other"]
        assert (await client.models.retrieve("org/other")).id == "org/other"


async def test_abort() -> None:
    service = FakeService(script=[token("a"), asyncio.Event()])
    async with asking(service) as client:
        stream = await client.chat.completions.create(model="m", messages=MESSAGES, stream=True)
        async for chunk in stream:
            if chunk.choices[0].delta.content == "a":
                break
        await stream.close()
        await service.left.wait()
    assert service.ended == ["CancelledError"]


@pytest.mark.parametrize(
    ("error", "expected", "status"),
    [
        (ModelNotFound(param="model"), openai.NotFoundError, 404),
        (MediaTooLarge(), openai.APIStatusError, 413),
        (MediaUnsupported(), openai.APIStatusError, 415),
        (MediaUndecodable(param="messages[1].content[1].image_url.url", part=1), openai.UnprocessableEntityError, 422),
        (QueueFull(), openai.RateLimitError, 429),
        (EngineFailed(), openai.InternalServerError, 500),
        (FetchFailed(), openai.InternalServerError, 502),
        (EngineUnavailable(), openai.InternalServerError, 503),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_errors(error: FoveateError, expected: type[openai.APIStatusError], status: int, stream: bool) -> None:
    async with asking(FakeService(before=[error])) as client:
        with pytest.raises(expected) as caught:
            await client.chat.completions.create(model="m", messages=MESSAGES, stream=stream)
    assert caught.value.status_code == status
    assert caught.value.code == error.code
    assert caught.value.param == error.param
    assert caught.value.request_id is not None


async def test_a_wrong_parameter_is_a_bad_request() -> None:
    async with asking(FakeService()) as client:
        functions: Any = [{"name": "f"}]
        with pytest.raises(openai.BadRequestError) as caught:
            await client.chat.completions.create(model="m", messages=MESSAGES, functions=functions)
    assert caught.value.param == "functions"
    assert caught.value.code == "unsupported_parameter"


async def test_a_failure_midway_is_the_clients_exception() -> None:
    async with asking(FakeService(script=[token("a"), EngineFailed()])) as client:
        stream = await client.chat.completions.create(model="m", messages=MESSAGES, stream=True)
        with pytest.raises(openai.APIError) as caught:
            [chunk async for chunk in stream]
    assert caught.value.code == "engine_failed"


@pytest.mark.parametrize(("error", "tries"), [(EngineFailed(), 2), (EncodeFailed(), 1), (MediaTooLarge(), 1)])
async def test_the_client_repeats_only_what_may_succeed(error: FoveateError, tries: int) -> None:
    service = FakeService(before=[error])
    async with asking(service, retries=1) as client:
        with pytest.raises(openai.APIStatusError):
            await client.chat.completions.create(model="m", messages=MESSAGES)
    assert len(service.requests) == tries


async def test_the_body_of_the_tests_is_a_request() -> None:
    async with asking(FakeService(script=[finish()])) as client:
        answer = await client.chat.completions.create(**chat())
    assert answer.choices[0].message.content == ""


FITTED = Adjustment(0, "messages[1].content[1].image_url.url", "max_image_width", "4000x3000", "2048x1536")


async def test_what_was_changed_to_fit_is_told() -> None:
    told = {"adjustments": [{
        "part": 1, "param": "messages[1].content[1].image_url.url", "limit_name": "max_image_width",
        "before": "4000x3000", "after": "2048x1536",
    }]}  # fmt: skip
    async with asking(FakeService(adjusted=(FITTED,))) as client:
        raw = await client.chat.completions.with_raw_response.create(model="m", messages=MESSAGES)
        assert raw.headers["x-foveate-adjusted"] == "1"
        answer = raw.parse()
        assert answer.model_extra == {"foveate": told}
        assert answer.choices[0].message.content == "Hello"
        stream = await client.chat.completions.with_raw_response.create(model="m", messages=MESSAGES, stream=True, n=2)
        assert stream.headers["x-foveate-adjusted"] == "1"
        chunks = [chunk async for chunk in stream.parse()]
    assert chunks[0].model_extra == {"foveate": told}
    assert all(not chunk.model_extra for chunk in chunks[1:])
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "Hello"


async def test_nothing_is_said_where_nothing_was_changed() -> None:
    async with asking(FakeService()) as client:
        raw = await client.chat.completions.with_raw_response.create(model="m", messages=MESSAGES)
        assert "x-foveate-adjusted" not in raw.headers
        assert raw.parse().model_extra == {}
        stream = await client.chat.completions.create(model="m", messages=MESSAGES, stream=True)
        assert not [chunk async for chunk in stream if chunk.model_extra]
