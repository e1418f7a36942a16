"""Pictures as pixels: resized so that the processor behind finds nothing left to resize, and makes the same model inputs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.families import build_family

from foveate import models
from foveate.core.errors import StartupError
from foveate.core.media import ImageOptions
from foveate.models.pixels import LONGEST_EDGE, VALUES

FAMILIES = ("gemma3", "idefics3", "mistral3", "pixtral", "smolvlm")
SIZES = ((640, 480), (480, 640), (90, 31), (31, 90), (1, 1), (224, 224), (225, 223), (1000, 150), (57, 56))


@pytest.fixture(scope="module", params=FAMILIES)
def directory(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_family(request.param, tmp_path_factory.mktemp(request.param))


@pytest.mark.parametrize("pixels_max", [0, 60 * 60, 112 * 112])
def test_the_same_inputs_come_out_behind(directory: Path, pixels_max: int) -> None:
    whole = models.load_picture_processor(str(directory))
    halfway = models.load_picture_processor(str(directory), pixels=True)
    prompts = models.load_prompt_side(models.resolve_model(str(directory)), pixels=True)
    random = np.random.default_rng(0)
    for width, height in SIZES:
        given = random.integers(0, 256, (height, width, 3), dtype=np.uint8)
        asked = prompts.options(ImageOptions(pixels_max=pixels_max))
        expected = whole.process(given, asked)
        handed = halfway.process(given, asked)
        pixels = handed.arrays["pixels"]
        # What the processor behind is told is all that it needs to know: without it, it decides for itself.
        edge = handed.meta.get(LONGEST_EDGE, [0])[0]
        made = whole.process(pixels, ImageOptions(pixels_max=edge * edge))
        assert (handed.replacement, handed.rows) == (expected.replacement, expected.rows), (width, height)
        assert handed.meta[VALUES] == [expected.arrays["pixel_values"].size]
        assert np.array_equal(made.arrays["pixel_values"], expected.arrays["pixel_values"]), (width, height)
        assert prompts.estimate(width, height, asked).input_bytes_max == pixels.nbytes


def test_they_are_another_version(directory: Path) -> None:
    files = models.resolve_model(str(directory))
    version = models.load_prompt_side(files, pixels=True).processor_version
    assert version == models.load_picture_processor(str(directory), pixels=True).processor_version
    assert version != models.load_prompt_side(files).processor_version


def test_other_families_go_in_as_embeddings(tmp_path: Path) -> None:
    directory = build_family("llava", tmp_path)
    with pytest.raises(StartupError, match=r"LLaVA-1\.5"):
        models.load_picture_processor(str(directory), pixels=True)
