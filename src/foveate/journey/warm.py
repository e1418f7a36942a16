"""Take a picture through the workers before the first client does: what is lazily set up on first use is not a client's latency,
and a path that does not work is found at start-up. Touches no cache, no ledger and no metric.
"""

from __future__ import annotations

import asyncio
import struct
import zlib
from contextlib import AsyncExitStack, aclosing

from foveate.core.clock import now
from foveate.core.errors import FoveateError, StartupError
from foveate.core.media import DataRef, ImageOptions, PreparedImage
from foveate.core.request import ImagePart, Sampling, TextPart, Turn
from foveate.engines.port import EngineWork, PictureInput
from foveate.journey.holds import SlotHold
from foveate.journey.produce import ALIGNMENT_BYTES
from foveate.journey.tools import Tools
from foveate.media.messages import Prepare, Prepared
from foveate.media.probe import probe

SIDE = 224
SECONDS_MAX = 60.0


async def warm(tools: Tools) -> None:
    """Prepare a grey picture in every media worker, encode it and ask about it. Raises StartupError when any of it fails."""
    prompt = tools.prompt_side.render([Turn("user", (ImagePart(0, "", DataRef("")), TextPart("Hello!")))])
    try:
        async with AsyncExitStack() as held:
            prepared = await asyncio.gather(*(_prepare(tools, held) for _ in range(tools.media.alive)))
            for image in prepared:
                picture = await _encode(image, tools, held)
                await _generate(tools.prompt_side.tokenize(prompt, [image.replacement]), picture, tools)
    except FoveateError as error:
        detail = f"{error.code}: {error.detail}"
        raise StartupError(f"The model cannot take a picture: {error.public}", detail=detail) from error


async def _prepare(tools: Tools, held: AsyncExitStack) -> PreparedImage:
    data = grey_png(SIDE)
    source = SlotHold(tools.arena, tools.arena.allocate(len(data)))
    tools.arena.view(source.slot)[:] = data
    header = probe(tools.arena.view(source.slot))
    options = tools.prompt_side.options(ImageOptions())
    out = SlotHold(tools.arena, tools.arena.allocate(tools.prompt_side.estimate(SIDE, SIDE, options).input_bytes_max))
    held.callback(out.release)
    job = Prepare(source.slot, header, options, out.retain().slot)

    def done() -> None:
        source.release()
        out.release()

    reply = await tools.media.run(job, whom="", on_done=done, deadline=now() + SECONDS_MAX)
    if not isinstance(reply, Prepared):
        raise StartupError(f"The model's processor failed on a grey picture of {SIDE}x{SIDE}.", detail=repr(reply))
    return reply.image


async def _encode(prepared: PreparedImage, tools: Tools, held: AsyncExitStack) -> PictureInput:
    size = prepared.rows * tools.engine.info.embedding_bytes_per_row + ALIGNMENT_BYTES
    out = SlotHold(tools.arena, tools.arena.allocate(size))
    held.callback(out.release)
    encoded = await tools.encoder.encode(prepared, out.slot, deadline=now() + SECONDS_MAX)
    return PictureInput(encoded.embeddings, encoded.rows, prepared.meta)


async def _generate(token_ids: list[int], picture: PictureInput, tools: Tools) -> None:
    sampling = Sampling(tokens_max=2, temperature=0, ignore_eos=True)
    work = EngineWork(f"warm-{now()}", token_ids, [picture], sampling, now() + SECONDS_MAX)
    async with aclosing(tools.engine.generate(work)) as events:
        async for _ in events:
            pass


def grey_png(side: int) -> bytes:
    """Return a grey PNG of ``side`` x ``side`` pixels (RFC 2083), made here so that the gateway needs no imaging library."""
    rows = (b"\0" + b"\x80" * side) * side
    chunks = (
        (b"IHDR", struct.pack(">IIBBBBB", side, side, 8, 0, 0, 0, 0)),
        (b"IDAT", zlib.compress(rows)),
        (b"IEND", b""),
    )
    framed = (
        struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body)) for kind, body in chunks
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(framed)
