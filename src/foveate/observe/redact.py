"""The last net before a log: payloads, query strings and credentials are cut out of any text.

Code should not log such things in the first place; this holds when it does. It is not a parser: it cuts rather too
much.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

CUT: Final = "[cut]"
TEXT_MAX: Final = 8_000
_DEPTH_MAX: Final = 4
_ITEMS_MAX: Final = 64

_DATA_URL = re.compile(r"\bdata:[^\s,\"'<>]{0,256},[^\s\"'<>]*", re.IGNORECASE)
_CREDENTIALS = re.compile(r"(\b[a-z][a-z0-9+.-]{0,15}://)[^\s/?#\"'@]*@", re.IGNORECASE)
_URL_QUERY = re.compile(r"(\b[a-z][a-z0-9+.-]{0,15}://[^\s?#\"'<>]*)[?#][^\s\"'<>]*", re.IGNORECASE)
_BARE_QUERY = re.compile(r"\?[\w.~%\[\]-]+=[^\s\"'<>]*")
_KEY = re.compile(
    r"(\b(?:x-)?(?:api[-_ ]?key|authorization|password|secret)\b(?:\s+provided)?[\"']{0,2}\s{0,4}[:=]\s{0,4}[\"']?(?:bearer\s+)?"
    r"|\bbearer\s+|\bsk-)[^\s\"',;)}\]]+",
    re.IGNORECASE,
)
"""Keys as headers, forms and other servers' messages spell them: "Bearer …", "sk-…", "Incorrect API key provided: …"."""
_PAYLOAD = re.compile(r"[A-Za-z0-9+/_=-]{200,}")
"""Base64 of a payload whose ``data:`` prefix was lost.

Nothing we log on purpose is that long without a space (a digest has 64).
"""


def redact_text(text: str) -> str:
    """Return ``text`` without data URLs, query strings, credentials, keys and long base64 runs, at most TEXT_MAX long."""
    # First shorten: the patterns then cost a bounded time whatever is logged. A URL cut in two is still matched from
    # its beginning.
    if len(text) > TEXT_MAX:
        text = f"{text[:TEXT_MAX]}… ({len(text)} characters)"
    if ":" in text:
        text = _DATA_URL.sub(f"data:{CUT}", text)
        text = _CREDENTIALS.sub(r"\1", text)
        text = _URL_QUERY.sub(rf"\1?{CUT}", text)
    if _may_hold_key(text):
        text = _KEY.sub(rf"\1{CUT}", text)
    if "?" in text:
        text = _BARE_QUERY.sub(f"?{CUT}", text)
    return _PAYLOAD.sub(CUT, text) if len(text) >= 200 else text


def _may_hold_key(text: str) -> bool:
    """Whether _KEY could match: most ids and names are told from texts that need it in a tenth of its time."""
    folded = text.casefold()  # as its IGNORECASE: "ſK-", too
    return ":" in text or "=" in text or "sk-" in folded or "bearer" in folded


def redact(value: Any, depth: int = 0) -> Any:
    """Return ``value`` with every text in it redacted.

    Bytes become their length; what is nested too deep or too long is cut.
    """
    if isinstance(value, str):
        return redact_text(value)
    if value is None or isinstance(value, (bool, int, float)):
        return value
    if isinstance(value, (bytes, bytearray, memoryview)):
        return f"[{len(value)} bytes]"
    if depth >= _DEPTH_MAX:
        return CUT
    if isinstance(value, Mapping):
        items = list(value.items())[:_ITEMS_MAX]
        return {redact_text(str(key)): redact(item, depth + 1) for key, item in items}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [redact(item, depth + 1) for item in list(value)[:_ITEMS_MAX]]
    return redact_text(str(value))
