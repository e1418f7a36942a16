"""What an operator sees of the caches of a server that works, and does to them."""

import asyncio

import pytest
from tests.journeys.asking import BLUE, RED, ask, picture, request, settled

from foveate.core.errors import CacheKeyNotFound
from foveate.journey.service import Journey

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_the_report_counts_what_requests_did_and_the_arena_s_true_bytes(service: Journey) -> None:
    operator = service.caches()
    before = operator.report()
    again = picture(RED)
    for _ in range(3):
        await ask(service, request(again))
    await settled(service)
    after = operator.report()
    assert after.encoder.hits - before.encoder.hits == 2
    assert after.encoder.misses - before.encoder.misses == 1
    assert after.processor.misses - before.processor.misses == 1
    assert after.processor.hits == before.processor.hits
    assert sum(after.encoder.saved_ms.values()) > sum(before.encoder.saved_ms.values())
    assert after.encoder.bytes + after.processor.bytes == service.tools.arena.used_bytes
    assert after.kv_prefix.requests - before.kv_prefix.requests == 3
    assert after.kv_prefix.prompt_tokens - before.kv_prefix.prompt_tokens > 3 * 64
    prompt_tokens = (after.kv_prefix.prompt_tokens - before.kv_prefix.prompt_tokens) // 3
    # Of the first of three equal prompts at most the beginning is known; the others need no prefill.
    assert 2 * prompt_tokens <= after.kv_prefix.cached_tokens - before.kv_prefix.cached_tokens < 2.5 * prompt_tokens


async def test_the_hottest_key_is_found_dropped_and_made_again(service: Journey) -> None:
    operator = service.caches()
    again = picture(BLUE)
    for _ in range(12):
        await ask(service, request(again))
    listed = await operator.hottest("encoder", 1)
    (hot,) = listed.keys
    assert hot.hits >= 11
    assert hot.encoder_version == operator.report().encoder_version
    assert hot.processor_version == operator.report().processor_version
    assert hot.bytes % 64 == 0
    assert listed.entries == operator.report().encoder.entries
    inputs = await operator.hottest("processor", 1000)
    assert hot.digest in {key.digest for key in inputs.keys}
    assert all(key.encoder_version is None for key in inputs.keys)
    before = operator.report().encoder
    dropped = await operator.drop("encoder", hot.name)
    assert (dropped.entries, dropped.bytes) == (1, hot.bytes)
    assert before.bytes - operator.report().encoder.bytes == hot.bytes
    with pytest.raises(CacheKeyNotFound):
        await operator.drop("encoder", hot.name)
    answered = await ask(service, request(again))
    assert answered.text == "A blue circle."
    assert "vision_encode" in answered.timing
    assert "media_decode" not in answered.timing  # the processor cache is another one


async def test_a_version_is_dropped_from_one_cache_and_nothing_under_way_is_harmed(service: Journey) -> None:
    operator = service.caches()
    asked = asyncio.gather(*(ask(service, request(picture(RED))) for _ in range(4)))
    await asyncio.sleep(0.05)
    version = operator.report().encoder_version
    assert (await operator.drop_version("encoder", "no such version")).entries == 0
    await operator.drop_version("encoder", version)
    assert {answered.text for answered in await asked} == {"A red circle."}
    await settled(service)
    held = operator.report()
    dropped = await operator.drop_version("encoder", version)
    assert (dropped.entries, dropped.bytes) == (held.encoder.entries, held.encoder.bytes)
    assert operator.report().encoder.bytes == 0
    assert operator.report().processor.bytes == held.processor.bytes > 0


async def test_the_curve_follows_what_requests_look_up(service: Journey) -> None:
    operator = service.caches()
    curve = operator.curve("encoder").advice
    assert curve is not None
    seen = curve.seen
    again = picture(BLUE)
    for _ in range(2):
        await ask(service, request(again))
    after = operator.curve("encoder").advice
    assert after is not None
    assert after.seen.lookups - seen.lookups == 2
    assert after.seen.hits - seen.hits == 1
    assert after.seen.cost_ms > seen.cost_ms
    assert len(after.points) == 7
