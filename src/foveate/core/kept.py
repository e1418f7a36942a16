"""Words for what outlives the process."""

from __future__ import annotations

from typing import Final, Literal, get_args

SkipReason = Literal["damaged", "truncated", "foreign", "format", "version", "scope", "capacity", "time"]
SKIP_REASONS: Final[tuple[SkipReason, ...]] = get_args(SkipReason)
"""Why what was kept is not used. ``foreign``: not such a file, or not ours. ``format``: of another release. ``version``: of another
processor, encoder, software or device. ``scope``: of tenants that were kept apart and are not now, or the reverse.
"""
