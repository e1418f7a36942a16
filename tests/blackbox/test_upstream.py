"""A Foveate in front of a Foveate: the same answers, one GET for each picture, and nothing of the client's URL behind the door."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import openai
import pytest
from tests.blackbox.origins import Origin, body
from tests.blackbox.pictures import DESCRIBE, ask, data_url, encoded, image, noise, one, text, user
from tests.blackbox.recorder import Recorder, recording
from tests.blackbox.replies import assert_closes, content, refused, server_timing, stream
from tests.blackbox.server import Server, eventually
from tests.blackbox.videos import shown, video_url, watch
from tests.otlp import Receiver

CHAT = "/v1/chat/completions"


@pytest.fixture(scope="module")
def recorder(server: Server) -> Iterator[Recorder]:
    with recording(server.base_url) as made:
        yield made


@pytest.fixture(scope="module")
def gateway(
    tmp_path_factory: pytest.TempPathFactory, recorder: Recorder, web: Origin, collector: Receiver
) -> Iterator[Server]:
    """In front of the server that most tests share, with a recorder between."""
    made = Server(
        tmp_path_factory.mktemp("gateway"),
        *("--engine", "upstream", "--upstream", recorder.url, "--media-workers", "1"),
        *("--fetch-http-allowed", "--fetch-private-networks", "127.0.0.1/32", "--fetch-ports", f"80,443,{web.port}"),
        *("--trace-otlp-endpoint", collector.url),
        forked=True,
    )
    try:
        yield made
        made.stop()
    finally:
        made.kill_all()


@pytest.fixture
def http(gateway: Server, recorder: Recorder) -> Iterator[httpx.Client]:
    recorder.bodies.clear()
    recorder.heads.clear()
    with gateway.client() as client:
        yield client


def asking(*parts: Any, **more: Any) -> dict[str, Any]:
    return {"messages": [user(*parts)], "temperature": 0, "max_tokens": 24, **more}


def test_the_same_answers_as_without_it(gateway: Server, server: Server, http: httpx.Client, model: str) -> None:
    questions = [
        asking(text("Hello!"), model=model),
        asking(image(data_url(encoded(one("red", "circle")))), text(DESCRIBE)),
        asking(image(data_url(encoded(one("blue", "star"), "JPEG"), "image/jpeg")), text(DESCRIBE), logprobs=True, n=2),
    ]
    with server.client() as direct:
        for question in questions:
            through, straight = http.post(CHAT, json=question), direct.post(CHAT, json=question)
            assert through.json()["choices"] == straight.json()["choices"]
            assert through.json()["usage"]["completion_tokens"] == straight.json()["usage"]["completion_tokens"]
            assert through.json()["id"] == through.headers["x-request-id"]
            (_, ours), (_, theirs) = stream(http, question), stream(direct, question)
            assert [chunk["choices"] for chunk in ours] == [chunk["choices"] for chunk in theirs]
            assert not any("usage" in chunk for chunk in ours)


def test_one_trace_holds_both_servers(http: httpx.Client, collector: Receiver) -> None:
    """The client's span is above the gateway's request, that one above the server's, in one trace."""
    trace, span = "ab" * 16, "cd" * 8
    question = asking(image(data_url(encoded(one("red", "circle")))), text(DESCRIBE))
    assert http.post(CHAT, json=question, headers={"traceparent": f"00-{trace}-{span}-01"}).status_code == 200
    found = eventually(
        "both requests' spans",
        lambda: (
            len(roots := [one for one in collector.spans() if (one.trace_id, one.name) == (trace, "request")]) == 2
            and roots
        ),
    )
    outer = next(one for one in found if one.parent_id == span)
    inner = next(one for one in found if one is not outer)
    assert inner.parent_id == outer.span_id
    assert outer.start <= inner.start
    assert [one.name for one in collector.spans() if one.parent_id == outer.span_id and one.name == "upstream"]
    unasked = http.post(CHAT, json=asking(text("Hello!"))).json()["id"]
    (head, *_) = eventually("its trace", lambda: collector.trace_of(unasked))
    eventually(
        "the server's part of it",
        lambda: [one for one in collector.spans() if (one.parent_id, one.name) == (head.span_id, "request")],
    )


def test_the_official_client_works(gateway: Server, model: str) -> None:
    with openai.OpenAI(base_url=f"{gateway.base_url}/v1", api_key="none", max_retries=0) as ai:
        assert [one.id for one in ai.models.list()] == [model]
        chunks = list(
            ai.chat.completions.create(
                model=model,
                messages=[user(image(data_url(encoded(one("green", "triangle")))), text(DESCRIBE))],
                temperature=0,
                stream=True,
                stream_options={"include_usage": True},
            )
        )
        said = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
        assert said == "A green triangle."
        assert chunks[-1].usage is not None
        assert chunks[-1].usage.prompt_tokens_details is not None
        assert len({chunk.id for chunk in chunks}) == 1


def test_every_moment_is_one_stages(gateway: Server, http: httpx.Client) -> None:
    answer = http.post(CHAT, json=asking(image(data_url(encoded(one("red", "star", seed=3)))), text(DESCRIBE)))
    timing = server_timing(answer)
    assert {"admission", "media_fetch", "llm_queue", "upstream"} <= timing.keys()
    assert not {"llm_prefill", "vision_encode", "media_decode"} & timing.keys(), "nothing is guessed"
    assert_closes(timing)
    line = gateway.record(answer.headers["x-request-id"])
    assert line["upstream"]["name"]
    assert line["upstream_ms"] == pytest.approx(timing["upstream"], abs=0.01)
    assert line["output_tokens"] == answer.json()["usage"]["completion_tokens"]
    assert gateway.metrics().total("foveate_stage_seconds_count", stage="upstream", modality="multimodal") >= 1
    assert gateway.metrics().total("foveate_upstream_requests_total", outcome="answered") >= 1


def test_one_get_a_picture_and_no_url_behind_the_door(http: httpx.Client, recorder: Recorder, web: Origin) -> None:
    web.pages["/secret-path.png"] = body(encoded(one("red", "circle", seed=41)))
    before = web.gets["/secret-path.png"]
    url = f"{web.url}/secret-path.png?signature=hush"
    answer = http.post(
        CHAT, json=asking(image(url), text(DESCRIBE)), headers={"authorization": "Bearer mine", "cookie": "mine"}
    )
    assert content(answer) == "A red circle."
    assert web.gets["/secret-path.png"] - before == 1, "the upstream fetched nothing"
    (sent,) = recorder.bodies
    part = json.loads(sent)["messages"][0]["content"][0]
    assert part["image_url"]["url"].startswith("data:image/png;base64,")
    assert part["uuid"].startswith("foveate-")
    for secret in (b"secret-path", b"hush", str(web.port).encode(), b"http"):
        assert secret not in sent
    assert "mine" not in recorder.heads[0]


def test_a_repeat_is_only_named(http: httpx.Client, recorder: Recorder) -> None:
    question = asking(image(data_url(encoded(one("blue", "circle", seed=42)))), text(DESCRIBE))
    said = [content(http.post(CHAT, json=question)) for _ in range(2)]
    first, second = (json.loads(sent)["messages"][0]["content"][0] for sent in recorder.bodies)
    assert first["uuid"] == second["uuid"]
    assert second["image_url"] is None
    assert said == ["A blue circle."] * 2


def test_a_clients_own_uuid_names_it_again_and_stays_here(http: httpx.Client, recorder: Recorder) -> None:
    picture = {**image(data_url(encoded(one("green", "circle", seed=43)))), "uuid": "my-photo"}
    assert content(http.post(CHAT, json=asking(picture, text(DESCRIBE)))) == "A green circle."
    named = {"type": "image_url", "image_url": None, "uuid": "my-photo"}
    assert content(http.post(CHAT, json=asking(named, text(DESCRIBE)))) == "A green circle."
    assert not any(b"my-photo" in sent for sent in recorder.bodies)
    error = refused(http.post(CHAT, json=asking({**named, "uuid": "unheard"}, text(DESCRIBE))), 404)
    assert error["code"] == "media_not_held"


def test_a_large_body_and_a_video_pass(http: httpx.Client) -> None:
    large = data_url(noise(5, 600))
    assert len(large) > 1_000_000
    assert http.post(CHAT, json=asking(image(large), text(DESCRIBE))).status_code == 200
    answer = http.post(CHAT, json=watch(video_url(shown("red", "blue"))))
    assert answer.status_code == 200, answer.text
    assert answer.json()["usage"]["prompt_tokens_details"]["frames"] > 0


def test_the_doors_refusals_never_reach_the_upstream(http: httpx.Client, recorder: Recorder, web: Origin) -> None:
    web.pages["/no.txt"] = body(b"not a picture")
    for url in (f"{web.url}/no.txt", "http://169.254.169.254/", "ftp://x/", "data:image/png;base64,!"):
        refused(http.post(CHAT, json=ask(url)))
    assert not recorder.bodies


def test_what_the_upstream_refuses_is_told_in_its_words(http: httpx.Client) -> None:
    error = refused(http.post(CHAT, json=asking(text("hi"), temperature=9)), 400, param="temperature")
    assert error["code"] == "upstream_refused"
    assert error["upstream"]["code"] == "invalid_parameter"
    assert error["message"] == error["upstream"]["message"]


def test_a_full_upstream_is_told_as_such(gateway: Server, http: httpx.Client, recorder: Recorder) -> None:
    recorder.refusing = 429
    try:
        answer = http.post(CHAT, json=asking(text("hi")))
        assert (answer.status_code, answer.json()["error"]["code"]) == (429, "upstream_busy")
        assert "retry-after" in answer.headers
    finally:
        recorder.refusing = None
    eventually("the upstream to be asked again", lambda: http.post(CHAT, json=asking(text("hi"))).status_code == 200)


def test_leaving_ends_the_request_behind_too(gateway: Server, server: Server, http: httpx.Client) -> None:
    question = asking(text("Hello!"), stream=True, max_tokens=3000, ignore_eos=True)
    with http.stream("POST", CHAT, json=question) as answer:
        lines = answer.iter_lines()  # kept: its end would be the client's
        next(lines)
        assert server.metrics().total("foveate_requests_in_flight") >= 1
    server.wait_idle()
    gateway.wait_idle()
    assert gateway.metrics().total("foveate_upstream_in_flight") == 0


def test_a_cut_ends_the_stream_once(gateway: Server, http: httpx.Client, recorder: Recorder) -> None:
    recorder.cutting = True
    try:
        question = asking(text("Hello!"), stream=True, max_tokens=200, ignore_eos=True)
        events = [line for line in http.post(CHAT, json=question).text.split("\n\n") if line]
    finally:
        recorder.cutting = False
    assert events[-1] == "data: [DONE]"
    errors = [event for event in events if '"error"' in event]
    assert len(errors) == 1
    assert json.loads(errors[0].removeprefix("data: "))["error"]["code"] == "upstream_failed"
    gateway.wait_idle()


def test_many_at_once(gateway: Server, http: httpx.Client) -> None:
    pictures = [(colour, data_url(encoded(one(colour, "circle", seed=60)))) for colour in ("red", "blue", "green")]

    def ask_about(number: int) -> tuple[str, str]:
        colour, url = pictures[number % 3]
        return colour, content(http.post(CHAT, json=asking(image(url), text(DESCRIBE))))

    with ThreadPoolExecutor(8) as pool:
        for colour, said in pool.map(ask_about, range(24)):
            assert said == f"A {colour} circle."
    gateway.wait_idle()
    assert gateway.metrics().total("foveate_upstream_outstanding_tokens") == 0


def test_the_contract_says_what_is_not_known(http: httpx.Client) -> None:
    told = http.get("/v1/budget").json()
    assert "max_visual_tokens" in told["not_enforced"]
    priced = http.post("/v1/estimate", json=asking(image(data_url(encoded(one("red", "circle")))), text("x"))).json()
    assert (priced["admitted"], priced["visual_tokens"]) == (True, 0)
    assert priced["items"][0]["width"] == 224
