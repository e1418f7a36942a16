"""The media worker's loop: one reply a job, whatever happens in it, with arrays where the gateway finds them."""

from __future__ import annotations

import base64
import io
import json
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from PIL import Image
from tests.clips import number_of, numbered

import foveate.models
from foveate.core.budget import Budget
from foveate.core.errors import DataUrlInvalid, MediaCostly, MediaUndecodable
from foveate.core.media import RAW, Appearance, ImageHeader, ImageOptions
from foveate.core.memory import Slot
from foveate.decisions.frames import FrameSampling
from foveate.media import worker
from foveate.media.messages import (
    DecodeFrames,
    FramesDecoded,
    JobFailed,
    MediaJob,
    MediaReply,
    Prepare,
    Prepared,
    ProbeVideo,
    TooSmall,
    Unpack,
    UnpackDone,
    VideoProbed,
    WorkerConfig,
)
from foveate.media.probe import probe
from foveate.models.port import ProcessedPicture
from foveate.runtime.port import Ready, WorkerSpec
from foveate.runtime.tensors import read_bundle

JPEG = Path("tests/data/cases/case048_orientation6_64x32.jpg").read_bytes()
OUT = Slot(1 << 16, 1 << 17)


class Memory:
    """An arena of one buffer."""

    def __init__(self) -> None:
        self.data = memoryview(bytearray(1 << 18))

    def view(self, slot: Slot) -> memoryview:
        return self.data[slot.offset : slot.offset + slot.size]

    def put(self, data: bytes, offset: int = 0) -> Slot:
        self.data[offset : offset + len(data)] = data
        return Slot(offset, len(data))


class Context:
    """Hands out the jobs it was given as the wire would, and keeps the replies."""

    def __init__(self, *jobs: MediaJob, config: WorkerConfig | None = None) -> None:
        told = msgspec.to_builtins(config or WorkerConfig("a directory"))
        self.spec = WorkerSpec("media", 0, "foveate.media.worker:main", told, worker.RECEIVES, worker.SENDS)
        self.arena = Memory()
        self.jobs = list(jobs)
        self.sent: list[Any] = []

    def receive(self, timeout_seconds: float | None = None) -> MediaJob | None:
        if not self.jobs:
            return None
        return msgspec.msgpack.decode(msgspec.msgpack.encode(self.jobs.pop(0)), type=self.spec.receives)  # type: ignore[no-any-return]

    def pending(self) -> bool:
        return bool(self.jobs)

    def send(self, message: Any) -> None:
        if not isinstance(message, Ready):
            message = msgspec.msgpack.decode(msgspec.msgpack.encode(message), type=self.spec.sends)
        self.sent.append(message)


class Processor:
    """Gives the pixels back, or fails as told."""

    failure: BaseException | None = None

    def process(self, pixels: np.ndarray, options: ImageOptions) -> ProcessedPicture:
        if self.failure is not None:
            raise self.failure
        arrays = {"pixels": pixels, "sums": pixels.sum((0, 1)).astype(np.int64)}
        return ProcessedPicture("<image>" * 3, 3, arrays, {"size": [*pixels.shape[:2], options.pixels_max]})


@pytest.fixture
def processor(monkeypatch: pytest.MonkeyPatch) -> Processor:
    made = Processor()
    monkeypatch.setattr(foveate.models, "load_picture_processor", lambda _directory, _appearance, *, pixels: made)
    return made


def prepare(
    context: Context, data: bytes = JPEG, header: ImageHeader | None = None, out: Slot = OUT, job_id: int = 1
) -> Prepare:
    return Prepare(context.arena.put(data), header or probe(memoryview(data)), ImageOptions(pixels_max=7), out, job_id)


def run(context: Context, *jobs: MediaJob) -> list[MediaReply]:
    context.jobs.extend(jobs)
    worker.main(context)
    ready, *replies = context.sent
    assert isinstance(ready, Ready)
    assert len(replies) == len(jobs)
    return replies


def test_prepares_a_picture_in_its_slot(processor: Processor) -> None:
    context = Context()
    (reply,) = run(context, prepare(context, job_id=41))
    assert isinstance(reply, Prepared)
    assert reply.job_id == 41
    image = reply.image
    assert (image.replacement, image.rows, image.meta) == ("<image>" * 3, 3, {"size": [64, 32, 7]})
    assert image.inputs.slot == OUT
    assert all(tensor.offset % 64 == 0 for tensor in image.inputs.tensors)
    arrays = read_bundle(context.arena.view(OUT), image.inputs)
    assert arrays["pixels"].shape == (64, 32, 3)
    assert arrays["sums"].tolist() == arrays["pixels"].sum((0, 1)).tolist()
    decode, process = image.spans
    assert (decode.stage, process.stage) == ("media_decode", "mm_processor")
    assert decode.start <= decode.end <= process.start <= process.end


def test_fits_a_picture_and_turns_it(processor: Processor) -> None:
    context = Context()
    job = msgspec.structs.replace(prepare(context), options=ImageOptions(fit_width=16, fit_height=32))
    (reply,) = run(context, job)
    assert isinstance(reply, Prepared)
    assert reply.image.meta["size"][:2] == [32, 16]


def test_follows_the_appearance_it_was_told(processor: Processor) -> None:
    look = Appearance(background=(1, 2, 3), truncated_accepted=True)
    context = Context(config=WorkerConfig("a directory", look))
    half = prepare(context, JPEG[: len(JPEG) * 2 // 3], probe(memoryview(JPEG)))
    (reply,) = run(context, half)
    assert isinstance(reply, Prepared)


def test_judges_the_pixels_again(processor: Processor) -> None:
    context = Context(config=WorkerConfig("a directory", pixels_max=64 * 32 - 1))
    (reply,) = run(context, prepare(context))
    assert isinstance(reply, JobFailed)
    assert (reply.error.code, reply.error.limit_name) == ("image_too_large", "media.decode_pixels_max")
    assert (reply.error.limit, reply.error.actual) == (2047, 2048)


def test_says_how_much_room_it_needs_and_works_with_that(processor: Processor) -> None:
    context = Context()
    (reply,) = run(context, prepare(context, out=Slot(OUT.offset, 100)))
    assert isinstance(reply, TooSmall)
    assert bytes(context.arena.view(OUT)) == bytes(OUT.size)
    again = Context()
    (reply,) = run(again, prepare(again, out=Slot(OUT.offset, reply.bytes_needed)))
    assert isinstance(reply, Prepared)


def test_a_bad_job_is_answered_and_the_next_one_done(processor: Processor) -> None:
    context = Context()
    good = prepare(context, job_id=3)
    broken = msgspec.structs.replace(good, source=Slot(0, len(JPEG) // 2), job_id=1)
    lying = msgspec.structs.replace(good, header=ImageHeader("jpeg", 5, 5), job_id=2)
    replies = run(context, broken, lying, good)
    assert [reply.job_id for reply in replies] == [1, 2, 3]
    for reply in replies[:2]:
        assert isinstance(reply, JobFailed)
        assert isinstance(reply.error.error(), MediaUndecodable)
        assert [span.stage for span in reply.spans] == ["media_decode"]
    assert isinstance(replies[2], Prepared)


@pytest.mark.parametrize(
    ("failure", "error"), [(MemoryError(), MediaCostly), (RuntimeError("secret 0xdeadbeef"), MediaUndecodable)]
)
def test_no_failure_ends_the_loop(processor: Processor, failure: Exception, error: type[Exception]) -> None:
    context = Context()
    processor.failure = failure
    (reply,) = run(context, prepare(context))
    assert isinstance(reply, JobFailed)
    assert isinstance(reply.error.error(), error)
    assert "deadbeef" not in reply.error.public
    assert [span.stage for span in reply.spans] == ["media_decode", "mm_processor"]


def test_unpacks_a_body_into_the_arena(processor: Processor) -> None:
    urls = ["data:image/jpeg;base64," + base64.b64encode(JPEG).decode(), "data:image/png;base64,A"]
    body = {
        "messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}} for url in urls]}]
    }
    context = Context()
    source = context.arena.put(json.dumps(body).encode())
    (reply,) = run(context, Unpack(source, OUT, 9))
    assert isinstance(reply, UnpackDone)
    assert reply.job_id == 9
    assert reply.started_at <= reply.ended_at
    assert b"inline:0" in reply.skeleton
    good, bad = reply.blobs
    assert good.blob is not None
    assert bytes(context.arena.view(good.blob.slot)) == JPEG
    assert OUT.offset <= good.blob.slot.offset < OUT.offset + OUT.size
    assert bad.error is not None
    assert isinstance(bad.error.error(), DataUrlInvalid)


def test_a_body_that_is_not_json_is_a_failed_job(processor: Processor) -> None:
    context = Context()
    (reply,) = run(context, Unpack(context.arena.put(b"{nope"), OUT, 1))
    assert isinstance(reply, JobFailed)
    assert reply.error.code == "invalid_parameter"


def test_a_video_is_opened_and_its_frames_go_where_they_should(processor: Processor) -> None:
    clip = numbered(30)
    probing = Context()
    (probed,) = run(
        probing,
        ProbeVideo(probing.arena.put(clip), "mp4", FrameSampling(3), Budget(), decode_pixels_max=10_000, job_id=5),
    )
    assert isinstance(probed, VideoProbed)
    assert (probed.job_id, probed.wanted, probed.header.frames) == (5, 3, 30)

    decoding = Context()
    source = decoding.arena.put(clip)
    (reply,) = run(decoding, DecodeFrames(source, probed.header, probed.picks, 64, 48, 10.0, OUT, 6))
    assert isinstance(reply, FramesDecoded)
    assert (reply.job_id, reply.places) == (6, (0, 1, 2))
    size = 64 * 48 * 3
    frames = [Slot(OUT.offset + place * size, size) for place in reply.places]
    pixels = [np.frombuffer(decoding.arena.view(slot), np.uint8).reshape(48, 64, 3) for slot in frames]
    assert [number_of(frame) for frame in pixels] == [5, 15, 25]

    picture = Context()
    raw = picture.arena.put(pixels[1].tobytes())
    (made,) = run(picture, Prepare(raw, ImageHeader(RAW, 64, 48), ImageOptions(), OUT, 7))
    assert isinstance(made, Prepared)
    assert (read_bundle(picture.arena.view(OUT), made.image.inputs)["pixels"] == pixels[1]).all()


def test_a_bad_video_is_answered_and_the_next_job_done(processor: Processor) -> None:
    context = Context()
    noise = context.arena.put(b"\0\0\0\x18ftypmp42\0\0\0\0mp42isom", 1000)
    probing = ProbeVideo(noise, "mp4", FrameSampling(3), Budget(), decode_pixels_max=10_000, job_id=1)
    bad, good = run(context, probing, prepare(context, job_id=2))
    assert isinstance(bad, JobFailed)
    assert bad.error.code == "media_unsupported"
    assert isinstance(good, Prepared)


def test_with_the_processor_of_the_shipped_model() -> None:
    directory = Path(foveate.models.__file__).parent / "demo"
    context = Context(config=WorkerConfig(str(directory)))
    buffer = io.BytesIO()
    Image.new("RGB", (96, 64), (200, 30, 30)).save(buffer, "PNG")
    (reply,) = run(context, prepare(context, buffer.getvalue()))
    assert isinstance(reply, Prepared)
    arrays = read_bundle(context.arena.view(OUT), reply.image.inputs)
    assert all(np.isfinite(array).all() and array.size for array in arrays.values())
    assert reply.image.rows > 0
