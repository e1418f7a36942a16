"""When vLLM's own encoder ran, and for which requests: told by the process that holds the model, read where requests are answered.

vLLM's outputs carry no such times. They come through a pipe of the engine's process, which its children open by its path below /proc, so
that it makes no difference how vLLM starts them; a line is there before the output of the step that it tells of. Both ends drop what
there is no room for: a time that is missing is not made up.
"""

from __future__ import annotations

import contextlib
import os
from typing import Final

import msgspec

from foveate.core.stages import Span

VARIABLE: Final = "FOVEATE_VLLM_ENCODER_TIMES"
"""Environment variable with the pipe's path."""
_READ_BYTES: Final = 1 << 16
_REMAINDER_BYTES_MAX: Final = 1 << 12


class EncoderTimes:
    """The reading end, and the name of the writing one. Used on one thread; only requests that were named are remembered."""

    def __init__(self) -> None:
        self._reads, self._writes = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._rest = b""
        self._found: dict[str, list[Span]] = {}
        os.environ[VARIABLE] = f"/proc/{os.getpid()}/fd/{self._writes}"

    def expect(self, request_id: str) -> None:
        """Remember what is told of this request until it is taken."""
        self._found[request_id] = []

    def take(self, request_id: str) -> list[Span]:
        """Return the encoder's spans of a request, in order of time, and forget it."""
        self._drain()
        return sorted(self._found.pop(request_id, []), key=lambda span: span.start)

    def _drain(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while data := os.read(self._reads, _READ_BYTES):
                *lines, rest = (self._rest + data).split(b"\n")
                self._rest = rest[-_REMAINDER_BYTES_MAX:]
                for line in lines:
                    self._note(line)

    def _note(self, line: bytes) -> None:
        try:
            told = msgspec.json.decode(line, type=_Told)
        except msgspec.DecodeError:
            return  # the first line after one that was cut for want of room
        # vLLM adds a hyphen and eight characters, and in front the choice's number where there are several.
        name = told.request_id.rpartition("-")[0]
        known = self._found.get(name) if name in self._found else self._found.get(name.partition("_")[2])
        if known is not None:
            known.append(Span("vision_encode", told.start, told.end, told.share_ms))


class _Told(msgspec.Struct, array_like=True):
    request_id: str
    start: float
    end: float
    share_ms: float


class EncoderTeller:
    """The writing end, in the process that holds the model. None is opened where nobody asked for it."""

    def __init__(self) -> None:
        path = os.environ.get(VARIABLE)
        self._writes = None if path is None else os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)

    @property
    def wanted(self) -> bool:
        """Whether anybody reads."""
        return self._writes is not None

    def tell(self, request_ids: list[str], start: float, end: float) -> None:
        """Tell that the encoder ran for these requests (vLLM's own ids) from ``start`` to ``end``, monotonic seconds."""
        if self._writes is None or not request_ids:
            return
        share_ms = (end - start) * 1e3 / len(request_ids)
        for request_id in request_ids:
            line = msgspec.json.encode(_Told(request_id, start, end, share_ms)) + b"\n"
            with contextlib.suppress(BlockingIOError):
                os.write(self._writes, line)
