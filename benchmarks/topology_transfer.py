"""Embeddings on their way from an encode worker to where prefill reads them, against a memcpy of as many bytes on the same machine.

``benchmarks/topologies.py --only transfer`` runs it. The vision tower is the shipped model's with rows as wide as a large model's
(8 KiB: 2,048 float32) and random weights; pictures are encoded one at a time by one worker, in the product's own pool.
"""

from __future__ import annotations

import shutil
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
import uvloop

from foveate import models
from foveate.bench.figures import Figure
from foveate.core.clock import now
from foveate.core.media import ImageOptions, PreparedImage
from foveate.encoders.messages import EncoderConfig
from foveate.encoders.pool import EncoderPool
from foveate.encoders.workers import PoolConfig
from foveate.models.files import DEMO_DIRECTORY
from foveate.models.preload import preload_modules
from foveate.runtime.arena import Arena
from foveate.runtime.local.runtime import LocalRuntime
from foveate.runtime.tensors import bundle_size, write_bundle

WIDTH: Final = 2048
SIDES: Final = (224, 448, 896)
"""Pixels; the shipped model's processor makes a row of 28 x 28 of them."""
ROW_SIDE: Final = 28
PICTURES: Final = 8
"""Of each size in a round; their median is the round's figure."""
GOAL_MS: Final = 0.1
MB: Final = 1e6


class Moved(msgspec.Struct, frozen=True):
    """One picture's embeddings: bytes, and seconds of the write into the arena, of the stage to its end, and of a memcpy beside it."""

    size: int
    write: float
    stage: float
    copied: float


def wide_model(directory: Path) -> Path:
    """Write the shipped model into ``directory`` with wide rows, pictures of any size, and little else to compute."""
    import torch
    from transformers import Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration

    shutil.copytree(DEMO_DIRECTORY, directory)
    config: Any = Qwen2_5_VLConfig.from_pretrained(directory)
    config.vision_config.out_hidden_size = WIDTH
    config.text_config.hidden_size, config.text_config.num_hidden_layers = WIDTH, 1
    config.text_config.layer_types = config.text_config.layer_types[:1]
    config.text_config.num_attention_heads = (
        WIDTH // 32
    )  # heads as wide as the shipped model's, which its positions are made for
    torch.manual_seed(0)
    Qwen2_5_VLForConditionalGeneration(config).save_pretrained(directory)
    file = directory / "preprocessor_config.json"
    told: dict[str, Any] = msgspec.json.decode(file.read_bytes())
    told["size"]["longest_edge"] = max(SIDES) ** 2
    file.write_bytes(msgspec.json.encode(told))
    return directory


class Bench:
    """One encode worker, and pictures for it."""

    def __init__(self, directory: Path, core: int) -> None:
        files = models.resolve_model(str(directory))
        self.arena = Arena(256 << 20)
        preload = (*preload_modules(files.family), "foveate.encoders.process")
        self.runtime = LocalRuntime(self.arena, preload=preload)
        config = PoolConfig(1, EncoderConfig(files.directory), cpus=((core,),), start_seconds_max=280)
        self.pool = EncoderPool(self.runtime, config)
        self._processor = models.load_picture_processor(files.directory)
        self._random = np.random.default_rng(0)
        self._plain = [self._random.random(max(SIDES) ** 2 // ROW_SIDE**2 * WIDTH, np.float32) for _ in range(2)]

    def prepare(self, side: int) -> PreparedImage:
        """Put a picture of noise through the processor, into the arena."""
        pixels = self._random.integers(0, 256, (side, side, 3), np.uint8)
        processed = self._processor.process(pixels, ImageOptions())
        slot = self.arena.allocate(bundle_size(processed.arrays))
        inputs = write_bundle(self.arena.view(slot), slot, processed.arrays)
        return PreparedImage(processed.replacement, processed.rows, inputs, processed.meta, ())

    async def move(self, prepared: PreparedImage) -> Moved:
        """Encode a picture, and copy as many bytes from one plain buffer to another."""
        out = self.arena.allocate(prepared.rows * WIDTH * 4 + 64)
        image = await self.pool.encode(prepared, out, deadline=now() + 60)
        arrived = now()
        spans = {span.stage: span for span in image.spans}
        write = spans["embedding_transfer"].end - spans["embedding_transfer"].start
        count = prepared.rows * WIDTH
        began = time.perf_counter()
        self._plain[0][:count] = self._plain[1][:count]
        copied = time.perf_counter() - began
        self.arena.release(out)
        return Moved(image.embeddings.used, write, arrived - spans["vision_encode"].end, copied)


async def measure(rounds: int, core: int) -> dict[int, list[list[Moved]]]:
    """Return by a picture's side what was moved in each round."""
    with tempfile.TemporaryDirectory() as directory:
        bench = Bench(wide_model(Path(directory) / "wide"), core)
        await bench.pool.start()
        try:
            pictures = {side: bench.prepare(side) for side in SIDES}
            found: dict[int, list[list[Moved]]] = {side: [] for side in SIDES}
            for number in range(rounds + 1):
                for side, prepared in pictures.items():
                    moved = [await bench.move(prepared) for _ in range(PICTURES)]
                    if number:  # the first warms up
                        found[side].append(moved)
            return found
        finally:
            await bench.pool.stop(seconds_max=5)
            await bench.runtime.close()


def run(rounds: int, core: int) -> list[Figure]:
    """Measure; the worker has one core."""
    figures = []
    found = list(uvloop.run(measure(rounds, core)).values())  # which the gateway runs on
    for moved in found:
        megabytes = moved[0][0].size / MB
        name, what = f"Transfer of {megabytes:.1f} MB", f"median of {PICTURES} pictures in each of {rounds} rounds"
        beyond = tuple(_beyond_ms(each) / megabytes for each in moved)
        ratio = tuple(
            statistics.median(one.write for one in each) / statistics.median(one.copied for one in each)
            for each in moved
        )
        stage = tuple(statistics.median(one.stage for one in each) * 1e3 / megabytes for each in moved)
        message = tuple(_beyond_ms(each) for each in moved)
        copied = tuple(statistics.median(one.copied for one in each) * 1e3 / megabytes for each in moved)
        figures += [
            Figure(f"{name}, embedding_transfer a MB", what, stage, "ms"),
            Figure(f"{name}, memcpy a MB", what, copied, "ms"),
            Figure(f"{name}, the write / memcpy", what, ratio, "x"),
            Figure(f"{name}, beyond the write, a MB", what, beyond, "ms", GOAL_MS),
            Figure(f"{name}, beyond the write, a picture", what, message, "ms"),
        ]
    small, large = found[0], found[-1]
    apart = (large[0][0].size - small[0][0].size) / MB
    further = tuple((_beyond_ms(more) - _beyond_ms(less)) / apart for less, more in zip(small, large, strict=True))
    figures.append(
        Figure("Transfer, each further MB beyond the write", "largest less smallest", further, "ms", GOAL_MS)
    )
    return figures


def _beyond_ms(moved: Sequence[Moved]) -> float:
    return statistics.median(one.stage - one.write for one in moved) * 1e3
