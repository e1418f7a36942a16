"""Types and ranges of every declared parameter, and the recorded shapes of parts."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.unit.api.asking import case_lines, parsed, refusal_of
from tests.unit.api.fake import chat, with_parts

from foveate.core.errors import InvalidParameter, InvalidPart
from foveate.core.media import DataRef
from foveate.core.request import TextPart

RANGES: dict[str, tuple[list[Any], list[Any]]] = {
    "temperature": ([0, 0.5, 2], [-0.1, 2.1, "1", True]),
    "top_p": ([0.01, 1], [0, 1.01, "x"]),
    "top_k": ([-1, 0, 1, 50], [-2, 1.5, True]),
    "min_p": ([0, 1], [-0.1, 1.1]),
    "seed": ([0, -(2**63), 2**63 - 1], [2**63, -(2**63) - 1, 0.5, "1"]),
    "n": ([1, 8], [0, 9, -1]),
    "presence_penalty": ([-2, 2], [-2.1, 2.1]),
    "frequency_penalty": ([-2, 2], [-2.1, 2.1]),
    "max_tokens": ([1, 100, 7.0], [0, -1, 2**31, 1.5]),
    "max_completion_tokens": ([1, 100], [0, "5"]),
    "min_tokens": ([0, 1], [-1]),
    "ignore_eos": ([True, False], [1, "yes"]),
    "stream": ([False], [0, "true"]),
    "stop": (["a", ["a"], [], ["a"] * 16], ["", [""], ["a"] * 17, 5, [5], {"a": 1}]),
    "logprobs": ([True, False], [1, "a"]),
    "model": (["m", "org/other"], [5, ["m"]]),
}


@pytest.mark.parametrize("name", RANGES)
def test_ranges(name: str) -> None:
    accepted, refused = RANGES[name]
    for value in [*accepted, None]:
        parsed(chat(**{name: value}))
    for value in refused:
        error = refusal_of(chat(**{name: value}))
        assert isinstance(error, InvalidParameter), (name, value)
        assert (error.param or "").startswith(name)
        assert name in error.public


@pytest.mark.parametrize("text", [b"NaN", b"Infinity", b"-Infinity", b"1e999"])
def test_numbers_that_are_none(text: bytes) -> None:
    body = b'{"model":"m","messages":[{"role":"user","content":"x"}],"temperature":' + text + b"}"
    assert refusal_of(body).param == "temperature"


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"", "not valid JSON"),
        (b"{", "not valid JSON"),
        (b"\xff", "not valid JSON"),
        (b'{"a":1}x', "not valid JSON"),
        (b'{"messages":"\\ud800"}', "not valid JSON"),
        (b"[" * 500, "not valid JSON"),
        (b"[]", "JSON object"),
        (b'"x"', "JSON object"),
        (b"null", "JSON object"),
    ],
)
def test_bodies_that_are_no_object(body: bytes, words: str) -> None:
    error = refusal_of(body)
    assert isinstance(error, InvalidParameter)
    assert error.param is None
    assert words in error.public


SHAPES: list[str | None] = [
    None,
    "messages[0].content[0].image_url.url",
    "messages[0].content[0].image_url",
    "messages[0].content[0].image_url",
    "messages[0].content[0]",
    "messages[0].content[0]",
    "messages[0].content[0]",
    "messages[0].content",
    "messages[0].content",
    None,
    None,
    "messages[0].content[0].image_url.url",
    "messages[0].content[0].image_url.url",
    "messages",
]


@pytest.mark.parametrize(("line", "param"), list(zip(case_lines("case108_part_shapes.jsonl"), SHAPES, strict=True)))
def test_recorded_part_shapes(line: bytes, param: str | None) -> None:
    if param is None:
        parsed(line)
        return
    error = refusal_of(line)
    assert error.param == param
    assert isinstance(error, InvalidPart if ".content" in param else InvalidParameter)
    assert error.part == (0 if "content[0]" in param else None)


DETAILS = ["low", "high", "auto", "low", None, None, "auto", None]


@pytest.mark.parametrize(("line", "detail"), list(zip(case_lines("case109_detail_values.jsonl"), DETAILS, strict=True)))
def test_recorded_details(line: bytes, detail: str | None) -> None:
    if detail is None:
        assert refusal_of(line).param == "messages[0].content[0].image_url.detail"
    else:
        assert parsed(line).images[0].detail == detail


@pytest.mark.parametrize("line", case_lines("case100_requests.jsonl"))
def test_special_tokens_stay_text(line: bytes) -> None:
    request = parsed(line)
    text = request.turns[0].parts[1]
    assert isinstance(text, TextPart)
    assert text.text == json.loads(line)["messages"][0]["content"][1]["text"]
    assert len(request.images) == 1


def test_recorded_history_of_five_pictures() -> None:
    request = parsed(case_lines("case102_five_images_limit4.json")[0])
    assert [image.index for image in request.images] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("line", case_lines("case036_data_urls.jsonl"), ids=lambda line: json.loads(line)["name"])
def test_recorded_data_urls_go_to_the_journey_or_are_refused(line: bytes) -> None:
    case = json.loads(line)
    body = with_parts({"type": "image_url", "image_url": {"url": case["url"]}})
    if case["name"] == "raw base64":
        error = refusal_of(body)
        assert error.code == "invalid_data_url"
        assert "data:image/jpeg;base64," in error.public
    else:
        assert parsed(body).images[0].ref == DataRef(case["url"])


@pytest.mark.parametrize("kind", ["image", "input_image", "video", "input_audio", "refusal", "", None, 5, "TEXT"])
def test_unknown_part_types_are_named_by_place(kind: Any) -> None:
    error = refusal_of(with_parts({"type": "text", "text": "x"}, {"type": kind, "text": "x"}))
    assert isinstance(error, InvalidPart)
    assert all(name in error.public for name in ("text", "image_url", "video_url", "input_video"))
    assert (error.param, error.part) == ("messages[0].content[1]", 1)


@pytest.mark.parametrize("part", ["x", None, 5, [], {}])
def test_parts_that_are_no_parts(part: Any) -> None:
    error = refusal_of(with_parts({"type": "text", "text": "x"}, part))
    assert (error.param, error.part) == ("messages[0].content[1]", 1)


def test_the_first_bad_part_of_many_is_named() -> None:
    good = {"type": "text", "text": "x"}
    error = refusal_of(
        {"messages": [{"role": "user", "content": "x"}, {"role": "user", "content": [good, {"type": "text"}, {}]}]}
    )
    assert error.param == "messages[1].content[1].text"


def test_values_sent_are_never_repeated() -> None:
    secret = "SECRET" * 1000
    for body in (
        chat(temperature=secret),
        with_parts({"type": secret}),
        with_parts({"type": "image_url", "image_url": {"url": 1, "detail": secret}}),
        with_parts({"type": "image_url", "image_url": {"url": secret}}),
    ):
        error = refusal_of(body)
        assert "SECRETSECRET" not in error.public + error.detail


def test_roles() -> None:
    for role in ("system", "developer", "user", "assistant", "tool"):
        parsed({"messages": [{"role": role, "content": "x"}]})
    assert refusal_of({"messages": [{"role": "function", "content": "x"}]}).param == "messages[0].role"
    assert refusal_of({"messages": [{"content": "x"}]}).param == "messages[0].role"
