"""What a request may ask of the picture processor, beyond what its tier says: which options a family's processor can be told, and how far.

Nothing asked for may exceed the checkpoint's own limit. What cannot be told, or exceeds, is refused by name rather than ignored: an
ignored option would cost what its client did not expect. Does not cover what a tier allows (:mod:`foveate.journey.s1_admit`).
"""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from foveate.core.errors import InvalidParameter, UnsupportedParameter
from foveate.core.media import ImageOptions, ProcessorOptions

AT: Final = "mm_processor_kwargs."


class Takes(msgspec.Struct, frozen=True):
    """What a processor can be told. ``pixels_max`` is the most it makes of a picture by itself, which requests can lower (0: they cannot).

    ``pixels_min`` tells whether small pictures can be told to be scaled up to a number of pixels. ``edges`` is what the processor's own
    ``size`` means: the two numbers of pixels, the longest side alone, or nothing that a request may change.
    """

    pixels_max: int = 0
    pixels_min: bool = False
    edges: Literal["none", "pixels", "side"] = "none"


def wanted(asked: ProcessorOptions, takes: Takes, title: str) -> ImageOptions:
    """Return the options that a request asks for. ``title`` names the model's family.

    Raises UnsupportedParameter for what its processor cannot be told, InvalidParameter for what exceeds the model's own limit or
    contradicts itself.
    """
    told = {
        "min_pixels": takes.pixels_min,
        "max_pixels": takes.pixels_max > 0,
        "size.shortest_edge": takes.edges == "pixels",
        "size.longest_edge": takes.edges != "none",
    }
    given = {
        "min_pixels": asked.min_pixels,
        "max_pixels": asked.max_pixels,
        "size.shortest_edge": asked.shortest_edge,
        "size.longest_edge": asked.longest_edge,
    }
    for name, value in given.items():
        if value is not None and not told[name]:
            able = ", ".join(name for name, can in told.items() if can)
            raise UnsupportedParameter(
                f"{AT}{name} is nothing that the picture processor of {title} can be told"
                f"{f'; it can be told {able}' if able else ', nor anything else of this kind'}.",
                param=AT + name,
            )
    square = takes.edges == "side"
    high = _one("max_pixels", asked.max_pixels, "size.longest_edge", _pixels(asked.longest_edge, square=square))
    low = _one("min_pixels", asked.min_pixels, "size.shortest_edge", asked.shortest_edge)
    if high > takes.pixels_max:
        name = "max_pixels" if asked.max_pixels is not None else "size.longest_edge"
        raise InvalidParameter(
            f"{AT}{name} is more than the {takes.pixels_max} pixels that this model makes of a picture.",
            param=AT + name,
            limit=takes.pixels_max,
            actual=high,
        )
    most = high or takes.pixels_max
    if low > most:
        name = "min_pixels" if asked.min_pixels is not None else "size.shortest_edge"
        raise InvalidParameter(
            f"{AT}{name} is more than the {most} pixels that a picture may become.",
            param=AT + name,
            limit=most,
            actual=low,
        )
    return ImageOptions(pixels_max=high, pixels_min=low)


def _pixels(edge: int | None, *, square: bool) -> int | None:
    return edge * edge if square and edge is not None else edge


def _one(name: str, value: int | None, other_name: str, other: int | None) -> int:
    if value is not None and other is not None and value != other:
        raise InvalidParameter(f"{AT}{name} and {AT}{other_name} differ; give one of them.", param=AT + name)
    return value or other or 0
