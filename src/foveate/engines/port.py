"""What Foveate asks of an engine.

Engine differences are data: ``accepts`` says in which form an engine takes pictures, and the journey prepares that form; ``features``
says which of the parameters that not every engine has it does.
Every implementation passes ``tests/contracts/test_engine_contract.py``.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, Literal, Protocol

import msgspec

from foveate.core.document import Document
from foveate.core.errors import ErrorRecord
from foveate.core.memory import Slot, TensorBundle
from foveate.core.request import Sampling
from foveate.core.stages import Span
from foveate.core.tool_use import ToolCallDelta, ToolUse

if TYPE_CHECKING:
    from foveate.engines.arrivals import Arrivals

Form = Literal["embeddings", "pixels", "bytes", "url"]
Role = Literal["pd", "p", "d"]
"""What a process does: prefill and token decode, or one of them."""
FinishReason = Literal["stop", "length", "abort", "tool_calls"]
NOT_THERE: Final = TensorBundle(Slot(0, 0), (), 0)
"""The embeddings of a picture that is still being encoded."""


class PictureInput(msgspec.Struct, frozen=True):
    """One picture of a prompt: its embeddings (:class:`foveate.core.media.EncodedImage`) and the processor's ``meta``.

    ``content`` names the embeddings: equal names mean equal embeddings, whenever and wherever they were made. Empty: unknown.
    What else is known of a picture is known before its embeddings are (``NOT_THERE``).
    """

    embeddings: TensorBundle
    rows: int
    meta: dict[str, list[int]]
    content: str = ""

    @property
    def there(self) -> bool:
        """Whether its embeddings are."""
        return self.embeddings.slot.size > 0


class PixelInput(msgspec.Struct, frozen=True):
    """One picture of a prompt as pixels, for an engine that has a processor and an encoder of its own.

    ``pixels`` holds one tensor of that name, uint8 [height, width, 3]; ``rows`` are the prompt's tokens that its embeddings take, and
    ``meta`` is what the engine's processor is told and held to (:mod:`foveate.models.pixels`). ``content`` as in :class:`PictureInput`.
    """

    pixels: TensorBundle
    rows: int
    meta: dict[str, list[int]]
    content: str = ""


class EngineWork(msgspec.Struct, frozen=True):
    """A prompt ready for prefill: token ids with every picture's placeholder already expanded, and the pictures: ``pictures``, or
    ``pixels`` where the engine takes those.

    ``sampling.tokens_max`` is at least 1 and already fits the context. ``deadline`` is monotonic seconds;
    past it the engine gives up the request. KV of this prompt may be reused for requests of the same ``scope`` only. An engine that
    traces puts its spans under ``trace``, the value of a ``traceparent`` header; empty where there is none. In a ``chat`` the answer may
    have reasoning and calls of tools, ``whole`` says that it is not sent before its end. ``deaths`` processes ended while they held it.
    """

    request_id: str
    token_ids: list[int]
    pictures: list[PictureInput]
    sampling: Sampling
    deadline: float
    scope: str = ""
    trace: str = ""
    tool_use: ToolUse | None = None
    chat: bool = False
    whole: bool = False
    pixels: list[PixelInput] = []
    deaths: int = 0

    @property
    def visuals(self) -> Sequence[PictureInput | PixelInput]:
        """The prompt's pictures in whichever form."""
        return self.pixels or self.pictures


class TokenLogprob(msgspec.Struct, frozen=True, array_like=True):
    """Log-probability of one token; ``text`` is the token's own text and ``bytes_`` its UTF-8 bytes (possibly part of a character)."""

    token_id: int
    text: str
    bytes_: bytes
    logprob: float


class TokenStep(msgspec.Struct, frozen=True, array_like=True):
    """The drawn token of one step with the alternatives asked for, most likely first."""

    chosen: TokenLogprob
    top: list[TokenLogprob]


class TokenEvent(msgspec.Struct, frozen=True, tag="token"):
    """New output of one choice. ``text`` never splits a character and may be empty; ``token_ids`` are those drawn since the last event.

    The first event of a request carries ``spans``: llm_queue and llm_prefill, the latter ending when the engine sent this event; where it
    took pixels, mm_processor before them and vision_encode in between, if there was any. ``reasoning`` and ``calls`` of tools are beside
    ``text``, of engines that tell them apart.
    It also carries ``prompt_logprobs``, where they were asked for: JSON as vLLM's, made where they are, as they may be many; and ``ahead``,
    the prompt's own prefill steps that ran before all of its pictures were known there to be there (:mod:`foveate.engines.arrivals`).
    """

    request_id: str
    choice: int
    text: str
    token_ids: list[int]
    steps: list[TokenStep] = []
    spans: tuple[Span, ...] = ()
    prompt_logprobs: bytes = b""
    reasoning: str = ""
    calls: list[ToolCallDelta] = []
    ahead: tuple[Span, ...] = ()


class FinishEvent(msgspec.Struct, frozen=True, tag="finish"):
    """A choice is complete. ``output_tokens`` counts its tokens, the end-of-sequence token included; ``cached_tokens`` are prompt tokens
    whose KV was reused. ``last`` is true on the last choice to finish: nothing of the request follows, and everything it held is free.
    ``token_ms``, on that event: the time of all engine steps that the request's tokens had a part in, each step's split evenly over its
    tokens; 0 where the engine does not say. ``stopped_by`` is the stop string or token id that ended the choice, of those that the client
    gave.
    """

    request_id: str
    choice: int
    reason: FinishReason
    output_tokens: int
    last: bool
    cached_tokens: int = 0
    token_ms: float = 0.0
    stopped_by: str | int | None = None


class FailEvent(msgspec.Struct, frozen=True, tag="fail"):
    """The request failed as a whole; nothing of it follows, and everything it held is free."""

    request_id: str
    error: ErrorRecord


EngineEvent = TokenEvent | FinishEvent | FailEvent


class RelayedMedia(msgspec.Struct, frozen=True):
    """One picture or video of a request that is passed on.

    ``name`` is what it is called at an upstream: made of its content and of whoever may share it, so that equal names are equal bytes.
    ``slots`` are its encoded bytes in the arena, of type ``mime``, in one piece, or a list of frames frame by frame; empty where there are
    none here, and only its name can be sent. ``url`` is the client's own, for upstreams that are given those; None where it had none.
    ``tokens`` are the prompt tokens that it stands for, exact or as good as they are known. ``embeddings`` is set where those go on
    instead of bytes.
    """

    name: str
    mime: str
    slots: tuple[Slot, ...]
    url: str | None
    tokens: int
    embeddings: PictureInput | None = None


class RelayWork(msgspec.Struct, frozen=True):
    """A request to be passed on to a server behind this one.

    ``media`` fill the document's holes. ``text_tokens`` is a guess, made of the text's length, good enough to weigh requests against each
    other. ``salt`` keeps what an upstream caches of it from other tenants; empty where they may share. ``usage``: the client asked for it
    in a stream. ``deadline`` is monotonic seconds. ``only``: the one server that may be asked. ``trace`` is as in :class:`EngineWork`.
    """

    request_id: str
    kind: Literal["chat", "completion"]
    model: str
    document: Document
    media: tuple[RelayedMedia, ...]
    text_tokens: int
    stream: bool
    usage: bool
    salt: str
    deadline: float
    only: str = ""
    trace: str = ""


class RelayUsage(msgspec.Struct, frozen=True):
    """What an upstream says of a request when it ends, None where it says nothing. Times in milliseconds, as it measured them."""

    prompt_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None
    queue_ms: float | None = None
    prefill_ms: float | None = None


class RelayEvent(msgspec.Struct, frozen=True):
    """A piece of the answer, ready to be sent to the client: frames of a stream, or the whole answer at once.

    ``outputs`` are the choices that have new output in it. The first event begins the answer and carries ``spans``: llm_queue, the wait for
    a place at an upstream, and upstream, from there to the first output. ``usage`` is set on the ``last`` event. ``server`` is the
    upstream's name.
    """

    data: bytes
    outputs: tuple[int, ...] = ()
    spans: tuple[Span, ...] = ()
    usage: RelayUsage | None = None
    last: bool = False
    server: str = ""


class EngineInfo(msgspec.Struct, frozen=True):
    """What an engine says of itself once it is ready.

    ``embedding_bytes_per_row`` counts one embedding row with all its DeepStack levels, in the encoder's dtype, ``embedding_dtype``, 0 where
    pictures go in as pixels; ``embedding_levels`` counts the main one too. A prefilled prompt takes
    ``kv_bytes_per_token`` for each of its tokens, and ``kv_bytes_fixed`` once; 0 where the engine hands none on.
    """

    model: str
    encoder_version: str
    embedding_bytes_per_row: int
    context_tokens_max: int
    kv_bytes_per_token: int = 0
    kv_bytes_fixed: int = 0
    picture_token_id: int = -1
    """The id that stands in a prompt for each row of a picture; -1: none does."""
    embedding_dtype: str = "float32"
    embedding_levels: int = 1


class EngineReport(msgspec.Struct, frozen=True):
    """One engine process. ``usable`` is true when it is well; ``draining``: it is given nothing new all the same; ``leaving``: because it
    ends when it has finished what it has. ``outstanding_tokens`` are prompt tokens that it has still to prefill, and a little for each
    stream.
    """

    name: str
    usable: bool
    restarts: int
    in_flight: int
    outstanding_tokens: float
    role: Role = "pd"
    draining: bool = False
    leaving: bool = False


class Engine(Protocol):
    """A language model that answers prompts, in one process or several."""

    accepts: frozenset[Form]
    features: frozenset[str]
    """What it does beside what every engine does: names of :data:`foveate.core.request.OPTIONAL`, ``tools``,
    :data:`foveate.core.tool_use.AUTO_FEATURE`, :data:`foveate.engines.arrivals.OVERLAP`. The journey refuses the rest, or does without."""

    @property
    def ready(self) -> bool:
        """Whether a request can be answered now."""
        ...

    @property
    def info(self) -> EngineInfo:
        """What the engine said of itself; only after it was ready once."""
        ...

    async def start(self) -> None:
        """Load and wait until ready. Raises StartupError."""
        ...

    def generate(self, work: EngineWork, arrivals: Arrivals | None = None) -> AsyncGenerator[EngineEvent, None]:
        """Answer one prompt. An engine that can (``OVERLAP``) is given pictures that are not there yet, with the ``arrivals`` that bring
        them; it yields nothing before all have come.

        The iterator ends after the event that is ``last``. Closing it early cancels the request at once. Raises QueueFull,
        EngineUnavailable, EngineDied (what it was given to ended; another try may be answered) or EngineFailed instead of yielding
        :class:`FailEvent`.
        """
        ...

    def report(self) -> tuple[EngineReport, ...]:
        """Tell about every process, in order; a process has the same name for as long as it is there."""
        ...

    def drain(self, name: str, *, draining: bool) -> EngineReport:
        """Give a process nothing new, or let it have requests again; those under way go on. Raises EngineUnknown."""
        ...

    async def stop(self, *, seconds_max: float) -> None:
        """End the engine."""
        ...


RelayOutcome = Literal["answered", "refused", "busy", "failed", "cancelled"]


class RelayReport(msgspec.Struct, frozen=True):
    """One server behind this one. ``share`` is the part of its capacity that it may be given now; ``outstanding_tokens`` are prompt tokens
    that it has still to prefill, and a little for each stream. ``resent`` counts requests whose media it no longer held when they were
    only named. ``error`` is why it is not up; empty when it is. ``up``: it is ``healthy``, and where it is sent embeddings it was found to
    answer by them as by pixels.
    """

    name: str
    models: tuple[str, ...]
    up: bool
    draining: bool
    share: float
    in_flight: int
    outstanding_tokens: float
    ended: Mapping[RelayOutcome, int]
    resent: int
    error: str
    healthy: bool = True


class Relay(Protocol):
    """Servers behind this one, which answer requests as clients wrote them."""

    @property
    def ready(self) -> bool:
        """Whether any server can be asked now."""
        ...

    @property
    def models(self) -> tuple[str, ...]:
        """The models that they serve, by the names that clients use."""
        ...

    def context_tokens_max(self, model: str) -> int:
        """The model's context, as far as the servers tell; 0: not known."""
        ...

    @property
    def takes_embeddings(self) -> bool:
        """Whether pictures go on as embeddings, to all servers."""
        ...

    def needs_bytes(self, model: str) -> bool:
        """Whether any server of this model is sent media as bytes, so that they have to be fetched."""
        ...

    @property
    def waiting(self) -> int:
        """Requests that wait for a place at any server."""
        ...

    def report(self) -> tuple[RelayReport, ...]:
        """Tell about every server, in the order of the configuration."""
        ...

    def drain(self, name: str, *, draining: bool) -> RelayReport:
        """Send a server nothing new, or let it have requests again; those under way go on. Raises UpstreamUnknown."""
        ...

    def agrees(self, name: str) -> None:
        """Let a server have embeddings: it was found to answer by them as by pixels."""
        ...

    def hold_to(self, check: Callable[[str, str], Awaitable[str]]) -> None:
        """From now on, give a server that came up no embeddings before ``check`` was asked about it (its name, one of its models) and
        returned no reason against it.
        """
        ...

    def forward(self, work: RelayWork) -> AsyncGenerator[RelayEvent, None]:
        """Have one of the servers answer.

        The iterator ends after the event that is ``last``. Closing it early closes the connection at once. Nothing is read of a medium's
        slot after the first event, or after it was closed. Raises Refused (as an upstream did), MediaNotHeld, QueueFull, UpstreamBusy,
        UpstreamUnavailable, UpstreamFailed.
        """
        ...
