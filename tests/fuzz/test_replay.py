"""The fuzz targets take their seeds, and everything that was ever found and mended; ``make fuzz`` looks for more."""

from __future__ import annotations

import importlib
import random
from pathlib import Path

import pytest
from tests.fuzz import media
from tests.fuzz.target import TARGETS

from foveate.media.probe import IMAGE_FORMATS, image_format

REGRESSIONS = Path(__file__).parent / "regressions"


@pytest.mark.parametrize("name", TARGETS)
def test_seeds_are_taken(name: str) -> None:
    target = importlib.import_module(f"tests.fuzz.{name}")
    seeds = target.seeds()
    assert len(seeds) > 30
    for seed in seeds:
        target.check(seed)


def test_the_media_seeds_cover_every_format() -> None:
    assert {image_format(memoryview(seed)) for seed in media.seeds()} == {*IMAGE_FORMATS, None}


@pytest.mark.parametrize("path", sorted(REGRESSIONS.glob("*/*")), ids=lambda path: path.name)
def test_what_was_found_stays_mended(path: Path) -> None:
    importlib.import_module(f"tests.fuzz.{path.parent.name}").check(path.read_bytes())


@pytest.mark.parametrize("name", TARGETS)
def test_some_mutations_are_taken(name: str) -> None:
    target = importlib.import_module(f"tests.fuzz.{name}")
    chance = random.Random(7)
    for seed in target.seeds():
        mutated = bytearray(seed)
        for _ in range(4):
            if mutated:
                mutated[chance.randrange(len(mutated))] = chance.randrange(256)
        target.check(
            target.repaired(bytes(mutated[: chance.randrange(len(mutated) + 1)] if chance.random() < 0.3 else mutated))
        )
