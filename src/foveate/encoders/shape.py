"""What makes pictures alike enough for one pass of the vision tower."""

from __future__ import annotations

from collections.abc import Hashable

from foveate.core.media import PreparedImage


def picture_shape(prepared: PreparedImage) -> Hashable:
    """Return names, dtypes and shapes of a picture's inputs."""
    return tuple((ref.name, ref.dtype, ref.shape) for ref in prepared.inputs.tensors)
