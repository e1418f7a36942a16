"""Colour management: from an embedded ICC profile to sRGB, through LittleCMS. Source of the profiles' places: ICC.1, annex B.

A profile is an untrusted file of its own. One that is too large, damaged or made for other colours than the picture's is
ignored: the picture is then shown as if it had none, as viewers do. Does not cover PNG's gAMA, cHRM and cICP chunks, nor
output profiles other than sRGB.
"""

from __future__ import annotations

import io
from functools import lru_cache
from typing import Final

from PIL import Image, ImageCms

PROFILE_BYTES_MAX: Final = 4 * 1024 * 1024
"""The largest profiles in use are those of printing presses, of 0.5 to 3 MB."""

_TRANSFORMS_MAX: Final = 8
_COLOUR_SPACES: Final = {"RGB": "RGB ", "L": "GRAY", "CMYK": "CMYK"}


def to_srgb(image: Image.Image, profile: bytes | None) -> Image.Image:
    """Return a picture of mode RGB, L or CMYK as RGB: through ``profile`` when there is a usable one, else as Pillow converts."""
    transform = None
    if profile and len(profile) <= PROFILE_BYTES_MAX and image.mode in _COLOUR_SPACES:
        transform = _transform(profile, image.mode)
    if transform is None:
        return image.convert("RGB")
    converted = ImageCms.applyTransform(image, transform)
    assert converted is not None, "only a conversion in place returns nothing"
    return converted


@lru_cache(_TRANSFORMS_MAX)
def _transform(profile: bytes, mode: str) -> ImageCms.ImageCmsTransform | None:
    """Build a transform (about 3 ms for a profile of three curves and a matrix), or return None when the profile is of no use.

    The intent is perceptual, the one that photographs are converted with.
    """
    try:
        source = ImageCms.ImageCmsProfile(io.BytesIO(profile))
        if source.profile.xcolor_space != _COLOUR_SPACES[mode]:
            return None
        return ImageCms.buildTransform(source, ImageCms.createProfile("sRGB"), mode, "RGB")
    except (ImageCms.PyCMSError, OSError, TypeError, ValueError):
        # Whatever LittleCMS finds wrong with it, the picture has its colours without it.
        return None
