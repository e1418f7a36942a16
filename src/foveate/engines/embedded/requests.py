"""One request inside the engine: its prompt, its choices, and what each choice's next token means for the client."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import msgspec

from foveate.core.memory import Slot
from foveate.core.request import Sampling
from foveate.core.stages import Span
from foveate.decisions.batching import PromptView
from foveate.engines.embedded.detokenize import Detokenizer, Vocabulary
from foveate.engines.embedded.messages import Prefill, Prefilled, Starts, TokenDecode
from foveate.engines.embedded.prefixes import Prefix, Prompt
from foveate.engines.embedded.sampling import RowSampling
from foveate.engines.embedded.stop_strings import StopStrings
from foveate.engines.port import EngineWork, FinishReason
from foveate.models.port import Picture, Positions


class Choice:
    """One answer of a request while it is generated."""

    def __init__(self, index: int, row: RowSampling, vocabulary: Vocabulary) -> None:
        self.index = index
        self.row = row
        self.last_token = -1
        self.next_position = 0
        self._detokenizer: Detokenizer = vocabulary.detokenizer()
        self._stops = StopStrings(row.sampling.stop)

    def accept(self, token_id: int, end_tokens: frozenset[int]) -> tuple[str, FinishReason | None]:
        """Take the drawn token; return the text that may be sent and, when it ends the choice, why."""
        sampling = self.row.sampling
        self.row.record(token_id)
        self.last_token = token_id
        ended = token_id in end_tokens and not sampling.ignore_eos
        text = "" if ended else self._detokenizer.feed(token_id)
        if ended or self.row.drawn >= sampling.tokens_max:
            text += self._detokenizer.flush()
            text, stopped = self._until_stop(text)
            reason: FinishReason = "stop" if ended or stopped else "length"
            return (text if stopped else text + self._stops.flush()), reason
        text, stopped = self._until_stop(text)
        return text, "stop" if stopped else None

    def _until_stop(self, text: str) -> tuple[str, bool]:
        # As in vLLM, text within the minimum of tokens cannot be ended by a stop string.
        return (text, False) if self.row.drawn <= self.row.sampling.tokens_min else self._stops.feed(text)


@dataclass(slots=True, eq=False)
class Job:
    """A request from its receipt to its end. ``pictures``, ``positions`` and ``cache`` exist only during prefill.

    ``prefix`` is the kept prompt that its prefill will start from, ``cached_tokens`` how many of its tokens, and ``searched`` up to
    which change of what is kept it was looked for. ``token_ms`` is its share of the steps so far.

    ``out`` is where the K/V go of a prompt that another process goes on with; ``given`` are those of one that another prefilled, and
    ``before`` the spans of that.
    """

    work: EngineWork
    submitted_at: float
    view: PromptView
    started_at: float = 0.0
    pictures: list[Picture] = field(default_factory=list)
    positions: Positions | None = None
    next_position: int = 0
    cache: Any = None
    open_choices: int = 0
    prompt: Prompt | None = None
    prefix: Prefix | None = None
    cached_tokens: int = 0
    searched: int = -1
    token_ms: float = 0.0
    out: Slot | None = None
    given: Prefilled | None = None
    before: tuple[Span, ...] = ()

    @property
    def id(self) -> str:
        """The request's id."""
        return self.work.request_id

    @property
    def sampling(self) -> Sampling:
        """The request's sampling parameters."""
        return self.work.sampling

    def end_prefill(self) -> None:
        """Give back what only prefill needs."""
        self.pictures, self.positions, self.cache, self.prefix, self.prompt = [], None, None, None, None


@dataclass(slots=True)
class Row:
    """One row of the running batch."""

    job: Job
    choice: Choice


def prompt_view(message: Starts, borders: Any) -> PromptView:
    """Return what the batching decision needs to know of a new request."""
    work, sampling = message.work, message.work.sampling
    tokens, pictures = len(work.token_ids), bool(work.pictures)
    if isinstance(message, Prefill):
        return PromptView(tokens, 0, 0, borders=borders, pictures=pictures)
    done = tokens if isinstance(message, TokenDecode) else 0
    return PromptView(tokens, sampling.tokens_max, sampling.n, done, borders=borders, pictures=pictures)


def new_job(message: Starts, borders: Any) -> Job:
    """Return a request as it enters."""
    view = prompt_view(message, borders)
    if isinstance(message, Prefill):
        return Job(message.work, message.submitted_at, view, out=message.out)
    if not isinstance(message, TokenDecode):
        return Job(message.work, message.submitted_at, view)
    given = message.prefilled
    return Job(
        message.work,
        given.written_at,
        view,
        cached_tokens=given.cached_tokens,
        token_ms=given.token_ms,
        given=given,
        before=(
            Span("llm_queue", message.submitted_at, given.started_at),
            Span("llm_prefill", given.started_at, given.written_at),
        ),
    )


def progressed(view: PromptView, done: int | None) -> PromptView:
    """Return the view after a plan: prefilled up to ``done``, or passed over (``None``)."""
    if done is None:
        return msgspec.structs.replace(view, skipped=view.skipped + 1)
    return msgspec.structs.replace(view, done=done, skipped=0)
