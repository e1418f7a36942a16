"""What a client may send: the request bodies as pydantic models, validated straight from bytes.

Covers types, ranges and the shape of messages; how tokens are drawn is in :mod:`foveate.api.schema_generation`. Rules
between fields, and everything that the schema does not declare, are in :mod:`foveate.api.convert` and
:mod:`foveate.api.parameters`. The models are strict: ``"1"`` is not a number, ``true`` is not 1, and NaN and infinities
are refused.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, BeforeValidator, Discriminator, Field, Tag

from foveate.api.schema_base import TAG_MARK, Open, Whole, string_or_list
from foveate.api.schema_generation import TOKENS_MAX, Generation
from foveate.api.schema_tools import ID_CHARACTERS_MAX, Calls, ToolChoice, Tools

MESSAGES_MAX: Final = 2048
PARTS_MAX: Final = 2048
UUID_CHARACTERS_MAX: Final = 256


PART_TYPES: Final = ("text", "image_url", "video_url", "input_video", "image_embeds")


def _string_or_object(value: Any) -> str | None:
    if isinstance(value, str):
        return "$string"
    return "$object" if isinstance(value, dict | BaseModel) else None


def _part_type(value: Any) -> str | None:
    kind = value.get("type") if isinstance(value, dict) else getattr(value, "type", None)
    return f"{TAG_MARK}{kind}" if kind in PART_TYPES else None


def _allowed(value: Any) -> Any:
    """vLLM's clients write -1 for "as many as there are"; here that is as many as the budget allows."""
    return None if value == -1 and not isinstance(value, bool) else value


def _lower(value: Any) -> Any:
    return value.lower() if isinstance(value, str) else value


class ImageUrl(Open):
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


class TextContent(Open):
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


class ImageContent(Open):
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


class VideoSampling(Open):
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


class VideoContent(Open):
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


class InputVideoContent(Open):
    """A video in the request itself, at its place among the text."""

    type: Literal["input_video"]
    input_video: InputVideo
    uuid: Uuid = None


class ImageEmbeds(Open):
    """A picture's embeddings with the grid of patches that they were made of, for models that have one."""

    image_embeds: str = Field(min_length=1, description="Base64 of a `torch.save` or `.npy` file: [rows, width].")
    image_grid_thw: (
        Annotated[
            Annotated[list[Whole], Field(min_length=3, max_length=3), Tag("$list")]
            | Annotated[str, Field(min_length=1, max_length=8192), Tag("$string")],
            Discriminator(
                string_or_list,
                custom_error_type="shape",
                custom_error_message="should be [1, height, width], or base64",
            ),
        ]
        | None
    ) = Field(None, description="`[1, height, width]` in patches, or base64 of a tensor of these.")


class ImageEmbedsContent(Open):
    """A picture's embeddings that the client computed itself, in place of the picture. Only where `media.client_embeddings` allows it."""

    type: Literal["image_embeds"]
    image_embeds: (
        Annotated[
            Annotated[ImageEmbeds, Tag("$object")] | Annotated[str, Field(min_length=1), Tag("$string")],
            Discriminator(
                _string_or_object,
                custom_error_type="shape",
                custom_error_message="should be base64, or an object with image_embeds and image_grid_thw",
            ),
        ]
        | None
    ) = None
    uuid: Uuid = None


class MediaIo(Open):
    """vLLM's place for what concerns all media of a request. What a part says itself counts before it."""

    video: VideoSampling | None = None


Pixels = Annotated[Whole, Field(ge=1, le=TOKENS_MAX)] | None


class ProcessorSize(Open):
    """The picture processor's own `size`: numbers of pixels for Qwen's, a longest side for Pixtral's and Idefics3's."""

    shortest_edge: Pixels = None
    longest_edge: Pixels = None


class ProcessorKwargs(Open):
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
                | Annotated[InputVideoContent, Tag("$input_video")]
                | Annotated[ImageEmbedsContent, Tag("$image_embeds")],
                Discriminator(
                    _part_type,
                    custom_error_type="shape",
                    custom_error_message="should be an object whose type is text, image_url, video_url, input_video or image_embeds",
                ),
            ]
        ],
        Field(fail_fast=True, min_length=1, max_length=PARTS_MAX),
        Tag("$list"),
    ],
    Discriminator(
        string_or_list, custom_error_type="shape", custom_error_message="should be a string or a list of content parts"
    ),
]


class Message(Open):
    """One turn of the conversation. ``developer`` means the same as ``system``."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Content | None = Field(None, description="A string or a list of parts; null only for the assistant.")
    tool_calls: Calls | None = Field(None, description="What the assistant asked to have called in this turn.")
    tool_call_id: str | None = Field(
        None, max_length=ID_CHARACTERS_MAX, description="Which call a turn of the role `tool` answers."
    )


class ChatRequest(Generation):
    """Body of `POST /v1/chat/completions`."""

    messages: Annotated[list[Message], Field(fail_fast=True, min_length=1, max_length=MESSAGES_MAX)]
    max_completion_tokens: Whole | None = Field(None, ge=1, le=TOKENS_MAX, description="The same as `max_tokens`.")
    tools: Tools | None = None
    tool_choice: ToolChoice | None = Field(None, description="Default: auto where there are tools, else none.")
    parallel_tool_calls: bool | None = Field(None, description="Default true. False: at most one call.")
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
            string_or_list,
            custom_error_type="shape",
            custom_error_message="should be a string (or a list of exactly one string)",
        ),
    ]
    logprobs: Whole | None = Field(None, ge=0, le=5)
