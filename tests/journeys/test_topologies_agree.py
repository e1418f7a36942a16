"""The same greedy tokens in every topology and on both runtimes, under a mixed load, of the model that ships and two of random weights.

    TOPOLOGY_REQUESTS=500 make test ARGS="tests/journeys/test_topologies_agree.py -s"

is the whole run, 500 requests in each topology; without the variable it is a shorter one. Nothing is cached, so that every picture is
encoded and every prompt prefilled in each topology.
"""

from __future__ import annotations

import asyncio
import dataclasses
import os
import random
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from tests.families import build_family
from tests.journeys.asking import BLUE, GREEN, RED, ask, picture, request

from foveate.assembly import journey
from foveate.core.request import Request
from foveate.journey.service import Journey
from foveate.settings import load

pytestmark = [pytest.mark.asyncio, pytest.mark.timeout(3600 if "TOPOLOGY_REQUESTS" in os.environ else 240)]

REQUESTS = int(os.environ.get("TOPOLOGY_REQUESTS", "32"))
PICTURES = sum(number % 4 for number in range(REQUESTS))
CONCURRENCY = 16
KNOWN: list[tuple[int, ...]] = []
"""What the model that ships answers on this machine, once that was asked."""
SEES_ALL = "gemma3"
"""Its tokens of a picture look at those behind them."""
SEES_LEVELS = "qwen3_vl"
"""Its embeddings have levels that are added in deeper layers."""
QUESTIONS = (
    "what is in this image?",
    "hello world",
    "what is in this image? a red circle",
    "a red circle, what is this?",
)


def mixed(number: int) -> Request:
    """Return the ``number``-th request: a text of one length or another, or up to three pictures of different sizes."""
    chooser = random.Random(number)
    shown = [
        picture(chooser.choice((RED, BLUE, GREEN)), chooser.randrange(200, 256), chooser.choice((112, 168, 224)))
        for _ in range(number % 4)
    ]
    made = request(*shown, text=" ".join(chooser.choices(QUESTIONS, k=chooser.randrange(1, 5))))
    return replace(made, sampling=replace(made.sampling, tokens_max=chooser.randrange(4, 16), ignore_eos=True))


async def answers(service: Journey) -> list[tuple[int, ...]]:
    """Return the tokens of all requests, several of which are asked at once."""
    found: dict[int, tuple[int, ...]] = {}
    numbers = iter(range(REQUESTS))

    async def client() -> None:
        for number in numbers:
            found[number] = (await ask(service, mixed(number))).tokens

    async with asyncio.TaskGroup() as tasks:
        for _ in range(CONCURRENCY):
            tasks.create_task(client())
    return [found[number] for number in range(REQUESTS)]


def flags(directory: Path | None) -> dict[str, str]:
    return {
        **({} if directory is None else {"model.path": str(directory)}),
        "log.requests": "off",
        "media.workers": "1",
        "engine.threads": "1",
        "engine.self_check": "false",
        "engine.prefix_cache_bytes_max": "0",
        "cache.encoder_bytes_max": "0",
        "cache.processor_bytes_max": "0",
    }


ON_RAY = {
    "runtime.kind": "ray",
    # Nothing hangs here, but machines may have more to do.
    "topology.hang_seconds": "20",
    "engine.hang_seconds": "20",
    "runtime.decode_needs": "here=0.01",
    **{f"runtime.{role}_needs": "away=0.01" for role in ("media", "encoder", "engine", "prefill")},
}
"""Token decode is on the gateway's node, all else on the other."""


async def agreed(directory: Path | None, on: dict[str, str], workers: int) -> dict[str, list[tuple[int, ...]]]:
    """Return the answers of each topology, which one server is given one after the other. Every encode worker has encoded."""
    found: dict[str, list[tuple[int, ...]]] = {}
    async with journey(load(flags(directory) | on), say=lambda text: None) as service:
        # The others may begin with prefill before all pictures are encoded.
        limits = dataclasses.replace(service.tools.limits, prefill_overlap=False)
        found["agg"] = await answers(Journey(dataclasses.replace(service.tools, limits=limits), models=service.models))
        assert service.topology().report().workers == ()
        await service.topology().set("e-pd", workers)
        found["e-pd"] = await answers(service)
        encoded = [worker.pictures for worker in service.topology().report().workers]
        assert all(encoded), "every encode worker has encoded"
        await service.topology().set("e-p-d", workers, prefill=1, decode=workers)
        found["e-p-d"] = await answers(service)
        encoded = [worker.pictures for worker in service.topology().report().workers]
        assert (await service.topology().set("agg")).kind == "agg"
        found["agg again"] = await answers(service)
    assert len(encoded) == workers
    # Equal pictures that are asked about at once are encoded once.
    assert sum(encoded) > 1.5 * PICTURES, "encode workers encoded what was asked about in e-pd and in e-p-d"
    return found


@pytest.mark.parametrize("family", [None, SEES_LEVELS, SEES_ALL], ids=lambda family: family or "demo")
async def test_the_same_tokens(family: str | None, tmp_path: Path) -> None:
    directory = None if family is None else build_family(family, tmp_path / family)
    found = await agreed(directory, {}, workers=2)
    assert_agreed(family or "demo", found, found["agg"])
    if family is None:
        KNOWN.extend(found["agg"])


@pytest.mark.xdist_group("ray")
async def test_the_same_tokens_on_ray(ray_cluster: Any) -> None:
    """Embeddings, and K/V between prefill and token decode, go from node to node."""
    found = await agreed(None, ON_RAY, workers=1)
    if not KNOWN:
        async with journey(load(flags(None)), say=lambda text: None) as service:
            KNOWN.extend(await answers(service))
    assert_agreed("demo on Ray", found, KNOWN)


def assert_agreed(name: str, found: dict[str, list[tuple[int, ...]]], right: list[tuple[int, ...]]) -> None:
    differ = {kind: [n for n in range(REQUESTS) if tokens[n] != right[n]] for kind, tokens in found.items()}
    told = f"{REQUESTS} requests, {PICTURES} pictures, {sum(map(len, right))} tokens in each topology"
    print(f"\n{name}: {told}; otherwise than agg: {differ}")  # noqa: T201
    assert len(set(right)) > REQUESTS // 8, "answers tell requests apart"
    assert differ == {"agg": [], "e-pd": [], "e-p-d": [], "agg again": []}
