"""Group G: requests that other servers answered wrongly, or that harmed more than themselves."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler
from typing import Any

import httpx
import openai
import pytest
from tests.blackbox.field_cases.conftest import CHAT
from tests.blackbox.field_cases.listeners import head
from tests.blackbox.field_cases.marks import ANSWERED, Right, field_case
from tests.blackbox.origins import Origin, body, status
from tests.blackbox.pictures import DESCRIBE, ask, chat, data_url, encoded, image, one, text, url_of, user
from tests.blackbox.replies import assert_typed, content, events
from tests.blackbox.server import Server, eventually

PART = "messages[0].content[0]"
RED = encoded(one("red", "circle"))
TOO_MANY = Right(400, "too_many_images", "max_images")
CONFLICT = Right(409, "media_id_conflict")


@pytest.fixture(scope="module")
def http(server: Server) -> Iterator[httpx.Client]:
    with server.client() as client:
        yield client


def named(url: str, name: str) -> dict[str, Any]:
    return {**image(url), "uuid": name}


@field_case(
    101, "one `uuid` for two pictures of different sizes, one after the other and at once: the engine lives", CONFLICT
)
def test_reused_names(server: Server, http: httpx.Client, right: Right) -> None:
    engine = [process.pid for process in server.titled("foveate: engine 0")]
    small, large = (url_of(one("red", "circle", size=size)) for size in ((56, 56), (336, 280)))
    content(http.post(CHAT, json=chat(user(named(small, "case101"), DESCRIBE))))
    right.check(http.post(CHAT, json=chat(user(named(large, "case101"), DESCRIBE))), param=PART)

    def send(number: int) -> int:
        with server.client() as client:
            picture = named((small, large)[number % 2], f"at-once-{number // 4}")
            return client.post(CHAT, json=chat(user(picture, DESCRIBE), max_tokens=3)).status_code

    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(send, range(16))) == {200, 409}
    assert [process.pid for process in server.titled("foveate: engine 0")] == engine


def turns(*urls: str) -> dict[str, Any]:
    """Return a conversation of one picture a turn and a last turn without one."""
    messages = []
    for number, url in enumerate(urls):
        messages += [user(image(url), f"turn {number}"), {"role": "assistant", "content": "ok"}]
    return chat(*messages, user("And now without a picture."), max_tokens=3)


@field_case(102, "17 turns with a picture each, then one without, limit 16", TOO_MANY)
def test_resent_history_over_the_limit(http: httpx.Client, right: Right) -> None:
    error = right.check(http.post(CHAT, json=turns(*[url_of(one("red", "circle"))] * 17)), param="messages")
    assert (error["limit"], error["actual"]) == (16, 17)


@field_case(102, "17 turns with one and the same picture, limit 16, where repeats are counted once", ANSWERED)
def test_resent_history_counted_once(guarded: Server) -> None:
    with guarded.client() as client:
        content(client.post(CHAT, json=turns(*[url_of(one("red", "circle"))] * 17)))
        distinct = [url_of(one("red", "circle", seed=seed)) for seed in range(17)]
        error = TOO_MANY.check(client.post(CHAT, json=turns(*distinct)), param="messages")
        assert (error["limit"], error["actual"]) == (16, 17)


@field_case(
    115,
    "a picture of 4000×3000, where `max_image_width: 2048` is to `fit`: scaled down, and the answer says so",
    ANSWERED,
)
def test_wide_pictures_are_made_to_fit(guarded: Server) -> None:
    with guarded.client() as client:
        response = client.post(CHAT, json=ask(url_of(one("red", "circle", size=(4000, 3000)))))
        assert content(response) == "A red circle."
        assert response.headers["x-foveate-adjusted"] == "1"
        (adjusted,) = response.json()["foveate"]["adjustments"]
        assert (adjusted["limit_name"], adjusted["before"], adjusted["after"]) == (
            "max_image_width",
            "4000x3000",
            "2048x1536",
        )


def counts_what_is_aborted(aborted: list[str], started: threading.Event) -> Any:
    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.close_connection = True
        handler.wfile.write(head("Content-Type: image/png", "Content-Length: 30000000"))
        started.set()
        handler.connection.settimeout(30)
        try:
            while True:
                handler.wfile.write(b"\x00" * 1000)
                handler.wfile.flush()
                if handler.connection.recv(1) == b"":
                    raise ConnectionResetError
        except ConnectionError:
            aborted.append(handler.path)

    return answer


@field_case(
    104, "a client that leaves during the download: the origin sees it aborted", "connection closed, nothing in flight"
)
def test_download_ends_with_its_client(server: Server, web: Origin) -> None:
    aborted: list[str] = []
    started = threading.Event()
    web.pages["/aborted.png"] = counts_what_is_aborted(aborted, started)
    with server.client(seconds=1) as impatient, pytest.raises(httpx.ReadTimeout):
        impatient.post(CHAT, json=ask(f"{web.url}/aborted.png"))
    assert started.is_set()
    eventually("the download to be aborted", lambda: aborted, seconds=20)
    server.wait_idle()


@field_case(107, "pictures inline and by URL: each is counted in `usage`", ANSWERED)
def test_no_picture_is_dropped(http: httpx.Client, web: Origin) -> None:
    web.pages["/counted.png"] = body(encoded(one("blue", "star")))
    url = f"{web.url}/counted.png"
    for parts, images in (((image(url),), 1), ((image(url), image(url_of(one("red", "star"))), image(url)), 3)):
        response = http.post(CHAT, json=chat(user(*parts, DESCRIBE), max_tokens=3))
        content(response)
        details = response.json()["usage"]["prompt_tokens_details"]
        assert details["images"] == images
        assert details["image_tokens"] > 0


def padded(body_bytes: int) -> bytes:
    """Return a request whose body has about this many bytes, nearly all of them one picture's."""
    return json.dumps(ask(data_url(RED + bytes(body_bytes * 3 // 4 - len(RED))))).encode()


@field_case(110, "bodies of 1.9, 2.1, 5.1, 32.1 MiB, with and without a length", ANSWERED)
@pytest.mark.parametrize("mebibytes", [1.9, 2.1, 5.1, 32.1])
@pytest.mark.parametrize("length", [True, False], ids=["length", "chunked"])
def test_ordinary_bodies(http: httpx.Client, mebibytes: float, length: bool) -> None:
    made = padded(int(mebibytes * 2**20))
    sent = made if length else (made[at : at + 2**20] for at in range(0, len(made), 2**20))
    assert content(http.post(CHAT, content=sent, headers={"content-type": "application/json"})) == "A red circle."


@field_case(
    110,
    "a body larger than `server.body_bytes_max`, with and without a length",
    Right(413, "body_too_large", "server.body_bytes_max"),
)
@pytest.mark.parametrize("length", [True, False], ids=["length", "chunked"])
def test_body_over_the_limit(tight: Server, right: Right, length: bool) -> None:
    made = padded(2 * 2**20)
    with tight.client() as client:
        try:
            response = client.post(
                CHAT, content=made if length else iter([made]), headers={"content-type": "application/json"}
            )
        except (httpx.WriteError, httpx.ReadError):
            pytest.skip("the connection was closed on a client that goes on sending")
        error = right.check(response)
        assert error["limit"] == 2**20


@field_case(112, "`n: 0`, `max_tokens: 0`", Right(400, "invalid_parameter"))
@pytest.mark.parametrize("fields", [{"n": 0}, {"n": -1}, {"max_tokens": 0}, {"n": 0, "stream": True}])
def test_nothing_to_generate(http: httpx.Client, right: Right, fields: dict[str, Any]) -> None:
    error = right.check(http.post(CHAT, json={**chat(user("Hello!")), **fields}))
    assert error["param"] in fields


@field_case(
    112,
    "the engine is killed after five tokens of a stream: one error event, then `[DONE]`, then the end",
    "200, then `engine_failed`",
)
def test_engine_killed_in_a_stream(plain: Server) -> None:
    endless = chat(user("Hello!"), max_tokens=3500, ignore_eos=True, stream=True)
    with plain.client() as client, client.stream("POST", CHAT, json=endless) as response:
        assert response.status_code == 200
        lines = response.iter_lines()
        seen = [next(lines) for _ in range(12)]
        plain.kill("foveate: engine 0")
        chunks = events([*seen, *lines])
    errors = [chunk["error"] for chunk in chunks if "error" in chunk]
    assert [error["code"] for error in errors] == ["engine_failed"]
    assert_typed(errors[0])
    assert chunks[-1].get("error"), "the error is the last word"
    eventually("the server to be ready again", plain.ready)


@field_case(113, "50 requests at once with distinct texts and a picture each", ANSWERED)
def test_many_distinct_texts_at_once(server: Server) -> None:
    def send(number: int) -> httpx.Response:
        with server.client(seconds=120) as client:
            words = f"Question {number}: " + " ".join(f"w{number * 7 + word}" for word in range(20))
            return client.post(CHAT, json=ask(url_of(one("red", "circle")), words, max_tokens=2))

    with ThreadPoolExecutor(50) as pool:
        for response in pool.map(send, range(50)):
            content(response)


@field_case(115, "33 pictures of 1920×1080 in one request", TOO_MANY)
def test_very_many_pictures(http: httpx.Client, right: Right) -> None:
    picture = image(url_of(one("red", "circle", size=(1920, 1080))))
    error = right.check(http.post(CHAT, json=chat(user(*[picture] * 33, "x"))), param="messages")
    assert (error["limit"], error["actual"]) == (16, 33)


@field_case(115, "16 pictures of 5000×4000 in one request", Right(413, "media_total_too_large", "max_total_pixels"))
def test_too_many_pixels_in_all(http: httpx.Client, right: Right) -> None:
    from PIL import Image

    pictures = [image(url_of(Image.new("1", (5000, 4000), number % 2))) for number in range(16)]
    error = right.check(http.post(CHAT, json=chat(user(*pictures, "x"))), param="messages")
    assert error["limit"] == 256_000_000
    assert error["actual"] > error["limit"]


@field_case(115, "one picture of 8000×8001", Right(413, "image_too_large", "max_image_pixels"))
def test_one_very_large_picture(http: httpx.Client, right: Right) -> None:
    from PIL import Image

    error = right.check(http.post(CHAT, json=ask(url_of(Image.new("1", (8000, 8001))))), param=PART)
    assert (error["limit"], error["actual"]) == (64_000_000, 64_008_000)


PICKLE = base64.b64encode(b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\nq\x00." * 20).decode()


@field_case(
    116,
    "`image_embeds` as a content part, in every form, where none are accepted",
    Right(400, "embeddings_not_accepted"),
)
@pytest.mark.parametrize(
    "part",
    [
        {"type": "image_embeds", "image_embeds": PICKLE},
        {"type": "image_embeds", "image_embeds": {"image_embeds": PICKLE, "image_grid_thw": PICKLE}},
        {"type": "image_embeds", "image_embeds": {"image_embeds": PICKLE, "image_grid_thw": [1, 16, 16]}},
    ],
    ids=["string", "object", "list"],
)
def test_embeddings_as_input(http: httpx.Client, right: Right, part: dict[str, Any]) -> None:
    right.check(http.post(CHAT, json=chat(user(part, "x"))), param=PART)


@field_case(
    116, "`prompt_embeds` beside a prompt; a picture that is a `.npy` or a pickle", Right(400, "unsupported_parameter")
)
def test_embeddings_as_prompt(http: httpx.Client, right: Right) -> None:
    completion = {"prompt": "Hello", "prompt_embeds": PICKLE, "max_tokens": 2}
    assert right.check(http.post("/v1/completions", json=completion))["param"] == "prompt_embeds"
    for data in (b"\x93NUMPY\x01\x00v\x00{'descr': '|O'", b"\x80\x02ctorch._utils\n", b"PK\x03\x04archive/data.pkl"):
        Right(415, "media_unsupported").check(http.post(CHAT, json=ask(data_url(data))), param=PART)


@field_case(117, "`n: 4` with one picture: one encode, counted once", ANSWERED)
def test_several_choices_of_one_picture(server: Server, http: httpx.Client) -> None:
    before = server.metrics()
    response = http.post(CHAT, json=ask(url_of(one("purple", "star", seed=117)), n=4))
    reply = response.json()
    assert [choice["message"]["content"] for choice in reply["choices"]] == ["A purple star."] * 4
    assert reply["usage"]["prompt_tokens_details"]["images"] == 1
    after = server.metrics()
    misses = "foveate_encoder_cache_misses_total"
    assert after.total(misses) - before.total(misses) == 1
    pinned = [f"foveate_{cache}_cache_pinned_entries" for cache in ("encoder", "processor")]
    eventually("nothing pinned", lambda: all(server.metrics().total(name) == 0 for name in pinned))


@field_case(
    119,
    "bad pictures through OpenAI's client, which retries: sent once, and its exception has code and param",
    "415, 413, 400 of one attempt each",
)
@field_case(130, "the same: permanent failures are tried once, by the client and by us", "one attempt, one GET")
def test_the_official_client_does_not_repeat(server: Server, model: str, web: Origin) -> None:
    web.pages["/gone.png"] = status(410)
    web.gets.clear()
    sent = [
        (data_url(b"garbage"), 415, "media_unsupported"),
        (data_url(encoded(one("red", "circle"))[:900]), 422, "media_undecodable"),
        (f"{web.url}/gone.png", 400, "media_fetch_rejected"),
        ("https://127.0.0.9/", 400, "media_url_refused"),
    ]
    with openai.OpenAI(base_url=f"{server.base_url}/v1", api_key="none", max_retries=2, timeout=60) as client:
        # Lines are written in the order in which requests end: behind this one's there is nothing left of earlier tests.
        marker = client.completions.create(model=model, prompt="x", max_tokens=1).id
        eventually("its log line", lambda: server.records()[-1]["id"] == marker)
        before = len(server.records())
        for url, code, name in sent:
            messages: Any = [user(image(url), text("x"))]
            with pytest.raises(openai.APIStatusError) as raised:
                client.chat.completions.create(model=model, messages=messages)
            assert (raised.value.status_code, raised.value.code) == (code, name)
            assert (raised.value.param or "").startswith(PART)
    eventually("their log lines", lambda: len(server.records()) >= before + len(sent))
    assert len(server.records()) == before + len(sent)
    assert web.gets["/gone.png"] == 1


@field_case(
    130,
    "an origin that always fails, for a client that does not repeat: two attempts at most",
    Right(502, "media_fetch_failed"),
)
def test_failures_that_pass_are_tried_twice(http: httpx.Client, web: Origin, right: Right) -> None:
    web.pages["/always503"] = status(503)
    right.check(http.post(CHAT, json=ask(f"{web.url}/always503")), param=PART)
    assert web.gets["/always503"] == 2


@field_case(
    104, "50 clients that leave while queued, during the download, during decode and in the stream", "nothing in flight"
)
def test_clients_that_leave_at_any_time(server: Server, web: Origin) -> None:
    web.pages["/held.png"] = counts_what_is_aborted([], threading.Event())
    fresh = encoded(one("green", "star", seed=104, size=(1400, 1000)))

    def leave(number: int) -> None:
        url = f"{web.url}/held.png" if number % 3 == 0 else data_url(fresh + bytes(number))
        question = ask(url, max_tokens=1500, ignore_eos=True, stream=number % 2 == 0)
        with server.client(seconds=0.02 + number % 10 * 0.04) as client:
            try:
                with client.stream("POST", CHAT, json=question) as response:
                    next(response.iter_lines(), "")
            except httpx.TransportError:
                return

    with ThreadPoolExecutor(25) as pool:
        list(pool.map(leave, range(50)))
    server.wait_idle()
    busy = ("foveate_media_workers_busy", "foveate_media_queue_length", "foveate_admission_waiting")
    eventually("nothing busy", lambda: all(server.metrics().total(name) == 0 for name in busy))


@field_case(
    112,
    "a picture that cannot be decoded, streamed: the refusal comes before the stream",
    Right(422, "media_undecodable"),
)
def test_streams_that_never_begin(http: httpx.Client, right: Right) -> None:
    right.check(http.post(CHAT, json=ask(data_url(encoded(one("red", "circle"))[:900]), stream=True)), param=PART)
