"""What bytes that are not an accepted picture look like, in words for the client. Never echoes the bytes."""

from __future__ import annotations

import re
from typing import Final

from foveate.media.headers.avif import brands

_MAGIC: Final = (
    (b"%PDF-", "a PDF document"),
    (b"8BPS", "a Photoshop document"),
    (b"\0\0\x01\0", "an ICO icon"),
    (b"icns", "an ICNS icon"),
    (b"SIMPLE  =", "a FITS file"),
    (b"\0\0\0\x0cjP  \r\n\x87\n", "JPEG 2000"),
    (b"\xff\x4f\xff\x51", "JPEG 2000"),
    (b"\0\0\0\x0cJXL \r\n\x87\n", "JPEG XL"),
    (b"\xff\x0a", "JPEG XL"),
    (b"\x1aE\xdf\xa3", "a Matroska or WebM video"),
    (b"OggS", "an Ogg file"),
    (b"FLV\x01", "an FLV video"),
    (b"\x30\x26\xb2\x75\x8e\x66\xcf\x11\xa6\xd9\x00\xaa\x00\x62\xce\x6c", "a WMV or other ASF file"),
    (b"\0\0\x01\xba", "an MPEG video"),
    (b"\0\0\x01\xb3", "an MPEG video"),
    (b"fLaC", "FLAC audio"),
    (b"ID3", "MP3 audio"),
    (b"PK\x03\x04", "a ZIP archive or office document"),
    (b"\x1f\x8b", "gzip-compressed data"),
    (b"(\xb5/\xfd", "Zstandard-compressed data"),
    (b"\x7fELF", "a program"),
    (b"MZ", "a program"),
    (b"#EXTM3U", "a playlist"),
    (b"data:", "a data URL inside the data"),
)
_RIFF: Final = {b"WAVE": "WAV audio", b"AVI ": "an AVI video"}
_TRANSPORT_PACKETS_BYTES: Final = ((0, 188), (4, 192), (0, 204))
"""Where an MPEG transport stream's first packet begins, and how long each is: plain, with time codes (M2TS), with error correction."""
_NETPBM: Final = re.compile(rb"P(?:[1-6]\s+[#\d]|7\s+[#A-Z])")
HEIC_BRANDS: Final = frozenset(
    {b"heic", b"heix", b"hevc", b"hevx", b"heim", b"heis", b"hevm", b"hevs", b"mif1", b"msf1", b"mif2"}
)


def looks_like(data: memoryview) -> str | None:
    """Name what ``data`` seems to be (``HTML``, ``a PDF document``), from its first kilobyte; ``None`` when nothing
    fits.
    """
    head = bytes(data[:1024])
    for magic, name in _MAGIC:
        if head.startswith(magic):
            return name
    if head[:4] == b"RIFF":
        return _RIFF.get(head[8:12], "a RIFF file")
    if head[4:8] == b"ftyp":
        return "a HEIC picture" if HEIC_BRANDS.intersection(brands(data)) else "an MP4 or QuickTime video"
    if _NETPBM.match(head):
        return "a PPM, PGM, PBM or PAM picture"
    if any(len(starts := head[at::step]) > 1 and not starts.strip(b"G") for at, step in _TRANSPORT_PACKETS_BYTES):
        return "an MPEG transport stream"
    return _looks_like_text(head)


def _looks_like_text(head: bytes) -> str | None:
    text = head.removeprefix(b"\xef\xbb\xbf").lstrip().lower()
    if not text:
        return "white space"
    if text.startswith((b"<!doctype html", b"<html", b"<head", b"<body")):
        return "HTML"
    if text.startswith(b"<"):
        return "an SVG drawing" if b"<svg" in text else "HTML" if b"<html" in text else "XML"
    if text.startswith((b"{", b"[")):
        return "JSON"
    printable = sum(byte >= 0x20 or byte in b"\t\r\n" for byte in text)
    return "text" if printable == len(text) and b"\x7f" not in text and len(text) >= 8 else None
