"""Videos through the assembled inside: frames in order, counted, priced, cached, and what is refused before a frame is decoded."""

import asyncio
import base64
import io
from typing import Any

import msgspec
import numpy as np
import pytest
from PIL import Image
from tests.clips import GREEN, RED, clip, clip_of
from tests.journeys.asking import BLUE, ask, numbers, picture, settled
from tests.journeys.asking import RED as RED_CIRCLE

from foveate.bench.pictures import circle
from foveate.core.budget import Budget, Caller
from foveate.core.clock import now
from foveate.core.errors import (
    FoveateError,
    ImageTooLarge,
    InvalidParameter,
    InvalidPart,
    MediaTotalTooLarge,
    MediaUnsupported,
    TooManyFrames,
    TooManyVideos,
    VideoTooLong,
)
from foveate.core.media import DataRef
from foveate.core.request import ImagePart, Request, Sampling, TextPart, Turn, VideoPart
from foveate.core.stages import STAGES
from foveate.journey import film
from foveate.journey.service import Journey

pytestmark = pytest.mark.asyncio(loop_scope="session")
SMALL = 20
"""What the shipped model asks for a picture of 64x48."""
LONG = clip([RED] * 60, fps=1)


def ref(data: bytes, kind: str = "video/mp4") -> DataRef:
    return DataRef(f"data:{kind};base64,{base64.b64encode(data).decode()}")


def frame_list(*sizes: tuple[int, int]) -> DataRef:
    frames = []
    for size in sizes:
        out = io.BytesIO()
        Image.new("RGB", size, (next(numbers) % 256, 90, 30)).save(out, "JPEG")
        frames.append(base64.b64encode(out.getvalue()).decode())
    return DataRef("data:video/jpeg;base64," + ",".join(frames))


def circles(*colours: tuple[int, int, int]) -> list[np.ndarray]:
    shade = 250 - next(numbers) % 40
    return [np.asarray(circle(colour, 224, shade)) for colour in colours]


def request(
    *media: DataRef | VideoPart | ImagePart,
    text: str = "Describe both images.",
    budget: Budget | None = None,
    **video: Any,
) -> Request:
    parts = [
        VideoPart(index, f"messages[0].content[{index}].video_url", each, **video)
        if isinstance(each, DataRef)
        else each
        for index, each in enumerate(media)
    ]
    turns = (Turn("user", (*parts, TextPart(text))),)
    caller = Caller(budget=budget or Budget(max_videos=2))
    sampling = Sampling(tokens_max=24, temperature=0)
    return Request(f"chatcmpl-{next(numbers)}", "m", "chat", sampling, now(), turns=turns, stream=True, caller=caller)


async def refused(service: Journey, asked: Request) -> FoveateError:
    with pytest.raises(FoveateError) as caught:
        await ask(service, asked)
    await settled(service)
    return caught.value


async def test_a_videos_frames_are_seen_in_order_and_the_stages_sum(service: Journey) -> None:
    video = clip_of(circles(BLUE, RED_CIRCLE), fps=1)

    answered = await ask(service, request(ref(video)))

    assert "blue" in answered.text.partition("Second")[0]
    assert "red" in answered.text.partition("Second")[2]
    assert (answered.images, answered.visual_tokens) == (0, 128)
    assert set(answered.timing) == {*STAGES, "ttft", "unattributed"} - {"upstream"}
    stages = sum(value for name, value in answered.timing.items() if name != "ttft")
    assert stages == pytest.approx(answered.timing["ttft"], abs=0.002)
    assert answered.timing["unattributed"] < answered.timing["ttft"] / 2
    await settled(service)


async def test_three_coloured_frames_are_counted(service: Journey) -> None:
    asked = request(ref(clip([RED, GREEN, (9, 9, next(numbers) % 256)])))

    async with service.answer(asked, None) as answer:
        await answer.begin()
        usage = answer.usage()
        counts = answer._job.ledger.counts  # type: ignore[attr-defined]

    assert usage.visual_tokens == 3 * SMALL
    assert (counts.images, counts.videos, counts.frames) == (0, 1, 3)
    assert counts.video_seconds == pytest.approx(0.3, abs=0.01)
    assert counts.pixels == 3 * 64 * 48
    await settled(service)


async def test_a_repeated_video_is_not_decoded_again(service: Journey) -> None:
    video = ref(clip_of(circles(RED_CIRCLE, BLUE), fps=1))

    first = await ask(service, request(video))
    second = await ask(service, request(video))

    assert first.text == second.text
    assert {"mm_processor", "vision_encode"} <= set(first.timing)
    assert not {"mm_processor", "vision_encode"} & set(second.timing)
    await settled(service)


async def test_frames_that_are_not_cached_are_the_only_ones_decoded(service: Journey) -> None:
    video = ref(clip_of(circles(RED_CIRCLE, BLUE, RED_CIRCLE), fps=1))
    await ask(service, request(video, num_frames=1))
    before = service.tools.encoder_cache.stats()

    await ask(service, request(video))

    after = service.tools.encoder_cache.stats()
    assert (after.hits - before.hits, after.entries - before.entries) == (1, 2)
    await settled(service)


async def test_pictures_and_videos_keep_their_order(service: Journey) -> None:
    still = ImagePart(0, "messages[0].content[0].image_url", picture(RED_CIRCLE))
    video = ref(clip_of(circles(BLUE), fps=1))

    answered = await ask(service, request(still, video))

    assert answered.images == 1
    assert "red" in answered.text.partition("Second")[0]
    assert "blue" in answered.text.partition("Second")[2]


async def test_a_list_of_frames_is_a_video_without_times(service: Journey) -> None:
    answered = await ask(service, request(frame_list((64, 48), (64, 48))))

    assert answered.visual_tokens == 2 * SMALL
    await settled(service)


async def test_an_animated_gif_is_a_video(service: Journey) -> None:
    answered = await ask(service, request(ref(clip([RED, GREEN, RED], container="gif", codec="gif"), "video/gif")))

    assert answered.visual_tokens == 3 * SMALL
    await settled(service)


@pytest.mark.parametrize(
    ("video", "tier", "kind", "limit_name"),
    [
        (ref(LONG), Budget(max_video_seconds=30), VideoTooLong, "max_video_seconds"),
        (ref(LONG), Budget(video_sampling="fps", max_video_frames=8), TooManyFrames, "max_video_frames"),
        (ref(LONG), Budget(max_videos=0), TooManyVideos, "max_videos"),
        (ref(LONG), Budget(max_image_width=32), ImageTooLarge, "max_image_width"),
        (ref(LONG), Budget(max_total_pixels=64 * 48 * 31), MediaTotalTooLarge, "max_total_pixels"),
        (ref(LONG), Budget(max_visual_tokens=SMALL * 31), MediaTotalTooLarge, "max_visual_tokens"),
        (frame_list(*[(16, 16)] * 40), Budget(), TooManyFrames, "max_video_frames"),
    ],
)
async def test_what_is_too_much_is_refused_before_a_frame_is_decoded(
    service: Journey, video: DataRef, tier: Budget, kind: type[FoveateError], limit_name: str
) -> None:
    entries = service.tools.encoder_cache.stats().entries

    error = await refused(service, request(video, budget=tier))

    assert isinstance(error, kind)
    assert error.limit_name == limit_name
    assert error.actual is not None
    assert error.limit is not None
    assert error.actual > error.limit
    assert service.tools.encoder_cache.stats().entries == entries


async def test_excess_is_made_to_fit_and_told(service: Journey) -> None:
    fits = {"max_video_frames": "fit", "max_image_width": "fit"}
    tier = msgspec.structs.replace(Budget(video_sampling="fps", max_video_frames=2, max_image_width=32), on_excess=fits)
    asked = request(ref(clip([RED] * 5, fps=1)), budget=tier)

    async with service.answer(asked, None) as answer:
        await answer.begin()
        changes = {change.limit_name: (change.part, change.before, change.after) for change in answer.adjustments()}
        tokens = answer.usage().visual_tokens

    assert changes == {"max_video_frames": (0, "5 frames", "2 frames"), "max_image_width": (0, "64x48", "32x24")}
    assert tokens > 0
    await settled(service)


async def test_requests_can_only_lower_what_the_tier_allows(service: Journey) -> None:
    fewer = await ask(service, request(ref(LONG), num_frames=2))
    more = await refused(service, request(ref(LONG), num_frames=100))
    slower = request(ref(LONG), fps=10.0, budget=Budget(video_sampling="fps", video_fps=0.1))
    async with service.answer(slower, None) as answer:
        await answer.begin()
        changes = [(change.limit_name, change.before, change.after) for change in answer.adjustments()]
        tokens = answer.usage().visual_tokens

    assert fewer.visual_tokens == 2 * SMALL
    assert isinstance(more, TooManyFrames)
    assert (more.limit, more.actual) == (32, 100), "what was asked for, not what the video has"
    assert changes == [("video_fps", "10 fps", "0.1 fps")]
    assert tokens == 6 * SMALL
    await settled(service)


@pytest.mark.parametrize(
    ("video", "options", "kind"),
    [
        (ref(LONG), {"num_frames": -1}, InvalidParameter),
        (ref(LONG), {"fps": 0.0}, InvalidParameter),
        (frame_list((16, 16), (16, 16)), {"fps": 1.0}, InvalidParameter),
        (frame_list((16, 16), (32, 16)), {}, InvalidPart),
        (ref(b"\x89PNG\r\n\x1a\n" + b"\0" * 100), {}, MediaUnsupported),
        (ref(b"#EXTM3U\n#EXTINF:1.0,\nhttp://127.0.0.1:9/seg0.ts\n"), {}, MediaUnsupported),
        (ref(clip([RED], container="avi", codec="magicyuv")), {}, MediaUnsupported),
    ],
)
async def test_what_is_no_video_is_refused_and_named(
    service: Journey, video: DataRef, options: dict[str, Any], kind: type[FoveateError]
) -> None:
    still = ImagePart(0, "messages[0].content[0].image_url", picture(RED_CIRCLE))
    part = VideoPart(1, "messages[0].content[1].video_url", video, **options)

    error = await refused(service, request(still, part))

    assert isinstance(error, kind)
    assert (error.part, error.param) == (1, part.param)


async def test_a_request_that_ends_while_frames_are_decoded_leaves_nothing(service: Journey) -> None:
    rng = np.random.default_rng(5)
    noisy = ref(clip_of([rng.integers(0, 255, (180, 320, 3), np.uint8) for _ in range(16)], fps=10))
    for delay in (0.01, 0.05, 0.15, 0.3):
        task = asyncio.create_task(ask(service, request(noisy)))
        await asyncio.sleep(delay)
        task.cancel()
        await asyncio.wait([task])
        await settled(service)


async def test_an_estimate_prices_a_video_without_decoding_its_frames(service: Journey) -> None:
    video = ref(clip_of(circles(BLUE, RED_CIRCLE, BLUE), fps=1))
    before = service.tools.encoder_cache.stats().entries

    new = await service.estimate(request(video), None)
    assert service.tools.encoder_cache.stats().entries == before
    await ask(service, request(video))
    known = await service.estimate(request(video), None)

    for estimate in (new, known):
        (item,) = estimate.items
        assert (item.kind, item.frames, item.visual_tokens) == ("video", 3, 192)
        assert item.seconds == pytest.approx(3.0, abs=0.1)
        assert (estimate.admitted, estimate.frames, estimate.pixels) == (True, 3, 3 * 224 * 224)
    assert not new.items[0].encoder_cached
    assert known.items[0].encoder_cached
    await settled(service)


async def test_an_estimate_says_why_a_video_would_be_refused(service: Journey) -> None:
    tier = Budget(max_video_seconds=30)

    estimate = await service.estimate(request(ref(LONG), budget=tier), None)

    assert not estimate.admitted
    assert [(error.code, error.limit_name, error.part) for error in estimate.refusals] == [
        ("video_too_long", "max_video_seconds", 0)
    ]
    await settled(service)


@pytest.mark.parametrize("on_excess", ["fit", "reject"])
async def test_a_video_of_which_no_frame_may_be_looked_at_is_refused_and_never_vanishes(
    service: Journey, on_excess: Any
) -> None:
    budget = Budget(max_video_frames=0, on_excess={"max_video_frames": on_excess})
    for video in (ref(clip([RED, GREEN])), frame_list((64, 48), (64, 48))):
        error = await refused(service, request(video, budget=budget))

        assert isinstance(error, TooManyFrames)
        assert (error.limit_name, error.limit, error.actual) == ("max_video_frames", 0, 1)


async def test_the_loop_goes_on_between_the_headers_of_a_list(service: Journey) -> None:
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    many = frame_list(*[(64, 48)] * 40)
    probes = 0
    probe = film.probe

    def counted(*args: Any) -> Any:
        nonlocal probes
        probes += 1
        seen.append(turns)
        return probe(*args)

    seen: list[int] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(film, "probe", counted)
        counting = asyncio.create_task(count())
        try:
            await refused(service, request(many, budget=Budget(max_video_frames=40, max_image_width=63)))
        finally:
            counting.cancel()
    assert probes == 40
    assert len(set(seen)) == 40, "nobody else had a turn between two of them"


async def test_one_video_looked_at_twice_is_no_repeat_where_other_frames_are_taken(service: Journey) -> None:
    video = ref(clip_of(circles(RED_CIRCLE, BLUE, RED_CIRCLE), fps=1))
    budget = Budget(max_videos=2, count_repeats=False)
    short, whole = (
        VideoPart(index, f"messages[0].content[{index}].video_url", video, num_frames=frames)
        for index, frames in enumerate((1, 3))
    )
    again = msgspec.structs.replace(whole, index=0)

    assert (await service.estimate(request(short, whole, budget=budget), None)).pixels == 4 * 224 * 224
    assert (await service.estimate(request(again, whole, budget=budget), None)).pixels == 3 * 224 * 224
    await settled(service)


@pytest.mark.parametrize("video_first", [True, False])
async def test_a_picture_that_is_a_video_too_counts_as_a_picture(service: Journey, video_first: bool) -> None:
    out = io.BytesIO()
    first, second = (Image.fromarray(frame) for frame in circles(RED_CIRCLE, BLUE))
    first.save(out, "GIF", save_all=True, append_images=[second], duration=1000)
    animation = ref(out.getvalue(), "image/gif")
    at = [0, 1] if video_first else [2, 1]
    moving = VideoPart(at[0], f"messages[0].content[{at[0]}].video_url", animation)
    still = ImagePart(at[1], f"messages[0].content[{at[1]}].image_url", animation)
    another = ImagePart(2 - at[0], f"messages[0].content[{2 - at[0]}].image_url", picture(RED_CIRCLE))
    media = sorted((moving, still, another), key=lambda part: part.index)

    error = await refused(service, request(*media, budget=Budget(max_images=1, max_videos=1, count_repeats=False)))

    assert (error.limit_name, error.actual) == ("max_images", 2)
