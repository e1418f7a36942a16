"""Everything that can go wrong, as classes that carry their answer.

::

    FoveateError
    ├── Refused      the client's doing: the same request will fail again        (4xx)
    ├── Overloaded   nobody's fault: the same request may succeed later          (429, 503)
    └── Failed       ours, or a third party's we depend on                       (5xx, 424)

A class states its stable ``code``, its ``kind`` (which :mod:`foveate.api.errors` alone maps to an HTTP status), whether a retry can help
and the sentence a client sees. ``detail`` is private: it goes to the log and never into an answer. ``public`` text passed to the
constructor replaces the class's sentence and must itself be fit for a client: no address, no path, no query string, no payload.
"""

from __future__ import annotations

import enum
from typing import ClassVar

import msgspec

from foveate.core.stages import Span


class Kind(enum.Enum):
    """What sort of answer an error is; one HTTP status each."""

    INVALID = "invalid"
    UNAUTHENTICATED = "unauthenticated"
    FORBIDDEN = "forbidden"
    NOT_FOUND = "not_found"
    CONFLICT = "conflict"
    TOO_LARGE = "too_large"
    UNSUPPORTED_MEDIA = "unsupported_media"
    UNDECODABLE = "undecodable"
    DEPENDENCY = "dependency"
    RATE = "rate"
    UNAVAILABLE = "unavailable"
    TIMEOUT = "timeout"
    INTERNAL = "internal"


class FoveateError(Exception):
    """Base of all errors that may reach a client."""

    code: ClassVar[str] = "internal_error"
    kind: ClassVar[Kind] = Kind.INTERNAL
    retryable: ClassVar[bool] = False
    sentence: ClassVar[str] = "The server failed to answer this request."

    def __init__(
        self,
        public: str | None = None,
        *,
        detail: str = "",
        param: str | None = None,
        part: int | None = None,
        limit: float | None = None,
        actual: float | None = None,
        limit_name: str | None = None,
        retry_after_seconds: float | None = None,
    ) -> None:
        super().__init__(detail or public or self.sentence)
        self.public = public or self.sentence
        self.detail = detail
        self.param = param
        self.part = part
        self.limit = limit
        self.actual = actual
        self.limit_name = limit_name
        self.retry_after_seconds = retry_after_seconds
        self.spans: tuple[Span, ...] = ()
        """Where the time went until it failed, for the ledger of whoever waited."""

    def record(self) -> ErrorRecord:
        """Return the error as a value that can cross a process boundary."""
        return ErrorRecord(
            self.code,
            self.public,
            self.detail,
            self.param,
            self.part,
            self.limit,
            self.actual,
            self.limit_name,
            self.retry_after_seconds,
        )


class ErrorRecord(msgspec.Struct, frozen=True):
    """A :class:`FoveateError` between processes."""

    code: str
    public: str
    detail: str = ""
    param: str | None = None
    part: int | None = None
    limit: float | None = None
    actual: float | None = None
    limit_name: str | None = None
    retry_after_seconds: float | None = None

    def error(self) -> FoveateError:
        """Rebuild the exception; an unknown code becomes :class:`Failed`."""
        kind = error_classes().get(self.code, Failed)
        return kind(
            self.public,
            detail=self.detail,
            param=self.param,
            part=self.part,
            limit=self.limit,
            actual=self.actual,
            limit_name=self.limit_name,
            retry_after_seconds=self.retry_after_seconds,
        )


class Refused(FoveateError):
    """The client's doing."""

    code = "invalid_request"
    kind = Kind.INVALID
    sentence = "The request is not valid."


class Overloaded(FoveateError):
    """Too much at once; later it may succeed."""

    code = "overloaded"
    kind = Kind.UNAVAILABLE
    retryable = True
    sentence = "The server is at capacity. Try again shortly."


class Failed(FoveateError):
    """Ours, or a third party's we depend on."""


# ---------------------------------------------------------------------------------------------------- the request itself


class InvalidParameter(Refused):
    """A parameter is missing, of the wrong type or out of range."""

    code = "invalid_parameter"


class UnsupportedParameter(Refused):
    """A parameter exists in the API but not here; it is refused rather than ignored."""

    code = "unsupported_parameter"
    sentence = "A parameter of the request is not supported."


class InvalidPart(Refused):
    """A content part is malformed."""

    code = "invalid_content_part"
    sentence = "A content part of the request is not valid."


class ModelNotFound(Refused):
    """The model named is not served here."""

    code = "model_not_found"
    kind = Kind.NOT_FOUND
    sentence = "The model does not exist here."


class RouteNotFound(Refused):
    """The path or method is not part of the API."""

    code = "not_found"
    kind = Kind.NOT_FOUND
    sentence = "There is nothing at this address."


class PromptTooLong(Refused):
    """The prompt, or prompt and answer together, exceed the model's context."""

    code = "context_length_exceeded"
    sentence = "The prompt is longer than the model's context."


class PromptInvalid(Refused):
    """The model's chat template refuses these messages."""

    code = "invalid_messages"
    sentence = "The model's chat template does not accept these messages."


class Unauthenticated(Refused):
    """The request carries no API key, or none that is known here."""

    code = "invalid_api_key"
    kind = Kind.UNAUTHENTICATED
    sentence = "This server needs an API key: send it as Authorization: Bearer KEY."


class NotPermitted(Refused):
    """The API key may not do this: use another tier, or the admin API."""

    code = "not_permitted"
    kind = Kind.FORBIDDEN
    sentence = "This API key may not do that."


class SettingsRefused(Refused):
    """A reload found settings that cannot be used; the old ones stay. The text is for the operator who asked."""

    code = "settings_refused"
    kind = Kind.UNDECODABLE
    sentence = "The settings cannot be used; the old ones stay."


class BodyTooLarge(Refused):
    """The request body exceeds the server's limit."""

    code = "body_too_large"
    kind = Kind.TOO_LARGE
    sentence = "The request body is larger than this server accepts."


# ------------------------------------------------------------------------------------------------------------------ media


class TooManyImages(Refused):
    """More pictures than one request may carry."""

    code = "too_many_images"
    sentence = "The request has more pictures than allowed."


class MediaTooLarge(Refused):
    """The encoded media has more bytes than allowed."""

    code = "media_too_large"
    kind = Kind.TOO_LARGE
    sentence = "The media is larger than this server accepts."


class ImageTooLarge(Refused):
    """The header announces more pixels, or a longer side, than allowed."""

    code = "image_too_large"
    kind = Kind.TOO_LARGE
    sentence = "The picture has more pixels than this server accepts."


class TooManyVideos(Refused):
    """More videos than one request may carry."""

    code = "too_many_videos"
    sentence = "The request has more videos than allowed."


class TooManyFrames(Refused):
    """A video or frame list has more frames than allowed, and is not made to fit."""

    code = "too_many_frames"
    sentence = "The video has more frames than allowed."


class VideoTooLong(Refused):
    """A video is longer than allowed."""

    code = "video_too_long"
    kind = Kind.TOO_LARGE
    sentence = "The video is longer than allowed."


class MediaTotalTooLarge(Refused):
    """The media of one request are too much together: bytes, decoded pixels or visual tokens."""

    code = "media_total_too_large"
    kind = Kind.TOO_LARGE
    sentence = "The media of this request are larger together than allowed."


class ImageShapeRefused(Refused):
    """The model's processor cannot take a picture of this shape."""

    code = "image_shape_unsupported"
    sentence = "The model cannot take a picture of this shape."


class MediaUnsupported(Refused):
    """The bytes are not one of the accepted formats."""

    code = "media_unsupported"
    kind = Kind.UNSUPPORTED_MEDIA
    sentence = "The media is not in an accepted format."


class MediaUndecodable(Refused):
    """The bytes claim an accepted format but cannot be decoded."""

    code = "media_undecodable"
    kind = Kind.UNDECODABLE
    sentence = "The picture is damaged or incomplete and cannot be decoded."


class MediaCostly(Refused):
    """Decoding used more memory or time than one picture may, or killed its worker."""

    code = "media_too_costly"
    kind = Kind.UNDECODABLE
    sentence = "Decoding the picture exceeded the limits on memory or time."


class MediaIdConflict(Refused):
    """A part's ``uuid`` was used for other content before."""

    code = "media_id_conflict"
    kind = Kind.CONFLICT
    sentence = "The uuid beside the picture already names other content. Use another uuid for other bytes."


class DataUrlInvalid(Refused):
    """A ``data:`` URL is malformed."""

    code = "invalid_data_url"
    sentence = "The data URL is not valid."


class UrlInvalid(Refused):
    """A media URL cannot be parsed without doubt."""

    code = "invalid_media_url"
    sentence = "The media URL is not valid."


class UrlRefused(Refused):
    """The URL policy forbids this address."""

    code = "media_url_refused"
    sentence = "This media URL is not allowed."


class FetchRejected(Refused):
    """The origin answered that it will not give the media (4xx)."""

    code = "media_fetch_rejected"
    sentence = "The media could not be fetched: its origin refused."


class FetchFailed(Failed):
    """The origin could not be reached or failed (5xx, dropped connection, name not resolved)."""

    code = "media_fetch_failed"
    kind = Kind.DEPENDENCY
    retryable = True
    sentence = "The media could not be fetched from its origin."


class FetchTimeout(Failed):
    """The origin was too slow."""

    code = "media_fetch_timeout"
    kind = Kind.TIMEOUT
    retryable = True
    sentence = "The media could not be fetched in time."


# --------------------------------------------------------------------------------------------------------- capacity, ours


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
    """The shared-memory arena has no room for this request now."""

    code = "memory_full"
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


class EncodeFailed(Failed):
    """The vision encoder failed on this picture."""

    code = "encode_failed"
    sentence = "The vision encoder failed on this picture."


# ----------------------------------------------------------------------------------------------------- start-up, operator


class StartupError(FoveateError):
    """The server cannot start; ``public`` is one line that says what to do."""

    code = "startup_failed"
    sentence = "Foveate cannot start."


def error_classes() -> dict[str, type[FoveateError]]:
    """Return every error class by its code."""
    found: dict[str, type[FoveateError]] = {}
    pending: list[type[FoveateError]] = [FoveateError]
    while pending:
        kind = pending.pop()
        if kind is not Failed:
            found[kind.code] = kind
        pending.extend(kind.__subclasses__())
    return found
