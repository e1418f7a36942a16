"""What may be under way is counted in, by which names it is limited, and what a request that is beyond them is told."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal, get_args

from foveate.core.budget import Budget
from foveate.core.errors import HouseFull, MediaTotalTooLarge

Quantity = Literal["bytes", "pixels", "visual_tokens"]
QUANTITIES: Final[tuple[Quantity, ...]] = get_args(Quantity)
SERVER_LIMITS: Final[Mapping[Quantity, str]] = {
    "bytes": "limits.media_bytes_in_flight_max",
    "pixels": "limits.pixels_in_flight_max",
    "visual_tokens": "limits.visual_tokens_in_flight_max",
}
TENANT_LIMITS: Final[Mapping[Quantity, str]] = {
    "bytes": "max_tenant_bytes",
    "pixels": "max_tenant_pixels",
    "visual_tokens": "max_tenant_visual_tokens",
}
WORDS: Final[Mapping[Quantity, str]] = {
    "bytes": "media bytes",
    "pixels": "decoded pixels",
    "visual_tokens": "visual tokens",
}
RETRY_AFTER_SECONDS: Final = 1.0


def tenant_capacity(budget: Budget, quantity: Quantity) -> int:
    """Return how much a tenant of this tier may have under way."""
    if quantity == "bytes":
        return budget.max_tenant_bytes
    return budget.max_tenant_pixels if quantity == "pixels" else budget.max_tenant_visual_tokens


def too_much(quantity: Quantity, name: str, limit: int, actual: int) -> MediaTotalTooLarge:
    """Return the error of a request that alone exceeds a capacity."""
    return MediaTotalTooLarge(
        f"The request's media come to {actual} {WORDS[quantity]} or more; at most {limit} may be under way at once.",
        limit_name=name,
        limit=limit,
        actual=actual,
    )


def house_full(what: str, name: str, limit: int, actual: int) -> HouseFull:
    """Return the error of a request that does not fit beside the others now."""
    return HouseFull(
        f"With this request {actual} {what} would be under way; at most {limit} may be. Try again shortly.",
        limit_name=name,
        limit=limit,
        actual=actual,
        retry_after_seconds=RETRY_AFTER_SECONDS,
    )
