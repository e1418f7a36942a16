"""1080p photographs of coloured shapes: as large as a camera's, with something on them that the shipped model can name.

Made from a seed. No two have the same pixels, since caches go by these.
"""

from __future__ import annotations

import random
from functools import lru_cache
from typing import Final

import numpy as np
from PIL import Image, ImageDraw

from foveate.bench.pictures import encoded, photograph

WIDTH, HEIGHT = 1920, 1080
GROUNDS: Final = 4
COLOURS: Final = {
    "red": (220, 30, 30), "green": (40, 160, 60), "blue": (40, 60, 220), "purple": (140, 40, 170), "black": (20, 20, 20),
}  # fmt: skip


@lru_cache(GROUNDS)
def _ground(number: int) -> Image.Image:
    """A light wall, with the light's unevenness and the camera's grain, which is most of a photograph's bytes."""
    wall = Image.blend(photograph(WIDTH, HEIGHT, number), Image.new("RGB", (WIDTH, HEIGHT), (245, 245, 245)), 0.85)
    grain = np.random.default_rng(number).integers(-5, 6, (HEIGHT, WIDTH, 1), dtype=np.int16)
    return Image.fromarray(np.clip(np.asarray(wall, np.int16) + grain, 0, 255).astype(np.uint8))


def scene(seed: int) -> bytes:
    """Return a JPEG with one shape."""
    chooser = random.Random(seed)
    picture = _ground(seed % GROUNDS).copy()
    draw = ImageDraw.Draw(picture)
    colour = COLOURS[chooser.choice(list(COLOURS))]
    radius = chooser.randrange(180, 300)
    x, y = chooser.randrange(radius, WIDTH - radius), chooser.randrange(radius, HEIGHT - radius)
    box = (x - radius, y - radius, x + radius, y + radius)
    (draw.ellipse if chooser.random() < 0.5 else draw.rectangle)(box, fill=colour)
    # Whatever else is alike, this is not: one pixel block for each bit of the seed.
    for bit in range(32):
        if seed >> bit & 1:
            draw.rectangle((16 * bit, 0, 16 * bit + 15, 15), fill=(200, 200, 200))
    return encoded(picture, quality=90)
