"""An engine that runs, and what prepares requests for it."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import msgspec
import numpy as np

from foveate import models
from foveate.core.clock import now
from foveate.core.media import EncodedImage, ImageOptions, PreparedImage, UrlRef
from foveate.core.request import ImagePart, Sampling, TextPart, Turn
from foveate.engines.embedded.client import EmbeddedEngine
from foveate.engines.embedded.kv_room import KvRoom
from foveate.engines.embedded.messages import EmbeddedConfig
from foveate.engines.embedded.places import Place
from foveate.engines.embedded.split import SplitFleet
from foveate.engines.fleet import Fleet
from foveate.engines.port import EngineWork, FinishEvent, PictureInput, PixelInput, Role, TokenEvent
from foveate.engines.process_client import ProcessEngine
from foveate.engines.vllm.client import VllmEngine
from foveate.engines.vllm.config import VllmConfig
from foveate.engines.vllm.split import VllmSplit
from foveate.models.files import ModelFiles
from foveate.observe.load import Load
from foveate.observe.records import Topology
from foveate.runtime.local.runtime import LocalRuntime
from foveate.runtime.tensors import bundle_size, write_bundle

MODEL = models.resolve_model(None)
GREEDY = Sampling(16, temperature=0)


def embedded(
    files: ModelFiles, runtime: LocalRuntime, on_restart: Callable[[], None], **changes: Any
) -> EmbeddedEngine:
    config = EmbeddedConfig(files.directory, files.name, batch_size_max=2, queue_depth_max=2, prefill_chunk_tokens=64)
    config = msgspec.structs.replace(config, **changes)
    return EmbeddedEngine(runtime, config, threads=1, start_seconds_max=280, on_restart=on_restart)


def vllm(files: ModelFiles, runtime: LocalRuntime, on_restart: Callable[[], None], **changes: Any) -> VllmEngine:
    config = VllmConfig(files.directory, files.name, files.family, batch_size_max=2, queue_depth_max=2)
    config = msgspec.structs.replace(config, kv_cache_bytes=256 << 20, **changes)
    return VllmEngine(runtime, config, threads=1, start_seconds_max=280, on_restart=on_restart)


class Processes:
    """Where a fleet's processes come from: two that answer whole requests, or as many of each role as are asked for."""

    def __init__(self, runtime: LocalRuntime, config: EmbeddedConfig, on_restart: Callable[[], None]) -> None:
        self._runtime, self._config, self._on_restart = runtime, config, on_restart
        self._numbers = itertools.count()
        self.ended: list[int] = []

    def places(self, topology: Topology, prefill: int | None, decode: int | None) -> list[Place]:
        if topology != "e-p-d":
            return [Place("pd", self._config, 1)] * 2
        found: list[Role] = ["p" for _ in range(prefill or 1)]
        return [Place(role, self._config, 1) for role in (*found, *("d" for _ in range(decode or 1)))]

    async def check_room(self, places: Sequence[Place]) -> None:
        """There is room for all."""

    def make(self, place: Place) -> EmbeddedEngine:
        return EmbeddedEngine(
            self._runtime, place.config, threads=place.threads, index=next(self._numbers), start_seconds_max=280,
            on_restart=self._on_restart,
        )  # fmt: skip

    def gone(self, engine: EmbeddedEngine) -> None:
        self.ended.append(engine.index)


def fleet(
    files: ModelFiles, runtime: LocalRuntime, on_restart: Callable[[], None], topology: Topology = "agg", **changes: Any
) -> SplitFleet:
    config = EmbeddedConfig(files.directory, files.name, batch_size_max=2, queue_depth_max=2, prefill_chunk_tokens=64)
    config = msgspec.structs.replace(config, **changes)
    # Of room for K/V there is so little that some wait for it.
    room = KvRoom(runtime.arena.allocate(2 << 20))
    return SplitFleet(Processes(runtime, config, on_restart), room, topology=topology)


class KvLoad(Load):
    """What went from prefill to token decode, as counted by the gateway."""

    def __init__(self) -> None:
        super().__init__()
        self.handed = self.lost = 0

    def handed_on(self, size: int) -> None:
        assert size > 0
        self.handed += 1

    def kv_lost(self) -> None:
        self.lost += 1


def vllm_split(files: ModelFiles, runtime: LocalRuntime, on_restart: Callable[[], None]) -> VllmSplit:
    """Of blocks for K/V there are so few that the longest prompt has no room beside a long one that is not let go: 48 of 128 tokens."""
    config = VllmConfig(files.directory, files.name, files.family, batch_size_max=4, queue_depth_max=4)
    config = msgspec.structs.replace(config, kv_cache_bytes=12 << 20, embeddings="connector")
    load = KvLoad()
    given: dict[str, Any] = {"threads": 1, "start_seconds_max": 280, "on_restart": on_restart, "load": load}
    roles: tuple[Role, ...] = ("p", "d")
    engines = [
        VllmEngine(runtime, msgspec.structs.replace(config, role=role, encoder=role == "p"), index=index, **given)
        for index, role in enumerate(roles)
    ]
    return VllmSplit(engines, roles, load)


ENGINES: dict[str, Callable[..., Any]] = {
    "embedded": embedded,
    "vllm": partial(vllm, embeddings="inline"),
    "vllm, embeddings by name": partial(vllm, embeddings="connector"),
    "fleet": partial(fleet, prefix_cache_bytes_max=16 << 20),
    "split": partial(fleet, topology="e-p-d", queue_depth_max=6),
    "vllm, split": vllm_split,
}


class Bench:
    """An engine that runs, and what prepares requests for it."""

    def __init__(self, name: str, runtime: LocalRuntime, files: ModelFiles = MODEL, **changes: Any) -> None:
        """``changes`` are to the engine's configuration."""
        self.name = name
        self.runtime = runtime
        self.arena = self.runtime.arena
        self.restarted = asyncio.Event()
        self.engine = ENGINES[name](files, self.runtime, self._back, **changes)
        self.pixels = "pixels" in self.engine.accepts
        self.prompts = models.load_prompt_side(files, pixels=self.pixels)
        self.processor = models.load_picture_processor(files.directory, pixels=self.pixels)
        self._requests = 0

    @property
    def processes(self) -> list[ProcessEngine]:
        """The engine's processes."""
        return self.engine.engines if isinstance(self.engine, Fleet) else [self.engine]

    def _back(self) -> None:
        if all(process.ready for process in self.processes):
            self.restarted.set()

    def prepare(self, color: tuple[int, int, int]) -> PreparedImage:
        """Put a picture of one disc through the processor, into the arena."""
        pixels = np.full((168, 168, 3), 235, np.uint8)
        y, x = np.ogrid[:168, :168]
        pixels[(y - 84) ** 2 + (x - 84) ** 2 < 50**2] = color
        processed = self.processor.process(pixels, ImageOptions())
        slot = self.arena.allocate(bundle_size(processed.arrays))
        inputs = write_bundle(self.arena.view(slot), slot, processed.arrays)
        return PreparedImage(processed.replacement, processed.rows, inputs, processed.meta, ())

    async def encode(self, prepared: PreparedImage) -> EncodedImage:
        size = prepared.rows * self.engine.info.embedding_bytes_per_row + 64
        image: EncodedImage = await self.engine.encode(prepared, self.arena.allocate(size), deadline=now() + 60)
        return image

    def work(
        self, question: str, *prepared: PreparedImage, sampling: Sampling = GREEDY, images: Any = (), contents: Any = ()
    ) -> EngineWork:
        """``contents`` name the pictures' embeddings; without they are unknown."""
        parts = tuple(ImagePart(index, "", UrlRef("")) for index in range(len(prepared)))
        turns = [Turn("user", (*parts, TextPart(question)))]
        token_ids = self.prompts.tokenize(self.prompts.render(turns), [one.replacement for one in prepared])
        names = contents or [""] * len(prepared)
        self._requests += 1
        work = EngineWork(f"request-{self._requests}", token_ids, [], sampling, now() + 60)
        if self.pixels:
            pixels = [
                PixelInput(one.inputs, one.rows, one.meta, name) for one, name in zip(prepared, names, strict=True)
            ]
            return msgspec.structs.replace(work, pixels=pixels)
        pictures = [
            PictureInput(image.embeddings, image.rows, one.meta, name)
            for one, image, name in zip(prepared, images, names, strict=True)
        ]
        return msgspec.structs.replace(work, pictures=pictures)

    async def answer(self, work: EngineWork) -> tuple[str, list[TokenEvent], list[FinishEvent]]:
        tokens: list[TokenEvent] = []
        finishes: list[FinishEvent] = []
        async for event in self.engine.generate(work):
            assert not (finishes and finishes[-1].last), "nothing follows the last event"
            (tokens if isinstance(event, TokenEvent) else finishes).append(event)
        return "".join(event.text for event in tokens if event.choice == 0), tokens, finishes
