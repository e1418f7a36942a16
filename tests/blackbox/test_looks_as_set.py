"""What an operator sets about pictures, on one server that has all of it: background, colour profiles, truncated data, formats."""

from __future__ import annotations

import io
from collections.abc import Iterator

import httpx
import numpy as np
import pytest
from PIL import Image, ImageFile
from tests.blackbox.conftest import SMALL
from tests.blackbox.pictures import DESCRIBE, ask, data_url, draw, encoded, one, url_of
from tests.blackbox.replies import content, refused
from tests.blackbox.server import Server
from tests.unit.media.test_appearance import swapped_srgb

CHAT = "/v1/chat/completions"
BACKGROUND = (35, 75, 215)
RED_CIRCLE = ("red", "circle", 0.5, 0.5, 0.3)

View = tuple[str, list[float]]


@pytest.fixture(scope="module")
def set_up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    made = Server(
        tmp_path_factory.mktemp("looks"),
        *SMALL,
        "--media-background",
        "#{:02x}{:02x}{:02x}".format(*BACKGROUND),
        "--media-icc-to-srgb",
        "--media-truncated-accepted",
        "--media-formats",
        "png,jpeg",
        forked=True,
    )
    try:
        with made.client() as client:
            yield client
        made.stop()
    finally:
        made.kill_all()


def view(client: httpx.Client, url: str) -> View:
    response = client.post(CHAT, json=ask(url, DESCRIBE, logprobs=True))
    said = content(response)
    return said, [token["logprob"] for token in response.json()["choices"][0]["logprobs"]["content"]]


def same(first: View, second: View) -> bool:
    return first[0] == second[0] and first[1] == pytest.approx(second[1], abs=1e-4)


def over(picture: Image.Image, colour: tuple[int, int, int]) -> Image.Image:
    ground = Image.new("RGBA", picture.size, (*colour, 255))
    return Image.alpha_composite(ground, picture.convert("RGBA")).convert("RGB")


def test_transparent_pixels_show_the_background_that_was_set(set_up: httpx.Client) -> None:
    clear = draw(RED_CIRCLE, background=(0, 0, 0, 0), mode="RGBA")
    alpha = np.asarray(clear)[:, :, 3]
    hard = Image.fromarray(np.dstack([np.asarray(clear)[:, :, :3], np.where(alpha < 128, 0, 255).astype(np.uint8)]))

    seen = view(set_up, url_of(hard))

    assert same(seen, view(set_up, url_of(over(hard, BACKGROUND))))
    assert not same(seen, view(set_up, url_of(over(hard, (255, 255, 255)))))


def test_an_embedded_profile_is_followed(set_up: httpx.Client) -> None:
    """The profile's red and blue primaries have changed places, so that what is stored as blue is to be shown as red."""
    stored = one("blue", "circle")

    for form, mime in (("PNG", "image/png"), ("JPEG", "image/jpeg")):
        said, _ = view(set_up, data_url(encoded(stored, form, icc_profile=swapped_srgb()), mime))
        assert said == "A red circle.", form
        assert view(set_up, data_url(encoded(stored, form), mime))[0] == "A blue circle.", form


def test_a_truncated_picture_is_seen_as_far_as_it_goes(set_up: httpx.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = encoded(one("red", "circle"), "JPEG", quality=95)
    cut = whole[: len(whole) * 9 // 10]
    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", True)
    by_pillow = Image.open(io.BytesIO(cut)).convert("RGB")

    seen = view(set_up, data_url(cut, "image/jpeg"))

    # What is missing is grey, which the model may take for a shape of its own: the question is about what is there.
    asked = set_up.post(CHAT, json=ask(data_url(cut, "image/jpeg"), "What colour is the circle?"))
    assert content(asked) == "The circle is red."
    assert same(seen, view(set_up, url_of(by_pillow)))
    assert not same(seen, view(set_up, data_url(whole, "image/jpeg")))
    error = refused(set_up.post(CHAT, json=ask(data_url(whole[:60], "image/jpeg"))), 422)
    assert error["code"] == "media_undecodable", "what has no header cannot be seen at all"


@pytest.mark.parametrize("form", ["WEBP", "GIF", "BMP", "TIFF", "AVIF"])
def test_formats_that_were_not_set_are_refused_by_name(set_up: httpx.Client, form: str) -> None:
    url = data_url(encoded(one("red", "circle"), form), "image/png")

    error = refused(set_up.post(CHAT, json=ask(url)), 415, param="messages[0].content[0]")

    assert error["code"] == "media_unsupported"
    assert {"WEBP": "WebP"}.get(form, form) in error["message"]
    assert error["message"].endswith("Accepted formats: PNG, JPEG.")


def test_formats_that_were_set_are_taken_and_published(set_up: httpx.Client) -> None:
    for form in ("PNG", "JPEG"):
        assert view(set_up, data_url(encoded(one("green", "star"), form)))[0] == "A green star."
    assert set_up.get("/v1/budget").json()["formats"]["image"] == ["png", "jpeg"]
