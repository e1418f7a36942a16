"""One request inside the engine: its prompt, its choices, and what each choice's next token means for the client."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from foveate.core.errors import EngineFailed
from foveate.core.memory import Slot
from foveate.core.request import Sampling
from foveate.core.stages import Span
from foveate.decisions.batching import PromptView
from foveate.engines.embedded.detokenize import Detokenizer, Vocabulary
from foveate.engines.embedded.messages import Prefill, Prefilled, Starts, TokenDecode
from foveate.engines.embedded.prefixes import Prefix, Prompt
from foveate.engines.embedded.sampling import RowSampling
from foveate.engines.embedded.stop_strings import StopStrings
from foveate.engines.messages import PictureReady
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

    ``hands_on``: another process goes on with the prompt, whose K/V go to ``out``; ``given`` are those of one that another prefilled, and
    ``before`` the spans of that.

    Where some of its pictures were not there at first, ``starts`` are the places where each one's rows begin, ``arrived`` the pictures that
    came since its prefill last ran, and ``ahead`` its steps that ran before all were there.
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
    hands_on: bool = False
    out: Slot | None = None
    given: Prefilled | None = None
    before: tuple[Span, ...] = ()
    starts: Sequence[int] = ()
    arrived: list[int] = field(default_factory=list)
    ahead: list[Span] = field(default_factory=list)

    @property
    def id(self) -> str:
        """The request's id."""
        return self.work.request_id

    @property
    def sampling(self) -> Sampling:
        """The request's sampling parameters."""
        return self.work.sampling

    def arrive(self, message: PictureReady) -> None:
        """Take a picture that was not there. Raises EngineFailed when it is not the one that was announced, or ``out`` is missing."""
        index, picture = message.index, message.picture
        known = self.work.pictures[index]
        if known.there or not picture.there or (picture.rows, picture.meta) != (known.rows, known.meta):
            raise EngineFailed(detail=f"picture {index} came as another than it was announced")
        pictures = [*self.work.pictures[:index], picture, *self.work.pictures[index + 1 :]]
        self.work = msgspec.structs.replace(self.work, pictures=pictures)
        self.arrived.append(index)
        self.view = msgspec.structs.replace(self.view, ready=ready_until(self.work, self.starts, self.view.borders))
        if self.hands_on and not self.view.held:
            if message.out is None:
                raise EngineFailed(detail="all pictures are there, but no place for the prompt's K/V")
            self.out = message.out

    def give_way(self) -> None:
        """Forget what was prefilled, and wait again."""
        self.end_prefill()
        self.cached_tokens, self.searched = 0, -1
        self.ahead.clear()
        self.view = msgspec.structs.replace(self.view, done=0)

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


def new_job(message: Starts, borders: Any, picture_token_id: int) -> Job:
    """Return a request as it enters. Raises EngineFailed when pictures are missing that do not fit the prompt."""
    view = prompt_view(message, borders)
    if not isinstance(message, TokenDecode):
        work = message.work
        job = Job(work, message.submitted_at, view)
        if isinstance(message, Prefill):
            job.hands_on, job.out = True, message.out
        if not all(picture.there for picture in work.pictures):
            job.starts = picture_starts(work, picture_token_id)
            job.view = msgspec.structs.replace(view, ready=ready_until(work, job.starts, borders))
        return job
    given = message.prefilled
    return Job(
        message.work,
        given.written_at,
        view,
        cached_tokens=given.cached_tokens,
        token_ms=given.token_ms,
        given=given,
        ahead=list(given.ahead),
        before=(
            Span("llm_queue", message.submitted_at, given.started_at),
            Span("llm_prefill", given.started_at, given.written_at),
        ),
    )


def picture_starts(work: EngineWork, picture_token_id: int) -> list[int]:
    """Return where the rows of each of the prompt's pictures begin. Raises EngineFailed when its tokens for them are not as many."""
    places = [place for place, token in enumerate(work.token_ids) if token == picture_token_id]
    starts: list[int] = []
    rows = 0
    for picture in work.pictures:
        starts += places[rows : rows + 1]
        rows += picture.rows
    if rows != len(places) or len(starts) < len(work.pictures):
        raise EngineFailed(detail=f"{len(places)} picture tokens in the prompt, {rows} embedding rows")
    return starts


def ready_until(work: EngineWork, starts: Sequence[int], borders: Sequence[int] | None) -> int | None:
    """Return the last border before the first picture that is not there; ``None`` when all are."""
    missing = next((index for index, picture in enumerate(work.pictures) if not picture.there), None)
    if missing is None:
        return None
    start = starts[missing]
    if borders is None:
        return start
    place = bisect_right(borders, start)
    return borders[place - 1] if place else 0


def progressed(view: PromptView, done: int | None) -> PromptView:
    """Return the view after a plan: prefilled up to ``done``, or passed over (``None``)."""
    if done is None:
        return msgspec.structs.replace(view, skipped=view.skipped + 1)
    return msgspec.structs.replace(view, done=done, skipped=0)
