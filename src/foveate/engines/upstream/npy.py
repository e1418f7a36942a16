"""A picture's embeddings as base64 of a .npy file, which vLLM loads without torch's one lock for all processes' loads.

Layout: one row a placeholder, DeepStack levels side by side after the main one, as vLLM's Qwen3-VL has them. NumPy's format knows no
bfloat16, so such rows go as float32, which holds every value of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
import pybase64

from foveate.core.errors import EncodeFailed
from foveate.core.memory import Slot, TensorRef
from foveate.engines.port import PictureInput
from foveate.runtime.arena import Arena

HEAD_BYTES: Final = 192
"""A multiple of 64, as the format asks, and of three, so that the rows' base64 joins without padding between."""
_MAGIC: Final = b"\x93NUMPY\x01\x00"


def npy(picture: PictureInput, arena: Arena) -> Iterator[bytes | Slot]:
    """Yield the file: pieces that are base64 already, and a slot whose bytes are still to be. Raises EncodeFailed for rows that would kill
    whoever reads them: of another number than stated, or not finite.
    """
    view = arena.view(picture.embeddings.slot)
    levels = [_array(view, tensor) for tensor in picture.embeddings.tensors]
    if any(len(level) != picture.rows for level in levels) or not all(np.isfinite(level).all() for level in levels):
        raise EncodeFailed(detail=f"{[level.shape for level in levels]} for {picture.rows} rows, or not finite")
    width = sum(level.shape[1] for level in levels)
    yield pybase64.b64encode(_head(picture.rows, width))
    tensor = picture.embeddings.tensors[0]
    if len(levels) == 1 and tensor.dtype == "float32":
        yield Slot(picture.embeddings.slot.offset + tensor.offset, levels[0].nbytes)
    else:
        yield pybase64.b64encode(np.concatenate(levels, axis=1).tobytes())


def _array(view: memoryview, tensor: TensorRef) -> np.ndarray:
    """Return a tensor as float32 of [rows, width]."""
    size = int(np.prod(tensor.shape))
    if tensor.dtype == "bfloat16":
        halves = np.frombuffer(view, np.uint16, size, tensor.offset)
        found = (halves.astype(np.uint32) << 16).view(np.float32)
    else:
        found = np.frombuffer(view, np.dtype(tensor.dtype), size, tensor.offset).astype(np.float32, copy=False)
    return found.reshape(tensor.shape)


def _head(rows: int, width: int) -> bytes:
    said = f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({rows}, {width}), }}".encode()
    room = HEAD_BYTES - len(_MAGIC) - 2
    return _MAGIC + room.to_bytes(2, "little") + said.ljust(room - 1) + b"\n"
