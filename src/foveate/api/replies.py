"""What the server answers, as msgspec structs: the same types are encoded onto the wire and documented in the OpenAPI
document.

The shapes are OpenAI's. Additions: ``usage.prompt_tokens_details.image_tokens`` (prompt tokens that are pictures or frames of
videos), ``.images`` and ``.frames`` (those that the model saw), and ``max_model_len`` of a model, as vLLM has it. ``finish_reason`` may be
``abort``, as in vLLM, when the server gave up; ``stop_reason`` is its too: the stop string or token id that ended a choice, there only
where one did, and so is ``prompt_logprobs``, where it was asked for. ``foveate`` is there only when something was changed to fit a budget.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Literal

import msgspec

from foveate.api.errors import part_of
from foveate.core.budget import Adjustment
from foveate.engines.port import EngineReport, RelayReport
from foveate.journey.port import Usage

FinishReason = Literal["stop", "length", "abort", "tool_calls"]


class PromptTokensDetails(msgspec.Struct, frozen=True):
    """Where the prompt's tokens came from."""

    cached_tokens: int
    image_tokens: int
    images: int
    frames: int


class UsageReply(msgspec.Struct, frozen=True):
    """Tokens of a request; those of the completion are summed over choices, a picture counts once whatever ``n`` is."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails


def usage_reply(usage: Usage) -> UsageReply:
    """Return the usage as OpenAI spells it."""
    return UsageReply(
        usage.prompt_tokens,
        usage.completion_tokens,
        usage.prompt_tokens + usage.completion_tokens,
        PromptTokensDetails(usage.cached_tokens, usage.visual_tokens, usage.images, usage.frames),
    )


class TopLogprob(msgspec.Struct, frozen=True):
    """One alternative of a token. ``bytes`` are its UTF-8 bytes, possibly part of a character."""

    token: str
    logprob: float
    bytes: list[int]


class RankedLogprob(msgspec.Struct, frozen=True):
    """One token at a place of the prompt; ``rank`` 1 is the likeliest there."""

    logprob: float
    rank: int | None
    decoded_token: str | None


PromptLogprobs = list[dict[str, RankedLogprob] | None]
"""By token id, for each token of the prompt; the first has none. As vLLM's."""


class ChatTokenLogprob(msgspec.Struct, frozen=True):
    """The drawn token and its alternatives, most likely first."""

    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[TopLogprob]


class ChatLogprobs(msgspec.Struct, frozen=True):
    """Log-probabilities of a chat choice."""

    content: list[ChatTokenLogprob]
    refusal: None = None


class CalledFunction(msgspec.Struct, frozen=True):
    """The function that is to be called. ``arguments`` is the text of a JSON object, as the model wrote it."""

    name: str
    arguments: str


class ToolCallReply(msgspec.Struct, frozen=True):
    """A call that the model asks for."""

    id: str
    function: CalledFunction
    type: Literal["function"] = "function"


class ChatReplyMessage(msgspec.Struct, frozen=True):
    """The assistant's turn. ``content`` is null only beside calls or reasoning; both are absent where there are none.

    ``reasoning`` is vLLM's name of it, ``reasoning_content`` the older one that many clients know: both hold the same.
    """

    content: str | None
    role: Literal["assistant"] = "assistant"
    refusal: None = None
    tool_calls: list[ToolCallReply] | msgspec.UnsetType = msgspec.UNSET
    reasoning: str | msgspec.UnsetType = msgspec.UNSET
    reasoning_content: str | msgspec.UnsetType = msgspec.UNSET


class ChatChoice(msgspec.Struct, frozen=True):
    """One answer."""

    index: int
    message: ChatReplyMessage
    logprobs: ChatLogprobs | None
    finish_reason: FinishReason
    stop_reason: int | str | msgspec.UnsetType = msgspec.UNSET


class AdjustmentReply(msgspec.Struct, frozen=True):
    """What was changed to make one medium fit: ``before`` and ``after`` are sizes or counts in words.

    ``part`` is the content part's index in its message, ``limit_name`` a field of ``/v1/budget``.
    """

    part: int
    param: str
    limit_name: str
    before: str
    after: str


class FoveateNote(msgspec.Struct, frozen=True):
    """What this server has to add to an answer."""

    adjustments: list[AdjustmentReply]


def adjustment_replies(adjustments: Iterable[Adjustment]) -> list[AdjustmentReply]:
    """Return adjustments as clients are told them."""
    return [
        AdjustmentReply(part_of(one.param, one.part), one.param, one.limit_name, one.before, one.after)
        for one in adjustments
    ]


class ChatCompletion(msgspec.Struct, frozen=True):
    """Answer of `POST /v1/chat/completions`. ``foveate`` is there only if something was changed to fit the caller's budget."""

    id: str
    created: int
    model: str
    choices: list[ChatChoice]
    usage: UsageReply
    object: Literal["chat.completion"] = "chat.completion"
    foveate: FoveateNote | msgspec.UnsetType = msgspec.UNSET
    prompt_logprobs: PromptLogprobs | msgspec.UnsetType = msgspec.UNSET


class FunctionDelta(msgspec.Struct, frozen=True, omit_defaults=True):
    """What is new in a call: its name first, then parts of its arguments' text."""

    name: str | None = None
    arguments: str | None = None


class ToolCallDeltaReply(msgspec.Struct, frozen=True, omit_defaults=True):
    """News of one call. ``id`` and ``type`` come with its first."""

    index: Annotated[int, msgspec.Meta(ge=0)]
    function: FunctionDelta
    id: str | None = None
    type: Literal["function"] | None = None


class Delta(msgspec.Struct, frozen=True, omit_defaults=True):
    """What is new in a choice since its last chunk."""

    role: Literal["assistant"] | None = None
    content: str | None = None
    tool_calls: list[ToolCallDeltaReply] | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None


class ChatChunkChoice(msgspec.Struct, frozen=True):
    """News of one choice."""

    index: int
    delta: Delta
    logprobs: ChatLogprobs | None = None
    finish_reason: FinishReason | None = None
    stop_reason: int | str | msgspec.UnsetType = msgspec.UNSET


class ChatChunk(msgspec.Struct, frozen=True):
    """One `data:` frame of a streamed chat completion. ``usage`` is there only if it was asked for: null, and set in
    the last chunk. ``foveate`` is there only in the first one, if something was changed to fit the caller's budget.
    """

    id: str
    created: int
    model: str
    choices: list[ChatChunkChoice]
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    usage: UsageReply | msgspec.UnsetType | None = msgspec.UNSET
    foveate: FoveateNote | msgspec.UnsetType = msgspec.UNSET


class CompletionLogprobs(msgspec.Struct, frozen=True):
    """Log-probabilities of a text choice; the four lists have an entry a token, ``text_offset`` counts characters from
    the choice's start.
    """

    tokens: list[str]
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float]]
    text_offset: list[int]


class CompletionChoice(msgspec.Struct, frozen=True):
    """One answer, or in a stream the news of one."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None = None
    finish_reason: FinishReason | None = None
    stop_reason: int | str | msgspec.UnsetType = msgspec.UNSET
    prompt_logprobs: PromptLogprobs | msgspec.UnsetType = msgspec.UNSET


class Completion(msgspec.Struct, frozen=True):
    """Answer of `POST /v1/completions`, and (with ``usage`` only if asked for) one `data:` frame of its stream."""

    id: str
    created: int
    model: str
    choices: list[CompletionChoice]
    object: Literal["text_completion"] = "text_completion"
    usage: UsageReply | msgspec.UnsetType | None = msgspec.UNSET


class Model(msgspec.Struct, frozen=True):
    """A model that is served. ``created`` is when the server started; ``max_model_len`` is absent where it is not known."""

    id: str
    created: int
    max_model_len: int | msgspec.UnsetType = msgspec.UNSET
    object: Literal["model"] = "model"
    owned_by: str = "foveate"


class ModelList(msgspec.Struct, frozen=True):
    """The models that are served."""

    data: list[Model]
    object: Literal["list"] = "list"


class Health(msgspec.Struct, frozen=True):
    """The process is up; whether it can answer is `/ready`."""

    status: Literal["ok"] = "ok"


class Ready(msgspec.Struct, frozen=True):
    """Whether a request can be answered now, and if not, why."""

    ready: bool
    reason: str


class Version(msgspec.Struct, frozen=True):
    """The server's version."""

    version: str


class Upstreams(msgspec.Struct, frozen=True):
    """The servers behind this one, in the order of the settings; none where the model runs here."""

    upstreams: list[RelayReport]


class Engines(msgspec.Struct, frozen=True):
    """The engine's processes, by their places; none where the servers behind this one answer."""

    engines: list[EngineReport]
