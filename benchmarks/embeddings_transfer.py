"""Embeddings into vLLM, with the request against by name: time to first token and processor time, both engines in one run, taking turns.

    PYTHONPATH=. .venv/bin/python benchmarks/embeddings_transfer.py --rounds 7

The model is a LLaVA of random weights, as wide as a real one (rows of 8 KiB: 2,048 float32, or 4,096 bfloat16) and with next to no
computation in it, so that what is left is transport. Embeddings are random, too, and lie in the arena as the encoder leaves them. In each
round each engine gets, for each size, new pictures, then the same pictures again behind another beginning, so that their rows are
prefilled again and no prefix cache helps.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import psutil
from tests import families

from foveate import models
from foveate.core.clock import now
from foveate.core.request import Sampling
from foveate.engines.port import EngineWork, PictureInput, TokenEvent
from foveate.engines.vllm.client import VllmEngine
from foveate.engines.vllm.config import VllmConfig
from foveate.models.preload import preload_modules
from foveate.runtime.arena import Arena
from foveate.runtime.local.runtime import LocalRuntime
from foveate.runtime.tensors import bundle_size, write_bundle

WIDTH = 2048
ROW_COUNTS = (16, 64, 256, 1024, 4096)
PICTURES = 4
"""Of each size in a round, one after the other."""
WAYS = ("inline", "connector")
ONE = Sampling(1, temperature=0, ignore_eos=True)
Cell = tuple[str, int, bool]
"""Way, rows, and whether the pictures were met before."""


class Observed(msgspec.Struct):
    """What one way took for some pictures in one round: seconds to each first token, and processor seconds of its processes."""

    ttft: list[float] = []
    cpu: float = 0.0


class Bench:
    """Two engines with the same model, and requests for them."""

    def __init__(self, directory: Path, seed: int) -> None:
        self.files = models.resolve_model(str(directory))
        self.arena = Arena(256 << 20)
        self.runtime = LocalRuntime(self.arena, preload=(*preload_modules("llava"), "foveate.engines.vllm.preload"))
        self.engines = {way: self._engine(way, index) for index, way in enumerate(WAYS)}
        self.picture_token = json.loads((directory / "config.json").read_text())["image_token_index"]
        self._random = np.random.default_rng(seed)
        self._requests = 0

    def _engine(self, way: Any, index: int) -> VllmEngine:
        config = VllmConfig(
            self.files.directory,
            "wide",
            self.files.family,
            kv_cache_bytes=256 << 20,
            embeddings=way,
            args={"max_num_batched_tokens": 8192, "max_model_len": 8192},
        )
        return VllmEngine(self.runtime, config, threads=1, index=index, start_seconds_max=300)

    def picture(self, rows: int) -> PictureInput:
        """Put embeddings of a picture that nobody has seen into the arena."""
        arrays = {"rows": self._random.standard_normal((rows, WIDTH), dtype=np.float32)}
        slot = self.arena.allocate(bundle_size(arrays))
        bundle = write_bundle(self.arena.view(slot), slot, arrays)
        return PictureInput(bundle, rows, {}, self._random.bytes(32).hex())

    async def ask(self, way: str, picture: PictureInput) -> float:
        """Return the seconds until the first token of an answer about a picture, behind words that were never there before."""
        self._requests += 1
        words = self._random.integers(10, 400, 12).tolist()
        token_ids = [*words, *[self.picture_token] * picture.rows, 5]
        work = EngineWork(f"request-{self._requests}", token_ids, [picture], ONE, now() + 120)
        asked, first = now(), 0.0
        async for event in self.engines[way].generate(work):
            if isinstance(event, TokenEvent):
                first = first or now() - asked
        return first

    def cpu(self, way: str) -> float:
        """Return the processor seconds that an engine's processes have taken."""
        worker = self.engines[way].worker
        assert worker is not None
        top = psutil.Process(worker.pid)
        times = [one.cpu_times() for one in (top, *top.children(recursive=True))]
        return sum(one.user + one.system for one in times)

    async def observe(self, way: str, pictures: list[PictureInput]) -> Observed:
        """Ask about some pictures, one after the other."""
        before = self.cpu(way)
        ttft = [await self.ask(way, picture) for picture in pictures]
        return Observed(ttft, self.cpu(way) - before)

    async def round(self, number: int) -> Iterator[tuple[Cell, Observed]]:
        """Ask both engines about the same pictures, each of them first in every other round."""
        ways = WAYS if number % 2 else WAYS[::-1]
        found: list[tuple[Cell, Observed]] = []
        for rows in ROW_COUNTS:
            pictures = [self.picture(rows) for _ in range(PICTURES)]
            for again in (False, True):
                found += [((way, rows, again), await self.observe(way, pictures)) for way in ways]
            for picture in pictures:
                self.arena.release(picture.embeddings.slot)
        return iter(found)


def spread(values: list[float]) -> str:
    return f"{statistics.median(values):.2f} ({min(values):.2f} – {max(values):.2f})"


def rows_of_table(found: dict[Cell, list[Observed]]) -> Iterator[str]:
    """Yield the table's lines; ratios are the connector's figures over those of the same round inline, under 1 is faster."""
    yield "| rows | | pictures | TTFT p50, p95 inline | by name | ratio of p50 | CPU of one inline | by name | ratio |"
    yield "|---|---|---|---|---|---|---|---|---|"
    for rows in ROW_COUNTS:
        for again in (False, True):
            inline, named = (found[way, rows, again] for way in WAYS)
            cells = [f"{rows}", f"{rows * WIDTH * 4 / 2**20:.2f} MiB", "again" if again else "new"]
            times = [sorted(value for one in way for value in one.ttft) for way in (inline, named)]
            shown = [f"{statistics.median(one) * 1e3:.1f}, {one[int(len(one) * 0.95)] * 1e3:.1f} ms" for one in times]
            ratios = [statistics.median(b.ttft) / statistics.median(a.ttft) for a, b in zip(inline, named, strict=True)]
            cpu = [sum(one.cpu for one in way) / len(way) / PICTURES * 1e3 for way in (inline, named)]
            work = [b.cpu / max(a.cpu, 0.01) for a, b in zip(inline, named, strict=True)]
            cells += [*shown, spread(ratios), *(f"{one:.0f} ms" for one in cpu), spread(work)]
            yield "| " + " | ".join(cells) + " |"


async def measure(rounds: int) -> dict[Cell, list[Observed]]:
    """Return what was observed in each round, in order."""
    families._LLAMA.update(hidden_size=WIDTH, head_dim=32, num_hidden_layers=1, intermediate_size=64)
    with tempfile.TemporaryDirectory() as directory:
        bench = Bench(families.build_family("llava", Path(directory) / "wide"), seed=rounds)
        try:
            for engine in bench.engines.values():
                await engine.start()
            found: dict[Cell, list[Observed]] = {}
            for number in range(rounds + 1):
                for cell, observed in await bench.round(number):
                    if number:  # the first warms both up
                        found.setdefault(cell, []).append(observed)
                print(f"round {number} of {rounds}", flush=True)
            return found
        finally:
            for engine in bench.engines.values():
                await engine.stop(seconds_max=10)
            await bench.runtime.close()


def main() -> None:
    """Measure and print the table of docs/performance.md."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    load_before = psutil.getloadavg()[0]
    found = asyncio.run(measure(parser.parse_args().rounds))
    print("\n".join(rows_of_table(found)))
    print(f"\nLoad average {load_before:.0f} before and {psutil.getloadavg()[0]:.0f} after.")


if __name__ == "__main__":
    main()
