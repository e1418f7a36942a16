"""Budget tiers as settings: what the media of one request may cost, by name.

The fields are those of :class:`foveate.core.budget.Budget`, so that a limit is declared once for settings, API and docs. A tier states what
it changes; the rest it inherits from the tier ``default``, and that one from the built-in defaults.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec
from pydantic import BeforeValidator, create_model

from foveate.core.budget import DEFAULT_TIER, FIELDS, Budget, OnExcess
from foveate.settings.declare import Bytes, Section, setting

FITTING: Final = tuple(field.name for field in FIELDS if field.fits)
"""Fields that may be named in ``on_excess``."""

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.\-]{0,63}")
_LOWEST: Final = {"pixels": 1, "seconds": 0.1, "bytes": 1024}
_OPTIONS: Final = {
    "video_sampling": "Which frames of a video are taken: uniform (spread over its length) or fps (video_fps a second).",
    "video_fps": "Frames taken a second where video_sampling is fps.",
    "count_repeats": "Whether a picture that comes again, by content, counts again: text turns of a conversation resend all.",
    "on_excess": "What is made to fit instead of being refused: fit, or field=fit,… (in a file a mapping). "
    f"Can fit: {', '.join(FITTING)}.",
}


def _parse_on_excess(value: object) -> object:
    """Return field → reject|fit from one word for all fields that can fit, from ``field=fit,…``, or from a mapping."""
    if isinstance(value, str) and "=" not in value:
        if value not in ("reject", "fit"):
            raise ValueError(f"expected reject, fit, or fields with one of them.{_near(value, ('reject', 'fit'))}")
        return dict.fromkeys(FITTING, value)
    if isinstance(value, str):
        value = dict(_assignment(entry) for entry in value.split(",") if entry.strip())
    if isinstance(value, Mapping):
        for name in value:
            if name not in FITTING:
                if not any(name == field.name for field in FIELDS) and (near := _near(str(name), FITTING)):
                    raise ValueError(f"there is no {name!r} to make fit.{near}")
                raise ValueError(f"{name!r} cannot be made to fit; these can: {', '.join(FITTING)}")
    elif value is not None:
        raise ValueError("expected reject, fit, or fields with one of them")
    return value


def _near(text: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(text, list(known), n=1, cutoff=0.5)
    return f" Did you mean {close[0]}?" if close else ""


def _assignment(text: str) -> tuple[str, str]:
    name, _, choice = text.partition("=")
    return name.strip(), choice.strip()


class TierSettings(Section):
    """One tier. ``model_fields_set`` says what it states itself."""


def _fields() -> dict[str, Any]:
    helps = {field.name: field for field in FIELDS}
    made: dict[str, Any] = {}
    for field in msgspec.structs.fields(Budget):
        if field.name == "tier":
            continue
        flag = f"--{field.name}".replace("_", "-")
        if field.name in helps:
            known = helps[field.name]
            type_ = Bytes if known.unit == "bytes" else field.type
            low: float | None = _LOWEST.get(known.unit, 0)
            made[field.name] = (type_, setting(field.default, known.help, flag=flag, low=low, reloads=True))
        elif field.name == "on_excess":
            type_ = Annotated[dict[str, OnExcess], BeforeValidator(_parse_on_excess)]
            made[field.name] = (type_, setting({}, _OPTIONS[field.name], flag=flag, reloads=True))
        else:
            low = 0.01 if field.type is float else None
            made[field.name] = (
                field.type,
                setting(field.default, _OPTIONS[field.name], flag=flag, low=low, reloads=True),
            )
    return made


if TYPE_CHECKING:
    Tier = TierSettings
else:
    Tier = create_model("Tier", __base__=TierSettings, **_fields())


def parse_tiers(value: object) -> object:
    """Give tiers that state nothing (``name:`` in YAML), and a missing ``default``, an empty mapping. Raises ValueError for a bad name."""
    if value is None:
        value = {}
    if not isinstance(value, Mapping):
        return value
    for name, stated in value.items():
        # A tier may be called what it is about (``max_images: {max_images: 64}``); a limit without a tier is a mistake.
        if name in Tier.model_fields and (not isinstance(stated, Mapping) or name == "on_excess"):
            raise ValueError(
                f"{name} stands where a tier's name belongs. Did you mean multimodal_budget.{DEFAULT_TIER}.{name}?"
            )
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise ValueError(f"{name!r} is not a tier's name: letters, digits, _ . and -, at most 64, no leading sign")
    return {DEFAULT_TIER: {}} | {name: {} if tier is None else tier for name, tier in value.items()}


Tiers = Annotated[dict[str, Tier], BeforeValidator(parse_tiers)]


def budgets(tiers: Mapping[str, TierSettings]) -> dict[str, Budget]:
    """Return each tier with every field filled in; a field of ``on_excess`` is inherited on its own."""
    default = tiers.get(DEFAULT_TIER) or Tier()
    made: dict[str, Budget] = {}
    for name in dict.fromkeys((DEFAULT_TIER, *tiers)):
        stated = _stated(default) | _stated(tiers.get(name, default))
        stated["on_excess"] = _stated(default).get("on_excess", {}) | stated.get("on_excess", {})
        made[name] = Budget(tier=name, **stated)
    return made


def _stated(tier: TierSettings) -> dict[str, Any]:
    return {name: getattr(tier, name) for name in tier.model_fields_set}
