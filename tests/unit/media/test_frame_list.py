"""Lists of JPEG frames: joined and taken apart, and what is damaged."""

from __future__ import annotations

import pytest

from foveate.core.errors import DataUrlInvalid, MediaUndecodable, TooManyFrames
from foveate.media.data_url import decode_data_url
from foveate.media.frame_list import FRAMES_WALKED_MAX, MARK, frame_places, is_frame_list, joined

FRAMES = [b"\xff\xd8 one \xff\xd9", b"\xff\xd8 two, with \xff\xd9 in it \xff\xd9", b"\xff\xd8\xff\xd9"]


def test_frames_come_apart_where_they_were_joined() -> None:
    data = memoryview(joined(FRAMES))

    assert is_frame_list(data)
    assert [bytes(data[at : at + size]) for at, size in frame_places(data)] == FRAMES


@pytest.mark.parametrize(
    "data",
    [MARK, joined(FRAMES)[:-1], joined(FRAMES) + b"\0", MARK + b"\0\0\0\0", MARK + b"\xff\xff\xff\xff" + b"x" * 100],
)
def test_lists_that_do_not_add_up_are_damaged(data: bytes) -> None:
    with pytest.raises(MediaUndecodable):
        frame_places(memoryview(data))


def test_a_list_may_be_long_but_not_for_ever() -> None:
    data = memoryview(joined([b"x"] * FRAMES_WALKED_MAX))
    assert len(frame_places(data)) == FRAMES_WALKED_MAX

    with pytest.raises(TooManyFrames) as caught:
        frame_places(memoryview(joined([b"x"] * (FRAMES_WALKED_MAX + 1))))

    assert (caught.value.limit_name, caught.value.actual) == ("frame_list", FRAMES_WALKED_MAX + 1)
    with pytest.raises(DataUrlInvalid) as listed:
        decode_data_url("data:video/jpeg;base64," + "," * FRAMES_WALKED_MAX)
    assert (listed.value.limit_name, listed.value.limit) == ("frame_list", FRAMES_WALKED_MAX)


def test_a_picture_is_no_list() -> None:
    assert not is_frame_list(memoryview(FRAMES[0]))
    assert not is_frame_list(memoryview(b""))
