"""What an operator sends to start a roll-out and to change its share."""

from __future__ import annotations

from typing import Annotated

import msgspec

Share = Annotated[float, msgspec.Meta(ge=0, le=1)]


class CanaryStart(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What to try. ``model`` is a directory on the server's machine or a hub id, ``share`` (0 to 1) that of contents which meet it.

    With a share of 0 no client does, but embeddings are compared all the same. ``warm``: of so many of the hottest contents the
    new embeddings are made ahead, as far as what they are made of is still held. ``encoder``: the operator's own (``package.module:Class``)
    that the new version has, an empty text: the model's; without it that of the settings.
    """

    model: Annotated[str, msgspec.Meta(min_length=1, max_length=4096)]
    share: Share = 0.05
    warm: Annotated[int, msgspec.Meta(ge=0, le=100_000)] = 0
    encoder: Annotated[str, msgspec.Meta(max_length=512, pattern=r"^([A-Za-z_][\w.]*:[A-Za-z_]\w*)?$")] | None = None


class CanaryShare(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The share of contents (0 to 1) that meet the new version from now on."""

    share: Share
