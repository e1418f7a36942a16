"""What makes two pictures' results the same: typed cache keys.

A key holds whatever changes the result and nothing else: the content (never its URL, never a client's id), the
versions, the options. Digests and versions are full length; nothing is truncated into a collision. The one exception is the media cache,
which keeps what a URL answered, and not for longer than its origin declared.

The scope says who may meet the entry: everybody (``""``), or one tenant alone. It is part of the key itself, so that whatever goes by key
(look-ups, work in flight, figures) keeps tenants apart without having to think of it.
"""

from __future__ import annotations

import blake3
import msgspec

from foveate.core.media import ImageOptions

_DIGEST_CHARACTERS = 64
_canonical = msgspec.msgpack.Encoder(order="deterministic")


class ProcessorKey(msgspec.Struct, frozen=True, order=True, tag="processor", cache_hash=True):
    """Key of a picture's model inputs.

    ``digest`` is the content's BLAKE3 in hexadecimal. Raises ValueError for any other length.
    """

    digest: str
    processor_version: str
    options: ImageOptions
    scope: str = ""

    def __post_init__(self) -> None:
        _check(self.digest, self.processor_version)

    @property
    def versions(self) -> tuple[str, ...]:
        """The version that made the entry."""
        return (self.processor_version,)

    def name(self) -> str:
        """Return the key as 64 hexadecimal characters, for logs and administration."""
        return _name(self)


class EncoderKey(msgspec.Struct, frozen=True, order=True, tag="encoder", cache_hash=True):
    """Key of a picture's embeddings: its processor key's fields and the encoder's version.

    Raises ValueError as there.
    """

    digest: str
    processor_version: str
    options: ImageOptions
    encoder_version: str
    scope: str = ""

    def __post_init__(self) -> None:
        _check(self.digest, self.processor_version, self.encoder_version)

    @property
    def versions(self) -> tuple[str, ...]:
        """The versions that made the entry: the encoder's, and the processor's whose output it encoded."""
        return self.encoder_version, self.processor_version

    @property
    def processor_key(self) -> ProcessorKey:
        """The key of the model inputs that these embeddings are made of."""
        return ProcessorKey(self.digest, self.processor_version, self.options, self.scope)

    def name(self) -> str:
        """Return the key as 64 hexadecimal characters, for logs and administration."""
        return _name(self)


class MediaKey(msgspec.Struct, frozen=True, order=True, tag="media"):
    """Key of what an origin answered: ``digest`` is the BLAKE3, in hexadecimal, of the whole URL (:meth:`of`). A hash, because a URL may be
    long and its query may hold credentials. Every request of one server carries the same fields, so nothing else changes the answer.
    """

    digest: str
    scope: str = ""

    @classmethod
    def of(cls, url: str, scope: str) -> MediaKey:
        """Return the key of a URL in its checked, canonical spelling, query included."""
        return cls(blake3.blake3(url.encode()).hexdigest(), scope)

    @property
    def versions(self) -> tuple[str, ...]:
        """None: no version of ours has a part in an origin's answer."""
        return ()

    def name(self) -> str:
        """Return the key as 64 hexadecimal characters, for logs and administration."""
        return _name(self)


def _check(digest: str, *versions: str) -> None:
    if len(digest) != _DIGEST_CHARACTERS:
        raise ValueError(f"a content digest has {_DIGEST_CHARACTERS} characters, not {len(digest)}")
    if not all(versions):
        raise ValueError("a cache key needs every version that changes the result")


def _name(key: ProcessorKey | EncoderKey | MediaKey) -> str:
    """Hash the key's msgpack encoding: tag, fields by name, so that no two kinds or fields can be confused."""
    return blake3.blake3(_canonical.encode(key)).hexdigest()
