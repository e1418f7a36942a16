"""What is probably still cached of a prompt where it could be answered: equal beginnings of prompts, and pictures that were seen.

A prompt is a chain of links: blocks of text and pictures, each named by a hash of all before it, so that an equal name is an equal
beginning. A picture's own name may be remembered too, where having seen it helps whatever stands before it. Nothing here knows the real
caches; what was forgotten there costs a longer prefill, never a wrong answer.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Final

import msgspec
from blake3 import blake3

LINKS_MAX: Final = 256
"""A chain's length; what comes later in a long prompt is not told apart."""
REMEMBERED_MAX: Final = 65536
"""Links and pictures remembered of one server, 16 bytes each and their places in the list: some 10 MB."""


class Link(msgspec.Struct, frozen=True):
    """One step of a prompt: its name, the tokens it stands for, and the picture's own name where that alone is worth something."""

    name: bytes
    tokens: int
    picture: str = ""


def named(*what: bytes) -> bytes:
    """Return the name of a step: 16 bytes, of all before it and what it adds."""
    hasher = blake3()
    for part in what:
        hasher.update(len(part).to_bytes(8, "little"))
        hasher.update(part)
    return hasher.digest(length=16)


class Memory:
    """What one server was sent, as far back as it is worth knowing."""

    def __init__(self, most: int = REMEMBERED_MAX) -> None:
        self._most = most
        self._names: OrderedDict[bytes | str, None] = OrderedDict()

    def matched(self, links: Sequence[Link]) -> int:
        """Return how many tokens of a prompt the server probably has: its beginning, and pictures anywhere."""
        tokens = 0
        beginning = True
        for link in links:
            beginning = beginning and link.name in self._names
            if beginning or (link.picture and link.picture in self._names):
                tokens += link.tokens
        return tokens

    def note(self, links: Sequence[Link]) -> None:
        """Remember that the server was sent this."""
        for link in links:
            self._keep(link.name)
            if link.picture:
                self._keep(link.picture)

    def forget(self) -> None:
        """It was restarted, or may have been."""
        self._names.clear()

    def _keep(self, name: bytes | str) -> None:
        self._names[name] = None
        self._names.move_to_end(name)
        if len(self._names) > self._most:
            self._names.popitem(last=False)
