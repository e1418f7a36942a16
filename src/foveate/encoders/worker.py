"""One thread that owns a vision tower and encodes pictures from a bounded queue.

Every picture that was submitted is answered exactly once, with :class:`EncodeDone` or :class:`EncodeRejected`; until
then its slots are in use. Spans: encoder_queue from the gateway's call to the start of the batch, vision_encode the
batch, embedding_transfer the copy into the arena.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from concurrent.futures import Future
from typing import Any, Protocol

import torch

from foveate.core.clock import now
from foveate.core.errors import DeadlineExceeded, EncodeFailed, FoveateError, QueueFull, StartupError
from foveate.core.media import EncodedImage
from foveate.core.stages import Span
from foveate.decisions.batching import choose_encode_batch
from foveate.encoders.messages import CancelEncode, Encode, EncodeBegun, EncodeDone, EncodeRejected
from foveate.encoders.shape import picture_shape
from foveate.encoders.tensors import read_tensors, write_embeddings
from foveate.models.port import Embeddings, VisionTower
from foveate.runtime.port import ArenaAccess, WorkerContext
from foveate.runtime.stuck_threads import Steps, end_with_stuck_step

_LOG = logging.getLogger("foveate.encoder")


class Post(Protocol):
    """What the thread needs of its process: the arena and a way to answer (a
    :class:`foveate.runtime.port.WorkerContext`)."""

    arena: ArenaAccess

    def send(self, message: Any) -> None:
        """Send a message to the gateway."""
        ...


class EncoderThread:
    """Encodes pictures. :meth:`submit` and :meth:`cancel` are called from the thread that receives messages."""

    def __init__(
        self,
        tower: VisionTower,
        post: Post,
        *,
        queue_max: int,
        batch_max: int,
        threads: int,
        batch_tokens_max: int = 0,
    ) -> None:
        """``batch_tokens_max`` bounds the visual tokens of a batch of several pictures; 0: their number alone does."""
        self._tower = tower
        self._post = post
        self._queue_max = queue_max
        self._batch_max = batch_max
        self._batch_tokens_max = batch_tokens_max
        self._threads = threads
        self._queue: list[Encode] = []
        self._changed = threading.Condition()
        self._closing = False
        self.steps = Steps()
        """The thread's batches."""
        self._first: Mapping[str, torch.Tensor] | None = None
        self._begun: Future[None] = Future()
        self._thread = threading.Thread(target=self._run, name="encoder", daemon=True)

    def start(self, first: Mapping[str, torch.Tensor] | None = None) -> None:
        """Start the thread; given the inputs of a ``first`` picture, return when it has encoded that, for nobody.

        What a tower and its thread set up on first use is then set up: threads of its own, kernels, memory. Raises StartupError when
        the picture cannot be encoded.
        """
        self._first = first
        self._thread.start()
        self._begun.result()

    def submit(self, *works: Encode) -> None:
        """Queue pictures, at once so that they may share a batch; those that find the queue full are answered so."""
        with self._changed:
            room = max(0, self._queue_max - len(self._queue))
            self._queue += works[:room]
            self._changed.notify()
        for work in works[room:]:
            full = QueueFull(
                "Too many pictures wait for the vision encoder. Try again shortly.",
                limit_name="engine.encoder_queue_max",
                limit=self._queue_max,
                actual=self._queue_max + 1,
            )
            self._reject(work, full)

    def cancel(self, work: CancelEncode) -> None:
        """Drop a picture that waits; one whose batch has started is answered by it."""
        with self._changed:
            kept = [queued for queued in self._queue if queued.job_id != work.job_id]
            found = len(kept) < len(self._queue)
            self._queue = kept
        if found:
            self._post.send(EncodeRejected(work.job_id, None))

    def close(self, seconds_max: float) -> None:
        """Stop after the batch that is running; pictures that wait are not answered (the gateway is gone or has given
        them up)."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        if self._thread.ident is not None:
            self._thread.join(seconds_max)

    def _run(self) -> None:
        torch.set_num_threads(self._threads)
        try:
            self._warm_up()
        except Exception as error:
            self._begun.set_exception(error)
            return
        self._begun.set_result(None)
        while True:
            with self._changed:
                while not self._queue and not self._closing:
                    self._changed.wait()
                if self._closing:
                    return
                overdue, batch = self._take()
            for work in overdue:
                self._reject(work, DeadlineExceeded(detail="the deadline passed in the encoder's queue"))
            if batch:
                with self.steps:
                    self._encode(batch)

    def _warm_up(self) -> None:
        first, self._first = self._first, None
        if first is None:
            return
        try:
            (result,) = self._tower.encode([first])
        except Exception as error:
            result = error
        if isinstance(result, Exception):
            raise StartupError(
                f"The vision encoder cannot encode a picture: {type(result).__name__}: {str(result)[:200]}",
                detail=repr(result),
            ) from result

    def _take(self) -> tuple[list[Encode], list[Encode]]:
        moment = now()
        overdue = [work for work in self._queue if work.deadline <= moment]
        waiting = [work for work in self._queue if work.deadline > moment]
        tokens = [work.prepared.rows for work in waiting] if self._batch_tokens_max else []
        shapes = [picture_shape(work.prepared) for work in waiting]
        chosen = set(choose_encode_batch(shapes, self._batch_max, tokens=tokens, tokens_max=self._batch_tokens_max))
        self._queue = [work for index, work in enumerate(waiting) if index not in chosen]
        return overdue, [work for index, work in enumerate(waiting) if index in chosen]

    def _encode(self, batch: list[Encode]) -> None:
        started = now()
        self._post.send(EncodeBegun([work.job_id for work in batch]))
        readable: list[Encode] = []
        inputs: list[dict[str, torch.Tensor]] = []
        for work in batch:
            try:
                tensors = read_tensors(self._post.arena, work.prepared.inputs)
            except Exception as error:
                self._fail(work, "its inputs cannot be read", error)
            else:
                readable.append(work)
                inputs.append(tensors)
        if not readable:
            return
        try:
            results = self._tower.encode(inputs, together=len(inputs) > 1)
        except Exception as error:
            for work in readable:
                self._fail(work, "the vision tower failed on the batch", error)
            return
        encoded = now()
        # Pictures of a batch are alike, so each has the same share of it.
        ran = Span("vision_encode", started, encoded, (encoded - started) * 1e3 / len(readable))
        for work, result in zip(readable, results, strict=True):
            self._answer(work, result, ran)

    def _answer(self, work: Encode, result: Embeddings | Exception, ran: Span) -> None:
        if isinstance(result, Exception):
            self._fail(work, "the vision tower failed on it", result)
            return
        if result.rows.shape[0] != work.prepared.rows:
            detail = f"{result.rows.shape[0]} embedding rows for {work.prepared.rows} image tokens"
            self._reject(work, EncodeFailed(detail=detail))
            return
        transfer = now()
        try:
            bundle = write_embeddings(self._post.arena, work.out, result)
        except Exception as error:
            self._fail(work, "its embeddings cannot be written", error)
            return
        spans = (
            Span("encoder_queue", work.submitted_at, ran.start),
            ran,
            Span("embedding_transfer", transfer, now()),
        )
        self._post.send(EncodeDone(work.job_id, EncodedImage(bundle, work.prepared.rows, spans)))

    def _fail(self, work: Encode, what: str, error: Exception) -> None:
        _LOG.error("picture %d: %s", work.job_id, what, exc_info=error)
        self._reject(work, EncodeFailed(detail=f"{what}: {type(error).__name__}: {error}"))

    def _reject(self, work: Encode, error: FoveateError) -> None:
        self._post.send(EncodeRejected(work.job_id, error.record()))


class EncoderBounds(Protocol):
    """What the configuration of a process with a language model says of its encoder; fields are the settings of the same names."""

    @property
    def encoder_queue_max(self) -> int:
        """Pictures that may wait."""
        ...

    @property
    def encoder_batch_max(self) -> int:
        """Pictures of a batch."""
        ...

    @property
    def encoder_batch_tokens_max(self) -> int:
        """Visual tokens of a batch."""
        ...

    @property
    def step_seconds_max(self) -> float:
        """How long a batch may take."""
        ...


def start_encoder(tower: VisionTower, context: WorkerContext, bounds: EncoderBounds) -> EncoderThread:
    """Return the thread that encodes beside a language model, started. The process ends with a batch that does not."""
    encoder = EncoderThread(
        tower,
        context,
        queue_max=bounds.encoder_queue_max,
        batch_max=bounds.encoder_batch_max,
        batch_tokens_max=bounds.encoder_batch_tokens_max,
        threads=context.spec.threads,
    )
    encoder.start()
    end_with_stuck_step(_LOG, "encoder", encoder.steps, bounds.step_seconds_max)
    return encoder
