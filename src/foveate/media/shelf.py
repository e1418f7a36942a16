"""What was kept of a URL, as one hop of a transfer meets it: used as it is, asked about, or replaced.

HTTP's own rules are those of :mod:`foveate.decisions.freshness`; the bookkeeping is :class:`foveate.caches.media.MediaCache`'s. Added here:
the URL policy that holds now judges the addresses that the kept bytes came from, so that no entry outlives the permission to fetch it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, Literal

import aiohttp
import msgspec
from msgspec.structs import replace

from foveate.caches.keys import MediaKey
from foveate.caches.lease import Lease
from foveate.caches.media import MediaCache, MediaEntry
from foveate.core.clock import now, wall
from foveate.core.errors import UrlRefused
from foveate.core.memory import Slot
from foveate.decisions.freshness import Moment, NotKept, Terms, judge, renew
from foveate.decisions.http_fields import Fields, read_fields
from foveate.media.addresses import IpAddress
from foveate.media.policy import UrlPolicy
from foveate.media.url import MediaUrl

NOT_MODIFIED: Final = 304
_PATH_CHARACTERS_MAX: Final = 256
"""Of a path, for an operator's list; the key is made of all of it."""

Clock = Callable[[], float]
Answer = Literal["sent", "unchanged", "nonsense"]
"""``unchanged``: what is kept may be used. ``nonsense``: the origin spoke of something else (RFC 9111 §4.3.4), and is to be asked for the
body. ``sent``: anything else.
"""


class Found(msgspec.Struct, frozen=True):
    """A body that was kept: the lease is whoever's who got this. ``asked``: its origin said just now that it has not changed."""

    lease: Lease[MediaEntry]
    asked: bool


class Offer(msgspec.Struct, frozen=True):
    """A body that came and may be kept, on ``terms``. ``began_at``: when it was asked for (monotonic seconds)."""

    key: MediaKey
    terms: Terms
    addresses: tuple[IpAddress, ...]
    host: str
    path: str
    began_at: float

    def entry(self, slot: Slot, digest: str, ended_at: float) -> MediaEntry:
        """Return the entry of these bytes, whose last came at ``ended_at``."""
        return MediaEntry(
            slot=slot,
            digest=digest,
            terms=self.terms,
            addresses=self.addresses,
            host=self.host,
            path=self.path,
            asked_at=self.began_at,
            cost_ms={"media_fetch": (ended_at - self.began_at) * 1e3},
        )


@dataclass(frozen=True, slots=True)
class Shelf:
    """The part of the cache that one scope's transfers meet. ``shared``: several tenants do. Two clocks: monotonic and Unix seconds."""

    cache: MediaCache
    scope: str = ""
    shared: bool = True
    clock: Clock = now
    wall: Clock = wall

    @contextmanager
    def visit(self, url: MediaUrl, policy: UrlPolicy) -> Iterator[Visit]:
        """Look up what is kept of ``url``; what was not taken is given back in the end."""
        visit = Visit(self, url, MediaKey.of(f"{url.scheme}://{url.authority}{url.target}", self.scope))
        if self.cache.on:
            visit.find(policy)
        try:
            yield visit
        finally:
            visit.leave()


class Visit:
    """One hop's look at the shelf."""

    def __init__(self, shelf: Shelf, url: MediaUrl, key: MediaKey) -> None:
        self._shelf = shelf
        self._url = url
        self._key = key
        self._lease: Lease[MediaEntry] | None = None
        self._moment = Moment(0.0, 0.0, 0.0)
        self._asked = False

    def find(self, policy: UrlPolicy) -> None:
        """Find the entry. One that came from where the policy allows no connection now is dropped, as it could not be fetched either."""
        self._lease = self._shelf.cache.find(self._key)
        if self._lease is None:
            return
        try:
            if not self._lease.entry.addresses:
                policy.check_proxied(self._url)
            for address in self._lease.entry.addresses:
                policy.check_address(self._url, address)
        except UrlRefused:
            self._drop()

    @property
    def size(self) -> int:
        """Bytes of what is kept, 0 where nothing is."""
        return 0 if self._lease is None else self._lease.entry.slot.size

    @property
    def fresh(self) -> bool:
        """Whether what is kept may be used as it is."""
        return self._lease is not None and self._lease.entry.terms.fresh(self._shelf.clock())

    def use(self) -> Found:
        """Take what is fresh."""
        lease = self._take()
        self._shelf.cache.used(self._key, lease.entry)
        return Found(lease, asked=False)

    def ask(self, *, again: bool) -> tuple[str, str] | None:
        """The request is sent now; return the field that makes it ask whether what is kept has changed, if that can be asked.

        ``again``: it was, and what came made no sense.
        """
        at = self._shelf.clock()
        self._moment = Moment(at, at, 0.0)
        condition = None if self._lease is None or again else self._lease.entry.terms.validator
        self._asked = condition is not None
        return condition

    def answered(self, response: aiohttp.ClientResponse) -> Answer:
        """The origin answered. Unless that is a failure that passes, or says that nothing has changed, what is kept no longer holds."""
        self._moment = Moment(self._moment.asked_at, self._shelf.clock(), self._shelf.wall())
        status = response.status
        if status == NOT_MODIFIED and self._asked:
            return self._renew(self._fields(response))
        if self._lease is not None and status < 500 and status not in (408, 425, 429):
            self._drop()
        return "sent"

    def keep(self) -> Found:
        """Take what has not changed."""
        return Found(self._take(), asked=True)

    def offer(self, response: aiohttp.ClientResponse, addresses: Sequence[IpAddress]) -> Offer | None:
        """A whole body came. Returns on which terms it may be kept, if it may; counts a miss."""
        cache = self._shelf.cache
        if not cache.on:
            return None
        cache.fetched(changed=self._asked)
        terms: Terms | NotKept = judge(self._fields(response), self._moment, shared=self._shelf.shared)
        if response.status != 200:
            terms = "status"
        elif response.content_length is None and not _chunked(response):
            terms = "unframed"
        if not isinstance(terms, Terms):
            cache.refused(terms)
            return None
        path = self._url.path[:_PATH_CHARACTERS_MAX]
        return Offer(self._key, terms, tuple(addresses), self._url.host, path, self._moment.asked_at)

    def leave(self) -> None:
        """Give back what was not taken."""
        if self._lease is not None:
            self._lease.release()
            self._lease = None

    def _renew(self, fields: Fields) -> Answer:
        assert self._lease is not None, "only what is kept is asked about"
        cache, entry = self._shelf.cache, self._lease.entry
        terms = renew(entry.terms, fields, self._moment, shared=self._shelf.shared)
        if terms == "other":
            self._drop()
            return "nonsense"
        spent_ms = (self._moment.answered_at - self._moment.asked_at) * 1e3
        if isinstance(terms, Terms):
            cache.renewed(self._key, entry, terms, spent_ms)
        else:
            # True now, so those who asked may have it, but nobody later.
            cache.renewed(self._key, entry, replace(entry.terms, fresh_until=0.0), spent_ms)
            cache.refused(terms)
            cache.drop(self._key, "replaced")
        return "unchanged"

    def _fields(self, response: aiohttp.ClientResponse) -> Fields:
        return read_fields(lambda name: response.headers.getall(name, ()), self._moment.wall)

    def _take(self) -> Lease[MediaEntry]:
        lease, self._lease = self._lease, None
        assert lease is not None, "nothing is kept"
        return lease

    def _drop(self) -> None:
        self._shelf.cache.drop(self._key, "replaced")
        self.leave()


def _chunked(response: aiohttp.ClientResponse) -> bool:
    return response.headers.get("Transfer-Encoding", "").lower().rstrip().endswith("chunked")
