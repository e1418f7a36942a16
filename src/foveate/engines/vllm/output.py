"""vLLM's increments as the port's events."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, Protocol

import msgspec
from vllm.outputs import CompletionOutput, RequestOutput

from foveate.core.clock import now
from foveate.core.errors import EngineFailed
from foveate.core.stages import Span
from foveate.engines.port import EngineEvent, FinishEvent, FinishReason, TokenEvent, TokenLogprob, TokenStep
from foveate.engines.vllm.messages import Starts
from foveate.engines.vllm.parsing import Parsing, Piece

_REASONS: Final[Mapping[str, FinishReason]] = {
    "stop": "stop",
    "length": "length",
    "abort": "abort",
    "repetition": "stop",
}

_LOGPROB_MIN: Final = -9999.0
"""What OpenAI writes for a probability of zero, whose logarithm JSON cannot hold."""


class Vocabulary(Protocol):
    """What log-probabilities are described with."""

    def token_text(self, token_id: int) -> str:
        """Return the token's own text."""
        ...

    def token_bytes(self, token_id: int) -> bytes:
        """Return the token's own bytes."""
        ...


class Answer:
    """One request's events."""

    def __init__(
        self,
        message: Starts,
        vocabulary: Vocabulary,
        parsing: Parsing | None = None,
        before: Sequence[Span] = (),
        *,
        cached_tokens: int | None = None,
        encoded: Callable[[], Sequence[Span]] = tuple,
    ) -> None:
        """``before`` are the stages that end where vLLM has the request: its processor's where it had a part, or another process's prefill,
        which had ``cached_tokens``; ``encoded`` returns its encoder's by the first output."""
        self._before = tuple(before)
        self._cached_tokens = cached_tokens
        self._encoded = encoded
        self._id = message.work.request_id
        self._submitted_at = message.submitted_at
        sampling = message.work.sampling
        self._logprobs = sampling.logprobs
        self._scored = frozenset(sampling.logprob_token_ids)
        self._stops = frozenset((*sampling.stop, *sampling.stop_token_ids))
        self._prompt_logprobs: list[Any] = []
        self._vocabulary = vocabulary
        self._parsing = parsing
        self._drawn: Counter[int] = Counter()
        self._begun = False

    def reasoning_ended(self) -> bool | None:
        """Return what vLLM is to know of the prompt's reasoning; None where nothing is parsed."""
        return None if self._parsing is None else self._parsing.reasoning_ended()

    def events(self, output: RequestOutput) -> Iterator[EngineEvent]:
        """Return what an increment means. Raises EngineFailed when vLLM gave the request up."""
        if output.prompt_logprobs is not None and not self._begun:
            self._prompt_logprobs += list(output.prompt_logprobs)
        for place, choice in enumerate(output.outputs):
            token_ids = list(choice.token_ids)
            if choice.finish_reason == "error":
                raise EngineFailed(detail=f"vLLM gave up the request: {choice.stop_reason}")
            self._drawn[choice.index] += len(token_ids)
            piece = self._piece(choice, token_ids)
            if token_ids or piece.text or piece.reasoning or piece.calls:
                spans = () if self._begun else self._first(output)
                prompt = b"" if self._begun or not self._prompt_logprobs else _json(self._prompt_logprobs)
                self._begun = True
                yield TokenEvent(
                    self._id,
                    choice.index,
                    piece.text,
                    token_ids,
                    self._steps(choice, token_ids),
                    spans,
                    prompt,
                    piece.reasoning,
                    piece.calls,
                )
            if choice.finish_reason is not None:
                last = output.finished and place == len(output.outputs) - 1
                yield FinishEvent(
                    self._id,
                    choice.index,
                    self._reason(choice),
                    self._drawn[choice.index],
                    last,
                    (output.num_cached_tokens or 0) if self._cached_tokens is None else self._cached_tokens,
                    stopped_by=choice.stop_reason if choice.stop_reason in self._stops else None,
                )

    def _piece(self, choice: CompletionOutput, token_ids: list[int]) -> Piece:
        if self._parsing is None:
            return Piece(choice.text)
        return self._parsing.feed(choice.index, choice.text, token_ids, finished=choice.finish_reason is not None)

    def _reason(self, choice: CompletionOutput) -> FinishReason:
        assert choice.finish_reason is not None
        reason = _REASONS[choice.finish_reason]
        if reason == "stop" and self._parsing is not None and self._parsing.called(choice.index):
            # A call that was forced by name ends as any answer does: as OpenAI and vLLM have it.
            return "stop" if self._parsing.forced else "tool_calls"
        return reason

    def _first(self, output: RequestOutput) -> tuple[Span, ...]:
        """Return the stages before the first token. vLLM's core takes its times from the same monotonic clock."""
        arrived = now()
        queued = self._before[-1].end if self._before else self._submitted_at
        scheduled = output.metrics.scheduled_ts if output.metrics is not None else 0.0
        reached = min(max(scheduled, queued), arrived)
        spans = [*self._before, Span("llm_queue", queued, reached)]
        for encode in self._encoded():
            if reached <= encode.start <= encode.end <= arrived:
                spans += (Span("llm_prefill", reached, encode.start), encode)
                reached = encode.end
        return *spans, Span("llm_prefill", reached, arrived)

    def _steps(self, choice: CompletionOutput, token_ids: list[int]) -> list[TokenStep]:
        if self._logprobs is None or not choice.logprobs:
            return []
        found: list[Any] = list(choice.logprobs)[-len(token_ids) :]
        return [self._step(token, dict(position)) for token, position in zip(token_ids, found, strict=True)]

    def _step(self, token: int, position: Mapping[int, Any]) -> TokenStep:
        assert self._logprobs is not None
        if self._scored:
            ranked = sorted(position.items(), key=lambda entry: -entry[1].logprob)
            ranked = [entry for entry in ranked if entry[0] in self._scored]
        else:
            ranked = sorted(position.items(), key=lambda entry: entry[1].rank)[: self._logprobs]
        top = [self._describe(other, value.logprob) for other, value in ranked]
        return TokenStep(self._describe(token, position[token].logprob), top)

    def _describe(self, token: int, logprob: float) -> TokenLogprob:
        return TokenLogprob(token, self._vocabulary.token_text(token), self._vocabulary.token_bytes(token), logprob)


def _json(positions: Iterable[Mapping[int, Any] | None]) -> bytes:
    """Return the log-probabilities of a prompt's tokens as vLLM's server writes them: by token id, null for the first."""
    return msgspec.json.encode([position and _told(position) for position in positions])


def _told(position: Mapping[int, Any]) -> dict[str, Any]:
    return {
        str(token): {
            "logprob": max(value.logprob, _LOGPROB_MIN),
            "rank": value.rank,
            "decoded_token": value.decoded_token,
        }
        for token, value in position.items()
    }
