"""Names that clients give to content: a name, once used, means those very bytes. Never a cache key, only a promise that is checked.

Bounded: the name used longest ago is forgotten first, and may then be bound anew.
"""

from __future__ import annotations

from collections import OrderedDict

from foveate.core.errors import MediaIdConflict


class Aliases:
    """Binds names to content digests. Lives on the event loop."""

    def __init__(self, names_max: int) -> None:
        self._names_max = names_max
        self._digests: OrderedDict[str, str] = OrderedDict()

    def __len__(self) -> int:
        """Names that are bound."""
        return len(self._digests)

    def bind(self, name: str, digest: str) -> None:
        """Bind a name, or check that it was bound to this content. Raises MediaIdConflict when it names other content."""
        self.check(name, digest)
        self._digests[name] = digest
        self._digests.move_to_end(name)
        if len(self._digests) > self._names_max:
            self._digests.popitem(last=False)

    def check(self, name: str, digest: str) -> None:
        """Check that a name is free for this content, without binding it. Raises MediaIdConflict."""
        bound = self._digests.get(name, digest)
        if bound != digest:
            raise MediaIdConflict(detail=f"bound to {bound}, used for {digest}")
