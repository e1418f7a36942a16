"""A new version of the model beside the one that serves, with real engines: who meets it, what is compared, how it ends."""

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
import pytest_asyncio
from blake3 import blake3
from tests.journeys.asking import RED, Answered, ask, data_of, picture, request, settled
from tests.journeys.test_names import forget_embeddings, named
from tests.journeys.versions import overflowing, red_for_blue, seeing_double

from foveate.assembly import journey
from foveate.core.errors import CanaryNotFound, CanaryRefused, CanaryRunning, MediaNotHeld
from foveate.core.media import DataRef
from foveate.journey.canary import Canaries
from foveate.journey.canary_port import CanaryReport, ComparisonReport
from foveate.journey.service import Journey
from foveate.journey.serving import Serving
from foveate.journey.trial import Trial
from foveate.models import memory
from foveate.settings import load

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(600)]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def tried() -> AsyncIterator[Journey]:
    """A server of this module's own, on which versions come and go. Nothing but what is no number takes one back."""
    flags = {
        "log.requests": "off",
        "media.workers": "1",
        "engine.threads": "1",
        "canary.compared_share": "1",
        "canary.samples_min": "3",
        "canary.cosine_min": "-1",
        "canary.latency_ratio_max": "1000000",
    }
    async with journey(load(flags), say=lambda text: None) as built:
        yield built


def met(answered: Answered) -> str:
    """Which version answered about a red circle."""
    return {"A red circle.": "stable", "A blue circle.": "canary"}[answered.text]


async def eventually(canary: Canaries, holds: Callable[[CanaryReport], bool]) -> CanaryReport:
    async with asyncio.timeout(120):
        while not holds(report := canary.report()):
            await asyncio.sleep(0.05)
    return report


async def versions_of(service: Journey, ref: DataRef) -> set[str]:
    """By which encoders the caches hold a picture's embeddings."""
    digest = blake3(data_of(ref)).hexdigest()
    keys = (await service.caches().hottest("encoder", 1000)).keys
    return {str(key.encoder_version) for key in keys if key.digest == digest}


async def test_a_share_of_contents_meets_the_new_version_and_always_the_same(tried: Journey, tmp_path: Path) -> None:
    canary = tried.canary()
    before = tried.caches().report()
    report = await canary.start(str(red_for_blue(tmp_path / "new")), share=0.0, warm=0)
    assert report.state == "on_trial"
    assert report.canary is not None
    assert report.canary.encoder_version != report.stable.encoder_version == before.encoder_version
    assert report.canary.processor_version == report.stable.processor_version
    with pytest.raises(CanaryRunning):
        await canary.start("another", share=1, warm=0)
    pictures = [picture(RED) for _ in range(12)]

    async def meet() -> list[str]:
        return [met(await ask(tried, request(each))) for each in pictures]

    assert await meet() == ["stable"] * 12
    canary.set_share(0.5)
    half = await meet()
    assert set(half) == {"stable", "canary"}
    assert await meet() == half, "from either version's cache, and never from the other's"
    ours = next(ref for ref, by in zip(pictures, half, strict=True) if by == "stable")
    theirs = next(ref for ref, by in zip(pictures, half, strict=True) if by == "canary")
    new, old = report.canary.encoder_version, report.stable.encoder_version
    other = picture(RED, shade=231)
    await ask(tried, request(theirs, other))
    assert await versions_of(tried, other) == {new}, "the first picture decides for the whole prompt"
    await ask(tried, request(ours, other))
    assert await versions_of(tried, other) == {new, old}
    canary.set_share(1.0)
    assert await meet() == ["canary"] * 12
    canary.set_share(0.5)
    assert await meet() == half
    assert met(await ask(tried, request(ours))) == "stable"

    report = await eventually(canary, lambda now: now.comparisons is not None and now.comparisons.compared >= 3)
    assert report.comparisons is not None
    assert report.comparisons.cosine_min is not None
    assert report.comparisons.cosine_min < 0.999
    assert (report.comparisons.not_finite, report.comparisons.rows_differ, report.comparisons.failed) == (0, 0, 0)
    assert report.stable.requests > 12
    assert report.canary.requests > 0
    assert report.stable.errors == report.canary.errors == 0

    last = await canary.rollback()
    assert (last.state, last.reason) == ("rolled_back", "An operator rolled it back.")
    assert await meet() == ["stable"] * 12
    await eventually(canary, lambda now: now.still_ending == 0)
    await settled(tried)  # what was made only to be compared is gone, too
    for use in (canary.promote, lambda: canary.set_share(1.0)):
        with pytest.raises(CanaryNotFound):
            use()
    with pytest.raises(CanaryNotFound):
        await canary.rollback()


async def test_a_version_that_gives_nan_is_rolled_back_before_anybody_met_it(tried: Journey, tmp_path: Path) -> None:
    canary = tried.canary()
    await canary.start(str(overflowing(tmp_path / "new")), share=0.0, warm=0)
    assert met(await ask(tried, request(picture(RED)))) == "stable"
    report = await eventually(canary, lambda now: now.state == "rolled_back")
    assert report.reason is not None
    assert "NaN" in report.reason
    assert report.comparisons is not None
    assert report.comparisons.not_finite == 1
    body, _ = await tried.metrics()
    assert b'foveate_canary_ended_total{outcome="not_finite"} 1.0' in body
    assert met(await ask(tried, request(picture(RED)))) == "stable"


async def test_a_version_too_far_from_the_old_one_is_rolled_back(tried: Journey, tmp_path: Path) -> None:
    assert isinstance(tried.canary(), Canaries)
    terms = tried.canary()._terms
    strict = replace(terms, limits=msgspec.structs.replace(terms.limits, cosine_min=0.995))
    canary = Canaries(tried.tools, strict)
    await canary.start(str(red_for_blue(tmp_path / "new")), share=1.0, warm=0)
    answers = [met(await ask(tried, request(picture(RED)))) for _ in range(4)]
    assert answers[0] == "canary"
    report = await eventually(canary, lambda now: now.state == "rolled_back")
    assert report.reason is not None
    assert "canary.cosine_min" in report.reason
    assert met(await ask(tried, request(picture(RED)))) == "stable"
    await eventually(canary, lambda now: now.still_ending == 0)


async def raises_anything(model: str, encoder: str | None) -> Serving:
    raise KeyError(model)


async def test_what_cannot_be_served_leaves_the_old_one_as_it_is(
    tried: Journey, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    canary = tried.canary()
    assert isinstance(canary, Canaries)
    (tmp_path / "empty").mkdir()
    for model, told in ((str(tmp_path / "nowhere"), "There is no directory"), (str(tmp_path / "empty"), "not a model")):
        with pytest.raises(CanaryRefused) as refused:
            await canary.start(model, share=0.5, warm=0)
        assert told in refused.value.public
        assert canary.report().state == "refused"
    with monkeypatch.context() as patched:
        patched.setattr(memory, "available_bytes", lambda: 1000)
        with pytest.raises(CanaryRefused) as refused:
            await canary.start(str(red_for_blue(tmp_path / "new")), share=0.5, warm=0)
    assert "Not enough memory" in refused.value.public
    broken = red_for_blue(tmp_path / "broken")
    (broken / "model.safetensors").write_bytes((broken / "model.safetensors").read_bytes()[:100_000])
    with pytest.raises(CanaryRefused):
        await canary.start(str(broken), share=0.5, warm=0)
    with monkeypatch.context() as patched:
        patched.setattr(canary, "_terms", replace(canary._terms, load=raises_anything))
        with pytest.raises(CanaryRefused) as refused:
            await canary.start("any", share=0.5, warm=0)
    assert "KeyError" in refused.value.public
    assert (canary.report().state, canary.report().reason) == ("refused", refused.value.public)
    assert len(tried.tools.roll_out.all) == 1
    assert tried.readiness().ready
    assert met(await ask(tried, request(picture(RED)))) == "stable"


async def test_another_processor_prices_anew_and_cannot_be_warmed(tried: Journey, tmp_path: Path) -> None:
    canary = tried.canary()
    large = picture(RED, shade=222, size=640)
    small = await ask(tried, request(large))
    await canary.start(str(seeing_double(tmp_path / "new")), share=1.0, warm=1000)
    double = await ask(tried, request(large))
    assert double.visual_tokens > 1.5 * small.visual_tokens
    assert (await tried.estimate(request(large), None)).visual_tokens == double.visual_tokens
    report = await eventually(canary, lambda now: now.not_held > 0)
    assert report.warmed == 0
    assert report.comparisons is not None
    await canary.rollback()
    assert (await ask(tried, request(large))).visual_tokens == small.visual_tokens


async def test_media_that_the_new_version_does_not_hold_yet_say_nothing_against_it(
    tried: Journey, tmp_path: Path
) -> None:
    canary = tried.canary()
    await ask(tried, named("held by the old one", picture(RED)))
    await canary.start(str(seeing_double(tmp_path / "new")), share=1.0, warm=0)
    for _ in range(12):
        with pytest.raises(MediaNotHeld):
            await ask(tried, named("held by the old one"))
    await asyncio.sleep(1.5)  # more than the evidence waits to be judged
    report = canary.report()
    assert (report.state, report.reason) == ("on_trial", None)
    assert report.canary is not None
    assert report.canary.errors == 0
    await canary.rollback()
    await eventually(canary, lambda now: now.still_ending == 0)


async def test_inputs_of_one_processor_are_not_compared_by_the_encoder_of_another(
    tried: Journey, tmp_path: Path
) -> None:
    canary = tried.canary()
    await ask(tried, named("inputs alone", picture(RED)))
    await canary.start(str(seeing_double(tmp_path / "new")), share=0.0, warm=0)
    forget_embeddings(tried, "inputs alone")
    assert met(await ask(tried, named("inputs alone"))) == "stable"
    assert met(await ask(tried, request(picture(RED)))) == "stable"  # this one can be
    await eventually(canary, lambda now: now.comparisons is not None and now.comparisons != ComparisonReport())
    await asyncio.sleep(1.0)  # time enough for another
    report = canary.report()
    assert report.comparisons is not None
    assert report.comparisons.compared + report.comparisons.rows_differ + report.comparisons.failed == 1
    await canary.rollback()
    await eventually(canary, lambda now: now.still_ending == 0)
    await settled(tried)


async def test_a_version_given_up_while_it_loads_has_ended_before_another_is_loaded(tried: Journey) -> None:
    assert isinstance(tried.canary(), Canaries)
    begun: list[str] = []
    ended: list[str] = []
    ending, may_end = asyncio.Event(), asyncio.Event()

    async def load(model: str, encoder: str | None) -> Serving:
        begun.append(model)
        try:
            await asyncio.Event().wait()
        finally:
            ending.set()
            await may_end.wait()
            ended.append(model)
        raise AssertionError

    canary = Canaries(tried.tools, replace(tried.canary()._terms, load=load))
    start = asyncio.create_task(canary.start("first", share=1.0, warm=0))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    back = asyncio.create_task(canary.rollback())
    await ending.wait()
    with pytest.raises(CanaryRunning):
        await canary.start("second", share=1.0, warm=0)
    again = asyncio.create_task(canary.rollback())  # cuts nothing short
    await asyncio.sleep(0.01)
    may_end.set()
    assert {(await back).state, (await again).state} <= {"none", "refused", "rolled_back", "promoted"}
    with pytest.raises(CanaryRefused):
        await start
    assert begun == ended == ["first"]
    second = asyncio.create_task(canary.start("third", share=1.0, warm=0))
    await asyncio.sleep(0.01)
    assert canary.report().state == "loading"
    await canary.aclose()
    with pytest.raises(CanaryRefused):
        await second
    assert begun == ended == ["first", "third"]


async def test_promotion_under_load_loses_nothing_and_ends_the_old_one(tried: Journey, tmp_path: Path) -> None:
    canary = tried.canary()
    hot = picture(RED)
    assert [met(await ask(tried, request(hot))) for _ in range(30)] == ["stable"] * 30
    new = str(red_for_blue(tmp_path / "new"))
    await canary.start(new, share=1.0, warm=1)
    await eventually(canary, lambda now: now.warmed == 1)
    warmed = await ask(tried, request(hot))
    assert met(warmed) == "canary"
    assert not {"media_decode", "vision_encode"} & set(warmed.timing)
    canary.set_share(0.5)
    asked = [asyncio.create_task(ask(tried, request(picture(RED)))) for _ in range(24)]
    await asyncio.sleep(0.3)
    promoted = canary.promote()
    assert promoted.state == "promoted"
    asked += [asyncio.create_task(ask(tried, request(picture(RED)))) for _ in range(8)]
    answers = [met(answered) for answered in await asyncio.gather(*asked)]
    assert answers[24:] == ["canary"] * 8
    assert "stable" in answers[:24], "requests end on the version that they began with"
    report = await eventually(canary, lambda now: now.still_ending == 0)
    assert report.stable.model == new
    assert tried.caches().report().encoder_version == report.stable.encoder_version
    assert len(tried.tools.roll_out.all) == 1
    assert tried.readiness().ready
    assert met(await ask(tried, request(hot))) == "canary"
    assert (await ask(tried, request(text="hello"))).text
    await settled(tried)


async def test_news_and_the_end_in_one_moment_end_the_watch(tried: Journey) -> None:
    """In Python 3.11 ``wait_for`` swallows a cancellation that comes when what it waits for is there."""
    assert isinstance(tried.canary(), Canaries)
    canary = Canaries(tried.tools, tried.canary()._terms)
    same = tried.tools.roll_out.stable
    trial = Trial(same, same, share=0, compared_share=0, limits=canary._terms.limits, metrics=tried.tools.metrics)
    watch = asyncio.create_task(canary._watch(trial))
    await asyncio.sleep(0.01)
    trial.news.set()
    watch.cancel()
    async with asyncio.timeout(10):
        await asyncio.wait((watch,))
    assert watch.cancelled()
