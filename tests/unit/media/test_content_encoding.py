"""Decompression in steps: the same bytes however the network cuts them, bounded pieces, and an end for whatever comes."""

from __future__ import annotations

import contextlib
import gzip
import itertools
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foveate.core.errors import FetchRejected
from foveate.media.content_encoding import STEP_BYTES, Inflation, decoding


def undo(chunks: list[bytes], encoding: str) -> bytes:
    inflation = decoding([encoding])
    assert inflation is not None
    found = [piece for chunk in chunks for piece in inflation.pieces(chunk)]
    found += inflation.finish()
    assert all(len(piece) <= STEP_BYTES for piece in found)
    return b"".join(found)


def cut(data: bytes, places: list[int]) -> list[bytes]:
    ends = sorted({place % (len(data) + 1) for place in places} | {0, len(data)})
    return [data[start:end] for start, end in itertools.pairwise(ends)]


@given(
    st.binary(max_size=2000),
    st.integers(1, 200),
    st.lists(st.integers(0, 10**6), max_size=6),
    st.sampled_from(["gzip", "zlib", "raw", "members", "padded"]),
)
def test_gives_back_what_was_compressed_however_it_is_cut(
    data: bytes, times: int, places: list[int], form: str
) -> None:
    whole = data * times
    raw = zlib.compressobj(wbits=-15)
    packed = {
        "gzip": gzip.compress(whole),
        "zlib": zlib.compress(whole),
        "raw": raw.compress(whole) + raw.flush(),
        "members": gzip.compress(data) * times,
        "padded": gzip.compress(whole) + bytes(100),
    }[form]
    assert undo(cut(packed, places), "deflate" if form in ("zlib", "raw") else "gzip") == whole


@given(st.binary(max_size=300), st.lists(st.integers(0, 10**6), max_size=6), st.sampled_from(["gzip", "deflate"]))
def test_anything_else_is_refused_and_ends(data: bytes, places: list[int], encoding: str) -> None:
    for head in (b"", gzip.compress(b"x"), gzip.compress(b"x")[:12], zlib.compress(b"x")):
        with contextlib.suppress(FetchRejected):
            undo(cut(head + data, places), encoding)


@pytest.mark.parametrize("values", [[], [""], ["identity"], ["identity, identity", " "]])
def test_nothing_to_undo(values: list[str]) -> None:
    assert decoding(values) is None


def test_steps_of_a_bomb_are_small_and_lazy() -> None:
    bomb = gzip.compress(bytes(64 * 2**20))
    pieces = Inflation(gzip=True).pieces(bomb)
    assert [len(next(pieces)) for _ in range(3)] == [STEP_BYTES] * 3
