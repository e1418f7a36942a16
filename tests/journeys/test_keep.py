"""Embeddings go to disk and come back: the hottest within time and bytes, for whom they were made, and never what was dropped."""

import os
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from tests.journeys.asking import BLUE, GREEN, RED, ask, by, data_of, picture, request, settled

from foveate.caches.encoder import EncoderCache
from foveate.caches.keep_directory import FILE, KeepDirectory
from foveate.core.media import DataRef
from foveate.journey.keep import restore, save
from foveate.journey.service import Journey
from foveate.observe.metrics import Metrics

pytestmark = pytest.mark.asyncio(loop_scope="session")
SIZE = 1 << 26


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "keep"


class Run:
    """One life of a server: an empty encoder cache, and a directory that it keeps it in. Workers, engine and arena are ``service``'s."""

    def __init__(
        self, service: Journey, path: Path, *, bytes_max: int = SIZE, seconds_max: float = 60, **limits: bool
    ) -> None:
        tools = service.tools
        self.keep = KeepDirectory(path, bytes_max=bytes_max, seconds_max=seconds_max, made_by="these tests")
        self.tools = replace(
            tools,
            encoder_cache=EncoderCache(SIZE, tools.arena.release),
            limits=replace(tools.limits, **limits),
            metrics=Metrics(),
            keep=self.keep,
        )
        self.journey = Journey(self.tools, models=service.models)

    def counted(self, name: str) -> dict[str, float]:
        """Return a counter's series, by label."""
        return {",".join(labels): value for labels, value in self.tools.metrics.values(name).items() if value}

    @property
    def restored(self) -> tuple[float, dict[str, float]]:
        entries = self.counted("foveate_restored_entries_total").get("", 0)
        return entries, self.counted("foveate_restore_skipped_total")

    async def held(self, ref: DataRef) -> bool:
        """Whether a request with this picture is answered without encoding."""
        hits = self.tools.encoder_cache.stats().hits
        await ask(self.journey, request(ref))
        return self.tools.encoder_cache.stats().hits > hits

    def end(self) -> None:
        self.tools.encoder_cache.clear()
        self.keep.close()


async def test_what_was_kept_answers_as_before(service: Journey, path: Path) -> None:
    pictures = [picture(colour) for colour in (RED, BLUE, GREEN)]
    first = Run(service, path)
    await restore(first.tools)  # nothing there yet, and nothing to complain of
    assert first.restored == (0, {})
    said = [(await ask(first.journey, request(ref))).text for ref in pictures]
    await save(first.tools)
    assert first.tools.encoder_cache.stats().pinned == 0
    first.end()
    again = Run(service, path)
    await restore(again.tools)
    assert again.restored == (3, {})
    assert again.tools.encoder_cache.stats().bytes == again.counted("foveate_restored_bytes_total")[""]
    # By its name the engine knows a picture again, and keeps the KV of prompts with it.
    assert all(held.value.content == held.key.name() for held in again.tools.encoder_cache.entries())
    for ref, before in zip(pictures, said, strict=True):
        answered = await ask(again.journey, request(ref))
        assert answered.text == before
        assert not {"media_decode", "mm_processor", "vision_encode"} & answered.timing.keys()
    assert again.tools.encoder_cache.stats().hits == 3
    again.end()
    await settled(service)


async def test_what_does_not_fit_on_the_disk_is_the_coldest(service: Journey, path: Path) -> None:
    """Each picture is asked for a different number of times; there is room for some of them, and never for more than one file."""
    pictures = [picture(colour) for colour in (RED, BLUE, GREEN, RED, BLUE)]
    first = Run(service, path)
    for times, ref in enumerate(pictures):
        for _ in range(times + 1):
            await ask(first.journey, request(ref))
    size = first.tools.encoder_cache.entries()[0].size
    first.keep.bytes_max = 3 * (size + 2048)
    for _ in range(2):
        await save(first.tools)
        assert (path / FILE).stat().st_size <= first.keep.bytes_max
        assert sorted(os.listdir(path)) == [FILE, "lock"]
    first.end()
    again = Run(service, path)
    await restore(again.tools)
    assert again.restored == (3, {})
    assert [await again.held(ref) for ref in pictures] == [False, False, True, True, True]
    again.end()


async def test_time_that_is_up_costs_the_cold_ones_and_never_the_file(service: Journey, path: Path) -> None:
    first = Run(service, path)
    await ask(first.journey, request(picture(RED)))
    await save(first.tools)
    whole = (path / FILE).read_bytes()
    await ask(first.journey, request(picture(BLUE)))
    first.keep.seconds_max = 0
    await save(first.tools)
    assert (path / FILE).read_bytes() == whole
    first.end()
    again = Run(service, path, seconds_max=0)
    await restore(again.tools)
    assert again.restored == (0, {"time": 1})
    again.end()
    await settled(service)


async def test_other_versions_and_scopes_stay_out(service: Journey, path: Path) -> None:
    first = Run(service, path)
    await ask(first.journey, request(picture(RED)))
    (held,) = first.tools.encoder_cache.entries()
    others = [
        msgspec.structs.replace(held.key, encoder_version="f" * 64),
        msgspec.structs.replace(held.key, processor_version="f" * 64),
        msgspec.structs.replace(held.key, scope="acme"),
    ]
    arena = service.tools.arena
    for key in others:
        slot = arena.allocate(held.value.slot.size)
        arena.view(slot)[:] = arena.view(held.value.slot)
        bundle = msgspec.structs.replace(held.value.embeddings, slot=slot)
        assert first.tools.encoder_cache.restore(key, msgspec.structs.replace(held.value, embeddings=bundle), held.size)
    await save(first.tools)
    shared = held.key
    first.end()
    for apart, there in ((False, shared), (True, others[2])):
        again = Run(service, path, caches_per_tenant=apart)
        await restore(again.tools)
        assert again.restored == (1, {"version": 2, "scope": 1})
        assert again.tools.encoder_cache.keys() == [there]
        again.end()
    await settled(service)


async def test_one_tenant_s_entry_comes_back_for_that_tenant_alone(service: Journey, path: Path) -> None:
    red = picture(RED)
    first = Run(service, path, caches_per_tenant=True)
    await ask(first.journey, by(request(red), "acme"))
    await save(first.tools)
    first.end()
    again = Run(service, path, caches_per_tenant=True)
    await restore(again.tools)
    for tenant, work in (("other", True), ("acme", False)):
        answered = await ask(again.journey, by(request(red), tenant))
        assert answered.text == "A red circle."
        # The processor cache of the service still holds what acme's request left there.
        assert ("vision_encode" in answered.timing) == work
    again.end()
    await settled(service)


async def test_what_an_operator_drops_does_not_come_back_after_a_crash(service: Journey, path: Path) -> None:
    first = Run(service, path)
    await ask(first.journey, request(picture(RED)))
    await save(first.tools)
    (hot,) = (await first.journey.caches().hottest("encoder", 1)).keys
    await first.journey.caches().drop("encoder", hot.name)
    assert os.listdir(path) == ["lock"]
    first.end()
    again = Run(service, path)
    await restore(again.tools)
    assert again.restored == (0, {})
    again.end()


async def test_an_empty_cache_leaves_the_file_and_a_file_that_is_not_ours_is_left_too(
    service: Journey, path: Path
) -> None:
    first = Run(service, path)
    (path / FILE).write_bytes(data_of(picture(RED)))
    before = (path / FILE).read_bytes()
    await restore(first.tools)
    assert first.restored == (0, {"foreign": 1})
    await save(first.tools)
    assert (path / FILE).read_bytes() == before
    await ask(first.journey, request(picture(RED)))
    await save(first.tools)
    first.end()
    again = Run(service, path)
    await restore(again.tools)
    assert again.restored == (1, {})
    again.end()
    await settled(service)
