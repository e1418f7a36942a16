"""Memory files of the engine's process: bounded, shared by requests, never written again."""

from __future__ import annotations

import os

import pytest
import torch

from foveate.engines.embedding_file import HEADER_BYTES, NO_GRID, read_header
from foveate.engines.vllm.connector import Load, mapped
from foveate.engines.vllm.handover import Handover

SIZE = HEADER_BYTES + 4 * 6 * 4


def rows(value: float = 1.0, *, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.full((4, 6), value, dtype=dtype)


def read(fd: int, dtype: str = "float32", width: int = 6) -> torch.Tensor:
    return mapped(Load("red", f"/proc/self/fd/{fd}", dtype, 4, width))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_what_is_handed_is_what_is_mapped(dtype: str) -> None:
    handover = Handover(bytes_max=1 << 20)
    given = torch.randn(4, 6).to(getattr(torch, dtype))
    fd = handover.hand("red", [given], (1, 4, 4))
    assert fd is not None
    assert (read_header(fd, "red", checksum=False).rows, os.get_inheritable(fd)) == (4, False)
    found = read(fd, dtype)
    assert torch.equal(found, given)
    handover.leave("red", kept=False)
    found += 1  # the mapping is the reader's own, and outlives the file
    assert torch.equal(found, given + 1)


def test_what_is_mapped_keeps_no_descriptor() -> None:
    fd = Handover(bytes_max=1 << 20).hand("red", [rows()], NO_GRID)
    assert fd is not None
    before = len(os.listdir("/proc/self/fd"))
    held = [read(fd) for _ in range(10)]
    assert len(os.listdir("/proc/self/fd")) == before
    assert all(torch.equal(one, rows()) for one in held)


def test_levels_lie_side_by_side() -> None:
    handover = Handover(bytes_max=1 << 20)
    fd = handover.hand("red", [rows(1), rows(2)], (1, 4, 4))
    assert fd is not None
    assert read(fd, width=12)[0].tolist() == [1.0] * 6 + [2.0] * 6


def test_a_file_cannot_be_written_again() -> None:
    fd = Handover(bytes_max=1 << 20).hand("red", [rows()], NO_GRID)
    assert fd is not None
    for spoil in (lambda: os.pwrite(fd, b"x", 0), lambda: os.ftruncate(fd, 1)):
        with pytest.raises(PermissionError):
            spoil()


def test_a_second_request_makes_no_second_file() -> None:
    handover = Handover(bytes_max=1 << 20)
    fd = handover.hand("red", [rows()], NO_GRID)
    assert handover.held("red", 4, NO_GRID) == fd
    assert handover.held("red", 5, NO_GRID) is None
    assert handover.held("red", 4, (1, 4, 4)) is None
    assert handover.held("blue", 4, NO_GRID) is None
    assert handover.hand("red", [rows(2)], NO_GRID) is None, "it would be another under its name"
    assert (len(handover), handover.bytes) == (1, SIZE)


def test_only_what_nobody_uses_gives_way_and_the_oldest_first() -> None:
    handover = Handover(bytes_max=2 * SIZE)
    for name in ("red", "blue"):
        assert handover.hand(name, [rows()], NO_GRID) is not None
    assert handover.hand("green", [rows()], NO_GRID) is None, "both are in use"
    handover.leave("blue", kept=True)
    handover.leave("red", kept=True)
    assert handover.held("red", 4, NO_GRID) is not None
    assert handover.hand("green", [rows()], NO_GRID) is not None
    assert handover.held("blue", 4, NO_GRID) is None
    assert handover.bytes == 2 * SIZE


def test_a_name_that_is_not_met_again_is_not_kept() -> None:
    handover = Handover(bytes_max=1 << 20)
    fd = handover.hand("request-1:0", [rows()], NO_GRID)
    assert fd is not None
    handover.leave("request-1:0", kept=False)
    assert (len(handover), handover.bytes) == (0, 0)
    with pytest.raises(OSError):
        os.fstat(fd)


def test_what_is_larger_than_all_room_evicts_nothing() -> None:
    handover = Handover(bytes_max=SIZE)
    handover.hand("red", [rows()], NO_GRID)
    handover.leave("red", kept=True)
    assert handover.hand("large", [torch.ones(5, 6)], NO_GRID) is None
    assert len(handover) == 1


def test_a_dtype_without_a_code_goes_with_the_request() -> None:
    handover = Handover(bytes_max=1 << 20)
    assert handover.hand("red", [rows(dtype=torch.float64)], NO_GRID) is None
    assert (len(handover), handover.bytes) == (0, 0)
