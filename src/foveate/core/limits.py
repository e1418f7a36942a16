"""Limits that several packages must agree on."""

from __future__ import annotations

from typing import Final

SKELETON_BYTES_MAX: Final = 1024 * 1024
"""What a request body may hold besides its pictures. The gateway parses that much at once, and must not be held up by it."""

SKELETON_LIMIT: Final = "body_without_media_bytes"
"""How a refusal names that limit, which is no setting."""

SCHEME_CHARACTERS_MAX: Final = 64
"""A media URL's scheme ends within this many characters. What has no colon there is bare base64, where that is accepted."""

FETCH_WAITING_LIMIT: Final = "fetch.waiting_max"
"""The setting that a refusal names when too many transfers wait for their turn."""

ARENA_LIMIT: Final = "limits.arena_bytes_max"
"""The setting that a refusal for want of shared memory names."""
