"""What the media of one request may cost: a published contract, and who is bound by which.

A :class:`Budget` is one tier with every field filled in. ``FIELDS`` describes the fields once, for the settings, ``GET /v1/budget``, the
OpenAPI document and the docs. :mod:`foveate.decisions.budget` judges by them.
"""

from __future__ import annotations

from typing import Final, Literal

import msgspec

MiB: Final = 2**20
DEFAULT_TIER: Final = "default"
ANYONE: Final = "anyone"
"""The tenant of every request while no API keys are configured."""

TIER_HEADER: Final = "X-Foveate-Tier"
"""The request's header that asks for another tier than its key's own."""

OnExcess = Literal["reject", "fit"]
Sampling = Literal["uniform", "fps"]
Unit = Literal["pictures", "videos", "pixels", "frames", "bytes", "seconds", "tokens", "redirects", "requests"]


class BudgetField(msgspec.Struct, frozen=True):
    """One limit of a tier. ``fits``: excess may be made to fit (``on_excess``) instead of being refused."""

    name: str
    unit: Unit
    help: str
    fits: bool = False


FIELDS: Final[tuple[BudgetField, ...]] = (
    BudgetField("max_images", "pictures", "Pictures of one request."),
    BudgetField("max_image_width", "pixels", "Width of one picture, as displayed.", fits=True),
    BudgetField("max_image_height", "pixels", "Height of one picture, as displayed.", fits=True),
    BudgetField("max_image_pixels", "pixels", "Decoded pixels of one picture.", fits=True),
    BudgetField("max_total_pixels", "pixels", "Decoded pixels of one request, video frames included."),
    BudgetField("max_item_bytes", "bytes", "Encoded bytes of one picture or video."),
    BudgetField("max_total_bytes", "bytes", "Encoded media bytes of one request."),
    BudgetField("max_videos", "videos", "Videos of one request."),
    BudgetField("max_video_frames", "frames", "Frames taken from one video.", fits=True),
    BudgetField("max_video_seconds", "seconds", "Length of one video."),
    BudgetField("max_visual_tokens", "tokens", "Prompt tokens that stand for media, in one request.", fits=True),
    BudgetField("max_fetch_seconds", "seconds", "Time until all media of one request are fetched."),
    BudgetField("max_redirects", "redirects", "Redirects followed for one URL."),
    BudgetField("max_tenant_requests", "requests", "Multimodal requests of one tenant under way."),
    BudgetField("max_tenant_waiting", "requests", "Multimodal requests of one tenant that wait for a place."),
    BudgetField("max_tenant_bytes", "bytes", "Media bytes of one tenant's requests under way."),
    BudgetField("max_tenant_pixels", "pixels", "Decoded pixels of one tenant's requests under way."),
    BudgetField("max_tenant_visual_tokens", "tokens", "Visual tokens of one tenant's requests under way."),
)


class Budget(msgspec.Struct, frozen=True, kw_only=True):
    """One tier, every field filled in. Units: :data:`FIELDS`.

    ``video_sampling`` says which frames of a video are taken: ``uniform`` spreads them over its length, ``fps`` takes ``video_fps`` a
    second. ``count_repeats`` false counts a picture that comes again, by content, once. ``on_excess`` lists the fields whose excess is made
    to fit; every other is refused.
    """

    tier: str = DEFAULT_TIER
    max_images: int = 16
    max_image_width: int = 32_768
    max_image_height: int = 32_768
    max_image_pixels: int = 64_000_000
    max_total_pixels: int = 256_000_000
    max_item_bytes: int = 32 * MiB
    max_total_bytes: int = 128 * MiB
    max_videos: int = 1
    max_video_frames: int = 32
    max_video_seconds: float = 300.0
    max_visual_tokens: int = 65_536
    max_fetch_seconds: float = 20.0
    max_redirects: int = 3
    max_tenant_requests: int = 512
    max_tenant_waiting: int = 512
    max_tenant_bytes: int = 1024 * MiB
    max_tenant_pixels: int = 1_000_000_000
    max_tenant_visual_tokens: int = 1_048_576
    video_sampling: Sampling = "uniform"
    video_fps: float = 1.0
    count_repeats: bool = True
    on_excess: dict[str, OnExcess] = {}

    def fits(self, field: str) -> bool:
        """Whether excess over ``field`` is made to fit."""
        return self.on_excess.get(field, "reject") == "fit"


class Caller(msgspec.Struct, frozen=True):
    """Who asks, and what they may spend. ``admin`` may use the admin API."""

    tenant: str = ANYONE
    budget: Budget = Budget()
    admin: bool = False


class Adjustment(msgspec.Struct, frozen=True):
    """What was changed to make a medium fit. ``part`` counts the request's media in prompt order; ``param`` is its place in the body.

    ``before`` and ``after`` are in words a client understands: ``4000x3000`` and ``2048x1536``, or ``900 frames`` and ``32 frames``.
    """

    part: int
    param: str
    limit_name: str
    before: str
    after: str
