"""A server with accounts and places of a test's own, and whether everything was given back."""

import dataclasses
from typing import Any

from foveate.journey.in_flight import InFlight
from foveate.journey.in_flight_limits import QUANTITIES
from foveate.journey.places import Places
from foveate.journey.service import Journey

HUGE = 10**12


def house(
    bytes_max: int = HUGE,
    pixels_max: int = HUGE,
    visual_tokens_max: int = HUGE,
    places: int = 64,
    waiting_max: int = 512,
) -> dict[str, Any]:
    """Accounts and places of these sizes."""
    return {
        "in_flight": InFlight(bytes_max=bytes_max, pixels_max=pixels_max, visual_tokens_max=visual_tokens_max),
        "multimodal_places": Places(places, waiting_max=waiting_max),
    }


def with_tools(service: Journey, **tools: Any) -> Journey:
    """The same server with these tools replaced."""
    return Journey(dataclasses.replace(service.tools, **tools), models=service.models)


def nothing_held(service: Journey) -> bool:
    """Whether every account and place was given back."""
    accounts, places = service.tools.in_flight, service.tools.multimodal_places
    used = [accounts.used(quantity) for quantity in QUANTITIES]
    return not any((*used, accounts.requests, accounts.tenants, places.taken, places.waiting, service.open_requests))


def decodes_begun(service: Journey) -> int:
    """Pictures whose work was begun: each looks for its model inputs first."""
    stats = service.tools.processor_cache.stats()
    return stats.hits + stats.misses
