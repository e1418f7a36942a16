"""Two thousand requests from 64 clients, half with pictures: none fails, memory does not grow, the books balance."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Iterator
from statistics import mean, median
from typing import Any

import aiohttp
import pytest
from tests.blackbox.conftest import SMALL
from tests.blackbox.field_cases.marks import ANSWERED, field_case
from tests.blackbox.pictures import ask, chat, data_url, encoded, one, user
from tests.blackbox.replies import STAGES, TEXT_STAGES
from tests.blackbox.server import Server, resident_bytes

pytestmark = pytest.mark.xdist_group("alone")
CLIENTS = 64
REQUESTS = 2000
COLOURS = ("red", "blue", "green", "black")
FORMS = ("circle", "square", "star")


class Run:
    """What came of the run. ``resident`` has the memory of all processes, after every fifty requests."""

    def __init__(self) -> None:
        self.failures: list[str] = []
        self.right = Counter[bool]()
        self.resident: list[int] = []
        self.records: list[dict[str, Any]] = []
        self.replaced: set[int] = set()


def body(number: int) -> tuple[bytes, str | None]:
    """Return a request and the answer it should get. Half of those with pictures are about one of twelve."""
    if number % 2:
        words = "What is in this image? " * (number % 7)
        return json.dumps(chat(user(f"{words}Hello {number}!"), max_tokens=6, stream=number % 4 == 1)).encode(), None
    colour, form = COLOURS[number // 2 % 4], FORMS[number // 2 % 3]
    picture = one(colour, form, seed=number if number % 4 else None, size=(168, 168))
    made = ask(data_url(encoded(picture, "JPEG", quality=92), "image/jpeg"), max_tokens=6, stream=number % 8 == 0)
    return json.dumps(made).encode(), f"A {colour} {form}."


async def drive(server: Server) -> Run:
    run = Run()
    numbers = iter(range(REQUESTS))
    processes = server.processes()
    done = 0

    async def client(session: aiohttp.ClientSession) -> None:
        nonlocal done
        for number in numbers:
            data, expected = await asyncio.to_thread(body, number)
            async with session.post(
                "/v1/chat/completions", data=data, headers={"content-type": "application/json"}
            ) as response:
                text = await response.text()
            if response.status != 200 or '"error"' in text or not text.endswith(("[DONE]\n\n", "}")):
                run.failures.append(f"{number}: {response.status} {text[:300]}")
            elif expected is not None and text.endswith("}"):
                run.right[json.loads(text)["choices"][0]["message"]["content"] == expected] += 1
            done += 1
            if done % 50 == 0:
                run.resident.append(await asyncio.to_thread(resident_bytes, processes))

    timeout = aiohttp.ClientTimeout(total=120)
    async with (
        aiohttp.ClientSession(
            server.base_url, timeout=timeout, connector=aiohttp.TCPConnector(limit=CLIENTS)
        ) as session,
        asyncio.TaskGroup() as clients,
    ):
        for _ in range(CLIENTS):
            clients.create_task(client(session))
    run.replaced = {process.pid for process in server.processes()} - {process.pid for process in processes}
    await asyncio.to_thread(server.wait_told)
    run.records = server.records()
    return run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    """Caches are small, so that they are full well before the second half."""
    server = Server(
        tmp_path_factory.mktemp("soak"),
        *SMALL,
        "--cache-encoder-bytes-max",
        "4MiB",
        "--cache-processor-bytes-max",
        "4MiB",
        forked=True,
    )
    try:
        yield asyncio.run(drive(server))
        server.stop()
    finally:
        server.kill_all()


@field_case(125, "2,000 requests from 64 clients", ANSWERED)
@pytest.mark.timeout(420)
def test_no_request_fails(run: Run) -> None:
    assert run.failures == []
    assert not run.replaced, "a process was replaced"
    assert len(run.records) == REQUESTS
    assert Counter(record["outcome"] for record in run.records) == {"answered": REQUESTS}
    assert Counter(record["modality"] for record in run.records) == {"text": REQUESTS // 2, "multimodal": REQUESTS // 2}


def test_answers_under_load_are_those_of_the_model(run: Run) -> None:
    assert run.right[True] >= 0.97 * run.right.total()


@field_case(
    93,
    "2,000 requests, 500 of them about pictures of their own; caches of 4 MiB",
    "the memory of all processes does not grow in the second half",
)
def test_memory_does_not_grow_in_the_second_half(run: Run) -> None:
    middle = len(run.resident) // 2
    at_half, at_end = mean(run.resident[middle - 2 : middle + 3]), mean(run.resident[-5:])
    assert at_end <= 1.05 * at_half, [size // 2**20 for size in run.resident]


def test_books_balance(run: Run) -> None:
    for record in run.records:
        stages = [record.get(f"{stage}_ms") or 0 for stage in STAGES]
        assert min(stages) >= 0
        assert record["unattributed_ms"] >= 0
        assert abs(sum(stages) + record["unattributed_ms"] - record["ttft_ms"]) <= 0.01, record
        if record["modality"] == "text":
            assert not any(record.get(f"{stage}_ms") for stage in STAGES if stage not in TEXT_STAGES)


def test_hardly_any_time_is_unattributed(run: Run) -> None:
    """At the median of any 200 requests of the mixed run, at most 2 % of the time to the first token."""
    for start in range(0, REQUESTS, 200):
        shares = [record["unattributed_ms"] / record["ttft_ms"] for record in run.records[start : start + 200]]
        assert median(shares) <= 0.02, median(shares)
