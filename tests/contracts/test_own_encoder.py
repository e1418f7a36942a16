"""An operator's own vision encoder (:class:`foveate.models.own_encoder.VisionEncoder`), through every process of a real server's inside."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from tests.families import build_family
from tests.journeys.asking import BLUE, RED, ask, picture, request

from foveate import models
from foveate.assembly import journey
from foveate.core.errors import ImageShapeRefused, StartupError, UnsupportedParameter
from foveate.core.media import AS_VIEWERS_SHOW, ImageOptions, ProcessorOptions
from foveate.journey.service import Journey
from foveate.models.own_encoder import load_own_prompt_side, own_encoder
from foveate.settings import load

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(300)]
SPEC = "tests.own_encoder:MeanColours"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def service() -> AsyncIterator[Journey]:
    flags = {"log.requests": "off", "media.workers": "1", "engine.threads": "1", "model.encoder": SPEC}
    async with journey(load(flags), say=lambda text: None) as built:
        yield built


async def test_it_prices_processes_and_encodes_in_every_topology(service: Journey) -> None:
    shown = [picture(RED, 11), picture(BLUE, 12)]
    answers = []
    for kind in ("agg", "e-pd", "agg"):
        await service.topology().set(kind, 1)
        service.tools.encoder_cache.clear()
        service.tools.processor_cache.clear()
        answered = await ask(service, request(*shown))
        assert (answered.images, answered.visual_tokens) == (2, 2 * 7 * 7)
        assert {"mm_processor", "vision_encode"} <= set(answered.timing)
        answers.append(answered.text)
        if kind == "e-pd":
            assert sum(worker.pictures for worker in service.topology().report().workers) == 2
    assert len(set(answers)) == 1
    assert answers[0] != (await ask(service, request(picture(RED, 13)))).text, "the pictures make a difference"


async def test_a_size_that_it_cannot_take_is_refused(service: Journey) -> None:
    with pytest.raises(ImageShapeRefused):
        await ask(service, request(picture(RED, size=24)))
    assert (await ask(service, request(picture(RED, size=70)))).visual_tokens == 4


async def test_prices_and_versions() -> None:
    files = models.resolve_model(None)
    own, checkpoints = load_own_prompt_side(files, AS_VIEWERS_SHOW, SPEC), models.load_prompt_side(files)
    estimate = own.estimate(100, 70, ImageOptions())
    assert (estimate.tokens, estimate.rows_max) == (6, 6)
    assert own.processor_version != checkpoints.processor_version
    assert own.options(ImageOptions(pixels_max=1, fit_width=5, fit_height=6)) == ImageOptions(fit_width=5, fit_height=6)
    with pytest.raises(UnsupportedParameter):
        own.wanted(ProcessorOptions(max_pixels=1000))


@pytest.mark.parametrize("spec", ["no.such.module:Thing", "tests.own_encoder:NoSuchClass", "tests.own_encoder:Path"])
async def test_what_is_no_encoder_is_refused_with_its_name(spec: str) -> None:
    with pytest.raises(StartupError) as refused:
        own_encoder(spec, models.resolve_model(None).directory)
    assert spec in refused.value.public


@pytest.mark.parametrize("family", ["gemma3", "qwen3_vl"])
async def test_a_family_that_needs_its_own_encoder_is_refused(family: str, tmp_path: Path) -> None:
    files = models.resolve_model(str(build_family(family, tmp_path)))
    with pytest.raises(StartupError, match="another vision encoder"):
        load_own_prompt_side(files, AS_VIEWERS_SHOW, SPEC)


async def test_the_page_shows_the_example_that_is_tested() -> None:
    root = Path(__file__).parents[2]
    example = (root / "tests" / "own_encoder.py").read_text().partition("import json")[2]
    assert example.strip() in (root / "docs" / "encoder.md").read_text()
