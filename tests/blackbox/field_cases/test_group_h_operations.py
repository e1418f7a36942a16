"""Group H: what requests leave behind: in metrics, in logs, in queues."""

from __future__ import annotations

import asyncio
import base64
import json
from collections import Counter
from collections.abc import Iterator

import aiohttp
import httpx
import pytest
from tests.blackbox.field_cases.conftest import CHAT
from tests.blackbox.field_cases.marks import Right, field_case
from tests.blackbox.pictures import ask, chat, encoded, one, url_of, user
from tests.blackbox.server import Server

PART = "messages[0].content[0].image_url"


@pytest.fixture(scope="module")
def http(server: Server) -> Iterator[httpx.Client]:
    with server.client() as client:
        yield client


def series(server: Server) -> set[str]:
    """Return the names and labels of all samples."""
    lines = server.metrics().text.splitlines()
    return {line.rpartition(" ")[0] for line in lines if line and not line.startswith("#")}


@field_case(
    120,
    "200 made-up models, 200 hosts, 200 unknown parameters: no series of their own",
    "404, 400, 400; the series stay those there were",
)
def test_labels_are_a_closed_set(server: Server, http: httpx.Client) -> None:
    hello = chat(user("Hello!"), max_tokens=1)

    def round_of(start: int, end: int) -> None:
        for number in range(start, end):
            Right(404, "model_not_found").check(http.post(CHAT, json={**hello, "model": f"m-{number}"}))
            Right(400, "media_url_refused").check(http.post(CHAT, json=ask(f"https://10.1.{number}.1/x{number}.png")))
            Right(400, "invalid_parameter").check(http.post(CHAT, json={**hello, f"made_up_{number}": 1}))

    round_of(0, 3)
    before = series(server)
    round_of(3, 200)
    after = series(server)
    assert after == before
    assert not any("m-1" in line or "10.1." in line or "made_up" in line for line in after)


@field_case(
    121,
    "a 5 MB data URL on requests that fail: a bad parameter, no picture, bad base64, an unknown model, not in its place",
    "400, 415, 400, 404, 413; log lines < 2 KB",
)
def test_base64_is_not_logged(server: Server, http: httpx.Client) -> None:
    payload = base64.b64encode(b"PICTURE-BYTES!" * 380_000).decode()
    url = f"data:image/png;base64,{payload}"
    starts = server.request_log.stat().st_size, server.server_log.stat().st_size
    replies = [
        (Right(400, "invalid_parameter"), {**ask(url), "temperature": 99}),
        (Right(415, "media_unsupported"), ask(url)),
        (Right(400, "invalid_data_url"), ask(url + "!")),
        (Right(404, "model_not_found"), {**ask(url), "model": "m"}),
        (Right(413, "body_too_large", "body_without_media_bytes"), chat(user({"type": url, "image_url": url}, "x"))),
    ]
    for right, body in replies:
        response = http.post(CHAT, json=body)
        right.check(response)
        assert len(response.content) < 2048
        server.record(response.headers["x-request-id"])
    for log, start in zip((server.request_log, server.server_log), starts, strict=True):
        added = log.read_bytes()[start:]
        assert max(map(len, added.splitlines()), default=0) < 2048
        assert payload[:60].encode() not in added
        assert b";base64" not in added


@field_case(125, "200 requests with pictures at once", "200 or 429 for each; none lost")
def test_everyone_gets_an_answer(server: Server) -> None:
    bodies = [
        json.dumps(ask(url_of(one("red", "circle", seed=number % 40, size=(112, 112))), max_tokens=3)).encode()
        for number in range(200)
    ]

    async def send_all() -> list[int]:
        connector = aiohttp.TCPConnector(limit=0)
        timeout = aiohttp.ClientTimeout(total=180)
        async with aiohttp.ClientSession(server.base_url, connector=connector, timeout=timeout) as session:

            async def send(data: bytes) -> int:
                async with session.post(CHAT, data=data, headers={"content-type": "application/json"}) as response:
                    reply = await response.json()
                    assert ("choices" in reply) == (response.status == 200)
                    return response.status

            return await asyncio.gather(*map(send, bodies))

    statuses = Counter(asyncio.run(send_all()))
    assert statuses.keys() <= {200, 429}
    assert statuses[200] >= 100
    server.wait_idle()


@field_case(121, "a picture's bytes in the request log: type and byte count only", "no base64, media_bytes counted")
def test_log_has_counts_instead_of_contents(server: Server, http: httpx.Client) -> None:
    data = encoded(one("orange", "star", seed=121))
    response = http.post(CHAT, json=ask(f"data:image/png;base64,{base64.b64encode(data).decode()}"))
    line = server.record(response.json()["id"])
    assert line["media_bytes"] == len(data)
    assert base64.b64encode(data)[20:60].decode() not in json.dumps(line)
