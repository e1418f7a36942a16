"""The contract as the assembled server publishes it, and a reload through it."""

import pytest

from foveate.core.budget import ANYONE, Budget
from foveate.core.errors import NotPermitted
from foveate.journey.service import Journey

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_the_terms_are_those_of_the_caller(service: Journey) -> None:
    terms = service.terms(service.caller(None, None))
    assert (terms.tenant, terms.budget) == (ANYONE, Budget())
    assert {"jpeg", "png"} <= set(terms.image_formats)
    assert "mp4" in terms.video_formats
    assert terms.urls.schemes == ("https", "http", "data")
    assert terms.urls.hosts is None
    assert terms.body_bytes_max == service.body_bytes_max
    with pytest.raises(NotPermitted):
        service.caller(None, "batch")


async def test_a_reload_that_finds_nothing_new_changes_nothing(service: Journey) -> None:
    before = service.rules()
    done = await service.reload()
    assert (done.tiers, done.keys, done.changed, done.restart_needed) == (("default",), 0, (), ())
    assert service.rules().tiers == before.tiers
    assert service.rules().read_at >= before.read_at
