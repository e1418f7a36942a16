"""Pictures for benchmarks: made here, unlike each other, compressible like photographs."""

from __future__ import annotations

import base64
import io
from typing import Any

import numpy as np
from PIL import Image, ImageDraw

RED, BLUE = (220, 30, 30), (40, 60, 220)


def photograph(width: int, height: int, seed: int) -> Image.Image:
    """Return a smooth random picture with some grain: about the JPEG size of a photograph of its dimensions."""
    random = np.random.default_rng(seed)
    coarse = random.integers(0, 256, (max(2, height // 40), max(2, width // 40), 3), dtype=np.uint8)
    smooth = np.asarray(Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC), dtype=np.int16)
    grain = random.integers(-8, 9, (height, width, 1), dtype=np.int16)
    return Image.fromarray(np.clip(smooth + grain, 0, 255).astype(np.uint8))


def circle(colour: tuple[int, int, int], size: int = 224, shade: int = 255) -> Image.Image:
    """Return a coloured circle on a light ground, as the shipped model knows them. ``shade`` makes equal pictures differ."""
    picture = Image.new("RGB", (size, size), (shade, shade, shade))
    ImageDraw.Draw(picture).ellipse([size // 4, size // 4, 3 * size // 4, 3 * size // 4], fill=colour)
    return picture


def encoded(picture: Image.Image, format_: str = "JPEG", **options: Any) -> bytes:
    """Return the picture's file bytes."""
    buffer = io.BytesIO()
    picture.save(buffer, format_, **options)
    return buffer.getvalue()


def data_url(data: bytes, kind: str = "jpeg") -> str:
    """Return a ``data:`` URL of an image file."""
    return f"data:image/{kind};base64,{base64.b64encode(data).decode('ascii')}"
