"""Too much at once, or a part of the server that failed: never the client's doing."""

from __future__ import annotations

from foveate.core.errors.base import Failed, Kind, Overloaded


class QueueFull(Overloaded):
    """A bounded queue has no place."""

    code = "queue_full"
    kind = Kind.RATE
    sentence = "Too many requests are waiting. Try again shortly."


class HouseFull(Overloaded):
    """The server, or the tenant's share of it, has as much media under way as it may have."""

    code = "media_capacity_full"
    kind = Kind.RATE
    sentence = "As much media is under way as allowed. Try again shortly."


class ArenaFull(Overloaded):
    """The shared-memory arena has no room for this request now: a full house like any other."""

    code = "memory_full"
    kind = Kind.RATE
    sentence = "The server has no memory free for this request. Try again shortly."


class Draining(Overloaded):
    """The server is shutting down and takes no new requests."""

    code = "shutting_down"
    sentence = "The server is shutting down."


class EngineUnavailable(Overloaded):
    """The engine is starting, restarting or gone."""

    code = "engine_unavailable"
    sentence = "The language model is restarting. Try again shortly."


class MediaWorkersUnavailable(Overloaded):
    """No media worker could take the work."""

    code = "media_workers_unavailable"
    sentence = "No media worker is available. Try again shortly."


class EncodersUnavailable(Overloaded):
    """No encode worker could take the picture, and the engine's process has no vision encoder to step in."""

    code = "encoders_unavailable"
    sentence = "No vision encoder is available. Try again shortly."


class DeadlineExceeded(Failed):
    """The request did not finish in the time a request may take."""

    code = "deadline_exceeded"
    kind = Kind.TIMEOUT
    retryable = True
    sentence = "The request took longer than allowed."


class EngineFailed(Failed):
    """The engine died or failed while it held this request."""

    code = "engine_failed"
    retryable = True
    sentence = "The language model failed while answering this request."


class EngineDied(EngineFailed):
    """The engine's process ended while it held this request, so that another try may be answered."""

    deaths = 1
    """How many ended while they held it, one after the other."""


class EncodeFailed(Failed):
    """The vision encoder failed on this picture."""

    code = "encode_failed"
    sentence = "The vision encoder failed on this picture."
