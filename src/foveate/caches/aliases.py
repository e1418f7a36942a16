"""Names that clients give to content (a part's ``uuid``): within its tenant a name, once used, means those very bytes. Never a cache key,
only a promise that is checked, and a way to find a content's key again.

Bounded: when there are too many, the tenant with the most forgets the one it used longest ago, so that no tenant crowds out another's. A
forgotten name may be bound anew.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from itertools import islice

import msgspec

from foveate.core.errors import MediaIdConflict
from foveate.core.media import ImageHeader


class Content(msgspec.Struct, frozen=True):
    """What a name means: bytes of this digest, and, where they are a picture, what their header says (``None``: a video).

    ``film`` is what is known of a video's frames once they are there (:mod:`foveate.journey.named_film`).
    """

    digest: str
    header: ImageHeader | None = None
    film: bytes | None = None


class Aliases:
    """Binds names to contents. Lives on the event loop."""

    def __init__(self, names_max: int) -> None:
        self._names_max = names_max
        self._tenants: dict[str, OrderedDict[str, Content]] = {}
        self._count = 0

    def __len__(self) -> int:
        """Names that are bound."""
        return self._count

    def bind(self, tenant: str, name: str, content: Content) -> None:
        """Bind a name, or check that it was bound to this content. Raises MediaIdConflict when it names other content."""
        self.check(tenant, name, content.digest)
        names = self._tenants.setdefault(tenant, OrderedDict())
        self._count += name not in names
        names[name] = content
        names.move_to_end(name)
        if self._count > self._names_max:
            most = max(self._tenants, key=lambda tenant: len(self._tenants[tenant]))
            self.forget(most, next(iter(self._tenants[most])))

    def check(self, tenant: str, name: str, digest: str) -> None:
        """Check that a name is free for this content, without binding it. Raises MediaIdConflict."""
        names = self._tenants.get(tenant)
        bound = None if names is None else names.get(name)
        if bound is not None and bound.digest != digest:
            raise MediaIdConflict(detail=f"bound to {bound.digest}, used for {digest}")

    def find(self, tenant: str, name: str) -> Content | None:
        """Return what a name means; it counts as used."""
        names = self._tenants.get(tenant)
        if names is None or name not in names:
            return None
        names.move_to_end(name)
        return names[name]

    def forget(self, tenant: str, name: str) -> bool:
        """Make a name free again; return whether it was bound."""
        names = self._tenants.get(tenant)
        if names is None or names.pop(name, None) is None:
            return False
        self._count -= 1
        if not names:
            del self._tenants[tenant]
        return True

    def listed(self, tenant: str, limit: int) -> tuple[int, list[tuple[str, Content]]]:
        """Return how many names a tenant has bound, and at most ``limit`` of them, those used last first."""
        names = self._tenants.get(tenant, OrderedDict())
        newest: Iterable[str] = islice(reversed(names), limit)
        return len(names), [(name, names[name]) for name in newest]
