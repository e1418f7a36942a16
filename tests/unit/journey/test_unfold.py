"""A video's place in a conversation is taken by its frames."""

from __future__ import annotations

from foveate.core.media import UrlRef
from foveate.core.request import ImagePart, TextPart, Turn, VideoPart
from foveate.journey.unfold import unfolded

VIDEO = VideoPart(1, "messages[0].content[2].video_url", UrlRef("https://a.example/v.mp4"))
STILL = ImagePart(0, "messages[0].content[0].image_url", UrlRef("https://a.example/p.png"))
FRAME = ImagePart(1, VIDEO.param, VIDEO.ref)


def test_frames_stand_where_the_video_stood_each_after_its_time() -> None:
    turn = Turn("user", (STILL, TextPart("and"), VIDEO, TextPart("?")))

    assert unfolded(turn, {1: [0.0, 1.25]}) == Turn(
        "user",
        (STILL, TextPart("and"), TextPart("<0.0 seconds>"), FRAME, TextPart("<1.2 seconds>"), FRAME, TextPart("?")),
    )


def test_frames_without_times_have_no_text() -> None:
    assert unfolded(Turn("user", (VIDEO,)), {1: [None, None]}) == Turn("user", (FRAME, FRAME))


def test_a_turn_without_videos_stays_as_it_is() -> None:
    turn = Turn("user", (TextPart("hello"), STILL))

    assert unfolded(turn, {}) == turn
