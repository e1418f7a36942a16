"""The contract as it is published."""

from __future__ import annotations

import msgspec
from tests.unit.api.asking import client
from tests.unit.api.fake import FakeService

from foveate.api.budget import REFUSALS, BudgetReply
from foveate.core.budget import FIELDS, Budget, Caller

KEY = "k"
TIER = Budget(
    tier="batch",
    max_images=9,
    max_image_width=2048,
    max_fetch_seconds=2.5,
    video_sampling="fps",
    video_fps=0.5,
    count_repeats=False,
    on_excess={"max_image_width": "fit"},
)


async def test_the_whole_contract() -> None:
    service = FakeService(callers={KEY: Caller("ada", TIER)}, hosts=("cdn.example",))
    async with client(service) as http:
        answer = await http.get("/v1/budget", headers={"x-api-key": KEY})
    assert answer.headers["content-type"] == "application/json"
    told = answer.json()
    limits = told.pop("limits")
    assert told == {
        "tier": "batch",
        "tenant": "ada",
        "video_sampling": "fps",
        "video_fps": 0.5,
        "count_repeats": False,
        "body_bytes_max": 1 << 20,
        "server": {"media.decode_pixels_max": 128_000_000},
        "not_enforced": [],
        "formats": {"image": ["jpeg", "png"], "video": ["mp4"]},
        "urls": {"schemes": ["https", "data"], "ports": [80, 443], "hosts": ["cdn.example"]},
    }
    assert list(limits) == [field.name for field in FIELDS]
    assert limits["max_images"] == {
        "value": 9, "unit": "pictures", "on_excess": "reject", "status": 400, "code": "too_many_images",
        "help": "Pictures of one request.",
    }  # fmt: skip
    assert limits["max_image_width"]["on_excess"] == "fit"
    assert limits["max_image_height"]["on_excess"] == "reject"
    assert limits["max_fetch_seconds"]["value"] == 2.5
    assert limits["max_tenant_bytes"]["status"] == 429


async def test_the_tier_that_was_asked_for() -> None:
    service = FakeService(callers={KEY: Caller("ada", TIER, admin=True)})
    async with client(service) as http:
        told = (await http.get("/v1/budget", headers={"x-api-key": KEY, "x-foveate-tier": "other"})).json()
        assert (await http.get("/v1/budget")).status_code == 401
    assert (told["tier"], told["urls"]["hosts"]) == ("other", None)
    msgspec.convert(told, BudgetReply)


def test_every_limit_says_what_it_refuses_with() -> None:
    assert set(REFUSALS) == {field.name for field in FIELDS}
