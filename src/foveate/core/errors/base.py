"""What every error is: a class with its answer, and the same as a value that crosses a process boundary."""

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
    NOT_ALLOWED = "not_allowed"
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
        self.answer: bytes = b""
        """What an upstream said itself: the JSON of its error object, for the client; empty where it said nothing."""
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
            found.setdefault(kind.code, kind)  # a subclass without a code of its own is its parent in another process
        pending.extend(kind.__subclasses__())
    return found
