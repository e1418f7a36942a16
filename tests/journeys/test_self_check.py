"""The self-check of embeddings on real workers: what is right passes, and each way that peers were seen to go wrong is refused.

The faults are where they would be: in the processor's configuration, in the weights, or between encoder and engine.
"""

import json
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytest_asyncio
from msgspec.structs import replace as changed
from tests.families import build_family
from tests.journeys.versions import copy_of_demo, red_for_blue

from foveate.assembly.supply import Shared
from foveate.assembly.version import find_model, load_version
from foveate.core.errors import StartupError
from foveate.core.media import EncodedImage, PreparedImage
from foveate.core.memory import Slot
from foveate.decisions.agreement import Comparison
from foveate.encoders.port import UNKNOWN, Encoder, Purpose
from foveate.encoders.reference_port import ReferenceConfig, ReferenceProcess
from foveate.journey.self_check import TOKENS, check_embeddings, compare
from foveate.journey.serving import Serving
from foveate.models.files import DEMO_DIRECTORY
from foveate.models.preload import ALWAYS
from foveate.observe.load import Load
from foveate.observe.metrics import Metrics
from foveate.runtime.arena import Arena
from foveate.runtime.local.runtime import LocalRuntime
from foveate.runtime.tensors import read_bundle
from foveate.settings import load

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(300)]
Fault = Callable[[EncodedImage, Arena], EncodedImage]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def runtime() -> AsyncIterator[LocalRuntime]:
    made = LocalRuntime(Arena(64 << 20), preload=(*ALWAYS, "foveate.media.worker", "foveate.engines.embedded.process"))
    yield made
    await made.close()


@asynccontextmanager
async def serving_of(directory: Path, runtime: LocalRuntime) -> AsyncIterator[Serving]:
    settings = load({"model.path": str(directory), "media.workers": "1", "engine.threads": "1"})
    files, name = await find_model(settings.model.path, settings, lambda text: None)
    shared = Shared(settings, runtime, Load(Metrics()), lambda text: None)
    made = await load_version(files, name, settings, shared, number=0)
    try:
        yield made
    finally:
        await made.stop()


async def compared(serving: Serving, reference: Path, runtime: LocalRuntime, *, tokens: int = 0) -> Comparison:
    process = ReferenceProcess(runtime, ReferenceConfig(str(reference), tokens), index=0, threads=1)
    try:
        await process.start(seconds_max=250)
        return await compare(serving, process, runtime.arena)
    finally:
        await process.stop()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def demo(runtime: LocalRuntime) -> AsyncIterator[Serving]:
    async with serving_of(DEMO_DIRECTORY, runtime) as made:
        yield made


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def deep(runtime: LocalRuntime, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[tuple[Serving, Path]]:
    directory = build_family("qwen3_vl", tmp_path_factory.mktemp("qwen3_vl"))
    async with serving_of(directory, runtime) as made:
        yield made, directory


class Faulty:
    """A real encoder, and a fault between it and the engine."""

    def __init__(self, encoder: Encoder, arena: Arena, fault: Fault) -> None:
        self._encoder = encoder
        self._arena = arena
        self._fault = fault

    async def encode(
        self, prepared: PreparedImage, out: Slot, *, deadline: float, purpose: Purpose = UNKNOWN
    ) -> EncodedImage:
        return self._fault(await self._encoder.encode(prepared, out, deadline=deadline), self._arena)


def rows_of(image: EncodedImage, arena: Arena) -> np.ndarray:
    return read_bundle(arena.view(image.embeddings.slot), image.embeddings)["rows"]


def turned(image: EncodedImage, arena: Arena) -> EncodedImage:
    """Column by column instead of row by row."""
    rows = rows_of(image, arena)
    rows[:] = rows.reshape(7, 11, -1).transpose(1, 0, 2).reshape(rows.shape).copy()
    return image


def two_rows_exchanged(image: EncodedImage, arena: Arena) -> EncodedImage:
    rows = rows_of(image, arena)
    rows[[3, 4]] = rows[[4, 3]]
    return image


def twice_as_long(image: EncodedImage, arena: Arena) -> EncodedImage:
    rows_of(image, arena)[:] *= 2
    return image


def levels_exchanged(image: EncodedImage, arena: Arena) -> EncodedImage:
    names = {"deep0": "deep1", "deep1": "deep0"}
    tensors = tuple(
        type(ref)(names.get(ref.name, ref.name), ref.dtype, ref.shape, ref.offset) for ref in image.embeddings.tensors
    )
    return changed(image, embeddings=changed(image.embeddings, tensors=tensors))


async def test_what_is_right_agrees_with_embeddings_and_answers(demo: Serving, runtime: LocalRuntime) -> None:
    found = await compared(demo, DEMO_DIRECTORY, runtime, tokens=TOKENS)
    assert found.reason == ""
    assert found.rows == found.rows_expected == 77
    assert found.cosine_min is not None
    assert found.cosine_min > 0.99999
    assert found.logprob_difference is not None
    assert found.logprob_difference < 0.001
    assert found.steps == TOKENS


async def test_without_the_whole_model_the_engine_answers_by_both(demo: Serving, runtime: LocalRuntime) -> None:
    found = await compared(demo, DEMO_DIRECTORY, runtime)
    assert found.reason == ""
    assert (found.logprob_difference, found.steps) == (pytest.approx(0.0, abs=1e-4), TOKENS)


@pytest.mark.parametrize(
    ("fault", "said"),
    [(turned, "mean cosine"), (two_rows_exchanged, "one embedding row's cosine"), (twice_as_long, "times as long")],
)
async def test_rows_that_are_not_what_they_should_be(
    demo: Serving, runtime: LocalRuntime, fault: Fault, said: str
) -> None:
    faulty = replace(demo, encoder=Faulty(demo.encoder, runtime.arena, fault))
    assert said in (await compared(faulty, DEMO_DIRECTORY, runtime)).reason


async def test_levels_that_are_exchanged(deep: tuple[Serving, Path], runtime: LocalRuntime) -> None:
    serving, directory = deep
    assert (await compared(serving, directory, runtime)).reason == ""
    faulty = replace(serving, encoder=Faulty(serving.encoder, runtime.arena, levels_exchanged))
    assert "mean cosine" in (await compared(faulty, directory, runtime)).reason


async def test_the_model_of_another_family_or_width(deep: tuple[Serving, Path], runtime: LocalRuntime) -> None:
    """A reference of other rows than the path's; the engine is not asked about them."""
    found = await compared(deep[0], DEMO_DIRECTORY, runtime)
    assert "embedding rows" in found.reason
    assert found.logprob_difference is None


def normalised_twice(directory: Path) -> Path:
    """What a processor makes that normalises what is normalised: ((x - m) / s - m) / s = (x - (m + m s)) / s²."""
    copy_of_demo(directory)
    path = directory / "preprocessor_config.json"
    settings: dict[str, Any] = json.loads(path.read_text())
    mean, std = np.array(settings["image_mean"]), np.array(settings["image_std"])
    path.write_text(json.dumps(settings | {"image_mean": list(mean + mean * std), "image_std": list(std**2)}))
    return directory


async def test_pixels_that_are_normalised_twice(tmp_path: Path, runtime: LocalRuntime) -> None:
    async with serving_of(normalised_twice(tmp_path / "twice"), runtime) as serving:
        found = await compared(serving, DEMO_DIRECTORY, runtime)
    assert "mean cosine" in found.reason
    assert found.logprob_difference is not None
    assert found.logprob_difference > 0.25


async def test_the_weights_of_another_encoder_and_of_before(tmp_path: Path, runtime: LocalRuntime) -> None:
    """The files are replaced while the encoder that read them before still runs."""
    directory = red_for_blue(tmp_path / "other")
    async with serving_of(directory, runtime) as serving:
        assert (await compared(serving, directory, runtime)).reason == ""
        shutil.copy(DEMO_DIRECTORY / "model.safetensors", directory / "model.safetensors")
        assert "cosine" in (await compared(serving, directory, runtime)).reason


async def test_what_fails_is_told_when_the_server_starts(demo: Serving, runtime: LocalRuntime) -> None:
    process = ReferenceProcess(runtime, ReferenceConfig(str(DEMO_DIRECTORY)), index=0, threads=1)
    await process.start(seconds_max=250)
    faulty = replace(demo, encoder=Faulty(demo.encoder, runtime.arena, turned))
    try:
        with pytest.raises(StartupError) as refused:
            await check_embeddings(faulty, process, runtime.arena)
        assert "pictures would be answered wrongly: the embeddings' mean cosine" in refused.value.public
    finally:
        await process.stop()
