"""The shipped model answers about pictures, through all four faces."""

from __future__ import annotations

import pytest
import torch
from PIL import Image, ImageDraw
from tests.unit.models.loaded import Loaded, conversation, encode, greedy, joint_call, process, prompt_ids

from foveate import models

import numpy as np  # isort: skip


def drawn(colour: tuple[int, int, int], *, circle: bool) -> np.ndarray:
    image = Image.new("RGB", (224, 224), (235, 235, 235))
    draw = ImageDraw.Draw(image)
    (draw.ellipse if circle else draw.rectangle)((60, 60, 165, 165), fill=colour)
    return np.asarray(image)


def answer(demo: Loaded, question: str, images: list[np.ndarray]) -> str:
    from foveate.core.media import UrlRef
    from foveate.core.request import ImagePart, TextPart, Turn

    turns = [Turn("user", (*(ImagePart(index, "p", UrlRef("u")) for index in range(len(images))), TextPart(question)))]
    processed = process(demo, images)
    ids = prompt_ids(demo, turns, processed)
    tokens = greedy(demo, ids, encode(demo, processed), 24)[0]
    ends = [index for index, token in enumerate(tokens) if token in demo.language.eos_token_ids]
    text: str = demo.their_processor.tokenizer.decode(tokens[: ends[0]] if ends else tokens)
    return text


@pytest.mark.parametrize(
    ("question", "expected"),
    [
        ("What color is the circle?", "red"),
        ("What shape is in the picture?", "circle"),
        ("Describe the picture.", "red circle"),
    ],
)
def test_a_drawn_red_circle(demo: Loaded, question: str, expected: str) -> None:
    assert expected in answer(demo, question, [drawn((220, 30, 30), circle=True)])


def test_the_answer_follows_the_picture(demo: Loaded) -> None:
    found = answer(demo, "Describe the picture.", [drawn((30, 60, 220), circle=False)])
    assert "blue" in found
    assert "square" in found


def test_tokens_equal_the_joint_call(demo: Loaded) -> None:
    images = [drawn((220, 30, 30), circle=True), drawn((30, 60, 220), circle=False)]
    turns = conversation(2)
    ids = prompt_ids(demo, turns, process(demo, images))
    assert ids == joint_call(demo, turns, images)["input_ids"][0].tolist()


def test_one_damaged_picture_fails_alone(demo: Loaded) -> None:
    processed = process(demo, [drawn((220, 30, 30), circle=True)])[0]
    good = {name: torch.from_numpy(value) for name, value in processed.arrays.items()}
    bad = {**good, "image_grid_thw": torch.tensor([[1, 2, 3]])}
    for together in (False, True):
        first, second, third = demo.tower.encode([good, bad, good], together=together)
        assert isinstance(second, Exception)
        assert not isinstance(first, Exception)
        assert not isinstance(third, Exception)
        torch.testing.assert_close(first.rows, third.rows)


def test_rows_must_be_as_many_as_picture_tokens(demo: Loaded) -> None:
    processed = process(demo, [drawn((220, 30, 30), circle=True)])
    ids, pictures = prompt_ids(demo, conversation(1), processed), encode(demo, processed)
    with pytest.raises(ValueError, match="128 embedding rows"):
        demo.language.positions(ids, [*pictures, *pictures])


def test_positions_are_not_kept_on_the_model(demo: Loaded) -> None:
    processed = process(demo, [drawn((220, 30, 30), circle=True)])
    ids, pictures = prompt_ids(demo, conversation(1), processed), encode(demo, processed)
    expected = greedy(demo, ids, pictures, 6)[0]
    demo.language._model.model.rope_deltas = torch.tensor([[999]])  # type: ignore[attr-defined]
    assert greedy(demo, ids, pictures, 6)[0] == expected


def test_the_family_is_on_the_list() -> None:
    assert "Qwen2.5-VL" in models.supported_families()
