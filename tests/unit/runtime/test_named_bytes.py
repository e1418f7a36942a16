"""What travels with a message where two processes map different arenas."""

from __future__ import annotations

from foveate.core.errors import EncodeFailed
from foveate.core.media import Blob, EncodedImage, PreparedImage
from foveate.core.memory import Slot, TensorBundle, TensorRef
from foveate.core.request import Sampling
from foveate.encoders.messages import Encode, EncodeBatch, EncodeDone, EncodeRejected
from foveate.engines.embedded.messages import Prefill, Prefilled, TokenDecode
from foveate.engines.messages import Cancel, Generate, PictureReady
from foveate.engines.port import NOT_THERE, EngineWork, PictureInput
from foveate.media.messages import FramesDecoded, Unpack, UnpackDone, UnpackedBlob
from foveate.runtime.named_bytes import read_by_worker, written_by_worker
from foveate.runtime.pulse import Ping

A, B, OUT = Slot(0, 100), Slot(128, 64), Slot(1024, 4096)


def bundle(slot: Slot, used: int | None = None) -> TensorBundle:
    return TensorBundle(slot, (TensorRef("rows", "float32", (4, 4), 0),), slot.size if used is None else used)


def encode(inputs: Slot) -> Encode:
    return Encode(1, PreparedImage("<image>", 4, bundle(inputs), {}, ()), OUT, 1.0, 0.0)


def work(*slots: Slot) -> EngineWork:
    return EngineWork("r", [1, 2], [PictureInput(bundle(slot), 4, {}) for slot in slots], Sampling(tokens_max=1), 1.0)


def test_what_a_worker_reads_is_named_and_where_it_writes_is_not() -> None:
    assert read_by_worker(Unpack(A, OUT)) == [A]
    assert read_by_worker(encode(A)) == [A]
    assert read_by_worker(EncodeBatch((encode(A), encode(B)))) == [A, B]
    assert read_by_worker(Generate(work(A, B), 0.0)) == [A, B]
    assert read_by_worker(Prefill(work(A), 0.0, OUT)) == [A]


def test_a_picture_that_comes_later_travels_with_its_own_message() -> None:
    late = PictureInput(NOT_THERE, 4, {})
    asked = EngineWork("r", [1, 2], [work(A).pictures[0], late], Sampling(tokens_max=1), 1.0)
    assert read_by_worker(Generate(asked, 0.0)) == read_by_worker(Prefill(asked, 0.0, None)) == [A]
    assert read_by_worker(PictureReady("r", 1, work(B).pictures[0], OUT)) == [B]


def test_each_range_once_and_no_more_of_a_slot_than_is_used() -> None:
    assert read_by_worker(Generate(work(A, A, B), 0.0)) == [A, B]
    assert written_by_worker(EncodeDone(1, EncodedImage(bundle(OUT, 96), 4, ()))) == [Slot(OUT.offset, 96)]
    assert written_by_worker(EncodeDone(1, EncodedImage(bundle(OUT, 0), 4, ()))) == []


def test_a_prompt_that_is_prefilled_travels_without_its_pictures() -> None:
    prefilled = Prefilled("r", bundle(OUT), 2, 0.0, 0.0, 0, 0.0)
    assert written_by_worker(prefilled) == [OUT]
    assert read_by_worker(TokenDecode(work(A, B), 0.0, prefilled)) == [OUT]


def test_a_reply_names_what_was_written() -> None:
    blobs = (UnpackedBlob(Blob(A, "0")), UnpackedBlob(error=EncodeFailed().record()), UnpackedBlob(Blob(B, "1")))
    assert written_by_worker(UnpackDone(1, b"", blobs, 0.0, 0.0)) == [A, B]
    assert written_by_worker(FramesDecoded(1, (0, 2), A)) == [A]


def test_what_names_nothing_carries_nothing() -> None:
    for message in (Ping(), Cancel("r"), EncodeRejected(1, None), Generate(work(), 0.0)):
        assert read_by_worker(message) == []
        assert written_by_worker(message) == []
