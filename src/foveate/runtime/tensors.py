"""Named arrays in a slot of the arena, written once and read without a copy.

NumPy only, which knows no bfloat16: such a tensor travels as uint16 under its true name, and its owners reinterpret it
(``torch.from_numpy(array).view(torch.bfloat16)``). Does not cover: who owns the slot.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from foveate.core.memory import Slot, TensorBundle, TensorRef
from foveate.runtime.arena import aligned

_CARRIED_AS = {"bfloat16": np.dtype(np.uint16)}
_NO_NAMES: Mapping[str, str] = {}


class SlotTooSmall(Exception):
    """A slot cannot hold what was to be written; nothing was. ``bytes_needed`` would do."""

    def __init__(self, bytes_needed: int, bytes_available: int) -> None:
        super().__init__(f"{bytes_needed} bytes do not fit into a slot of {bytes_available}")
        self.bytes_needed = bytes_needed
        self.bytes_available = bytes_available


def bundle_size(arrays: Mapping[str, np.ndarray]) -> int:
    """Return the bytes of a slot that :func:`write_bundle` needs: every array starts at a multiple of 64."""
    end = 0
    for array in arrays.values():
        end = aligned(end) + array.nbytes
    return end


def write_bundle(
    view: memoryview, slot: Slot, arrays: Mapping[str, np.ndarray], dtypes: Mapping[str, str] = _NO_NAMES
) -> TensorBundle:
    """Copy ``arrays`` into ``view``, the bytes of ``slot``, in order, and return where they lie.

    ``dtypes`` names the true dtype of arrays that NumPy cannot express (``{"rows": "bfloat16"}`` for a uint16 array).
    Raises SlotTooSmall before anything is written, ValueError when a name in ``dtypes`` does not agree with its array.
    """
    needed = bundle_size(arrays)
    if needed > len(view):
        raise SlotTooSmall(needed, len(view))
    refs: list[TensorRef] = []
    end = 0
    for name, array in arrays.items():
        offset = aligned(end)
        dtype = dtypes.get(name, array.dtype.name)
        if _numpy_dtype(dtype) != array.dtype:
            raise ValueError(f"tensor {name!r}: an array of {array.dtype.name} cannot carry {dtype}")
        end = offset + array.nbytes
        if array.nbytes:
            target = np.frombuffer(view, dtype=array.dtype, count=array.size, offset=offset)
            np.copyto(target.reshape(array.shape), array)
        refs.append(TensorRef(name, dtype, tuple(array.shape), offset))
    return TensorBundle(slot, tuple(refs), end)


def read_bundle(view: memoryview, bundle: TensorBundle) -> dict[str, np.ndarray]:
    """Return the arrays of ``bundle`` as views of ``view``, the bytes of its slot. bfloat16 comes as uint16.

    Raises ValueError when a tensor reaches beyond ``view``.
    """
    return {ref.name: _read(view, ref) for ref in bundle.tensors}


def _read(view: memoryview, ref: TensorRef) -> np.ndarray:
    dtype = _numpy_dtype(ref.dtype)
    count = int(np.prod(ref.shape, dtype=np.int64))
    if count == 0:
        return np.empty(ref.shape, dtype)
    return np.frombuffer(view, dtype=dtype, count=count, offset=ref.offset).reshape(ref.shape)


def _numpy_dtype(name: str) -> np.dtype:
    return _CARRIED_AS.get(name) or np.dtype(name)
