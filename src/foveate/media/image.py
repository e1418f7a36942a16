"""Media decode: an encoded picture to upright RGB pixels. Runs in a media worker; a hostile file can cost its own
job, never the server.

How people see a picture is what the model gets: orientation applied, transparency over a background, palettes and CMYK
resolved, 16 bits scaled to 8 (the high byte) instead of clipped, the first frame of an animation. The decoded size
must be the header's, which is what was priced and budgeted; anything else is refused, before memory is taken for it.
Incomplete pictures are refused unless the operator accepts them; bytes behind the end and a missing end marker never
matter. Pillow's own pixel limit is off: the budget was checked on the header, before this runs.

Measured with one thread on 1920x1080, Pillow 13 against the decoder used here, milliseconds, same pixels: JPEG 13.5 /
9.5 (simplejpeg), WebP 54 / 40 lossy and 71 / 55 lossless (imagecodecs). PNG 66 / 59 and AVIF 76 / 79 (imagecodecs)
are no reason to leave Pillow.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final, cast

import imagecodecs
import numpy as np
import simplejpeg
from PIL import (
    AvifImagePlugin,
    BmpImagePlugin,
    GifImagePlugin,
    Image,
    ImageFile,
    JpegImagePlugin,
    PngImagePlugin,
    TiffImagePlugin,
    WebPImagePlugin,
)

from foveate.core.errors import MediaCostly, MediaUndecodable
from foveate.core.media import AS_VIEWERS_SHOW, Appearance, ImageHeader
from foveate.media.colour import to_srgb
from foveate.media.containers import (
    completed,
    inflated_profile,
    jpeg_profile,
    jpeg_without_profile,
    png_essentials,
    webp_profile,
)
from foveate.media.fit import scaled_down, shrink_on_load
from foveate.media.headers.jpeg import scans
from foveate.media.headers.raster import PNG_BIT_DEPTH_AT, is_animated_webp
from foveate.media.headers.shape import SIDEWAYS, stored_size
from foveate.media.samples import flattened, to_eight_bits

Image.MAX_IMAGE_PIXELS = None
AvifImagePlugin.DEFAULT_MAX_THREADS = 1

_PILLOW_FORMATS: Final = {
    "jpeg": JpegImagePlugin.JpegImageFile.format,
    "png": PngImagePlugin.PngImageFile.format,
    "webp": WebPImagePlugin.WebPImageFile.format,
    "gif": GifImagePlugin.GifImageFile.format,
    "bmp": BmpImagePlugin.BmpImageFile.format,
    "tiff": TiffImagePlugin.TiffImageFile.format,
    "avif": AvifImagePlugin.AvifImageFile.format,
}
"""The only plugins that may see a file; each by its own name, so that no other is tried or even loaded."""

_TRANSPOSITIONS: Final = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
_END_OF_IMAGE: Final = b"\xff\xd9"
_CHANNELS: Final = {"RGB": 3, "CMYK": 4, "GRAY": 1}
SCANS_MAX: Final = 500
"""Scans of one progressive JPEG, each a pass over the whole picture. libjpeg-turbo is fuzzed with this limit."""
SCAN_PIXELS_MAX: Final = 1 << 29
"""Scans times pixels, where there are more scans than encoders make: about three seconds of decoding (240 million a second measured)."""
SCANS_OF_AN_ENCODER: Final = 20
"""So many scans any picture may have: libjpeg's own script makes 10, MozJPEG's searched ones up to 17."""


class Scratch:
    """Memory that a worker decodes one picture after the other into: fresh pages cost as much as a tenth of the decoding.

    ``bytes_max`` bounds what is kept; a larger picture gets memory of its own.
    """

    def __init__(self, bytes_max: int = 32 * 1024 * 1024) -> None:
        self._bytes_max = bytes_max
        self._memory = np.empty(0, np.uint8)

    def of(self, size: int) -> np.ndarray:
        """Return at least ``size`` bytes, uint8 [n]. What they held before is gone when they are written."""
        if size > self._bytes_max:
            return np.empty(size, np.uint8)
        if size > self._memory.size:
            self._memory = np.empty(size, np.uint8)
        return self._memory


def to_pixels(
    data: memoryview,
    header: ImageHeader,
    scratch: Scratch | None = None,
    *,
    look: Appearance = AS_VIEWERS_SHOW,
    fit: tuple[int, int] = (0, 0),
) -> np.ndarray:
    """Decode ``data``, whose probed header is ``header``, and scale it down to ``fit`` (displayed width and height; 0: as it is).

    Returns uint8 [height, width, 3], RGB, upright, C-contiguous, writable; with ``scratch`` it is valid until the next call
    with the same one. Raises MediaUndecodable, MediaCostly; MemoryError passes through.
    """
    try:
        pixels = _decoded(data, header, scratch or Scratch(), look, fit)
    except (MediaUndecodable, MediaCostly, MemoryError):
        raise
    except Exception as error:
        if "memory" in str(error).lower():
            raise MemoryError from None  # libjpeg says so in words
        # Decoders raise what they like, and their texts may quote addresses: only the type is kept.
        raise MediaUndecodable(detail=f"{header.format}: {type(error).__name__}") from None
    # Torch warns about memory it may not write to, and Pillow's is such.
    return pixels if pixels.flags.writeable else pixels.copy()


def _decoded(
    data: memoryview, header: ImageHeader, scratch: Scratch, look: Appearance, fit: tuple[int, int]
) -> np.ndarray:
    # Pillow turns TIFFs upright by itself and announces their displayed size; of the others it announces the stored one.
    turned = header.format == "tiff"
    size = (header.width, header.height) if turned else stored_size(header)
    target = (fit[0] or header.width, fit[1] or header.height)
    if not turned and header.orientation in SIDEWAYS:
        target = target[::-1]
    if look.truncated_accepted:
        data = completed(data, header.format)
    if header.format == "jpeg":
        pixels = _jpeg(data, size, scratch, look, shrink_on_load(size, target))
    else:
        if header.format == "webp" and not is_animated_webp(data):
            pixels = _webp(data, look)
        else:
            pixels = _with_pillow(data, header.format, size, look)
        if pixels.shape != (size[1], size[0], 3):
            raise _wrong_size(pixels.shape[1], pixels.shape[0], size)
    pixels = scaled_down(pixels, target, of=size)
    return pixels if turned else _upright(pixels, header.orientation)


def _jpeg(
    data: memoryview, size: tuple[int, int], scratch: Scratch, look: Appearance, at_least: tuple[int, int]
) -> np.ndarray:
    """Decode every kind of JPEG through libjpeg-turbo, bit-equal to Pillow, and strictly: missing picture data is an
    error.

    A missing end marker is supplied. Bytes too many between the data and a marker do no harm (cameras leave them) and
    are forgiven. ``at_least`` allows a decode at a fraction of the size.
    """
    height, width, colorspace, _ = simplejpeg.decode_jpeg_header(data, strict=False)
    if (width, height) != size:
        raise _wrong_size(width, height, size)
    count, has_end = scans(data)
    allowed = scans_allowed(width * height)
    if count > allowed:
        text = f"The JPEG has {count} scans; a picture of {width}x{height} may have {allowed}."
        raise MediaCostly(text, detail="jpeg: scans", limit=allowed, actual=count, limit_name="jpeg_scans")
    source = data if has_end else bytes(data) + _END_OF_IMAGE
    profile = jpeg_profile(data) if look.icc_to_srgb else None
    wanted = "CMYK" if colorspace in ("CMYK", "YCCK") else "GRAY" if colorspace == "Gray" and profile else "RGB"
    options = {
        "colorspace": wanted,
        "min_width": at_least[0],
        "min_height": at_least[1],
        "buffer": scratch.of(width * height * _CHANNELS[wanted]),
    }
    try:
        pixels = _strictly(source, options, has_end=has_end)
    except ValueError:
        if not look.truncated_accepted:
            raise
        # Pillow also goes on where the data end inside a marker, and leaves what is missing black.
        return _with_pillow(data, "jpeg", size, look)
    if wanted == "RGB" and profile is None:
        return np.asarray(pixels)
    shape = (pixels.shape[1], pixels.shape[0])
    if wanted == "CMYK":
        # Adobe writes CMYK inverted, and everybody reads it so, as Pillow does.
        image = Image.frombuffer("CMYK", shape, pixels, "raw", "CMYK;I", 0, 1)
    else:
        image = Image.fromarray(pixels if wanted == "RGB" else pixels[:, :, 0])
    return np.asarray(to_srgb(image, profile))


def scans_allowed(pixels: int) -> int:
    """Return how many scans a JPEG of so many pixels may have."""
    return min(SCANS_MAX, max(SCANS_OF_AN_ENCODER, SCAN_PIXELS_MAX // max(pixels, 1)))


def _strictly(source: memoryview | bytes, options: dict[str, Any], *, has_end: bool) -> np.ndarray:
    """Decode a JPEG, and forgive what does not touch its picture. Raises ValueError."""
    try:
        return cast(np.ndarray, simplejpeg.decode_jpeg(source, **options))
    except ValueError as error:
        if has_end and "extraneous bytes" in str(error):
            return cast(np.ndarray, simplejpeg.decode_jpeg(source, strict=False, **options))
        if "ICC" in str(error):
            return cast(np.ndarray, simplejpeg.decode_jpeg(jpeg_without_profile(memoryview(source)), **options))
        raise


def _webp(data: memoryview, look: Appearance) -> np.ndarray:
    pixels: np.ndarray = imagecodecs.webp_decode(bytes(data))
    profile = webp_profile(data) if look.icc_to_srgb else None
    if pixels.shape[2] == 3 and profile is None:
        return pixels
    return flattened(Image.fromarray(pixels), look.background, profile)


def _with_pillow(data: memoryview, name: str, size: tuple[int, int], look: Appearance) -> np.ndarray:
    profile: bytes | None = None
    source: bytes | memoryview = data
    if name == "png":
        source, profile = png_essentials(data)
    with (
        _incomplete_allowed(look.truncated_accepted),
        Image.open(io.BytesIO(source), formats=[_PILLOW_FORMATS[name]]) as image,
    ):
        if image.size != size:
            raise _wrong_size(*image.size, size)
        if name == "png" and data[PNG_BIT_DEPTH_AT] == 16 and isinstance(image.info.get("transparency"), tuple):
            # Pillow keeps the high byte of 16-bit colours, but not of the colour that is to be transparent.
            image.info["transparency"] = tuple(sample >> 8 for sample in image.info["transparency"])
        image.load()
        profile = inflated_profile(profile) if name == "png" else image.info.get("icc_profile")
        return flattened(to_eight_bits(image), look.background, profile if look.icc_to_srgb else None)


@contextmanager
def _incomplete_allowed(allowed: bool) -> Iterator[None]:
    """Let Pillow keep what it could decode of a truncated file. A worker decodes one picture at a time, so a global switch will do."""
    ImageFile.LOAD_TRUNCATED_IMAGES = allowed
    try:
        yield
    finally:
        ImageFile.LOAD_TRUNCATED_IMAGES = False


def _upright(pixels: np.ndarray, orientation: int) -> np.ndarray:
    transposition = _TRANSPOSITIONS.get(orientation)
    if transposition is None:
        return pixels
    # Pillow walks the picture in blocks that fit the cache: 19 ms for 1920x1080 where NumPy's copy of a rotated view
    # takes 26.
    return np.asarray(Image.fromarray(pixels).transpose(transposition))


def _wrong_size(width: int, height: int, size: tuple[int, int]) -> MediaUndecodable:
    return MediaUndecodable(detail=f"the decoder found {width}x{height}, the header said {size[0]}x{size[1]}")
