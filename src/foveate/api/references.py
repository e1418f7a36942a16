"""What a content part refers to. A URL is only sorted here by its scheme; whether it may be fetched, and whether a ``data:`` URL is well
formed, is the journey's to decide.
"""

from __future__ import annotations

import re
from typing import Final

from foveate.api.invalid import refused_at
from foveate.core.errors import DataUrlInvalid, UrlInvalid, UrlRefused
from foveate.core.limits import SCHEME_CHARACTERS_MAX
from foveate.core.media import DataRef, EmbedsRef, InlineRef, MediaRef, NamedRef, UrlRef

_SCHEME: Final = re.compile(r"^\s*([A-Za-z][A-Za-z0-9+.-]*):")
_BASE64_START: Final = re.compile(r"^[A-Za-z0-9+/_-]{32}")


class References:
    """Sorts the references of one body, of which a media worker took ``inline`` pictures out."""

    def __init__(self, inline: int) -> None:
        self._inline = inline
        self._inline_seen: set[int] = set()

    @property
    def unseen(self) -> int:
        """How many of those pictures nothing referred to."""
        return self._inline - len(self._inline_seen)

    def of(self, url: str | None, param: str, index: int, uuid: str | None) -> MediaRef:
        """Return what ``url`` refers to, or the ``uuid`` where there is none. Raises InvalidPart, DataUrlInvalid, UrlInvalid, UrlRefused.

        ``param`` is its place in the body, ``index`` the content part's in its message.
        """
        if url is None:
            if uuid is None:
                raise refused_at(param, f"{param} is required, or a uuid under which the media was sent before.")
            return NamedRef(uuid)
        match = _SCHEME.match(url)
        scheme = match.group(1).lower() if match else ""
        if scheme == "data":
            return DataRef(url)
        if scheme == "inline" and self._inline:
            return self._inline_reference(url, param, index)
        if scheme:
            return UrlRef(url)  # whether it may be fetched, and by which scheme, the URL policy alone decides
        if _BASE64_START.match(url):
            kind = "video/mp4" if ".video_url" in param else "image/jpeg"
            raise DataUrlInvalid(
                f"{param} looks like bare base64; write data:{kind};base64, before it.", param=param, part=index
            )
        raise UrlInvalid(f"{param} is not a URL: it has no scheme.", param=param, part=index)

    def data(self, text: str | None, param: str, index: int, uuid: str | None) -> DataRef | InlineRef | NamedRef:
        """Return what base64 in the body refers to, with or without ``data:`` before it. Raises as :meth:`of`."""
        if text is not None and ":" not in text[:SCHEME_CHARACTERS_MAX]:
            text = f"data:;base64,{text}"
        found = self.of(text, param, index, uuid)
        if isinstance(found, UrlRef | EmbedsRef):
            raise UrlInvalid(f"{param} is base64, not a URL.", param=param, part=index)
        return found

    def _inline_reference(self, url: str, param: str, index: int) -> InlineRef:
        """Each picture that was taken out of the body stands for itself once; any other ``inline:`` was written by the
        client.
        """
        number = url.removeprefix("inline:")
        if (
            number.isdecimal()
            and len(number) < 9
            and int(number) < self._inline
            and int(number) not in self._inline_seen
        ):
            self._inline_seen.add(int(number))
            return InlineRef(int(number))
        raise UrlRefused("Media URLs may not use the inline: scheme (rule: scheme).", param=param, part=index)
