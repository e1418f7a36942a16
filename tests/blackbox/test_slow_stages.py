"""Each stage is made slow in turn, and everything that an operator has names that stage: metrics, log, waterfall, trace and dashboard.

Causes are what they are in life (a slow origin, a big picture, a full queue, a stalled engine); only the encoder and the transfer of
embeddings, which nothing outside makes slow, are delayed by a changed module (``slowed/sitecustomize.py``).
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from selenium.webdriver.common.by import By
from selenium.webdriver.support.wait import WebDriverWait
from tests.blackbox.conftest import SMALL
from tests.blackbox.origins import Origin, body, delayed
from tests.blackbox.pictures import ask, chat, data_url, encoded, image, one, url_of, user
from tests.blackbox.replies import STAGES, content
from tests.blackbox.server import Metrics, Server, eventually
from tests.browser import browser, keep_picture, look
from tests.otlp import Receiver
from typer.testing import CliRunner

from foveate.cli.main import app

CHAT = "/v1/chat/completions"
SLOWED = Path(__file__).parent / "slowed"
SLOW_SECONDS = 0.7
KNOWN = url_of(one("red", "circle"))
"""A picture whose embeddings are kept from the first request on."""


class Bench:
    """A server with one place of everything, and what its requests came to."""

    def __init__(self, server: Server, web: Origin, delays: Path) -> None:
        self.server = server
        self.web = web
        self.client = server.client()
        self._delays = delays

    @contextmanager
    def slow(self, **seconds: float) -> Iterator[None]:
        self._delays.write_text(json.dumps(seconds))
        yield
        self._delays.write_text("{}")

    def ask(self, question: dict[str, Any]) -> str:
        reply = self.client.post(CHAT, json=question)
        content(reply)
        return str(reply.json()["id"])

    def at_once(self, *questions: dict[str, Any]) -> list[str]:
        """Ask one after another without waiting; return the requests' ids in that order."""
        with ThreadPoolExecutor(len(questions)) as pool:
            asked = []
            for question in questions:
                asked.append(pool.submit(self.ask, question))
                time.sleep(0.1)
            return [each.result() for each in asked]

    def stop_engine(self, seconds: float) -> None:
        """Stop the engine's process for a while, as a machine that is short of memory does."""
        (engine,) = self.server.titled("foveate: engine 0")
        engine.send_signal(signal.SIGSTOP)
        time.sleep(seconds)
        engine.send_signal(signal.SIGCONT)


def gradient(side: int) -> Image.Image:
    y, x = np.mgrid[0:side, 0:side]
    return Image.fromarray(np.stack([x // 16, y // 16, (x + y) // 31], -1).astype(np.uint8))


def shapes(number: int, seed: int) -> list[dict[str, Any]]:
    return [image(url_of(one("blue", "star", seed=seed + index))) for index in range(number)]


def slow_admission(bench: Bench) -> str:
    """The only place for requests with pictures is taken."""
    with bench.slow(vision_encode=1.5):
        return bench.at_once(chat(user(*shapes(1, 7100), "Describe.")), *[ask(KNOWN, max_tokens=1)] * 3)[1]


def slow_origin(bench: Bench) -> str:
    bench.web.pages["/late.png"] = delayed(SLOW_SECONDS, body(encoded(one("green", "star", seed=7200))))
    return bench.ask(ask(f"{bench.web.url}/late.png"))


def slow_decode(bench: Bench) -> str:
    return bench.ask(ask(data_url(encoded(gradient(3000).convert("P"), "GIF"), "image/gif")))


def slow_processor(bench: Bench) -> str:
    """JPEG is decoded quickly; making a large picture small is the larger part."""
    return bench.ask(ask(data_url(encoded(gradient(4000), "JPEG", quality=60), "image/jpeg")))


def slow_encoder_queue(bench: Bench) -> str:
    """The encoder takes one picture at a time: the last of four waits for three."""
    with bench.slow(vision_encode=SLOW_SECONDS / 2):
        return bench.ask(chat(user(*shapes(4, 7300), "Describe.")))


def slow_encode(bench: Bench) -> str:
    with bench.slow(vision_encode=SLOW_SECONDS):
        return bench.ask(chat(user(*shapes(1, 7400), "Describe.")))


def slow_transfer(bench: Bench) -> str:
    with bench.slow(embedding_transfer=SLOW_SECONDS):
        return bench.ask(chat(user(*shapes(1, 7500), "Describe.")))


def slow_llm_queue(bench: Bench) -> str:
    """The batch has one row, and a long answer is in it."""
    return bench.at_once(
        chat(user("Hello!"), max_tokens=300, ignore_eos=True), *[chat(user("Hello!"), max_tokens=1)] * 3
    )[1]


def slow_prefill(bench: Bench) -> str:
    return bench.ask(chat(user("a red circle and a blue star " * 150), max_tokens=2))


def slow_tokens(bench: Bench) -> str:
    """The engine stalls in the middle of an answer."""
    question = chat(user("Tell me!"), max_tokens=60, ignore_eos=True, stream=True)
    with bench.client.stream("POST", CHAT, json=question) as reply:
        lines = reply.iter_lines()
        while '"content":"' not in next(lines):
            pass
        bench.stop_engine(1.5)
        assert "data: [DONE]" in list(lines)
        return str(reply.headers["x-request-id"])


CAUSES: dict[str, Callable[[Bench], str]] = {
    "admission": slow_admission,
    "media_fetch": slow_origin,
    "media_decode": slow_decode,
    "mm_processor": slow_processor,
    "encoder_queue": slow_encoder_queue,
    "vision_encode": slow_encode,
    "embedding_transfer": slow_transfer,
    "llm_queue": slow_llm_queue,
    "llm_prefill": slow_prefill,
    "tpot": slow_tokens,
}
TEXT = {"llm_queue", "llm_prefill", "tpot"}


class Slow:
    """What there is to see of each slow request: its id, and the metrics before and after it."""

    def __init__(self, bench: Bench) -> None:
        self.server = bench.server
        self.ids: dict[str, str] = {}
        self.before: dict[str, Metrics] = {}
        self.after: dict[str, Metrics] = {}
        bench.ask(ask(KNOWN))
        for stage, cause in CAUSES.items():
            bench.server.wait_idle()
            self.before[stage] = bench.server.metrics()
            self.ids[stage] = cause(bench)
            bench.server.wait_idle()
            self.after[stage] = bench.server.metrics()

    def grown(self, when: str, name: str, **labels: str) -> float:
        """Return by how much a metric grew while the stage ``when`` was slow."""
        return self.after[when].total(name, **labels) - self.before[when].total(name, **labels)


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory, web: Origin, collector: Receiver) -> Iterator[Slow]:
    directory = tmp_path_factory.mktemp("slow")
    delays = directory / "delays.json"
    delays.write_text("{}")
    server = Server(
        directory,
        *SMALL,
        *("--limits-multimodal-requests-max", "1", "--engine-batch-size-max", "1"),
        *("--engine-prefix-cache-bytes-max", "0", "--trace-otlp-endpoint", collector.url),
        *("--fetch-http-allowed", "--fetch-private-networks", "127.0.0.1/32", "--fetch-ports", f"80,443,{web.port}"),
        SLOWED=str(delays),
        PYTHONPATH=os.pathsep.join([str(SLOWED), os.environ.get("PYTHONPATH", "")]),
    )
    try:
        yield Slow(Bench(server, web, delays))
        server.stop()
    finally:
        server.kill_all()


def most(times: dict[str, float]) -> str:
    return max(times, key=times.__getitem__)


@pytest.mark.parametrize("stage", CAUSES)
def test_log_and_waterfall_name_it(seen: Slow, stage: str) -> None:
    record = seen.server.record(seen.ids[stage])
    shown = CliRunner().invoke(app, ["log", "show", record["id"], "--file", str(seen.server.request_log)]).stdout
    longest = max(shown.splitlines(), key=lambda row: row.count("█")).split()
    if stage == "tpot":
        assert record["tpot_ms"] * (record["output_tokens"] - 1) > record["ttft_ms"]
        assert longest[0] == "tpot"
        return
    assert most({name: record.get(f"{name}_ms") or 0 for name in STAGES}) == stage
    assert record[f"{stage}_ms"] > record["unattributed_ms"], "it explains the wait"
    assert stage in longest[:3]
    assert "*" in longest
    listed = CliRunner().invoke(
        app, ["log", "--slowest", "3", "--stage", stage, "--file", str(seen.server.request_log)]
    )
    assert record["id"] in listed.stdout


@pytest.mark.parametrize("stage", CAUSES)
def test_the_trace_names_it(seen: Slow, collector: Receiver, stage: str) -> None:
    spans = eventually("its trace", lambda: collector.trace_of(seen.ids[stage]))
    critical = {span.span_id for span in spans if span.attributes.get("foveate.critical")} | {spans[0].span_id}
    times: dict[str, float] = {}
    for span in spans[1:]:
        if span.name != "item" and span.parent_id in critical:
            times[span.name] = times.get(span.name, 0.0) + span.end - span.start
    assert most(times) == stage


@pytest.mark.parametrize("stage", CAUSES)
def test_the_metrics_name_it(seen: Slow, stage: str) -> None:
    modality = "text" if stage in TEXT else "multimodal"
    grown = partial(seen.grown, stage, modality=modality, topology="agg")
    if stage == "tpot":
        assert grown("foveate_tpot_seconds_sum") > 1.5 / 60
        gaps = partial(grown, "foveate_inter_token_seconds_bucket")
        assert gaps(le="+Inf") - gaps(le="1.0") >= 1, "the gap as it was, and not each token's share of it"
        return
    assert most({name: grown("foveate_stage_seconds_sum", stage=name) for name in STAGES}) == stage


def test_what_the_parts_tell_of_themselves(seen: Slow) -> None:
    """Queues, batches and memory, beside the stages."""
    assert seen.grown("encoder_queue", "foveate_encoder_batch_pictures_count") == 4
    assert seen.grown("encoder_queue", "foveate_encoder_batch_pictures_sum") == 4
    assert seen.grown("vision_encode", "foveate_encoder_busy_seconds_total") > SLOW_SECONDS
    assert seen.after["embedding_transfer"].total("foveate_encoders_busy") > 0
    assert seen.grown("media_decode", "foveate_media_queue_seconds_count") >= 1
    last = seen.after["tpot"]
    held = {kind: last.total("foveate_process_resident_bytes", process=kind) for kind in ("gateway", "media", "engine")}
    assert min(held.values()) > 10 << 20, "of each kind of process"
    for gauge in ("encoder_queue_length", "llm_waiting", "llm_running", "media_queue_length"):
        assert last.has(f"foveate_{gauge}")
        assert last.total(f"foveate_{gauge}") == 0, "once it is idle"


def test_the_dashboard_names_all_of_them(seen: Slow, tmp_path: Path) -> None:
    with browser(tmp_path) as tab:
        look(tab, width=1280, height=900, dark=False)
        tab.get(f"{seen.server.base_url}/dashboard")
        wait = WebDriverWait(tab, 60)
        wait.until(lambda _: tab.find_elements(By.CSS_SELECTOR, "#slowest-text details"))
        tab.find_element(By.ID, "pause").click()
        named: dict[str, tuple[str, str]] = {}
        for stage, request_id in seen.ids.items():
            modality = "text" if stage in TEXT else "multimodal"
            entry = tab.find_element(By.CSS_SELECTOR, f'#slowest-{modality} details[data-id="{request_id}"]')
            summary = entry.find_element(By.TAG_NAME, "summary")
            tab.execute_script("arguments[0].scrollIntoView({block: 'center'})", summary)
            summary.click()
            wait.until(lambda _, entry=entry: entry.find_elements(By.CSS_SELECTOR, ".bar"))
            widths = tab.execute_script(
                "return [...arguments[0].querySelectorAll('.bar')].filter(b => b.classList.contains('critical') || "
                "b.dataset.stage === 'tpot').map(b => [b.dataset.stage, b.querySelector('.track i').offsetWidth])",
                entry,
            )
            widest = max(widths, key=lambda pair: pair[1])[0]
            named[stage] = (stage if stage == "tpot" else summary.text.split("\n")[1], widest)
        keep_picture(tab, "dashboard-slow-stages.png")
    assert named == {stage: (stage, stage) for stage in CAUSES}
