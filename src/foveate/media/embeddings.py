"""Embeddings that a client computed itself: from untrusted bytes to rows of the model's own shape. Runs in a media worker.

Taken are the two forms that vLLM takes, told by their first bytes: a ``.npy`` file and a ``torch.save`` file. Checked are dtype, shape,
width, number of rows, and that every value is finite, also in the dtype that the model computes in. NumPy only: no foreign code sees the
bytes. Does not cover what the rows stand for in the prompt (:mod:`foveate.models.given`).
"""

from __future__ import annotations

import ast
import binascii
import io
from typing import Final

import msgspec
import numpy as np
import pybase64

from foveate.core.errors import EmbeddingsInvalid
from foveate.media.torch_file import read_torch

NPY: Final = b"\x93NUMPY"
NPY_HEADER_BYTES_MAX: Final = 4096
GRID_CHARACTERS_MAX: Final = 8192
FLOATS: Final = ("float32", "float16", "bfloat16")


class EmbeddingShape(msgspec.Struct, frozen=True):
    """What the model's embeddings are: ``width`` numbers a row and level, ``levels`` of them (1 without DeepStack), in ``dtype``."""

    width: int
    levels: int
    dtype: str
    rows_max: int


def read_embeddings(data: memoryview, shape: EmbeddingShape) -> dict[str, np.ndarray]:
    """Return tensors ``rows`` and ``deep0`` …, [n, width] in the model's dtype, bfloat16 as uint16. Raises EmbeddingsInvalid."""
    found, dtype = _tensor(bytes(data))
    if dtype not in FLOATS:
        raise EmbeddingsInvalid(f"Embeddings are {' or '.join(FLOATS)}, not {dtype}.")
    if found.ndim == 3 and found.shape[0] == 1:
        found = found[0]
    whole = shape.width * shape.levels
    if found.ndim != 2 or found.shape[1] != whole:
        levels = f" ({shape.levels} levels of {shape.width})" if shape.levels > 1 else ""
        raise EmbeddingsInvalid(f"This model's embeddings are [rows, {whole}]{levels}, not {list(found.shape)}.")
    if not 1 <= found.shape[0] <= shape.rows_max:
        raise EmbeddingsInvalid(
            f"The embeddings have {found.shape[0]} rows; a picture has 1 to {shape.rows_max}.",
            limit=shape.rows_max,
            actual=found.shape[0],
        )
    wide = _float32(found, dtype)
    cast = _cast(wide, shape.dtype)
    if not np.isfinite(_float32(cast, shape.dtype)).all():
        raise EmbeddingsInvalid("The embeddings hold NaN or infinite values, or such that are too large for the model.")
    parts = np.split(cast, shape.levels, axis=1)
    names = ["rows", *(f"deep{level}" for level in range(shape.levels - 1))]
    return {name: np.ascontiguousarray(part) for name, part in zip(names, parts, strict=True)}


def read_grid(given: str) -> tuple[int, ...]:
    """Return a grid that came as base64 of a saved tensor. Raises EmbeddingsInvalid."""
    if len(given) > GRID_CHARACTERS_MAX:
        raise EmbeddingsInvalid("image_grid_thw is no tensor of three numbers.")
    try:
        data = pybase64.b64decode(given, validate=True)
    except (binascii.Error, ValueError):
        raise EmbeddingsInvalid("image_grid_thw is neither a list of three numbers nor base64.") from None
    found, dtype = _tensor(data)
    if dtype not in ("int64", "int32") or found.size != 3:
        raise EmbeddingsInvalid("image_grid_thw is no tensor of three whole numbers.")
    return tuple(int(side) for side in found.reshape(-1))


def _tensor(data: bytes) -> tuple[np.ndarray, str]:
    return _npy(data) if data.startswith(NPY) else read_torch(data)


def _npy(data: bytes) -> tuple[np.ndarray, str]:
    """Read a ``.npy`` file: NumPy's own reader would make room for whatever shape the header announces."""
    try:
        stream = io.BytesIO(data)
        version = np.lib.format.read_magic(stream)
        length = int.from_bytes(stream.read(2 if version == (1, 0) else 4), "little")
        if length > NPY_HEADER_BYTES_MAX:
            raise ValueError("header")
        header = ast.literal_eval(stream.read(length).decode("latin1"))
        descr, fortran, shape = header["descr"], header["fortran_order"], header["shape"]
        dtype = np.dtype({"<f4": "<f4", "<f2": "<f2", "<i8": "<i8", "<i4": "<i4"}[descr])
        if not all(type(side) is int and 0 <= side < 2**40 for side in shape) or len(shape) > 8:
            raise ValueError("shape")
        count = 1
        for side in shape:
            count *= side
        flat = np.frombuffer(data, dtype, count=count, offset=stream.tell())
        return flat.reshape(shape, order="F" if fortran else "C"), dtype.name
    except (ValueError, KeyError, TypeError, SyntaxError, AttributeError, RecursionError) as error:
        raise EmbeddingsInvalid(
            "The .npy file cannot be read: it must hold little-endian float32 or float16.", detail=repr(error)[:200]
        ) from None


def _float32(array: np.ndarray, dtype: str) -> np.ndarray:
    if dtype == "bfloat16":
        return (array.astype(np.uint32) << 16).view(np.float32)
    return array.astype(np.float32)


def _cast(wide: np.ndarray, dtype: str) -> np.ndarray:
    """Return float32 as ``dtype``, rounded to the nearest, ties to even."""
    if dtype != "bfloat16":
        with np.errstate(over="ignore"):
            return wide.astype(dtype)
    bits = np.ascontiguousarray(wide).view(np.uint32).astype(np.uint64)
    rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    # Rounding must not turn NaN into a number.
    return np.where(np.isfinite(wide), rounded, np.uint16(0x7F80)).astype(np.uint16)
