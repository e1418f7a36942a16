"""Rules between fields, and what each content part refers to."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests.unit.api.asking import ARRIVAL, parsed, parsed_completion, refusal_of
from tests.unit.api.fake import chat, with_parts

from foveate.api.convert import Arrival
from foveate.core.errors import (
    DataUrlInvalid,
    InvalidParameter,
    ModelNotFound,
    Refused,
    UnsupportedParameter,
    UrlInvalid,
    UrlRefused,
)
from foveate.core.media import DataRef, EmbedsRef, InlineRef, NamedRef, ProcessorOptions, UrlRef
from foveate.core.request import ImagePart, Sampling, TextPart, Turn


def picture(url: str, **fields: Any) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url}, **fields}


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


def test_defaults() -> None:
    request = parsed(chat())
    assert request.sampling == Sampling(tokens_max=0)
    assert (request.id, request.model, request.kind, request.received_at) == ("chatcmpl-1", "m", "chat", 5.0)
    assert request.turns == (Turn("user", (TextPart("x"),)),)
    assert not request.stream
    assert not request.include_usage


def test_every_sampling_parameter_arrives() -> None:
    request = parsed(
        chat(
            max_tokens=9, temperature=0, top_p=0.5, top_k=7, min_p=0.1, seed=-3, stop=["a", "b"], n=2,
            presence_penalty=1, frequency_penalty=-1, logprobs=True, top_logprobs=4,
            min_tokens=2, ignore_eos=True, stream=True, stream_options={"include_usage": True}, model="org/other",
        )
    )  # fmt: skip
    assert request.sampling == Sampling(
        tokens_max=9, temperature=0, top_p=0.5, top_k=7, min_p=0.1, seed=-3, stop=("a", "b"), n=2, presence_penalty=1,
        frequency_penalty=-1, logprobs=4, tokens_min=2, ignore_eos=True,
    )  # fmt: skip
    assert request.stream
    assert request.include_usage
    assert request.model == "org/other"


@pytest.mark.parametrize(("value", "expected"), [(-1, 0), (0, 0), (3, 3)])
def test_top_k_off(value: int, expected: int) -> None:
    assert parsed(chat(top_k=value)).sampling.top_k == expected


def test_logprobs() -> None:
    assert parsed(chat(logprobs=True)).sampling.logprobs == 0
    assert parsed(chat(logprobs=False)).sampling.logprobs is None
    assert refusal_of(chat(top_logprobs=2)).param == "top_logprobs"
    assert refusal_of(chat(logprobs=True, top_logprobs=21)).param == "top_logprobs"


def test_both_names_of_the_token_limit() -> None:
    assert parsed(chat(max_completion_tokens=5)).sampling.tokens_max == 5
    assert parsed(chat(max_tokens=5, max_completion_tokens=5)).sampling.tokens_max == 5
    assert refusal_of(chat(max_tokens=5, max_completion_tokens=6)).param == "max_tokens"
    assert refusal_of(chat(max_tokens=5, min_tokens=6)).param == "min_tokens"


def test_stream_options_need_a_stream() -> None:
    assert refusal_of(chat(stream_options={"include_usage": True})).param == "stream_options"
    assert refusal_of(chat(stream=True, stream_options={"include_obfuscation": True})).param == (
        "stream_options.include_obfuscation"
    )
    parsed(chat(stream=True, stream_options={"include_obfuscation": False}))
    assert refusal_of(chat(stream=True, stream_options={"usage": True})).param == "stream_options.usage"


def test_model() -> None:
    body = chat()
    del body["model"]
    assert parsed(body).model == "m"
    error = refusal_of(chat(model="gpt"))
    assert isinstance(error, ModelNotFound)
    assert error.param == "model"
    assert "org/other" in error.public


def test_developer_is_system_and_order_is_kept() -> None:
    request = parsed(
        {
            "messages": [
                {"role": "developer", "content": "d"},
                {"role": "user", "content": [text("a"), picture("https://h/1"), text("b")]},
                {"role": "assistant", "content": None},
                {"role": "tool", "tool_call_id": "c", "content": [picture("https://h/2", uuid="u")]},
            ]
        }
    )  # fmt: skip
    assert [turn.role for turn in request.turns] == ["system", "user", "assistant", "tool"]
    assert request.turns[1].parts == (
        TextPart("a"),
        ImagePart(0, "messages[1].content[1].image_url.url", UrlRef("https://h/1")),
        TextPart("b"),
    )
    assert request.turns[2].parts == ()
    assert request.images[1] == ImagePart(1, "messages[3].content[0].image_url.url", UrlRef("https://h/2"), "auto", "u")


@pytest.mark.parametrize("role", ["system", "developer", "user", "tool"])
def test_only_the_assistant_may_say_nothing(role: str) -> None:
    assert refusal_of({"messages": [{"role": role, "content": None}]}).param == "messages[0].content"
    assert refusal_of({"messages": [{"role": role}]}).param == "messages[0].content"


def test_string_form_names_the_string() -> None:
    assert parsed(with_parts({"type": "image_url", "image_url": "https://h/x"})).images[0].param == (
        "messages[0].content[0].image_url"
    )
    assert refusal_of(with_parts({"type": "image_url", "image_url": ""})).param == "messages[0].content[0].image_url"


@pytest.mark.parametrize(
    ("url", "kind"),
    [
        ("picture.png", UrlInvalid),
        ("/tmp/x.png", UrlInvalid),
        ("//host/x.png", UrlInvalid),
        ("iVBORw0KGgoAAAANSUhEUgAAAAQAAAAECAIAAAAmkwkp", DataUrlInvalid),
        ("/9j/4AAQSkZJRgABAQAAAQABAAD/2wBDAAgGBgcGBQgH", DataUrlInvalid),
    ],
)
def test_urls_that_are_refused_at_once(url: str, kind: type[Refused]) -> None:
    error = refusal_of(with_parts({"type": "text", "text": "x"}, picture(url)))
    assert type(error) is kind
    assert (error.param, error.part) == ("messages[0].content[1].image_url.url", 1)


@pytest.mark.parametrize(
    "url",
    [
        "https://h/x",
        "HTTP://h/x",
        " https://h/x",
        "file:///srv/a%20b.png",
        "ftp://h/x",
        "javascript:x",
        "inline:0",
        "INLINE:0",
    ],
)
def test_urls_of_any_scheme_are_passed_on_byte_for_byte_for_the_policy_to_judge(url: str) -> None:
    assert parsed(with_parts(picture(url))).images[0].ref == UrlRef(url)


def test_data_urls_are_passed_on() -> None:
    assert parsed(with_parts(picture("DATA:image/png;base64,AA"))).images[0].ref == DataRef("DATA:image/png;base64,AA")


def test_pictures_taken_out_of_a_large_body() -> None:
    arrival = msgspec.structs.replace(ARRIVAL, inline=2)
    request = parsed(with_parts(picture("inline:0"), picture("https://h/x"), picture("inline:1")), arrival=arrival)
    assert [image.ref for image in request.images] == [InlineRef(0), UrlRef("https://h/x"), InlineRef(1)]


@pytest.mark.parametrize(
    "url", ["inline:2", "inline:0", "inline:-1", "inline:", "inline:x", "Inline:1", "inline:٣", "inline:" + "9" * 30]
)
def test_a_client_cannot_write_inline_references(url: str) -> None:
    arrival = Arrival("i", 0.0, ("m",), inline=2)
    with pytest.raises(UrlRefused) as caught:
        parsed(with_parts(picture("inline:0"), picture(url)), arrival=arrival)
    assert caught.value.part == 1


def test_completions() -> None:
    request = parsed_completion({"model": "m", "prompt": "Once", "logprobs": 0})
    assert (request.kind, request.prompt, request.turns) == ("completion", "Once", ())
    assert request.sampling == Sampling(tokens_max=16, logprobs=0)
    assert parsed_completion({"prompt": ["Once"], "max_tokens": 3}).prompt == "Once"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({}, "prompt"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": ["a", "b"]}, "prompt"),
        ({"prompt": [1, 2]}, "prompt"),
        ({"prompt": [1]}, "prompt[0]"),
        ({"prompt": "x", "logprobs": 6}, "logprobs"),
        ({"prompt": "x", "logprobs": True}, "logprobs"),
        ({"prompt": "x", "messages": []}, "messages"),
        ({"prompt": "x", "echo": True}, "echo"),
        ({"prompt": "x", "best_of": 2}, "best_of"),
        ({"prompt": "x", "suffix": "y"}, "suffix"),
    ],
)
def test_completions_refused(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(Refused) as caught:
        parsed_completion(fields)
    assert caught.value.param == param
    assert isinstance(caught.value, InvalidParameter) or fields.keys() & {"echo", "best_of", "suffix"}


@pytest.mark.parametrize(
    ("part", "param"),
    [
        ({"type": "image_url", "image_url": None}, "image_url"),
        ({"type": "image_url"}, "image_url"),
        ({"type": "image_url", "image_url": {}}, "image_url.url"),
        ({"type": "image_url", "image_url": {"url": None, "detail": "low"}}, "image_url.url"),
        ({"type": "video_url", "video_url": None}, "video_url"),
        ({"type": "video_url", "video_url": {"num_frames": 2}}, "video_url.url"),
    ],
)
def test_media_that_are_named_need_not_be_sent(part: dict[str, Any], param: str) -> None:
    at = f"messages[0].content[0].{param}"
    (named,) = parsed(with_parts({**part, "uuid": "u"})).media
    assert (named.ref, named.uuid, named.param) == (NamedRef("u"), "u", at)
    refused = refusal_of(with_parts(part))
    assert (refused.param, refused.part) == (at, 0)
    assert "uuid" in refused.public


def test_what_is_asked_of_the_picture_processor() -> None:
    assert parsed(chat()).processor == ProcessorOptions()
    assert parsed(chat(mm_processor_kwargs={})).processor == ProcessorOptions()
    asked = {"min_pixels": 10, "max_pixels": 20.0, "size": {"shortest_edge": 30, "longest_edge": None}}
    assert parsed(chat(mm_processor_kwargs=asked)).processor == ProcessorOptions(10, 20, 30, None)


@pytest.mark.parametrize(
    ("asked", "param", "kind"),
    [
        ({"max_pixel": 1}, "mm_processor_kwargs.max_pixel", InvalidParameter),
        ({"num_crops": 4}, "mm_processor_kwargs.num_crops", UnsupportedParameter),
        ({"size": {"height": 4}}, "mm_processor_kwargs.size.height", InvalidParameter),
        ({"size": 4}, "mm_processor_kwargs.size", InvalidParameter),
        ({"max_pixels": 0}, "mm_processor_kwargs.max_pixels", InvalidParameter),
        ({"max_pixels": "1"}, "mm_processor_kwargs.max_pixels", InvalidParameter),
        ({"min_pixels": True}, "mm_processor_kwargs.min_pixels", InvalidParameter),
        ({"size": {"longest_edge": -1}}, "mm_processor_kwargs.size.longest_edge", InvalidParameter),
    ],
)
def test_what_may_not_be_asked_of_it_is_refused_by_name(asked: Any, param: str, kind: type[Refused]) -> None:
    error = refusal_of(chat(mm_processor_kwargs=asked))
    assert type(error) is kind
    assert error.param == param
    assert param in error.public


@pytest.mark.parametrize(
    ("given", "ref", "param"),
    [
        ("AAAA", EmbedsRef(DataRef("data:;base64,AAAA")), "image_embeds"),
        (
            "data:application/octet-stream;base64,AAAA",
            EmbedsRef(DataRef("data:application/octet-stream;base64,AAAA")),
            "image_embeds",
        ),
        (
            {"image_embeds": "AAAA", "image_grid_thw": [1, 14, 22]},
            EmbedsRef(DataRef("data:;base64,AAAA"), (1, 14, 22)),
            "image_embeds.image_embeds",
        ),
        (
            {"image_embeds": "AAAA", "image_grid_thw": "BBBB"},
            EmbedsRef(DataRef("data:;base64,AAAA"), "BBBB"),
            "image_embeds.image_embeds",
        ),
    ],
)
def test_embeddings_as_vllm_takes_them(given: Any, ref: EmbedsRef, param: str) -> None:
    (part,) = parsed(with_parts({"type": "image_embeds", "image_embeds": given, "uuid": "u"})).media
    assert (part.ref, part.uuid, part.param) == (ref, "u", f"messages[0].content[0].{param}")


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"image_embeds": ""},
        {"image_embeds": "AAAA", "image_grid_thw": [1, 2]},
        {"image_embeds": "AAAA", "image_grid_thw": [1, 2, "3"]},
        {"image_embeds": "AAAA", "image_grid_thw": "A" * 9000},
        {"image_embeds": "AAAA", "other": 1},
        {"image_embeds": "https://host/rows.npy"},
        "file:///rows.npy",
        "inline:0",
        None,
        7,
    ],
)
def test_embeddings_that_are_none(given: Any) -> None:
    refused = refusal_of(with_parts({"type": "image_embeds", "image_embeds": given}))
    assert refused.param is not None
    assert refused.param.startswith("messages[0].content[0].image_embeds")
