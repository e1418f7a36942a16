"""What is known of a request, and of each of its pictures, as it moves along the journey."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field, replace

from foveate.caches.aliases import Content
from foveate.caches.encoder import EncoderEntry
from foveate.caches.keys import EncoderKey
from foveate.caches.media import Source
from foveate.caches.processor import ProcessorEntry
from foveate.core.budget import Adjustment, Budget
from foveate.core.media import Blob, FramePick, ImageHeader, ImageOptions, InlineRef, VideoHeader, brought
from foveate.core.memory import Slot
from foveate.core.request import MediaPart, Request
from foveate.core.stages import Span
from foveate.decisions.budget import Shape
from foveate.decisions.frames import FrameSampling
from foveate.engines.arrivals import Arrivals
from foveate.engines.port import EngineWork, RelayWork
from foveate.journey.holds import Lease, SlotHold
from foveate.journey.in_flight import Charge
from foveate.journey.places import Places
from foveate.journey.port import Unpacked
from foveate.journey.rules import Rules
from foveate.journey.serving import Serving
from foveate.journey.trial import Trial
from foveate.media.policy import UrlPolicy
from foveate.media.url import MediaUrl
from foveate.models.port import RenderedPrompt, VisualEstimate
from foveate.observe.ledger import ItemLedger, RequestLedger


@dataclass(frozen=True)
class Wanted:
    """One fetch that several requests may share: same URL under the same limits and policy. A fetch that was cut short or refused for
    one tier, or under rules that were replaced since, says nothing to another. ``scope`` as in the cache keys.
    """

    url: MediaUrl
    policy: UrlPolicy
    bytes_max: int
    redirects_max: int
    scope: str = ""


@dataclass(frozen=True)
class Got:
    """What a fetch brought: bytes in the arena, held, and their digest. Each request that waited for it has a hold of its own."""

    hold: SlotHold
    digest: str
    redirects: int
    source: Source = "origin"

    def again(self) -> Got:
        """Return the same with a further hold."""
        return replace(self, hold=self.hold.retain())

    def release(self) -> None:
        """Give the hold back."""
        self.hold.release()


Visual = EncoderEntry | ProcessorEntry
"""A picture in the form that the engine takes: embeddings, or pixels."""


@dataclass(frozen=True)
class Made:
    """What a flight made. Each of its waiters has a lease of its own (:meth:`again`)."""

    lease: Lease[Visual]
    spans: tuple[Span, ...]
    processor_hit: bool

    def again(self) -> Made:
        """Return the same with a further lease."""
        return Made(self.lease.again(), self.spans, self.processor_hit)

    def release(self) -> None:
        """Give the lease back."""
        self.lease.release()


@dataclass(frozen=True)
class Film:
    """What is known of a video before its frames are decoded, and which are to be: ``picks``, or ``encoded`` where they come as a list
    of JPEGs, whose times nobody knows. They were chosen by ``sampling``, which would have taken ``wanted`` had it been allowed to.
    """

    header: VideoHeader
    sampling: FrameSampling
    wanted: int
    picks: tuple[FramePick, ...] = ()
    encoded: tuple[tuple[Slot, ImageHeader], ...] = ()

    @property
    def moments(self) -> list[float | None]:
        """When each frame is shown, in seconds from the first."""
        return [None] * len(self.encoded) or [pick.seconds for pick in self.picks]


@dataclass(frozen=True)
class Given:
    """A client's own embeddings: as many rows, and what the prompt needs to know of them."""

    rows: int
    replacement: str
    meta: dict[str, list[int]]


@dataclass(frozen=True)
class Foreseen:
    """What the prompt needs to know of a picture, and knows before it is encoded; as in :class:`foveate.core.media.PreparedImage`."""

    replacement: str
    rows: int
    meta: dict[str, list[int]]


@dataclass
class Item:
    """One picture or video under way. Each step fills in what the next ones need; ``lease`` is set once the embeddings are there,
    or the pixels, and ``key`` is what the embeddings are known by.

    A video has a ``film`` instead, and for each of its frames an item of its own in ``frames``, shown at ``moment``; its ``header``,
    ``shape`` and ``estimate`` are those of one frame.

    A client's own embeddings are ``given`` instead, and have no header and no shape.

    ``repeats`` tells that an earlier item of the request has the same content, ``counted`` that the totals include it. ``shape`` is the
    size that the model gets to see: the header's, or what the budget scales it down to. A medium that is named instead of sent is
    ``recalled``; its ``blob`` has a digest and no bytes, and ``inputs`` are set where the caches hold those, but no embeddings.

    A picture is ``foreseen`` once it has been processed; ``place`` is its place among the prompt's pictures where the engine was given the
    prompt without it.
    """

    part: MediaPart
    ledger: ItemLedger
    started_at: float
    options: ImageOptions
    url: MediaUrl | None = None
    wanted: Wanted | None = None
    source: Source = "origin"
    blob: Blob | None = None
    hold: SlotHold | None = None
    repeats: bool = False
    counted: bool = False
    header: ImageHeader | None = None
    shape: Shape | None = None
    probed_at: float = 0.0
    estimate: VisualEstimate | None = None
    recalled: Content | None = None
    inputs: Lease[ProcessorEntry] | None = None
    key: EncoderKey | None = None
    lease: Lease[Visual] | None = None
    ready_at: float = 0.0
    film: Film | None = None
    frames: list[Item] = field(default_factory=list)
    moment: float | None = None
    given: Given | None = None
    foreseen: Foreseen | None = None
    place: int | None = None

    @property
    def facts(self) -> Visual | Foreseen:
        """What the prompt needs to know of a picture that is there or foreseen."""
        found = self.foreseen if self.lease is None else self.lease.entry
        assert found is not None, "nobody has processed it"
        return found

    @property
    def pictures(self) -> int:
        """How many pictures the model gets to see of this: one, or a video's frames."""
        return len(self.film.moments) if self.film is not None else 1

    @property
    def seen(self) -> list[Item]:
        """What is there of it in the form that the engine takes, in prompt order: itself, or a video's frames."""
        return [item for item in (self.frames if self.film is not None else [self]) if item.lease is not None]

    def release_media(self) -> None:
        """Give the encoded bytes and the inputs back; they are not needed once embeddings exist."""
        if self.hold is not None:
            self.hold.release()
            self.hold = None
        if self.inputs is not None:
            self.inputs.release()
            self.inputs = None

    def release(self) -> None:
        """Give back everything the item holds."""
        self.release_media()
        for frame in self.frames:
            frame.release()
        if self.lease is not None:
            self.lease.release()
            self.lease = None


@dataclass
class Job:
    """One request under way. ``rules`` are those that held when it began, ``scope`` says whose cache entries it meets.
    ``asked`` is what it asks of the picture processor.

    ``contents`` has the first item of each content, by digest; ``decoded`` what of which content its pixels were counted for.
    ``charge`` is what it has under way; None for text. ``serving`` is the version of the model that answers it, ``encoder_version``
    its encoder's when it began with it, ``trial`` the one under way when that was chosen; ``_leave`` takes the request back from the
    version's users. In the end it is either ``work`` for an engine here, or ``passing`` on to another server.

    ``tasks`` holds what works on its media up to the first token, and ``moved`` is set by each picture that gets further. ``spelled``: the
    prompt's tokens are final; ``starts`` are the places in it where pictures begin. ``arrivals`` are the pictures that the engine was given
    the prompt without.
    """

    request: Request
    ledger: RequestLedger
    deadline: float
    rules: Rules
    serving: Serving
    scope: str = ""
    asked: ImageOptions = field(default_factory=ImageOptions)
    unpacked: Unpacked | None = None
    place: Places | None = None
    charge: Charge | None = None
    prompt: RenderedPrompt | None = None
    token_ids: list[int] = field(default_factory=list)
    text_tokens: int = 0
    items: list[Item] = field(default_factory=list)
    contents: dict[str, Item] = field(default_factory=dict)
    decoded: set[Hashable] = field(default_factory=set)
    fetching_since: float = 0.0
    inputs_ready_at: float = 0.0
    tasks: asyncio.TaskGroup | None = None
    moved: asyncio.Event = field(default_factory=asyncio.Event)
    spelled: bool = False
    starts: list[int] = field(default_factory=list)
    arrivals: Arrivals | None = None
    work: EngineWork | None = None
    passing: RelayWork | None = None
    adjustments: list[Adjustment] = field(default_factory=list)
    encoder_version: str = ""
    trial: Trial | None = None
    _leave: Callable[[], None] | None = None

    def serve_by(self, serving: Serving) -> None:
        """Have ``serving`` answer the request."""
        leave, self._leave = self._leave, serving.enter()
        self.serving = serving
        self.encoder_version = serving.encoder_version
        if leave is not None:
            leave()

    def end(self) -> None:
        """Give back everything, the version that answered included. Safe to call again."""
        self.release()
        if self._leave is not None:
            self._leave()

    @property
    def budget(self) -> Budget:
        """The tier that holds for this request, from its beginning to its end."""
        return self.request.caller.budget

    @property
    def shown(self) -> list[Item]:
        """The pictures that the model gets to see, in prompt order, once all are there or foreseen."""
        return [each for item in self.items for each in (item.seen if item.ready_at else [item])]

    @property
    def charged(self) -> Charge:
        """The account of a request with media."""
        assert self.charge is not None, "a request with media is counted in before they are touched"
        return self.charge

    @property
    def bytes_here(self) -> int:
        """Encoded bytes of its media that are here, those of an unpacked body included; repeats as often as they count."""
        blobs = [item.blob or self._came(item) for item in self.items]
        sizes = [(blob.digest, blob.size) for blob in blobs if blob is not None]
        return sum(size for _, size in sizes) if self.budget.count_repeats else sum(dict(sizes).values())

    def _came(self, item: Item) -> Blob | None:
        """Return what came with an unpacked body for an item that has not been given it yet."""
        if self.unpacked is None or not isinstance(ref := brought(item.part.ref), InlineRef):
            return None
        found = self.unpacked.blobs[ref.index]
        return found if isinstance(found, Blob) else None

    def release(self) -> None:
        """Give back everything that the request holds until its first token. Safe to call again."""
        for item in self.items:
            item.release()
        if self.unpacked is not None:
            self.unpacked.release()
        if self.charge is not None:
            self.charge.release()
        if self.place is not None:
            self.place.leave()
            self.place = None
