"""Requests that go well: right answers, stages that close, work done once."""

import asyncio
import base64
import dataclasses
from pathlib import Path

import msgspec
import pytest
from aiohttp import web
from tests.journeys.asking import BLUE, RED, ask, picture, request, settled

from foveate.core.errors import UrlRefused
from foveate.core.media import ImageOptions, UrlRef
from foveate.core.stages import STAGES
from foveate.journey.roll_out import RollOut
from foveate.journey.service import Journey
from foveate.models.port import VisualEstimate

pytestmark = pytest.mark.asyncio(loop_scope="session")
MEDIA = {"media_decode", "mm_processor", "encoder_queue", "vision_encode", "embedding_transfer"}


async def test_a_picture_is_answered_and_its_stages_sum_to_the_first_token(service: Journey) -> None:
    answered = await ask(service, request(picture(RED)))
    assert answered.text == "A red circle."
    assert answered.reason == "stop"
    assert (answered.images, answered.visual_tokens) == (1, 64)
    assert set(answered.timing) == {*STAGES, "ttft", "unattributed"} - {"upstream"}
    stages = sum(value for name, value in answered.timing.items() if name != "ttft")
    assert stages == pytest.approx(answered.timing["ttft"], abs=0.002)


async def test_text_has_no_media_stage(service: Journey) -> None:
    answered = await ask(service, request(text="Hello!"))
    assert answered.text.startswith("Hello!")
    assert set(answered.timing) == {"admission", "llm_queue", "llm_prefill", "ttft", "unattributed"}


async def test_a_repeated_picture_is_not_worked_on_again(service: Journey) -> None:
    again = picture(BLUE)
    first = await ask(service, request(again))
    second = await ask(service, request(again))
    assert first.text == second.text == "A blue circle."
    assert set(first.timing) >= MEDIA
    assert not set(second.timing) & MEDIA


async def test_two_pictures_keep_their_order(service: Journey) -> None:
    answered = await ask(service, request(picture(BLUE), picture(RED), text="Describe both images."))
    assert answered.text == "First image: a blue circle. Second image: a red circle."


async def test_the_processor_cache_alone_saves_media_decode(service: Journey) -> None:
    again = picture(RED)
    await ask(service, request(again))
    service.tools.encoder_cache.clear()
    answered = await ask(service, request(again))
    assert answered.text == "A red circle."
    assert not {"media_decode", "mm_processor"} & set(answered.timing)
    assert "vision_encode" in answered.timing


async def test_requests_for_one_new_picture_at_once_share_the_work(service: Journey) -> None:
    before = service.tools.encoder_cache.stats()
    new = picture(BLUE)
    answers = await asyncio.gather(*(ask(service, request(new)) for _ in range(8)))
    after = service.tools.encoder_cache.stats()
    assert {answered.text for answered in answers} == {"A blue circle."}
    assert after.entries - before.entries == 1
    shared, hits = after.shared - before.shared, after.hits - before.hits
    assert shared + hits == 7
    assert service.tools.processor_cache.stats().shared > 0
    assert shared > 0


async def test_a_url_is_fetched_once_and_its_origin_logged_without_the_query(service: Journey) -> None:
    seen: list[str] = []
    data = picture(RED)

    async def serve(request: web.Request) -> web.Response:
        seen.append(request.raw_path)
        return web.Response(body=base64.b64decode(data.url.partition(",")[2]), content_type="image/webp")

    app = web.Application()
    app.router.add_get("/{name}", serve)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = site._server.sockets[0].getsockname()[1]  # type: ignore[union-attr]
    policy = service.tools.rules.current.policy
    try:
        object.__setattr__(policy, "ports", frozenset({*policy.ports, port}))
        answered = await ask(service, request(UrlRef(f"http://127.0.0.1:{port}/a%27b.png?sig=a%2Fb")))
    finally:
        await runner.cleanup()
    assert answered.text == "A red circle."
    assert seen == ["/a%27b.png?sig=a%2Fb"]


async def test_a_local_file_beneath_the_root_is_a_picture_like_any_other(service: Journey, tmp_path: Path) -> None:
    data = picture(RED)
    (tmp_path / "red.webp").write_bytes(base64.b64decode(data.url.partition(",")[2]))
    policy = service.tools.rules.current.policy
    url = UrlRef(f"file://{tmp_path}/red.webp")
    with pytest.raises(UrlRefused, match=r"rule: scheme"):
        await ask(service, request(url))
    try:
        object.__setattr__(policy, "file_root", str(tmp_path))
        answered = await ask(service, request(url))
    finally:
        object.__setattr__(policy, "file_root", "")
    assert answered.text == "A red circle."


async def test_inputs_larger_than_estimated_get_a_larger_slot(service: Journey) -> None:
    class Underestimating:
        """The prompt side, but with a price that is far too low."""

        def estimate(self, width: int, height: int, options: ImageOptions) -> VisualEstimate:
            right = service.tools.roll_out.stable.prompt_side.estimate(width, height, options)
            return msgspec.structs.replace(right, input_bytes_max=64)

        def __getattr__(self, name: str) -> object:
            return getattr(service.tools.roll_out.stable.prompt_side, name)

    serving = dataclasses.replace(service.tools.roll_out.stable, prompt_side=Underestimating())
    tools = dataclasses.replace(service.tools, roll_out=RollOut(serving))
    answered = await ask(Journey(tools, models=service.models), request(picture(BLUE)))
    assert answered.text == "A blue circle."


async def test_nothing_is_left_behind(service: Journey) -> None:
    await settled(service)
    assert service.tools.arena.slots == sum(
        cache.stats().entries for cache in (service.tools.processor_cache, service.tools.encoder_cache)
    )
