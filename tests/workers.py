"""Worker entry points for tests: they are imported by real worker processes."""

from __future__ import annotations

import ctypes
import mmap
import os
import resource
import signal
import sys
import threading
import time
from typing import Any

import msgspec
import numpy as np

from foveate.core.clock import now
from foveate.core.errors import EncodeFailed, MediaCostly, StartupError
from foveate.core.media import EncodedImage, ImageOptions
from foveate.core.memory import Slot, TensorBundle
from foveate.core.stages import Span
from foveate.encoders.messages import CancelEncode, Encode, EncodeBatch, EncodeBegun, EncodeDone, EncodeRejected
from foveate.media.messages import JobFailed, Prepare, TooSmall, Unpack, UnpackDone, WorkerConfig
from foveate.media.worker import MediaWorker
from foveate.models.port import ProcessedPicture
from foveate.runtime.port import Progress, Ready, WorkerContext
from foveate.runtime.pulse import Ping, Pong


class Ask(msgspec.Struct, frozen=True, tag="ask"):
    """Do ``what`` with ``value``, and put the answer into an :class:`Answer`."""

    what: str
    value: Any = None


class Write(msgspec.Struct, frozen=True, tag="write"):
    """Fill ``out`` with ``byte``."""

    out: Slot
    byte: int


class Written(msgspec.Struct, frozen=True, tag="written"):
    """Answer to a :class:`Write`."""

    slot: Slot


class Sum(msgspec.Struct, frozen=True, tag="sum"):
    """Answer with the sum of the bytes of ``slot``."""

    slot: Slot


class Answer(msgspec.Struct, frozen=True, tag="answer"):
    value: Any


def echo(context: WorkerContext) -> None:
    """Announce, then answer every message until told to stop; after that, say goodbye."""
    context.send(Progress("loading"))
    context.send(Ready({"config": context.spec.config, "pid": os.getpid()}))
    while (message := context.receive()) is not None:
        if isinstance(message, Write):
            view = context.arena.view(message.out)
            view[:] = bytes([message.byte]) * len(view)
            context.send(Written(message.out))
        elif isinstance(message, Sum):
            context.send(Answer(int(np.frombuffer(context.arena.view(message.slot), np.uint8).sum(dtype=np.int64))))
        else:
            context.send(Answer(_ACTIONS[message.what](context, message.value)))
    context.send(Answer("goodbye"))


def refuses_to_start(context: WorkerContext) -> None:
    raise StartupError("There is no model here. Name one with --model.", detail=str(context.spec.config))


def crashes_at_start(context: WorkerContext) -> None:
    raise ZeroDivisionError("on purpose")


def never_ready(context: WorkerContext) -> None:
    time.sleep(600)


def stopped_at_start(context: WorkerContext) -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


STUCK = 9
"""The shipped model's token of a ``#``."""


def sticking(context: WorkerContext) -> None:
    """The real embedded engine, all but its language model, which never comes back from native code when a prompt has the token STUCK."""
    from foveate.engines.embedded.process import main
    from foveate.models.language import TransformersLanguageModel

    prefill = TransformersLanguageModel.prefill

    def stuck(self: Any, prompt: Any, *args: Any, **given: Any) -> Any:
        if STUCK in prompt:
            ctypes.CDLL(None).pause()
        return prefill(self, prompt, *args, **given)

    TransformersLanguageModel.prefill = stuck  # type: ignore[method-assign]
    main(context)


def deaf(context: WorkerContext) -> None:
    """Never reads, so it cannot be asked to stop."""
    context.send(Ready({"pid": os.getpid()}))
    time.sleep(600)


def media(context: WorkerContext) -> None:
    """Do what the body of an Unpack job says: ``verb argument``; answers with the pid as the skeleton."""
    if context.spec.config == "refuse":
        raise StartupError("The processor cannot be loaded.")
    context.send(Ready({}))
    while (job := context.receive()) is not None:
        if isinstance(job, Prepare):
            context.send(TooSmall(job.job_id, 12345))
            continue
        _do(context, job)


class SizeOnly:
    """A processor that takes milliseconds to load instead of the seconds of a model's."""

    def process(self, pixels: np.ndarray, options: ImageOptions) -> ProcessedPicture:
        return ProcessedPicture("<image>", 1, {"shape": np.array(pixels.shape, np.int64)}, {})


def decoding(context: WorkerContext) -> None:
    """The real media worker, all but the model's processor."""
    worker = MediaWorker(context, SizeOnly(), msgspec.convert(context.spec.config, WorkerConfig))
    context.send(Ready({}))
    while (job := context.receive()) is not None:
        context.send(worker.reply(job))


def _do(context: WorkerContext, job: Unpack) -> None:
    verb, _, argument = bytes(context.arena.view(job.body)).rstrip(b"\0").decode().partition(" ")
    if verb == "sleep":
        time.sleep(float(argument))
    elif verb == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    elif verb == "die_once":
        _die_unless(context, job)
    elif verb == "allocate":
        try:
            bytearray(int(argument))
        except MemoryError:
            context.send(JobFailed(job.job_id, MediaCostly(detail="memory").record()))
            return
    elif verb == "wrong_id":
        context.send(UnpackDone(job.job_id + 1000, b"", (), 0.0, 0.0))
        return
    context.send(UnpackDone(job.job_id, str(os.getpid()).encode(), (), 0.0, 0.0))


def _die_unless(context: WorkerContext, job: Unpack) -> None:
    """Die on the first attempt; the mark in the output slot tells the second from it."""
    mark = context.arena.view(job.out)
    if mark[0] == 0:
        mark[0] = 1
        os.kill(os.getpid(), signal.SIGKILL)


def _threads(context: WorkerContext, value: Any) -> int:
    return len(os.listdir("/proc/self/task"))


def _open_files(context: WorkerContext, value: Any) -> list[str]:
    found = []
    for fd in os.listdir("/proc/self/fd"):
        try:
            found.append(os.readlink(f"/proc/self/fd/{fd}"))
        except FileNotFoundError:
            continue  # the descriptor of the listing itself
    return sorted(found)


def _allocate(context: WorkerContext, value: int) -> str:
    try:
        held = bytearray(value)
    except MemoryError:
        return "refused"
    return f"got {len(held)}"


def _map(context: WorkerContext, value: int) -> str:
    try:
        mmap.mmap(-1, value, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS).close()
    except OSError:
        return "refused"
    return "got it"


def _receive_in_time(context: WorkerContext, value: float) -> str:
    try:
        return repr(context.receive(value))
    except TimeoutError:
        return "timeout"


def _pending_after(context: WorkerContext, value: float) -> bool:
    time.sleep(value)
    return context.pending()


def _send_from_threads(context: WorkerContext, value: int) -> str:
    def send(number: int) -> None:
        for _ in range(50):
            context.send(Answer("x" * number))

    threads = [threading.Thread(target=send, args=(1000 * (i + 1),)) for i in range(value)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return "sent"


def _modules(context: WorkerContext, value: list[str]) -> list[str]:
    return [name for name in value if name in sys.modules]


def _kill(context: WorkerContext, value: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _suspend(context: WorkerContext, value: Any) -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def _raise(context: WorkerContext, value: str) -> None:
    raise RuntimeError(value)


def _title(context: WorkerContext, value: Any) -> str:
    with open("/proc/self/cmdline", "rb") as cmdline:
        return cmdline.read().rstrip(b"\0").decode()


def _limits(context: WorkerContext, value: Any) -> dict[str, Any]:
    return {
        "core": resource.getrlimit(resource.RLIMIT_CORE)[1],
        "threads": os.environ["OMP_NUM_THREADS"],
        "sigint_ignored": signal.getsignal(signal.SIGINT) == signal.SIG_IGN,
    }


def encoding(context: WorkerContext) -> None:
    """An encode worker without a vision tower: what stands for a picture in the prompt is what is done to it.

    ``verb argument``; embeddings are the worker's index, in one byte.
    """
    version = context.spec.config["model_dir"]
    if version == "refuse":
        raise StartupError("The vision tower cannot be loaded.")
    context.send(Ready({"encoder_version": version, "embedding_bytes_per_row": 1}))
    waiting: dict[int, Encode] = {}
    with_: dict[int, list[int]] = {}
    """What has not begun was given together with these."""
    more = threading.Semaphore(0)

    def work() -> None:
        while more.acquire():
            if not waiting:
                continue  # it was cancelled
            one = waiting.pop(next(iter(waiting)))
            if one.job_id in with_:
                context.send(EncodeBegun([each for each in with_[one.job_id] if each in waiting or each == one.job_id]))
                for each in with_[one.job_id]:
                    del with_[each]
            _encode(context, one)

    threading.Thread(target=work, daemon=True).start()
    while (message := context.receive()) is not None:
        match message:
            case EncodeBatch():
                given = [one.job_id for one in message.works]
                with_.update(dict.fromkeys(given, given))
                waiting.update({one.job_id: one for one in message.works})
                more.release(len(message.works))
            case CancelEncode():
                if waiting.pop(message.job_id, None) is not None:
                    context.send(EncodeRejected(message.job_id, None))
            case Ping():
                context.send(Pong())


def _encode(context: WorkerContext, work: Encode) -> None:
    verb, _, argument = work.prepared.replacement.partition(" ")
    mark = context.arena.view(work.prepared.inputs.slot)
    if verb == "sleep":
        time.sleep(float(argument))
    elif verb == "die" or (verb == "die_once" and mark[0] == 0):
        mark[0] = 1
        os.kill(os.getpid(), signal.SIGKILL)
    elif verb == "stop_once" and mark[0] == 0 and argument in ("", str(context.spec.index)):
        mark[0] = 1
        os.kill(os.getpid(), signal.SIGSTOP)
        time.sleep(60)  # another thread may be the one that is stopped first
    elif verb == "wrong_id":
        context.send(EncodeRejected(work.job_id + 1000, None))
        return
    elif verb == "fail" and argument in ("", str(context.spec.index)):
        context.send(EncodeRejected(work.job_id, EncodeFailed(detail=f"at {context.spec.index}").record()))
        return
    started = now()
    context.arena.view(work.out)[0] = context.spec.index
    spans = (Span("encoder_queue", work.submitted_at, started), Span("vision_encode", started, now(), 1.0))
    bundle = TensorBundle(work.out, (), 1)
    context.send(EncodeDone(work.job_id, EncodedImage(bundle, work.prepared.rows, spans)))


_ACTIONS: dict[str, Any] = {
    "say": lambda context, value: value,
    "environment": lambda context, value: dict(os.environ),
    "threads": _threads,
    "open_files": _open_files,
    "allocate": _allocate,
    "map": _map,
    "receive_in_time": _receive_in_time,
    "pending_after": _pending_after,
    "send_from_threads": _send_from_threads,
    "modules": _modules,
    "kill": _kill,
    "raise": _raise,
    "suspend": _suspend,
    "title": _title,
    "clock": lambda context, value: now(),
    "limits": _limits,
    "cpus": lambda context, value: sorted(os.sched_getaffinity(0)),
    "sleep": lambda context, value: time.sleep(value),
}
