"""Take a picture through the workers before the first client does: what is lazily set up on first use is not a client's latency,
and a path that does not work is found at start-up. Touches no cache, no ledger and no metric.
"""

from __future__ import annotations

import asyncio
import struct
import zlib
from contextlib import AsyncExitStack, aclosing
from itertools import cycle, islice
from typing import Any

import msgspec
import numpy as np

from foveate.core.clock import now
from foveate.core.errors import FoveateError, StartupError
from foveate.core.media import DataRef, ImageOptions, PreparedImage
from foveate.core.request import ImagePart, Sampling, TextPart, Turn
from foveate.engines.port import EngineWork, PictureInput, PixelInput
from foveate.journey.embedding_difference import is_finite
from foveate.journey.holds import SlotHold
from foveate.journey.produce import ALIGNMENT_BYTES
from foveate.journey.serving import Serving
from foveate.media.messages import Prepare, Prepared, TooSmall
from foveate.media.probe import probe
from foveate.runtime.arena import Arena
from foveate.runtime.tensors import read_bundle

SIDE = 224
SECONDS_MAX = 60.0


async def warm(serving: Serving, arena: Arena) -> None:
    """Prepare a grey picture in every media worker, encode it and ask about it, in every engine process.

    Raises StartupError when any of it fails.
    """
    prompt = serving.prompt_side.render([Turn("user", (ImagePart(0, "", DataRef("")), TextPart("Hello!")))])
    try:
        async with AsyncExitStack() as held:
            prepared = await asyncio.gather(
                *(prepare(grey_png(SIDE), serving, arena, held) for _ in range(serving.media.alive))
            )
            # Processes of one engine that have nothing to do are given work turn by turn, so each has a picture at least.
            for image in islice(cycle(prepared), max(len(prepared), len(serving.engine.report()))):
                token_ids = serving.prompt_side.tokenize(prompt, [image.replacement])
                picture: PictureInput | PixelInput = PixelInput(image.inputs, image.rows, image.meta)
                if not serving.takes_pixels:
                    picture = await encode(image, serving, arena, held)
                await _generate(token_ids, picture, serving)
    except StartupError:
        raise
    except FoveateError as error:
        detail = f"{error.code}: {error.detail}"
        raise StartupError(f"The model cannot take a picture: {error.public}", detail=detail) from error


async def prepare(data: bytes, serving: Serving, arena: Arena, held: AsyncExitStack) -> PreparedImage:
    """Take an encoded picture through a media worker; its slots live until ``held`` is closed. Raises StartupError."""
    source = SlotHold(arena, arena.allocate(len(data)))
    arena.view(source.slot)[:] = data
    header = probe(arena.view(source.slot))
    options = serving.prompt_side.options(ImageOptions())
    estimate = serving.prompt_side.estimate(header.width, header.height, options)
    out = SlotHold(arena, arena.allocate(estimate.input_bytes_max))

    async def run() -> Any:
        holds = (source.retain(), out.retain())

        def done() -> None:
            for hold in holds:
                hold.release()

        job = Prepare(source.slot, header, options, out.slot)
        return await serving.media.run(job, whom="", on_done=done, deadline=now() + SECONDS_MAX)

    try:
        reply = await run()
        if isinstance(reply, TooSmall):
            out.release()
            out = SlotHold(arena, arena.allocate(reply.bytes_needed))
            reply = await run()
    finally:
        held.callback(out.release)
        source.release()
    if not isinstance(reply, Prepared):
        raise StartupError(
            f"The model's processor failed on a picture of {header.width}x{header.height}.", detail=repr(reply)
        )
    return reply.image


async def encode(prepared: PreparedImage, serving: Serving, arena: Arena, held: AsyncExitStack) -> PictureInput:
    """Encode it; the embeddings live until ``held`` is closed. Raises StartupError."""
    size = prepared.rows * serving.engine.info.embedding_bytes_per_row + ALIGNMENT_BYTES
    out = SlotHold(arena, arena.allocate(size))
    held.callback(out.release)
    encoded = await serving.encoder.encode(prepared, out.slot, deadline=now() + SECONDS_MAX)
    if not is_finite(read_bundle(arena.view(out.slot), encoded.embeddings)):
        raise StartupError(
            "The model's vision encoder gives values that are not finite (NaN or Inf) for an ordinary picture."
        )
    return PictureInput(encoded.embeddings, encoded.rows, prepared.meta)


async def _generate(token_ids: list[int], picture: PictureInput | PixelInput, serving: Serving) -> None:
    sampling = Sampling(tokens_max=2, temperature=0, ignore_eos=True)
    work = EngineWork(f"warm-{now()}", token_ids, [], sampling, now() + SECONDS_MAX)
    if isinstance(picture, PixelInput):
        work = msgspec.structs.replace(work, pixels=[picture])
    else:
        work = msgspec.structs.replace(work, pictures=[picture])
    async with aclosing(serving.engine.generate(work)) as events:
        async for _ in events:
            pass


def grey_png(side: int) -> bytes:
    """Return a grey PNG of ``side`` x ``side`` pixels (RFC 2083), made here so that the gateway needs no imaging library."""
    return _png(side, side, (b"\0" + b"\x80" * side) * side, colour=0)


def rgb_png(pixels: np.ndarray) -> bytes:
    """Return a PNG of ``pixels``, uint8 [height, width, 3]."""
    height, width = pixels.shape[:2]
    return _png(width, height, b"".join(b"\0" + row.tobytes() for row in pixels), colour=2)


def _png(width: int, height: int, rows: bytes, *, colour: int) -> bytes:
    chunks = (
        (b"IHDR", struct.pack(">IIBBBBB", width, height, 8, colour, 0, 0, 0)),
        (b"IDAT", zlib.compress(rows)),
        (b"IEND", b""),
    )
    framed = (
        struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body)) for kind, body in chunks
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(framed)
