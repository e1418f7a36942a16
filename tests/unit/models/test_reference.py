"""The reference of every family: transformers' own, without the language model's layers, and by no table of ours."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tests.families import FAMILIES
from tests.unit.models.loaded import Loaded

from foveate.core.errors import StartupError
from foveate.core.media import ImageOptions
from foveate.models import reference as module
from foveate.models.check_picture import HEIGHT, QUESTION, TILE, WIDTH, check_picture
from foveate.models.memory import weight_bytes
from foveate.models.port import Embeddings
from foveate.models.reference import TOP, reference


def test_the_picture_is_the_same_always_and_no_two_places_of_it_are() -> None:
    pixels = check_picture()
    assert pixels.shape == (HEIGHT, WIDTH, 3)
    assert (pixels == check_picture()).all()
    tiles = {tuple(pixels[y, x]) for y in range(0, HEIGHT, TILE) for x in range(0, WIDTH, TILE)}
    assert len(tiles) == 17 * 29


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_it_is_what_our_own_path_makes(family: str, model_of: Callable[[str], Loaded]) -> None:
    model = model_of(family)
    made = reference(str(model.directory), check_picture(), QUESTION)
    assert made.answered is None
    processed = model.pictures.process(check_picture(), ImageOptions())
    assert processed.meta == made.meta
    (ours,) = model.tower.encode([{name: torch.from_numpy(array) for name, array in processed.arrays.items()}])
    assert isinstance(ours, Embeddings)
    pairs = zip((ours.rows, *ours.deep), (made.embeddings.rows, *made.embeddings.deep), strict=True)
    assert all(torch.allclose(one, other, atol=1e-4) for one, other in pairs)


def test_with_an_answer_the_whole_model_is_asked(demo: Loaded) -> None:
    made = reference(str(demo.directory), check_picture(), QUESTION, tokens=3)
    assert made.answered is not None
    assert len(made.answered.token_ids) == len(made.answered.top) == 3
    for token, top in zip(made.answered.token_ids, made.answered.top, strict=True):
        assert len(top) == TOP
        assert max(top, key=lambda each: top[each]) == token


def test_layers_take_most_of_the_memory_and_are_not_asked_for(demo: Loaded) -> None:
    whole = weight_bytes(str(demo.directory), "float32")
    assert 0 < weight_bytes(str(demo.directory), "float32", layers=False) < whole


def test_too_little_memory_is_told_before_anything_is_loaded(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, demo: Loaded
) -> None:
    monkeypatch.setattr(module, "available_bytes", lambda: 1000)
    with pytest.raises(StartupError, match=r"vision tower .* is held once more: .* 0\.0 GiB are free"):
        reference(str(demo.directory), check_picture(), QUESTION)
