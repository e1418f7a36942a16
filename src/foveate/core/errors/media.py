"""What can be wrong with media: too many, too large, not allowed to be fetched, not decodable."""

from __future__ import annotations

import re
from typing import Final

from foveate.core.errors.base import Failed, Kind, Refused


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


class MediaNotHeld(Refused):
    """A part has a ``uuid`` and no media, and what the uuid named is not held (any more), or not in this form. Send the media."""

    code = "media_not_held"
    kind = Kind.NOT_FOUND
    sentence = "The server holds no media of this uuid that it could use here. Send the media with the uuid."


class EmbeddingsRefused(Refused):
    """Embeddings instead of a picture, where the operator does not allow them or the model takes none."""

    code = "embeddings_not_accepted"
    sentence = "This server takes pictures, not embeddings of them."


class EmbeddingsInvalid(Refused):
    """What came as embeddings is none of this model: its file, dtype, shape, grid, or a value that is not finite."""

    code = "invalid_embeddings"
    sentence = "The embeddings are not valid."


class DataUrlInvalid(Refused):
    """A ``data:`` URL is malformed."""

    code = "invalid_data_url"
    sentence = "The data URL is not valid."


class UrlInvalid(Refused):
    """A media URL cannot be parsed without doubt."""

    code = "invalid_media_url"
    sentence = "The media URL is not valid."


URL_RULES: Final = (
    "scheme",
    "port",
    "host",
    "downgrade",
    "local name",
    "file",
    "file root",
    "metadata",
    "loopback",
    "private",
    "link-local",
    "site-local",
    "carrier-grade NAT",
    "local-use NAT64",
    "multicast",
    "documentation",
    "benchmarking",
    "reserved",
    "unspecified",
)
"""Every rule that a refusal by the URL policy may name (docs/url-policy.md)."""
_RULE: Final = re.compile(r"\(rule: ([^)]*)\)\.$")


class UrlRefused(Refused):
    """The URL policy forbids this address. Its sentence names the rule."""

    code = "media_url_refused"
    sentence = "This media URL is not allowed."

    @property
    def rule(self) -> str | None:
        """The rule, one of URL_RULES; None where the sentence names none."""
        found = _RULE.search(self.public)
        return found[1] if found is not None and found[1] in URL_RULES else None


class FetchRejected(Refused):
    """The origin answered that it will not give the media (4xx)."""

    code = "media_fetch_rejected"
    sentence = "The media could not be fetched: its origin refused."


class TooManyRedirects(FetchRejected):
    """The origin redirects more often than allowed, or in a circle."""

    code = "too_many_redirects"
    sentence = "The media could not be fetched: its origin redirects too often."


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
