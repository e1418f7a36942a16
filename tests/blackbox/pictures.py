"""Pictures of coloured shapes that the shipped model knows, the forms they can be sent in, and requests about them."""

from __future__ import annotations

import base64
import io
import math
import random
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw

CASES = Path(__file__).parents[1] / "data" / "cases"
DESCRIBE = "What is in this image?"
COLOURS = {
    "red": (222, 20, 20),
    "orange": (250, 125, 10),
    "yellow": (245, 225, 20),
    "green": (25, 160, 30),
    "blue": (35, 75, 215),
    "purple": (135, 35, 165),
    "black": (8, 8, 8),
}
_CORNERS = {"square": (45, 1.2, (1.0,) * 4), "triangle": (-90, 1.15, (1.0,) * 3), "star": (-90, 1.15, (1.0, 0.4) * 5)}

Shape = tuple[str, str, float, float, float]
"""Colour, form, centre x and y, radius; the last three as parts of the picture's width, height and shorter side."""


def draw(
    *shapes: Shape, size: tuple[int, int] = (224, 224), background: Any = (255, 255, 255), mode: str = "RGB"
) -> Image.Image:
    """Return a picture with smooth edges."""
    width, height = (2 * side for side in size)
    image = Image.new(mode, (width, height), background)
    pen = ImageDraw.Draw(image)
    for colour, form, x, y, part in shapes:
        fill = (*COLOURS[colour], *((255,) if mode == "RGBA" else ()))
        x, y, radius = x * width, y * height, part * min(width, height)
        if form == "circle":
            pen.ellipse((x - radius, y - radius, x + radius, y + radius), fill=fill)
            continue
        start, grown, lengths = _CORNERS[form]
        angles = [math.radians(start + 360 / len(lengths) * corner) for corner in range(len(lengths))]
        reach = [radius * grown * length for length in lengths]
        pen.polygon([(x + r * math.cos(a), y + r * math.sin(a)) for r, a in zip(reach, angles, strict=True)], fill=fill)
    return image.resize(size, Image.Resampling.BOX)


def one(colour: str, form: str, *, seed: int | None = None, size: tuple[int, int] = (224, 224)) -> Image.Image:
    """Return a picture of one shape in the middle; with a seed, a picture that is like no other seed's."""
    if seed is None:
        return draw((colour, form, 0.5, 0.5, 0.3), size=size)
    rng = random.Random(seed)
    image = draw((colour, form, rng.uniform(0.42, 0.58), rng.uniform(0.42, 0.58), rng.uniform(0.27, 0.33)), size=size)
    image.putpixel((0, 0), (255, 255 - seed % 2, 254 - seed // 2 % 64))
    return image


def encoded(image: Image.Image, form: str = "PNG", **options: Any) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, form, **options)
    return buffer.getvalue()


def data_url(data: bytes, mime: str = "image/png") -> str:
    return f"data:{mime};base64,{base64.b64encode(data).decode()}"


def url_of(image: Image.Image) -> str:
    return data_url(encoded(image))


def noise(seed: int, side: int) -> bytes:
    """Return a PNG that does not compress: about 3 · side² bytes."""
    pixels = np.random.default_rng(seed).integers(0, 256, (side, side, 3), dtype=np.uint8)
    return encoded(Image.fromarray(pixels), compress_level=0)


def case(name: str) -> bytes:
    return (CASES / name).read_bytes()


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


def image(url: str, **fields: Any) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url, **fields}}


def user(*content: Any) -> dict[str, Any]:
    """Return a user's message: a lone string stays a string, URLs of pictures become parts."""
    if len(content) == 1 and isinstance(content[0], str):
        return {"role": "user", "content": content[0]}
    return {"role": "user", "content": [text(part) if isinstance(part, str) else part for part in content]}


def chat(*messages: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """Return a greedy chat body."""
    return {"messages": list(messages), "temperature": 0, "max_tokens": 24, **fields}


def ask(url: str, question: str = DESCRIBE, **fields: Any) -> dict[str, Any]:
    """Return a greedy chat body with one picture."""
    return chat(user(image(url), question), **fields)
