"""The file in which embeddings outlive their process: its format, written and read. Called in threads; nothing here knows the event loop.

::

    magic, format number                            18 bytes
    frame {made_by}
    frame {key, replacement, tensors, …}, payload   for each entry, the hottest first
    frame {entries}                                 the end

A frame is its length (4 bytes, little-endian), that many bytes of msgpack, and the BLAKE3 of both; a payload is ``used`` bytes, and the
BLAKE3 of its frame's hash and itself. So every byte is covered by a hash, a payload belongs to one whole key, and an end is told from a
cut. Nothing in it is executed, or trusted for its size. Safetensors has no hashes, and needs all sizes before the first byte.

Does not cover: where the file lies, who may touch it, and which of its entries are of use.
"""

from __future__ import annotations

import os
from typing import BinaryIO, Final, TypeVar

import msgspec
from blake3 import blake3

from foveate.caches.keys import EncoderKey
from foveate.core.kept import SkipReason
from foveate.core.memory import TensorRef
from foveate.core.stages import Stage

MAGIC: Final = b"foveate encoder\n"
FORMAT: Final = 1
FRAME_BYTES_MAX: Final = 4 * 1024 * 1024
"""An entry's frame holds its prompt text: 16,384 visual tokens take some 200 kB."""

_HASH_BYTES: Final = 32
_LENGTH_BYTES: Final = 4
_START: Final = MAGIC + FORMAT.to_bytes(2, "little")
_END_BYTES_MAX: Final = 128
T = TypeVar("T")
_DTYPE_BYTES: Final = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2}


class Kept(msgspec.Struct, frozen=True, tag="entry"):
    """All of an entry but its payload (:class:`foveate.caches.encoder.EncoderEntry`). ``used`` is the payload's bytes."""

    key: EncoderKey
    replacement: str
    rows: int
    meta: dict[str, list[int]]
    tensors: tuple[TensorRef, ...]
    used: int
    cost_ms: dict[Stage, float]

    def whole(self) -> bool:
        """Whether the tensors lie within the payload."""
        return self.used > 0 and all(
            tensor.dtype in _DTYPE_BYTES and 0 <= tensor.offset <= self.used - _tensor_bytes(tensor)
            for tensor in self.tensors
        )


class _Origin(msgspec.Struct, frozen=True, tag="file"):
    made_by: str


class _End(msgspec.Struct, frozen=True, tag="end"):
    entries: int


_ORIGIN: Final = msgspec.msgpack.Decoder(_Origin)
_NEXT: Final[msgspec.msgpack.Decoder[Kept | _End]] = msgspec.msgpack.Decoder(Kept | _End)


class Found(msgspec.Struct, frozen=True):
    """An entry that is there, and where: ``at`` is its payload's first byte, ``frame`` its frame's hash."""

    kept: Kept
    at: int
    frame: bytes


class KeptFault(Exception):
    """The file, or the rest of it, cannot be used."""

    def __init__(self, reason: SkipReason) -> None:
        super().__init__(reason)
        self.reason = reason


class KeptWriter:
    """Writes entries to ``file`` as long as they fit into ``bytes_max``, the end included. Raises OSError, as files do."""

    def __init__(self, file: BinaryIO, bytes_max: int, made_by: str) -> None:
        self.entries = 0
        self.bytes = 0
        """Bytes written."""
        self._file = file
        self._bytes_max = bytes_max - _END_BYTES_MAX
        self._put(_START, _frame(_Origin(made_by)))

    def add(self, kept: Kept, payload: memoryview) -> bool:
        """Write an entry; return whether it fitted. Raises ValueError when the payload is not of ``used`` bytes."""
        if len(payload) != kept.used:
            raise ValueError(f"a payload of {len(payload)} bytes where {kept.used} were announced")
        frame = _frame(kept)
        size = len(frame) + len(payload) + _HASH_BYTES
        if self.bytes + size > self._bytes_max or len(frame) > FRAME_BYTES_MAX:
            return False
        self._put(frame, payload, blake3(frame[-_HASH_BYTES:]).update(payload).digest())
        self.entries += 1
        return True

    def sync(self) -> None:
        """Have what was written reach the disk, so that time spent is told from time owed."""
        self._file.flush()
        os.fdatasync(self._file.fileno())

    def end(self) -> None:
        """Write the end, without which the file counts as cut, and have all of it on the disk."""
        self._put(_frame(_End(self.entries)))
        self._file.flush()
        os.fsync(self._file.fileno())
        self.close()

    def close(self) -> None:
        """Write no more. Closing twice is allowed."""
        self._file.close()

    def _put(self, *parts: bytes | memoryview) -> None:
        for part in parts:
            self._file.write(part)
            self.bytes += len(part)


class KeptReader:
    """Reads a file from its first entry to its end; every payload is read by itself. Raises KeptFault, and OSError as files do."""

    def __init__(self, fd: int, made_by: str) -> None:
        """``made_by``: what a file must say of itself to be of use."""
        self.done = False
        """Whether the end was reached, and all was in order."""
        self._fd = fd
        self._size = os.fstat(fd).st_size
        self._entries = 0
        start = os.pread(fd, len(_START), 0)
        if not start.startswith(MAGIC):
            raise KeptFault("truncated" if MAGIC.startswith(start) else "foreign")
        if start != _START:
            raise KeptFault("truncated" if len(start) < len(_START) else "format")
        self._at = len(_START)
        origin, _ = self._frame(_ORIGIN)
        if origin.made_by != made_by:
            raise KeptFault("version")

    def next(self) -> Found | None:
        """Return the next entry, its payload unread; ``None`` at the end."""
        if self.done:
            return None
        kept, frame = self._frame(_NEXT)
        if isinstance(kept, _End):
            if kept.entries != self._entries or self._at != self._size:
                raise KeptFault("damaged")
            self.done = True
            return None
        found = Found(kept, self._at, frame)
        self._at += kept.used + _HASH_BYTES
        if not kept.whole():
            raise KeptFault("damaged")
        if self._at > self._size:
            raise KeptFault("truncated")
        self._entries += 1
        return found

    def load(self, found: Found, into: memoryview) -> bool:
        """Read a payload into ``into``, of ``used`` bytes; return whether it is what was written."""
        read = 0
        while read < len(into):
            got = os.preadv(self._fd, [into[read:]], found.at + read)
            if not got:
                return False
            read += got
        digest = os.pread(self._fd, _HASH_BYTES, found.at + len(into))
        return digest == blake3(found.frame).update(into).digest()

    def _frame(self, kind: msgspec.msgpack.Decoder[T]) -> tuple[T, bytes]:
        head = os.pread(self._fd, _LENGTH_BYTES, self._at)
        length = int.from_bytes(head, "little")
        if len(head) == _LENGTH_BYTES and length > FRAME_BYTES_MAX:
            raise KeptFault("damaged")
        rest = os.pread(self._fd, length + _HASH_BYTES, self._at + _LENGTH_BYTES)
        if len(head) < _LENGTH_BYTES or len(rest) < length + _HASH_BYTES:
            raise KeptFault("truncated")
        body, digest = rest[:length], rest[length:]
        if blake3(head).update(body).digest() != digest:
            raise KeptFault("damaged")
        self._at += _LENGTH_BYTES + len(rest)
        try:
            return kind.decode(body), digest
        except ValueError as error:
            raise KeptFault("damaged") from error


def _frame(value: msgspec.Struct) -> bytes:
    body = msgspec.msgpack.encode(value)
    start = len(body).to_bytes(_LENGTH_BYTES, "little") + body
    return start + blake3(start).digest()


def _tensor_bytes(tensor: TensorRef) -> int:
    size = _DTYPE_BYTES[tensor.dtype]
    for side in tensor.shape:
        if side < 0:
            return 1 << 62
        size *= side
    return size
