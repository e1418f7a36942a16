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
from foveate.core.memory import Slot
from foveate.engines.port import PictureInput
from foveate.runtime.arena import Arena
from foveate.runtime.tensors import read_bundle

HEAD_BYTES: Final = 192
"""A multiple of 64, as the format asks, and of three, so that the rows' base64 joins without padding between."""
_MAGIC: Final = b"\x93NUMPY\x01\x00"


def npy(picture: PictureInput, arena: Arena) -> Iterator[bytes | Slot]:
    """Yield the file: pieces that are base64 already, and a slot whose bytes are still to be. Raises EncodeFailed as :func:`levels_of`."""
    levels = levels_of(picture, arena)
    width = sum(level.shape[1] for level in levels)
    yield pybase64.b64encode(_head(picture.rows, width))
    tensor = picture.embeddings.tensors[0]
    if len(levels) == 1 and tensor.dtype == "float32":
        yield Slot(picture.embeddings.slot.offset + tensor.offset, levels[0].nbytes)
    else:
        yield pybase64.b64encode(np.concatenate([_float32(level) for level in levels], axis=1).tobytes())


def levels_of(picture: PictureInput, arena: Arena) -> list[np.ndarray]:
    """Return a picture's tensors, each of [rows, width], bfloat16 as uint16, as views of the arena.

    Raises EncodeFailed for what would kill whoever reads it: of another number of rows than stated, or not finite.
    """
    view = arena.view(picture.embeddings.slot)
    levels = list(read_bundle(view, picture.embeddings).values())
    if (
        not levels
        or any(level.ndim != 2 or len(level) != picture.rows for level in levels)
        or not all(map(_finite, levels))
    ):
        raise EncodeFailed(detail=f"{[level.shape for level in levels]} for {picture.rows} rows, or not finite")
    return levels


def _finite(level: np.ndarray) -> bool:
    if level.dtype == np.uint16:  # bfloat16: an exponent of ones is NaN or infinite
        return bool(((level & 0x7F80) != 0x7F80).all())
    return bool(np.isfinite(level).all())


def _float32(level: np.ndarray) -> np.ndarray:
    if level.dtype == np.uint16:
        return (level.astype(np.uint32) << 16).view(np.float32)
    return level.astype(np.float32, copy=False)


def _head(rows: int, width: int) -> bytes:
    said = f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({rows}, {width}), }}".encode()
    room = HEAD_BYTES - len(_MAGIC) - 2
    return _MAGIC + room.to_bytes(2, "little") + said.ljust(room - 1) + b"\n"
