"""Stop strings in streamed text: found across the borders of tokens, never sent, and nothing sent that might begin
one."""

from __future__ import annotations

from collections.abc import Sequence


class StopStrings:
    """Watches one choice's text. At most the longest stop string less one character is held back."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stop for stop in stops if stop)
        self._held = ""

    def feed(self, text: str) -> tuple[str, bool]:
        """Take new text; return what may be sent now, and whether a stop string ended it (it and all after it are
        dropped)."""
        if not self._stops:
            return text, False
        text = self._held + text
        found = [place for place in (text.find(stop) for stop in self._stops) if place >= 0]
        if found:
            self._held = ""
            return text[: min(found)], True
        safe = len(text) - max(self._beginning(text, stop) for stop in self._stops)
        self._held = text[safe:]
        return text[:safe], False

    def flush(self) -> str:
        """Return the text held back; call when the output ended for another reason."""
        held, self._held = self._held, ""
        return held

    @staticmethod
    def _beginning(text: str, stop: str) -> int:
        """Return the length of the longest end of ``text`` that begins ``stop``."""
        for length in range(min(len(stop) - 1, len(text)), 0, -1):
            if text.endswith(stop[:length]):
                return length
        return 0
