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
from foveate.engines.messages import Cancel, Cancelled
from foveate.engines.port import EngineWork, FailEvent, FinishEvent
from foveate.engines.vllm.connector import PARAMS
from foveate.engines.vllm.encoder_times import EncoderTimes
from foveate.engines.vllm.grammars import Grammars
from foveate.engines.vllm.handing_on import (
    ending_lease,
    fetch_params,
    prefill_params,
    prefilled_of,
    stages_before,
    with_prefilled,
)
from foveate.engines.vllm.messages import LetGo, NotFetched, Prefill, Prefilled, Starts, TokenDecode
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
        self._unread: dict[str, Prefilled] = {}
        """What another process holds for requests that vLLM has not got yet: once it has, it lets go of them itself."""
        self._letting_go: set[asyncio.Task[None]] = set()
        self._handed_on_at = float("-inf")

    def submit(self, message: Starts) -> None:
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
        if isinstance(message, TokenDecode):
            self._unread[work.request_id] = message.prefilled
        task = asyncio.get_running_loop().create_task(self._answer(message), name=work.request_id)
        self._open[work.request_id] = task, pictures
        task.add_done_callback(lambda ended: self._ended(work.request_id, ended))

    def cancel(self, message: Cancel) -> None:
        """Drop a request; one that has ended is ignored."""
        found = self._open.get(message.request_id)
        if found is not None:
            found[0].cancel()

    def let_go(self, message: LetGo) -> None:
        """Give up what is held of a request's prompt for another process."""
        self._let_go(message.request_id)

    def _let_go(self, request_id: str) -> None:
        self._tell_core(request_id, ending_lease(request_id))

    def _tell_core(self, request_id: str, params: dict[str, Any]) -> None:
        """Have vLLM's connector take note of something, by a request that ends as soon as the core has it."""
        told = self._engine.notify_kv_transfer_request_rejected(f"{request_id}-let-go", params)
        task = asyncio.get_running_loop().create_task(told, name=f"let go {request_id}")
        self._letting_go.add(task)
        task.add_done_callback(self._was_let_go)

    def _was_let_go(self, task: asyncio.Task[None]) -> None:
        self._letting_go.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _LOG.warning("%s: %r; their lease runs out", task.get_name(), error)

    def _ended(self, request_id: str, task: asyncio.Task[None]) -> None:
        if self._open.get(request_id, (None,))[0] is task:
            del self._open[request_id]
        given = self._unread.pop(request_id, None)
        if given is not None:
            self._tell_core(request_id, given.params)
        if task.cancelled():
            self._post.send(Cancelled(request_id))

    async def watch(self) -> NoReturn:
        """End the process when the core has died."""
        while True:
            await asyncio.sleep(WATCH_SECONDS)
            if self._engine.errored:
                end_process()

    async def watch_steps(self, seconds_max: float) -> NoReturn:
        """End the process when the core hangs. It answers between two steps, so a step that takes ``seconds_max`` counts as that.

        Whoever reads K/V that it holds waits for it as well, and hears nothing of it before it has ended.
        """
        while True:
            await asyncio.sleep(ASK_SECONDS)
            if not self._open and now() - self._handed_on_at > seconds_max:
                continue
            try:
                async with asyncio.timeout(seconds_max):
                    await self._engine.is_sleeping()
            except (TimeoutError, EngineDeadError):
                end_process()

    async def _answer(self, message: Starts) -> None:
        work = message.work
        try:
            async with asyncio.timeout(work.deadline - now()):
                match message:
                    case Prefill():
                        await self._prefill(message)
                    case TokenDecode():
                        await self._go_on(message)
                    case _:
                        params = sampling_params(work.sampling)
                        parsing = await self._checked(work, params)
                        if work.pixels:
                            await self._stream_of_pixels(message, params, parsing)
                        else:
                            await self._stream(message, params, Answer(message, self._vocabulary, parsing))
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

    async def _prefill(self, message: Prefill) -> None:
        """Have a prompt's K/V held for another process."""
        work = message.work
        try:
            with self._prompts.taken(work) as (prompt, descriptors):
                last = await self._run(work, prompt, prefill_params(named(descriptors)))
        except BaseException:
            self._let_go(work.request_id)  # vLLM's core may have been done with it already
            raise
        self._post.send(prefilled_of(message, last))
        self._handed_on_at = now()

    async def _go_on(self, message: TokenDecode) -> None:
        """Answer with the K/V that another process holds."""
        work, given = message.work, message.prefilled
        params = sampling_params(work.sampling)
        parsing = await self._checked(work, params)
        before, cached = stages_before(message), given.cached_tokens
        answer = Answer(message, self._vocabulary, parsing, before, cached_tokens=cached)
        several, held = work.sampling.n > 1, True
        try:
            if several:
                # Each choice would fetch for itself, and after the first that has nothing is held any more.
                with self._prompts.taken(work) as (prompt, descriptors):
                    del self._unread[work.request_id]
                    self._fetched(work, await self._run(work, prompt, fetch_params(named(descriptors), given), "-kv"))
                held = False
            with self._prompts.taken(work) as (prompt, descriptors):
                self._unread.pop(work.request_id, None)
                params.extra_args = named(descriptors) if several else with_prefilled(named(descriptors), given)
                await self._pass_on(work, prompt, params, answer, fetches=not several)
        except VLLMClientError:
            if held:  # vLLM refused it before it read any
                self._unread[work.request_id] = given
            raise

    def _fetched(self, work: EngineWork, output: RequestOutput | None) -> None:
        """Tell where K/V could not be read. vLLM counts as cached what it need not compute."""
        found = (output.num_cached_tokens or 0) if output is not None else 0
        if found < len(work.token_ids):
            _LOG.warning("request %s: K/V of %d of %d tokens were read", work.request_id, found, len(work.token_ids))
            self._post.send(NotFetched(work.request_id))

    async def _run(
        self, work: EngineWork, prompt: Any, params: SamplingParams, suffix: str = ""
    ) -> RequestOutput | None:
        """Run a request to its end for its K/V; return its last output."""
        last = None
        outputs = self._engine.generate(prompt, params, work.request_id + suffix, trace_headers=traced(work))
        async with contextlib.aclosing(outputs):
            async for output in outputs:
                assert isinstance(output, RequestOutput)
                last = output
        return last

    async def _stream(self, message: Starts, params: SamplingParams, answer: Answer) -> None:
        with self._prompts.taken(message.work) as (prompt, descriptors):
            params.extra_args = named(descriptors)
            await self._pass_on(message.work, prompt, params, answer)

    async def _stream_of_pixels(self, message: Starts, params: SamplingParams, parsing: Parsing | None) -> None:
        if self._pixels is None:
            raise EngineFailed(detail=f"this engine takes no pixels; {len(message.work.pixels)} were given")
        (prompts, times), name = self._pixels, message.work.request_id
        processed = await prompts.input(message.work, message.submitted_at)
        times.expect(name)
        try:
            answer = Answer(message, self._vocabulary, parsing, (processed.span,), encoded=lambda: times.take(name))
            await self._pass_on(message.work, processed.input, params, answer)
        finally:
            times.take(name)

    async def _pass_on(
        self, work: EngineWork, prompt: Any, params: SamplingParams, answer: Answer, *, fetches: bool = False
    ) -> None:
        ended = answer.reasoning_ended()
        outputs = self._engine.generate(
            prompt, params, work.request_id, trace_headers=traced(work), reasoning_ended=ended
        )
        async with contextlib.aclosing(outputs):
            async for output in outputs:
                assert isinstance(output, RequestOutput)
                if fetches:
                    self._fetched(work, output)
                    fetches = False
                for event in answer.events(output):
                    if isinstance(event, FinishEvent) and event.last:
                        self._open.pop(work.request_id, None)  # its place is free before that is told
                    self._post.send(event)

    def _fail(self, request_id: str, error: FoveateError) -> None:
        _LOG.warning("request %s failed: %s", request_id, error.detail or error.public)
        self._open.pop(request_id, None)
        self._post.send(FailEvent(request_id, error.record()))


def named(descriptors: dict[str, int]) -> dict[str, Any]:
    """Return ``extra_args`` that name embeddings."""
    return {PARAMS: descriptors} if descriptors else {}


def traced(work: EngineWork) -> dict[str, str] | None:
    """Return a request's trace. vLLM traces when its own arguments say where to (--otlp-traces-endpoint), and ignores this otherwise."""
    return {"traceparent": work.trace} if work.trace else None


def end_process() -> NoReturn:
    """End this process now; vLLM's others end with it."""
    _LOG.critical("vLLM's core has died, or hangs; the engine's process ends")
    logging.shutdown()
    os._exit(DEAD)
