"""What a tier says to the media of a request: within it, made to fit, or refused. Pure.

Every refusal carries ``limit_name``, ``limit`` and ``actual``. Counts and shapes are judged from the request and the headers alone, so
before a pixel is decoded. Does not cover: what is under way of other requests (:mod:`foveate.journey.in_flight`), which frames of a video
are taken.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

import msgspec

from foveate.core.budget import Budget
from foveate.core.errors import (
    FoveateError,
    ImageTooLarge,
    MediaTooLarge,
    MediaTotalTooLarge,
    TooManyFrames,
    TooManyImages,
    TooManyVideos,
    VideoTooLong,
)
from foveate.core.limits import ARENA_LIMIT, FETCH_WAITING_LIMIT, SKELETON_LIMIT

CONTEXT_LIMIT: Final = "max_model_len"
"""The model's context in tokens, by the name that ``/v1/models`` has for it."""
DECODE_LIMIT: Final = "media.decode_pixels_max"
SERVER_LIMITS: Final = (
    CONTEXT_LIMIT,
    DECODE_LIMIT,
    "media.animation_frames_max",
    "limits.media_bytes_in_flight_max",
    "limits.pixels_in_flight_max",
    "limits.visual_tokens_in_flight_max",
    "limits.multimodal_waiting_max",
    "limits.requests_max",
    FETCH_WAITING_LIMIT,
    ARENA_LIMIT,
    SKELETON_LIMIT,
    "server.body_bytes_max",
    "media.queue_depth_max",
    "engine.queue_depth_max",
    "engine.encoder_queue_max",
    "engine.kv_tokens_max",
)
"""Settings that a rejection may name beside the fields of a tier: they hold for every tier, and for all requests together."""
PARTS_MAX: Final = 256
REFERENCES_PER_IMAGE_MAX: Final = 4
"""With ``count_repeats: false``, references are bounded before their contents are known: a conversation that names each of its pictures by
more than so many different URLs is refused unread, and so is one of more than :data:`PARTS_MAX` pictures altogether."""
TOKEN_FIT_TRIES_MAX: Final = 16
"""Bisections of the picture size; each halves the ratio of what is known to fit and what is known not to. 16 are exact to 0.02 %."""


class Shape(msgspec.Struct, frozen=True, order=True):
    """A picture's width and height in pixels, as displayed."""

    width: int
    height: int

    @property
    def pixels(self) -> int:
        """Width times height."""
        return self.width * self.height

    def __str__(self) -> str:
        return f"{self.width}x{self.height}"


class Fitted(msgspec.Struct, frozen=True):
    """What becomes of a picture: its shape, and the limit that shrank it (``None``: none did)."""

    shape: Shape
    limit_name: str | None = None


def judge_images(budget: Budget, images: int) -> None:
    """Judge how many pictures count. Raises TooManyImages."""
    if images > budget.max_images:
        limit = budget.max_images
        text = f"The request has {images} pictures; at most {limit} are allowed."
        raise _refusal(TooManyImages, text, "max_images", limit, images)


def judge_references(budget: Budget, parts: int, references: int) -> None:
    """Judge pictures whose contents are not known yet. Raises TooManyImages.

    ``parts`` is their number, ``references`` that of the different ones. Where repeats count, so do all parts. Where they do not, contents
    are judged when they are known (:func:`judge_images`), and only the effort of getting to know them is bounded here.
    """
    if budget.count_repeats:
        judge_images(budget, parts)
        return
    most = budget.max_images * REFERENCES_PER_IMAGE_MAX
    if references > most or parts > max(PARTS_MAX, budget.max_images):
        text = (
            f"The request has {parts} pictures, {references} of them with an address of their own; at most {budget.max_images} different "
            "pictures are allowed."
        )
        raise _refusal(TooManyImages, text, "max_images", budget.max_images, references)


def judge_videos(budget: Budget, videos: int) -> None:
    """Judge how many videos a request has. Raises TooManyVideos."""
    if videos > budget.max_videos:
        limit = budget.max_videos
        text = f"The request has {videos} videos; at most {limit} are allowed."
        raise _refusal(TooManyVideos, text, "max_videos", limit, videos)


def judge_item_bytes(budget: Budget, size: int) -> None:
    """Judge the encoded bytes of one medium. Raises MediaTooLarge."""
    if size > budget.max_item_bytes:
        limit = budget.max_item_bytes
        text = f"The media has {size} bytes; at most {limit} are allowed."
        raise _refusal(MediaTooLarge, text, "max_item_bytes", limit, size)


def judge_total_bytes(budget: Budget, size: int) -> None:
    """Judge the encoded bytes of all media of a request. Raises MediaTotalTooLarge."""
    if size > budget.max_total_bytes:
        raise _total("bytes", "max_total_bytes", budget.max_total_bytes, size)


def judge_arriving_bytes(budget: Budget, size: int) -> None:
    """Judge the encoded bytes of a request that are here or on their way. Raises MediaTotalTooLarge.

    Where repeats do not count, what arrives may be the same content as often as it may be referred to.
    """
    if budget.count_repeats or size > REFERENCES_PER_IMAGE_MAX * budget.max_total_bytes:
        judge_total_bytes(budget, size)


def judge_total_pixels(budget: Budget, pixels: int) -> None:
    """Judge the pixels that a request has decoded. Raises MediaTotalTooLarge."""
    if pixels > budget.max_total_pixels:
        raise _total("decoded pixels", "max_total_pixels", budget.max_total_pixels, pixels)


def judge_visual_tokens(budget: Budget, tokens: int) -> None:
    """Judge the prompt tokens that stand for media. Raises MediaTotalTooLarge."""
    if tokens > budget.max_visual_tokens:
        raise _total("visual tokens", "max_visual_tokens", budget.max_visual_tokens, tokens)


def judge_video_seconds(budget: Budget, seconds: float) -> None:
    """Judge the length of one video. Raises VideoTooLong."""
    if seconds > budget.max_video_seconds:
        limit = budget.max_video_seconds
        text = f"The video is {seconds:g} seconds long; at most {limit:g} are allowed."
        raise _refusal(VideoTooLong, text, "max_video_seconds", limit, seconds)


def frames_allowed(budget: Budget, frames: int) -> int:
    """Return how many of ``frames`` frames of one video may be taken: all, or as many as fit.

    Raises TooManyFrames, also on ``fit`` where none may be taken: a video never vanishes.
    """
    if frames <= budget.max_video_frames:
        return frames
    if not budget.fits("max_video_frames") or budget.max_video_frames < 1:
        limit = budget.max_video_frames
        text = f"{frames} frames of the video would be looked at; at most {limit} are allowed."
        raise _refusal(TooManyFrames, text, "max_video_frames", limit, frames)
    return budget.max_video_frames


def video_may_pass(
    budget: Budget, shape: Shape, *, seconds: float, wanted: int, taken: int, decode_pixels_max: int
) -> bool:
    """Tell whether a video may be within the tier, for all its packets say: ``shape`` is as stored, since which way up it is shown is only
    known from a decoded frame. A video that may not is refused whichever way up it is.
    """
    try:
        judge_video_seconds(budget, seconds)
        frames_allowed(budget, wanted)
        judge_total_pixels(budget, shape.pixels * taken)
    except FoveateError:
        return False
    return any(_shape_passes(budget, way_up, decode_pixels_max) for way_up in (shape, Shape(shape.height, shape.width)))


def _shape_passes(budget: Budget, shape: Shape, decode_pixels_max: int) -> bool:
    try:
        judge_shape(budget, shape, decode_pixels_max)
    except ImageTooLarge:
        return False
    return True


def judge_shape(budget: Budget, shape: Shape, decode_pixels_max: int, *, of_video: bool = False) -> Fitted:
    """Judge one picture, or a video's frames, by the header. Raises ImageTooLarge, the first of :func:`shape_refusals`."""
    for refusal in shape_refusals(budget, shape, decode_pixels_max, of_video=of_video):
        raise refusal
    fitted = Fitted(shape)
    for name, _, _, limit in _excess(budget, shape):
        alone = fit(shape, **{name.removeprefix("max_image_"): limit})
        if max(alone.width, alone.height) < max(fitted.shape.width, fitted.shape.height):
            fitted = Fitted(alone, name)
    return fitted


def shape_refusals(
    budget: Budget, shape: Shape, decode_pixels_max: int, *, of_video: bool = False
) -> Iterator[ImageTooLarge]:
    """Yield a refusal for every limit that a picture exceeds, or a video's frames.

    ``decode_pixels_max`` refuses whatever the tier says: a picture is decoded whole before it is scaled down. A limit on ``reject`` refuses
    even where another one on ``fit`` would have brought the picture within it.
    """
    what = f"The video's frames are {shape} pixels each" if of_video else f"The picture is {shape} pixels"
    if shape.pixels > decode_pixels_max:
        text = f"{what}, {shape.pixels} in all; more than {decode_pixels_max} are never decoded."
        yield ImageTooLarge(text, limit_name=DECODE_LIMIT, limit=decode_pixels_max, actual=shape.pixels)
    for name, word, actual, limit in _excess(budget, shape):
        if not budget.fits(name):
            text = f"{what}, {actual} {word}; at most {limit} are allowed."
            yield ImageTooLarge(text, limit_name=name, limit=limit, actual=actual)


def _excess(budget: Budget, shape: Shape) -> list[tuple[str, str, int, int]]:
    """Return the limits that a shape exceeds: name, the word for it, what the shape has, the limit."""
    checks = (
        ("max_image_width", "wide", shape.width, budget.max_image_width),
        ("max_image_height", "high", shape.height, budget.max_image_height),
        ("max_image_pixels", "in all", shape.pixels, budget.max_image_pixels),
    )
    return [check for check in checks if check[2] > check[3]]


def fit(shape: Shape, *, width: int | None = None, height: int | None = None, pixels: int | None = None) -> Shape:
    """Return the largest shape of the same aspect ratio, to the nearest pixel, within these limits (each at least 1; ``None``: no limit).

    No side becomes less than one pixel, and no picture becomes larger.
    """
    within_width = shape.width if width is None else width
    within_height = shape.height if height is None else height
    within_pixels = shape.pixels if pixels is None else pixels
    low, high = 1, max(shape.width, shape.height)
    # The longer side decides the shorter one, and all three limits only grow with it: search for the longest that is within.
    while low < high:
        middle = (low + high + 1) // 2
        tried = _scaled(shape, middle)
        if tried.width <= within_width and tried.height <= within_height and tried.pixels <= within_pixels:
            low = middle
        else:
            high = middle - 1
    return _scaled(shape, low)


def fit_tokens(shapes: Sequence[Shape], price: Callable[[int, Shape], int], tokens_max: int) -> list[Shape] | None:
    """Shrink pictures until their tokens are within ``tokens_max``: the largest first, all to one common number of pixels.

    ``price(i, shape)`` tells what picture ``i`` would cost in that shape, or raises a FoveateError when the model cannot take it so.
    ``None``: no size was found to fit, as with a model whose pictures all cost the same. Calls ``price`` at most
    (:data:`TOKEN_FIT_TRIES_MAX` + 2) times a picture.
    """

    def attempt(pixels: int) -> list[Shape] | None:
        tried = [fit(shape, pixels=pixels) for shape in shapes]
        try:
            cost = sum(price(index, shape) for index, shape in enumerate(tried))
        except FoveateError:
            return None
        return tried if cost <= tokens_max else None

    high = max((shape.pixels for shape in shapes), default=1)
    whole = attempt(high)
    if whole is not None:
        return whole
    found, low = None, 1
    for _ in range(TOKEN_FIT_TRIES_MAX):
        # The geometric mean: sizes are proportions, and half of a picture's tokens is about half of its pixels.
        middle = max(low + 1, round((low * high) ** 0.5))
        if middle >= high:
            break
        tried = attempt(middle)
        if tried is None:
            high = middle
        else:
            found, low = tried, middle
    return found


def _scaled(shape: Shape, longest: int) -> Shape:
    """Return the shape with this longer side."""
    if shape.width >= shape.height:
        return Shape(longest, max(1, (2 * longest * shape.height + shape.width) // (2 * shape.width)))
    return Shape(max(1, (2 * longest * shape.width + shape.height) // (2 * shape.height)), longest)


def _total(what: str, name: str, limit: int, actual: int) -> FoveateError:
    text = f"The media of this request come to {actual} {what} or more; at most {limit} are allowed."
    return _refusal(MediaTotalTooLarge, text, name, limit, actual)


def _refusal(kind: type[FoveateError], text: str, name: str, limit: float, actual: float) -> FoveateError:
    return kind(text, limit_name=name, limit=limit, actual=actual)
