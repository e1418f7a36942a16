"""Chat with the official OpenAI client: text, pictures, turns, streams."""

from __future__ import annotations

from typing import Any

import openai
import pytest
from tests.blackbox.origins import Origin, body
from tests.blackbox.pictures import DESCRIBE, data_url, draw, encoded, image, one, text, url_of, user

RED_CIRCLE = ("red", "circle", 0.27, 0.5, 0.2)
BLUE_SQUARE = ("blue", "square", 0.73, 0.5, 0.18)


@pytest.fixture
def answer(ai: openai.OpenAI, model: str) -> Any:
    def ask(*messages: Any, **options: Any) -> str:
        reply = ai.chat.completions.create(
            model=model, messages=list(messages), temperature=0, max_tokens=32, **options
        )
        assert reply.choices[0].finish_reason == "stop"
        return str(reply.choices[0].message.content)

    return ask


def test_text(answer: Any) -> None:
    assert answer(user("Hello!")) == "Hello! Send me a picture of shapes and ask me about it."


@pytest.mark.parametrize(
    ("colour", "form", "said"),
    [
        ("red", "circle", "A red circle."),
        ("blue", "square", "A blue square."),
        ("green", "triangle", "A green triangle."),
        ("orange", "star", "An orange star."),
    ],
)
def test_one_picture(answer: Any, colour: str, form: str, said: str) -> None:
    assert answer(user(image(url_of(one(colour, form))), DESCRIBE)) == said


@pytest.mark.parametrize(
    ("form", "options"),
    [
        ("JPEG", {"quality": 90}),
        ("PNG", {}),
        ("WebP", {"quality": 90}),
        ("WebP", {"lossless": True}),
        ("GIF", {}),
        ("BMP", {}),
        ("TIFF", {}),
        ("AVIF", {}),
    ],
)
def test_formats(answer: Any, form: str, options: dict[str, Any]) -> None:
    url = data_url(encoded(one("blue", "circle"), form, **options), f"image/{form.lower()}")
    assert answer(user(image(url), DESCRIBE)) == "A blue circle."


def test_http_url(answer: Any, web: Origin) -> None:
    web.pages["/green-square.jpg"] = body(encoded(one("green", "square"), "JPEG", quality=90), "image/jpeg")
    assert answer(user(image(f"{web.url}/green-square.jpg"), DESCRIBE)) == "A green square."


def test_image_url_as_a_plain_string(answer: Any) -> None:
    part = {"type": "image_url", "image_url": url_of(one("red", "circle"))}
    assert answer(user(part, DESCRIBE)) == "A red circle."


def test_question_before_the_picture(answer: Any) -> None:
    assert answer(user(DESCRIBE, image(url_of(one("red", "circle"))))) == "A red circle."


def test_two_pictures_keep_their_order(answer: Any) -> None:
    red, blue = image(url_of(one("red", "circle"))), image(url_of(one("blue", "square")))
    question = "Which image has a red circle?"
    assert answer(user(red, blue, question)) == "The first image has the red circle."
    assert answer(user(blue, red, question)) == "The second image has the red circle."


def test_picture_in_an_earlier_turn(answer: Any) -> None:
    first = user(image(url_of(one("purple", "star"))), DESCRIBE)
    said = answer(first)
    assert said == "A purple star."
    question = user("What color is the star?")
    assert answer(first, {"role": "assistant", "content": said}, question) == "The star is purple."


def test_system_message_and_several_text_parts(answer: Any) -> None:
    system = {"role": "system", "content": "You are a helpful assistant."}
    assert answer(system, user(image(url_of(one("red", "circle"))), DESCRIBE)) == "A red circle."
    assert answer({**system, "role": "developer"}, user(text("Hel"), text("lo!"))) == answer(system, user("Hello!"))


def test_uuid_beside_a_picture_changes_nothing(answer: Any) -> None:
    part = {**image(url_of(one("green", "circle"))), "uuid": "picture-1"}
    assert answer(user(part, DESCRIBE)) == "A green circle."


def test_assistant_without_content_is_part_of_the_history(answer: Any) -> None:
    assert answer(user("Hello!"), {"role": "assistant", "content": None}, user("Hello!"))


@pytest.mark.parametrize("pictured", [False, True], ids=["text", "picture"])
def test_stream_says_what_the_whole_answer_says(ai: openai.OpenAI, model: str, pictured: bool) -> None:
    question: Any = user(image(url_of(draw(RED_CIRCLE, BLUE_SQUARE))), DESCRIBE) if pictured else user("Hello!")
    options: Any = {"model": model, "messages": [question], "temperature": 0, "max_tokens": 32}
    whole = ai.chat.completions.create(**options)
    chunks = list(ai.chat.completions.create(**options, stream=True, stream_options={"include_usage": True}))
    *told, last = chunks
    assert "".join(chunk.choices[0].delta.content or "" for chunk in told) == whole.choices[0].message.content
    assert told[0].choices[0].delta.role == "assistant"
    assert [chunk.choices[0].finish_reason for chunk in told if chunk.choices[0].finish_reason] == ["stop"]
    assert told[-1].choices[0].finish_reason == "stop"
    assert sum(bool(chunk.choices[0].delta.content) for chunk in told) > 1, "it came in one piece"
    assert all(chunk.usage is None for chunk in told)
    assert last.choices == []
    assert last.usage is not None
    assert whole.usage is not None
    assert last.usage.prompt_tokens == whole.usage.prompt_tokens
    assert last.usage.completion_tokens == whole.usage.completion_tokens
    assert len({chunk.id for chunk in chunks}) == 1
    assert chunks[0].id != whole.id


def test_stream_without_usage_has_no_usage_chunk(ai: openai.OpenAI, model: str) -> None:
    chunks = list(ai.chat.completions.create(model=model, messages=[user("Hello!")], max_tokens=4, stream=True))  # type: ignore[list-item]
    assert all(chunk.choices for chunk in chunks)


def test_usage_counts_text_and_pictures(ai: openai.OpenAI, model: str) -> None:
    def usage(*content: Any) -> Any:
        reply = ai.chat.completions.create(model=model, messages=[user(*content)], max_tokens=3)  # type: ignore[list-item]
        assert reply.usage is not None
        assert reply.usage.total_tokens == reply.usage.prompt_tokens + reply.usage.completion_tokens
        return reply.usage.prompt_tokens

    small, large = (image(url_of(one("red", "circle", size=(side, side)))) for side in (112, 224))
    plain = usage(text(DESCRIBE))
    # Patches of 14 pixels merged two by two: one token for 28 x 28 pixels, and the two marks around a picture.
    assert usage(small, DESCRIBE) == plain + 16 + 2
    assert usage(large, DESCRIBE) == plain + 64 + 2
    assert usage(small, large, DESCRIBE) == plain + 16 + 64 + 4


def test_low_detail_costs_no_more_tokens(ai: openai.OpenAI, model: str) -> None:
    tokens = {}
    for detail in ("low", "high", "auto"):
        part = image(url_of(one("red", "circle", size=(900, 900))), detail=detail)
        reply = ai.chat.completions.create(model=model, messages=[user(part, DESCRIBE)], temperature=0, max_tokens=16)  # type: ignore[list-item]
        assert reply.choices[0].message.content == "A red circle."
        assert reply.usage is not None
        tokens[detail] = reply.usage.prompt_tokens
    assert tokens["low"] <= tokens["auto"] == tokens["high"]


def test_models(ai: openai.OpenAI, model: str) -> None:
    listed = ai.models.list().data
    assert [entry.id for entry in listed] == [model]
    assert listed[0].object == "model"
    assert ai.models.retrieve(model).id == model


def test_unknown_model(ai: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as caught:
        ai.chat.completions.create(model="no-such-model", messages=[user("Hello!")])  # type: ignore[list-item]
    assert caught.value.param == "model"


def test_refusal_reaches_the_official_client_with_its_part(ai: openai.OpenAI, model: str) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        ai.chat.completions.create(model=model, messages=[user("x", image("ftp://example.com/x.png"))])  # type: ignore[list-item]
    assert (caught.value.param or "").startswith("messages[0].content[1]")
    assert caught.value.code
