"""The caches' admin routes: what they pass on, what they refuse, and that the document has them."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from tests.unit.api.fake import FakeService, serving
from tests.unit.api.fake_admin import HOT, MEDIUM
from tests.unit.api.test_admin import ADMIN, with_keys


@asynccontextmanager
async def asking() -> AsyncIterator[tuple[httpx.AsyncClient, list[tuple[Any, ...]]]]:
    service: FakeService = with_keys()
    async with (
        serving(service) as server,
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{server.port}", headers=ADMIN) as client,
    ):
        yield client, service.cached.asked


async def test_the_four_caches_are_told_apart() -> None:
    async with asking() as (client, _):
        report = (await client.get("/admin/caches")).json()
    caches = {"processor", "encoder", "media", "kv_prefix"}
    assert set(report) == {*caches, "bad_media", "processor_version", "encoder_version"}
    assert (report["media"]["unchanged"], report["media"]["not_kept"]) == (1, {"no_store": 2})
    assert report["media"]["saved_ms"] == {"media_fetch": 7.0}
    assert report["encoder"]["hit_ratio"] == 0.75
    assert report["encoder"]["evictions"] == {"capacity": 2}
    assert report["encoder"]["saved_ms"] == {"vision_encode": 9.0}
    assert report["kv_prefix"] == {"requests": 4, "hits": 1, "prompt_tokens": 100, "cached_tokens": 25}


async def test_keys_are_listed_up_to_a_limit() -> None:
    async with asking() as (client, asked):
        reply = (await client.get("/admin/caches/encoder/keys")).json()
        assert reply["keys"][0]["name"] == HOT.name
        assert reply["keys"][0]["options"]["pixels_max"] == 0
        assert (await client.get("/admin/caches/processor/keys", params={"limit": "1000"})).status_code == 200
        assert asked == [("encoder", 50), ("processor", 1000)]
        for limit in ("0", "1001", "-1", "1e3", "", " 5", "9" * 5000, "٣"):
            refused = await client.get("/admin/caches/encoder/keys", params={"limit": limit})
            assert refused.status_code == 400, limit
            assert refused.json()["error"]["param"] == "limit"


async def test_one_key_or_one_version_is_dropped() -> None:
    async with asking() as (client, asked):
        dropped = await client.delete(f"/admin/caches/encoder/keys/{HOT.name}")
        assert dropped.json() == {"entries": 1, "bytes": 4096}
        missing = await client.delete("/admin/caches/encoder/keys/nothing")
        assert missing.status_code == 404
        assert missing.json()["error"]["code"] == "cache_key_not_found"
        assert (await client.delete("/admin/caches/processor", params={"version": "v1"})).json()["entries"] == 0
        assert asked == [("encoder", HOT.name), ("encoder", "nothing"), ("processor", "v1")]
        for query in ("", "?version=", "?limit=3"):
            refused = await client.delete(f"/admin/caches/encoder{query}")
            assert refused.status_code == 400, query
            assert refused.json()["error"]["param"] == "version"
        assert len(asked) == 3


async def test_media_are_listed_by_where_they_came_from_and_dropped() -> None:
    async with asking() as (client, asked):
        (medium,) = (await client.get("/admin/caches/media/keys", params={"limit": "3"})).json()["media"]
        assert (medium["host"], medium["path"], medium["fresh_seconds"]) == ("img.example", "/a.png", 40.0)
        dropped = await client.delete(f"/admin/caches/media/keys/{MEDIUM.name}")
        assert dropped.json() == {"entries": 1, "bytes": 4096}
        missing = await client.delete("/admin/caches/media/keys/nothing")
        assert missing.json()["error"]["code"] == "cache_key_not_found"
        by_host = await client.delete("/admin/caches/media", params={"host": "img.example"})
        assert by_host.json()["entries"] == 2
        assert asked == [("media", 3), ("media", MEDIUM.name), ("media", "nothing"), ("media", "img.example")]
        for query, param in (("", "host"), ("?version=v", "host"), ("/keys?limit=0", "limit")):
            refused = await client.request("GET" if "keys" in query else "DELETE", f"/admin/caches/media{query}")
            assert refused.status_code == 400
            assert refused.json()["error"]["param"] == param
        # It has no curve: capacity does not decide how often an origin wants to be asked.
        assert (await client.get("/admin/caches/media/curve")).status_code == 404
        assert len(asked) == 4


async def test_the_curve_says_what_it_knows() -> None:
    async with asking() as (client, _):
        curve = (await client.get("/admin/caches/encoder/curve")).json()
    assert curve["cache"] == "encoder"
    assert curve["advice"]["verdict"] == "too_early"
    assert [point["multiple"] for point in curve["advice"]["points"]] == [0.25, 0.5, 1.0, 2.0, 4.0, 16.0, None]


@pytest.mark.parametrize(
    ("method", "path"),
    [("GET", "keys"), ("GET", "curve"), ("DELETE", "keys/x"), ("DELETE", "?version=v")],
)
async def test_no_other_cache_is_known_here(method: str, path: str) -> None:
    async with asking() as (client, asked):
        for cache in ("kv_prefix", "Encoder", "all"):
            reply = await client.request(method, f"/admin/caches/{cache}/{path}".replace("/?", "?"))
            assert reply.status_code == 404
            assert reply.json()["error"]["code"] == "not_found"
        assert asked == []


async def test_the_document_has_them() -> None:
    async with asking() as (client, _):
        document = (await client.get("/openapi.json")).json()
    keys = document["paths"]["/admin/caches/{cache}/keys"]["get"]
    assert {("cache", "path"), ("limit", "query")} <= {(place["name"], place["in"]) for place in keys["parameters"]}
    assert {"200", "400", "401", "403", "404"} <= set(keys["responses"])
    assert {
        "CachesReport",
        "CacheReport",
        "CachedKeys",
        "CachedKey",
        "CachedMedia",
        "MediaCacheReport",
        "Curve",
        "Advice",
        "Dropped",
        "KvPrefix",
    } <= set(document["components"]["schemas"])
