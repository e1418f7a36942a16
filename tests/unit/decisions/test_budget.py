from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foveate.core.budget import FIELDS, Budget
from foveate.core.errors import (
    FoveateError,
    ImageShapeRefused,
    ImageTooLarge,
    MediaTooLarge,
    MediaTotalTooLarge,
    TooManyFrames,
    TooManyImages,
    TooManyVideos,
    VideoTooLong,
)
from foveate.decisions import budget as judge
from foveate.decisions.budget import Fitted, Shape, fit, fit_tokens, judge_references, judge_shape, shape_refusals

HUGE = 10**12
sides = st.integers(1, 70_000)
shapes = st.builds(Shape, sides, sides)
limits = st.integers(1, 80_000)


def tier(*fitting: str, **fields: Any) -> Budget:
    return Budget(on_excess=dict.fromkeys(fitting, "fit"), **fields)


@pytest.mark.parametrize(
    ("call", "kind", "name", "limit"),
    [
        (lambda actual: judge.judge_images(tier(max_images=4), actual), TooManyImages, "max_images", 4),
        (lambda actual: judge.judge_videos(tier(max_videos=2), actual), TooManyVideos, "max_videos", 2),
        (lambda actual: judge.judge_item_bytes(tier(max_item_bytes=9), actual), MediaTooLarge, "max_item_bytes", 9),
        (
            lambda actual: judge.judge_total_bytes(tier(max_total_bytes=9), actual),
            *(MediaTotalTooLarge, "max_total_bytes", 9),
        ),
        (
            lambda actual: judge.judge_total_pixels(tier(max_total_pixels=9), actual),
            *(MediaTotalTooLarge, "max_total_pixels", 9),
        ),
        (
            lambda actual: judge.judge_visual_tokens(tier(max_visual_tokens=9), actual),
            *(MediaTotalTooLarge, "max_visual_tokens", 9),
        ),
        (
            lambda actual: judge.judge_video_seconds(tier(max_video_seconds=9), actual),
            *(VideoTooLong, "max_video_seconds", 9),
        ),
        (lambda actual: judge.frames_allowed(tier(max_video_frames=9), actual), TooManyFrames, "max_video_frames", 9),
    ],
)
def test_each_limit_is_allowed_and_one_more_is_refused_with_name_limit_and_actual(
    call: Callable[[int], object], kind: type[FoveateError], name: str, limit: int
) -> None:
    call(limit)
    with pytest.raises(kind) as caught:
        call(limit + 1)
    assert (caught.value.limit_name, caught.value.limit, caught.value.actual) == (name, limit, limit + 1)
    assert str(limit) in caught.value.public
    assert name in {field.name for field in FIELDS}


def test_frames_beyond_the_limit_may_be_made_to_fit() -> None:
    assert judge.frames_allowed(tier("max_video_frames", max_video_frames=8), 900) == 8
    assert judge.frames_allowed(tier("max_video_frames", max_video_frames=8), 5) == 5


def test_repeats_count_where_the_tier_says_so() -> None:
    judge_references(tier(max_images=4), parts=4, references=1)
    with pytest.raises(TooManyImages) as caught:
        judge_references(tier(max_images=4), parts=5, references=1)
    assert (caught.value.limit, caught.value.actual) == (4, 5)


def test_where_repeats_do_not_count_references_and_parts_are_still_bounded() -> None:
    once = tier(max_images=4, count_repeats=False)
    judge_references(once, parts=judge.PARTS_MAX, references=4 * judge.REFERENCES_PER_IMAGE_MAX)
    for parts, references in ((judge.PARTS_MAX + 1, 1), (40, 4 * judge.REFERENCES_PER_IMAGE_MAX + 1)):
        with pytest.raises(TooManyImages):
            judge_references(once, parts=parts, references=references)


@pytest.mark.parametrize(
    ("shape", "name"),
    [
        (Shape(101, 10), "max_image_width"),
        (Shape(10, 101), "max_image_height"),
        (Shape(80, 80), "max_image_pixels"),
    ],
)
def test_a_shape_beyond_a_limit_is_refused_unless_that_very_limit_is_on_fit(shape: Shape, name: str) -> None:
    bounds = {"max_image_width": 100, "max_image_height": 100, "max_image_pixels": 5000}
    others = [other for other in bounds if other != name]
    with pytest.raises(ImageTooLarge) as caught:
        judge_shape(tier(*others, **bounds), shape, HUGE)
    assert caught.value.limit_name == name
    assert caught.value.limit == bounds[name]
    fitted = judge_shape(tier(name, **bounds), shape, HUGE)
    assert fitted.limit_name == name
    assert fitted.shape.pixels < shape.pixels


def test_a_limit_on_reject_refuses_even_where_a_fit_would_do() -> None:
    with pytest.raises(ImageTooLarge) as caught:
        judge_shape(tier("max_image_width", max_image_width=2048, max_image_height=2048), Shape(4000, 3000), HUGE)
    assert caught.value.limit_name == "max_image_height"


def test_every_limit_that_a_shape_exceeds_is_told() -> None:
    small = tier("max_image_pixels", max_image_width=2048, max_image_height=2048, max_image_pixels=100)
    found = list(shape_refusals(small, Shape(4000, 3000), 11_000_000))
    assert [(each.limit_name, each.limit, each.actual) for each in found] == [
        (judge.DECODE_LIMIT, 11_000_000, 12_000_000),
        ("max_image_width", 2048, 4000),
        ("max_image_height", 2048, 3000),
    ]
    assert not list(shape_refusals(small, Shape(2048, 2048), HUGE))


def test_a_refusal_says_whether_it_is_of_a_picture_or_of_a_video() -> None:
    small = tier(max_image_width=100)
    for of_video, said in ((False, "The picture is 101x9 "), (True, "The video's frames are 101x9 ")):
        with pytest.raises(ImageTooLarge, match=said):
            judge_shape(small, Shape(101, 9), HUGE, of_video=of_video)


def test_the_ceiling_of_decoding_refuses_whatever_may_fit() -> None:
    generous = tier("max_image_width", "max_image_height", "max_image_pixels", max_image_pixels=100)
    with pytest.raises(ImageTooLarge) as caught:
        judge_shape(generous, Shape(60_000, 60_000), 100_000_000)
    assert caught.value.limit_name == judge.DECODE_LIMIT
    assert judge_shape(generous, Shape(10_000, 10_000), 100_000_000).shape == Shape(10, 10)


def test_what_is_within_stays_as_it_is() -> None:
    assert judge_shape(tier("max_image_width", max_image_width=100), Shape(100, 7), HUGE) == Fitted(Shape(100, 7))


def test_the_limit_that_shrinks_most_is_named() -> None:
    both = tier("max_image_width", "max_image_height", max_image_width=2048, max_image_height=512)
    assert judge_shape(both, Shape(4096, 2048), HUGE) == Fitted(Shape(1024, 512), "max_image_height")


@given(shapes, limits, limits, st.integers(1, 10**9))
def test_a_fit_is_the_largest_of_its_ratio_within_all_limits(
    shape: Shape, width: int, height: int, pixels: int
) -> None:
    found = fit(shape, width=width, height=height, pixels=pixels)

    def within(tried: Shape) -> bool:
        return tried.width <= width and tried.height <= height and tried.pixels <= pixels

    assert within(found)
    assert 1 <= found.width <= shape.width
    assert 1 <= found.height <= shape.height
    # The shorter side is the exact one to the nearest pixel, or the one pixel that there must be.
    ratio = min(shape.width, shape.height) / max(shape.width, shape.height)
    longest, shortest = max(found.width, found.height), min(found.width, found.height)
    assert shortest == 1 or abs(shortest - longest * ratio) <= 0.5
    if found != shape:
        longer = (longest + 1, max(1, math.floor((longest + 1) * ratio + 0.5)))
        assert not within(Shape(*longer) if shape.width >= shape.height else Shape(*reversed(longer)))


@given(shapes, limits)
def test_a_fit_of_a_fit_changes_nothing(shape: Shape, side: int) -> None:
    once = fit(shape, width=side)
    assert fit(once, width=side) == once


@given(st.lists(shapes, min_size=1, max_size=6), st.integers(1, 5000))
def test_a_token_fit_is_within_and_shrinks_the_largest_first(pictures: list[Shape], tokens_max: int) -> None:
    def price(index: int, shape: Shape) -> int:
        return math.ceil(shape.width / 28) * math.ceil(shape.height / 28)

    fitted = fit_tokens(pictures, price, tokens_max)
    if fitted is None:
        assert len(pictures) > tokens_max
        return
    assert sum(price(0, shape) for shape in fitted) <= tokens_max
    changed = [after.pixels for before, after in zip(pictures, fitted, strict=True) if after != before]
    kept = [before.pixels for before, after in zip(pictures, fitted, strict=True) if after == before]
    assert all(after.pixels <= before.pixels for before, after in zip(pictures, fitted, strict=True))
    if changed and kept:
        assert max(kept) <= 2 * max(changed) + 100


def test_a_token_fit_comes_close_to_its_limit() -> None:
    fitted = fit_tokens([Shape(4000, 3000), Shape(100, 100)], lambda _, shape: shape.pixels // 784, 5000)
    assert fitted is not None
    assert fitted[1] == Shape(100, 100)
    assert 4950 <= sum(shape.pixels // 784 for shape in fitted) <= 5000


def test_a_model_whose_pictures_all_cost_the_same_cannot_be_fitted_and_tries_are_bounded() -> None:
    calls: list[Shape] = []

    def price(index: int, shape: Shape) -> int:
        calls.append(shape)
        return 576

    assert fit_tokens([Shape(70_000, 70_000)] * 3, price, 1000) is None
    assert len(calls) <= 3 * (judge.TOKEN_FIT_TRIES_MAX + 2)
    assert fit_tokens([Shape(70_000, 70_000)] * 3, price, 3 * 576) == [Shape(70_000, 70_000)] * 3


def test_sizes_that_the_model_cannot_take_are_passed_over() -> None:
    def price(index: int, shape: Shape) -> int:
        if min(shape.width, shape.height) < 14:
            raise ImageShapeRefused
        return shape.pixels // 196

    fitted = fit_tokens([Shape(2000, 1000)], price, 100)
    assert fitted is not None
    assert min(fitted[0].width, fitted[0].height) >= 14
    assert fit_tokens([Shape(2000, 14)], price, 10) is None
