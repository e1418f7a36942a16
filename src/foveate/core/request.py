"""A request as the rest of Foveate knows it, whatever API shape it arrived in."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final, Literal

import msgspec

from foveate.core.budget import Caller
from foveate.core.constraint import Constraint
from foveate.core.document import Document
from foveate.core.media import Detail, MediaRef, ProcessorOptions
from foveate.core.tool_use import ToolCall, ToolUse
from foveate.core.trace_context import TraceContext

Role = str


class TextPart(msgspec.Struct, frozen=True, tag="text"):
    """Text of one content part; ordinary text even where it spells one of the model's special tokens."""

    text: str


class ImagePart(msgspec.Struct, frozen=True, tag="image"):
    """A picture. ``index`` counts the request's media (pictures and videos) in prompt order; ``param`` is its place in the body.

    Error answers and adjustments name a medium by these two.
    """

    index: int
    param: str
    ref: MediaRef
    detail: Detail = "auto"
    uuid: str | None = None


class VideoPart(msgspec.Struct, frozen=True, tag="video"):
    """A video, of which a bounded list of frames becomes pictures. ``index`` and ``param`` as in :class:`ImagePart`.

    ``num_frames`` (1 or more) and ``fps`` (more than 0) ask for fewer frames than the caller's budget allows: ``num_frames`` lowers
    ``max_video_frames``, ``fps`` samples that many frames a second instead of what the budget says. Neither can raise a limit.
    """

    index: int
    param: str
    ref: MediaRef
    uuid: str | None = None
    num_frames: int | None = None
    fps: float | None = None


MediaPart = ImagePart | VideoPart
Part = TextPart | ImagePart | VideoPart


class Turn(msgspec.Struct, frozen=True):
    """One message of a conversation, its parts in the client's order.

    ``tool_calls`` are what the assistant asked to have called in it; ``tool_call_id`` is the call that it answers, or empty.
    """

    role: Role
    parts: tuple[Part, ...]
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str = ""


class Repetition(msgspec.Struct, frozen=True):
    """When to end an answer that repeats itself: a pattern of ``min_pattern_size`` to ``max_pattern_size`` tokens, ``min_count`` times."""

    max_pattern_size: int
    min_pattern_size: int
    min_count: int


class Sampling(msgspec.Struct, frozen=True):
    """How tokens are drawn and when to stop. Field names and meanings are OpenAI's and, where OpenAI has none, vLLM's.

    ``logprobs`` is the number of alternatives to report a token (0: only the drawn one; None: nothing). ``temperature`` 0 is greedy.
    What is in :data:`OPTIONAL` only some engines can do: each says which (``Engine.features``). ``prompt_logprobs`` is as ``logprobs``, of
    every token of the prompt; ``logprob_token_ids`` are reported in place of the likeliest alternatives.
    """

    tokens_max: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    n: int = 1
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logprobs: int | None = None
    tokens_min: int = 0
    ignore_eos: bool = False
    repetition_penalty: float = 1.0
    logit_bias: dict[int, float] = {}
    stop_token_ids: tuple[int, ...] = ()
    bad_words: tuple[str, ...] = ()
    allowed_token_ids: tuple[int, ...] = ()
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    prompt_logprobs: int | None = None
    logprob_token_ids: tuple[int, ...] = ()
    thinking_token_budget: int | None = None
    repetition_detection: Repetition | None = None
    stream_interval: int | None = None
    structured_outputs: Constraint | None = None

    def beyond(self, features: Collection[str]) -> str | None:
        """Return the first parameter that is set and not among ``features``, or None."""
        return next(
            (name for name, default in OPTIONAL.items() if getattr(self, name) != default and name not in features),
            None,
        )


OPTIONAL: Final[Mapping[str, object]] = {
    name: getattr(Sampling(1), name)
    for name in Sampling.__struct_fields__[Sampling.__struct_fields__.index("repetition_penalty") :]
}
"""The parameters that not every engine has, and what each is when it is not set."""


class Truncation(msgspec.Struct, frozen=True):
    """Keep at most ``tokens`` of a prompt (-1: as many as the context has room for), its beginning or its end."""

    tokens: int
    keep: Literal["beginning", "end"] = "end"


class Request(msgspec.Struct, frozen=True):
    """A validated request. Exactly one of ``turns`` (chat) and ``prompt`` (plain completion) is set.

    ``received_at`` is when the last byte of the body had arrived (monotonic seconds): time to first token counts from here.
    ``caller`` says who asks, and carries the budget that holds for the whole request.
    ``trace`` is the caller's trace, if it said so.
    ``processor`` holds for all of its media. ``sampling.tokens_max`` of 0 means "as much as fits the context".
    ``document`` is what the client wrote, for a server that passes it on; the other fields then say only what this server needs to know.
    ``truncation`` shortens a prompt of text that is too long.
    """

    id: str
    model: str
    kind: Literal["chat", "completion"]
    sampling: Sampling
    received_at: float
    turns: tuple[Turn, ...] = ()
    prompt: str | None = None
    stream: bool = False
    include_usage: bool = False
    continuous_usage: bool = False
    caller: Caller = Caller()
    processor: ProcessorOptions = ProcessorOptions()
    trace: TraceContext | None = None
    document: Document | None = None
    truncation: Truncation | None = None
    tool_use: ToolUse | None = None

    @property
    def images(self) -> list[ImagePart]:
        """The pictures in prompt order."""
        return [part for turn in self.turns for part in turn.parts if isinstance(part, ImagePart)]

    @property
    def videos(self) -> list[VideoPart]:
        """The videos in prompt order."""
        return [part for turn in self.turns for part in turn.parts if isinstance(part, VideoPart)]

    @property
    def media(self) -> list[MediaPart]:
        """Pictures and videos in prompt order."""
        return [part for turn in self.turns for part in turn.parts if not isinstance(part, TextPart)]
