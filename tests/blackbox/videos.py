"""Videos of pictures that the shipped model knows, and requests about them."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np
from PIL import Image
from tests.blackbox.pictures import chat, one, user
from tests.clips import clip_of

PART = "messages[0].content[0].video_url"
SEEN = "What is in this image?"


def shown(*colours: str, seed: int | None = None, **options: Any) -> bytes:
    """Return a video that shows a circle of each colour for one frame; a second each unless ``fps`` says otherwise."""
    frames = [np.asarray(one(colour, "circle", seed=seed)) for colour in colours]
    return clip_of(frames, **{"fps": 1, **options})


def still(image: Image.Image, count: int, **options: Any) -> bytes:
    """Return a video of one picture, ``count`` times."""
    return clip_of([np.asarray(image)] * count, **options)


def video_url(data: bytes, mime: str = "video/mp4") -> str:
    return f"data:{mime};base64,{base64.b64encode(data).decode()}"


def video(url: str, **fields: Any) -> dict[str, Any]:
    return {"type": "video_url", "video_url": {"url": url, **fields}}


def watch(url: str, question: str = SEEN, sampling: dict[str, Any] | None = None, **fields: Any) -> dict[str, Any]:
    """Return a greedy chat body with one video. ``sampling`` goes beside its URL."""
    return chat(user(video(url, **(sampling or {})), question), **fields)
