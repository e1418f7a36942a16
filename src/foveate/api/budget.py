"""``GET /v1/budget``: the contract that a caller is held to, in a form that a client can use as it is."""

from __future__ import annotations

from typing import Annotated, Any, Final

import msgspec

from foveate.api.errors import STATUS
from foveate.core.budget import FIELDS, BudgetField, OnExcess, Sampling, Unit
from foveate.core.errors import (
    FetchTimeout,
    FoveateError,
    HouseFull,
    ImageTooLarge,
    MediaTooLarge,
    MediaTotalTooLarge,
    TooManyFrames,
    TooManyImages,
    TooManyRedirects,
    TooManyVideos,
    VideoTooLong,
)
from foveate.journey.port import Terms

REFUSALS: Final[dict[str, type[FoveateError]]] = {
    "max_images": TooManyImages,
    "max_image_width": ImageTooLarge,
    "max_image_height": ImageTooLarge,
    "max_image_pixels": ImageTooLarge,
    "max_total_pixels": MediaTotalTooLarge,
    "max_item_bytes": MediaTooLarge,
    "max_total_bytes": MediaTotalTooLarge,
    "max_videos": TooManyVideos,
    "max_video_frames": TooManyFrames,
    "max_video_seconds": VideoTooLong,
    "max_visual_tokens": MediaTotalTooLarge,
    "max_fetch_seconds": FetchTimeout,
    "max_redirects": TooManyRedirects,
    "max_tenant_requests": HouseFull,
    "max_tenant_waiting": HouseFull,
    "max_tenant_bytes": HouseFull,
    "max_tenant_pixels": HouseFull,
    "max_tenant_visual_tokens": HouseFull,
}
"""What a request over each limit is refused with."""


class Limit(msgspec.Struct, frozen=True):
    """One limit. ``on_excess`` is what becomes of a request that exceeds it: ``reject``, with the error ``status`` and ``code``, or
    ``fit``, where the media are scaled down (or fewer frames taken) and the answer says so.
    """

    value: int | float
    unit: Unit
    on_excess: OnExcess
    status: int
    code: str
    help: str


def _described(field: BudgetField) -> dict[str, Any]:
    fits = " Excess may be made to fit." if field.fits else ""
    return {"$ref": "#/components/schemas/Limit", "description": f"{field.help} Unit: {field.unit}.{fits}"}


_LIMITS: Final = {
    "properties": {field.name: _described(field) for field in FIELDS},
    "required": [field.name for field in FIELDS],
    "additionalProperties": False,
}


class Formats(msgspec.Struct, frozen=True):
    """What media may be encoded as; the bytes decide, not a name or a declared type."""

    image: list[str]
    video: list[str]


class UrlRules(msgspec.Struct, frozen=True):
    """Where media may be fetched from. ``hosts`` null: from any public address."""

    schemes: list[str]
    ports: list[int]
    hosts: list[str] | None


class BudgetReply(msgspec.Struct, frozen=True):
    """Answer of `GET /v1/budget`. ``count_repeats`` false: a picture that comes again in a request, by content, counts once."""

    tier: str
    tenant: str
    limits: Annotated[dict[str, Limit], msgspec.Meta(extra_json_schema=_LIMITS)]
    video_sampling: Sampling
    video_fps: float
    count_repeats: bool
    body_bytes_max: int
    server: dict[str, int]
    """What holds for every tier beside its limits, by the name that a refusal has as ``limit_name``: the smaller of both binds. No
    picture beyond ``media.decode_pixels_max`` is decoded, so none is made to fit either."""
    not_enforced: list[str]
    """Limits that cannot be kept by this server, which passes requests on and knows nothing of the model: what media cost in tokens."""
    formats: Formats
    urls: UrlRules


def budget_reply(terms: Terms) -> BudgetReply:
    """Return the contract as it is published."""
    budget = terms.budget
    return BudgetReply(
        tier=budget.tier,
        tenant=terms.tenant,
        limits={
            field.name: Limit(
                value=getattr(budget, field.name),
                unit=field.unit,
                on_excess="fit" if budget.fits(field.name) else "reject",
                status=STATUS[REFUSALS[field.name].kind],
                code=REFUSALS[field.name].code,
                help=field.help,
            )
            for field in FIELDS
        },
        video_sampling=budget.video_sampling,
        video_fps=budget.video_fps,
        count_repeats=budget.count_repeats,
        body_bytes_max=terms.body_bytes_max,
        server=dict(terms.server),
        not_enforced=list(terms.not_enforced),
        formats=Formats(list(terms.image_formats), list(terms.video_formats)),
        urls=UrlRules(
            list(terms.urls.schemes),
            list(terms.urls.ports),
            None if terms.urls.hosts is None else list(terms.urls.hosts),
        ),
    )
