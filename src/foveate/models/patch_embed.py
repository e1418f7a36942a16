"""Patch embeddings as the matrix products that they are.

A vision tower whose convolution steps by exactly its own size multiplies each patch by one matrix. torch's three-dimensional
convolution does that several times slower than its matrix product (a CPU: 18 of 70 ms for a picture of 1,008 patches), whatever the
batch. The result is the same sum in another order: it may differ in the last bits, as it does between any two devices.
"""

from __future__ import annotations

import torch
from torch import nn


class PatchProduct(nn.Module):
    """What a convolution does to patches of exactly its kernel's size: ``[patches, channels, *kernel]`` to ``[patches, width, 1, 1, 1]``.

    It holds the convolution's own parameters under their names.
    """

    def __init__(self, convolution: nn.Conv3d) -> None:
        super().__init__()
        self.weight = convolution.weight
        self.bias = convolution.bias

    def forward(self, patches: torch.Tensor) -> torch.Tensor:
        """Multiply. Raises RuntimeError for patches of another size."""
        found = nn.functional.linear(patches.flatten(1), self.weight.flatten(1), self.bias)
        return found[:, :, None, None, None]


def as_products(model: nn.Module) -> None:
    """Replace the three-dimensional convolutions of patch embeddings in place; others, which overlap or pad, stay."""
    for owner in list(model.modules()):
        for name, part in list(owner.named_children()):
            if isinstance(part, nn.Conv3d) and _steps_by_itself(part) and hasattr(owner, "temporal_patch_size"):
                setattr(owner, name, PatchProduct(part))


def _steps_by_itself(part: nn.Conv3d) -> bool:
    return (
        part.kernel_size == part.stride
        and part.groups == 1
        and set(part.dilation) == {1}
        and part.padding in ((0, 0, 0), "valid")
    )
