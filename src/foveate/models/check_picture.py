"""The fixed picture that embeddings are compared on: every place of it is unlike every other, so that nothing can be exchanged unseen.

Coloured tiles drawn from a hash, wider than high, of a size that no processor leaves as it is, and with tiles that are no multiple of a
patch. NumPy only: the gateway draws it too.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from blake3 import blake3

WIDTH: Final = 310
HEIGHT: Final = 186
TILE: Final = 11
"""Pixels."""
QUESTION: Final = "What is in this picture?"


def check_picture() -> np.ndarray:
    """Return its pixels, uint8 [HEIGHT, WIDTH, 3]; the same ones always."""
    down, across = -(-HEIGHT // TILE), -(-WIDTH // TILE)
    drawn = blake3(b"foveate: a picture to compare embeddings on").digest(length=down * across * 3)
    tiles = np.frombuffer(drawn, np.uint8).reshape(down, across, 3)
    return np.ascontiguousarray(tiles.repeat(TILE, axis=0).repeat(TILE, axis=1)[:HEIGHT, :WIDTH])
