"""Counts the values of a JSON text without parsing it.

Long strings parse at gigabytes a second, but a body of many small values costs microseconds for each of them, on the
event loop and under the interpreter lock, where a thread would not help. So the count is bounded before parsing:
:data:`STRUCTURE_MAX` keeps the worst body within the loop's 5 ms and is about a thousand messages.
"""

from __future__ import annotations

from typing import Final

from foveate.core.errors import InvalidParameter

STRUCTURE_MAX: Final = 3072

_OTHER: Final = bytes(byte for byte in range(256) if byte not in b'{[,"')


def structure(text: bytes) -> int:
    """Return the number of ``{``, ``[`` and ``,`` outside strings; never less, and exact where the answer matters.

    Where the marks of the whole text, strings included, are few enough already, their number is returned.
    """
    upper = sum(text.count(mark) for mark in (b"{", b"[", b","))
    if upper <= STRUCTURE_MAX:
        return upper
    bare = text.replace(b"\\\\", b"").replace(b'\\"', b"").translate(None, _OTHER)
    if bare.count(b'"') > 4 * STRUCTURE_MAX + 2:
        # Each mark begins at most two strings, a key and a value: so many strings need more marks than are allowed.
        return STRUCTURE_MAX + 1
    return sum(len(outside) for outside in bare.split(b'"')[::2])


def check_structure(text: bytes) -> None:
    """Raises InvalidParameter when ``text`` has more values than may be parsed on the event loop."""
    if structure(text) > STRUCTURE_MAX:
        raise InvalidParameter("The body has too many JSON values.", limit=STRUCTURE_MAX)
