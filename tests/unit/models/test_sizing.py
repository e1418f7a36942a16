"""The price of a picture, known from its size alone, is what the processor makes of it."""

from __future__ import annotations

import math
from collections.abc import Callable

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.models.loaded import Loaded, pixels

from foveate.core.errors import ImageShapeRefused
from foveate.core.media import ImageOptions
from foveate.models.families import FAMILIES

ModelOf = Callable[[str], Loaded]
NAMES = list(FAMILIES)
QWEN = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl")
SIZES = (
    (1, 1), (1, 2), (2, 1), (3, 100), (190, 1), (26, 28), (305, 30), (31, 639), (56, 56), (57, 56), (112, 168),
    (333, 500), (640, 480), (1500, 130), (1000, 1300),
)  # fmt: skip
OPTIONS = (
    ImageOptions(),
    ImageOptions(pixels_max=1),
    ImageOptions(pixels_max=20_000),
    ImageOptions(several=True),
    ImageOptions(pixels_min=1),
    ImageOptions(pixels_min=30_000),
    ImageOptions(pixels_max=20_000, pixels_min=15_000),
)


def input_bytes(arrays: dict[str, np.ndarray]) -> int:
    return sum(-(-array.nbytes // 64) * 64 for array in arrays.values())


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_estimate_equals_what_the_processor_makes(name: str, options: ImageOptions, model_of: ModelOf) -> None:
    model = model_of(name)
    for width, height in SIZES if options == ImageOptions() else SIZES[3::2]:
        try:
            made = model.pictures.process(pixels(width, height), options)
        except ImageShapeRefused:
            # Only shapes that leave nothing of the shorter side.
            assert name in ("pixtral", "mistral3")
            assert max(width, height) / min(width, height) > (math.isqrt(options.pixels_max) or 224)
            with pytest.raises(ImageShapeRefused):
                model.prompt.estimate(width, height, options)
            continue
        estimate = model.prompt.estimate(width, height, options)
        tokens = len(model.their_processor.tokenizer.encode(made.replacement, add_special_tokens=False))
        assert (estimate.tokens, estimate.rows_max) == (tokens, made.rows), (width, height)
        assert estimate.input_bytes_max == input_bytes(made.arrays), (width, height)
        assert all(array.flags.c_contiguous for array in made.arrays.values())


@pytest.mark.parametrize("name", NAMES)
def test_shapes_are_refused_by_the_estimate_and_the_processor_alike(name: str, model_of: ModelOf) -> None:
    model = model_of(name)
    for width, height in ((1608, 8), (8, 1608), (499, 1), (1, 2000)):
        answers: list[int | str] = []
        for ask in (
            lambda size=(width, height): model.prompt.estimate(*size, ImageOptions()).rows_max,
            lambda size=(width, height): model.pictures.process(pixels(*size), ImageOptions()).rows,
        ):
            try:
                answers.append(ask())
            except ImageShapeRefused as refused:
                answers.append(refused.detail)
        assert answers[0] == answers[1]
        assert isinstance(answers[0], int) or f"{width}x{height}" in answers[0]


@pytest.mark.parametrize("name", ["qwen2_vl", "qwen2_5_vl", "qwen3_vl", "llava"])
def test_ratio_above_200_is_refused(name: str, model_of: ModelOf) -> None:
    with pytest.raises(ImageShapeRefused) as refused:
        model_of(name).prompt.estimate(1608, 8, ImageOptions())
    assert refused.value.limit == 200
    assert refused.value.actual == 201
    assert model_of(name).prompt.estimate(1600, 8, ImageOptions()).tokens > 0


@pytest.mark.parametrize("name", NAMES)
def test_options_are_reduced_to_what_matters(name: str, model_of: ModelOf) -> None:
    prompt = model_of(name).prompt
    for options in (*OPTIONS, ImageOptions(pixels_max=10**9), ImageOptions(pixels_max=60_000, several=True)):
        reduced = prompt.options(options)
        assert prompt.options(reduced) == reduced
        assert prompt.estimate(640, 480, reduced) == prompt.estimate(640, 480, options)
        fitted = prompt.options(msgspec.structs.replace(options, fit_width=300, fit_height=200))
        assert fitted == msgspec.structs.replace(reduced, fit_width=300, fit_height=200)
    assert prompt.options(ImageOptions(pixels_max=10**9)) == ImageOptions()
    assert (prompt.options(ImageOptions(pixels_min=30_000)) != ImageOptions()) == (name in QWEN)
    assert prompt.options(ImageOptions(several=True)) == ImageOptions(several=name == "llava_onevision")


@pytest.mark.parametrize("name", ["qwen2_5_vl", "internvl", "smolvlm", "idefics3", "pixtral", "mistral3"])
def test_fewer_pixels_cost_fewer_tokens(name: str, model_of: ModelOf) -> None:
    prompt = model_of(name).prompt
    full = prompt.estimate(640, 480, ImageOptions())
    low = prompt.estimate(640, 480, ImageOptions(pixels_max=10_000))
    assert low.tokens < full.tokens
    assert low.input_bytes_max < full.input_bytes_max


def test_qwen_keeps_the_resized_picture_within_pixels_max(model_of: ModelOf) -> None:
    made = model_of("qwen2_5_vl").pictures.process(pixels(640, 480), ImageOptions(pixels_max=20_000))
    _, down, across = made.meta["image_grid_thw"]
    assert 10_000 < down * across * 14 * 14 <= 20_000


@pytest.mark.parametrize("several", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_pictures_are_bit_equal_to_pil_images(name: str, several: bool, model_of: ModelOf) -> None:
    from PIL import Image

    model = model_of(name)
    picture = pixels(200, 90)
    ours = model.pictures.process(picture, ImageOptions(several=several))
    nested = [[Image.fromarray(picture)] * (2 if several else 1)]
    token = model.their_processor.image_token
    joint = model.their_processor(images=nested, text=[token * len(nested[0])], return_tensors="pt")
    for key, array in ours.arrays.items():
        theirs = joint[key].numpy()
        if key == "image_sizes" or key == "image_grid_thw" or theirs.shape[0] != array.shape[0]:
            theirs = theirs[: array.shape[0]] if theirs.ndim > 1 or key == "batch_num_images" else theirs
        theirs = theirs[:, : array.shape[1]] if key.startswith("pixel") and name in ("smolvlm", "idefics3") else theirs
        assert np.array_equal(array, theirs), key


EXTREMES = (
    (1, 1),
    (499, 1),
    (1, 499),
    (1608, 8),
    (8, 1608),
    (26, 28),
    (305, 30),
    (31, 639),
    (1, 32_768),
    (32_768, 160),
)


@pytest.mark.parametrize("name", NAMES)
def test_extreme_shapes_have_a_result_or_a_refusal_that_states_its_limit(name: str, model_of: ModelOf) -> None:
    model = model_of(name)
    for width, height in EXTREMES:
        for options in (ImageOptions(), ImageOptions(pixels_max=20 * 28 * 28), ImageOptions(several=True)):
            try:
                tokens = model.prompt.estimate(width, height, options).tokens
            except ImageShapeRefused as error:
                refused = error.record()
            else:
                assert tokens >= 1
                continue
            assert refused.limit is not None, (width, height, options)
            assert refused.actual is not None
            assert refused.actual > refused.limit
            assert str(refused.limit) in refused.public or "this length" in refused.public


def sides() -> st.SearchStrategy[int]:
    """Sides of pictures: any, and often those beside a multiple of a patch or of nothing at all."""
    return st.one_of(
        st.integers(1, 40), st.integers(1, 700), st.sampled_from([27, 28, 29, 55, 56, 57, 111, 113, 223, 225])
    )


def bounds() -> st.SearchStrategy[int]:
    """Numbers of pixels that are asked for, or none."""
    return st.one_of(st.just(0), st.integers(1, 400_000))


@pytest.mark.parametrize("name", NAMES)
def test_any_size_and_budget_estimate_and_processor_agree(name: str, model_of: ModelOf) -> None:
    model = model_of(name)

    @settings(max_examples=30, deadline=None, derandomize=True)
    @given(sides(), sides(), bounds(), bounds(), st.booleans())
    def agree(width: int, height: int, pixels_max: int, pixels_min: int, several: bool) -> None:
        options = ImageOptions(pixels_max=pixels_max, pixels_min=pixels_min, several=several)
        try:
            estimate = model.prompt.estimate(width, height, options)
        except ImageShapeRefused:
            with pytest.raises(ImageShapeRefused):
                model.pictures.process(pixels(width, height), options)
            return
        made = model.pictures.process(pixels(width, height), options)
        assert estimate.rows_max == made.rows >= 1
        assert estimate.tokens >= made.rows
        assert estimate.input_bytes_max == input_bytes(made.arrays)
        assert all(min(array.shape) >= 1 for array in made.arrays.values())
        # Both sides keep at least one patch, where the processor says how many it made.
        for grid in ("image_grid_thw", "image_sizes"):
            assert grid not in made.arrays or made.arrays[grid].min() >= 1

    agree()
