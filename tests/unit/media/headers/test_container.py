"""Which container bytes are, whatever they are called."""

from __future__ import annotations

import pytest

from foveate.core.errors import MediaUndecodable, MediaUnsupported
from foveate.media.frame_list import joined
from foveate.media.headers.container import video_container


@pytest.mark.parametrize(
    ("data", "container"),
    [
        (b"\0\0\0\x18ftypmp42\0\0\0\0mp42isom", "mp4"),
        (b"\0\0\0\x14ftypqt  \0\0\0\0qt  ", "mp4"),
        (b"\0\0\0\x08wide\0\0\0\0mdat", "mp4"),
        (
            b"\x1aE\xdf\xa3\x01\0\0\0\0\0\0\x1fB\x86\x81\x01B\xf7\x81\x01B\xf2\x81\x04B\xf3\x81\x08B\x82\x84webm",
            "matroska",
        ),
        (b"\x1aE\xdf\xa3\xa3B\x82\x88matroska", "matroska"),
        (b"RIFF\0\x10\0\0AVI LIST", "avi"),
        (b"GIF89a\x01\0\x01\0", "gif"),
        (joined([b"\xff\xd8\xff\xd9"]), "jpeg-list"),
    ],
)
def test_the_bytes_decide(data: bytes, container: str) -> None:
    assert video_container(memoryview(data)) == container


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"#EXTM3U\n#EXTINF:1.0,\nhttp://127.0.0.1:9/seg0.ts\n", "a playlist"),
        (b'<?xml version="1.0"?><MPD></MPD>', "XML"),
        (b"RIFF\0\x10\0\0WAVEfmt ", "WAV audio"),
        (b"\x1aE\xdf\xa3\xa3B\x82\x84abcd", "Matroska"),
        (b"OggS" + b"\0" * 40, "Ogg"),
        (b"\x89PNG\r\n\x1a\n", "send it as image_url"),
        (b"\0\0\0\x1cftypavif\0\0\0\0avifmif1", "send it as image_url"),
        ((b"G" + b"\0" * 187) * 2, "looks like an MPEG transport stream"),
        ((b"\0\1\2\3G" + b"\0" * 187) * 7, "looks like an MPEG transport stream"),
        (
            b"\x30\x26\xb2\x75\x8e\x66\xcf\x11\xa6\xd9\0\xaa\0\x62\xce\x6c" + b"\0" * 9,
            "looks like a WMV or other ASF file",
        ),
        (b"FLV\1\5\0\0\0\x09\0\0\0\0", "looks like an FLV video"),
        (b"\0\0\1\xba\x44\0\4\0", "looks like an MPEG video"),
        (b"\x01\x02\x03" * 400, "not an accepted video"),
    ],
)
def test_anything_else_is_named_and_told_what_is_accepted(data: bytes, said: str) -> None:
    with pytest.raises(MediaUnsupported, match=said):
        video_container(memoryview(data))


def test_nothing_is_empty() -> None:
    with pytest.raises(MediaUndecodable):
        video_container(memoryview(b""))
