"""What the API layer may ask of the journey: the service behind every route.

One implementation (:class:`foveate.journey.service.Journey`); the API's unit tests use a fake beside the contract test on the real one.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any, Literal, Protocol

import msgspec

from foveate.core.budget import Adjustment, Budget, Caller
from foveate.core.errors import ErrorRecord, FoveateError
from foveate.core.media import Blob
from foveate.core.memory import Slot
from foveate.core.request import Request
from foveate.engines.port import EngineReport, FinishEvent, RelayReport, TokenEvent
from foveate.journey.cache_port import CacheOperator
from foveate.journey.canary_port import CanaryOperator
from foveate.journey.holds import EarlyHold
from foveate.journey.in_flight import Charge
from foveate.journey.topology_port import TopologyOperator
from foveate.observe.observer import Observer


class Readiness(msgspec.Struct, frozen=True):
    """Whether a request can be answered now, and if not, why (fit for an operator: ``engine: loading``)."""

    ready: bool
    reason: str = ""


class Usage(msgspec.Struct, frozen=True):
    """Tokens of a request. ``prompt_tokens`` includes ``visual_tokens``; completion tokens are summed over choices.

    ``frames`` are those of all its videos that the model saw; ``images`` counts its pictures only.
    """

    prompt_tokens: int
    completion_tokens: int
    visual_tokens: int
    cached_tokens: int
    images: int
    frames: int = 0


class Unpacked(msgspec.Struct, frozen=True):
    """A large body after a media worker took its inline pictures out.

    ``skeleton`` is the body's JSON in which each ``data:`` URL value (of a picture or video) is replaced by the string ``inline:<index>``,
    with index into ``blobs``; an entry is an error where that data URL is malformed. Unpacking took from ``started_at`` to ``ended_at``
    and ``cpu_ms`` of a worker's processor time.
    ``hold`` keeps the blobs' bytes until it is let go; every user of a blob retains it. ``charge`` accounts for them until the
    request does.
    """

    skeleton: bytes
    blobs: tuple[Blob | ErrorRecord, ...]
    started_at: float
    ended_at: float
    hold: EarlyHold | None = None
    charge: Charge | None = None
    cpu_ms: float = 0.0

    def release(self) -> None:
        """Let the bytes go: the request that came with the body needs them no more, however long its answer streams. Again is harmless."""
        if self.hold is not None:
            self.hold.release()
        if self.charge is not None:
            self.charge.release()


class UrlTerms(msgspec.Struct, frozen=True):
    """What a client may know of the URL policy. ``hosts`` is set when only listed hosts may be fetched from."""

    schemes: tuple[str, ...]
    ports: tuple[int, ...]
    hosts: tuple[str, ...] | None = None


class Terms(msgspec.Struct, frozen=True):
    """The contract as ``GET /v1/budget`` publishes it: the caller's tier, accepted formats, what URLs may be.

    ``server`` has the limits of every tier that can refuse a single request, by the name that the refusal tells. ``not_enforced`` are
    limits of either kind that cannot be kept here, because nothing is known of what they limit.
    """

    budget: Budget
    tenant: str
    image_formats: tuple[str, ...]
    video_formats: tuple[str, ...]
    urls: UrlTerms
    body_bytes_max: int
    server: Mapping[str, int]
    not_enforced: tuple[str, ...] = ()


ItemKind = Literal["image", "video", "image_embeds"]


class ItemEstimate(msgspec.Struct, frozen=True):
    """One medium's price. What is not known, because of ``error``, is None. ``processor_cached`` and
    ``encoder_cached``: that cache holds it now; ``media_cached``: its bytes came out of the media cache.
    """

    part: int
    param: str
    kind: ItemKind
    bytes: int | None = None
    width: int | None = None
    height: int | None = None
    pixels: int | None = None
    frames: int | None = None
    seconds: float | None = None
    visual_tokens: int | None = None
    processor_cached: bool = False
    encoder_cached: bool = False
    media_cached: bool = False
    error: ErrorRecord | None = None


class Estimate(msgspec.Struct, frozen=True):
    """What a request would cost, found without decoding a pixel or running the model. Sums count all that is known, also of what is
    refused; ``complete`` tells that they lack nothing.

    ``refusals`` is empty exactly when the request would be admitted.
    """

    admitted: bool
    complete: bool
    tier: str
    bytes: int
    pixels: int
    frames: int
    text_tokens: int
    visual_tokens: int
    processor_cache_hits: int
    encoder_cache_hits: int
    items: tuple[ItemEstimate, ...]
    adjustments: tuple[Adjustment, ...]
    refusals: tuple[ErrorRecord, ...]


class Reloaded(msgspec.Struct, frozen=True):
    """What a reload did. ``restart_needed`` names settings that changed in the file but hold only after a restart; ``warnings`` are
    sentences about what holds now and may not have been meant.
    """

    tiers: tuple[str, ...]
    keys: int
    changed: tuple[str, ...]
    restart_needed: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


class RulesInForce(msgspec.Struct, frozen=True):
    """The rules that requests beginning now get. ``keys``: the number of each tenant. ``fetch``: the URL policy's settings.

    ``read_at`` is when they were read (Unix seconds).
    """

    tiers: dict[str, Budget]
    keys: dict[str, int]
    fetch: dict[str, Any]
    read_at: float


class BodyBuffer(Protocol):
    """A place in the arena that a request body is received into, chunk by chunk. Leaving the context gives it back."""

    def write(self, chunk: bytes) -> None:
        """Append. Raises BodyTooLarge beyond the size it was opened with, ArenaFull, HouseFull, MediaTotalTooLarge."""
        ...

    @property
    def slot(self) -> Slot:
        """The bytes written so far."""
        ...


class Answer(Protocol):
    """One request under way. Leaving its context ends it whatever its state: cancelled if it was not finished."""

    async def begin(self) -> None:
        """Run the journey up to the first token. Raises FoveateError, with the ledger already holding the finished stages."""
        ...

    def server_timing(self) -> str:
        """The ``Server-Timing`` header's value for what has happened so far."""
        ...

    def events(self) -> AsyncIterator[TokenEvent | FinishEvent]:
        """The output, from the first token's event on. Raises FoveateError when the engine fails midway."""
        ...

    def passed(self) -> AsyncIterator[bytes]:
        """What a server behind this one answers, of a request that has a document: frames of a stream, or the whole at once. Raises as
        :meth:`events`.
        """
        ...

    def usage(self) -> Usage:
        """Tokens so far; final after the last event."""
        ...

    def adjustments(self) -> tuple[Adjustment, ...]:
        """What was changed to make media fit the budget; final after :meth:`begin`."""
        ...


class Service(Protocol):
    """The server's inside, as the API sees it."""

    @property
    def models(self) -> tuple[str, ...]:
        """The models that are served, by the names that clients use."""
        ...

    body_bytes_max: int
    relays: bool
    """Whether requests are passed on to other servers, and so are to have their :class:`~foveate.core.document.Document`."""
    inline_bytes_min: int
    """Bodies of at least this many bytes are received into the arena and unpacked by a media worker."""

    @property
    def context_tokens_max(self) -> int:
        """Tokens that prompt and answer may have together. It may change with the version of the model."""
        ...

    def readiness(self) -> Readiness:
        """Whether a request can be answered now."""
        ...

    def caller(self, key: str | None, tier: str | None) -> Caller:
        """Tell who asks, from the API key and the tier that was asked for. Raises Unauthenticated, NotPermitted."""
        ...

    def terms(self, caller: Caller) -> Terms:
        """The contract that holds for a caller."""
        ...

    def rules(self) -> RulesInForce:
        """The rules that hold now, for an operator."""
        ...

    async def reload(self) -> Reloaded:
        """Read the settings again and bring what may change into force. Raises SettingsRefused; the old ones then stay."""
        ...

    def upstreams(self) -> tuple[RelayReport, ...]:
        """The servers behind this one; none where the model runs here."""
        ...

    def drain_upstream(self, name: str, *, draining: bool) -> RelayReport:
        """Send one of them nothing new, or let it have requests again. Raises UpstreamUnknown."""
        ...

    def engines(self) -> tuple[EngineReport, ...]:
        """The engine's processes, of the version that serves; none where the servers behind this one answer."""
        ...

    def drain_engine(self, name: str, *, draining: bool) -> EngineReport:
        """Give one of them nothing new, or let it have requests again. Raises EngineUnknown."""
        ...

    def caches(self) -> CacheOperator:
        """What an operator may do with the caches."""
        ...

    def observed(self) -> Observer:
        """What was seen of requests: costs and objectives."""
        ...

    def canary(self) -> CanaryOperator:
        """What an operator may do with a new version of the model."""
        ...

    def topology(self) -> TopologyOperator:
        """What an operator may do with the topology."""
        ...

    def body(self, bytes_max: int, caller: Caller) -> AbstractAsyncContextManager[BodyBuffer]:
        """Open a buffer for a large body, whose media bytes are charged to the caller as they come. Raises ArenaFull."""
        ...

    def unpack(self, buffer: BodyBuffer) -> AbstractAsyncContextManager[Unpacked]:
        """Take the inline pictures out of a large body, off the event loop. The blobs live as long as the context.

        Raises InvalidParameter when the body is not JSON, MediaWorkersUnavailable.
        """
        ...

    def refused(self, request_id: str, received_at: float, error: FoveateError, caller: Caller | None) -> None:
        """Note a request that was refused before there was a :class:`Request` to answer, so that no request goes unrecorded.

        ``caller`` is None where it is not known who asks.
        """
        ...

    def answer(self, request: Request, unpacked: Unpacked | None) -> AbstractAsyncContextManager[Answer]:
        """Open the journey of one request. Entering never waits."""
        ...

    async def estimate(self, request: Request, unpacked: Unpacked | None) -> Estimate:
        """Price a request, and tell whether and why not it would be admitted, without decoding a pixel or asking the engine.

        It waits for a place, fetches, and holds accounts as the request would. Raises Draining, DeadlineExceeded.
        """
        ...

    async def metrics(self) -> tuple[bytes, str]:
        """The Prometheus exposition and its content type, rendered off the event loop."""
        ...
