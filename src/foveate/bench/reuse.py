"""What sharing and keeping saves: many requests for one new picture, and putting embeddings into memory against copying them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import numpy as np
import numpy.typing as npt

from foveate.bench.client import Connection, chat_body
from foveate.bench.figures import Figure
from foveate.bench.origin import Origin, fetching, origin
from foveate.bench.pictures import encoded, photograph
from foveate.bench.server import HOST, Running, running
from foveate.caches.encoder import EncoderCache, EncoderEntry
from foveate.caches.keys import EncoderKey
from foveate.core.media import ImageOptions
from foveate.core.memory import Slot, TensorBundle
from foveate.runtime.arena import Arena, aligned

AT_ONCE: Final = 32
QUESTION: Final = "What is in this image?"

EMBEDDING_BYTES: Final = 9 * 10**6
HELD: Final = 8
"""Embeddings held, and buffers copied to and from in turn, so that no cache of the processor holds them all."""
COPIES: Final = 3 * HELD


PROCESSES: Final = ("gateway", "media", "engine")


def flights(rounds: int) -> list[Figure]:
    """Processor time of all the server's processes: 32 requests at once for one new picture, against one request for another."""
    bare, kept = _Flights(), _Flights()
    for found, flags in ((bare, ("--engine-prefix-cache-bytes-max", "0")), (kept, ())):
        with origin() as web, running(*fetching(web.port), *flags) as server:
            _cost(server, _offer(web, 0), AT_ONCE)
            for round_ in range(1, rounds + 1):
                found.measure(server, _offer(web, 2 * round_), _offer(web, 2 * round_ + 1))
    what = (
        f"CPU time of all processes, {AT_ONCE} requests at once for a new 1080p JPEG by URL / one for another, one token each, "
        f"{rounds} rounds"
    )
    media = (
        f"{what}; less what as many requests for the same picture cost once it is cached, so that decode, processor and encode "
        "remain; no KV kept"
    )
    name = f"{AT_ONCE} requests for one new picture"
    return [
        Figure(f"{name}, media work / of one", media, tuple(bare.media), "x", 1.2),
        Figure(f"{name}, whole requests / one", what, tuple(kept.whole), "x", 1.2),
        Figure(f"{name}, whole requests / one, no KV kept", what, tuple(bare.whole), "x"),
        *(
            Figure(f"{requests} for a new picture, CPU time, {kind}", what, tuple(found[kind]), "ms")
            for requests, found in (("One request", kept.one), (f"{AT_ONCE} requests", kept.many))
            for kind in PROCESSES
        ),
    ]


class _Flights:
    """What requests for new pictures cost: ratios, a round each, and milliseconds by kind of process."""

    def __init__(self) -> None:
        self.whole: list[float] = []
        self.media: list[float] = []
        self.one: dict[str, list[float]] = {kind: [] for kind in PROCESSES}
        self.many: dict[str, list[float]] = {kind: [] for kind in PROCESSES}

    def measure(self, server: Running, one: str, many: str) -> None:
        new_one, new_many = _cost(server, one, 1), _cost(server, many, AT_ONCE)
        known_one, known_many = (sum(_cost(server, url, count).values()) for url, count in ((one, 1), (many, AT_ONCE)))
        self.whole.append(sum(new_many.values()) / sum(new_one.values()))
        self.media.append((sum(new_many.values()) - known_many) / (sum(new_one.values()) - known_one))
        for kind in PROCESSES:
            self.one[kind].append(new_one[kind] * 1e3)
            self.many[kind].append(new_many[kind] * 1e3)


def copies(rounds: int) -> list[Figure]:
    """Put a 9 MB embedding into the encoder cache and read it out again, against copying as many bytes between plain memory."""
    puts, gets = [], []
    ring = _Ring()
    for round_ in range(rounds + 1):
        plain_in, put = _seconds(ring.copy_in), _seconds(ring.put)
        plain_out, get = _seconds(ring.copy_out), _seconds(ring.get)
        if round_:  # the first touches fresh memory
            puts.append(plain_in / put)
            gets.append(plain_out / get)
    what = f"CPU time of {COPIES} copies of {EMBEDDING_BYTES / 1e6:.0f} MB between plain memory / of"
    return [
        Figure(
            "Put of a 9 MB embedding, speed / memcpy",
            f"{what} allocating, copying in, putting",
            tuple(puts),
            "x",
            0.6,
            "at least",
        ),
        Figure(
            "Get of a 9 MB embedding, speed / memcpy", f"{what} getting, copying out", tuple(gets), "x", 0.6, "at least"
        ),
    ]


class _Ring:
    """Copies in turn: plain ones, and through the cache."""

    def __init__(self) -> None:
        self.arena = Arena((HELD + 1) * aligned(EMBEDDING_BYTES))
        self.cache = EncoderCache(HELD * aligned(EMBEDDING_BYTES), self.arena.release, curve_rate=1.0)
        self.source = np.random.default_rng(1).integers(0, 256, EMBEDDING_BYTES, np.uint8)
        self.plain: list[npt.NDArray[np.uint8]] = [np.zeros_like(self.source) for _ in range(HELD)]
        self.out = np.zeros_like(self.source)
        self.number = 0

    def copy_in(self, number: int) -> None:
        np.copyto(self.plain[number % HELD], self.source)

    def copy_out(self, number: int) -> None:
        np.copyto(self.out, self.plain[number % HELD])

    def put(self, number: int) -> None:
        self.number += 1
        if self.cache.stats().entries == HELD:
            self.cache.shrink(1)
        slot = self.arena.allocate(EMBEDDING_BYTES)
        np.copyto(self._bytes(slot), self.source)
        entry = EncoderEntry("", 1, {}, TensorBundle(slot, (), slot.size), {"vision_encode": 30.0}, "")
        lease = self.cache.put(_key(self.number), entry, aligned(slot.size))
        assert lease is not None
        lease.release()

    def get(self, number: int) -> None:
        lease = self.cache.get(_key(self.number - number % HELD))
        assert lease is not None
        with lease:
            np.copyto(self.out, self._bytes(lease.entry.slot))

    def _bytes(self, slot: Slot) -> npt.NDArray[np.uint8]:
        return np.frombuffer(self.arena.view(slot), np.uint8)


def _key(number: int) -> EncoderKey:
    return EncoderKey(f"{number:064x}", "p", ImageOptions(), "e")


def _seconds(copy: Callable[[int], None]) -> float:
    started = time.process_time()
    for number in range(COPIES):
        copy(number)
    return time.process_time() - started


def _offer(web: Origin, seed: int) -> str:
    return web.offer(f"{seed}.jpg", encoded(photograph(1920, 1080, 1000 + seed), quality=85))


def _cost(server: Running, url: str, requests: int) -> dict[str, float]:
    """Return the CPU seconds that each kind of the server's processes spends on requests at once for one picture."""
    parts = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": QUESTION}]
    body = chat_body(parts, model=server.model, tokens=1)
    with ThreadPoolExecutor(requests) as clients:
        together = threading.Barrier(requests + 1)

        def ask() -> int:
            with Connection(HOST, server.port) as connection:
                together.wait()
                return connection.ask(body).status

        asked = [clients.submit(ask) for _ in range(requests)]
        before = server.cpu_seconds()
        together.wait()
        statuses = {each.result() for each in asked}
        after = server.cpu_seconds()
    if statuses != {200}:
        raise AssertionError(f"requests for one picture were answered with {statuses}")
    return {kind: seconds - before.get(kind, 0.0) for kind, seconds in after.items()}
