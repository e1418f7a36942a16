"""JPEG media decode of a 1080p picture against Pillow, and against libjpeg-turbo with nothing around it."""

from __future__ import annotations

import io
import math
import time
from collections.abc import Callable, Sequence

import numpy as np
import simplejpeg
from PIL import Image

from foveate.bench.figures import Figure
from foveate.bench.pictures import encoded, photograph
from foveate.media.image import Scratch, to_pixels
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
    scratch = Scratch()
    ways = (
        lambda: to_pixels(view, probe(view), scratch),
        lambda: _pillow(data),
        lambda: simplejpeg.decode_jpeg(data, "RGB"),
    )
    best = [_best_of_each(ways) for _ in range(rounds)]
    faster = tuple(pillow / ours for ours, pillow, _ in best)
    over = tuple(ours / bare for ours, _, bare in best)
    what = f"{WIDTH}x{HEIGHT} JPEG, {len(data) // 1024} KiB, least CPU time of {REPEATS} in each of {rounds} rounds, interleaved"
    return [
        Figure("JPEG media decode, Pillow's time / ours", f"{what}; pixels bit-equal", faster, "x", 1.5, "at least"),
        Figure("JPEG media decode, ours / bare libjpeg-turbo", f"{what}; simplejpeg alone", over, "x", 1.15),
    ]


def _pillow(data: bytes) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))


def _best_of_each(ways: Sequence[Callable[[], object]]) -> list[float]:
    """Return the least CPU seconds of each way, the ways taking turns. CPU time, since other work may take the core away in between."""
    best = [math.inf] * len(ways)
    for _ in range(REPEATS):
        for number, work in enumerate(ways):
            started = time.process_time()
            work()
            best[number] = min(best[number], time.process_time() - started)
    return best
