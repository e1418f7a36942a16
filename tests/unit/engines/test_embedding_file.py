"""Embeddings as files: what is written is read, and nothing else is taken for it."""

from __future__ import annotations

import os
import zlib
from pathlib import Path

import pytest

from foveate.engines.embedding_file import (
    HEADER_BYTES,
    EmbeddingFault,
    EmbeddingHeader,
    digest_of,
    open_file,
    read_header,
    write_file,
)

ROWS = bytes(range(240)) * 2
NAME = "../a name\nof any kind"


def header(**changes: object) -> EmbeddingHeader:
    fields = {"digest": digest_of(NAME), "dtype": "bfloat16", "rows": 6, "width": 40, "grid": (1, 4, 6)}
    return EmbeddingHeader(**{**fields, "crc": zlib.crc32(ROWS), **changes})  # type: ignore[arg-type]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    made = tmp_path / digest_of(NAME).hex()
    fd = os.open(made, os.O_WRONLY | os.O_CREAT, 0o600)
    write_file(fd, header(), memoryview(ROWS))
    os.close(fd)
    return made


def read(path: Path, name: str = NAME, *, checksum: bool = True) -> EmbeddingHeader:
    fd = open_file(str(path))
    try:
        return read_header(fd, name, checksum=checksum)
    finally:
        os.close(fd)


def test_what_was_written_is_read(path: Path) -> None:
    assert read(path) == header()
    assert path.read_bytes()[HEADER_BYTES:] == ROWS


def test_another_name_is_another_picture(path: Path) -> None:
    with pytest.raises(EmbeddingFault, match="something else"):
        read(path, "another")


@pytest.mark.parametrize("size", [0, 10, HEADER_BYTES, HEADER_BYTES + len(ROWS) - 1, HEADER_BYTES + len(ROWS) + 1])
def test_another_length_is_refused(path: Path, size: int) -> None:
    os.truncate(path, size)
    with pytest.raises(EmbeddingFault):
        read(path, checksum=False)


@pytest.mark.parametrize("place", [0, 7, 8, 40, 44, 48, 64, 68])
def test_a_damaged_header_is_refused(path: Path, place: int) -> None:
    data = bytearray(path.read_bytes())
    data[place] ^= 0x55
    path.write_bytes(data)
    with pytest.raises(EmbeddingFault):
        read(path)


def test_damaged_rows_are_seen_by_their_checksum_alone(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    assert read(path, checksum=False) == header()
    with pytest.raises(EmbeddingFault, match="damaged"):
        read(path)


def test_what_is_no_file_is_refused_without_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for other in (tmp_path / "pipe", tmp_path, Path("/dev/null")):
        with pytest.raises(EmbeddingFault, match="not a file"):
            read(other)


@pytest.mark.parametrize("changes", [{"dtype": "int64"}, {"rows": 2**32}, {"grid": (1, -4, 6)}])
def test_what_a_header_cannot_say_is_not_written(changes: dict[str, object]) -> None:
    with pytest.raises(EmbeddingFault):
        header(**changes).packed()
