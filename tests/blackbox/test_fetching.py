"""Pictures by URL: what may be contacted, how failures of an origin are told, and what is fetched how often."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.blackbox.field_cases.marks import ANSWERED, field_case
from tests.blackbox.origins import Origin, body, endless, held, origin, redirect, stalled, status
from tests.blackbox.pictures import DESCRIBE, ask, chat, data_url, encoded, image, noise, one, user
from tests.blackbox.replies import assert_no_address, assert_typed, content, refused
from tests.blackbox.server import Server, eventually

CHAT = "/v1/chat/completions"
PART = "messages[0].content[0].image_url"
RED = encoded(one("red", "circle"))


@pytest.fixture
def elsewhere() -> Iterator[Origin]:
    """A web server that the shared server may not contact."""
    with origin("127.0.0.2") as made:
        made.pages["/picture.png"] = body(RED)
        yield made


def test_by_default_nothing_private_is_contacted(plain: Server, elsewhere: Origin) -> None:
    with origin() as local, plain.client() as http:
        local.pages["/picture.png"] = body(RED)
        for url in (
            f"{elsewhere.url}/picture.png",
            f"http://localhost:{elsewhere.port}/",
            f"https://127.0.0.1:{elsewhere.port}/picture.png",
            f"https://localhost:{elsewhere.port}/",
            f"https://[::1]:{elsewhere.port}/",
            f"https://[::ffff:127.0.0.2]:{elsewhere.port}/",
            f"https://2130706434:{elsewhere.port}/",
            f"https://127.2:{elsewhere.port}/",
            f"https://0x7f.0.0.2:{elsewhere.port}/",
            "https://169.254.169.254/latest/meta-data/",
            "https://10.0.0.1/",
            "https://[fd00:ec2::254]/",
            "https://[64:ff9b::a9fe:a9fe]/",
            f"https://127.0.0.1:{elsewhere.port}\\@example.com/",
            "file:///etc/passwd",
            "/etc/passwd",
            "ftp://127.0.0.1/",
            "https://",
        ):
            error = refused(http.post(CHAT, json=ask(url)), 400, 403, param=PART)
            assert "127.0.0.2" not in error["message"]
        assert (local.connections, elsewhere.connections) == (0, 0)
        assert content(http.post(CHAT, json=ask(data_url(RED)))) == "A red circle."


def test_allowed_network_but_not_its_neighbour(http: httpx.Client, web: Origin, elsewhere: Origin) -> None:
    refused(http.post(CHAT, json=ask(f"http://127.0.0.2:{web.port}/picture.png")), 400, 403, param=PART)
    refused(http.post(CHAT, json=ask(f"{elsewhere.url}/picture.png")), 400, 403, param=PART)
    assert elsewhere.connections == 0


def test_redirects_are_followed_under_the_policy(http: httpx.Client, web: Origin, elsewhere: Origin) -> None:
    web.pages["/picture.png"] = body(RED)
    web.pages["/moved"] = redirect("/picture.png")
    web.pages["/away"] = redirect(f"{elsewhere.url}/picture.png")
    web.pages["/neighbour"] = redirect(f"http://127.0.0.2:{web.port}/picture.png")
    web.pages["/file"] = redirect("file:///etc/passwd")
    web.pages["/round"] = redirect("/round")
    assert content(http.post(CHAT, json=ask(f"{web.url}/moved"))) == "A red circle."
    for path in ("/away", "/neighbour", "/file", "/round"):
        response = http.post(CHAT, json=ask(f"{web.url}{path}"))
        assert "127.0.0.2" not in refused(response, param=PART)["message"], path
    assert web.gets["/round"] <= 4
    assert elsewhere.connections == 0


def test_a_file_beneath_the_root_is_read_and_no_other(start: Callable[..., Server], tmp_path: Path) -> None:
    root = tmp_path / "media"
    root.mkdir()
    (root / "red circle.png").write_bytes(RED)
    (tmp_path / "outside.png").write_bytes(RED)
    (root / "link.png").symlink_to(tmp_path / "outside.png")
    server = start("--fetch-file-root", str(root))
    with server.client() as http:
        assert content(http.post(CHAT, json=ask(f"file://{root}/red%20circle.png"))) == "A red circle."
        for path in (f"{tmp_path}/outside.png", f"{root}/../outside.png", f"{root}/link.png", "/etc/passwd"):
            error = refused(http.post(CHAT, json=ask(f"file://{path}")), 400, param=PART)
            assert error["code"] == "media_url_refused", path
            assert str(tmp_path) not in error["message"]
        assert (
            refused(http.post(CHAT, json=ask("ftp://h.example/a.png")), 400, param=PART)["code"] == "media_url_refused"
        )


@pytest.mark.parametrize("code", [400, 401, 403, 404, 410, 451])
def test_origin_refuses(http: httpx.Client, web: Origin, code: int) -> None:
    web.pages[f"/status{code}"] = status(code)
    before = web.gets[f"/status{code}"]
    error = refused(http.post(CHAT, json=ask(f"{web.url}/status{code}")), param=PART)
    assert str(code) in error["message"]
    assert web.gets[f"/status{code}"] == before + 1


@pytest.mark.parametrize("code", [500, 502, 503])
def test_origin_fails(http: httpx.Client, web: Origin, code: int) -> None:
    web.pages[f"/status{code}"] = status(code)
    response = http.post(CHAT, json=ask(f"{web.url}/status{code}"))
    assert response.status_code in (424, 502)
    error = response.json()["error"]
    assert_typed(error)
    assert error["param"].startswith(PART)
    assert error["code"] == "media_fetch_failed"
    assert web.gets[f"/status{code}"] <= 2


def test_origin_is_not_there(http: httpx.Client, server: Server, web: Origin) -> None:
    # The port of HTTP is allowed, and nobody listens on it.
    response = http.post(CHAT, json=ask("http://127.0.0.1:80/x.png"))
    assert_no_address(response)
    assert response.status_code in (424, 502)
    assert response.json()["error"]["code"] == "media_fetch_failed"


def test_origin_stalls(tight: Server, web: Origin) -> None:
    gate = threading.Event()
    web.pages["/stalled"] = stalled(gate)
    with tight.client() as http:
        response = http.post(CHAT, json=ask(f"{web.url}/stalled"))
        assert response.status_code in (424, 502, 504)
        error = response.json()["error"]
        assert_typed(error)
        assert error["code"] == "media_fetch_timeout"
        assert error["param"].startswith(PART)
        assert content(http.post(CHAT, json=ask(data_url(RED)))) == "A red circle."
    gate.set()


def test_more_bytes_than_allowed(http: httpx.Client, web: Origin) -> None:
    gate = threading.Event()
    web.pages["/endless"] = endless(gate)
    error = refused(http.post(CHAT, json=ask(f"{web.url}/endless")), 413, param=PART)
    gate.set()
    assert error["code"] == "media_too_large"


@field_case(17, "a picture by URL: one GET, with none of the client's headers", ANSWERED)
def test_one_get_a_picture_and_none_of_the_clients_headers(http: httpx.Client, web: Origin) -> None:
    web.pages["/counted.png"] = body(encoded(one("green", "star", seed=5)))
    web.headers.clear()
    headers = {"authorization": "Bearer SECRET", "cookie": "c=SECRET", "x-own": "SECRET"}
    assert content(http.post(CHAT, json=ask(f"{web.url}/counted.png"), headers=headers)) == "A green star."
    assert web.gets["/counted.png"] == 1
    assert "SECRET" not in str(web.headers)
    assert web.headers[0]["User-Agent"].startswith("foveate/")


def test_identical_work_in_flight_is_shared(server: Server, web: Origin) -> None:
    """Sixteen requests, each with its own URL, for one new picture: sixteen fetches, one encode."""
    gate = threading.Event()
    data = encoded(one("purple", "star", seed=77))
    paths = [f"/flight{number}.png" for number in range(16)]
    for path in paths:
        web.pages[path] = held(gate, body(data))
    before = server.metrics()

    def send(path: str) -> str:
        with server.client() as client:
            return content(client.post(CHAT, json=ask(f"{web.url}{path}")))

    with ThreadPoolExecutor(16) as pool:
        answers = pool.map(send, paths)
        eventually("all sixteen to be fetching", lambda: sum(web.gets[path] for path in paths) == 16)
        gate.set()
        assert set(answers) == {"A purple star."}
    after = server.metrics()

    def grown(name: str) -> float:
        return after.total(name) - before.total(name)

    assert grown("foveate_encoder_cache_entries") == 1
    # Who did not begin the work itself found it done or joined it.
    began = grown("foveate_encoder_cache_misses_total") - grown("foveate_encoder_cache_shared_flights_total")
    assert began == 1
    assert grown("foveate_images_total") == 16


def test_the_same_url_at_once_is_fetched_once(server: Server, web: Origin) -> None:
    gate = threading.Event()
    web.pages["/same.png"] = held(gate, body(encoded(one("orange", "circle", seed=78))))
    before = server.metrics().total("foveate_requests_in_flight", modality="multimodal")

    def send(_: int) -> str:
        with server.client() as client:
            return content(client.post(CHAT, json=ask(f"{web.url}/same.png")))

    with ThreadPoolExecutor(8) as pool:
        answers = pool.map(send, range(8))
        eventually(
            "all eight to be in flight",
            lambda: server.metrics().total("foveate_requests_in_flight", modality="multimodal") == before + 8,
        )
        gate.set()
        assert set(answers) == {"An orange circle."}
    assert web.gets["/same.png"] == 1


def test_who_joins_a_fetch_that_runs_out_of_its_time_has_time_of_its_own(
    start: Callable[..., Server], web: Origin
) -> None:
    again = threading.Event()
    first = held(again, body(RED))

    def page(handler: Any) -> None:
        if web.gets["/late.png"] > 1:
            again.set()
        first(handler)

    web.pages["/late.png"] = page
    address = ("--fetch-http-allowed", "--fetch-private-networks", "127.0.0.1/32", "--fetch-ports", str(web.port))
    server = start(*address, "--fetch-total-seconds", "5", "--fetch-first-byte-seconds", "60")
    url = f"{web.url}/late.png"
    with server.client() as http, server.client() as later, ThreadPoolExecutor(2) as pool:
        early = pool.submit(http.post, CHAT, json=ask(url))
        eventually("the fetch to begin", lambda: web.gets["/late.png"])
        late = pool.submit(later.post, CHAT, json=ask(url))
        error = early.result().json()["error"]
        assert (error["code"], error["limit_name"], error["limit"]) == ("media_fetch_timeout", "fetch.total_seconds", 5)
        assert content(late.result()) == "A red circle."
    assert web.gets["/late.png"] == 2


def test_one_waiter_that_leaves_does_not_hurt_the_others(server: Server, web: Origin) -> None:
    gate = threading.Event()
    web.pages["/left.png"] = held(gate, body(encoded(one("black", "square", seed=79))))
    url = f"{web.url}/left.png"
    with server.client() as http, server.client(seconds=1) as impatient, ThreadPoolExecutor(2) as pool:
        leaving = pool.submit(impatient.post, CHAT, json=ask(url))
        eventually("the fetch to begin", lambda: web.gets["/left.png"])
        staying = pool.submit(http.post, CHAT, json=ask(url))
        with pytest.raises(httpx.ReadTimeout):
            leaving.result()
        gate.set()
        assert content(staying.result()) == "A black square."


def test_several_urls_of_one_request_are_fetched_at_the_same_time(server: Server, web: Origin) -> None:
    gate = threading.Event()
    paths = [f"/parallel{number}.png" for number in range(4)]
    for number, path in enumerate(paths):
        web.pages[path] = held(gate, body(encoded(one("red", "star", seed=200 + number))))
    with server.client() as http, ThreadPoolExecutor(1) as pool:
        answer = pool.submit(http.post, CHAT, json=chat(user(*(image(f"{web.url}{path}") for path in paths), DESCRIBE)))
        eventually("all four to be fetching", lambda: all(web.gets[path] for path in paths))
        gate.set()
        content(answer.result())
        assert answer.result().json()["usage"]["prompt_tokens_details"]["images"] == 4


@field_case(16, "a bad picture beside one whose origin is slow: refused without waiting for it", "415")
def test_bad_picture_cancels_its_neighbours_fetch(server: Server, web: Origin) -> None:
    """The refusal does not wait for a slow origin of the same request."""
    gate = threading.Event()
    web.pages["/slow.png"] = held(gate, body(noise(3, 64)))
    with server.client() as http:
        slow, bad = image(f"{web.url}/slow.png"), image("data:image/png;base64,AAAA")
        error = refused(http.post(CHAT, json=chat(user(slow, bad, "x"))), param="messages[0].content[1].image_url")
    assert not gate.is_set()
    gate.set()
    assert error["code"]
