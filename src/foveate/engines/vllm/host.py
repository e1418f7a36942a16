"""Requests in, events out: one task a request around ``AsyncLLM.generate``. Lives on the engine process's event loop.

Every request that is not cancelled is answered to its end, once. When vLLM's core dies the whole process ends: the gateway sees that at
once, ends or retries what was open, and starts another.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from typing import Any, NoReturn

from vllm import SamplingParams
from vllm.exceptions import VLLMClientError
from vllm.outputs import RequestOutput
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.engine.exceptions import EngineDeadError

from foveate.core.clock import now
from foveate.core.errors import DeadlineExceeded, EngineFailed, FoveateError, QueueFull
from foveate.encoders.worker import Post
from foveate.engines.messages import Cancel, Cancelled, Generate
from foveate.engines.port import EngineWork, FailEvent
from foveate.engines.vllm.connector import PARAMS
from foveate.engines.vllm.encoder_times import EncoderTimes
from foveate.engines.vllm.grammars import Grammars
from foveate.engines.vllm.output import Answer, Vocabulary
from foveate.engines.vllm.parsing import Parsers, Parsing
from foveate.engines.vllm.pictures import Prompts
from foveate.engines.vllm.pixels import PixelPrompts
from foveate.engines.vllm.sampling import refusal, sampling_params

_LOG = logging.getLogger("foveate.engine")

WATCH_SECONDS = 0.1
"""How often the core is asked whether it lives; its monitor thread knows at once."""

ASK_SECONDS = 1.0
"""How often the core is asked something while requests are open."""

DEAD = 70
"""Exit code of a process whose core died (EX_SOFTWARE)."""


class Host:
    """The open requests of one ``AsyncLLM``."""

    def __init__(
        self,
        engine: AsyncLLM,
        prompts: Prompts,
        vocabulary: Vocabulary,
        post: Post,
        *,
        grammars: Grammars,
        parsers: Parsers,
        batch_size_max: int,
        queue_depth_max: int,
        pixels: tuple[PixelPrompts, EncoderTimes] | None = None,
    ) -> None:
        """``pixels``: where pictures go in as such, what makes vLLM's inputs of them, and what knows when its encoder ran."""
        self._pixels = pixels
        self._engine = engine
        self._prompts = prompts
        self._vocabulary = vocabulary
        self._post = post
        self._grammars = grammars
        self._parsers = parsers
        self._batch_size_max = batch_size_max
        self._queue_depth_max = queue_depth_max
        self._open: dict[str, tuple[asyncio.Task[None], bool]] = {}
        """Each open request's task, and whether it has pictures."""

    def submit(self, message: Generate) -> None:
        """Take a request, or answer why not. Texts and prompts with pictures are bounded apart, as in the embedded engine."""
        work = message.work
        pictures = bool(work.visuals)
        alike = sum(kind == pictures for _, kind in self._open.values())
        if alike >= self._batch_size_max + self._queue_depth_max:
            full = QueueFull(
                detail=f"{alike} requests {'with' if pictures else 'without'} pictures are running or waiting",
                limit_name="engine.queue_depth_max",
                limit=self._queue_depth_max,
                actual=alike - self._batch_size_max + 1,
            )
            self._post.send(FailEvent(work.request_id, full.record()))
            return
        task = asyncio.get_running_loop().create_task(self._answer(message), name=work.request_id)
        self._open[work.request_id] = task, pictures
        task.add_done_callback(lambda ended: self._ended(work.request_id, ended))

    def cancel(self, message: Cancel) -> None:
        """Drop a request; one that has ended is ignored."""
        found = self._open.get(message.request_id)
        if found is not None:
            found[0].cancel()

    def _ended(self, request_id: str, task: asyncio.Task[None]) -> None:
        self._open.pop(request_id, None)
        if task.cancelled():
            self._post.send(Cancelled(request_id))

    async def watch(self) -> NoReturn:
        """End the process when the core has died."""
        while True:
            await asyncio.sleep(WATCH_SECONDS)
            if self._engine.errored:
                end_process()

    async def watch_steps(self, seconds_max: float) -> NoReturn:
        """End the process when the core hangs. It answers between two steps, so a step that takes ``seconds_max`` counts as that."""
        while True:
            await asyncio.sleep(ASK_SECONDS)
            if not self._open:
                continue
            try:
                async with asyncio.timeout(seconds_max):
                    await self._engine.is_sleeping()
            except (TimeoutError, EngineDeadError):
                end_process()

    async def _answer(self, message: Generate) -> None:
        work = message.work
        try:
            params = sampling_params(work.sampling)
            async with asyncio.timeout(work.deadline - now()):
                parsing = await self._checked(work, params)
                if work.pixels:
                    await self._stream_of_pixels(message, params, parsing)
                else:
                    await self._stream(message, params, parsing)
        except asyncio.CancelledError:
            raise  # nobody reads its answer
        except EngineDeadError:
            end_process()
        except TimeoutError:
            self._fail(work.request_id, DeadlineExceeded(detail="the deadline passed in the engine"))
        except FoveateError as error:
            self._fail(work.request_id, error)
        except VLLMClientError as error:
            self._fail(work.request_id, refusal(error))
        except Exception as error:
            _LOG.exception("request %s failed in vLLM", work.request_id)
            cause = error.__cause__ or error
            self._fail(work.request_id, EngineFailed(detail=f"{type(cause).__name__}: {cause}"))

    async def _checked(self, work: EngineWork, params: SamplingParams) -> Parsing | None:
        """Return the request's parsers; have everything compiled elsewhere that its answer will be held to."""
        constraint = work.sampling.structured_outputs
        if constraint is not None:
            await self._grammars.check(params.structured_outputs, constraint.param)
        parsing = self._parsers.open(work)
        if parsing is not None:
            if parsing.outputs is not None and parsing.outputs != params.structured_outputs:
                await self._grammars.check(parsing.outputs, "tools")
            params.structured_outputs = parsing.outputs
            params.skip_special_tokens = parsing.request.skip_special_tokens
        return parsing

    async def _stream(self, message: Generate, params: SamplingParams, parsing: Parsing | None) -> None:
        with self._prompts.taken(message.work) as (prompt, descriptors):
            if descriptors:
                params.extra_args = {**(params.extra_args or {}), PARAMS: descriptors}
            await self._pass_on(message.work, prompt, params, Answer(message, self._vocabulary, parsing))

    async def _stream_of_pixels(self, message: Generate, params: SamplingParams, parsing: Parsing | None) -> None:
        if self._pixels is None:
            raise EngineFailed(detail=f"this engine takes no pixels; {len(message.work.pixels)} were given")
        (prompts, times), name = self._pixels, message.work.request_id
        processed = await prompts.input(message.work, message.submitted_at)
        times.expect(name)
        try:
            answer = Answer(message, self._vocabulary, parsing, processed.span, encoded=lambda: times.take(name))
            await self._pass_on(message.work, processed.input, params, answer)
        finally:
            times.take(name)

    async def _pass_on(self, work: EngineWork, prompt: Any, params: SamplingParams, answer: Answer) -> None:
        # It traces when its own arguments say where to (--otlp-traces-endpoint), and ignores this otherwise.
        trace = {"traceparent": work.trace} if work.trace else None
        ended = answer.reasoning_ended()
        outputs = self._engine.generate(prompt, params, work.request_id, trace_headers=trace, reasoning_ended=ended)
        async with contextlib.aclosing(outputs):
            async for output in outputs:
                assert isinstance(output, RequestOutput)
                for event in answer.events(output):
                    self._post.send(event)

    def _fail(self, request_id: str, error: FoveateError) -> None:
        _LOG.warning("request %s failed: %s", request_id, error.detail or error.public)
        self._post.send(FailEvent(request_id, error.record()))


def end_process() -> NoReturn:
    """End this process now; vLLM's others end with it."""
    _LOG.critical("vLLM's core has died, or hangs; the engine's process ends")
    logging.shutdown()
    os._exit(DEAD)
