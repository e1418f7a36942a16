"""A client's JSON on its way to another server: what it wrote, with holes where this server has something to say.

Values that nobody here needs keep their bytes. Names and values are put together anew, so that a member that stood twice stands once: two
parsers could otherwise see two different requests, and this server judge another URL than the next one fetches.
"""

from __future__ import annotations

from typing import Literal

import msgspec


class MediaHole(msgspec.Struct, frozen=True):
    """The place of one content part that is a picture or a video; ``index`` counts the request's media.

    ``kind`` is the part's type as it is passed on. ``inside`` are the members of the object that held the URL, besides the URL, and
    ``beside`` those of the part besides its type, that object and its uuid: JSON members, each with a comma before it.
    """

    index: int
    kind: Literal["image_url", "video_url"]
    inside: bytes = b""
    beside: bytes = b""


Piece = bytes | MediaHole


class Document(msgspec.Struct, frozen=True):
    """A request body, taken apart.

    ``content`` is the member that holds the prompt, ``"messages":[…]`` or ``"prompt":…``, with a hole for each medium. ``head`` are the
    other members, without ``model``, ``stream_options`` and those of ``content``: JSON members, each with a comma after it. ``first`` is
    what chat templates put before all messages (``tools``), for telling equal beginnings. ``stream_options`` are its members but
    ``include_usage``, each with a comma before it; None where the client sent none.
    """

    content: tuple[Piece, ...]
    head: bytes = b""
    first: bytes = b""
    stream_options: bytes | None = None
