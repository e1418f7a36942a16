"""The encoder thread: every picture answered once, batches by shape, one bad picture alone."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from tests.unit.engines.embedded.driver import Outbox

from foveate.core.clock import now
from foveate.core.errors import StartupError
from foveate.core.media import PreparedImage
from foveate.encoders.messages import CancelEncode, Encode, EncodeBegun, EncodeDone, EncodeRejected
from foveate.encoders.tensors import read_embeddings
from foveate.encoders.worker import EncoderThread
from foveate.models.port import Embeddings
from foveate.runtime.tensors import write_bundle

WIDTH = 8


class Tower:
    """A vision tower whose embedding of a picture is its rows doubled; it waits while :attr:`gate` is closed."""

    encoder_version = "test"
    embedding_bytes_per_row = WIDTH * 2 * 2

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.gate.set()
        self.entered = threading.Event()
        self.batches: list[int] = []
        self.threads: set[str] = set()

    def encode(
        self, pictures: Sequence[Mapping[str, torch.Tensor]], *, together: bool = False
    ) -> list[Embeddings | Exception]:
        self.entered.set()
        self.gate.wait(30)
        self.threads.add(threading.current_thread().name)
        self.batches.append(len(pictures))
        return [self._encode(picture["pixel_values"]) for picture in pictures]

    def _encode(self, pixels: torch.Tensor) -> Embeddings | Exception:
        if pixels[0, 0] < 0:
            return ValueError("a negative picture")
        if pixels[0, 0] > 1e6:
            raise RuntimeError("device lost")
        return Embeddings((pixels * 2).to(torch.bfloat16), ((pixels * 3).to(torch.bfloat16),))


class Bench:
    def __init__(self, *, queue_max: int = 8, batch_max: int = 1) -> None:
        self.tower = Tower()
        self.outbox = Outbox()
        self.thread = EncoderThread(self.tower, self.outbox, queue_max=queue_max, batch_max=batch_max, threads=1)
        self._jobs = 0

    def job(
        self, *, rows: int = 4, value: float = 1.0, deadline: float = 60, out_bytes: int = 4096, **changes: Any
    ) -> Encode:
        arrays = {"pixel_values": np.full((rows, WIDTH), value, np.float32)}
        arena = self.outbox.arena
        slot = arena.allocate(4096)
        inputs = write_bundle(arena.view(slot), slot, arrays)
        prepared = PreparedImage("<image>", changes.get("announced", rows), inputs, {}, ())
        self._jobs += 1
        return Encode(self._jobs, prepared, arena.allocate(out_bytes), now() + deadline, now())

    def answers(self, count: int) -> list[Any]:
        def all_of(sent: list[Any]) -> list[Any]:
            return [message for message in sent if not isinstance(message, EncodeBegun)]

        return all_of(self.outbox.wait_for(lambda sent: len(all_of(sent)) >= count))

    def batches(self) -> list[list[int]]:
        """Return the batches that it told of."""
        return [message.job_ids for message in self.outbox.sent if isinstance(message, EncodeBegun)]


@pytest.fixture
def bench() -> Iterator[Bench]:
    bench = Bench(batch_max=4)
    bench.thread.start()
    yield bench
    bench.tower.gate.set()
    bench.thread.close(30)


def test_embeddings_lie_in_the_slot_that_was_given(bench: Bench) -> None:
    job = bench.job(value=1.5)
    bench.thread.submit(job)
    (done,) = bench.answers(1)
    assert isinstance(done, EncodeDone)
    assert done.job_id == job.job_id
    assert done.image.rows == 4
    assert done.image.embeddings.slot == job.out
    assert all(ref.offset % 64 == 0 for ref in done.image.embeddings.tensors)
    embeddings = read_embeddings(bench.outbox.arena, done.image.embeddings)
    assert embeddings.rows.dtype == torch.bfloat16
    assert torch.equal(embeddings.rows, torch.full((4, WIDTH), 3.0, dtype=torch.bfloat16))
    assert torch.equal(embeddings.deep[0], torch.full((4, WIDTH), 4.5, dtype=torch.bfloat16))
    spans = done.image.spans
    assert [span.stage for span in spans] == ["encoder_queue", "vision_encode", "embedding_transfer"]
    assert spans[0].start == job.submitted_at
    assert spans[0].end == spans[1].start <= spans[1].end <= spans[2].start <= spans[2].end


def test_a_batch_holds_pictures_of_one_shape() -> None:
    bench = Bench(batch_max=3)
    for rows in (4, 5, 4, 4, 4):
        bench.thread.submit(bench.job(rows=rows))
    bench.thread.start()
    order = [answer.job_id for answer in bench.answers(5)]
    bench.thread.close(30)
    assert bench.tower.batches == [3, 1, 1]
    assert order == [1, 3, 4, 2, 5]
    assert bench.batches() == [[1, 3, 4], [2], [5]]


def test_one_bad_picture_fails_alone() -> None:
    bench = Bench(batch_max=3)
    jobs = [bench.job(value=value) for value in (1.0, -1.0, 2.0)]
    for job in jobs:
        bench.thread.submit(job)
    bench.thread.start()
    answers = {answer.job_id: answer for answer in bench.answers(3)}
    bench.thread.close(30)
    assert isinstance(answers[1], EncodeDone)
    assert isinstance(answers[3], EncodeDone)
    assert answers[2].error.code == "encode_failed"
    assert "negative" in answers[2].error.detail
    assert bench.tower.batches == [3]


@pytest.mark.parametrize(
    ("changes", "detail"),
    [({"value": 2e6}, "device lost"), ({"announced": 5}, "4 embedding rows"), ({"out_bytes": 64}, "bytes do not fit")],
)
def test_failures_are_answers_and_the_thread_goes_on(bench: Bench, changes: dict[str, Any], detail: str) -> None:
    bench.thread.submit(bench.job(**changes))
    (rejected,) = bench.answers(1)
    assert isinstance(rejected, EncodeRejected)
    assert rejected.error is not None
    assert rejected.error.code == "encode_failed"
    assert detail in rejected.error.detail
    bench.thread.submit(bench.job())
    assert isinstance(bench.answers(2)[1], EncodeDone)


def test_unreadable_inputs_fail_alone(bench: Bench) -> None:
    job = bench.job()
    ref = job.prepared.inputs.tensors[0]
    huge = type(ref)(ref.name, ref.dtype, (10**6, WIDTH), ref.offset)
    inputs = type(job.prepared.inputs)(job.prepared.inputs.slot, (huge,), 64)
    bench.thread.submit(Encode(9, PreparedImage("", 4, inputs, {}, ()), job.out, job.deadline, now()))
    assert bench.answers(1)[0].error.code == "encode_failed"


def test_cancel_before_the_start_is_free_and_later_it_is_answered_by_the_batch(bench: Bench) -> None:
    bench.tower.gate.clear()
    running, waiting = bench.job(), bench.job(rows=7)
    bench.thread.submit(running)
    assert bench.tower.entered.wait(30)
    bench.thread.submit(waiting)
    bench.thread.cancel(CancelEncode(waiting.job_id))
    bench.thread.cancel(CancelEncode(running.job_id))
    bench.thread.cancel(CancelEncode(404))
    assert bench.answers(1) == [EncodeRejected(waiting.job_id, None)]
    bench.tower.gate.set()
    assert bench.answers(2)[1].job_id == running.job_id
    assert bench.tower.batches == [1]


def test_a_batch_that_runs_is_a_step_and_waiting_is_none(bench: Bench) -> None:
    bench.tower.gate.clear()
    for _ in range(2):
        bench.thread.submit(bench.job())
    assert bench.tower.entered.wait(30)
    assert bench.thread.steps.running == 1
    bench.tower.gate.set()
    bench.answers(2)
    bench.thread.close(30)
    assert bench.thread.steps.running == 0


def test_the_queue_is_bounded() -> None:
    bench = Bench(queue_max=2)
    for _ in range(3):
        bench.thread.submit(bench.job())
    (rejected,) = bench.answers(1)
    assert (rejected.job_id, rejected.error.code) == (3, "queue_full")
    assert rejected.error.limit_name == "engine.encoder_queue_max"
    assert rejected.error.actual == rejected.error.limit + 1


def test_overdue_pictures_are_not_encoded(bench: Bench) -> None:
    bench.thread.submit(bench.job(deadline=-1))
    assert bench.answers(1)[0].error.code == "deadline_exceeded"
    assert bench.tower.batches == []


def test_a_first_picture_warms_the_tower_on_its_own_thread_and_is_nobodys() -> None:
    bench = Bench()
    bench.thread.start({"pixel_values": torch.ones(4, WIDTH)})
    assert (bench.tower.batches, bench.tower.threads) == ([1], {"encoder"})
    bench.thread.submit(bench.job())
    assert [type(message) for message in bench.answers(1)] == [EncodeDone]
    assert bench.batches() == [[1]]
    bench.thread.close(30)


@pytest.mark.parametrize(("value", "said"), [(-1.0, "a negative picture"), (2e6, "device lost")])
def test_a_tower_that_cannot_encode_the_first_picture_is_not_started(value: float, said: str) -> None:
    bench = Bench()
    with pytest.raises(StartupError, match=said):
        bench.thread.start({"pixel_values": torch.full((4, WIDTH), value)})
    bench.thread.close(30)
