"""What is kept comes back as it was, and nothing that was changed in any byte, or cut anywhere, is taken for it."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest
from blake3 import blake3
from hypothesis import given
from hypothesis import strategies as st

from foveate.caches.kept_file import FORMAT, MAGIC, Kept, KeptFault, KeptReader, KeptWriter
from foveate.caches.keys import EncoderKey
from foveate.core.media import ImageOptions
from foveate.core.memory import TensorRef

OURS = "foveate 1, torch 2, cpu"


def kept(content: int, size: int = 96, scope: str = "acme") -> Kept:
    key = EncoderKey(f"{content:064x}", "p" * 64, ImageOptions(pixels_max=content, several=True), "e" * 64, scope)
    return Kept(
        key,
        "<image>" * 3,
        3,
        {"image_grid_thw": [1, 4, content]},
        (TensorRef("rows", "bfloat16", (3, 16), 0),),
        size,
        {"vision_encode": 12.5},
    )


def payload(content: int, size: int = 96) -> bytes:
    return blake3(str(content).encode()).digest(length=size)


def written(*contents: int, bytes_max: int = 1 << 20, made_by: str = OURS) -> bytes:
    return filed([(kept(content), payload(content)) for content in contents], bytes_max, made_by)


def filed(entries: list[tuple[Kept, bytes]], bytes_max: int = 1 << 20, made_by: str = OURS) -> bytes:
    """Return the bytes of a file with these entries, as many as fit."""
    fd = os.memfd_create("kept")
    try:
        writer = KeptWriter(os.fdopen(os.dup(fd), "wb"), bytes_max, made_by)
        for one, data in entries:
            writer.add(one, memoryview(data))
        writer.sync()
        writer.end()
        assert writer.bytes == os.fstat(fd).st_size
        return os.pread(fd, writer.bytes, 0)
    finally:
        os.close(fd)


def read(data: bytes, made_by: str = OURS) -> tuple[dict[int, bytes], list[str]]:
    """Return the payloads that are good, by content, and what was found wrong."""
    fd = os.memfd_create("kept")
    good: dict[int, bytes] = {}
    wrong: list[str] = []
    try:
        os.write(fd, data)
        reader = KeptReader(fd, made_by)
        while (found := reader.next()) is not None:
            into = bytearray(found.kept.used)
            number = int(found.kept.key.digest, 16)
            if reader.load(found, memoryview(into)):
                assert found.kept == kept(number)
                good[number] = bytes(into)
            else:
                wrong.append("damaged")
        assert reader.done
    except KeptFault as fault:
        wrong.append(fault.reason)
    finally:
        os.close(fd)
    return good, wrong


THREE = written(1, 2, 3)
WHOLE = {content: payload(content) for content in (1, 2, 3)}
END = THREE.index(payload(3)) + 96 + 32
"""Where the last entry ends."""


def test_what_was_written_comes_back_in_its_order_with_key_scope_and_options() -> None:
    good, wrong = read(THREE)
    assert (list(good.items()), wrong) == (list(WHOLE.items()), [])
    assert read(written()) == ({}, [])


def assert_found(at: int, change: int) -> None:
    good, wrong = read(THREE[:at] + bytes([THREE[at] ^ change]) + THREE[at + 1 :])
    assert wrong
    assert good.items() <= WHOLE.items()
    assert (good == WHOLE) == (at >= END)


@given(st.integers(0, len(THREE) - 1), st.integers(1, 255))
def test_one_changed_byte_is_found(at: int, change: int) -> None:
    assert_found(at, change)


def test_every_byte_matters() -> None:
    for at in range(len(THREE)):
        assert_found(at, 0x10)


@given(st.integers(0, len(THREE) - 1))
def test_a_cut_is_found_wherever_it_is(at: int) -> None:
    good, wrong = read(THREE[:at])
    assert wrong == ["truncated"]
    assert good.items() <= WHOLE.items()


@given(st.binary(min_size=1, max_size=200))
def test_what_follows_the_end_is_found(more: bytes) -> None:
    assert read(THREE + more)[1] == ["damaged"]


def test_a_damaged_payload_costs_only_itself() -> None:
    at = THREE.index(payload(2))
    good, wrong = read(THREE[:at] + b"x" + THREE[at + 1 :])
    assert (set(good), wrong) == ({1, 3}, ["damaged"])


def test_a_payload_belongs_to_its_key() -> None:
    """Payloads, with their hashes, that have changed places are whole, and yet not what was written there."""
    first, third = (THREE[(at := THREE.index(payload(content))) : at + 128] for content in (1, 3))
    swapped = THREE.replace(first, b"?" * 128).replace(third, first).replace(b"?" * 128, third)
    good, wrong = read(swapped)
    assert (set(good), wrong) == ({2}, ["damaged"] * 2)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "truncated"),
        (b"GIF89a" + bytes(100), "foreign"),
        (MAGIC + (FORMAT + 1).to_bytes(2, "little") + THREE[18:], "format"),
        (written(1, made_by="foveate 0, torch 2, cpu"), "version"),
        (THREE[:18] + (1 << 31).to_bytes(4, "little") + THREE[22:], "damaged"),
    ],
)
def test_what_is_not_of_use_is_told_apart(data: bytes, reason: str) -> None:
    assert read(data) == ({}, [reason])


@pytest.mark.parametrize(
    "tensor",
    [
        TensorRef("rows", "float32", (3, 16), 0),
        TensorRef("rows", "bfloat16", (3, 16), 2),
        TensorRef("rows", "bfloat16", (3, 16), -2),
        TensorRef("rows", "bfloat16", (-3, -16), 0),
        TensorRef("rows", "object", (1,), 0),
    ],
)
def test_a_tensor_outside_its_payload_is_no_entry(tensor: TensorRef) -> None:
    """Whoever wrote it, and however right its hashes are."""
    data = filed([(msgspec.structs.replace(kept(1), tensors=(tensor,)), payload(1))])
    assert read(data) == ({}, ["damaged"])


@given(st.integers(700, 2500))
def test_the_file_is_never_larger_than_it_may_be_and_whole_all_the_same(bytes_max: int) -> None:
    data = written(1, 2, 3, bytes_max=bytes_max)
    assert len(data) <= bytes_max
    good, wrong = read(data)
    assert wrong == []
    assert list(good) == list(WHOLE)[: len(good)]
    assert len(good) == 3 or len(data) + 800 > bytes_max


def test_a_payload_is_what_was_announced(tmp_path: Path) -> None:
    with (tmp_path / "kept").open("wb") as file, pytest.raises(ValueError, match="announced"):
        KeptWriter(file, 1 << 20, OURS).add(kept(1), memoryview(b"short"))
