"""Compiles a client's constraint in a process that may be killed, before vLLM's own processes meet it.

What a schema, an expression or a grammar costs does not show in its length: ``(a{1,100}){1,100}`` compiles for minutes, an ambiguous
grammar of a line takes seconds for each token. vLLM converts it on its front end's event loop, compiles it on a thread of the core (where a
time limit only stops the waiting, not the work), and asks it in the core's own loop at each token, while every other request waits. So each
constraint that is not known yet is converted, compiled and walked here first, by a fork with limits on processor time and memory. What
passes here costs the same there.

The walk follows one path of many: a grammar that is cheap along it and dear elsewhere passes (docs/vllm.md).
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import re
import resource
import select
import signal
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection, Pipe
from time import process_time
from typing import Any, Final, NoReturn

import msgspec
import numpy as np
from blake3 import blake3
from setproctitle import setproctitle
from vllm import SamplingParams
from vllm.config import VllmConfig
from vllm.exceptions import VLLMClientError
from vllm.sampling_params import StructuredOutputsParams
from vllm.tokenizers import cached_tokenizer_from_config
from vllm.v1.structured_output.backend_guidance import GuidanceBackend
from vllm.v1.structured_output.backend_xgrammar import XgrammarBackend
from vllm.v1.structured_output.request import get_structured_output_key

from foveate.core.errors import InvalidParameter, QueueFull
from foveate.runtime.local.bootstrap import die_with_parent

_LOG = logging.getLogger("foveate.engine")

BACKENDS: Final = {"xgrammar": XgrammarBackend, "guidance": GuidanceBackend}
"""vLLM's core has one for all requests, and takes that of the first; with vLLM's ``auto`` a request could so choose it for all others, and
have them compiled by another than they were checked by. So one is chosen at start, and these are those that this process can drive."""

CPU_SECONDS_MAX: Final = 3
"""All of it, over all threads. A generated schema takes milliseconds; the deepest that vLLM takes (64 levels), about one second."""
CONVERT_SECONDS_MAX: Final = 0.25
"""Of processor time: vLLM does this part on the event loop that carries all streams."""
STEP_SECONDS_MAX: Final = 0.1
"""Of processor time for one token: vLLM does this part between two steps of all requests."""
WALK_SECONDS_MAX: Final = 0.5
WALK_STEPS: Final = 64
WALL_SECONDS_MAX: Final = 20.0
BYTES_MAX: Final = 1 << 30
WAITING_MAX: Final = 32
VERDICTS_MAX: Final = 1024


_FIRST: Final[tuple[dict[str, Any], ...]] = ({"json": '{"type": "object"}'}, {"grammar": 'root ::= "a"'})
"""Converted once before any fork, for what vLLM imports then. Nothing that starts a thread: threads do not survive a fork."""
_PLACE: Final = re.compile(r"\[[0-9:]+\] \S+:\d+: ")
"""How xgrammar begins its sentences: the time, and a line of its source."""


class Verdict(msgspec.Struct, frozen=True):
    """Why a constraint is refused; empty where it is not."""

    refusal: str = ""


_COSTLY: Final = Verdict(
    "It takes too much work: make it shorter, with fewer repetitions and alternatives inside each other."
)


class Grammars:
    """What is known of constraints, and the process that finds out. Lives on the engine process's event loop."""

    def __init__(self, channel: Connection) -> None:
        self._channel = channel
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="grammars")
        self._verdicts: OrderedDict[bytes, Verdict] = OrderedDict()
        self._waiting = 0

    @classmethod
    def start(cls, made: VllmConfig) -> Grammars:
        """Fork the process. Call it before this process has threads."""
        ours, theirs = Pipe()
        parent = os.getpid()
        if os.fork() == 0:
            ours.close()
            _run(theirs, made, parent)
        theirs.close()
        return cls(ours)

    async def check(self, outputs: StructuredOutputsParams, param: str) -> None:
        """Return when vLLM may be given ``outputs``. Raises InvalidParameter, QueueFull."""
        asked = msgspec.msgpack.encode(_fields(outputs))
        known_by = blake3(asked).digest()  # a constraint may have 64 KiB
        verdict = self._verdicts.get(known_by)
        if verdict is None:
            if self._waiting >= WAITING_MAX:
                raise QueueFull(detail=f"{self._waiting} constraints wait to be compiled", limit=WAITING_MAX)
            self._waiting += 1
            try:
                verdict = await asyncio.get_running_loop().run_in_executor(self._thread, self._ask, asked)
            finally:
                self._waiting -= 1
            self._verdicts[known_by] = verdict
            if len(self._verdicts) > VERDICTS_MAX:
                self._verdicts.popitem(last=False)
        else:
            self._verdicts.move_to_end(known_by)
        if verdict.refusal:
            raise InvalidParameter(f"{param} cannot be used. {verdict.refusal}", param=param)

    def _ask(self, asked: bytes) -> Verdict:
        try:
            self._channel.send_bytes(asked)
            return msgspec.msgpack.decode(self._channel.recv_bytes(), type=Verdict)
        except (EOFError, OSError):
            # Without it nothing could be checked any more; the gateway starts the whole engine anew.
            _LOG.critical("the process that checks constraints has ended; so does the engine's")
            logging.shutdown()
            os._exit(70)


def _fields(outputs: StructuredOutputsParams) -> dict[str, Any]:
    names = ("json", "regex", "choice", "grammar", "json_object", "structural_tag")
    return {name: value for name in names if (value := getattr(outputs, name)) is not None}


def _run(channel: Connection, made: VllmConfig, parent: int) -> NoReturn:
    """Answer until the engine's process ends. One fork for each constraint: what it does to its memory is gone with it."""
    try:
        die_with_parent(parent)
        # Signals to this process are none of the event loop's that it was forked from.
        signal.set_wakeup_fd(-1)
        setproctitle("foveate: grammars")
        tokenizer = cached_tokenizer_from_config(made.model_config)
        kind = BACKENDS[made.structured_outputs_config.backend]
        backend = kind(made, tokenizer=tokenizer, vocab_size=made.model_config.get_vocab_size())
        for first in _FIRST:
            _judge(msgspec.msgpack.encode(first), made, tokenizer, backend, compile_=False)
        while True:
            channel.send_bytes(_judged(channel.recv_bytes(), made, tokenizer, backend))
    except EOFError:
        os._exit(0)
    except BaseException:
        _LOG.exception("constraints cannot be checked any more")
        os._exit(70)


def _judged(asked: bytes, made: VllmConfig, tokenizer: Any, backend: Any) -> bytes:
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        _limit()
        os.write(writer, msgspec.msgpack.encode(_judge(asked, made, tokenizer, backend)))
        os._exit(0)
    os.close(writer)
    try:
        ready, _, _ = select.select([reader], [], [], WALL_SECONDS_MAX)
        answer = os.read(reader, 4096) if ready else b""
    finally:
        os.close(reader)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    # No answer: killed by a limit, or by what it compiled.
    return answer or msgspec.msgpack.encode(_COSTLY)


def _limit() -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS_MAX, CPU_SECONDS_MAX))
    with open("/proc/self/statm", encoding="ascii") as file:
        mapped = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (mapped + BYTES_MAX, mapped + BYTES_MAX))


def _judge(asked: bytes, made: VllmConfig, tokenizer: Any, backend: Any, *, compile_: bool = True) -> Verdict:
    """Do what vLLM will do, by its own code."""
    try:
        params = SamplingParams(structured_outputs=StructuredOutputsParams(**msgspec.msgpack.decode(asked)))
        before = process_time()
        params.verify(made.model_config, None, made.structured_outputs_config, tokenizer)
        if process_time() - before > CONVERT_SECONDS_MAX:
            return _COSTLY
        if not compile_:
            return Verdict()
        kind, spec = get_structured_output_key(params.structured_outputs)
        grammar = backend.compile_grammar(kind, spec)
        return _walk(grammar, backend.allocate_token_bitmask(1), tokenizer.eos_token_id)
    except (VLLMClientError, ValueError, TypeError, RuntimeError, KeyError, AttributeError) as error:
        words = str(error.args[0]) if error.args else type(error).__name__
        return Verdict(f"vLLM says: {_PLACE.sub('', words).strip().partition(chr(10))[0][:300]}")
    except MemoryError:
        return _COSTLY


def _walk(grammar: Any, mask: Any, end: int) -> Verdict:
    """Follow the grammar for some tokens, the end only where nothing else is allowed."""
    choose = random.Random(0)
    began = process_time()
    for step in range(WALK_STEPS):
        before = process_time()
        grammar.fill_bitmask(mask, 0)
        allowed = np.flatnonzero(np.unpackbits(mask[0].numpy().view(np.uint8), bitorder="little"))
        if not len(allowed):
            return Verdict("It allows no text at all.") if step == 0 else Verdict()
        going_on = allowed[allowed != end]
        if not len(going_on):
            return Verdict()
        grammar.accept_tokens("", [int(choose.choice(going_on))])
        after = process_time()
        if after - before > STEP_SECONDS_MAX or after - began > WALK_SECONDS_MAX:
            return _COSTLY
        if grammar.is_terminated():
            return Verdict()
    return Verdict()
