"""Step 2: may this address be contacted at all? Pure; no I/O.

The fetcher asks again on every redirect hop and of every resolved address.
"""

from __future__ import annotations

from foveate.core.media import UrlRef
from foveate.journey.job import Item, Job
from foveate.journey.tools import Tools


async def allow(item: Item, job: Job, tools: Tools) -> None:
    """Parse a media URL under the policy. Raises UrlInvalid, UrlRefused. Inline media pass."""
    if isinstance(item.part.ref, UrlRef):
        item.url = job.rules.policy.parse(item.part.ref.url)
