"""From the engine's events to OpenAI's answers: one renderer a route, each able to answer at once or chunk by chunk.

A renderer is made for one request. ``chunk`` turns one event into the struct to send; ``whole`` is fed every event by
``add``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, Generic, Protocol, TypeVar, cast

import msgspec

from foveate.api.render_tools import Call, delta_of, message_of
from foveate.api.replies import (
    ChatChoice,
    ChatChunk,
    ChatChunkChoice,
    ChatCompletion,
    ChatLogprobs,
    ChatTokenLogprob,
    Completion,
    CompletionChoice,
    CompletionLogprobs,
    Delta,
    FinishReason,
    FoveateNote,
    PromptLogprobs,
    TopLogprob,
    adjustment_replies,
    usage_reply,
)
from foveate.core.budget import Adjustment
from foveate.core.clock import wall
from foveate.core.errors import EngineFailed
from foveate.core.request import Request
from foveate.engines.port import FinishEvent, TokenEvent, TokenLogprob, TokenStep
from foveate.journey.port import Usage

Event = TokenEvent | FinishEvent
_Logged = TypeVar("_Logged")
_LOGPROB_MIN: Final = -9999.0
"""What OpenAI writes for a probability of zero, whose logarithm JSON cannot hold."""


class Renderer(Protocol):
    """How one request's answer is written."""

    def opening(self) -> list[Any]:
        """Return the chunks that come before the first token's."""
        ...

    def chunk(self, event: Event) -> Any | None:
        """Return the chunk for an event; None if there is nothing to tell yet."""
        ...

    def usage_chunk(self, usage: Usage) -> Any:
        """Return the last chunk of a stream that was asked for usage."""
        ...

    def add(self, event: Event) -> None:
        """Take one event into the whole answer."""
        ...

    def whole(self, usage: Usage) -> Any:
        """Return the whole answer. Raises EngineFailed if a choice did not finish."""
        ...


class _Choice(Generic[_Logged]):
    """What has come of one choice so far; ``log`` is what the renderer keeps of each token's log-probabilities."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.reasoning: list[str] = []
        self.calls: dict[int, Call] = {}
        self.log: list[_Logged] = []
        self.reason: FinishReason | None = None
        self.stopped_by: str | int | msgspec.UnsetType = msgspec.UNSET

    def add(self, event: Event, keep: Callable[[TokenStep], _Logged] | None) -> None:
        if isinstance(event, FinishEvent):
            self.reason = event.reason
            self.stopped_by = _stopped_by(event)
            return
        self.texts.append(event.text)
        self.reasoning.append(event.reasoning)
        for delta in event.calls:
            self.calls.setdefault(delta.index, Call()).add(delta)
        if keep is not None:
            self.log.extend(keep(step) for step in event.steps)

    def finished(self) -> FinishReason:
        if self.reason is None:
            raise EngineFailed(detail="the engine's events ended before every choice had finished")
        return self.reason


class ChatRenderer:
    """Writes chat completions."""

    def __init__(self, request: Request, adjustments: Sequence[Adjustment]) -> None:
        self._request = request
        self._note = FoveateNote(adjustment_replies(adjustments)) if adjustments else msgspec.UNSET
        self._created = int(wall())
        self._choices: list[_Choice[msgspec.Raw]] = [_Choice() for _ in range(request.sampling.n)]
        self._with_logprobs = request.sampling.logprobs is not None
        self._no_usage = None if request.include_usage else msgspec.UNSET
        self._prompt_logprobs: PromptLogprobs | msgspec.UnsetType = msgspec.UNSET

    def opening(self) -> list[ChatChunk]:
        delta = Delta(role="assistant", content="")
        first, *others = (self._chunk(ChatChunkChoice(index, delta)) for index in range(self._request.sampling.n))
        return [msgspec.structs.replace(first, foveate=self._note), *others]

    def chunk(self, event: Event) -> ChatChunk | None:
        if isinstance(event, FinishEvent):
            return self._chunk(
                ChatChunkChoice(event.choice, Delta(), finish_reason=event.reason, stop_reason=_stopped_by(event))
            )
        beside = event.reasoning or event.calls
        if not event.text and not beside and not (event.steps and self._with_logprobs):
            return None
        delta = delta_of(event) if beside else Delta(content=event.text)
        return self._chunk(ChatChunkChoice(event.choice, delta, self._logprobs(event.steps)))

    def usage_chunk(self, usage: Usage) -> ChatChunk:
        return ChatChunk(self._request.id, self._created, self._request.model, [], usage=usage_reply(usage))

    def add(self, event: Event) -> None:
        # Encoded one by one as they come: a long answer's alternatives encoded at its end would hold up every other
        # stream.
        self._choices[event.choice].add(event, _encoded if self._with_logprobs else None)
        if isinstance(event, TokenEvent) and event.prompt_logprobs:
            self._prompt_logprobs = _raw(event.prompt_logprobs)

    def whole(self, usage: Usage) -> ChatCompletion:
        choices = [
            ChatChoice(
                index,
                message_of("".join(choice.texts), "".join(choice.reasoning), choice.calls.values()),
                # Raw JSON stands for the value that it encodes.
                ChatLogprobs(cast("list[ChatTokenLogprob]", choice.log)) if self._with_logprobs else None,
                choice.finished(),
                choice.stopped_by,
            )
            for index, choice in enumerate(self._choices)
        ]
        id_, model = self._request.id, self._request.model
        return ChatCompletion(
            id_,
            self._created,
            model,
            choices,
            usage_reply(usage),
            foveate=self._note,
            prompt_logprobs=self._prompt_logprobs,
        )

    def _chunk(self, choice: ChatChunkChoice) -> ChatChunk:
        return ChatChunk(self._request.id, self._created, self._request.model, [choice], usage=self._no_usage)

    def _logprobs(self, steps: Sequence[TokenStep]) -> ChatLogprobs | None:
        return ChatLogprobs([_logged(step) for step in steps]) if self._with_logprobs else None


class CompletionRenderer:
    """Writes text completions."""

    def __init__(self, request: Request) -> None:
        self._request = request
        self._created = int(wall())
        self._choices: list[_Choice[TokenStep]] = [_Choice() for _ in range(request.sampling.n)]
        self._offsets = [0] * request.sampling.n
        self._with_logprobs = request.sampling.logprobs is not None
        self._no_usage = None if request.include_usage else msgspec.UNSET
        self._prompt_logprobs: PromptLogprobs | msgspec.UnsetType = msgspec.UNSET

    def opening(self) -> list[Completion]:
        return []

    def chunk(self, event: Event) -> Completion | None:
        if isinstance(event, FinishEvent):
            return self._reply([CompletionChoice(event.choice, "", None, event.reason, _stopped_by(event))])
        if not event.text and not (event.steps and self._with_logprobs):
            return None
        return self._reply([CompletionChoice(event.choice, event.text, self._logprobs(event.choice, event.steps))])

    def usage_chunk(self, usage: Usage) -> Completion:
        return Completion(self._request.id, self._created, self._request.model, [], usage=usage_reply(usage))

    def add(self, event: Event) -> None:
        self._choices[event.choice].add(event, _same if self._with_logprobs else None)
        if isinstance(event, TokenEvent) and event.prompt_logprobs:
            self._prompt_logprobs = _raw(event.prompt_logprobs)

    def whole(self, usage: Usage) -> Completion:
        choices = [
            CompletionChoice(
                index,
                "".join(choice.texts),
                self._logprobs(index, choice.log),
                choice.finished(),
                choice.stopped_by,
                self._prompt_logprobs,
            )
            for index, choice in enumerate(self._choices)
        ]
        return Completion(self._request.id, self._created, self._request.model, choices, usage=usage_reply(usage))

    def _reply(self, choices: list[CompletionChoice]) -> Completion:
        return Completion(self._request.id, self._created, self._request.model, choices, usage=self._no_usage)

    def _logprobs(self, choice: int, steps: Sequence[TokenStep]) -> CompletionLogprobs | None:
        if not self._with_logprobs:
            return None
        offsets = []
        for step in steps:
            offsets.append(self._offsets[choice])
            self._offsets[choice] += len(step.chosen.text)
        return CompletionLogprobs(
            tokens=[step.chosen.text for step in steps],
            token_logprobs=[_finite(step.chosen.logprob) for step in steps],
            top_logprobs=[{token.text: _finite(token.logprob) for token in (step.chosen, *step.top)} for step in steps],
            text_offset=offsets,
        )


def _finite(logprob: float) -> float:
    return max(logprob, _LOGPROB_MIN)


def _stopped_by(event: FinishEvent) -> str | int | msgspec.UnsetType:
    return msgspec.UNSET if event.stopped_by is None else event.stopped_by


def _raw(encoded: bytes) -> PromptLogprobs:
    """Raw JSON stands for the value that it encodes."""
    return cast("PromptLogprobs", msgspec.Raw(encoded))


def _same(step: TokenStep) -> TokenStep:
    return step


def _top(token: TokenLogprob) -> TopLogprob:
    return TopLogprob(token.text, _finite(token.logprob), list(token.bytes_))


def _logged(step: TokenStep) -> ChatTokenLogprob:
    drawn = step.chosen
    return ChatTokenLogprob(drawn.text, _finite(drawn.logprob), list(drawn.bytes_), [_top(token) for token in step.top])


def _encoded(step: TokenStep) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode(_logged(step)))


def renderer(request: Request, adjustments: Sequence[Adjustment] = ()) -> Renderer:
    """Return the renderer for a request's kind. ``adjustments`` are told with a chat's answer; a completion has no media."""
    return ChatRenderer(request, adjustments) if request.kind == "chat" else CompletionRenderer(request)
