"""The published contract against a running server: each limit of ``/v1/budget`` with a request just within it and one just beyond, and
``/v1/estimate`` against what the same request then costs.

Each limit has a tier of its own name in which only that limit is small. What requests are made of comes from the published value.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import httpx
import openai
import pytest
import yaml
from PIL.PngImagePlugin import PngInfo
from tests.blackbox.conftest import SMALL
from tests.blackbox.origins import Origin, body, held, redirect
from tests.blackbox.pictures import chat, data_url, encoded, image, one, user
from tests.blackbox.replies import content, refused, stream
from tests.blackbox.server import Server, eventually
from tests.clips import clip, colour_of

CHAT: Final = "/v1/chat/completions"
KEY: Final = "contract-test-0123456789"
LIMITS: Final[dict[str, int | float]] = {
    "max_images": 2,
    "max_image_width": 100,
    "max_image_height": 100,
    "max_image_pixels": 10_000,
    "max_total_pixels": 20_000,
    "max_item_bytes": 4_000,
    "max_total_bytes": 8_000,
    "max_videos": 1,
    "max_video_frames": 4,
    "max_video_seconds": 2.0,
    "max_visual_tokens": 128,
    "max_fetch_seconds": 1.0,
    "max_redirects": 1,
    "max_tenant_requests": 1,
    "max_tenant_waiting": 0,
    "max_tenant_bytes": 8_000,
    "max_tenant_pixels": 20_000,
    "max_tenant_visual_tokens": 128,
}
FIT: Final = {"max_image_width": 100, "max_video_frames": 4, "on_excess": "fit"}
Medium = str | dict[str, Any]
"""A picture's URL, or a content part."""


@pytest.fixture(scope="module")
def contract(tmp_path_factory: pytest.TempPathFactory, web: Origin) -> Iterator[Server]:
    """A server with a tier for each limit, one that makes everything fit, and one key that may use them all."""
    directory = tmp_path_factory.mktemp("contract")
    tiers = {"default": {"max_videos": 8}, **{name: {name: value} for name, value in LIMITS.items()}, "fit": FIT}
    settings = {
        "multimodal_budget": tiers,
        "limits": {"multimodal_requests_max": 2},
        "fetch": {"http_allowed": True, "private_networks": ["127.0.0.1/32"], "ports": [web.port]},
    }
    file = directory / "foveate.yaml"
    file.write_text(yaml.safe_dump(settings))
    may_use = "+".join(name for name in tiers if name != "default")
    key = f"acme:default:plain:{KEY}:may_use={may_use}"
    made = Server(directory / "server", *SMALL, "--config", str(file), forked=True, FOVEATE_AUTH__KEYS=key)
    try:
        yield made
        made.stop()
    finally:
        made.kill_all()


class Asker:
    """A client of one tier."""

    def __init__(self, server: Server, tier: str) -> None:
        self.server = server
        self.headers = {"Authorization": f"Bearer {KEY}", **({"X-Foveate-Tier": tier} if tier != "default" else {})}
        self.http = httpx.Client(base_url=server.base_url, timeout=60, headers=self.headers)

    def limit(self, name: str) -> dict[str, Any]:
        return dict(self.http.get("/v1/budget").json()["limits"][name])

    def ask(self, *media: Medium) -> httpx.Response:
        return self.http.post(CHAT, json=asking(*media))

    def estimate(self, *media: Medium) -> dict[str, Any]:
        response = self.http.post("/v1/estimate", json=asking(*media))
        assert response.status_code == 200, response.text
        return dict(response.json())


@pytest.fixture
def asker(contract: Server) -> Callable[[str], Asker]:
    return lambda tier: Asker(contract, tier)


def asking(*media: Medium) -> dict[str, Any]:
    """Return a body with text first, so that the index of a part is not that of a picture."""
    return chat(user("Look.", *[image(one_) if isinstance(one_, str) else one_ for one_ in media]), max_tokens=2)


def video(frames: int = 10, **fields: Any) -> dict[str, Any]:
    """Return a video of ten frames a second."""
    url = data_url(clip([colour_of(number) for number in range(frames)], fps=10), "video/mp4")
    return {"type": "video_url", "video_url": {"url": url, **fields}}


def sized(width: int, height: int, seed: int = 0) -> str:
    return data_url(encoded(one("red", "circle", seed=seed, size=(width, height))))


def weighing(size: int, seed: int = 0) -> str:
    """Return the URL of a picture of exactly ``size`` bytes."""
    return data_url(_weighing(size, seed))


def _weighing(size: int, seed: int) -> bytes:
    picture = one("blue", "square", seed=seed, size=(64, 64))
    for padding in (0, size - len(_with_comment(picture, 0))):
        data = _with_comment(picture, padding)
    assert len(data) == size
    return data


def _with_comment(picture: Any, padding: int) -> bytes:
    comment = PngInfo()
    comment.add_text("Comment", "x" * padding)
    return encoded(picture, pnginfo=comment)


def tokens(count: int, first: int) -> list[str]:
    """Return pictures that cost ``count`` visual tokens together; each of 224 by 224 pixels costs 64."""
    return [sized(224, 224, seed) for seed in range(first, first + count // 64)]


Media = tuple[Sequence[Medium], Sequence[Medium], float, int]
"""Media within the limit, media beyond it, how much they have, and which of them is the first beyond it (-1: any)."""
BEYOND: Final[dict[str, Callable[[int], Media]]] = {
    "max_images": lambda v: ([sized(64, 64, n) for n in range(v)], [sized(64, 64, n) for n in range(v + 1)], v + 1, v),
    "max_image_width": lambda v: ([sized(v, 60)], [sized(60, 60), sized(v + 1, 60)], v + 1, 1),
    "max_image_height": lambda v: ([sized(60, v)], [sized(60, 60), sized(60, v + 1)], v + 1, 1),
    "max_image_pixels": lambda v: ([sized(v // 100, 100)], [sized(60, 60), sized(v // 100, 101)], v + v // 100, 1),
    "max_total_pixels": lambda v: (
        [sized(v // 200, 100, n) for n in (0, 1)],
        [sized(v // 200, 100), sized(v // 200, 101)],
        v + v // 200,
        -1,
    ),
    "max_item_bytes": lambda v: ([weighing(v)], [sized(60, 60), weighing(v + 1)], v + 1, 1),
    "max_total_bytes": lambda v: (
        [weighing(v // 2, n) for n in (0, 1)],
        [weighing(v // 2), weighing(v // 2 + 1)],
        v + 1,
        -1,
    ),
    "max_videos": lambda v: ([video(5)] * v, [video(5)] * (v + 1), v + 1, v),
    "max_video_frames": lambda v: ([video(10, num_frames=v)], [video(2), video(10, num_frames=v + 1)], v + 1, 1),
    "max_video_seconds": lambda v: ([video(int(10 * v))], [video(5), video(int(10 * v) + 5)], v + 0.5, 1),
    "max_visual_tokens": lambda v: (tokens(v, 0), tokens(v + 64, 0), v + 64, -1),
    "max_tenant_bytes": lambda v: (
        [weighing(v // 2, n) for n in (0, 1)],
        [weighing(v // 2), weighing(v // 2 + 1)],
        v + 1,
        -1,
    ),
    "max_tenant_pixels": lambda v: (
        [sized(v // 200, 100, n) for n in (0, 1)],
        [sized(v // 200, 100), sized(v // 200, 101)],
        v + v // 200,
        -1,
    ),
    "max_tenant_visual_tokens": lambda v: (tokens(v, 0), tokens(v + 64, 0), v + 64, -1),
}


@pytest.mark.parametrize("name", BEYOND)
def test_what_is_published_is_what_is_enforced(asker: Callable[[str], Asker], name: str) -> None:
    client = asker(name)
    published = client.limit(name)
    assert published["value"] == LIMITS[name]
    within, beyond, actual, at = BEYOND[name](published["value"])

    estimate = client.estimate(*within)
    assert (estimate["admitted"], estimate["refusals"], estimate["tier"]) == (True, [], name)
    assert content(client.ask(*within)) is not None

    estimate = client.estimate(*beyond)
    # A tenant's limit that one request exceeds by itself can never be met: it is a size then, not a full house.
    never = name.startswith("max_tenant_")
    error = refused(client.ask(*beyond), 413 if never else published["status"])
    assert error["code"] == ("media_total_too_large" if never else published["code"])
    assert (error["limit_name"], error["limit"], error["actual"]) == (name, published["value"], actual)
    if at >= 0:
        assert error["part"] == at + 1
        assert error["param"].startswith(f"messages[0].content[{at + 1}]")
    assert estimate["admitted"] is False
    assert _without_place(error) in [_without_place(told) for told in estimate["refusals"]]


def _without_place(error: dict[str, Any]) -> dict[str, Any]:
    """Which of several pictures makes a total too much depends on which is known last."""
    return {name: value for name, value in error.items() if name not in ("part", "param")}


def test_redirects(asker: Callable[[str], Asker], web: Origin) -> None:
    client = asker("max_redirects")
    limit = client.limit("max_redirects")
    web.pages["/contract/0"] = body(encoded(one("red", "circle")))
    for hop in range(1, limit["value"] + 2):
        web.pages[f"/contract/{hop}"] = redirect(f"{web.url}/contract/{hop - 1}")
    assert content(client.ask(f"{web.url}/contract/{limit['value']}")) is not None
    error = refused(client.ask(f"{web.url}/contract/{limit['value'] + 1}"), limit["status"])
    assert (error["code"], error["limit_name"]) == (limit["code"], "max_redirects")
    assert (error["limit"], error["actual"], error["part"]) == (limit["value"], limit["value"] + 1, 1)


def test_fetch_seconds(asker: Callable[[str], Asker], web: Origin) -> None:
    client = asker("max_fetch_seconds")
    limit = client.limit("max_fetch_seconds")
    gate = threading.Event()
    web.pages["/contract/quick"] = body(encoded(one("red", "circle")))
    web.pages["/contract/never"] = held(gate, web.pages["/contract/quick"])
    try:
        assert content(client.ask(f"{web.url}/contract/quick")) is not None
        response = client.ask(f"{web.url}/contract/never")
    finally:
        gate.set()
    error = response.json()["error"]
    assert (response.status_code, error["code"]) == (limit["status"], limit["code"])
    assert (error["limit_name"], error["limit"], error["part"]) == ("max_fetch_seconds", limit["value"], 1)
    assert error["actual"] >= limit["value"]


@contextmanager
def under_way(client: Asker, web: Origin, count: int, sizes: Sequence[int] = ()) -> Iterator[None]:
    """Keep requests of this client waiting for a picture, with others of these sizes fetched already; afterwards they are answered."""
    gate = threading.Event()
    for number in range(count):
        web.pages[f"/contract/held{number}"] = held(gate, body(encoded(one("red", "circle", seed=number))))
    others = [f"{web.url}/contract/weighing{size}" for size in sizes]
    for size in sizes:
        web.pages[f"/contract/weighing{size}"] = body(_weighing(size, size))
    before = sum(web.gets[f"/contract/held{number}"] for number in range(count))
    with ThreadPoolExecutor(count) as pool:
        waiting = [pool.submit(client.ask, *others, f"{web.url}/contract/held{number}") for number in range(count)]
        try:
            eventually(
                "the requests to reach the origin",
                lambda: sum(web.gets[f"/contract/held{number}"] for number in range(count)) >= before + count,
            )
            eventually(
                "what was fetched to count",
                lambda: client.server.metrics().total("foveate_in_flight_media_bytes") >= sum(sizes),
            )
            yield
        finally:
            gate.set()
        assert all(content(answer.result()) is not None for answer in waiting)


@pytest.mark.parametrize(
    ("name", "count", "shares"),
    [("max_tenant_requests", 1, ()), ("max_tenant_waiting", 2, ()), ("max_tenant_bytes", 1, (0.4, 0.3))],
)
def test_a_tenants_full_house(
    asker: Callable[[str], Asker], web: Origin, name: str, count: int, shares: tuple[float, ...]
) -> None:
    """``shares``: what the request under way has of the limit, picture by picture."""
    client = asker(name)
    limit = client.limit(name)
    with under_way(client, web, count, [int(share * limit["value"]) for share in shares]):
        response = client.ask(weighing(3000, 9))
        error = refused(response, limit["status"])
        assert (error["code"], error["limit_name"], error["limit"]) == (limit["code"], name, limit["value"])
        assert error["actual"] > limit["value"]
        assert int(response.headers["retry-after"]) >= 1
        assert content(client.http.post(CHAT, json=chat(user("Hello!"), max_tokens=2))) is not None
    assert content(client.ask(weighing(3000, 9))) is not None


def test_an_estimate_is_what_it_costs(asker: Callable[[str], Asker], web: Origin) -> None:
    client = asker("default")
    web.pages["/contract/far"] = body(encoded(one("green", "star", seed=77)))
    urls = [sized(224, 224, 78), f"{web.url}/contract/far", sized(224, 224, 78)]
    before = client.estimate(*urls)
    answer = client.ask(*urls)
    usage, record = answer.json()["usage"], client.server.record(answer.headers["x-request-id"])
    assert before["admitted"]
    assert before["bytes"] == record["media_bytes"] == sum(item["bytes"] for item in before["items"])
    assert before["pixels"] == record["pixels"] == 3 * 224 * 224
    assert before["visual_tokens"] == record["visual_tokens"] == usage["prompt_tokens_details"]["image_tokens"]
    assert before["text_tokens"] == record["text_tokens"]
    assert before["text_tokens"] + before["visual_tokens"] == usage["prompt_tokens"]
    assert [(item["part"], item["width"], item["height"]) for item in before["items"]] == [
        (part, 224, 224) for part in (1, 2, 3)
    ]
    assert (before["encoder_cache_hits"], [item["encoder_cached"] for item in before["items"]]) == (0, [False] * 3)
    after = client.estimate(*urls)
    assert (after["encoder_cache_hits"], [item["encoder_cached"] for item in after["items"]]) == (3, [True] * 3)
    again = client.server.record(client.ask(*urls).headers["x-request-id"])
    assert again["encoder_cache_hits"] == after["encoder_cache_hits"]


def test_an_estimate_names_each_bad_picture(asker: Callable[[str], Asker]) -> None:
    client = asker("max_image_width")
    urls = [sized(101, 60), sized(60, 60), data_url(b"<svg/>"), sized(102, 60)]
    estimate = client.estimate(*urls)
    assert estimate["admitted"] is False
    assert [item["error"] and item["error"]["status"] for item in estimate["items"]] == [413, None, 415, 413]
    assert {told["part"] for told in estimate["refusals"]} == {1, 3, 4}
    error = refused(client.ask(*urls), 413, 415)
    assert error in estimate["refusals"]


def test_what_was_made_to_fit_is_told(asker: Callable[[str], Asker]) -> None:
    client = asker("fit")
    assert client.limit("max_image_width")["on_excess"] == "fit"
    urls = [sized(60, 60), sized(300, 150)]
    expected = {
        "part": 2, "param": "messages[0].content[2].image_url.url", "limit_name": "max_image_width",
        "before": "300x150", "after": "100x50",
    }  # fmt: skip
    assert client.estimate(*urls)["adjustments"] == [expected]
    answer = client.ask(*urls)
    assert answer.headers["x-foveate-adjusted"] == "1"
    assert answer.json()["foveate"] == {"adjustments": [expected]}
    assert client.server.record(answer.headers["x-request-id"])["adjustments"] == 1
    streamed, chunks = stream(client.http, asking(*urls))
    assert streamed.headers["x-foveate-adjusted"] == "1"
    assert [chunk.get("foveate") for chunk in chunks] == [{"adjustments": [expected]}] + [None] * (len(chunks) - 1)
    fewer = client.ask(video(10, num_frames=6), sized(60, 60))
    (adjustment,) = fewer.json()["foveate"]["adjustments"]
    assert (adjustment["part"], adjustment["limit_name"]) == (1, "max_video_frames")
    assert (adjustment["before"], adjustment["after"]) == ("6 frames", "4 frames")
    plain = client.ask(sized(60, 60), video(10, num_frames=4))
    assert "x-foveate-adjusted" not in plain.headers
    assert "foveate" not in plain.json()


def test_the_official_client_reads_an_adjusted_answer(contract: Server) -> None:
    with openai.OpenAI(
        base_url=f"{contract.base_url}/v1", api_key=KEY, default_headers={"X-Foveate-Tier": "fit"}
    ) as ai:
        asked: Any = asking(sized(300, 150))
        answer = ai.chat.completions.create(model=ai.models.list().data[0].id, **asked)
        assert answer.choices[0].message.content is not None
        assert answer.model_extra is not None
        assert answer.model_extra["foveate"]["adjustments"][0]["after"] == "100x50"
        chunks = list(ai.chat.completions.create(model=answer.model, stream=True, **asked))
        assert chunks[-1].choices[0].finish_reason is not None


def test_keys(contract: Server) -> None:
    with contract.client() as http:
        for path in ("/v1/models", "/v1/budget"):
            response = http.get(path)
            assert refused(response, 401)["code"] == "invalid_api_key"
            assert response.headers["www-authenticate"] == "Bearer"
        for path in (CHAT, "/v1/estimate"):
            assert refused(http.post(path, json=asking()), 401)["code"] == "invalid_api_key"
        wrong = {"Authorization": f"Bearer {KEY}x"}
        refused(http.get("/v1/budget", headers=wrong), 401)
        other = {"x-api-key": KEY, "X-Foveate-Tier": "nowhere"}
        assert refused(http.get("/v1/budget", headers=other), 403)["code"] == "not_permitted"
        assert http.get("/v1/budget", headers={"x-api-key": KEY}).json()["tenant"] == "acme"
    assert KEY not in Path(contract.server_log).read_text() + Path(contract.request_log).read_text()
