"""Settings as one mapping from dotted key to value, so that two readings compare."""

from __future__ import annotations

from foveate.settings.declare import Section
from foveate.settings.sources import BUDGET, Settings, declared
from foveate.settings.tiers import budgets


def flat(settings: Settings) -> dict[str, object]:
    """Return every setting by its key; a tier is one value, with every field filled in (:class:`foveate.core.budget.Budget`)."""
    values: dict[str, object] = {}
    for section in Settings.model_fields:
        if section == BUDGET:
            values |= {f"{BUDGET}.{name}": tier for name, tier in budgets(settings.multimodal_budget).items()}
        else:
            group = getattr(settings, section)
            for name in type(group).model_fields:
                value = getattr(group, name)
                below = value.model_dump() if isinstance(value, Section) else None
                values |= {f"{section}.{name}": value} if below is None else _named(f"{section}.{name}", below)
    return values


def _named(prefix: str, values: dict[str, object]) -> dict[str, object]:
    return {f"{prefix}.{name}": value for name, value in values.items()}


def restart_keys() -> frozenset[str]:
    """Return the keys that a reload does not bring into force."""
    return frozenset(entry.key for entry in declared() if not entry.reloads)
