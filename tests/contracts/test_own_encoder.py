"""An operator's own vision encoder (:class:`foveate.models.own_encoder.VisionEncoder`), through every process of a real server's inside."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from blake3 import blake3
from tests import treacherous_encoder
from tests.families import build_family
from tests.journeys.asking import BLUE, GREEN, RED, Answered, ask, picture, request
from tests.journeys.versions import red_for_blue

from foveate import models
from foveate.assembly import journey
from foveate.assembly.checks import check
from foveate.core.errors import CanaryRefused, EncodeFailed, ImageShapeRefused, StartupError, UnsupportedParameter
from foveate.core.media import AS_VIEWERS_SHOW, ImageOptions, ProcessorOptions
from foveate.journey.service import Journey
from foveate.models.files import DEMO_DIRECTORY
from foveate.models.own_encoder import load_own_processor, load_own_prompt_side, own_encoder, own_facts
from foveate.models.own_source import source_of
from foveate.settings import load

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(300)]
SPEC = "tests.own_encoder:MeanColours"
INT8 = "examples.int8_encoder:Int8Encoder"
TREACHEROUS = "tests.treacherous_encoder:Treacherous"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def service() -> AsyncIterator[Journey]:
    flags = {"log.requests": "off", "media.workers": "1", "engine.threads": "1", "model.encoder": TREACHEROUS}
    async with journey(load(flags), say=lambda text: None) as built:
        yield built


@pytest.mark.parametrize("kind", ["agg", "e-pd"])
async def test_whatever_it_does_wrong_fails_that_picture_alone(kind: str, service: Journey) -> None:
    await service.topology().set(kind, 1)
    try:
        for side in (
            treacherous_encoder.PRICE,
            treacherous_encoder.PROCESS,
            treacherous_encoder.NO_ARRAY,
            treacherous_encoder.RAISES,
            treacherous_encoder.ROWS,
            treacherous_encoder.WIDTH,
            treacherous_encoder.DTYPE,
            treacherous_encoder.NOT_FINITE,
            treacherous_encoder.NO_TENSOR,
        ):
            wrong, right = ask(service, request(picture(RED, size=side))), ask(service, request(picture(RED, size=70)))
            found = await asyncio.gather(wrong, right, return_exceptions=True)
            assert isinstance(found[0], EncodeFailed), (side, found[0])
            assert isinstance(found[1], Answered), found[1]
    finally:
        await service.topology().set("agg", 1)


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


def versions(directory: Path, spec: str) -> tuple[str, str]:
    files = models.resolve_model(str(directory))
    facts, _ = own_facts(files.directory, spec, device="cpu", dtype="float32")
    return load_own_prompt_side(files, AS_VIEWERS_SHOW, spec).processor_version, facts.encoder_version


async def test_whatever_it_is_made_of_is_in_its_versions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    demo, weights = DEMO_DIRECTORY, tmp_path / "weights"
    weights.write_bytes(b"1")
    code = (Path(__file__).parents[1] / "own_encoder.py").read_text()
    code += f"\n    files = ({str(weights)!r},)\n"
    monkeypatch.syspath_prepend(str(tmp_path))
    for name, text in (("one", code), ("two", code.replace("-1", "-2")), ("three", code + "\n# changed")):
        (tmp_path / f"encoder_{name}.py").write_text(text)
    one, two, three = (versions(demo, f"encoder_{name}:MeanColours") for name in ("one", "two", "three"))
    assert len({*one, *two, *three}) == 6
    # What it reads of its own is the encoder's alone, and so are the checkpoint's weights, from which it may have been made.
    weights.write_bytes(b"2")
    processor, encoder = versions(demo, "encoder_one:MeanColours")
    assert (processor, encoder != one[1]) == (one[0], True)
    (tmp_path / "other").mkdir()
    other = versions(red_for_blue(tmp_path / "other" / demo.name), "encoder_one:MeanColours")
    assert (other[0], other[1] != encoder) == (one[0], True)
    # A process keeps the name of what it imported; one that is started later finds the change.
    started_with = source_of("encoder_one:MeanColours")
    (tmp_path / "encoder_one.py").write_text(code + "\n# changed while it serves")
    assert source_of("encoder_one:MeanColours") == started_with
    with pytest.raises(StartupError, match="start again"):
        load_own_processor(str(demo), "encoder_two:MeanColours", started_with)


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ("class Own:\n    pass", "lacks grid(self, width, height), process(self, pixels)"),
        ("Own = 1", "no class Own"),
        ("import no_such_library", "no_such_library"),
        ("from tests.own_encoder import MeanColours as M\nclass Own(M):\n    def grid(self, size): ...", "grid(self, width, height)"),
        ("from tests.own_encoder import MeanColours as M\nclass Own(M):\n    async def encode(self, x): ...", "async"),
    ],
)  # fmt: skip
async def test_what_is_missing_is_told_before_anything_is_loaded(
    body: str, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"wrong_encoder_{blake3(body.encode()).hexdigest()[:8]}"
    (tmp_path / f"{name}.py").write_text(body)
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(StartupError) as refused:
        check(load({"model.encoder": f"{name}:Own"}))
    assert told in refused.value.public


@pytest.mark.parametrize("body", ["version = ''", "def __init__(self, model_dir): raise OSError('no weights')"])
async def test_an_instance_that_is_of_no_use(body: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = f"useless_encoder_{len(body)}"
    (tmp_path / f"{name}.py").write_text(f"from tests.own_encoder import MeanColours as M\nclass Own(M):\n    {body}")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(StartupError, match=r"version|no weights"):
        own_encoder(f"{name}:Own", str(DEMO_DIRECTORY))


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


async def test_another_is_rolled_out_and_answers_as_the_model_does_in_every_topology(service: Journey) -> None:
    """Last: it is the encoder from here on. The example that is to be run, the model's own tower in int8."""
    before = service.tools.roll_out.stable.encoder_version
    canary = service.canary()
    with pytest.raises(CanaryRefused, match="no class"):
        await canary.start(str(DEMO_DIRECTORY), share=1.0, warm=0, encoder="examples.int8_encoder:Int16Encoder")
    await canary.start(str(DEMO_DIRECTORY), share=1.0, warm=0, encoder=INT8)
    canary.promote()
    assert service.tools.roll_out.stable.encoder_version != before
    for kind in ("agg", "e-pd"):
        await service.topology().set(kind, 1)
        for colour, said in ((RED, "A red circle."), (BLUE, "A blue circle."), (GREEN, "A green circle.")):
            answered = await ask(service, request(picture(colour)))
            assert (answered.text, answered.visual_tokens) == (said, 64)
    assert sum(worker.pictures for worker in service.topology().report().workers) == 3
