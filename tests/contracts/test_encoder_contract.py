"""What every vision encoder promises (:mod:`foveate.encoders.port`), in real processes: the engine's own, and encode workers.

And that it makes no difference to an answer which of them encoded: the same embeddings bit for bit, the same greedy tokens.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import pytest_asyncio
from tests.contracts.bench import MODEL, Bench
from tests.families import build_family

from foveate import models
from foveate.core.clock import now
from foveate.core.errors import DeadlineExceeded, EncodeFailed
from foveate.core.media import EncodedImage, PreparedImage
from foveate.core.request import Sampling
from foveate.encoders.messages import EncoderConfig
from foveate.encoders.pool import EncoderPool
from foveate.encoders.port import Encoder, Purpose
from foveate.encoders.workers import PoolConfig
from foveate.models.files import ModelFiles
from foveate.runtime.arena import Arena
from foveate.runtime.local.runtime import LocalRuntime
from foveate.runtime.tensors import read_bundle, write_bundle

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(300)]

RED, BLUE = (220, 30, 30), (30, 60, 220)
TOKENS = Sampling(8, temperature=0, ignore_eos=True)
ENCODERS = ("engine", "workers")


class Both:
    """An engine, and encode workers of the same model beside it."""

    def __init__(self, runtime: LocalRuntime, files: ModelFiles = MODEL, workers: int = 2) -> None:
        self.bench = Bench("embedded", runtime, files)
        config = PoolConfig(workers, EncoderConfig(files.directory), start_seconds_max=280)
        self.pool = EncoderPool(runtime, config)

    async def start(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.bench.engine.start())
            tasks.create_task(self.pool.start())
        assert self.pool.expect(self.bench.engine.info.encoder_version) == 0

    async def stop(self) -> None:
        await self.pool.stop(seconds_max=5)
        await self.bench.engine.stop(seconds_max=5)

    def encoder(self, name: str) -> Encoder:
        found: Any = self.bench.engine if name == "engine" else self.pool
        return found

    async def encode(self, name: str, prepared: PreparedImage, seconds: float = 60, content: str = "") -> EncodedImage:
        size = prepared.rows * self.bench.engine.info.embedding_bytes_per_row + 8 * 64
        out = self.bench.arena.allocate(size)
        return await self.encoder(name).encode(
            prepared, out, deadline=now() + seconds, purpose=Purpose("tenant", "request", content)
        )

    def bytes_of(self, image: EncodedImage) -> bytes:
        return bytes(self.bench.arena.view(image.embeddings.slot)[: image.embeddings.used])


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def runtime() -> AsyncIterator[LocalRuntime]:
    preload = (*models.preload.ALWAYS, "foveate.engines.embedded.process", "foveate.encoders.process")
    made = LocalRuntime(Arena(32 << 20), preload=preload)
    yield made
    await made.close()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def both(runtime: LocalRuntime) -> AsyncIterator[Both]:
    made = Both(runtime)
    await made.start()
    yield made
    await made.stop()


@pytest.mark.parametrize("name", ENCODERS)
async def test_embeddings_lie_in_the_slot_with_every_stage_timed(name: str, both: Both) -> None:
    prepared = both.bench.prepare(RED)
    called = now()
    image = await both.encode(name, prepared)
    assert image.rows == prepared.rows
    assert image.embeddings.used <= prepared.rows * both.bench.engine.info.embedding_bytes_per_row + 8 * 64
    assert [span.stage for span in image.spans] == ["encoder_queue", "vision_encode", "embedding_transfer"]
    assert called <= image.spans[0].start <= image.spans[0].end <= image.spans[1].end <= image.spans[2].end <= now()


async def test_the_same_bits_from_all_of_them(both: Both) -> None:
    for color in (RED, BLUE):
        prepared = both.bench.prepare(color)
        found = [await both.encode(name, prepared) for name in ENCODERS]
        several = await asyncio.gather(*(both.encode("workers", prepared, content=f"{number}") for number in range(6)))
        assert len({both.bytes_of(image) for image in (*found, *several)}) == 1
    assert all(report.pictures for report in both.pool.report())


@pytest.mark.parametrize("name", ENCODERS)
async def test_a_bad_picture_fails_alone(name: str, both: Both) -> None:
    prepared = both.bench.prepare(RED)
    bad = msgspec.structs.replace(prepared, rows=prepared.rows + 1)
    found = await asyncio.gather(*(both.encode(name, one) for one in (prepared, bad, prepared)), return_exceptions=True)
    assert isinstance(found[1], EncodeFailed)
    assert not isinstance(found[0], BaseException)
    assert not isinstance(found[2], BaseException)


@pytest.mark.parametrize("name", ENCODERS)
async def test_a_deadline_that_has_passed(name: str, both: Both) -> None:
    with pytest.raises(DeadlineExceeded):
        await both.encode(name, both.bench.prepare(RED), seconds=0)


@pytest.mark.parametrize("name", ENCODERS)
async def test_cancelling_is_clean(name: str, both: Both) -> None:
    prepared = both.bench.prepare(RED)
    tasks = [asyncio.ensure_future(both.encode(name, prepared)) for _ in range(6)]
    await asyncio.sleep(0)
    for task in tasks:
        task.cancel()
    found = await asyncio.gather(*tasks, return_exceptions=True)
    assert all(isinstance(one, asyncio.CancelledError) for one in found)
    assert (await both.encode(name, prepared)).rows == prepared.rows


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
async def test_a_worker_that_dies_or_hangs_costs_no_picture(how: signal.Signals, both: Both) -> None:
    prepared = both.bench.prepare(BLUE)
    expected = both.bytes_of(await both.encode("engine", prepared))
    (pid,) = (seat.worker.pid for seat in both.pool._workers.seats[:1] if seat.worker is not None)
    os.kill(pid, how)
    found = await asyncio.gather(*(both.encode("workers", prepared, content=f"{number}") for number in range(6)))
    assert {both.bytes_of(image) for image in found} == {expected}
    while both.pool.alive < 2:
        await asyncio.sleep(0.05)


async def test_a_worker_has_encoded_a_picture_before_it_is_given_one(runtime: LocalRuntime) -> None:
    """The first one, and one that takes the place of one that was killed; the row of failures knows nothing of it."""
    config = EncoderConfig(MODEL.directory, own_encoder="tests.counting_encoder:Counting")
    pool = EncoderPool(runtime, PoolConfig(1, config, start_seconds_max=280))
    await pool.start()
    try:
        for restarts in (0, 1):
            inputs = runtime.arena.allocate(64)
            arrays = {"any": np.zeros(1, np.float32)}
            prepared = PreparedImage("", 1, write_bundle(runtime.arena.view(inputs), inputs, arrays), {}, ())
            image = await pool.encode(prepared, runtime.arena.allocate(4096), deadline=now() + 60)
            (rows,) = read_bundle(runtime.arena.view(image.embeddings.slot), image.embeddings).values()
            assert rows[0, 0] == 2, "it was the second picture of that process"
            (seat,) = pool._workers.seats
            assert (seat.restarts, seat.pictures_done, seat.health.failures) == (restarts, restarts + 1, 0)
            if restarts == 0:
                assert seat.worker is not None
                seat.worker.kill()
                while seat.restarts == 0 or not pool.alive:
                    await asyncio.sleep(0.05)
    finally:
        await pool.stop(seconds_max=5)


@pytest.mark.parametrize("family", ["demo", "qwen3_vl", "internvl"])
async def test_the_same_tokens_in_both_topologies(
    family: str, tmp_path: Path, runtime: LocalRuntime, both: Both
) -> None:
    shipped = family == "demo"
    pair = both if shipped else Both(runtime, models.resolve_model(str(build_family(family, tmp_path))), workers=1)
    if not shipped:
        await pair.start()
    try:
        bench = pair.bench
        prepared = [bench.prepare(color) for color in (RED, BLUE)]
        answers = []
        for name in ENCODERS:
            images = [await pair.encode(name, one) for one in prepared]
            work = bench.work("what is in this image?", *prepared, sampling=TOKENS, images=images)
            _, tokens, _ = await bench.answer(work)
            answers.append([token for event in tokens for token in event.token_ids])
        assert answers[0] == answers[1]
        assert len(answers[0]) == 8
    finally:
        if not shipped:
            await pair.stop()
