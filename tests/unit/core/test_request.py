"""Media of a request, in prompt order, whatever kind they are."""

from __future__ import annotations

from foveate.core.media import UrlRef
from foveate.core.request import ImagePart, Request, Sampling, TextPart, Turn, VideoPart


def test_media_are_listed_in_prompt_order_over_all_turns() -> None:
    parts = (
        ImagePart(0, "messages.0.content.0", UrlRef("https://a.example/0")),
        VideoPart(1, "messages.0.content.1", UrlRef("https://a.example/1"), num_frames=4),
        ImagePart(2, "messages.1.content.0", UrlRef("https://a.example/2")),
    )
    request = Request(
        id="r",
        model="m",
        kind="chat",
        sampling=Sampling(1),
        received_at=0.0,
        turns=(Turn("user", (TextPart("two"), *parts[:2])), Turn("user", (parts[2], TextPart("one more")))),
    )

    assert request.media == list(parts)
    assert request.images == [parts[0], parts[2]]
    assert request.videos == [parts[1]]
