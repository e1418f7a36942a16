"""Embeddings in a directory: checked, whole, bounded, and gone with the gateway."""

from __future__ import annotations

import asyncio
import json
import os
import stat
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytest_asyncio
from tests.blackbox.server import eventually
from tests.unit.engines.upstream.answering import Upstream, answered, failing, picture, relaying, stream, text, work

from foveate.core.errors import EncodeFailed, StartupError
from foveate.engines.embedding_file import HEADER_BYTES, digest_of, open_file, read_header
from foveate.engines.port import PictureInput, RelayedMedia
from foveate.engines.upstream.store import EmbeddingStore
from foveate.runtime.arena import Arena
from foveate.runtime.tensors import bundle_size, write_bundle

ROWS, WIDTH = 6, 8
SIZE = HEADER_BYTES + ROWS * WIDTH * 4
pytestmark = pytest.mark.asyncio


def medium(arena: Arena, name: str, *arrays: np.ndarray, **more: Any) -> RelayedMedia:
    """A picture whose embeddings lie in the arena."""
    tensors = arrays or (np.full((ROWS, WIDTH), len(name), np.float32),)
    named = {"rows": tensors[0]} | {f"deep{level}": one for level, one in enumerate(tensors[1:])}
    dtypes = {key: "bfloat16" for key, one in named.items() if one.dtype == np.uint16}
    slot = arena.allocate(bundle_size(named))
    bundle = write_bundle(arena.view(slot), slot, named, dtypes)
    fields = {"rows": ROWS, "meta": {"image_grid_thw": [1, 4, 6]}, **more}
    return RelayedMedia(name, "", (), None, ROWS, PictureInput(bundle, **fields))


@pytest.fixture
def arena() -> Arena:
    return Arena(1 << 20)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest_asyncio.fixture
async def store(path: Path, arena: Arena) -> AsyncIterator[EmbeddingStore]:
    made = EmbeddingStore(path, arena, bytes_max=2 * SIZE)
    made.open()
    yield made
    await made.aclose()


def files(path: Path) -> set[str]:
    return {one.name for one in path.iterdir()} - {"lock"}


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def begin(path: Path, mode: int, *names: str) -> None:
    """Make a directory with files in it."""
    path.mkdir()
    path.chmod(mode)
    for name in names:
        (path / name).write_bytes(b"x")


def content(path: Path, name: str) -> bytes:
    file = path / digest_of(name).hex()
    fd = open_file(str(file))
    read_header(fd, name, checksum=True)
    os.close(fd)
    return file.read_bytes()[HEADER_BYTES:]


async def test_a_picture_is_there_whole_and_for_its_owner_alone(
    store: EmbeddingStore, path: Path, arena: Arena
) -> None:
    async with store.holding([medium(arena, "red")]) as there:
        assert there
        assert content(path, "red") == np.full((ROWS, WIDTH), 3, np.float32).tobytes()
    file = path / digest_of("red").hex()
    assert (mode(path), mode(file)) == (0o700, 0o600)


async def test_levels_and_bfloat16_are_kept_as_they_are(store: EmbeddingStore, path: Path, arena: Arena) -> None:
    levels = [np.full((ROWS, 4), value, np.uint16) for value in (0x3F80, 0x4000)]
    async with store.holding([medium(arena, "red", *levels)]) as there:
        assert there
    assert content(path, "red") == np.concatenate(levels, axis=1).tobytes()


@pytest.mark.parametrize(
    ("array", "more"),
    [
        (np.full((ROWS, WIDTH), np.nan, np.float32), {}),
        (np.full((ROWS, WIDTH), 0x7F80, np.uint16), {}),
        (np.ones((ROWS + 1, WIDTH), np.float32), {}),
        (np.ones((ROWS, WIDTH, 1), np.float32), {}),
    ],
)
async def test_what_would_kill_an_engine_is_not_written(
    store: EmbeddingStore, path: Path, arena: Arena, array: np.ndarray, more: dict[str, Any]
) -> None:
    with pytest.raises(EncodeFailed):
        async with store.holding([medium(arena, "red", array, **more)]):
            pass
    await asyncio.sleep(0)
    assert files(path) == set()
    assert store.bytes == 0


async def test_what_is_used_stays_and_what_was_used_last_stays_longest(
    store: EmbeddingStore, path: Path, arena: Arena
) -> None:
    red, blue, green = (medium(arena, name) for name in ("red", "blue", "green"))
    async with AsyncExitStack() as held:
        for one in (red, blue):
            assert await held.enter_async_context(store.holding([one]))
        async with store.holding([green]) as there:
            assert not there, "it has to be sent"
        async with store.holding([red, green]) as there:
            assert not there
    async with store.holding([red]):
        pass
    async with store.holding([green]) as there:
        assert there
    assert files(path) == {digest_of(name).hex() for name in ("red", "green")}
    assert store.bytes == 2 * SIZE


async def test_requests_for_one_picture_share_its_file(store: EmbeddingStore, arena: Arena) -> None:
    async def hold() -> bool:
        async with store.holding([medium(arena, "red"), medium(arena, "red")]) as there:
            return there

    assert all(await asyncio.gather(*(hold() for _ in range(8))))
    assert (len(store), store.bytes) == (1, SIZE)


async def test_a_file_that_was_removed_is_made_again(store: EmbeddingStore, path: Path, arena: Arena) -> None:
    for _ in range(2):
        async with store.holding([medium(arena, "red")]) as there:
            assert there
            (path / digest_of("red").hex()).unlink()
    assert store.bytes == SIZE


async def test_a_cancelled_request_publishes_nothing(store: EmbeddingStore, path: Path, arena: Arena) -> None:
    async def hold() -> None:
        async with store.holding([medium(arena, "red")]):
            raise AssertionError("it was cancelled")

    task = asyncio.ensure_future(hold())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    while files(path):
        await asyncio.sleep(0.01)
    assert (len(store), store.bytes) == (0, 0)


async def test_pictures_without_a_grid_are_sent(store: EmbeddingStore, arena: Arena) -> None:
    async with store.holding([medium(arena, "red", meta={})]) as there:
        assert not there


async def test_it_belongs_to_one_gateway_and_is_empty_before_and_after(path: Path, arena: Arena) -> None:
    begin(path, 0o700, digest_of("dead").hex(), "mine")
    first = EmbeddingStore(path, arena, bytes_max=1 << 20)
    first.open()
    assert files(path) == {"mine"}
    with pytest.raises(StartupError, match="in use"):
        EmbeddingStore(path, arena, bytes_max=1 << 20).open()
    async with first.holding([medium(arena, "red")]):
        pass
    await first.aclose()
    assert files(path) == {"mine"}
    again = EmbeddingStore(path, arena, bytes_max=1 << 20)
    again.open()
    await again.aclose()


async def test_a_directory_that_others_can_read_is_refused(path: Path, arena: Arena) -> None:
    begin(path, 0o750)
    store = EmbeddingStore(path, arena, bytes_max=1 << 20)
    with pytest.raises(StartupError, match="0700"):
        store.open()
    await store.aclose()


async def test_a_killed_gateway_leaves_nothing(path: Path) -> None:
    program = (
        "import os, signal, sys\nfrom pathlib import Path\nfrom foveate.engines.upstream.store import EmbeddingStore\n"
        "from foveate.engines.embedding_file import digest_of\nfrom foveate.runtime.arena import Arena\n"
        "import asyncio\n"
        "async def main():\n"
        "    path = Path(sys.argv[1]); store = EmbeddingStore(path, Arena(1 << 16), bytes_max=1)\n"
        "    store.open(); (path / digest_of('red').hex()).write_bytes(b'x'); os.kill(os.getpid(), signal.SIGKILL)\n"
        "asyncio.run(main())\n"
    )
    done = await asyncio.to_thread(subprocess.run, [sys.executable, "-c", program, str(path)], timeout=60)
    assert done.returncode == -9
    await asyncio.to_thread(eventually, "the store to be empty", lambda: not files(path), seconds=20)


async def test_a_server_is_sent_names_and_embeddings_when_it_does_not_find_them(path: Path, arena: Arena) -> None:
    gone = failing(500, "Internal server error")
    async with (
        Upstream(stream, gone, stream).running() as upstream,
        relaying(upstream.config(mode="embeds"), arena=arena, store=path) as relay,
    ):
        relay.agrees("a")
        for _ in range(2):
            assert text(await answered(relay, work(medium(arena, "red")))) == "Hello"
    first, again, whole = (body["messages"][0]["content"][0] for body in upstream.bodies)
    assert first == again
    assert first == {"type": "image_embeds", "uuid": "red", "image_embeds": {"image_grid_thw": [1, 4, 6]}}
    assert whole["uuid"] != "red", "vLLM would take it for what came without embeddings"
    assert len(whole["image_embeds"]["image_embeds"]) > ROWS * WIDTH * 4
    assert relay.servers[0].resent == 1
    assert json.dumps(first) not in json.dumps(whole)
    assert not files(path)


async def test_embeddings_that_cannot_be_sent_leave_no_place_taken(arena: Arena) -> None:
    bad = medium(arena, "red", np.full((ROWS, WIDTH), np.inf, np.float32))
    async with Upstream().running() as upstream, relaying(upstream.config(mode="embeds"), arena=arena) as relay:
        relay.agrees("a")
        with pytest.raises(EncodeFailed):
            await answered(relay, work(bad))
        assert relay.servers[0].in_flight == 0
        assert text(await answered(relay, work(picture(arena, b"png")))) == "Hello"
