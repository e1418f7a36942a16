"""The language-model thread: continuous batching with chunked prefill.

One iteration: take what arrived, drop what was cancelled or is overdue, then do as
:func:`foveate.decisions.batching.plan_step` says: run some prefill chunks and one token-decode step of all running
rows. Requests join and leave at every step.

Every request that is not cancelled is answered to its end: its last :class:`FinishEvent`, or one :class:`FailEvent`. A
request that fails, fails alone; only an error in a token-decode step, in which no request has a part of its own, fails
all that run.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Iterator, Sequence

import torch

from foveate.core.clock import now
from foveate.core.errors import DeadlineExceeded, EngineFailed, FoveateError
from foveate.core.stages import Span
from foveate.decisions.batching import BatchLimits, BatchView, place_in_line, plan_step
from foveate.encoders.worker import Post
from foveate.engines.embedded.detokenize import Vocabulary
from foveate.engines.embedded.handover import write_prompt
from foveate.engines.embedded.intake import Intake, Told
from foveate.engines.embedded.messages import Prefilled, SlotFree, Starts
from foveate.engines.embedded.output import Outcome, Output
from foveate.engines.embedded.prefill import Prefill
from foveate.engines.embedded.requests import Choice, Job, Row, new_job, progressed
from foveate.engines.embedded.running import RunningRows
from foveate.engines.embedded.sampling import row_sampling
from foveate.engines.messages import Cancel, Cancelled, Generate, PictureReady
from foveate.engines.port import FailEvent, FinishEvent
from foveate.models.port import LanguageModel
from foveate.runtime.stuck_threads import Steps

_LOG = logging.getLogger("foveate.engine")


class GenerationLoop:
    """Owns the language model and its KV. :meth:`submit` and :meth:`tell` are called from the thread that receives messages."""

    def __init__(
        self,
        model: LanguageModel,
        vocabulary: Vocabulary,
        post: Post,
        *,
        limits: BatchLimits,
        queue_depth_max: int,
        embedding_bytes_per_row: int,
        device: torch.device,
        threads: int,
        prefix_bytes_max: int = 0,
    ) -> None:
        self._model = model
        self._post = post
        self._limits = limits
        self._device = device
        self._threads = threads
        self._intake = Intake(limits, queue_depth_max)
        self._prefill = Prefill(
            model,
            post.arena,
            embedding_bytes_per_row=embedding_bytes_per_row,
            device=device,
            prefix_bytes_max=prefix_bytes_max,
        )
        self._output = Output(vocabulary, model.eos_token_ids, post)
        self._waiting: deque[Job] = deque()
        self._prefilling: list[Job] = []
        self._running = RunningRows(model, self._output, kv_tokens_max=limits.kv_tokens_max, device=device)
        self.steps = Steps()
        """The thread's iterations; none runs while it waits for something to do."""
        self.stalled = False
        """Whether all that is left to do waits for a picture."""
        self._thread = threading.Thread(target=self._run, name="language-model", daemon=True)

    # --------------------------------------------------------------------------------------- from the receiving thread

    @property
    def kv_tokens_used(self) -> int:
        """KV tokens held by running rows and by prompts in prefill."""
        return self._running.kv_tokens_used + sum(job.view.done for job in self._prefilling)

    @property
    def rows(self) -> int:
        """Rows that are decoded together now."""
        return len(self._running)

    @property
    def busy(self) -> bool:
        """Whether any request has still to be answered."""
        return self._intake.busy

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def submit(self, message: Starts) -> None:
        """Take a request, or answer why not."""
        try:
            self._intake.submit(message)
        except FoveateError as error:
            if not isinstance(message, Generate):
                self._post.send(SlotFree(message.work.request_id))
            self._post.send(FailEvent(message.work.request_id, error.record()))

    def tell(self, message: Told) -> None:
        """Drop a request, or let it have a picture, before the next step; one that has ended is ignored."""
        self._intake.tell(message)

    def close(self, seconds_max: float) -> None:
        """Stop after the current iteration; open requests are not answered (their reader is gone or gave them up)."""
        self._intake.close()
        if self._thread.ident is not None:
            self._thread.join(seconds_max)

    # ------------------------------------------------------------------------------------------------ the thread itself

    def _run(self) -> None:
        torch.set_num_threads(self._threads)
        with torch.inference_mode():
            while self.iterate():
                pass

    def iterate(self) -> bool:
        """Wait for something to do and do one iteration of it. Returns False when closing. Called by the thread."""
        if not self._take_messages():
            return False
        with self.steps:
            self._step()
        return True

    def _take_messages(self) -> bool:
        """Wait for something to do; take what arrived. Returns False when closing."""
        arrived = self._intake.take(until=self._idle_until())
        if arrived is None:
            return False
        for message in arrived:
            if isinstance(message, PictureReady):
                self._take_picture(message)
            elif not isinstance(message, Cancel):
                self._receive(message)
            elif self._intake.is_open(message.request_id):
                self._remove(message.request_id)
                self._post.send(Cancelled(message.request_id))
        return True

    def _idle_until(self) -> float | None:
        """Return until when there is nothing to do unless a message comes; ``None``: for ever."""
        if self.stalled:
            return min(job.work.deadline for job in self._jobs())
        return 0.0 if self._waiting or self._prefilling or self._running else None

    def _take_picture(self, message: PictureReady) -> None:
        job = next((job for job in self._jobs() if job.id == message.request_id), None)
        if job is None:
            return
        try:
            job.arrive(message)
        except FoveateError as error:
            self._fail(job.id, error)

    def _receive(self, message: Starts) -> None:
        try:
            borders = self._model.chunk_borders(message.work.token_ids)
            job = new_job(message, borders, self._model.picture_token_id)
        except Exception as error:
            if not isinstance(message, Generate):
                self._post.send(SlotFree(message.work.request_id))
            self._fail(message.work.request_id, _as_failure(error))
            return
        line = [other for other in self._waiting if not other.view.held]
        place = place_in_line([not other.view.pictures for other in line], not job.view.pictures)
        self._waiting.insert(self._waiting.index(line[place]) if place < len(line) else len(self._waiting), job)

    def _step(self) -> None:
        self._drop_overdue()
        for job in tuple(self._prefilling):
            self._advance(job, None)
        plan = plan_step(
            BatchView(
                [job.view for job in self._waiting],
                [job.view for job in self._prefilling],
                len(self._running),
                self._running.tokens_max,
                self._running.with_pictures,
            ),
            self._limits,
        )
        self._prefilling += [self._waiting[place] for place in plan.admit]
        for place in reversed(plan.admit):
            del self._waiting[place]
        jobs = list(self._prefilling)
        for index in plan.gives_way:
            self._give_way(jobs[index])
        ends = {chunk.index: chunk.end for chunk in plan.chunks}
        for index, job in enumerate(jobs):
            job.view = job.view if index in ends or job.view.held else progressed(job.view, None)
        for index, end in ends.items():
            self._advance(jobs[index], end)
        for job in jobs:
            if job.given is not None and job in self._prefilling:
                self._advance(job, None)
        moved = bool(plan.admit or plan.chunks or self._running)
        if self._running:
            self._decode_tokens()
        left = (*self._waiting, *self._prefilling)
        self.stalled = bool(left) and not moved and all(job.view.held for job in left)

    def _give_way(self, job: Job) -> None:
        """Put a prompt that waits for a picture back to the front of those that wait: it came before them."""
        job.give_way()
        self._prefilling.remove(job)
        self._waiting.appendleft(job)

    def _drop_overdue(self) -> None:
        moment = now()
        overdue = {job.id for job in self._jobs() if job.work.deadline <= moment}
        for request_id in overdue:
            self._fail(request_id, DeadlineExceeded(detail="the deadline passed in the engine"))

    def _jobs(self) -> Iterator[Job]:
        yield from self._waiting
        yield from self._prefilling
        yield from (row.job for row in self._running.all)

    # --------------------------------------------------------------------------------------------------------- prefill

    def _advance(self, job: Job, end: int | None) -> None:
        """Take a prompt as far as what is kept of others goes, and then run it up to ``end``."""
        started = now()
        try:
            logits = self._prefill.recall(job)
            if logits is None and end is not None and end > job.view.done:
                logits = self._prefill.run(job, end)
                if job.view.held:
                    job.ahead.append(Span("llm_prefill", max(started, job.started_at), now()))
            job.token_ms += (now() - started) * 1e3
            if logits is not None:
                self._prefilling.remove(job)
                self._end_prefill(job, logits)
        except Exception as error:
            self._fail(job.id, _as_failure(error))

    def _end_prefill(self, job: Job, logits: torch.Tensor) -> None:
        handed_on = False
        try:
            if not job.hands_on:
                self._begin_choices(job, logits)
            else:
                self._hand_over(job, logits)
                handed_on = True
        finally:
            self._let_go(job, told=handed_on)

    def _hand_over(self, job: Job, logits: torch.Tensor) -> None:
        """Leave a prompt to the process that goes on with it."""
        if not bool(torch.isfinite(logits).all()):
            raise EngineFailed(detail="non-finite logits")
        assert job.out is not None, "it comes with the last picture"
        bundle = write_prompt(self._post.arena, job.out, job.cache, logits)
        self._intake.end(job.id)
        times, took = (job.started_at, now()), (job.cached_tokens, job.token_ms)
        self._post.send(Prefilled(job.id, bundle, job.next_position, *times, *took, tuple(job.ahead)))

    def _begin_choices(self, job: Job, logits: torch.Tensor) -> None:
        """Draw every choice's first token from the prefill's logits; those that go on share its K/V as one row each."""
        choices = [
            Choice(index, row_sampling(job.sampling, index, logits.shape[-1], self._device), self._output.vocabulary)
            for index in range(job.sampling.n)
        ]
        job.open_choices = len(choices)
        rows = [Row(job, choice) for choice in choices]
        for choice in choices:
            choice.next_position = job.next_position
        outcomes = self._output.emit(rows, logits.expand(len(rows), -1), first=True)
        remaining = [row for row, outcome in zip(rows, outcomes, strict=True) if outcome is None]
        try:
            self._running.join(job.cache, remaining)
        except Exception as error:
            # Some layers may have moved and others not: what is in the buffers is lost to all.
            self._fail_running(error)
            raise
        self._end_choices(rows, outcomes)

    # ---------------------------------------------------------------------------------------------------- token decode

    def _decode_tokens(self) -> None:
        try:
            rows, outcomes = self._running.step()
        except Exception as error:
            self._fail_running(error)
            return
        self._end_choices(rows, outcomes)

    def _fail_running(self, error: Exception) -> None:
        """Fail every request that has a row; the buffers start anew."""
        _LOG.error("all %d running rows fail", len(self._running), exc_info=error)
        for request_id in {row.job.id for row in self._running.clear()}:
            self._fail(request_id, _as_failure(error))

    # ------------------------------------------------------------------------------------------------------------- end

    def _end_choices(self, rows: Sequence[Row], outcomes: Sequence[Outcome]) -> None:
        """Answer for the rows that ended; their KV is free already."""
        for row, outcome in zip(rows, outcomes, strict=True):
            if isinstance(outcome, FoveateError):
                self._fail(row.job.id, outcome)
            elif outcome is not None and self._intake.is_open(row.job.id):
                row.job.open_choices -= 1
                last = row.job.open_choices == 0
                if last:
                    self._intake.end(row.job.id)
                self._post.send(
                    FinishEvent(
                        row.job.id,
                        row.choice.index,
                        outcome,
                        row.choice.row.drawn,
                        last,
                        row.job.cached_tokens,
                        row.job.token_ms if last else 0.0,
                    )
                )

    def _fail(self, request_id: str, error: FoveateError) -> None:
        """End a request with an error, unless it has ended; everything it held is free before the answer is sent."""
        if not self._intake.is_open(request_id):
            return
        self._remove(request_id)
        _LOG.warning("request %s failed: %s", request_id, error.detail or error.public)
        self._post.send(FailEvent(request_id, error.record()))

    def _remove(self, request_id: str) -> None:
        """Take a request out of every place it may be in."""
        for job in (*self._waiting, *self._prefilling):
            if job.id == request_id:
                self._let_go(job)
        self._waiting = deque(job for job in self._waiting if job.id != request_id)
        self._prefilling = [job for job in self._prefilling if job.id != request_id]
        self._running.drop(request_id)
        self._intake.end(request_id)

    def _let_go(self, job: Job, *, told: bool = False) -> None:
        """Give back what only prefill needs; ``told``: whoever lent the slot of its K/V knows already."""
        slot_lent = job.hands_on or job.given is not None
        job.end_prefill()
        if slot_lent and not told:
            self._post.send(SlotFree(job.id))


def _as_failure(error: Exception) -> FoveateError:
    if isinstance(error, FoveateError):
        return error
    failure = EngineFailed(detail=f"{type(error).__name__}: {error}")
    failure.__cause__ = error
    return failure
