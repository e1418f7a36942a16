"""vLLM's increments as the port's events."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, Final, Protocol

from vllm.outputs import CompletionOutput, RequestOutput

from foveate.core.clock import now
from foveate.core.errors import EngineFailed
from foveate.core.stages import Span
from foveate.engines.messages import Generate
from foveate.engines.port import EngineEvent, FinishEvent, FinishReason, TokenEvent, TokenLogprob, TokenStep

_REASONS: Final[Mapping[str, FinishReason]] = {
    "stop": "stop",
    "length": "length",
    "abort": "abort",
    "repetition": "stop",
}


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

    def __init__(self, message: Generate, vocabulary: Vocabulary) -> None:
        self._id = message.work.request_id
        self._submitted_at = message.submitted_at
        self._logprobs = message.work.sampling.logprobs
        self._vocabulary = vocabulary
        self._drawn: Counter[int] = Counter()
        self._begun = False

    def events(self, output: RequestOutput) -> Iterator[EngineEvent]:
        """Return what an increment means. Raises EngineFailed when vLLM gave the request up."""
        for place, choice in enumerate(output.outputs):
            token_ids = list(choice.token_ids)
            if choice.finish_reason == "error":
                raise EngineFailed(detail=f"vLLM gave up the request: {choice.stop_reason}")
            self._drawn[choice.index] += len(token_ids)
            if token_ids or choice.text:
                spans = () if self._begun else self._first(output)
                self._begun = True
                steps = self._steps(choice, token_ids)
                yield TokenEvent(self._id, choice.index, choice.text, token_ids, steps, spans)
            if choice.finish_reason is not None:
                last = output.finished and place == len(output.outputs) - 1
                yield FinishEvent(
                    self._id,
                    choice.index,
                    _REASONS[choice.finish_reason],
                    self._drawn[choice.index],
                    last,
                    output.num_cached_tokens or 0,
                )

    def _first(self, output: RequestOutput) -> tuple[Span, ...]:
        """Return the stages before the first token. vLLM's core takes its times from the same monotonic clock."""
        arrived = now()
        scheduled = output.metrics.scheduled_ts if output.metrics is not None else 0.0
        started = min(max(scheduled, self._submitted_at), arrived)
        return Span("llm_queue", self._submitted_at, started), Span("llm_prefill", started, arrived)

    def _steps(self, choice: CompletionOutput, token_ids: list[int]) -> list[TokenStep]:
        if self._logprobs is None or not choice.logprobs:
            return []
        found: list[Any] = list(choice.logprobs)[-len(token_ids) :]
        return [self._step(token, dict(position)) for token, position in zip(token_ids, found, strict=True)]

    def _step(self, token: int, position: Mapping[int, Any]) -> TokenStep:
        assert self._logprobs is not None
        ranked = sorted(position.items(), key=lambda entry: entry[1].rank)
        top = [self._describe(other, value.logprob) for other, value in ranked[: self._logprobs]]
        return TokenStep(self._describe(token, position[token].logprob), top)

    def _describe(self, token: int, logprob: float) -> TokenLogprob:
        return TokenLogprob(token, self._vocabulary.token_text(token), self._vocabulary.token_bytes(token), logprob)
