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

from foveate.core.errors.base import (
    ErrorRecord,
    Failed,
    FoveateError,
    Kind,
    Overloaded,
    Refused,
    StartupError,
    error_classes,
)
from foveate.core.errors.capacity import (
    ArenaFull,
    DeadlineExceeded,
    Draining,
    EncodeFailed,
    EngineFailed,
    EngineUnavailable,
    HouseFull,
    MediaWorkersUnavailable,
    QueueFull,
)
from foveate.core.errors.media import (
    DataUrlInvalid,
    FetchFailed,
    FetchRejected,
    FetchTimeout,
    ImageShapeRefused,
    ImageTooLarge,
    MediaCostly,
    MediaIdConflict,
    MediaNotHeld,
    MediaTooLarge,
    MediaTotalTooLarge,
    MediaUndecodable,
    MediaUnsupported,
    TooManyFrames,
    TooManyImages,
    TooManyRedirects,
    TooManyVideos,
    UrlInvalid,
    UrlRefused,
    VideoTooLong,
)
from foveate.core.errors.request import (
    AliasNotFound,
    BodyTooLarge,
    CacheKeyNotFound,
    InvalidParameter,
    InvalidPart,
    MethodNotAllowed,
    ModelNotFound,
    NotPermitted,
    PromptInvalid,
    PromptTooLong,
    RequestNotFound,
    RouteNotFound,
    SettingsRefused,
    Unauthenticated,
    UnsupportedParameter,
)
from foveate.core.errors.upstream import (
    UpstreamBusy,
    UpstreamFailed,
    UpstreamNotFound,
    UpstreamRefused,
    UpstreamTooLarge,
    UpstreamUnavailable,
    UpstreamUnprocessable,
    UpstreamUnusable,
)

__all__ = [
    "AliasNotFound",
    "ArenaFull",
    "BodyTooLarge",
    "CacheKeyNotFound",
    "DataUrlInvalid",
    "DeadlineExceeded",
    "Draining",
    "EncodeFailed",
    "EngineFailed",
    "EngineUnavailable",
    "ErrorRecord",
    "Failed",
    "FetchFailed",
    "FetchRejected",
    "FetchTimeout",
    "FoveateError",
    "HouseFull",
    "ImageShapeRefused",
    "ImageTooLarge",
    "InvalidParameter",
    "InvalidPart",
    "Kind",
    "MediaCostly",
    "MediaIdConflict",
    "MediaNotHeld",
    "MediaTooLarge",
    "MediaTotalTooLarge",
    "MediaUndecodable",
    "MediaUnsupported",
    "MediaWorkersUnavailable",
    "MethodNotAllowed",
    "ModelNotFound",
    "NotPermitted",
    "Overloaded",
    "PromptInvalid",
    "PromptTooLong",
    "QueueFull",
    "Refused",
    "RequestNotFound",
    "RouteNotFound",
    "SettingsRefused",
    "StartupError",
    "TooManyFrames",
    "TooManyImages",
    "TooManyRedirects",
    "TooManyVideos",
    "Unauthenticated",
    "UnsupportedParameter",
    "UpstreamBusy",
    "UpstreamFailed",
    "UpstreamNotFound",
    "UpstreamRefused",
    "UpstreamTooLarge",
    "UpstreamUnavailable",
    "UpstreamUnprocessable",
    "UpstreamUnusable",
    "UrlInvalid",
    "UrlRefused",
    "VideoTooLong",
    "error_classes",
]
