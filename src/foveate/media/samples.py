"""What sample values mean to the eye: deep and floating-point samples to eight bits, transparency over a background."""

from __future__ import annotations

from typing import Final

import numpy as np
from PIL import Image, TiffImagePlugin

from foveate.media.colour import to_srgb

_GREY_MODES: Final = ("1", "L", "LA", "La")
_PHOTOMETRIC: Final = 262
_WHITE_IS_ZERO: Final = 0


def flattened(image: Image.Image, background: tuple[int, int, int], profile: bytes | None = None) -> np.ndarray:
    """Return any eight-bit picture as uint8 [height, width, 3] RGB; alpha, palette transparency and colour keys go
    over ``background``.

    Colours go through ``profile`` first, where there is one; the background is sRGB already.
    """
    if not image.has_transparency_data:
        return np.asarray(_opaque(image, profile))
    grey = image.mode in _GREY_MODES
    picture = image.convert("LA" if grey else "RGBA")
    ground = Image.new("RGB", picture.size, background)
    ground.paste(_opaque(picture.convert("L" if grey else "RGB"), profile), mask=picture.getchannel("A"))
    return np.asarray(ground)


def _opaque(image: Image.Image, profile: bytes | None) -> Image.Image:
    if image.mode == "RGB" and profile is None:
        return image
    if profile is None or image.mode in ("L", "RGB", "CMYK"):
        return to_srgb(image, profile)
    return to_srgb(image.convert("L" if image.mode in _GREY_MODES else "RGB"), profile)


def to_eight_bits(image: Image.Image) -> Image.Image:
    """Return ``image`` with eight-bit samples. 16-bit samples keep their high byte, which is what decoders do with
    16-bit colour.

    32-bit integers and floats have no agreed white: values that fit 0 to 1 (floats), 0 to 255 or 0 to 65535 are taken
    to be so scaled, others are stretched between their extremes; NaN is black.
    """
    if image.mode.startswith("I;16"):
        return _from_sixteen_bits(image)
    if image.mode in ("I", "F"):
        return Image.fromarray(_scaled(np.asarray(image, dtype=np.float64), floating=image.mode == "F"))
    return image


def _from_sixteen_bits(image: Image.Image) -> Image.Image:
    values = np.asarray(image)
    eight = (values >> 8).astype(np.uint8)
    key = image.info.get("transparency")
    if isinstance(key, int):
        return Image.fromarray(np.dstack([eight, np.where(values == key, 0, 255).astype(np.uint8)]))
    # Pillow inverts white-is-zero TIFFs of up to eight bits only.
    inverted = isinstance(image, TiffImagePlugin.TiffImageFile) and image.tag_v2.get(_PHOTOMETRIC) == _WHITE_IS_ZERO
    return Image.fromarray(255 - eight if inverted else eight)


def _scaled(values: np.ndarray, *, floating: bool) -> np.ndarray:
    limit = float(np.finfo(np.float32).max)
    finite = np.clip(np.where(np.isnan(values), 0.0, values), -limit, limit)
    low, high = float(finite.min()), float(finite.max())
    if low >= 0 and high <= 1 and floating:
        low, high = 0.0, 1.0
    elif low >= 0 and high <= 255:
        low, high = 0.0, 255.0
    elif low >= 0 and high <= 65535:
        low, high = 0.0, 65535.0
    eight: np.ndarray = np.rint((finite - low) * (255.0 / (high - low or 1.0))).astype(np.uint8)
    return eight
