"""Reads a server's answer: server-sent events one by one, and of each what the ledger needs to know. Everything else keeps its bytes.

Rewritten are only ``id``, so that the answer goes by the name that this server's log and headers have for it, and ``model``, where clients
know it by another name. Usage that the client did not ask for is taken out of a stream.
"""

from __future__ import annotations

from typing import Final

import msgspec

from foveate.core.errors import UpstreamFailed
from foveate.engines.port import RelayUsage, RelayWork

FRAME_BYTES_MAX: Final = 16 * 1024 * 1024
"""Of one event. Larger than any token with twenty alternatives; what is larger is no stream of tokens."""
DONE: Final = b"[DONE]"


class _Details(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _Details | None = None


class _Metrics(msgspec.Struct):
    """vLLM's, with ``--enable-per-request-metrics``."""

    time_to_first_token_ms: float | None = None
    queue_time_ms: float | None = None


class _Choice(msgspec.Struct):
    index: int = 0
    delta: dict[str, msgspec.Raw] | None = None
    text: str | None = None
    finish_reason: str | None = None

    @property
    def has_output(self) -> bool:
        """Whether it says more than who speaks."""
        said = [value for name, value in (self.delta or {}).items() if name != "role"]
        return bool(self.text) or any(bytes(value) not in (b"null", b'""', b"[]", b"{}") for value in said)


class _Chunk(msgspec.Struct):
    id: str | None = None
    model: str | None = None
    choices: list[_Choice] | None = None
    usage: _Usage | None = None
    metrics: _Metrics | None = None
    error: msgspec.Raw = msgspec.Raw(b"null")


_decoder: Final = msgspec.json.Decoder(_Chunk)
_members: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])


class Read(msgspec.Struct, frozen=True):
    """One piece of an answer. ``outputs`` are the choices that it has new output of, ``begins`` tells that it has any, or an end.

    ``data`` is empty where there is nothing for the client in it. ``error`` is the server's own, where it ends the answer with one.
    """

    data: bytes
    outputs: tuple[int, ...] = ()
    begins: bool = False
    usage: RelayUsage | None = None
    error: bytes | None = None


class Splitter:
    """Bytes in, whole events out: the text after ``data:``. Comments, and other fields, are left out."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[bytes]:
        """Return the events that are whole now. Raises UpstreamFailed when one is too long."""
        # JSON has no bare line ends inside, so what ends lines may be made one kind. A lone \r at the end waits for its \n.
        text = self._rest + data
        if b"\r" in text:
            text = text.replace(b"\r\n", b"\n")
        *whole, self._rest = text.split(b"\n\n")
        if len(self._rest) > FRAME_BYTES_MAX:
            raise UpstreamFailed(detail=f"an event of more than {FRAME_BYTES_MAX} bytes")
        return [payload for frame in whole if (payload := _payload(frame))]


def _payload(frame: bytes) -> bytes:
    lines = (line for line in frame.split(b"\n") if line.startswith(b"data:"))
    return b"\n".join(line[5:].strip() for line in lines)


def read(payload: bytes, work: RelayWork) -> Read:
    """Read one event, or a whole answer that is no stream. Raises UpstreamFailed when it is not what OpenAI's servers send."""
    try:
        chunk = _decoder.decode(payload)
    except (msgspec.DecodeError, RecursionError) as error:
        raise UpstreamFailed(detail=f"its answer cannot be read: {error}") from None
    if chunk.choices is None and bytes(chunk.error) != b"null":
        return Read(b"", error=bytes(chunk.error))
    choices = chunk.choices or []
    outputs = tuple(choice.index for choice in choices if choice.has_output)
    begins = bool(outputs) or any(choice.finish_reason for choice in choices)
    usage = _usage(chunk)
    unasked = work.stream and not work.usage and usage is not None
    if unasked and not choices:
        return Read(b"", usage=usage)
    given = {"id": work.request_id, "model": work.model}
    same = chunk.id in (None, work.request_id) and chunk.model in (None, work.model)
    if same and not unasked:
        return Read(payload, outputs, begins, usage)
    members = _members.decode(payload)
    for name, value in given.items():
        if name in members:
            members[name] = msgspec.Raw(msgspec.json.encode(value))
    if work.stream and not work.usage:
        members.pop("usage", None)
    return Read(msgspec.json.encode(members), outputs, begins, usage)


def _usage(chunk: _Chunk) -> RelayUsage | None:
    usage, metrics = chunk.usage, chunk.metrics or _Metrics()
    if usage is None:
        return None
    details = usage.prompt_tokens_details or _Details()
    return RelayUsage(
        usage.prompt_tokens,
        usage.completion_tokens,
        details.cached_tokens,
        metrics.queue_time_ms,
        metrics.time_to_first_token_ms,
    )


def framed(payload: bytes) -> bytes:
    """Return an event as it is sent."""
    return b"data: " + payload + b"\n\n"
