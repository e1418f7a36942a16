"""What the steps work with. Built once by :mod:`foveate.assembly`; no step constructs a collaborator."""

from __future__ import annotations

from dataclasses import dataclass, field

from foveate.caches.aliases import Aliases
from foveate.caches.bad_media import BadMedia
from foveate.caches.encoder import EncoderCache
from foveate.caches.keep_directory import KeepDirectory
from foveate.caches.keys import EncoderKey
from foveate.caches.media import MediaCache
from foveate.caches.processor import ProcessorCache
from foveate.caches.single_flight import SingleFlight
from foveate.engines.port import Relay
from foveate.journey.in_flight import InFlight
from foveate.journey.job import Got, Made, Wanted
from foveate.journey.partings import Partings
from foveate.journey.places import Places
from foveate.journey.reload import Reloads
from foveate.journey.roll_out import RollOut
from foveate.journey.rules import LiveRules
from foveate.media.fetch import Fetcher
from foveate.media.probe import ANY_FORMAT, Accepted
from foveate.observe.metrics import Metrics
from foveate.observe.observer import Observer
from foveate.runtime.arena import Arena


@dataclass(frozen=True)
class Limits:
    """What holds for every request whatever its tier. Sizes in bytes, times in seconds."""

    body_bytes_max: int
    inline_bytes_min: int
    request_seconds_max: float
    item_seconds_max: float
    answer_tokens_default: int
    decode_pixels_max: int
    pictures: Accepted = ANY_FORMAT
    caches_per_tenant: bool = False
    """Whether a tenant's requests meet only what its own requests left or have in flight. Without API keys all are one tenant's."""
    client_embeddings: bool = False
    """Whether embeddings that clients computed themselves are accepted in place of pictures."""
    detail_low_pixels: int = 512 * 512
    """``detail: low`` caps a picture at this many pixels, where the model's processor can be told to."""
    prefill_overlap: bool = False
    """Whether an engine that can may begin with a prompt while later pictures of it are still encoded."""
    engine_wait_seconds: float = 4.0
    """How long a request without a token waits for an engine that is restarting before it is refused."""


@dataclass(frozen=True)
class Tools:
    """The collaborators of every step."""

    limits: Limits
    arena: Arena
    roll_out: RollOut
    rules: LiveRules
    reloads: Reloads
    fetcher: Fetcher
    processor_cache: ProcessorCache
    encoder_cache: EncoderCache
    media_cache: MediaCache
    aliases: Aliases
    bad_media: BadMedia
    fetches: SingleFlight[Wanted, Got]
    flights: SingleFlight[EncoderKey, Made]
    observer: Observer
    metrics: Metrics
    multimodal_places: Places
    in_flight: InFlight
    partings: Partings = field(default_factory=Partings)
    keep: KeepDirectory | None = None
    relay: Relay | None = None
    """Servers behind this one, which answer instead of an engine here."""
