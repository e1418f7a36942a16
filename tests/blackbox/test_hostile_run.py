"""Hostile requests of every kind mixed with good ones, 32 at once: who behaves notices nothing, and nothing is left over.

    HOSTILE_REQUESTS=1000 make test ARGS="tests/blackbox/test_hostile_run.py -s"

is the whole run; without the variable it is a shorter one. The last line that it prints compares how long good requests took
with the same requests alone at the same concurrency (docs/performance.md). No time is asserted.

Caches are off, so that the two passes cost the same.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import threading
import time
import zlib
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from statistics import quantiles
from typing import Any

import aiohttp
import psutil
import pytest
from PIL import Image
from tests.blackbox.conftest import SMALL
from tests.blackbox.field_cases.listeners import Trap, dripping, encoded_as, head, raw, silent, trap, zipped
from tests.blackbox.field_cases.marks import ANSWERED, field_case
from tests.blackbox.origins import Origin, body, endless, origin, redirect, stalled, status
from tests.blackbox.pictures import ask, case, chat, data_url, encoded, image, one, url_of, user
from tests.blackbox.server import Server, eventually

pytestmark = pytest.mark.xdist_group("alone")
REQUESTS = int(os.environ.get("HOSTILE_REQUESTS", "300"))
CONCURRENCY = 32
CHAT = "/v1/chat/completions"
LIMITS = {
    "max-images": "4",
    "max-image-pixels": "4000000",
    "max-item-bytes": "1MiB",
    "max-fetch-seconds": "3",
    "fetch-first-byte-seconds": "1",
    "fetch-read-seconds": "1",
    "server-body-bytes-max": "4MiB",
    "cache-encoder-bytes-max": "0",
    "cache-processor-bytes-max": "0",
}
WHERE = "messages[0].content"
LEAVES = "leaves"
IDLE = (
    "foveate_requests_in_flight",
    "foveate_media_workers_busy",
    "foveate_media_queue_length",
    "foveate_admission_waiting",
    "foveate_admission_places_taken",
    "foveate_in_flight_requests",
    "foveate_in_flight_media_bytes",
    "foveate_in_flight_pixels",
    "foveate_in_flight_visual_tokens",
    "foveate_in_flight_tenants",
    "foveate_encoder_cache_pinned_entries",
    "foveate_processor_cache_pinned_entries",
)


@dataclass(frozen=True)
class Sent:
    """One request: its kind, its body, and the answers that are right for it. A good one must be answered."""

    kind: str
    data: bytes
    right: tuple[tuple[int, str], ...] = ()


@dataclass
class Pass:
    """What came of one pass over requests."""

    texts: dict[int, str] = field(default_factory=dict)
    seconds: dict[int, float] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)
    ended: Counter[str] = field(default_factory=Counter)


def sent(kind: str, made: Any, *right: tuple[int, str]) -> Sent:
    return Sent(kind, made if isinstance(made, bytes) else json.dumps(made).encode(), right)


def good(web: Origin) -> list[Sent]:
    """Return good requests: text, pictures inline, pictures by URL."""
    made = [sent("text", chat(user(f"Hello {number}!"), max_tokens=6)) for number in range(8)]
    for number in range(16):
        data = encoded(one(("red", "blue", "green", "black")[number % 4], "circle", seed=number, size=(112, 112)))
        made.append(sent("inline", ask(data_url(data), max_tokens=6)))
        web.pages[f"/good{number}.png"] = body(data)
        made.append(sent("url", ask(f"{web.url}/good{number}.png?sig=SECRET", max_tokens=6)))
    return made


def hostile_urls(bad: Origin, forbidden: Trap, gate: threading.Event) -> Iterator[Sent]:
    """Yield one request for each hostile kind of URL. ``bad`` falls silent again and again, and may count as dead."""
    refused, invalid, dead = (400, "media_url_refused"), (400, "invalid_media_url"), (502, "media_fetch_failed")
    late = (504, "media_fetch_timeout")
    bomb = case("case026_64MiB_zeros_content_encoding.gz")
    for name, answer, right in (
        ("to-forbidden", redirect(f"http://127.0.0.2:{forbidden.port}/x?t=SECRET"), refused),
        ("to-file", redirect("file:///etc/passwd"), refused),
        ("to-doubt", redirect("http://127.1/"), invalid),
        ("loop", redirect("/loop"), (400, "too_many_redirects")),
        ("404", status(404), (400, "media_fetch_rejected")),
        ("503", status(503), dead),
        ("silent", silent(gate), late),
        ("stalled", stalled(gate), late),
        ("dripping", dripping(gate, 0.2), late),
        ("endless", endless(gate), (413, "media_too_large")),
        ("announced", raw(head("Content-Length: 99999999999")), (413, "media_too_large")),
        ("gzip", encoded_as("gzip", bomb), (413, "media_too_large")),
        ("twice", encoded_as("gzip, gzip", zipped(bomb)), (400, "media_fetch_rejected")),
        ("no-http", raw(b"SSH-2.0-OpenSSH\r\n"), dead),
        ("html", body(case("case030_html_error_page.jpg"), "image/jpeg"), (415, "media_unsupported")),
        ("bomb", body(case("case059_14000x14000_gray.png")), (413, "image_too_large")),
    ):
        bad.pages[f"/{name}"] = answer
        yield sent(name, ask(f"{bad.url}/{name}?X-Amz-Signature=SECRET"), right, dead)
    for url, right in (
        (f"http://127.0.0.2:{forbidden.port}/?t=SECRET", refused),
        ("http://169.254.169.254/latest/meta-data/", refused),
        (f"http://[::ffff:127.0.0.2]:{forbidden.port}/", refused),
        (f"http://2130706434:{forbidden.port}/", invalid),
        (f"http://a:SECRET@127.0.0.1:{bad.port}/", invalid),
        ("file:///etc/passwd", refused),
    ):
        yield sent(url[:24], ask(url), right)
    bad.pages["/left.png"] = silent(gate)
    yield sent(LEAVES, ask(f"{bad.url}/left.png"))


def expanding() -> bytes:
    """Return a PNG whose data expands far beyond what its header announces."""
    png = encoded(Image.new("L", (8, 8)))
    start, end = png.index(b"IDAT") - 4, png.index(b"IEND") - 4
    packed = zlib.compress(b"\x00" * 50_000_000, 9)
    chunk = len(packed).to_bytes(4, "big") + b"IDAT" + packed + zlib.crc32(b"IDAT" + packed).to_bytes(4, "big")
    return png[:start] + chunk + png[end:]


def hostile_bodies() -> Iterator[Sent]:
    """Yield one request for each hostile kind of body and of inline media."""
    unsupported, undecodable = (415, "media_unsupported"), (422, "media_undecodable")
    frames = [Image.new("RGB", (1, 1), (number % 256, number // 256, 0)) for number in range(1200)]
    for name, data, right in (
        ("bomb inline", case("case059_14000x14000_gray.png"), (413, "image_too_large")),
        ("header", case("case059_header_60000x60000.png"), (413, "image_too_large")),
        ("large", encoded(Image.new("1", (2100, 2100))), (413, "image_too_large")),
        ("needle", case("case057_1608x8_ratio201.png"), (400, "image_shape_unsupported")),
        ("garbage", case("case061_garbage5.bin"), unsupported),
        ("heic", case("case065_ftypheic_named.jpg"), unsupported),
        ("svg", case("case067_external_ref.svg"), unsupported),
        ("pdf", b"%PDF-1.4\n", unsupported),
        ("half", case("case062_half.jpg"), undecodable),
        ("frames", encoded(frames[0], "GIF", save_all=True, append_images=frames[1:]), (400, "too_many_frames")),
        ("bytes", case("case061_garbage5.bin") + bytes(1_200_000), (413, "media_too_large")),
    ):
        yield sent(name, ask(data_url(data)), right)
    yield sent("expanding", ask(data_url(expanding()), max_tokens=2), (200, ""), undecodable, (422, "media_too_costly"))
    picture = image(url_of(one("red", "circle")))
    yield sent("five pictures", chat(user(*[picture] * 5, "x")), (400, "too_many_images"))
    yield sent("base64", ask("data:image/png;base64,AAA!"), (400, "invalid_data_url"))
    yield sent("part", chat(user({"type": "hologram", "hologram": "AAAA"})), (400, "invalid_content_part"))
    yield sent("embeds", chat(user({"type": "image_embeds", "image_embeds": "AAAA"})), (400, "embeddings_not_accepted"))
    yield sent("unknown", {**chat(user("x")), "SECRET": 1}, (400, "invalid_parameter"))
    yield sent("model", {**chat(user("x")), "model": "SECRET"}, (404, "model_not_found"))
    for name, data in (("json", b'{"messages": ['), ("deep", b"[" * 300_000), ("bytes of no text", b"\xff" * 300_000)):
        yield sent(name, data, (400, "invalid_parameter"), (400, "invalid_request"))
    yield sent("body", b'{"messages": "' + b"x" * 5 * 2**20 + b'"}', (413, "body_too_large"))
    yield sent(LEAVES, {**chat(user("Hello!")), "max_tokens": 3000, "ignore_eos": True, "stream": True})


async def drive(server: Server, requests: list[Sent]) -> Pass:
    """Send all of these, ``CONCURRENCY`` at once."""
    run = Pass()
    numbered = iter(enumerate(requests))
    timeout = aiohttp.ClientTimeout(total=120)

    async def client(session: aiohttp.ClientSession) -> None:
        for number, request in numbered:
            if request.kind == LEAVES:
                await leave(server, request.data)
                run.ended["cancelled"] += 1
                continue
            began = time.perf_counter()
            headers = {"content-type": "application/json"}
            async with session.post(CHAT, data=request.data, headers=headers) as response:
                reply = json.loads(await response.text())
            run.seconds[number] = time.perf_counter() - began
            run.ended["answered" if response.status == 200 else "error"] += 1
            if response.status == 200:
                run.texts[number] = reply["choices"][0]["message"]["content"]
            told = (response.status, "" if response.status == 200 else reply["error"]["code"])
            if told not in (request.right or ((200, ""),)):
                run.wrong.append(f"{request.kind}: {told} {str(reply)[:300]}")

    connector = aiohttp.TCPConnector(limit=CONCURRENCY)
    async with (
        aiohttp.ClientSession(server.base_url, timeout=timeout, connector=connector) as session,
        asyncio.TaskGroup() as clients,
    ):
        for _ in range(CONCURRENCY):
            clients.create_task(client(session))
    return run


async def leave(server: Server, data: bytes) -> None:
    """Send a whole request, wait until it is surely under way, and go."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    headers = (
        f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
    )
    writer.write(headers.encode() + data)
    await writer.drain()
    await asyncio.sleep(0.3)
    assert not reader.at_eof()
    writer.close()


def ends(server: Server) -> Counter[str]:
    """Return the requests ended so far, by outcome."""
    metrics = server.metrics()
    outcomes = metrics.label_values("foveate_requests_total", "outcome")
    return Counter({name: int(metrics.total("foveate_requests_total", outcome=name)) for name in outcomes})


def lasting(server: Server) -> dict[str, tuple[int, float]]:
    """Return the processes that no request may end, each with its birth."""
    return {
        f"{name} {process.pid}": (process.pid, process.create_time())
        for name in ("foveate: gateway", "foveate: engine 0", "foveate: forkserver")
        for process in server.titled(name)
    }


def own_bytes(pid: int) -> int:
    """Return the memory of a process that it shares with nobody."""
    return int(psutil.Process(pid).memory_full_info().uss)


@dataclass
class Outcome:
    """The whole run, as the tests look at it."""

    requests: list[Sent]
    quiet: Pass
    mixed: Pass
    ended: Counter[str]
    logged: Counter[str]
    before: dict[str, tuple[int, float]]
    after: dict[str, tuple[int, float]]
    files: tuple[int, int]
    memory: tuple[dict[int, int], dict[int, int]]
    gauges: dict[str, float]
    forbidden: int
    logs: tuple[bytes, bytes]


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Outcome]:
    gate = threading.Event()
    with ExitStack() as scope:
        web = scope.enter_context(origin("127.0.0.1"))
        bad = scope.enter_context(origin("127.0.0.5", web.port))
        forbidden = scope.enter_context(trap(("127.0.0.2", web.port)))
        scope.callback(gate.set)
        flags = [text for name, value in LIMITS.items() for text in (f"--{name}", value)]
        networks = ("--fetch-private-networks", "127.0.0.1/32,127.0.0.5/32", "--fetch-ports", f"80,443,{web.port}")
        directory = tmp_path_factory.mktemp("hostile")
        server = Server(directory, *SMALL, "--fetch-http-allowed", *networks, *flags, forked=True)
        scope.callback(server.kill_all)
        yield run_all(server, good(web), [*hostile_urls(bad, forbidden, gate), *hostile_bodies()], forbidden)
        server.stop()


def run_all(server: Server, kinds: list[Sent], hostile: list[Sent], forbidden: Trap) -> Outcome:
    """Run the good requests alone, then the same ones mixed with as many hostile ones."""
    mixed = [
        (kinds if number % 2 else hostile)[number // 2 % len(kinds if number % 2 else hostile)]
        for number in range(REQUESTS)
    ]
    random.Random(7).shuffle(mixed)
    asyncio.run(drive(server, kinds))
    quiet = asyncio.run(drive(server, [request for request in mixed if not request.right and request.kind != LEAVES]))
    server.wait_told()
    before, ended, logged = lasting(server), ends(server), len(server.records())
    files, memory = open_files(server), {pid: own_bytes(pid) for pid, _ in before.values()}
    run = asyncio.run(drive(server, mixed))
    server.wait_told()
    records = Counter(record["outcome"] for record in server.records()[logged:])
    gauges = {name: server.metrics().total(name) for name in IDLE}
    eventually("connections to be closed", lambda: open_files(server) <= files + 16, seconds=30)
    after = lasting(server)
    return Outcome(
        mixed,
        quiet,
        run,
        ends(server) - ended,
        records,
        before,
        after,
        (files, open_files(server)),
        (memory, {pid: own_bytes(pid) for pid, _ in after.values()}),
        gauges,
        forbidden.connections,
        (server.request_log.read_bytes(), server.server_log.read_bytes()),
    )


def open_files(server: Server) -> int:
    return psutil.Process(server.pid).num_fds()


@field_case(
    125,
    "hostile requests of 45 kinds mixed with as many good ones, 32 at once: every good one is answered as if alone",
    ANSWERED,
)
@pytest.mark.timeout(1200)
def test_every_request_gets_its_right_answer(outcome: Outcome) -> None:
    assert outcome.quiet.wrong == []
    assert outcome.mixed.wrong == []
    alone = iter(outcome.quiet.texts.values())
    by_data: dict[bytes, set[str]] = {}
    good_ones = [request for request in outcome.requests if not request.right and request.kind != LEAVES]
    for number, request in enumerate(good_ones):
        by_data.setdefault(request.data, set()).add(outcome.quiet.texts[number])
    assert next(alone)
    for number, request in enumerate(outcome.requests):
        if request.data in by_data and request.kind != LEAVES:
            assert outcome.mixed.texts[number] in by_data[request.data], request.kind


def test_good_requests_beside_hostile_ones_as_figures(outcome: Outcome, capsys: pytest.CaptureFixture[str]) -> None:
    """Printed, not asserted: a shared machine decides more about a time than this server does."""
    good_ones = [request for request in outcome.requests if not request.right and request.kind != LEAVES]
    for kind in ("text", "inline", "url"):
        alone = [outcome.quiet.seconds[number] for number, request in enumerate(good_ones) if request.kind == kind]
        beside = [
            outcome.mixed.seconds[number] for number, request in enumerate(outcome.requests) if request.kind == kind
        ]
        assert alone
        assert len(alone) == len(beside)
        p95 = quantiles(alone, n=20)[-1]
        slower = sum(seconds > 2 * p95 for seconds in beside)
        with capsys.disabled():
            print(  # noqa: T201
                f"\nhostile run, {REQUESTS} requests, {kind}: quiet p95 {p95 * 1000:.0f} ms; beside hostile ones "
                f"p95 {quantiles(beside, n=20)[-1] * 1000:.0f} ms, slowest {max(beside) / p95:.2f} x the quiet p95, "
                f"{slower} of {len(beside)} above 2 x",
                end="",
            )


def test_no_process_was_replaced(outcome: Outcome) -> None:
    """Neither gateway nor engine. A media worker may be: it is what hostile media can cost."""
    assert outcome.after == outcome.before
    assert len(outcome.before) >= 2


def test_every_request_is_in_the_log_once(outcome: Outcome) -> None:
    logged, ended = outcome.logged, outcome.mixed.ended
    assert logged.total() == REQUESTS, logged
    assert (logged["answered"], logged["cancelled"]) == (ended["answered"], ended["cancelled"])
    assert logged["refused"] + logged["overloaded"] + logged["failed"] == ended["error"]


def test_every_request_is_counted_once(outcome: Outcome) -> None:
    assert outcome.ended == outcome.logged


@field_case(128, "the same: descriptors and memory afterwards", "flat; nothing in flight")
def test_nothing_is_left_over(outcome: Outcome) -> None:
    assert outcome.gauges == dict.fromkeys(IDLE, 0.0)
    assert outcome.files[1] <= outcome.files[0] + 16
    for pid, grown in outcome.memory[1].items():
        assert grown <= outcome.memory[0][pid] + 64e6, f"{grown - outcome.memory[0][pid]} bytes more"


def test_nobody_reached_what_is_forbidden(outcome: Outcome) -> None:
    assert outcome.forbidden == 0


def test_logs_are_short_and_hold_no_secret(outcome: Outcome) -> None:
    for log in outcome.logs:
        assert max(map(len, log.splitlines())) < 2048
        assert b"SECRET" not in log
        assert b";base64" not in log
        assert b"Traceback" not in log
