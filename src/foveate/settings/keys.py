"""API keys as settings: the keys file, and ``auth.keys`` for a few keys without a file.

A keys file is a list, in YAML or JSON::

    - tenant: acme
      tier: trusted_batch_job       # the tier of its requests; default: default
      sha256: "9f86d0…"             # of the key, hexadecimal
      may_use: [default]            # tiers that a request may ask for by X-Foveate-Tier
      admin: false                  # may it use /admin

``auth.keys`` has the same as text: ``acme:trusted_batch_job:sha256:9f86d0…:may_use=default+night:admin``. ``plain:KEY`` instead of
``sha256:HEX`` is taken from the environment only, where other users of the machine do not see it, and is hashed at once. No error text
holds a key or a digest.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Sequence
from typing import Any, Final

from pydantic import ValidationError, field_validator

from foveate.core.budget import ANYONE, DEFAULT_TIER, TIER_HEADER
from foveate.core.errors import StartupError
from foveate.core.keys import ApiKey, digest, key_fault
from foveate.settings.declare import Section, setting
from foveate.settings.file import read_file
from foveate.settings.sections import AuthSettings

NAME_PATTERN: Final = r"^[A-Za-z0-9][A-Za-z0-9_.\-]{0,63}$"


class KeyEntry(Section):
    """One entry of a keys file."""

    tenant: str = setting(
        ..., "Whose key it is; limits per tenant count all of its keys together.", pattern=NAME_PATTERN
    )
    tier: str = setting(DEFAULT_TIER, "Tier of its requests.")
    sha256: str = setting(..., "SHA-256 of the key, hexadecimal.")
    may_use: tuple[str, ...] = setting((), f"Tiers that a request may ask for by {TIER_HEADER}.")
    admin: bool = setting(False, "Whether it may use the admin API.")

    @field_validator("tenant")
    @classmethod
    def _not_anyone(cls, value: str) -> str:
        if value == ANYONE:
            raise ValueError(f"{ANYONE!r} is the tenant of requests on a server without keys")
        return value

    @field_validator("sha256")
    @classmethod
    def _hexadecimal(cls, value: str) -> str:
        value = value.lower()
        if not re.fullmatch("[0-9a-f]{64}", value):
            raise ValueError("it must be 64 hexadecimal digits (foveate keys hash prints them)")
        return value


def read_keys(settings: AuthSettings, tiers: Collection[str]) -> tuple[ApiKey, ...]:
    """Return all configured keys, checked against ``tiers`` and each other. Raises StartupError that names the entry."""
    entries: list[tuple[str, KeyEntry]] = []
    if settings.keys_file is not None:
        entries += _from_file(settings.keys_file)
    for number, text in enumerate(settings.keys, 1):
        where = f"auth.keys, entry {number}"
        entries.append((where, key_entry(_fields(text, where), where)))
    seen: dict[str, str] = {}
    for where, entry in entries:
        for tier in (entry.tier, *entry.may_use):
            if tier not in tiers:
                close = difflib.get_close_matches(tier, sorted(tiers), n=1, cutoff=0.5)
                hint = f"Did you mean {close[0]}?" if close else f"There are: {', '.join(sorted(tiers))}."
                raise StartupError(f"{where} (tenant {entry.tenant}): there is no tier {tier!r}. {hint}")
        if entry.sha256 in seen:
            raise StartupError(f"{where} (tenant {entry.tenant}) has the same key as {seen[entry.sha256]}.")
        seen[entry.sha256] = where
    return tuple(ApiKey(**entry.model_dump()) for _, entry in entries)


def hashed(keys: Sequence[str], *, plain_allowed: bool) -> tuple[str, ...]:
    """Return the entries of ``auth.keys`` with each plain key replaced by its digest. Raises StartupError."""
    made: list[str] = []
    for number, text in enumerate(keys, 1):
        where = f"auth.keys, entry {number}"
        steps = text.split(":")
        if len(steps) > 3 and steps[2] == "plain":
            if not plain_allowed:
                raise StartupError(
                    f"{where}: a plain key is taken from the environment only (FOVEATE_AUTH__KEYS); flags show in the list of processes "
                    "and files are copied. Give its hash: foveate keys hash."
                )
            fault = key_fault(steps[3])
            if fault is not None:
                raise StartupError(f"{where}: {fault}.")
            steps[2:4] = ["sha256", digest(steps[3])]
        made.append(":".join(steps))
    return tuple(made)


def _from_file(path: str) -> list[tuple[str, KeyEntry]]:
    found = read_file(path, f"The keys file {path!r} (auth.keys_file)", quotable=KeyEntry.model_fields)
    if not isinstance(found, list) or not found:
        # An empty file would open the server to everybody.
        raise StartupError(
            f"The keys file {path!r} must hold a list of at least one key. To need no key, unset auth.keys_file."
        )
    places = [f"The keys file {path!r}, entry {number}" for number in range(1, len(found) + 1)]
    return [(where, key_entry(entry, where)) for where, entry in zip(places, found, strict=True)]


def _fields(text: str, where: str) -> dict[str, Any]:
    steps = text.split(":")
    if len(steps) < 4 or steps[2] != "sha256":
        raise StartupError(
            f"{where}: write TENANT:TIER:sha256:HEX, or TENANT:TIER:plain:KEY in the environment; then :admin or :may_use=TIER+TIER."
        )
    tenant, tier, _, value, *options = steps
    fields: dict[str, Any] = {"tenant": tenant, "tier": tier or DEFAULT_TIER, "sha256": value}
    for option in options:
        name, sign, tiers = option.partition("=")
        if option == "admin":
            fields["admin"] = True
        elif name == "may_use" and sign:
            fields["may_use"] = tuple(tier for tier in tiers.split("+") if tier)
        else:
            raise StartupError(f"{where}: what follows the key may be :admin or :may_use=TIER+TIER only.")
    return fields


def key_entry(fields: object, where: str) -> KeyEntry:
    """Return a valid entry. Raises StartupError that begins with ``where`` and says what is wrong."""
    try:
        return KeyEntry.model_validate(fields)
    except ValidationError as error:
        first = error.errors()[0]
        name = str(first["loc"][0]) if first["loc"] else "the entry"
        if first["type"] == "extra_forbidden":
            close = difflib.get_close_matches(name, KeyEntry.model_fields, n=1, cutoff=0.5)
            hint = f"Did you mean {close[0]}?" if close else f"There are: {', '.join(KeyEntry.model_fields)}."
            raise StartupError(f"{where}: there is no {name!r}. {hint}") from None
        what = first["msg"].removeprefix("Value error, ").rstrip(".")
        raise StartupError(f"{where}: {name} is wrong: {what[0].lower()}{what[1:]}.") from None
