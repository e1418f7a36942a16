"""An operator looks into the caches of a running server, and drops from them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import blake3
import httpx
import pytest
from tests.blackbox.conftest import SMALL
from tests.blackbox.origins import Origin, cacheable
from tests.blackbox.pictures import chat, data_url, encoded, image, one, user
from tests.blackbox.replies import content
from tests.blackbox.server import Server

ADMIN, PLAIN = (f"fov-test-key-{name}-0123456789" for name in ("admin", "plain"))
CHAT = "/v1/chat/completions"


@pytest.fixture(scope="module")
def operated(tmp_path_factory: pytest.TempPathFactory, web: Origin) -> Iterator[Server]:
    keys = f"ops:default:plain:{ADMIN}:admin,web:default:plain:{PLAIN}"
    fetch = ("--fetch-http-allowed", "--fetch-private-networks", "127.0.0.1/32", "--fetch-ports", str(web.port))
    directory = tmp_path_factory.mktemp("operated")
    flags = (*SMALL, *fetch, "--cache-media-bytes-max", "1MiB")
    made = Server(directory, *flags, forked=True, FOVEATE_AUTH__KEYS=keys)
    try:
        yield made
        made.stop()
    finally:
        made.kill_all()


def stages(reply: httpx.Response) -> set[str]:
    assert reply.status_code == 200, reply.text
    return {entry.split(";")[0] for entry in reply.headers["server-timing"].split(", ")}


def test_an_operator_sees_and_empties_the_caches(operated: Server) -> None:
    picture = encoded(one("red", "circle"))
    body = chat(user(image(data_url(picture)), "What is in this image?"))
    base = operated.base_url
    with (
        httpx.Client(base_url=base, timeout=120, headers={"authorization": f"Bearer {PLAIN}"}) as web,
        httpx.Client(base_url=base, timeout=120, headers={"x-api-key": ADMIN}) as ops,
    ):
        assert web.get("/admin/caches").status_code == 403
        assert web.delete("/admin/caches/encoder?version=x").status_code == 403
        assert httpx.get(f"{base}/admin/caches").status_code == 401

        def cached(cache: str) -> list[dict[str, Any]]:
            return list(ops.get(f"/admin/caches/{cache}/keys").json()["keys"])

        assert "vision_encode" in stages(web.post(CHAT, json=body))
        assert "vision_encode" not in stages(web.post(CHAT, json=body))
        report = ops.get("/admin/caches").json()
        assert (report["encoder"]["hits"], report["encoder"]["misses"], report["encoder"]["hit_ratio"]) == (1, 1, 0.5)
        assert (report["processor"]["hits"], report["processor"]["misses"]) == (0, 1)
        assert report["kv_prefix"]["requests"] == 2
        assert set(report["encoder"]["saved_ms"]) >= {"media_decode", "mm_processor", "vision_encode"}
        in_arena = operated.metrics().total("foveate_arena_used_bytes")
        assert report["encoder"]["bytes"] + report["processor"]["bytes"] == in_arena

        (embeddings,), (inputs,) = cached("encoder"), cached("processor")
        assert embeddings["digest"] == inputs["digest"] == blake3.blake3(picture).hexdigest()
        assert (embeddings["hits"], inputs["hits"]) == (1, 0)
        assert embeddings["bytes"] == report["encoder"]["bytes"]
        assert embeddings["encoder_version"] == report["encoder_version"]

        curve = ops.get("/admin/caches/encoder/curve").json()["advice"]
        assert (curve["seen"]["lookups"], curve["seen"]["hits"]) == (2, 1)
        assert curve["verdict"] == "too_early"

        dropped = ops.delete(f"/admin/caches/encoder/keys/{embeddings['name']}")
        assert dropped.json() == {"entries": 1, "bytes": embeddings["bytes"]}
        assert ops.delete(f"/admin/caches/encoder/keys/{embeddings['name']}").status_code == 404
        assert (cached("encoder"), len(cached("processor"))) == ([], 1)
        again = web.post(CHAT, json=body)
        assert "vision_encode" in stages(again)
        assert "media_decode" not in stages(again)
        assert "red circle" in content(again)

        for cache in ("encoder", "processor"):
            version = {"version": report["processor_version"]}
            assert ops.delete(f"/admin/caches/{cache}", params=version).json()["entries"] == 1
        assert operated.metrics().total("foveate_arena_used_bytes") == 0
        assert stages(web.post(CHAT, json=body)) >= {"media_decode", "mm_processor", "vision_encode"}


def test_an_operator_sees_and_empties_the_media_cache(operated: Server, web: Origin) -> None:
    picture, path = encoded(one("blue", "circle")), "/operated.png"
    web.pages[path] = cacheable(picture, ("Cache-Control", "max-age=600"))
    body = chat(user(image(f"{web.url}{path}?signature=secret"), "What is in this image?"))
    base, keys = operated.base_url, "/admin/caches/media/keys"
    with (
        httpx.Client(base_url=base, timeout=120, headers={"authorization": f"Bearer {PLAIN}"}) as client,
        httpx.Client(base_url=base, timeout=120, headers={"x-api-key": ADMIN}) as ops,
    ):
        assert client.get(keys).status_code == 403
        for _ in range(3):
            assert content(client.post(CHAT, json=body)) == "A blue circle."
        assert web.gets[path] == 1
        priced = client.post("/v1/estimate", json=body).json()["items"][0]
        assert (priced["media_cached"], priced["encoder_cached"]) == (True, True)

        reply = ops.get(keys)
        assert "secret" not in reply.text
        (medium,) = reply.json()["media"]
        assert (medium["host"], medium["path"], medium["hits"]) == ("127.0.0.1", path, 3)
        assert medium["digest"] == blake3.blake3(picture).hexdigest()
        assert 0 < medium["fresh_seconds"] <= 600
        report = ops.get("/admin/caches").json()["media"]
        assert (report["entries"], report["bytes"], report["hits"], report["misses"]) == (1, medium["bytes"], 3, 1)
        assert report["saved_ms"]["media_fetch"] > 0
        metrics = operated.metrics()
        assert metrics.total("foveate_media_cache_hits_total") == 3
        assert metrics.total("foveate_media_cache_bytes") == medium["bytes"]
        assert metrics.total("foveate_fetches_total") == 1

        for gets, drop in ((2, f"{keys}/{medium['name']}"), (3, "/admin/caches/media?host=127.0.0.1")):
            assert ops.delete(drop).json() == {"entries": 1, "bytes": medium["bytes"]}
            assert ops.get(keys).json() == {"entries": 0, "media": []}
            assert content(client.post(CHAT, json=body)) == "A blue circle."
            assert web.gets[path] == gets
