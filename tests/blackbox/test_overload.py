"""More than the server may take on: refused at once with 429 or 503 and when to come back; what was admitted is answered."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import httpx
from tests.blackbox.pictures import ask, chat, image, one, url_of, user
from tests.blackbox.replies import assert_no_address, assert_typed, content, refused
from tests.blackbox.server import Server, eventually

CHAT = "/v1/chat/completions"
HELLO = chat(user("Hello!"))


def test_a_full_queue_refuses_and_what_is_in_it_is_answered(tight: Server) -> None:
    """One sequence runs and one may wait: of six more, five are refused while the first goes on."""

    def send(_: int) -> httpx.Response:
        with tight.client(seconds=120) as client:
            return client.post(CHAT, json=HELLO)

    endless = {**HELLO, "max_tokens": 3900, "ignore_eos": True, "stream": True}
    with tight.client() as http, ThreadPoolExecutor(6) as pool:
        with http.stream("POST", CHAT, json=endless) as running:
            lines = running.iter_lines()
            assert [next(lines) for _ in range(6)]
            sent = [pool.submit(send, number) for number in range(6)]
            eventually("five refusals", lambda: sum(task.done() for task in sent) >= 5)
            assert tight.metrics().total("foveate_requests_in_flight") == 2
            for path in ("/health", "/v1/models", "/ready"):
                assert tight.client().get(path).status_code == 200
        responses = [task.result() for task in sent]
    assert sorted(response.status_code for response in responses) == [200, 429, 429, 429, 429, 429]
    for response in responses:
        assert_no_address(response)
        if response.status_code == 429:
            assert int(response.headers["retry-after"]) >= 1
            assert_typed(response.json()["error"])
            assert response.json()["error"]["code"] == "queue_full"
    tight.wait_idle()
    assert tight.metrics().total("foveate_requests_total", outcome="overloaded") >= 5
    assert content(tight.client().post(CHAT, json=HELLO))


def test_pictures_wait_for_a_place_and_are_answered(tight: Server) -> None:
    """One request with pictures may be under way at once; a second one waits instead of being refused."""

    def send(seed: int) -> str:
        with tight.client() as client:
            return content(client.post(CHAT, json=ask(url_of(one("red", "star", seed=seed)))))

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(send, (1, 2))) == ["A red star."] * 2


def test_limits_are_named_with_their_value(tight: Server) -> None:
    picture = image(url_of(one("red", "circle")))
    with tight.client() as http:
        error = refused(http.post(CHAT, json=chat(user(picture, picture, picture, "x"))), 400)
        assert "3" in error["message"]
        assert "2" in error["message"]
        wide = ask(url_of(one("red", "circle", size=(400, 300))))
        error = refused(http.post(CHAT, json=wide), 413, param="messages[0].content[0].image_url")
        assert (error["limit"], error["actual"]) == (100_000, 120_000)
        error = refused(http.post(CHAT, json=chat(user("x" * 1_100_000))), 413)
        assert error["limit"] == 2**20
