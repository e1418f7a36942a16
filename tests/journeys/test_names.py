"""Media named by a ``uuid`` instead of sent: what a cache still holds of it is used, and anything else is asked for."""

import asyncio
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from tests.clips import clip_of
from tests.journeys import test_videos as videos
from tests.journeys.asking import BLUE, GREEN, RED, ask, by, cached_bytes, numbers, picture, request, settled
from tests.journeys.house import nothing_held

from foveate.caches.aliases import Aliases
from foveate.caches.encoder import EncoderCache
from foveate.caches.keys import EncoderKey
from foveate.core.errors import AliasNotFound, InvalidParameter, MediaIdConflict, MediaNotHeld
from foveate.core.media import MediaRef, NamedRef
from foveate.core.request import Request, VideoPart
from foveate.journey.service import Journey

pytestmark = pytest.mark.asyncio(loop_scope="session")


def named(name: str, ref: MediaRef | None = None, *more: MediaRef, **part: Any) -> Request:
    """A request whose first picture has this name, and is not sent without ``ref``."""
    asked = request(NamedRef(name) if ref is None else ref, *more)
    (turn,) = asked.turns
    first = msgspec.structs.replace(turn.parts[0], uuid=name, **part)
    return msgspec.structs.replace(asked, turns=(msgspec.structs.replace(turn, parts=(first, *turn.parts[1:])),))


def new() -> str:
    return f"name-{next(numbers)}"


def keys(service: Journey, digest: str) -> list[EncoderKey]:
    held = service.tools.encoder_cache.keys()
    return [key for key in held if key.digest == digest]


def forget_embeddings(service: Journey, name: str, tenant: str = "anyone") -> None:
    content = service.tools.aliases.find(tenant, name)
    assert content is not None
    for key in keys(service, content.digest):
        service.tools.encoder_cache.drop(key)


async def test_a_name_stands_for_what_was_sent(service: Journey) -> None:
    name = new()
    first = await ask(service, named(name, picture(RED)))
    again = await ask(service, named(name))
    assert (
        (again.text, again.visual_tokens, again.images)
        == (first.text, first.visual_tokens, 1)
        == ("A red circle.", 64, 1)
    )
    assert not {"media_decode", "mm_processor", "vision_encode"} & again.timing.keys()
    await settled(service)


async def test_inputs_are_enough(service: Journey) -> None:
    name = new()
    await ask(service, named(name, picture(GREEN)))
    forget_embeddings(service, name)
    again = await ask(service, named(name))
    assert again.text == "A green circle."
    assert "vision_encode" in again.timing
    assert not {"media_decode", "mm_processor"} & again.timing.keys()
    await settled(service)


@pytest.mark.parametrize("reason", ["never bound", "another tenant's", "no longer held", "other options"])
async def test_what_is_not_held_is_asked_for(service: Journey, reason: str) -> None:
    name, tenant = new(), "us" if reason == "another tenant's" else "anyone"
    if reason != "never bound":
        await ask(service, named(name, picture(RED)))
    if reason == "no longer held":
        forget_embeddings(service, name)
        content = service.tools.aliases.find(tenant, name)
        assert content is not None
        held = service.tools.processor_cache.keys()
        for key in held:
            if key.digest == content.digest:
                service.tools.processor_cache.drop(key)
    limits = {"max_image_width": 100, "on_excess": {"max_image_width": "fit"}} if reason == "other options" else {}
    asked = by(named(name), tenant, **limits)
    estimate = await service.estimate(asked, None)
    assert [(refusal.code, refusal.part) for refusal in estimate.refusals] == [("media_not_held", 0)]
    with pytest.raises(MediaNotHeld) as caught:
        await ask(service, asked)
    assert (caught.value.part, caught.value.param) == (0, asked.images[0].param)
    await settled(service)
    assert nothing_held(service)


async def test_a_client_that_is_asked_for_the_media_sends_it(service: Journey) -> None:
    name, red = new(), picture(RED)
    with pytest.raises(MediaNotHeld):
        await ask(service, named(name))
    await ask(service, named(name, red))
    assert (await ask(service, named(name))).text == "A red circle."
    with pytest.raises(MediaIdConflict):
        await ask(service, named(name, picture(BLUE)))
    await settled(service)


async def test_an_estimate_knows_names_and_counts_nothing(service: Journey) -> None:
    name = new()
    answered = await ask(service, named(name, picture(RED)))
    caches = service.tools.processor_cache, service.tools.encoder_cache
    before = [cache.stats() for cache in caches]
    estimate = await service.estimate(named(name), None)
    assert [cache.stats() for cache in caches] == before
    assert estimate.admitted
    assert (estimate.visual_tokens, estimate.bytes, estimate.encoder_cache_hits) == (answered.visual_tokens, 0, 1)
    assert (estimate.items[0].width, estimate.items[0].encoder_cached) == (224, True)


async def test_what_was_made_to_fit_is_found_again(service: Journey) -> None:
    name = new()
    fitting = {"max_visual_tokens": 40, "on_excess": {"max_visual_tokens": "fit"}}
    first = await ask(service, by(named(name, picture(RED)), **fitting))
    again = await ask(service, by(named(name), **fitting))
    assert first.visual_tokens == again.visual_tokens <= 40
    assert again.adjustments == first.adjustments != ()
    await settled(service)


async def test_named_and_sent_pictures_keep_their_order(service: Journey) -> None:
    name, blue = new(), picture(BLUE)
    both = await ask(service, named(name, picture(RED), blue))
    assert (await ask(service, named(name, None, picture(BLUE)))).text == both.text
    await settled(service)


async def test_a_name_beside_the_very_media_counts_the_bytes(service: Journey) -> None:
    name, red = new(), picture(RED)
    await ask(service, named(name, red))
    for asked in (named(name, None, red), named(new(), red, NamedRef(name))):
        estimate = await service.estimate(by(asked, count_repeats=False), None)
        sent = await service.estimate(request(red), None)
        assert estimate.bytes == sent.bytes


async def test_what_is_looked_up_is_not_evicted_before_it_is_used(service: Journey) -> None:
    """With room for one entry, the picture beside the named one evicts whatever it may."""
    name = new()
    await ask(service, named(name, picture(RED)))
    (content,) = (service.tools.aliases.find("anyone", name),)
    assert content is not None
    (key,) = keys(service, content.digest)
    lease = service.tools.encoder_cache.get(key)
    assert lease is not None
    size = lease.entry.slot.size
    lease.release()
    small = EncoderCache(size + size // 2, service.tools.arena.release)
    journey = Journey(replace(service.tools, encoder_cache=small), models=service.models)
    forget_embeddings(service, name)
    for _ in range(3):
        await ask(journey, named(name))
        assert key in small
        both = await ask(journey, named(name, None, picture(BLUE)))
        assert both.images == 2
    small.clear()
    await settled(service)


async def test_who_leaves_holds_nothing(service: Journey) -> None:
    name = new()
    await ask(service, named(name, picture(RED)))
    for milliseconds in (0, 1, 2, 4, 8, 16, 32):
        forget_embeddings(service, name)
        task = asyncio.ensure_future(ask(service, named(name, None, picture(GREEN))))
        await asyncio.sleep(milliseconds / 1000)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    await settled(service)
    async with asyncio.timeout(30):  # work that nobody waits for any more ends in its own time
        while any(cache.stats().pinned for cache in (service.tools.encoder_cache, service.tools.processor_cache)):
            await asyncio.sleep(0.01)
    assert service.tools.arena.used_bytes == cached_bytes(service)


def without_media(asked: Request) -> Request:
    """The same request with its first medium named instead of sent."""
    (turn,) = asked.turns
    first = turn.parts[0]
    assert isinstance(first, VideoPart)
    assert first.uuid is not None
    part = msgspec.structs.replace(first, ref=NamedRef(first.uuid))
    return msgspec.structs.replace(
        asked, id=f"chatcmpl-{next(numbers)}", turns=(msgspec.structs.replace(turn, parts=(part, *turn.parts[1:])),)
    )


WORK = {"media_decode", "mm_processor", "vision_encode"}


@pytest.mark.parametrize("listed", [False, True])
async def test_a_video_s_name_stands_for_its_frames(service: Journey, listed: bool) -> None:
    film = (
        videos.frame_list((64, 48), (64, 48)) if listed else videos.ref(clip_of(videos.circles(RED, BLUE, RED), fps=1))
    )
    sent = videos.request(film, uuid=new())
    first = await ask(service, sent)
    hits = service.tools.encoder_cache.stats().hits
    again = await ask(service, without_media(sent))
    assert (again.text, again.visual_tokens, again.images) == (first.text, first.visual_tokens, first.images)
    assert not WORK & again.timing.keys()
    assert service.tools.encoder_cache.stats().hits == hits + (2 if listed else 3)
    estimate = await service.estimate(without_media(sent), None)
    assert estimate.admitted
    assert (estimate.visual_tokens, estimate.bytes, estimate.items[0].encoder_cached) == (first.visual_tokens, 0, True)
    await settled(service)
    assert nothing_held(service)


async def test_a_frame_whose_inputs_are_held_is_encoded_again(service: Journey) -> None:
    sent = videos.request(videos.ref(clip_of(videos.circles(RED, GREEN), fps=1)), uuid=new())
    first = await ask(service, sent)
    newest = max(service.tools.encoder_cache.entries(), key=lambda held: held.used_at)
    service.tools.encoder_cache.drop(newest.key)
    again = await ask(service, without_media(sent))
    assert again.text == first.text
    assert WORK & again.timing.keys() == {"vision_encode"}
    await settled(service)


@pytest.mark.parametrize(
    "reason", ["never bound", "a frame given up", "other frames", "a picture's name", "another tier's limits"]
)
async def test_a_video_that_is_not_held_whole_is_asked_for(service: Journey, reason: str) -> None:
    sent = videos.request(videos.ref(clip_of(videos.circles(RED, GREEN, BLUE), fps=1)), uuid=(name := new()))
    asked = without_media(sent)
    if reason == "a picture's name":
        await ask(service, named(name, picture(RED)))
    elif reason != "never bound":
        await ask(service, sent)
    if reason == "a frame given up":
        newest = max(service.tools.encoder_cache.entries(), key=lambda held: held.used_at)
        service.tools.encoder_cache.drop(newest.key)
        service.tools.processor_cache.drop(newest.key.processor_key)
    elif reason == "other frames":
        (turn,) = asked.turns
        fewer = msgspec.structs.replace(turn.parts[0], num_frames=2)
        asked = msgspec.structs.replace(asked, turns=(msgspec.structs.replace(turn, parts=(fewer, *turn.parts[1:])),))
    elif reason == "another tier's limits":
        asked = by(asked, max_videos=2, max_video_frames=2)
    estimate = await service.estimate(asked, None)
    assert [(refusal.code, refusal.part) for refusal in estimate.refusals] == [("media_not_held", 0)]
    with pytest.raises(MediaNotHeld) as caught:
        await ask(service, asked)
    assert caught.value.part == 0
    await settled(service)
    assert nothing_held(service)
    if reason != "a picture's name":
        await ask(service, sent)
        assert not WORK & (await ask(service, without_media(sent))).timing.keys()
    await settled(service)


async def test_a_video_s_name_is_no_picture_s(service: Journey) -> None:
    name = new()
    await ask(service, videos.request(videos.ref(clip_of(videos.circles(RED), fps=1)), uuid=name))
    with pytest.raises(MediaNotHeld):
        await ask(service, named(name))
    await settled(service)


async def test_a_video_that_is_refused_leaves_no_frames_behind_its_name(service: Journey) -> None:
    """Nothing is remembered of frames that were never there; what was remembered before stays."""
    sent = videos.request(videos.ref(clip_of(videos.circles(RED, GREEN), fps=1)), uuid=new())
    (turn,) = sent.turns
    bad = msgspec.structs.replace(turn.parts[0], num_frames=0)
    refused = msgspec.structs.replace(sent, turns=(msgspec.structs.replace(turn, parts=(bad, *turn.parts[1:])),))
    for known in (False, True):
        with pytest.raises(InvalidParameter):
            await ask(service, refused)
        if known:
            assert not WORK & (await ask(service, without_media(sent))).timing.keys()
        else:
            with pytest.raises(MediaNotHeld):
                await ask(service, without_media(sent))
            await ask(service, sent)
    await settled(service)


async def test_names_are_bounded(service: Journey) -> None:
    journey = Journey(replace(service.tools, aliases=Aliases(1)), models=service.models)
    await ask(journey, named("one", picture(RED)))
    await ask(journey, named("two", picture(RED)))
    with pytest.raises(MediaNotHeld):
        await ask(journey, named("one"))
    assert (await ask(journey, named("two"))).text == "A red circle."
    await settled(service)


async def test_an_operator_lists_names_and_frees_them(service: Journey) -> None:
    name, operator = new(), service.caches()
    await ask(service, by(named(name, picture(RED)), "listed"))
    (listed,) = operator.aliases("listed", 10).aliases
    assert (listed.uuid, listed.format, listed.width, listed.height) == (name, "png", 224, 224)
    with pytest.raises(AliasNotFound):
        operator.forget("anyone", name)
    operator.forget("listed", name)
    assert operator.aliases("listed", 10).bound == 0
    with pytest.raises(MediaNotHeld):
        await ask(service, by(named(name), "listed"))
    assert (await ask(service, by(named(name, picture(BLUE)), "listed"))).text == "A blue circle."
    await settled(service)
