"""One picture's embeddings as a file: how they are handed to an engine by name, without a copy through its requests.

A header of 128 bytes, then the rows, DeepStack levels of a row side by side. A file is immutable once others can open it, and says itself
whose embeddings it holds, so that a wrong one is known before any of it is used. Read inside vLLM's processes too: the standard library
and msgspec only. Does not cover: who makes files, where they lie, and for how long.
"""

from __future__ import annotations

import hashlib
import os
import stat
import struct
import zlib
from typing import Final

import msgspec

Grid = tuple[int, int, int]
"""Frames, rows and columns of patches (Qwen-VL's ``image_grid_thw``); zeros in families without."""

NO_GRID: Final[Grid] = (0, 0, 0)
HEADER_BYTES: Final = 128
"""A multiple of 64, as the rows behind it are to be aligned."""

_MAGIC: Final = b"foveate\x01"
_HEADER: Final = struct.Struct("<8s32sIIIIIIIQ")
"""Magic with the version, SHA-256 of the name, dtype, rows, width, grid, CRC-32 of the rows, their bytes."""

DTYPES: Final = {"float32": 4, "float16": 2, "bfloat16": 2}
"""Torch's names of the dtypes that rows may have, and their bytes."""
_CODES: Final = tuple(DTYPES)
_SLICE_BYTES: Final = 1 << 20


class EmbeddingFault(Exception):
    """A file does not hold what was asked for; the message says why."""


class EmbeddingHeader(msgspec.Struct, frozen=True):
    """What a file says of its rows: an array of ``dtype`` (one of :data:`DTYPES`) and shape [``rows``, ``width``]."""

    digest: bytes
    dtype: str
    rows: int
    width: int
    grid: Grid = NO_GRID
    crc: int = 0

    @property
    def data_bytes(self) -> int:
        """Bytes of the rows."""
        return self.rows * self.width * DTYPES[self.dtype]

    def packed(self) -> bytes:
        """Return the file's first :data:`HEADER_BYTES`. Raises EmbeddingFault for a dtype that has no code, or sizes out of range."""
        try:
            head = _HEADER.pack(
                _MAGIC,
                self.digest,
                _CODES.index(self.dtype),
                self.rows,
                self.width,
                *self.grid,
                self.crc,
                self.data_bytes,
            )
        except (ValueError, struct.error) as error:
            raise EmbeddingFault(f"{self.dtype} of [{self.rows}, {self.width}] cannot be handed on: {error}") from error
        return head.ljust(HEADER_BYTES, b"\0")


def digest_of(name: str) -> bytes:
    """Return what a header has of a name, 32 bytes: names may be longer than a header, or a file's name, can be."""
    return hashlib.sha256(name.encode()).digest()


def open_file(path: str) -> int:
    """Return a descriptor for reading. Raises OSError: not there, or nothing that can be read at once."""
    return os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY)


def read_header(fd: int, name: str, *, checksum: bool) -> EmbeddingHeader:
    """Return the header of the file that should hold the embeddings of ``name``.

    ``checksum``: read the rows and compare, about 0.5 ms for each MB. Raises EmbeddingFault: it is of something else, cut, or damaged.
    """
    found = os.fstat(fd)
    if not stat.S_ISREG(found.st_mode):
        raise EmbeddingFault("not a file")
    head = os.pread(fd, HEADER_BYTES, 0)
    if len(head) < HEADER_BYTES:
        raise EmbeddingFault(f"cut off after {len(head)} bytes")
    magic, digest, code, rows, width, frames, high, wide, crc, size = _HEADER.unpack_from(head)
    if magic != _MAGIC or code >= len(_CODES):
        raise EmbeddingFault("not embeddings of this version")
    if digest != digest_of(name):
        raise EmbeddingFault("the embeddings of something else")
    header = EmbeddingHeader(digest, _CODES[code], rows, width, (frames, high, wide), crc)
    if size != header.data_bytes or found.st_size != HEADER_BYTES + size:
        raise EmbeddingFault(f"{found.st_size} bytes for {header.dtype} of [{rows}, {width}]")
    if checksum and _checksum(fd, size) != crc:
        raise EmbeddingFault("damaged: its checksum is another")
    return header


def _checksum(fd: int, size: int) -> int:
    found, at = 0, 0
    while at < size:
        piece = os.pread(fd, min(_SLICE_BYTES, size - at), HEADER_BYTES + at)
        if not piece:
            raise EmbeddingFault("it was cut while it was read")
        found = zlib.crc32(piece, found)
        at += len(piece)
    return found


def write_file(fd: int, header: EmbeddingHeader, rows: memoryview) -> None:
    """Write the whole file into an empty one; ``rows`` are its bytes. Raises OSError, EmbeddingFault."""
    for piece in (memoryview(header.packed()), rows):
        while piece:
            piece = piece[os.write(fd, piece) :]
