"""Embeddings from clients: what torch and NumPy write is read to the bit, and what a hostile client writes is refused at no cost."""

import base64
import collections
import io
import pickle
import struct
import zipfile
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from foveate.core.errors import EmbeddingsInvalid
from foveate.media.embeddings import EmbeddingShape, read_embeddings, read_grid

SHAPE = EmbeddingShape(width=8, levels=1, dtype="float32", rows_max=100)
ROWS = torch.randn(6, 8, generator=torch.Generator().manual_seed(0))


def saved(value: Any) -> bytes:
    stream = io.BytesIO()
    torch.save(value, stream)
    return stream.getvalue()


def npy(array: np.ndarray) -> bytes:
    stream = io.BytesIO()
    np.save(stream, array)
    return stream.getvalue()


def read(data: bytes, shape: EmbeddingShape = SHAPE) -> dict[str, np.ndarray]:
    return read_embeddings(memoryview(data), shape)


@pytest.mark.parametrize(
    "value",
    [
        ROWS,
        ROWS.clone().requires_grad_(),
        torch.nn.Parameter(ROWS.clone()),
        ROWS[None],
        torch.cat([ROWS, ROWS])[6:],
        ROWS.t().contiguous().t(),
    ],
    ids=["plain", "with gradient", "parameter", "batch of one", "part of a storage", "column by column"],
)
def test_what_torch_saves(value: torch.Tensor) -> None:
    assert np.array_equal(read(saved(value))["rows"], ROWS.numpy())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("wanted", [torch.float32, torch.float16, torch.bfloat16])
def test_every_dtype_to_every_other_as_torch_does_it(dtype: torch.dtype, wanted: torch.dtype) -> None:
    name = str(wanted).removeprefix("torch.")
    found = read(saved(ROWS.to(dtype)), EmbeddingShape(8, 1, name, 100))["rows"]
    expected = ROWS.to(dtype).to(wanted)
    assert np.array_equal(found, (expected.view(torch.uint16) if wanted is torch.bfloat16 else expected).numpy())


@pytest.mark.parametrize("array", [ROWS.numpy(), ROWS.half().numpy(), np.asfortranarray(ROWS.numpy())])
def test_what_numpy_saves(array: np.ndarray) -> None:
    assert np.array_equal(read(npy(array))["rows"], array.astype(np.float32))


def test_levels_lie_side_by_side() -> None:
    found = read(saved(ROWS), EmbeddingShape(2, 4, "float32", 100))
    assert list(found) == ["rows", "deep0", "deep1", "deep2"]
    assert np.array_equal(found["deep1"], ROWS[:, 4:6].numpy())
    assert all(part.flags.c_contiguous for part in found.values())


def repickled(
    payload: bytes, *, stored: bytes = b"\0" * 64, compressed: bool = False, more: dict[str, bytes] | None = None
) -> bytes:
    """A torch archive with another description."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED if compressed else zipfile.ZIP_STORED) as archive:
        archive.writestr("archive/data.pkl", payload)
        archive.writestr("archive/data/0", stored)
        for name, data in (more or {}).items():
            archive.writestr(name, data)
    return stream.getvalue()


def described(
    shape: tuple[Any, ...], strides: tuple[Any, ...], offset: Any = 0, storage: bytes = b"FloatStorage"
) -> bytes:
    """The pickle of a tensor over the 16 numbers of an archive of :func:`repickled`."""
    stored = b"(X\x07\x00\x00\x00storagectorch\n" + storage + b"\nX\x01\x00\x00\x000X\x03\x00\x00\x00cpuK\x10tQ"
    members = b"".join(pickle.dumps(member, 2)[2:-1] for member in (offset, shape, strides, False))
    return b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\n(" + stored + members + b"ccollections\nOrderedDict\n)RtR."


class Evil:
    def __reduce__(self) -> tuple[Callable[..., Any], tuple[str]]:
        return (exec, ("raise SystemExit('ran')",))


def test_the_tests_own_archives_are_read_where_they_are_right() -> None:
    assert read(repickled(described((2, 8), (8, 1))))["rows"].shape == (2, 8)


HOSTILE = {
    "empty": b"",
    "noise": bytes(range(256)) * 4,
    "pickle that runs": repickled(pickle.dumps(Evil(), 2)),
    "old torch file": b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.",
    "sparse": saved(torch.sparse_coo_tensor(torch.tensor([[0], [0]]), torch.ones(1), (2**20, 2**20))),
    "list": saved([ROWS]),
    "dictionary": saved({"image_embeds": ROWS}),
    "quantized": saved(torch.quantize_per_tensor(ROWS, 0.1, 0, torch.qint8)),
    "double": saved(ROWS.double()),
    "whole numbers": saved(torch.ones(6, 8, dtype=torch.int64)),
    "expanded": saved(torch.ones(1, 1).expand(50, 8)),
    "compressed": repickled(described((2, 8), (8, 1)), compressed=True),
    "beyond its storage": repickled(described((3, 8), (8, 1))),
    "offset beyond": repickled(described((2, 8), (8, 1), offset=1)),
    "huge": repickled(described((2**39, 2**39), (0, 0))),
    "negative stride": repickled(described((2, 8), (-8, 1))),
    "negative offset": repickled(described((2, 8), (8, 1), offset=-4)),
    "nothing of a huge shape": repickled(described((0, 2**39, 2**39), (1, 1, 1))),
    "no number": repickled(described((2, 8), (8, True))),
    "unknown storage": repickled(described((2, 8), (8, 1), storage=b"ComplexFloatStorage")),
    "too many entries": repickled(described((2, 8), (8, 1)), more={f"archive/{n}": b"" for n in range(80)}),
    "long description": repickled(described((2, 8), (8, 1)) + b" " * 20_000),
    "storage cut inside a number": repickled(described((2, 8), (8, 1)), stored=b"\0" * 65),
    "big endian": repickled(described((2, 8), (8, 1)), more={"archive/byteorder": b"big"}),
    "wrong width": saved(torch.randn(6, 9)),
    "one dimension": saved(torch.randn(48)),
    "no rows": saved(torch.randn(0, 8)),
    "too many rows": saved(torch.randn(101, 8)),
    "NaN": saved(torch.full((6, 8), float("nan"))),
    "infinite": saved(torch.full((6, 8), float("inf"))),
    "npy of objects": npy(np.array([Evil()], dtype=object)),
    "npy without its numbers": npy(ROWS.numpy())[:100],
    "npy of another machine": npy(ROWS.numpy().astype(">f4")),
    "npy of a huge shape": b"\x93NUMPY\x01\x00"
    + struct.pack("<H", 79)
    + b"{'descr': '<f4', 'fortran_order': False, 'shape': (1000000000, 8)}".ljust(78)
    + b"\n",
    "npy of deep nesting": b"\x93NUMPY\x01\x00" + struct.pack("<H", 4000) + b"(" * 4000,
    "npy of a long header": b"\x93NUMPY\x02\x00" + struct.pack("<I", 2**31) + b"{",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_what_is_refused(name: str) -> None:
    with pytest.raises(EmbeddingsInvalid):
        read(HOSTILE[name])


def test_a_long_directory_that_the_first_end_record_does_not_tell_of_is_not_read() -> None:
    count = 1000
    entry = struct.pack("<4s6H3L5H2L", b"PK\x01\x02", *[0] * 6, 0, 0, 0, 1, *[0] * 4, 0, 0) + b"a"
    directory = entry * count
    record = struct.pack("<4sQ2H2L4Q", b"PK\x06\x06", 44, 45, 45, 0, 0, count, count, len(directory), 0)
    locator = struct.pack("<4sLQL", b"PK\x06\x07", 0, len(directory), 1)
    end = struct.pack("<4s4H2LH", b"PK\x05\x06", 0, 0, 1, 1, len(entry), 0, 0)
    with pytest.raises(EmbeddingsInvalid, match="more entries than a tensor needs"):
        read(directory + record + locator + end)


@pytest.mark.parametrize("operation", [b"r" + struct.pack("<I", 2**20), b"p1048576\n"])
def test_a_description_that_makes_a_long_table_is_not_run(operation: bytes) -> None:
    tensor = described((2, 8), (8, 1))
    with pytest.raises(EmbeddingsInvalid, match="description is no tensor's"):
        read(repickled(tensor[:-1] + operation + b"."))


def test_what_is_too_large_for_the_models_dtype() -> None:
    with pytest.raises(EmbeddingsInvalid, match="too large for the model"):
        read(saved(torch.full((6, 8), 1e6)), EmbeddingShape(8, 1, "float16", 100))


def test_any_cut_or_changed_byte_is_refused_or_read_as_a_tensor() -> None:
    whole = saved(ROWS)
    noise = np.random.default_rng(0)
    for _ in range(300):
        data = bytearray(whole)
        for place in noise.integers(0, len(data), 3):
            data[place] = int(noise.integers(0, 256))
        cut = bytes(data[: int(noise.integers(1, len(data) + 1))])
        for one in (bytes(data), cut):
            try:
                assert read(one)["rows"].shape[1] == 8
            except EmbeddingsInvalid:
                continue


def grid_of(value: Any) -> str:
    return base64.b64encode(saved(value)).decode()


def test_a_grid_as_a_tensor() -> None:
    assert read_grid(grid_of(torch.tensor([1, 14, 22]))) == (1, 14, 22)
    assert read_grid(grid_of(torch.tensor([[1, 14, 22]]))) == (1, 14, 22)


@pytest.mark.parametrize(
    "given", ["", "?", "AAAA", "A" * 9000, grid_of(torch.tensor([1.0, 2.0, 3.0])), grid_of(torch.ones(4))]
)
def test_what_is_no_grid(given: str) -> None:
    with pytest.raises(EmbeddingsInvalid):
        read_grid(given)


def test_ordered_dictionaries_are_nothing_to_run() -> None:
    with pytest.raises(EmbeddingsInvalid):
        read(saved(collections.OrderedDict(rows=ROWS)))
