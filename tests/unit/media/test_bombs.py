"""Bombs through the real pool and the real worker: each is refused, or costs its own worker, within bounded memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import psutil
import pytest
import pytest_asyncio
from tests.unit.media import bombs

from foveate.core.clock import now
from foveate.core.errors import ImageTooLarge, MediaCostly, MediaUndecodable, MediaUnsupported, TooManyFrames
from foveate.core.media import Appearance, ImageHeader, ImageOptions
from foveate.media.image import SCANS_MAX
from foveate.media.messages import JobFailed, MediaReply, Prepare, Prepared, WorkerConfig
from foveate.media.pool import MediaPool, PoolConfig
from foveate.media.probe import probe
from foveate.runtime.arena import Arena
from foveate.runtime.local.runtime import LocalRuntime

CASES = Path("tests/data/cases")
MIB = 1 << 20
MEMORY_MAX = 384 * MIB
PIXELS_MAX = 100_000_000
pytestmark = pytest.mark.asyncio(loop_scope="module")


class House:
    """Two real media workers with little memory and little time."""

    def __init__(self, job_seconds_max: float = 60) -> None:
        self.arena = Arena(256 * MIB)
        self.runtime = LocalRuntime(self.arena, preload=("tests.workers",))
        config = WorkerConfig("", Appearance(icc_to_srgb=True), PIXELS_MAX)
        limits = {"job_seconds_max": job_seconds_max, "memory_bytes_max": MEMORY_MAX, "down_seconds_max": 60}
        pool = PoolConfig(workers=2, config=config, entry="tests.workers:decoding", **limits)
        self.pool = MediaPool(self.runtime, pool)

    async def prepare(self, data: bytes, header: ImageHeader | None = None) -> MediaReply:
        """Have a picture prepared as the gateway does, its header believed."""
        source, out = self.arena.allocate(len(data)), self.arena.allocate(8 * MIB)
        self.arena.view(source)[:] = data
        found = header or probe(self.arena.view(source))

        def done() -> None:
            self.arena.release(source)
            self.arena.release(out)

        return await self.pool.run(
            Prepare(source, found, ImageOptions(), out), whom="", on_done=done, deadline=now() + 90
        )

    async def good(self) -> None:
        assert isinstance(await self.prepare(bombs.noise(64)), Prepared)

    def resident(self) -> int:
        """Return the largest resident memory of a worker so far, shared pages of the arena and the code included."""
        peaks = []
        for process in psutil.Process(self.runtime._forkserver.pid).children():
            status = Path(f"/proc/{process.pid}/status").read_text()
            peaks.append(int(status.partition("VmHWM:")[2].split()[0]) * 1024)
        return max(peaks)


@asynccontextmanager
async def opened(house: House) -> AsyncIterator[House]:
    await house.pool.start()
    await house.good()
    yield house
    await house.pool.stop(seconds_max=1)
    await house.runtime.close()
    assert house.arena.used_bytes == 0


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def house() -> AsyncIterator[House]:
    async with opened(House()) as house:
        yield house


async def refused(house: House, data: bytes, header: ImageHeader | None = None) -> type[Exception]:
    """Return what a bomb is answered with; a good picture beside it is answered, and one after it."""
    before = house.resident()
    beside = asyncio.ensure_future(house.good())
    try:
        reply = await house.prepare(data, header)
    except (MediaCostly, MediaUndecodable) as error:
        return type(error)
    finally:
        await beside
        await house.good()
    assert house.resident() < before + MEMORY_MAX
    assert isinstance(reply, JobFailed), reply
    return type(reply.error.error())


async def test_claims_are_refused_before_a_worker_sees_them() -> None:
    for name in ("case059_header_60000x60000.png", "case059_14000x14000_gray.png"):
        header = probe(memoryview((CASES / name).read_bytes()))
        assert header.pixels > PIXELS_MAX
    with pytest.raises(TooManyFrames):
        probe(memoryview(bombs.gif_of_frames(2000)))
    for data in (bombs.many_values(500, 1 << 20), bombs.many_strips(1 << 19)):
        with pytest.raises(MediaUndecodable):
            probe(memoryview(data))
    old_jpeg = bombs.tiff([entry for entry in bombs.GREY_TIFF if entry[0] != 259] + [(259, 3, 1, 6)])
    with pytest.raises(MediaUnsupported, match="compression 6"):
        probe(memoryview(old_jpeg))


async def test_a_worker_judges_the_pixels_itself(house: House) -> None:
    for name in ("case059_header_60000x60000.png", "case059_14000x14000_gray.png"):
        assert await refused(house, (CASES / name).read_bytes()) is ImageTooLarge
    assert house.pool.kills == 0


async def test_a_header_that_was_believed_but_lied(house: House) -> None:
    huge = (CASES / "case059_14000x14000_gray.png").read_bytes()
    assert await refused(house, huge, ImageHeader("png", 32, 32)) is MediaUndecodable
    assert await refused(house, bombs.webp_that_says(32, 32, holds=8000)) is MediaUndecodable
    assert house.pool.kills == 0


async def test_an_avif_of_another_size_is_scaled_to_its_containers_by_its_decoder(house: House) -> None:
    before = house.resident()
    assert isinstance(await house.prepare(bombs.avif_that_says(32, 32, holds=1000)), Prepared)
    assert house.resident() < before + MEMORY_MAX


async def test_more_picture_than_its_header_says_is_not_inflated(house: House) -> None:
    endless = bombs.png(64, 64, bombs.zeros(1 << 30))
    before = house.resident()
    reply = await house.prepare(endless)
    assert isinstance(reply, Prepared | JobFailed)
    assert house.resident() < before + 64 * MIB


async def test_texts_and_profiles_are_not_inflated(house: House) -> None:
    bomb = bombs.zeros(1 << 30)
    texts = [bombs.chunk(b"zTXt", b"a\0\0" + bomb), bombs.chunk(b"iTXt", b"a\0\1\0\0\0" + bomb)]
    data = bombs.png(64, 64, bombs.zeros(65 * 64), *texts, bombs.chunk(b"iCCP", b"a\0\0" + bomb))
    before = house.resident()
    assert isinstance(await house.prepare(data), Prepared)
    assert house.resident() < before + 64 * MIB


async def test_a_picture_within_the_limits_may_unfold_from_little(house: House) -> None:
    assert isinstance(await house.prepare(bombs.flat_gif(3000, 3000)), Prepared)
    assert isinstance(await house.prepare(bombs.many_strips(64)), Prepared)


async def test_what_needs_more_memory_than_a_worker_may_have_is_refused(house: House) -> None:
    assert await refused(house, bombs.sixteen_bit_colour(9900)) is MediaCostly


async def test_too_many_scans_are_refused_and_slow_ones_cost_their_worker_alone(house: House) -> None:
    assert await refused(house, bombs.scans(64, SCANS_MAX)) is MediaCostly
    assert house.pool.kills == 0
    assert await refused(house, bombs.scans(9000, 4)) is MediaCostly, "no memory for its coefficients"
    assert await refused(house, bombs.scans(6000, 40)) is MediaCostly, "too many for so many pixels"
    assert house.pool.kills == 0
    async with opened(House(job_seconds_max=0.05)) as hasty:
        assert await refused(hasty, bombs.scans(6000, 8)) is MediaCostly
        assert hasty.pool.kills == 1
