"""Local files: only beneath the root, only regular ones, whatever a name or a link says. Field case 15."""

from __future__ import annotations

import asyncio
import os
import threading
from pathlib import Path

import pytest
from blake3 import blake3
from tests.unit.media.sites import BODY, Arrived, Buffer, Site, fetcher_for, redirecting, refused

from foveate.core.errors import FetchRejected, MediaTooLarge, StartupError, UrlInvalid, UrlRefused
from foveate.media import files
from foveate.media.policy import UrlPolicy


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A root with a picture, a directory, links in and out, and a secret beside it."""
    (tmp_path / "secret").write_bytes(b"secret")
    root = tmp_path / "media"
    (root / "deep" / "er").mkdir(parents=True)
    (root / "a b.png").write_bytes(BODY)
    (root / "deep" / "er" / "c.png").write_bytes(b"c")
    (root / "empty").write_bytes(b"")
    (root / "inside").symlink_to("deep/er/c.png")
    (root / "outside").symlink_to("../secret")
    (root / "absolute").symlink_to(tmp_path / "secret")
    (root / "up").symlink_to("..")
    os.mkfifo(root / "fifo")
    return root


@pytest.fixture(params=["openat2", "by steps"])
def kernel(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both ways of opening; a system call that does not exist stands for an old kernel."""
    if request.param == "by steps":
        monkeypatch.setattr(files, "_OPENAT2", 9999)
    return str(request.param)


async def read(root: Path, url: str, sink: Buffer | None = None) -> Arrived:
    async with fetcher_for(file_root=str(root)) as fetcher:
        return await fetcher.fetch(url.replace("ROOT", str(root)), sink or Buffer())


@pytest.mark.parametrize("url", ["file://ROOT/a%20b.png", "FILE://localhostROOT/a%20b.png", "file://ROOT//a%20b.png#x"])
async def test_reads_a_file_beneath_the_root(root: Path, url: str, kernel: str) -> None:
    sink = Buffer()
    fetched = await read(root, url, sink)
    assert bytes(sink.data) == BODY
    assert (fetched.digest, fetched.size) == (blake3(BODY).hexdigest(), len(BODY))
    assert fetched.redirects == 0
    assert sink.hints == [len(BODY)]


async def test_a_link_that_stays_inside_depends_on_the_kernel(root: Path, kernel: str) -> None:
    if kernel == "openat2":
        assert (await read(root, "file://ROOT/inside")).size == 1
    else:
        with pytest.raises(UrlRefused, match="inside"):
            await read(root, "file://ROOT/inside")


@pytest.mark.parametrize("name", ["outside", "absolute", "up/secret", "up/media/a%20b.png"])
async def test_no_link_leads_out(root: Path, name: str, kernel: str) -> None:
    sink = Buffer()
    with pytest.raises((UrlRefused, FetchRejected)) as caught:
        await read(root, f"file://ROOT/{name}", sink)
    assert not sink.hints
    assert str(root) not in caught.value.public
    assert "secret" not in caught.value.public


@pytest.mark.parametrize(
    "name", ["../secret", "%2e%2e/secret", "..%2fsecret", "deep/%2E./../secret", "./a%20b.png", ""]
)
async def test_no_name_leads_out(root: Path, name: str) -> None:
    with pytest.raises(UrlRefused, match="rule: file root"):
        await read(root, f"file://ROOT/{name}")


@pytest.mark.parametrize(
    "url",
    ["file:///etc/passwd", "file://ROOTx/a", "file:////etc/passwd", "file://localhost/etc/passwd", "file:///"],
)
async def test_nothing_beside_the_root(root: Path, url: str) -> None:
    with pytest.raises(UrlRefused, match="rule: file root"):
        await read(root, url)


@pytest.mark.parametrize(
    "url",
    [
        "file://host/a",
        "file://127.0.0.1ROOT/a%20b.png",
        "file:ROOT/a%20b.png",
        "file://localhost",
        "file://ROOT/a%00b",
        "file://ROOT/a%0ab",
        "file://ROOT/a%5cb",
        "file://ROOT/a%2",
        "file://ROOT/%ff",
        "file://ROOT/a%20b.png?x",
        "ROOT/a b.png",
        "/etc/passwd",
    ],
)
async def test_one_strict_spelling(root: Path, url: str) -> None:
    with pytest.raises(UrlInvalid):
        await read(root, url)


async def test_percent_signs_are_decoded_once(root: Path) -> None:
    (root / "%2e%2e").write_bytes(b"x")
    assert (await read(root, "file://ROOT/%252e%252e")).size == 1


@pytest.mark.parametrize("name", ["fifo", "deep", "deep/er/"])
async def test_only_regular_files(root: Path, name: str, kernel: str) -> None:
    with pytest.raises(UrlRefused, match=r"deep|fifo") as caught:
        await asyncio.wait_for(read(root, f"file://ROOT/{name}"), 5)
    assert "rule: file)" in caught.value.public


@pytest.mark.parametrize("name", ["gone", "a%20b.png/x", "gone/a", "x" * 300])
async def test_what_is_not_there_is_the_clients_error(root: Path, name: str, kernel: str) -> None:
    with pytest.raises(FetchRejected) as caught:
        await read(root, f"file://ROOT/{name}")
    assert str(root) not in caught.value.public


async def test_an_empty_file_and_one_beyond_the_cap(root: Path) -> None:
    with pytest.raises(FetchRejected, match="empty"):
        await read(root, "file://ROOT/empty")
    sink = Buffer(1000)
    with pytest.raises(MediaTooLarge):
        await read(root, "file://ROOT/a%20b.png", sink)
    assert not sink.data


async def test_no_descriptor_and_no_thread_stays(root: Path, kernel: str) -> None:
    before, threads = len(os.listdir("/proc/self/fd")), set(threading.enumerate())
    async with fetcher_for(file_root=str(root)) as fetcher:
        for name in ("a%20b.png", "gone", "fifo", "outside", "deep") * 5:
            task = asyncio.ensure_future(fetcher.fetch(f"file://{root}/{name}", Buffer()))
            if name == "a%20b.png":
                await asyncio.sleep(0)
                task.cancel()
            with pytest.raises((UrlRefused, FetchRejected, asyncio.CancelledError)):
                await task
    for thread in set(threading.enumerate()) - threads:
        if thread.name.startswith("media-file"):
            thread.join(5)
            assert not thread.is_alive()
    assert len(os.listdir("/proc/self/fd")) == before


async def test_no_redirect_leads_to_a_file(root: Path) -> None:
    async with Site(redirecting(f"file://{root}/a%20b.png")) as site:
        error = await refused(site, UrlRefused, file_root=str(root))
    assert "rule: scheme" in error.public


def test_off_by_default_and_said_so() -> None:
    for url in ("file:///etc/passwd", "FILE://localhost/etc/passwd"):
        with pytest.raises(UrlRefused, match="rule: scheme"):
            UrlPolicy.of().parse(url)


@pytest.mark.parametrize("text", ["/", "//", "media", "/no/such/directory", "/etc/passwd", "."])
def test_a_root_that_cannot_be_one_stops_the_start(text: str) -> None:
    with pytest.raises(StartupError, match=r"fetch\.file_root"):
        UrlPolicy.of(file_root=text)
