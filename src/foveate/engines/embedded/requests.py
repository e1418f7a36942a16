"""One request inside the engine: its prompt, its choices, and what each choice's next token means for the client."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import msgspec

from foveate.core.request import Sampling
from foveate.decisions.batching import PromptView
from foveate.engines.embedded.detokenize import Detokenizer, Vocabulary
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


@dataclass(slots=True)
class Job:
    """A request from its receipt to its end. ``pictures``, ``positions`` and ``cache`` exist only during prefill.

    ``prefix`` is the kept prompt that its prefill will start from, ``cached_tokens`` how many of its tokens, and ``searched`` up to
    which change of what is kept it was looked for. ``token_ms`` is its share of the steps so far.
    """

    work: EngineWork
    submitted_at: float
    view: PromptView
    started_at: float = 0.0
    pictures: list[Picture] = field(default_factory=list)
    positions: Positions | None = None
    cache: Any = None
    open_choices: int = 0
    prompt: Prompt | None = None
    prefix: Prefix | None = None
    cached_tokens: int = 0
    searched: int = -1
    token_ms: float = 0.0

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


def prompt_view(work: EngineWork, borders: Any) -> PromptView:
    """Return what the batching decision needs to know of a new request."""
    sampling = work.sampling
    return PromptView(
        len(work.token_ids), sampling.tokens_max, sampling.n, borders=borders, pictures=bool(work.pictures)
    )


def progressed(view: PromptView, done: int | None) -> PromptView:
    """Return the view after a plan: prefilled up to ``done``, or passed over (``None``)."""
    if done is None:
        return msgspec.structs.replace(view, skipped=view.skipped + 1)
    return msgspec.structs.replace(view, done=done, skipped=0)
