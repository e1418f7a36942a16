"""Undo a body's Content-Encoding in small steps. We ask for none; some origins compress all the same.

One gzip or deflate layer is undone. A step yields at most :data:`STEP_BYTES`, so that whoever takes the pieces can stop
at a cap and let others run in between: 64 KB may hold 64 MiB. Layers upon layers, br and zstd are refused, as an origin
that was asked for ``identity`` has no reason to send them.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from typing import Final

from foveate.core.errors import FetchRejected

STEP_BYTES: Final = 64 * 1024
_SLACK_BYTES: Final = 64 * 1024
_GZIP, _ZLIB, _RAW = 31, 15, -15
"""What zlib calls the three formats (``wbits``)."""


def decoding(values: Sequence[str]) -> Inflation | None:
    """Return what undoes the encodings of these ``Content-Encoding`` headers, ``None`` when there is nothing to undo.

    Raises FetchRejected.
    """
    layers = [layer for value in values for part in value.split(",") if (layer := part.strip().lower())]
    layers = [layer for layer in layers if layer != "identity"]
    if not layers:
        return None
    if len(layers) == 1 and layers[0] in ("gzip", "x-gzip", "deflate"):
        return Inflation(gzip=layers[0] != "deflate")
    public = "The media could not be fetched: its origin sends it compressed in a way that is not taken; only gzip and deflate are."
    raise FetchRejected(public, detail=repr(",".join(layers)[:80]))


class Inflation:
    """One body's way from compressed to plain."""

    def __init__(self, *, gzip: bool) -> None:
        self._gzip = gzip
        self._inflate = zlib.decompressobj(_GZIP) if gzip else None
        self._begin = b""
        self._taken = self._made = 0

    def pieces(self, chunk: bytes) -> Iterator[bytes]:
        """Yield what ``chunk`` adds, in pieces of at most :data:`STEP_BYTES`; some may be empty. Raises FetchRejected."""
        self._taken += len(chunk)
        if self._inflate is None:
            # Servers disagree whether "deflate" means zlib's frame or the bare stream; its first two bytes tell.
            chunk = self._begin = self._begin + chunk
            if len(chunk) < 2:
                return
            self._inflate = zlib.decompressobj(_ZLIB if _is_zlib(chunk) else _RAW)
        while chunk:
            if self._inflate.eof:
                chunk = self._next_member(chunk)
                if not chunk:
                    break
            try:
                piece = self._inflate.decompress(chunk, STEP_BYTES)
            except zlib.error as error:
                raise _damaged(str(error)) from None
            chunk = self._inflate.unused_data if self._inflate.eof else self._inflate.unconsumed_tail
            self._made += len(piece)
            yield piece
        # Compression never makes a body much larger: whoever sends on and on without a result only burns time.
        if self._taken > self._made + self._made // 16 + _SLACK_BYTES:
            raise _damaged("its compressed form is larger than it")

    def finish(self) -> Iterator[bytes]:
        """Yield what is left when the body has ended. Raises FetchRejected when it ended too early."""
        while self._inflate is not None and not self._inflate.eof:
            piece = self._inflate.decompress(b"", STEP_BYTES)
            if not piece:
                break
            yield piece
        if self._inflate is None or not self._inflate.eof:
            raise _damaged("it ends too early")

    def _next_member(self, chunk: bytes) -> bytes:
        """Go on behind the end of a gzip member: another one, or zeros, which some tools append."""
        if not self._gzip:
            raise _damaged("bytes behind its end")
        chunk = chunk.lstrip(b"\0")
        if chunk:
            self._inflate = zlib.decompressobj(_GZIP)
        return chunk


def _is_zlib(begin: bytes) -> bool:
    return begin[0] & 0x0F == 8 and (begin[0] << 8 | begin[1]) % 31 == 0


def _damaged(detail: str) -> FetchRejected:
    return FetchRejected("The media could not be fetched: its compressed transfer is damaged.", detail=detail)
