"""Where the time went: the Server-Timing header, the request log and the metrics, and that they agree."""

from __future__ import annotations

import base64
import json
from typing import Any

import httpx
import pytest
from tests.blackbox.field_cases.marks import field_case
from tests.blackbox.origins import Origin, body, delayed, redirect, status
from tests.blackbox.pictures import DESCRIBE, ask, chat, data_url, encoded, image, one, url_of, user
from tests.blackbox.replies import STAGES, TEXT_STAGES, assert_closes, content, refused, server_timing, stream
from tests.blackbox.server import Server, eventually
from tests.otlp import Receiver

CHAT = "/v1/chat/completions"
HELLO = chat(user("Hello!"))
WORK = {"media_decode", "mm_processor", "vision_encode"}
LOG_FIELDS = {
    "media_fetch_ms",
    "media_decode_ms",
    "mm_processor_ms",
    "encoder_queue_ms",
    "vision_encode_ms",
    "embedding_transfer_ms",
    "llm_queue_ms",
    "llm_prefill_ms",
    "tpot_ms",
    "ttft_ms",
    "unattributed_ms",
    "images",
    "pixels",
    "media_bytes",
    "visual_tokens",
    "text_tokens",
    "output_tokens",
    "modality",
    "model",
    "outcome",
}


def new(seed: int, side: int = 224) -> bytes:
    """Return a picture that no other test sends."""
    return encoded(one("green", "circle", seed=10_000 + seed, size=(side, side)))


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "stream"])
def test_text_has_no_media_stage(http: httpx.Client, streamed: bool) -> None:
    response = stream(http, HELLO)[0] if streamed else http.post(CHAT, json=HELLO)
    timing = server_timing(response)
    assert_closes(timing)
    assert set(timing) & set(STAGES) <= TEXT_STAGES
    assert timing["llm_prefill"] > 0


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "stream"])
def test_first_and_repeated_picture(http: httpx.Client, streamed: bool) -> None:
    question = ask(data_url(new(1 + streamed)))
    timings = []
    for _ in range(2):
        response = stream(http, question)[0] if streamed else http.post(CHAT, json=question)
        timings.append(server_timing(response))
        assert_closes(timings[-1])
    first, repeated = timings
    assert set(first) >= WORK
    assert all(first[stage] > 0 for stage in WORK)
    assert not (WORK | {"encoder_queue"}) & set(repeated)
    assert repeated["llm_prefill"] > 0


def test_repeated_by_another_way(http: httpx.Client, web: Origin) -> None:
    """Content is what is remembered, not how it came: a data URL, two URLs, another form of the body."""
    data = new(3)
    web.pages["/a.png"] = web.pages["/b.png"] = body(data)
    content(http.post(CHAT, json=ask(data_url(data))))
    for url in (f"{web.url}/a.png", f"{web.url}/b.png?x=1"):
        timing = server_timing(http.post(CHAT, json=ask(url)))
        assert_closes(timing)
        assert not WORK & set(timing)
        assert timing["media_fetch"] > 0
    large = json.dumps(ask(data_url(data))).encode() + b" " * 400_000
    assert not WORK & set(server_timing(http.post(CHAT, content=large, headers={"content-type": "application/json"})))


def test_same_picture_twice_in_one_request(http: httpx.Client, server: Server) -> None:
    """It is decoded, processed and encoded once, for both of its places."""
    before = server.metrics()
    picture = image(data_url(new(4)))
    response = http.post(CHAT, json=chat(user(picture, picture, DESCRIBE)))
    content(response)
    assert_closes(server_timing(response))
    after = server.metrics()
    for name in ("encoder_cache_entries", "encoder_cache_shared_flights_total", "processor_cache_misses_total"):
        assert after.total(f"foveate_{name}") == before.total(f"foveate_{name}") + 1, name
    assert response.json()["usage"]["prompt_tokens_details"]["images"] == 2


def test_several_pictures_close_too(http: httpx.Client) -> None:
    parts = [image(data_url(new(20 + number, 112 + 28 * number))) for number in range(5)]
    timing = server_timing(http.post(CHAT, json=chat(user(*parts, DESCRIBE))))
    assert_closes(timing)
    assert set(timing) >= WORK


def test_large_body_closes_too(http: httpx.Client) -> None:
    picture = encoded(one("red", "circle", size=(700, 500)), compress_level=0)
    timing = server_timing(http.post(CHAT, json=ask(data_url(picture))))
    assert_closes(timing)
    assert timing["media_fetch"] > 0


def test_time_of_a_stage_that_failed_is_attributed_to_it(http: httpx.Client, server: Server, web: Origin) -> None:
    """An origin that takes its time to refuse: the wait was media_fetch, in the header and in the log."""
    web.pages["/slow404"] = delayed(0.5, status(404))
    response = http.post(CHAT, json=ask(f"{web.url}/slow404"))
    refused(response)
    timing = server_timing(response)
    assert timing["media_fetch"] >= 500
    assert timing["unattributed"] < 250
    assert server.record(response.headers["x-request-id"])["media_fetch_ms"] == pytest.approx(
        timing["media_fetch"], abs=1
    )


def test_log_line(http: httpx.Client, server: Server, model: str) -> None:
    data = encoded(one("blue", "star", seed=10_500, size=(300, 200)), "JPEG")
    response = http.post(CHAT, json=ask(data_url(data, "image/jpeg")))
    reply = response.json()
    record = server.record(reply["id"])
    assert record.keys() >= LOG_FIELDS, LOG_FIELDS - record.keys()
    usage = reply["usage"]
    assert (record["images"], record["pixels"], record["media_bytes"]) == (1, 300 * 200, len(data))
    assert record["visual_tokens"] == usage["prompt_tokens_details"]["image_tokens"]
    assert record["visual_tokens"] + record["text_tokens"] == usage["prompt_tokens"]
    assert record["output_tokens"] == usage["completion_tokens"]
    assert (record["modality"], record["model"]) == ("multimodal", model)
    assert record["tpot_ms"] > 0
    timing = server_timing(response)
    assert record["ttft_ms"] == pytest.approx(timing["ttft"], abs=0.002)
    for stage in STAGES:
        logged = record.get(f"{stage}_ms")
        assert (logged or 0) == pytest.approx(timing.get(stage, 0), abs=0.002), stage


def test_log_line_of_a_text_request(http: httpx.Client, server: Server) -> None:
    record = server.record(http.post(CHAT, json=HELLO).json()["id"])
    assert record.keys() >= LOG_FIELDS
    assert (record["modality"], record["images"], record["pixels"], record["media_bytes"], record["visual_tokens"]) == (
        "text",
        0,
        0,
        0,
        0,
    )
    assert not any(record[f"{stage}_ms"] for stage in STAGES if stage not in TEXT_STAGES)


def test_log_line_of_one_token_and_of_several_choices(http: httpx.Client, server: Server) -> None:
    single = http.post(CHAT, json={**HELLO, "max_tokens": 1}).json()
    assert server.record(single["id"])["tpot_ms"] is None
    several = http.post(CHAT, json={**HELLO, "n": 3}).json()
    assert server.record(several["id"])["output_tokens"] == several["usage"]["completion_tokens"]


def test_each_request_has_one_line_whatever_its_end(http: httpx.Client, server: Server) -> None:
    server.wait_told()

    def lines() -> int:
        return len(server.records())

    before = lines()
    bodies: list[Any] = [
        HELLO,
        {**HELLO, "stream": True},
        ask(url_of(one("red", "star"))),
        ask("data:image/png;base64,AAAA"),
        {**HELLO, "n": 2},
    ]
    outcomes = [http.post(CHAT, json=sent).status_code for sent in bodies]
    assert outcomes == [200, 200, 200, 415, 200]
    server.wait_told()
    fresh = server.records()[before:]
    assert [record["outcome"] for record in fresh].count("refused") == 1
    assert len(fresh) == 5


@field_case(
    35,
    "signed URLs that are fetched, redirect, fail or are malformed: no signature in any log, metric or answer",
    "no secret",
)
@field_case(121, "pictures and texts of requests: not in any log", "no base64")
def test_secrets_and_contents_are_never_written(
    http: httpx.Client, server: Server, web: Origin, collector: Receiver
) -> None:
    data = new(5)
    web.pages["/signed.png"] = body(data)
    web.pages["/to-signed"] = redirect("/signed.png?X-Amz-Signature=HIDDEN3")
    web.pages["/to-nowhere"] = redirect("https://127.0.0.9/x?X-Amz-Signature=HIDDEN4")
    content(http.post(CHAT, json=ask(f"{web.url}/signed.png?X-Amz-Signature=HIDDEN1")))
    content(http.post(CHAT, json=ask(f"{web.url}/to-signed")))
    replies = [
        http.post(CHAT, json=ask(url)).text
        for url in (
            f"{web.url}/absent.png?X-Amz-Signature=HIDDEN2",
            f"{web.url}/to-nowhere",
            "https://user:HIDDEN5@127.0.0.1/x.png",
            f"https://127.0.0.1/{'x' * 9000}?X-Amz-Signature=HIDDEN6",
            "http://[::1/?HIDDEN7",
        )
    ]
    content(http.post(CHAT, json=ask(data_url(data))))
    told = {
        "authorization": "Bearer HIDDEN9",
        "tracestate": "x=HIDDEN10",
        "traceparent": "00-HIDDEN11",
        "x-request-id": "HIDDEN12",
    }
    refused(http.post(CHAT, json={**HELLO, "model": "https://x/?X-Amz-Signature=HIDDEN13"}, headers=told))
    secret_text = http.post(CHAT, json=chat(user("HIDDEN8"), max_tokens=2), headers=told)
    server.record(secret_text.json()["id"])
    eventually("its trace", lambda: collector.trace_of(secret_text.json()["id"]))
    traces = b"".join(collector.bodies).decode("latin-1")
    written = [server.request_log.read_text(), server.log_text(), server.metrics().text, traces, *replies]
    for text in written:
        assert "HIDDEN" not in text
        assert "X-Amz" not in text
        assert base64.b64encode(data)[40:80].decode() not in text
        assert ";base64" not in text


def hostile_bodies(data: bytes) -> list[bytes]:
    """Return bodies that carry a secret or a payload where no server expects one; whole, broken, and of types that nothing takes."""
    encoded_data = base64.b64encode(data).decode()
    bodies: list[Any] = [
        {**HELLO, "user": "HIDDEN20", "metadata": {"HIDDEN21": "HIDDEN22"}, "HIDDEN23": data_url(data)},
        {**HELLO, "model": data_url(data)},
        {
            **HELLO,
            "stop": ["HIDDEN24"],
            "tools": [{"type": "function", "function": {"name": "HIDDEN25", "parameters": {}}}],
        },
        {**HELLO, "messages": [{"role": "assistant", "tool_calls": [{"function": {"arguments": data_url(data)}}]}]},
        {**HELLO, "messages": [{"role": data_url(data), "content": "HIDDEN26"}]},
        {**HELLO, "response_format": {"type": data_url(data)}},
        {**HELLO, "temperature": data_url(data)},
        chat(
            user(
                {
                    "type": "image_url",
                    "image_url": {"url": data_url(data)},
                    "uuid": "https://x/?X-Amz-Signature=HIDDEN27",
                }
            )
        ),
        chat(user({"type": "image_url", "image_url": {"url": ""}, "uuid": encoded_data})),
        chat(user({"type": data_url(data), "text": "HIDDEN28"})),
        ask(f"data:image/png;HIDDEN29;base64,{encoded_data}!"),
        ask(f"data:HIDDEN30;base64,{encoded_data}"),
        ask(f"ftp://HIDDEN31:HIDDEN32@x/{encoded_data}"),
        ask(encoded_data),
    ]
    whole = [json.dumps(each).encode() for each in bodies]
    cut = json.dumps(ask(data_url(data))).encode()
    return [
        *whole,
        cut[: len(cut) // 2],
        b'{"messages": ' + encoded_data.encode(),
        data_url(data).encode(),
        b"\xff" + cut,
    ]


def test_hostile_bodies_and_headers_leave_nothing_anywhere(
    http: httpx.Client, server: Server, collector: Receiver
) -> None:
    data = new(6)
    told = {"x-api-key": "HIDDEN40", "api-key": "HIDDEN41", "cookie": "a=HIDDEN42", "baggage": "k=HIDDEN43"}
    for sent in hostile_bodies(data):
        http.post(f"{CHAT}?api_key=HIDDEN44", content=sent, headers={"content-type": "application/json", **told})
    http.get("/v1/HIDDEN45?X-Amz-Signature=HIDDEN46", headers=told)
    http.post("/v1/estimate", content=hostile_bodies(data)[0], headers=told)
    last = http.post(CHAT, json=HELLO, headers=told).json()["id"]
    server.record(last)
    eventually("its trace", lambda: collector.trace_of(last))
    costs = http.get("/admin/cost", params={"by": "tenant,model,modality,tier"})
    page = http.get("/dashboard/data")
    assert page.status_code == 200
    told_of = {
        "log": server.request_log.read_text(),
        "server's log": server.log_text(),
        "metrics": server.metrics().text,
        "traces": b"".join(collector.bodies).decode("latin-1"),
        "costs": costs.text,
        "dashboard": page.text,
    }
    pieces = base64.b64encode(data).decode()
    for name, text in told_of.items():
        assert "HIDDEN" not in text, name
        assert "X-Amz" not in text, name
        assert ";base64" not in text, name
        assert not [at for at in range(0, len(pieces) - 40, 40) if pieces[at : at + 40] in text], name


@field_case(121, "16 pictures; a model name and a parameter name of 5 kB", "log lines < 2 KB")
def test_log_lines_are_short(server: Server, http: httpx.Client) -> None:
    parts = [image(url_of(one("red", "circle", seed=seed))) for seed in range(16)]
    reply = http.post(CHAT, json=chat(user(*parts, "x" * 500))).json()
    assert server.record(reply["id"])["images"] == 16
    refused(http.post(CHAT, json={**HELLO, "model": "m" * 5000}))
    refused(http.post(CHAT, json={**HELLO, "x" * 5000: 1}))
    assert max(len(line) for line in server.request_log.read_bytes().splitlines()) < 2048


def test_metrics(http: httpx.Client, server: Server) -> None:
    server.wait_idle()
    before = server.metrics()
    content(http.post(CHAT, json=HELLO))
    content(http.post(CHAT, json=ask(data_url(new(6)))))
    server.wait_idle()
    after = server.metrics()
    for modality in ("text", "multimodal"):
        for name in (
            "foveate_ttft_seconds_count",
            "foveate_request_seconds_count",
            "foveate_unattributed_seconds_count",
        ):
            assert after.total(name, modality=modality) == before.total(name, modality=modality) + 1
    assert after.label_values("foveate_stage_seconds_count", "stage", modality="text") <= TEXT_STAGES
    assert after.label_values("foveate_stage_seconds_count", "stage", modality="multimodal") >= WORK | {"llm_prefill"}
    answered = {"outcome": "answered"}
    assert after.total("foveate_requests_total", **answered) == before.total("foveate_requests_total", **answered) + 2
    for name, growth in (
        ("foveate_images_total", 1),
        ("foveate_pixels_total", 224 * 224),
        ("foveate_visual_tokens_total", 64),
    ):
        assert after.total(name) == before.total(name) + growth
    for cache in ("processor", "encoder"):
        assert 0 < after.total(f"foveate_{cache}_cache_bytes") <= after.total(f"foveate_{cache}_cache_capacity_bytes")
    assert not any("cache_hit_ratio" in name for name in after.families)
    assert after.total("foveate_event_loop_lag_seconds_count") > before.total("foveate_event_loop_lag_seconds_count")
    assert after.has("foveate_event_loop_lag_p99_seconds")
