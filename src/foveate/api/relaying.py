"""From a body that is to be passed on to :class:`foveate.core.request.Request`: find the media, keep all else as the client wrote it.

Only what this server must know is judged here: the model's name, and every content part that may be, or may hide, something to be fetched.
The rest is for whoever answers. What is refused: parts of a type that is not known to be harmless, media beside a part's own, precomputed
embeddings, and addresses of other servers (:data:`REFUSED`). Each is a way around the door.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, Literal

import msgspec

from foveate.api.convert import Arrival, served
from foveate.api.invalid import refused_at
from foveate.api.references import References
from foveate.api.schema import MESSAGES_MAX, PARTS_MAX, UUID_CHARACTERS_MAX
from foveate.core.document import Document, MediaHole, Piece
from foveate.core.errors import InvalidParameter, UnsupportedParameter
from foveate.core.limits import SCHEME_CHARACTERS_MAX
from foveate.core.media import Detail
from foveate.core.request import ImagePart, Part, Request, Sampling, TextPart, Turn, VideoPart

Members = dict[str, msgspec.Raw]

REFUSED: Final = frozenset({"kv_transfer_params", "ec_transfer_params", "prompt_embeds"})
"""Top-level members that would have an upstream contact a server of the client's choice, or kill it with wrong tensors."""
HARMLESS: Final = frozenset(
    {"text", "input_text", "output_text", "refusal", "thinking", "input_audio", "tool_reference"}
)
"""Types of content parts in which nothing is fetched and no picture is decoded."""
AUDIO: Final = "audio_url"
"""Passed on where it holds its data itself: this server has no limits for audio, so it fetches none."""
MEDIA: Final[dict[str, Literal["image_url", "video_url"]]] = {
    "image_url": "image_url",
    "input_image": "image_url",
    "video_url": "video_url",
    "input_video": "video_url",
}
"""Types of content parts that are media, and what they are passed on as."""
HOLDERS: Final = frozenset(
    {"image_url", "video_url", "input_video", "input_image", "audio_url", "image", "video", "audio"}
)
"""Members under which some server looks for media, whatever the part's type says."""


def chat(body: bytes, arrival: Arrival) -> Request:
    """Return the request that a chat body asks for. Raises Refused."""
    members = _object(body)
    raw = members.pop("messages", None)
    messages = _as(list[Members], raw, "messages", "a list of messages")
    if not messages:
        raise refused_at("messages", "messages should not be empty.")
    if len(messages) > MESSAGES_MAX:
        raise refused_at("messages", f"messages should have at most {MESSAGES_MAX} items.")
    reader = _Reader(arrival.inline)
    turns = tuple(reader.turn(message, f"messages[{at}]") for at, message in enumerate(messages))
    reader.end()
    return _request(members, arrival, "chat", content=(b'"messages":', *reader.pieces()), turns=turns)


def completion(body: bytes, arrival: Arrival) -> Request:
    """Return the request that a completion body asks for. Raises Refused."""
    members = _object(body)
    prompt = members.pop("prompt", msgspec.Raw(b"null"))
    return _request(members, arrival, "completion", content=(b'"prompt":', bytes(prompt)))


def _request(
    members: Members,
    arrival: Arrival,
    kind: Literal["chat", "completion"],
    *,
    content: Iterable[Piece],
    turns: tuple[Turn, ...] = (),
) -> Request:
    for name in REFUSED & members.keys():
        if bytes(members[name]) != b"null":
            raise UnsupportedParameter(f"{name} is not passed on by this server.", param=name)
    model = served(_as(str | None, members.pop("model", None), "model", "a string"), arrival)
    stream = bool(_as(bool | None, members.get("stream"), "stream", "true or false"))
    options = _as(Members | None, members.pop("stream_options", None), "stream_options", "an object")
    asked = _as(
        bool | None, (options or {}).pop("include_usage", None), "stream_options.include_usage", "true or false"
    )
    wanted = [_whole(members.get(name)) for name in ("max_completion_tokens", "max_tokens")]
    return Request(
        id=arrival.id,
        model=model,
        kind=kind,
        # Only what the context may be judged by; how tokens are drawn is for whoever answers.
        sampling=Sampling(tokens_max=next((tokens for tokens in wanted if tokens), 0)),
        received_at=arrival.received_at,
        turns=turns,
        stream=stream,
        include_usage=bool(asked),
        caller=arrival.caller,
        document=Document(
            content=_merged(content),
            head=b"".join(_member(name, value) + b"," for name, value in members.items()),
            first=bytes(members.get("tools", b"")),
            stream_options=None if options is None else _after(options),
        ),
    )


class _Reader:
    """Reads messages in order; what is passed on of them gathers in pieces."""

    def __init__(self, inline: int) -> None:
        self._references = References(inline)
        self._pieces: list[Piece] = [b"["]
        self._media = 0
        self._messages = 0

    def pieces(self) -> list[Piece]:
        """Return the whole list of messages."""
        return [*self._pieces, b"]"]

    def end(self) -> None:
        """Check that what a media worker took out of the body all stood in content parts. Raises InvalidParameter."""
        if self._references.unseen:
            raise InvalidParameter("The body has a data URL that is not a content part of a message.", param="messages")

    def turn(self, message: Members, at: str) -> Turn:
        """Read one message."""
        role = _as(str | None, message.get("role"), f"{at}.role", "a string") or ""
        self._write(b"," * bool(self._messages) + b"{")
        self._messages += 1
        parts: list[Part] = []
        for place, (name, value) in enumerate(message.items()):
            self._write(b"," * bool(place) + msgspec.json.encode(name) + b":")
            if name == "content" and _first(value) == b"[":
                parts += self._content(value, f"{at}.content")
            else:
                self._write(bytes(value))
        self._write(b"}")
        return Turn(role, tuple(parts))

    def _content(self, value: msgspec.Raw, at: str) -> list[Part]:
        entries = _as(list[msgspec.Raw], value, at, "a list of content parts")
        if len(entries) > PARTS_MAX:
            raise refused_at(at, f"{at} should have at most {PARTS_MAX} items.")
        parts: list[Part] = []
        self._write(b"[")
        for index, entry in enumerate(entries):
            self._write(b"," * bool(index))
            where = f"{at}[{index}]"
            if _first(entry) == b'"':
                self._write(bytes(entry))
                continue
            part = _as(Members, entry, where, "an object")
            kind = self._kind(part, where)
            if kind in MEDIA:
                parts.append(self._medium(part, kind, where, index))
                continue
            self._check(part, kind, where)
            if kind == "text":
                parts.append(TextPart(""))
            self._write(b"{" + b",".join(_member(name, held) for name, held in part.items()) + b"}")
        self._write(b"]")
        return parts

    def _kind(self, part: Members, at: str) -> str:
        """Return the part's type; where it states none, what vLLM takes it for."""
        stated: str | None = _as(str | None, part.get("type"), f"{at}.type", "a string")
        if stated is not None:
            return stated
        return next((name for name in ("image_url", "video_url", "text") if name in part), "")

    def _check(self, part: Members, kind: str, at: str) -> None:
        """Refuse a part that may hide media. Raises InvalidPart."""
        if kind == AUDIO:
            held = _url(part.get(AUDIO), f"{at}.{AUDIO}")[0] or ""
            if not held.lstrip()[:SCHEME_CHARACTERS_MAX].lower().startswith("data:"):
                raise refused_at(f"{at}.{AUDIO}", f"{at}.{AUDIO} should hold the audio itself, as a data URL.")
        elif kind not in HARMLESS:
            raise refused_at(f"{at}.type", f"{at} has a type that this server does not pass on.")
        for name in (HOLDERS & part.keys()) - {kind}:
            raise refused_at(f"{at}.{name}", f"{at}.{name} does not belong in a part of this type.")

    def _medium(self, part: Members, kind: str, at: str, index: int) -> Part:
        key = "image_url" if kind == "input_image" else kind
        param = f"{at}.{key}"
        url, inside = _url(part.pop(key, None), param, inner="data" if kind == "input_video" else "url")
        if kind == "input_video" and url is not None and ":" not in url[:SCHEME_CHARACTERS_MAX]:
            url = f"data:;base64,{url}"
        uuid = _as(str | None, part.pop("uuid", None), f"{at}.uuid", "a string")
        if uuid is not None and not 1 <= len(uuid) <= UUID_CHARACTERS_MAX:
            raise refused_at(f"{at}.uuid", f"{at}.uuid should have 1 to {UUID_CHARACTERS_MAX} characters.")
        for name in HOLDERS & part.keys():
            raise refused_at(f"{at}.{name}", f"{at}.{name} does not belong in a part of this type.")
        part.pop("type", None)
        passed = MEDIA[kind]
        if kind == "input_image" and "detail" in part:
            inside["detail"] = part.pop("detail")
        self._pieces.append(MediaHole(self._media, passed, inside=_after(inside), beside=_after(part)))
        reference = self._references.of(url, param, index, uuid)
        self._media += 1
        if passed == "video_url":
            return VideoPart(self._media - 1, param, reference, uuid)
        return ImagePart(self._media - 1, param, reference, _detail(inside), uuid)

    def _write(self, piece: bytes) -> None:
        self._pieces.append(piece)


def _url(value: msgspec.Raw | None, at: str, *, inner: str = "url") -> tuple[str | None, Members]:
    """Return the URL that a part's member holds, plain or in an object, and the object's other members."""
    if value is None or bytes(value) == b"null":
        return None, {}
    if _first(value) == b'"':
        return _as(str, value, at, "a string"), {}
    members = _as(Members, value, at, "an object with a url, or a URL")
    return _as(str | None, members.pop(inner, None), f"{at}.{inner}", "a string"), members


def _detail(inside: Members) -> Detail:
    found = bytes(inside.get("detail", b"")).decode(errors="replace").strip('"')
    return "low" if found == "low" else "high" if found == "high" else "auto"


def _object(body: bytes) -> Members:
    try:
        return msgspec.json.decode(body, type=Members)
    except msgspec.ValidationError:
        raise InvalidParameter("The body should be a JSON object.") from None
    except (msgspec.DecodeError, RecursionError) as error:
        raise InvalidParameter("The body is not valid JSON.", detail=str(error)) from None


def _as(kind: Any, value: msgspec.Raw | None, at: str, words: str) -> Any:
    """Return a raw value as ``kind``. Raises InvalidParameter or InvalidPart, saying that it should be ``words``."""
    if value is None:
        value = msgspec.Raw(b"null")
    try:
        return msgspec.json.decode(value, type=kind)
    except (msgspec.DecodeError, RecursionError):
        raise refused_at(at, f"{at} should be {words}.") from None


def _first(value: msgspec.Raw) -> bytes:
    """Return a value's first byte, which tells its type."""
    return bytes(memoryview(value)[:1])


def _whole(value: msgspec.Raw | None) -> int:
    """Return a whole number, or 0 for anything else: it is not this server's to judge."""
    text = bytes(value or b"")
    return int(text) if text.isdigit() and len(text) < 10 else 0


def _member(name: str, value: msgspec.Raw) -> bytes:
    return msgspec.json.encode(name) + b":" + bytes(value)


def _after(members: Members) -> bytes:
    return b"".join(b"," + _member(name, value) for name, value in members.items())


def _merged(pieces: Iterable[Piece]) -> tuple[Piece, ...]:
    """Join neighbouring pieces of text."""
    found: list[Piece] = []
    waiting: list[bytes] = []
    for piece in pieces:
        if isinstance(piece, MediaHole):
            found += (b"".join(waiting), piece)
            waiting = []
        else:
            waiting.append(piece)
    return (*found, b"".join(waiting))
