"""The one tensor of a ``torch.save`` file, read without torch and without trust.

``torch.load`` builds what the file says: sparse tensors of any size, storages of declared length, views beyond their storage. Here the
archive may only hold stored (not compressed) entries, and its pickle may only name what a dense tensor is made of, none of which does
anything when called; whatever else it holds is refused. Lengths, strides and offsets are checked against the bytes that are there. Files of
before torch 1.6, which are no archives, are refused. Does not cover what the numbers mean (:mod:`foveate.media.embeddings`).
"""

from __future__ import annotations

import io
import pickle
import pickletools
import struct
import zipfile
from typing import Any, Final

import msgspec
import numpy as np

from foveate.core.errors import EmbeddingsInvalid

ENTRIES_MAX: Final = 64
PICKLE_BYTES_MAX: Final = 16 * 1024
DIMENSIONS_MAX: Final = 8
_END: Final = struct.Struct("<4s4H2LH")
_END_MARK: Final = b"PK\x05\x06"
_LOCATOR: Final = struct.Struct("<4sLQL")
_LOCATOR_MARK: Final = b"PK\x06\x07"
_END_64: Final = struct.Struct("<4sQ2H2L4Q")
_DTYPES: Final = {
    "FloatStorage": "float32",
    "HalfStorage": "float16",
    "BFloat16Storage": "bfloat16",
    "LongStorage": "int64",
    "IntStorage": "int32",
}


class _Storage(msgspec.Struct):
    dtype: str
    key: str


class _Tensor(msgspec.Struct):
    storage: _Storage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


def read_torch(data: bytes) -> tuple[np.ndarray, str]:
    """Return the tensor, not to be written to, and its dtype; bfloat16 comes as uint16. Raises EmbeddingsInvalid."""
    try:
        with _archive(data) as archive:
            by_end = {name.partition("/")[2]: name for name in archive.namelist()}
            if "byteorder" in by_end and archive.read(by_end["byteorder"]) != b"little":
                raise EmbeddingsInvalid(
                    "The tensor was saved with another byte order; save it on a little-endian machine."
                )
            found = _unpickled(archive.read(by_end["data.pkl"]))
            values = archive.read(by_end[f"data/{found.storage.key}"])
        return _view(found, values), found.storage.dtype
    except EmbeddingsInvalid:
        raise
    except MemoryError:
        raise
    except Exception as error:  # A hostile file raises whatever its reader comes upon.
        raise EmbeddingsInvalid("The file is no tensor as torch.save writes them.", detail=repr(error)[:200]) from None


def _archive(data: bytes) -> zipfile.ZipFile:
    end = data.rfind(_END_MARK)
    if end < 0 or len(data) - end < _END.size:
        raise EmbeddingsInvalid("The file is no archive as torch.save writes them.")
    # Before the directory is read: it may list a million entries. torch writes the second record too, which then holds.
    sizes = [_END.unpack_from(data, end)[4:6]]
    locator = end - _LOCATOR.size
    if locator >= _END_64.size and data.startswith(_LOCATOR_MARK, locator):
        sizes.append(_END_64.unpack_from(data, locator - _END_64.size)[7:9])
    if any(count > ENTRIES_MAX or size > ENTRIES_MAX * 1024 for count, size in sizes):
        raise EmbeddingsInvalid("The archive has more entries than a tensor needs.")
    archive = zipfile.ZipFile(io.BytesIO(data))
    entries = archive.infolist()
    if len(entries) > ENTRIES_MAX or any(entry.compress_type != zipfile.ZIP_STORED for entry in entries):
        raise EmbeddingsInvalid("The archive is compressed, which torch.save does not do.")
    if sum(entry.file_size for entry in entries) > len(data):
        raise EmbeddingsInvalid("The archive's entries overlap.")
    return archive


class _Unpickler(pickle.Unpickler):
    """Finds names only, which stand for themselves: nothing that they name is imported or run."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("torch._utils", "_rebuild_tensor_v2"):
            return _rebuilt
        if (module, name) == ("torch._utils", "_rebuild_parameter"):
            return _parameter
        if (module, name) == ("collections", "OrderedDict"):
            return _nothing
        if module == "torch" and name in _DTYPES:
            return name
        raise EmbeddingsInvalid(
            "The file holds something else than one dense tensor of numbers.", detail=f"{module}.{name}"
        )

    def persistent_load(self, pid: Any) -> Any:
        kind, storage, key, _, _ = pid
        if kind != "storage" or storage not in _DTYPES or not (isinstance(key, str) and key.isdecimal()):
            raise EmbeddingsInvalid("The file holds something else than one dense tensor of numbers.")
        return _Storage(_DTYPES[storage], key)


def _unpickled(data: bytes) -> _Tensor:
    if len(data) > PICKLE_BYTES_MAX:
        raise EmbeddingsInvalid("The archive's description is larger than one tensor's.")
    for operation, argument, _ in pickletools.genops(data):
        # The unpickler makes a table as long as the greatest number, and room for whatever length is announced (which this loop looks for).
        if argument is not None and "PUT" in operation.name and argument > len(data):
            raise EmbeddingsInvalid("The archive's description is no tensor's.")
    found = _Unpickler(io.BytesIO(data)).load()
    if not isinstance(found, _Tensor):
        raise EmbeddingsInvalid("The file holds something else than one dense tensor of numbers.")
    return found


def _rebuilt(storage: Any, offset: Any, shape: Any, strides: Any, *_: Any) -> _Tensor:
    numbers = (offset, *shape, *strides)
    if (
        not isinstance(storage, _Storage)
        or len(shape) != len(strides)
        or len(shape) > DIMENSIONS_MAX
        or any(type(number) is not int or not 0 <= number < 2**40 for number in numbers)
    ):
        raise EmbeddingsInvalid("The tensor's shape or strides cannot be.")
    return _Tensor(storage, offset, tuple(shape), tuple(strides))


def _parameter(tensor: Any, *_: Any) -> Any:
    return tensor


def _nothing(*_: Any) -> tuple[()]:
    return ()


def _view(found: _Tensor, values: bytes) -> np.ndarray:
    flat = np.frombuffer(values, np.uint16 if found.storage.dtype == "bfloat16" else found.storage.dtype)
    if 0 in found.shape:
        raise EmbeddingsInvalid("The tensor is empty.")
    last = found.offset + sum((side - 1) * stride for side, stride in zip(found.shape, found.strides, strict=True))
    if last >= len(flat):
        raise EmbeddingsInvalid("The tensor reaches beyond the numbers that are in the file.")
    elements = 1
    for side in found.shape:
        elements *= side
    if elements > len(flat):
        # A view that repeats a few numbers would be a bomb once it is copied.
        raise EmbeddingsInvalid("The tensor has more elements than there are numbers in the file.")
    strides = [stride * flat.itemsize for stride in found.strides]
    return np.lib.stride_tricks.as_strided(flat[found.offset :], found.shape, strides, writeable=False)
