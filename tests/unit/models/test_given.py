"""What stands in the prompt for a client's own embeddings: what a picture of as many rows would."""

from collections.abc import Callable

import numpy as np
import pytest
from tests.families import FAMILIES
from tests.unit.models.loaded import Loaded

from foveate.core.errors import EmbeddingsInvalid, EmbeddingsRefused
from foveate.core.media import ImageOptions
from foveate.engines.vllm.config import FAMILIES as OF_VLLM


@pytest.mark.parametrize("family", sorted(OF_VLLM))
def test_the_same_as_for_a_picture(family: str, model_of: Callable[[str], Loaded]) -> None:
    model = model_of(family)
    made = model.pictures.process(np.zeros((112, 168, 3), np.uint8), ImageOptions())
    grid = tuple(made.meta.get("image_grid_thw", ()))
    assert model.prompt.given(made.rows, grid) == (made.replacement, made.meta)
    other = () if grid else (1, 2, 2)
    with pytest.raises(EmbeddingsInvalid):
        model.prompt.given(made.rows, other)


@pytest.mark.parametrize("family", sorted(set(FAMILIES) - OF_VLLM))
def test_families_whose_prompt_says_more(family: str, model_of: Callable[[str], Loaded]) -> None:
    with pytest.raises(EmbeddingsRefused, match="take pictures, not embeddings"):
        model_of(family).prompt.given_accepted()
