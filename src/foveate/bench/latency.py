"""Time to first token of a running server: repeated pictures, the gateway's own share, and what the stages leave unexplained."""

from __future__ import annotations

import asyncio
import statistics
import time

from foveate.bench.client import Connection, chat_body
from foveate.bench.figures import Figure
from foveate.bench.pictures import BLUE, RED, circle, data_url, encoded, photograph
from foveate.bench.server import HOST, Running, running
from foveate.core.clock import now
from foveate.core.request import Sampling, TextPart, Turn
from foveate.engines.embedded.client import EmbeddedEngine
from foveate.engines.embedded.messages import EmbeddedConfig
from foveate.engines.port import EngineWork
from foveate.models.files import resolve_model
from foveate.models.loading import load_prompt_side
from foveate.runtime.arena import Arena
from foveate.runtime.local.runtime import LocalRuntime

QUESTION = "What is in this image?"
GREETING = "Hello!"
MIXED_REQUESTS = 200
TEXT_REQUESTS = 40


def picture_body(server: Running, data: bytes, beginning: str = "") -> bytes:
    """Return the JSON of a question about an inline picture, which some words may precede."""
    picture = {"type": "image_url", "image_url": {"url": data_url(data)}}
    words = [{"type": "text", "text": beginning}] if beginning else []
    return chat_body([*words, picture, {"type": "text", "text": QUESTION}], model=server.model)


def repeated(rounds: int) -> list[Figure]:
    """First against repeated: the same 1080p picture asked about in another prompt, and in the same one, a new picture each round."""
    embedded: list[float] = []
    known: list[float] = []
    with running() as server, Connection(HOST, server.port) as connection:
        connection.ask(picture_body(server, encoded(photograph(1920, 1080, 99), quality=85)))
        for round_ in range(rounds * 4):
            data = encoded(photograph(1920, 1080, 100 + round_), quality=85)
            # Words before the picture, so that no prompt has its KV in common with another.
            bodies = [picture_body(server, data, f"{word} {round_}.") for word in ("First", "Again", "Again")]
            first, again, same = (connection.ask(body) for body in bodies)
            for later in (again, same):
                if not {"media_decode", "mm_processor", "vision_encode"}.isdisjoint(later.timing):
                    raise AssertionError("a repeated picture was decoded, processed or encoded again")
            embedded.append(again.timing["ttft"] / first.timing["ttft"])
            known.append(same.timing["ttft"] / first.timing["ttft"])
    what = f"TTFT of a later request for a 1080p JPEG / of the first, {len(known)} pictures"
    return [
        Figure(
            "Repeated picture, TTFT again / first", f"{what}; another prompt, which is prefilled", tuple(embedded), "x"
        ),
        Figure(
            "Repeated prompt with picture, the same", f"{what}; the same prompt, whose KV is kept", tuple(known), "x"
        ),
    ]


def unattributed(rounds: int) -> list[Figure]:
    """What no stage covers, over a mixed run: text, new pictures, repeated pictures, several pictures."""
    shares: dict[str, list[float]] = {"text": [], "multimodal": []}
    with running() as server, Connection(HOST, server.port) as connection:
        for number in range(MIXED_REQUESTS):
            kind, body = mixed_body(server, number)
            timing = connection.ask(body).timing
            if timing["unattributed"] < 0:
                raise AssertionError("a request's stages sum to more than its time to first token")
            shares[kind].append(100 * timing["unattributed"] / timing["ttft"])
    everything = shares["text"] + shares["multimodal"]
    what = f"100 x unattributed / TTFT, {len(everything)} requests, half text"
    return [
        Figure("Unattributed share of TTFT, all requests", what, tuple(everything), "%", 2.0),
        Figure("Unattributed share of TTFT, text", what, tuple(shares["text"]), "%", 2.0),
        Figure("Unattributed share of TTFT, multimodal", what, tuple(shares["multimodal"]), "%", 2.0),
    ]


def mixed_body(server: Running, number: int) -> tuple[str, bytes]:
    """Return the ``number``-th request of the mixed run and its modality."""
    if number % 2 == 0:
        return "text", chat_body(GREETING, model=server.model)
    colour = RED if number % 4 == 1 else BLUE
    shade = 255 - (number % 60)
    pictures = [circle(colour, shade=shade)] if number % 5 else [circle(colour), circle(BLUE, 336, shade=shade)]
    parts = [{"type": "image_url", "image_url": {"url": data_url(encoded(each, quality=90))}} for each in pictures]
    return "multimodal", chat_body([*parts, {"type": "text", "text": QUESTION}], model=server.model)


def overhead(rounds: int) -> list[Figure]:
    """A text request's TTFT seen by an HTTP client, less that of the engine called directly with the same prompt."""
    return asyncio.run(_overhead(rounds))


async def _overhead(rounds: int) -> list[Figure]:
    files = resolve_model(None)
    prompt_side = load_prompt_side(files)
    prompt = prompt_side.tokenize(prompt_side.render([Turn("user", (TextPart(GREETING),))]), [])
    runtime = LocalRuntime(Arena(64 * 2**20))
    config = EmbeddedConfig(files.directory, files.name)
    engine = EmbeddedEngine(runtime, config, threads=1, start_seconds_max=120)
    await engine.start()
    added: list[float] = []
    try:
        with (
            running("--engine-threads", "1", "--engine-prefix-cache-bytes-max", "0") as server,
            Connection(HOST, server.port) as connection,
        ):
            body = chat_body(GREETING, model=server.model)
            for _ in range(10):
                connection.ask(body)
                await _direct(engine, prompt, 0)
            for round_ in range(rounds):
                http: list[float] = []
                direct: list[float] = []
                for number in range(TEXT_REQUESTS):
                    http.append(connection.ask(body).first_ms)
                    direct.append(await _direct(engine, prompt, round_ * TEXT_REQUESTS + number))
                added.append(statistics.median(http) - statistics.median(direct))
    finally:
        await engine.stop(seconds_max=5)
        await runtime.close()
    what = f"median TTFT over HTTP - median of the engine called directly, {TEXT_REQUESTS} of each in each of {rounds} rounds"
    return [Figure("Gateway's added latency, text, p50", what, tuple(added), "ms", 2.0)]


async def _direct(engine: EmbeddedEngine, prompt: list[int], number: int) -> float:
    work = EngineWork(f"bench-{number}-{now()}", prompt, [], Sampling(tokens_max=8, temperature=0), now() + 60)
    first: float | None = None
    started = time.perf_counter()
    async for _ in engine.generate(work):
        if first is None:
            first = (time.perf_counter() - started) * 1e3
    assert first is not None
    return first
