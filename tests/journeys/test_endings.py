"""Requests that do not go well: one ending each, and everything they held is given back."""

import asyncio
import base64
import dataclasses
import os
import signal

import msgspec
import pytest
from tests.journeys.asking import BLUE, GREEN, RED, ask, by, cached_bytes, picture, request, settled

from foveate.core.errors import (
    DeadlineExceeded,
    Draining,
    EncodeFailed,
    EncodersUnavailable,
    FoveateError,
    ImageTooLarge,
    MediaIdConflict,
    MediaTooLarge,
    MediaUndecodable,
    MediaUnsupported,
    PromptTooLong,
    TooManyImages,
    UrlRefused,
)
from foveate.core.media import DataRef, UrlRef
from foveate.core.request import Request
from foveate.engines.fleet import Fleet
from foveate.journey.service import Journey
from foveate.runtime.local.process import LocalWorker

pytestmark = pytest.mark.asyncio(loop_scope="session")


def limited(service: Journey, **limits: float) -> Journey:
    """The same server with other limits."""
    tools = dataclasses.replace(service.tools, limits=dataclasses.replace(service.tools.limits, **limits))
    return Journey(tools, models=service.models)


def inline(data: bytes) -> DataRef:
    return DataRef("data:image/png;base64," + base64.b64encode(data).decode())


HALF = base64.b64decode(picture(GREEN).url.partition(",")[2])[:200]


@pytest.mark.parametrize(
    ("asked", "limits", "error"),
    [
        (lambda: by(request(picture(RED), picture(RED)), max_images=1), {}, TooManyImages),
        (lambda: by(request(picture(RED)), max_item_bytes=10), {}, MediaTooLarge),
        (lambda: by(request(picture(RED)), max_image_pixels=1000), {}, ImageTooLarge),
        (lambda: by(request(picture(RED)), max_image_width=100), {}, ImageTooLarge),
        (lambda: request(inline(b"<html>no</html>")), {}, MediaUnsupported),
        (lambda: request(inline(HALF)), {}, MediaUndecodable),
        (lambda: request(UrlRef("http://169.254.169.254/latest")), {}, UrlRefused),
        (lambda: request(text="red " * 5000), {}, PromptTooLong),
        (lambda: request(picture(RED), tokens=4090), {}, PromptTooLong),
        (lambda: request(text="Hello!"), {"request_seconds_max": 0.0}, DeadlineExceeded),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
async def test_each_refusal_has_its_class_and_leaves_nothing(
    service: Journey, asked: object, limits: dict[str, float], error: type[FoveateError]
) -> None:
    assert callable(asked)
    with pytest.raises(error):
        await ask(limited(service, **limits), asked())
    await settled(service)


@pytest.mark.parametrize(
    ("error", "stage"),
    [(EncodersUnavailable(), "encoder_queue"), (EncodeFailed(), "vision_encode")],
    ids=["no one", "failed"],
)
async def test_waiting_in_vain_for_an_encoder_is_not_told_as_encoding(
    service: Journey, monkeypatch: pytest.MonkeyPatch, error: FoveateError, stage: str
) -> None:
    async def encode(*_: object, **__: object) -> None:
        await asyncio.sleep(0.02)
        raise error

    assert service.tools.roll_out.stable.encoders is not None
    monkeypatch.setattr(service.tools.roll_out.stable.encoders, "encode", encode)
    async with service.answer(request(picture(RED)), None) as answer:
        with pytest.raises(type(error)):
            await answer.begin()
        timing = dict(entry.split(";dur=") for entry in answer.server_timing().split(", "))
    assert {"encoder_queue", "vision_encode"} & timing.keys() == {stage}
    assert float(timing[stage]) >= 20
    await settled(service)


async def test_a_deadline_waits_for_no_engine_that_stands_still(service: Journey) -> None:
    """What it may still read stays, and is given back when it goes on."""
    fleet = service.tools.roll_out.stable.engine
    assert isinstance(fleet, Fleet)
    worker = fleet.engines[0].worker
    assert isinstance(worker, LocalWorker)
    assert worker.pid is not None
    await ask(
        service, request(asked := picture(BLUE))
    )  # its embeddings are there, so that the prompt gets to the engine
    os.kill(worker.pid, signal.SIGSTOP)
    try:
        for each in (request(asked), request(text="Hello!")):
            with pytest.raises(DeadlineExceeded):
                await ask(limited(service, request_seconds_max=0.3), each)
        assert worker.alive, "nobody has ended it"
        assert service.tools.encoder_cache.stats().pinned == 1
    finally:
        os.kill(worker.pid, signal.SIGCONT)
    await settled(service)
    while service.tools.encoder_cache.stats().pinned:
        await asyncio.sleep(0.01)


async def test_the_error_names_the_picture(service: Journey) -> None:
    with pytest.raises(MediaUnsupported) as caught:
        await ask(service, request(picture(RED), inline(b"%PDF-1.4"), picture(BLUE)))
    assert caught.value.part == 1
    assert caught.value.param == "messages[0].content[1].image_url"
    await settled(service)


async def test_a_uuid_names_one_content(service: Journey) -> None:
    def named(uuid: str, ref: DataRef) -> Request:
        asked = request(ref)
        (turn,) = asked.turns
        part = msgspec.structs.replace(turn.parts[0], uuid=uuid)
        turns = (msgspec.structs.replace(turn, parts=(part, *turn.parts[1:])),)
        return msgspec.structs.replace(asked, turns=turns)

    same = picture(RED)
    assert (await ask(service, named("one", same))).text == "A red circle."
    assert (await ask(service, named("one", same))).text == "A red circle."
    with pytest.raises(MediaIdConflict):
        await ask(service, named("one", picture(BLUE)))
    await settled(service)


async def test_a_draining_server_refuses(service: Journey) -> None:
    draining = limited(service)
    draining.drain()
    assert not draining.readiness().ready
    with pytest.raises(Draining):
        await ask(draining, request(text="Hello!"))


@pytest.mark.parametrize("milliseconds", [0, 1, 2, 4, 8, 16, 32, 64, 128])
async def test_a_client_may_leave_at_any_moment(service: Journey, milliseconds: int) -> None:
    asked: Request = request(picture(RED), picture(BLUE), picture(GREEN), text="Describe the images.", tokens=200)
    task = asyncio.ensure_future(ask(service, asked))
    await asyncio.sleep(milliseconds / 1000)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await settled(service)
    assert service.open_requests == 0
    assert service.tools.multimodal_places.waiting == 0


async def test_the_first_of_those_who_share_a_picture_may_leave(service: Journey) -> None:
    new = picture(GREEN)
    tasks = [asyncio.ensure_future(ask(service, request(new))) for _ in range(4)]
    while not len(service.tools.flights):
        await asyncio.sleep(0)
    tasks[0].cancel()
    answers = await asyncio.gather(*tasks, return_exceptions=True)
    assert isinstance(answers[0], asyncio.CancelledError)
    assert all(not isinstance(answer, BaseException) and answer.text == "A green circle." for answer in answers[1:])
    await settled(service)


async def test_every_place_is_given_back(service: Journey) -> None:
    async def one(number: int) -> None:
        with pytest.raises(MediaUndecodable):
            await ask(service, request(inline(HALF + bytes([number]))))

    await asyncio.gather(*(one(number) for number in range(80)))
    assert (await ask(service, request(picture(RED)))).text == "A red circle."
    await settled(service)
    assert service.tools.arena.used_bytes == cached_bytes(service)
