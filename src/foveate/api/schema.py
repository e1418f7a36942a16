"""What a client may send: the request bodies as pydantic models, validated straight from bytes.

Covers types, ranges and the shape of messages. Rules between fields, and everything that the schema does not declare,
are in :mod:`foveate.api.convert` and :mod:`foveate.api.parameters`. The models are strict: ``"1"`` is not a number,
``true`` is not 1, and NaN and infinities are refused.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Discriminator, Field, Tag

MESSAGES_MAX: Final = 2048
PARTS_MAX: Final = 2048
STOP_MAX: Final = 16
STOP_CHARACTERS_MAX: Final = 1024
CHOICES_MAX: Final = 8
TOKENS_MAX: Final = 2**31 - 1
SEED_MIN: Final = -(2**63)
SEED_MAX: Final = 2**63 - 1
UUID_CHARACTERS_MAX: Final = 256

TAG_MARK: Final = "$"
"""First character of every union tag below, so that :mod:`foveate.api.invalid` can leave tags out of a path."""


def _string_or_list(value: Any) -> str | None:
    if isinstance(value, str):
        return "$string"
    return "$list" if isinstance(value, list) else None


def _string_or_object(value: Any) -> str | None:
    if isinstance(value, str):
        return "$string"
    return "$object" if isinstance(value, dict | BaseModel) else None


def _part_type(value: Any) -> str | None:
    kind = value.get("type") if isinstance(value, dict) else getattr(value, "type", None)
    return f"{TAG_MARK}{kind}" if kind in ("text", "image_url", "video_url", "input_video") else None


def _allowed(value: Any) -> Any:
    """vLLM's clients write -1 for "as many as there are"; here that is as many as the budget allows."""
    return None if value == -1 and not isinstance(value, bool) else value


def _whole(value: Any) -> Any:
    """To JSON, and to some clients, 2.0 is the integer 2."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _lower(value: Any) -> Any:
    return value.lower() if isinstance(value, str) else value


Whole = Annotated[int, BeforeValidator(_whole)]


class _Open(BaseModel):
    """Keeps undeclared fields, so that they can be refused by name (or accepted when they cannot matter)."""

    model_config = ConfigDict(strict=True, extra="allow", json_schema_extra={"additionalProperties": False})


class ImageUrl(_Open):
    """A picture's address and how closely to look at it."""

    url: str | None = Field(
        None,
        min_length=1,
        description="`data:…;base64,` URL, or one of a scheme that `GET /v1/budget` lists under `urls`. "
        "Only a part with a `uuid` may leave it out.",
    )
    detail: Annotated[Literal["auto", "low", "high"] | None, BeforeValidator(_lower)] = Field(
        None,
        description="`low`: the picture is scaled down to the server's low-detail pixel limit before it is encoded, "
        "which costs fewer tokens. `high` and `auto` (the default, also for null): the model's own limit. "
        "Upper case is accepted.",
    )


class TextContent(_Open):
    """Text. It is ordinary text even where it spells one of the model's special tokens."""

    type: Literal["text"]
    text: str


Uuid = Annotated[
    str | None,
    Field(
        min_length=1,
        max_length=UUID_CHARACTERS_MAX,
        description="The client's own name for exactly these bytes: used for other bytes later, it is refused (409). A picture that was "
        "sent under it before need not be sent again as long as the server holds it; if not, that is a 404 (`media_not_held`).",
    ),
]


class ImageContent(_Open):
    """A picture, in any role, at its place among the text."""

    type: Literal["image_url"]
    image_url: (
        Annotated[
            Annotated[ImageUrl, Tag("$object")] | Annotated[str, Field(min_length=1), Tag("$string")],
            Discriminator(
                _string_or_object,
                custom_error_type="shape",
                custom_error_message="should be an object with a url, or a URL",
            ),
        ]
        | None
    ) = None
    uuid: Uuid = None


class VideoSampling(_Open):
    """How many frames to take of a video. The caller's budget holds whatever stands here: these can only lower it."""

    num_frames: Annotated[Annotated[Whole, Field(ge=1, le=TOKENS_MAX)] | None, BeforeValidator(_allowed)] = Field(
        None, description="At most so many frames. Null and -1: as many as the budget allows."
    )
    fps: Annotated[Annotated[float, Field(gt=0, allow_inf_nan=False)] | None, BeforeValidator(_allowed)] = Field(
        None, description="So many frames a second, of those that the budget allows. Null and -1: as the budget says."
    )


class VideoUrl(VideoSampling):
    """A video's address."""

    url: str | None = Field(
        None,
        min_length=1,
        description="`data:…;base64,` URL, or one of a scheme that `GET /v1/budget` lists under `urls`. "
        "Only a part with a `uuid` may leave it out.",
    )


class VideoContent(_Open):
    """A video, at its place among the text."""

    type: Literal["video_url"]
    video_url: (
        Annotated[
            Annotated[VideoUrl, Tag("$object")] | Annotated[str, Field(min_length=1), Tag("$string")],
            Discriminator(
                _string_or_object,
                custom_error_type="shape",
                custom_error_message="should be an object with a url, or a URL",
            ),
        ]
        | None
    ) = None
    uuid: Uuid = None


class InputVideo(VideoSampling):
    """A video in the request itself."""

    data: str = Field(min_length=1, description="Base64, with or without `data:…;base64,` before it, or a URL.")


class InputVideoContent(_Open):
    """A video in the request itself, at its place among the text."""

    type: Literal["input_video"]
    input_video: InputVideo
    uuid: Uuid = None


class MediaIo(_Open):
    """vLLM's place for what concerns all media of a request. What a part says itself counts before it."""

    video: VideoSampling | None = None


Pixels = Annotated[Whole, Field(ge=1, le=TOKENS_MAX)] | None


class ProcessorSize(_Open):
    """The picture processor's own `size`: numbers of pixels for Qwen's, a longest side for Pixtral's and Idefics3's."""

    shortest_edge: Pixels = None
    longest_edge: Pixels = None


class ProcessorKwargs(_Open):
    """How large pictures are to be when the model sees them, where its processor can be told. Never more than model and budget allow."""

    min_pixels: Pixels = Field(None, description="Smaller pictures are scaled up to so many pixels.")
    max_pixels: Pixels = Field(None, description="Larger pictures are scaled down to so many pixels.")
    size: ProcessorSize | None = None


Content = Annotated[
    Annotated[str, Tag("$string")]
    | Annotated[
        list[
            Annotated[
                Annotated[TextContent, Tag("$text")]
                | Annotated[ImageContent, Tag("$image_url")]
                | Annotated[VideoContent, Tag("$video_url")]
                | Annotated[InputVideoContent, Tag("$input_video")],
                Discriminator(
                    _part_type,
                    custom_error_type="shape",
                    custom_error_message="should be an object whose type is text, image_url, video_url or input_video",
                ),
            ]
        ],
        Field(fail_fast=True, min_length=1, max_length=PARTS_MAX),
        Tag("$list"),
    ],
    Discriminator(
        _string_or_list, custom_error_type="shape", custom_error_message="should be a string or a list of content parts"
    ),
]


class Message(_Open):
    """One turn of the conversation. ``developer`` means the same as ``system``."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Content | None = Field(None, description="A string or a list of parts; null only for the assistant.")


class StreamOptions(_Open):
    """What a stream carries beside the tokens."""

    include_usage: bool | None = Field(None, description="Send one last chunk with empty `choices` and the `usage`.")


Stop = Annotated[
    Annotated[str, Field(min_length=1, max_length=STOP_CHARACTERS_MAX), Tag("$string")]
    | Annotated[
        list[Annotated[str, Field(min_length=1, max_length=STOP_CHARACTERS_MAX)]],
        Field(fail_fast=True, max_length=STOP_MAX),
        Tag("$list"),
    ],
    Discriminator(
        _string_or_list, custom_error_type="shape", custom_error_message="should be a string or a list of strings"
    ),
]


class Generation(_Open):
    """What both kinds of request have in common: the model, the stream, and how tokens are drawn."""

    model: str | None = Field(None, description="One of `/v1/models`; the server's first model if absent.")
    stream: bool | None = Field(None, description="Answer as server-sent events.")
    stream_options: StreamOptions | None = None
    max_tokens: Whole | None = Field(None, ge=1, le=TOKENS_MAX)
    temperature: float | None = Field(None, ge=0, le=2, allow_inf_nan=False, description="0 is greedy. Default 1.")
    top_p: float | None = Field(None, gt=0, le=1, allow_inf_nan=False)
    top_k: Whole | None = Field(None, ge=-1, le=TOKENS_MAX, description="-1 and 0: off.")
    min_p: float | None = Field(None, ge=0, le=1, allow_inf_nan=False)
    seed: Whole | None = Field(None, ge=SEED_MIN, le=SEED_MAX)
    stop: Stop | None = None
    n: Whole | None = Field(None, ge=1, le=CHOICES_MAX)
    presence_penalty: float | None = Field(None, ge=-2, le=2, allow_inf_nan=False)
    frequency_penalty: float | None = Field(None, ge=-2, le=2, allow_inf_nan=False)
    min_tokens: Whole | None = Field(None, ge=0, le=TOKENS_MAX)
    ignore_eos: bool | None = None


class ChatRequest(Generation):
    """Body of `POST /v1/chat/completions`."""

    messages: Annotated[list[Message], Field(fail_fast=True, min_length=1, max_length=MESSAGES_MAX)]
    max_completion_tokens: Whole | None = Field(None, ge=1, le=TOKENS_MAX, description="The same as `max_tokens`.")
    media_io_kwargs: MediaIo | None = None
    mm_processor_kwargs: ProcessorKwargs | None = None
    logprobs: bool | None = None
    top_logprobs: Whole | None = Field(None, ge=0, le=20)


class CompletionRequest(Generation):
    """Body of `POST /v1/completions`: text only. ``max_tokens`` is 16 if absent, as OpenAI's is."""

    prompt: Annotated[
        Annotated[str, Field(min_length=1), Tag("$string")]
        | Annotated[list[Annotated[str, Field(min_length=1)]], Field(min_length=1, max_length=1), Tag("$list")],
        Discriminator(
            _string_or_list,
            custom_error_type="shape",
            custom_error_message="should be a string (or a list of exactly one string)",
        ),
    ]
    logprobs: Whole | None = Field(None, ge=0, le=5)
