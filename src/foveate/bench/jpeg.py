"""JPEG media decode of a 1080p picture against Pillow, and against libjpeg-turbo with nothing around it."""

from __future__ import annotations

import io
import time
from collections.abc import Callable

import numpy as np
import simplejpeg
from PIL import Image

from foveate.bench.figures import Figure
from foveate.bench.pictures import encoded, photograph
from foveate.media.image import to_pixels
from foveate.media.probe import probe

REPEATS = 8
WIDTH, HEIGHT = 1920, 1080


def run(rounds: int) -> list[Figure]:
    """Decode the same bytes three ways, interleaved. Raises AssertionError when the pixels are not bit-equal to Pillow's."""
    data = encoded(photograph(WIDTH, HEIGHT, 1), "JPEG", quality=85)
    view = memoryview(data)
    pixels = to_pixels(view, probe(view))
    assert np.array_equal(pixels, _pillow(data)), "the decoded pixels differ from Pillow's"
    assert np.array_equal(pixels, simplejpeg.decode_jpeg(data, "RGB")), "the decoded pixels differ from libjpeg-turbo's"
    faster: list[float] = []
    over: list[float] = []
    for _ in range(rounds):
        ours = _best(lambda: to_pixels(view, probe(view)))
        pillow = _best(lambda: _pillow(data))
        bare = _best(lambda: simplejpeg.decode_jpeg(data, "RGB"))
        faster.append(pillow / ours)
        over.append(ours / bare)
    what = f"{WIDTH}x{HEIGHT} JPEG, {len(data) // 1024} KiB, best of {REPEATS} in each of {rounds} interleaved rounds"
    return [
        Figure("JPEG media decode, Pillow's time / ours", f"{what}; pixels bit-equal", tuple(faster), "x", 1.5, "at least"),
        Figure("JPEG media decode, ours / bare libjpeg-turbo", f"{what}; simplejpeg alone", tuple(over), "x", 1.15),
    ]


def _pillow(data: bytes) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))


def _best(work: Callable[[], object]) -> float:
    times = []
    for _ in range(REPEATS):
        started = time.perf_counter()
        work()
        times.append(time.perf_counter() - started)
    return min(times)
