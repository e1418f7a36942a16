"""Random pictures of coloured shapes, with what is known about them.

A scene is a list of `Item`s, sorted left to right, on a canvas whose width and height are in pixels.
Everything random comes from the `random.Random` that is passed in, so a seed fixes the picture.
"""

from __future__ import annotations

import colorsys
import io
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from PIL import Image, ImageDraw

COLOURS = ["red", "orange", "yellow", "green", "blue", "purple", "black"]
SHAPES = ["circle", "square", "triangle", "star"]
CELL = 28  # pixels: one image token covers 2 x 2 patches of 14 pixels
MIN_TOKENS, MAX_TOKENS = 16, 144  # 112 x 112 to 336 x 336 pixels, the limits of the image processor

# colour -> hue in degrees, hue jitter, saturation range, value range
_HSV = {
    "red": (0, 7, (0.85, 1), (0.75, 1)),
    "orange": (29, 5, (0.9, 1), (0.95, 1)),
    "yellow": (55, 5, (0.8, 1), (0.9, 1)),
    "green": (122, 20, (0.65, 1), (0.45, 0.85)),
    "blue": (224, 14, (0.7, 1), (0.6, 1)),
    "purple": (285, 12, (0.6, 0.95), (0.45, 0.8)),
    "black": (0, 180, (0, 0.3), (0, 0.1)),
}
_BACKGROUNDS = [
    (255, 255, 255), (250, 250, 250), (235, 235, 235), (215, 215, 215),
    (250, 245, 225), (228, 238, 250), (236, 248, 236), (252, 232, 236),
]  # fmt: skip
# number of items -> smallest and largest radius as a fraction of the shorter side
_RADII = {1: (0.16, 0.40), 2: (0.14, 0.26), 3: (0.125, 0.2)}
OBJECT_ODDS = (0.03, 0.27, 0.38, 0.32)  # of 0, 1, 2 and 3 items, where nothing else is asked for
_MEAN = np.array([0.48145466, 0.4578275, 0.40821073], np.float32)
_STD = np.array([0.26862954, 0.26130258, 0.27577711], np.float32)

# Rows of `token_labels`.
LABEL_ROWS = ("colour", "shape", "from_left", "from_right", "from_top", "from_bottom", "centre")


@dataclass
class Item:
    """One shape: centre and radius in pixels; `outline` are its corners, None for a circle."""

    colour: str
    shape: str
    x: float
    y: float
    radius: float
    outline: list[tuple[float, float]] | None = None

    @property
    def name(self) -> str:
        return f"{self.colour} {self.shape}"

    @property
    def box(self) -> list[float]:
        """Bounding box of the circle: left, top, right, bottom in pixels."""
        return [self.x - self.radius, self.y - self.radius, self.x + self.radius, self.y + self.radius]


def _outline(rng: random.Random, item: Item) -> list[tuple[float, float]] | None:
    """Corners of a slightly turned polygon of about the area of the circle of the same radius."""
    r = item.radius
    if item.shape == "circle":
        return None
    if item.shape == "square":
        start, spokes = 45 + rng.uniform(-12, 12), [(1.2 * r, 90 * i) for i in range(4)]
    elif item.shape == "triangle":
        upside_down = 180 if rng.random() < 0.15 else 0
        start, spokes = -90 + rng.uniform(-15, 15) + upside_down, [(1.15 * r, 120 * i) for i in range(3)]
    else:
        start = -90 + rng.uniform(-18, 18)
        spokes = [((1.15 if i % 2 == 0 else 0.46) * r, 36 * i) for i in range(10)]
    return [
        (item.x + d * math.cos(math.radians(start + a)), item.y + d * math.sin(math.radians(start + a)))
        for d, a in spokes
    ]


def _place(rng: random.Random, width: int, height: int, count: int, placed: list[Item]) -> Item | None:
    """One more item that touches no other and is clearly left or right of each, or None after 60 tries."""
    side = min(width, height)
    for _ in range(60):
        radius = max(rng.uniform(*_RADII[count]) * side, 13)  # below 13 px the shape cannot be told
        edge = radius * 1.1
        if 2 * edge >= side:
            continue
        x, y = rng.uniform(edge, width - edge), rng.uniform(edge, height - edge)
        if all(
            math.hypot(x - o.x, y - o.y) > 1.12 * (radius + o.radius) and abs(x - o.x) > 0.1 * width for o in placed
        ):
            return Item(rng.choice(COLOURS), rng.choice(SHAPES), x, y, radius)
    return None


def make_scene(
    rng: random.Random, width: int, height: int, count: int | None = None, odds: Sequence[float] = OBJECT_ODDS
) -> list[Item]:
    """0 to 3 items (`count`, or drawn by `odds`), left to right, no two of the same colour and shape.

    Alike items would make answers ambiguous.
    """
    while True:
        n = count if count is not None else rng.choices([0, 1, 2, 3], odds)[0]
        items: list[Item] = []
        for _ in range(n):
            item = _place(rng, width, height, n, items)
            if item is None:
                break
            items.append(item)
        if len(items) == n and len({o.name for o in items}) == n:
            for item in items:
                item.outline = _outline(rng, item)
            return sorted(items, key=lambda o: o.x)


def _paint_colour(rng: random.Random, name: str) -> tuple[int, int, int]:
    hue, jitter, saturation, value = _HSV[name]
    h = ((hue + rng.uniform(-jitter, jitter)) % 360) / 360
    r, g, b = colorsys.hsv_to_rgb(h, rng.uniform(*saturation), rng.uniform(*value))
    return int(r * 255), int(g * 255), int(b * 255)


def render(rng: random.Random, scene: list[Item], width: int, height: int) -> Image.Image:
    """Draw the scene: mostly pale background, sometimes dark, noisy or JPEG-compressed, as uploads are."""
    dark = rng.random() < 0.1 and all(o.colour not in ("black", "purple", "blue") for o in scene)
    background = (rng.randint(20, 80),) * 3 if dark else rng.choice(_BACKGROUNDS)
    up = 2 if rng.random() < 0.7 and width * height < 400_000 else 1  # smooth edges, where cheap
    image = Image.new("RGB", (width * up, height * up), background)
    draw = ImageDraw.Draw(image)
    for item in scene:
        paint = _paint_colour(rng, item.colour)
        if item.outline is None:
            draw.ellipse([v * up for v in item.box], fill=paint)
        else:
            draw.polygon([(x * up, y * up) for x, y in item.outline], fill=paint)
    if up > 1:
        image = image.resize((width, height), Image.Resampling.BOX)
    if rng.random() < 0.25:
        noise = np.random.default_rng(rng.getrandbits(32)).normal(0, rng.uniform(2, 9), (height, width, 1))
        noisy = np.asarray(image, np.float32) + noise.astype(np.float32)
        image = Image.fromarray(noisy.clip(0, 255).astype(np.uint8))
    if rng.random() < 0.5:
        buffer = io.BytesIO()
        image.save(buffer, "JPEG", quality=rng.randint(35, 95))
        image = Image.open(buffer).convert("RGB")
    return image


def token_labels(scene: list[Item], width: int, height: int, grid_h: int, grid_w: int) -> np.ndarray:
    """What every image token shows, for the auxiliary heads: int64 (len(LABEL_ROWS), grid_h * grid_w).

    0 is background; colour and shape count from 1; the four ranks say which item this is (1 to 3) counted
    from that side of the picture; centre is 1 on the token that holds the middle of an item.
    """
    fine = 4  # a token belongs to an item that covers at least 4 of its 4 x 4 sub-cells
    plan = Image.new("L", (grid_w * fine, grid_h * fine), 0)
    draw = ImageDraw.Draw(plan)
    sx, sy = grid_w * fine / width, grid_h * fine / height
    for i, item in enumerate(scene):
        if item.outline is None:
            left, top, right, bottom = item.box
            draw.ellipse([left * sx, top * sy, right * sx - 1, bottom * sy - 1], fill=i + 1)
        else:
            draw.polygon([(x * sx, y * sy) for x, y in item.outline], fill=i + 1)
    cells = np.asarray(plan).reshape(grid_h, fine, grid_w, fine).transpose(0, 2, 1, 3)
    cells = cells.reshape(grid_h * grid_w, fine * fine)
    labels = np.zeros((len(LABEL_ROWS), grid_h * grid_w), np.int64)
    down = sorted(range(len(scene)), key=lambda k: scene[k].y)
    for i, item in enumerate(scene):
        row, column = int(item.y / height * grid_h), int(item.x / width * grid_w)
        centre = min(row, grid_h - 1) * grid_w + min(column, grid_w - 1)
        on = (cells == i + 1).sum(1) >= 4
        on[centre] = True
        vertical = down.index(i)
        facts = (
            COLOURS.index(item.colour) + 1, SHAPES.index(item.shape) + 1,
            i + 1, len(scene) - i, vertical + 1, len(scene) - vertical, 0,
        )  # fmt: skip
        labels[:, on] = np.array(facts)[:, None]
        labels[-1, centre] = 1
    return labels


def patchify(image: Image.Image, grid_h: int, grid_w: int) -> np.ndarray:
    """Resize and cut into float32 (4 * grid_h * grid_w, 588) patches of 3 x 14 x 14, in merge-block order.

    The image processor repeats a still picture along a temporal axis of 2; here that axis is left out and
    the forward pass sums the patch weights over it instead.
    """
    if image.size != (grid_w * CELL, grid_h * CELL):
        image = image.resize((grid_w * CELL, grid_h * CELL), Image.Resampling.BICUBIC)
    pixels = (np.asarray(image, np.float32) / 255 - _MEAN) / _STD
    pixels = pixels.reshape(grid_h, 2, 14, grid_w, 2, 14, 3).transpose(0, 3, 1, 4, 6, 2, 5)
    return np.ascontiguousarray(pixels.reshape(grid_h * grid_w * 4, 588))


def random_grid(rng: random.Random, smallest: int, largest: int) -> tuple[int, int]:
    """Rows and columns of image tokens: log-uniform area between the two, aspect up to 1:2."""
    while True:
        area = math.exp(rng.uniform(math.log(smallest), math.log(largest * 1.02)))
        stretch = math.log(2.0)
        aspect = 1.0 if rng.random() < 0.3 else math.exp(rng.uniform(-stretch, stretch))
        h, w = round(math.sqrt(area / aspect)), round(math.sqrt(area * aspect))
        if h >= 3 and w >= 3 and smallest <= h * w <= largest:
            return h, w


def random_upload_size(rng: random.Random, grid_h: int, grid_w: int) -> tuple[int, int]:
    """Width and height of a picture that the processor would map on (or close to) this grid."""
    pick = rng.random()
    if pick < 0.4:
        return grid_w * CELL, grid_h * CELL
    scale = rng.uniform(0.93, 1.07) if pick < 0.72 else rng.uniform(0.7, 2.2)
    if pick > 0.95:
        scale = rng.uniform(2.2, 3.1)  # a large upload
    width, height = (round(n * CELL * scale * rng.uniform(0.97, 1.03)) for n in (grid_w, grid_h))
    return max(48, width), max(48, height)
