"""Origins that compress although they were asked not to: undone up to the cap, refused when in doubt, never all at once."""

from __future__ import annotations

import asyncio
import gzip
import resource
import zlib
from pathlib import Path

import pytest
from blake3 import blake3
from tests.unit.media.sites import BODY, Buffer, Site, Spool, answering, fetcher_for, get, refused

from foveate.core.errors import FetchRejected, MediaTooLarge

BOMB = Path("tests/data/cases/case026_64MiB_zeros_content_encoding.gz").read_bytes()
MiB = 2**20


def raw_deflate(data: bytes) -> bytes:
    packer = zlib.compressobj(wbits=-15)
    return packer.compress(data) + packer.flush()


def encoded(data: bytes, *encodings: str) -> Site:
    headers = "Content-Type: image/png\r\n" + "".join(f"Content-Encoding: {name}\r\n" for name in encodings)
    return Site(answering(data, headers=headers))


@pytest.mark.parametrize(
    ("data", "encoding"),
    [
        (gzip.compress(BODY), "gzip"),
        (gzip.compress(BODY), "GZIP"),
        (gzip.compress(BODY), "x-gzip"),
        (gzip.compress(BODY), "identity, gzip"),
        (gzip.compress(BODY, 0), "gzip"),
        (gzip.compress(BODY[:1000]) + gzip.compress(BODY[1000:]) + bytes(512), "gzip"),
        (zlib.compress(BODY), "deflate"),
        (raw_deflate(BODY), "deflate"),
    ],
)
async def test_one_layer_is_undone(data: bytes, encoding: str) -> None:
    async with encoded(data, encoding) as site:
        sink = Buffer()
        fetched = await get(site, sink=sink)
    assert bytes(sink.data) == BODY
    assert (fetched.size, fetched.digest) == (len(BODY), blake3(BODY).hexdigest())
    assert sink.hints == [None], "the announced length is that of the compressed form"


@pytest.mark.parametrize("encodings", [("gzip, gzip",), ("gzip", "gzip"), ("br",), ("zstd",), ("deflate,br",), ("?",)])
async def test_other_layers_are_refused_unread(encodings: tuple[str, ...]) -> None:
    async with encoded(BOMB, *encodings) as site:
        sink = Buffer()
        assert "compressed" in (await refused(site, FetchRejected, sink=sink)).public
        assert len(site.heads) == 1
    assert not sink.hints


@pytest.mark.parametrize(
    "data",
    [
        gzip.compress(BODY)[:-20],
        b"<!doctype html>",
        gzip.compress(BODY) + b"tail",
        gzip.compress(BODY)[:-8] + bytes(8),
        b"\x1f",
        zlib.compress(BODY),
    ],
)
async def test_a_damaged_stream_is_the_origins_fault(data: bytes) -> None:
    async with encoded(data, "gzip") as site:
        assert "damaged" in (await refused(site, FetchRejected)).public
        assert len(site.heads) == 1


async def test_a_bomb_stops_at_the_cap_in_flat_memory_and_in_small_steps() -> None:
    async with encoded(BOMB, "gzip") as site, fetcher_for(site) as fetcher:
        await fetcher.fetch(site.url(), Spool(65 * MiB))  # warm, and proof that it is one
        steps = 0

        async def others() -> None:
            nonlocal steps
            while True:
                steps += 1
                await asyncio.sleep(0)

        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        running = asyncio.ensure_future(others())
        sink = Spool(32 * MiB)
        with pytest.raises(MediaTooLarge):
            await fetcher.fetch(site.url(), sink)
        running.cancel()
    assert 32 * MiB < sink.size <= 32 * MiB + 64 * 1024
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - peak < 4 * 1024  # KiB
    assert steps > 500, "each step of 64 KiB let others run"


async def test_an_endless_stream_that_holds_nothing_is_ended() -> None:
    async def answer(_site: Site, _target: str, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nConnection: close\r\n\r\n")
        while not writer.is_closing():
            writer.write(gzip.compress(b"") * 1000)
            await writer.drain()

    async with Site(answer) as site:
        assert "damaged" in (await refused(site, FetchRejected)).public


async def test_a_gzip_file_without_the_header_is_just_bytes() -> None:
    data = gzip.compress(b"x" * 100)
    async with encoded(data, "identity") as site:
        sink = Buffer()
        await get(site, sink=sink)
    assert bytes(sink.data) == data
