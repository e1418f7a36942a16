"""Patches are multiplied as the convolution would, and only where it takes each patch once."""

from __future__ import annotations

import pytest
import torch
from tests.unit.models.loaded import Loaded
from torch import nn

from foveate.models.patch_embed import PatchProduct, as_products


class Embedding(nn.Module):
    """As transformers' own of the Qwens: the convolution, and the sizes beside it."""

    temporal_patch_size = 2

    def __init__(self, **options: object) -> None:
        super().__init__()
        self.proj = nn.Conv3d(3, 24, (2, 14, 14), **{"stride": (2, 14, 14), "bias": False, **options})  # type: ignore[arg-type]


@pytest.mark.parametrize("bias", [False, True])
def test_the_product_is_the_convolution(bias: bool) -> None:
    embedding = Embedding(bias=bias).double()
    patches = torch.randn(7, 3, 2, 14, 14, dtype=torch.float64)
    expected = embedding.proj(patches)
    names = set(embedding.state_dict())
    as_products(embedding)
    assert isinstance(embedding.proj, PatchProduct)
    found = embedding.proj(patches)
    assert found.shape == expected.shape
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    assert set(embedding.state_dict()) == names


@pytest.mark.parametrize("options", [{"stride": (2, 7, 7)}, {"padding": (0, 1, 1)}, {"dilation": (1, 2, 2)}])
def test_what_is_no_product_stays(options: dict[str, object]) -> None:
    embedding = Embedding(**options)
    as_products(embedding)
    assert isinstance(embedding.proj, nn.Conv3d)


def test_patches_of_another_size_are_refused() -> None:
    embedding = Embedding()
    as_products(embedding)
    with pytest.raises(RuntimeError):
        embedding.proj(torch.zeros(7, 3, 2, 14, 28))


@pytest.mark.parametrize("name", ["qwen2_vl", "qwen2_5_vl", "qwen3_vl"])
def test_the_towers_that_have_one(model_of: object, name: str) -> None:
    loaded: Loaded = model_of(name)  # type: ignore[operator]
    theirs = [part for part in loaded.their_model.modules() if isinstance(part, nn.Conv3d)]
    assert len(theirs) == 1
    ours = [part for part in loaded.tower._model.modules() if isinstance(part, PatchProduct)]  # type: ignore[attr-defined]
    assert len(ours) == 1
    torch.testing.assert_close(ours[0].weight, theirs[0].weight)
