"""How tokens are to be drawn: from a validated body to :class:`foveate.core.request.Sampling`, with the rules between its fields.

Whether the engine can do it is not judged here, but by the journey, which knows the engine.
"""

from __future__ import annotations

from collections.abc import Mapping

from foveate.api import parameters
from foveate.api.convert_structured import constraint
from foveate.api.schema_generation import BAD_WORDS_BYTES_MAX, TOKENS_MAX, Generation, Repetition
from foveate.core.errors import InvalidParameter
from foveate.core.request import Repetition as Repeating
from foveate.core.request import Sampling, Truncation


def sampling(body: Generation, *, tokens_max: int, logprobs: int | None) -> Sampling:
    """Return how a body's tokens are to be drawn. Raises InvalidParameter, UnsupportedParameter."""
    tokens_min = body.min_tokens or 0
    if tokens_max and tokens_min > tokens_max:
        raise InvalidParameter(
            f"min_tokens is greater than the {tokens_max} tokens allowed.", param="min_tokens", limit=tokens_max
        )
    if body.logprob_token_ids and logprobs is None:
        raise InvalidParameter("logprob_token_ids needs logprobs.", param="logprob_token_ids")
    if body.prompt_logprobs is not None and body.stream:
        raise InvalidParameter("prompt_logprobs are not given in a stream.", param="prompt_logprobs")
    stop = body.stop if isinstance(body.stop, list) else [] if body.stop is None else [body.stop]
    return Sampling(
        tokens_max=tokens_max,
        temperature=1.0 if body.temperature is None else body.temperature,
        top_p=1.0 if body.top_p is None else body.top_p,
        top_k=max(0, body.top_k or 0),
        min_p=body.min_p or 0.0,
        seed=body.seed,
        stop=tuple(stop),
        n=body.n or 1,
        presence_penalty=body.presence_penalty or 0.0,
        frequency_penalty=body.frequency_penalty or 0.0,
        logprobs=logprobs,
        tokens_min=tokens_min,
        ignore_eos=bool(body.ignore_eos),
        repetition_penalty=1.0 if body.repetition_penalty is None else body.repetition_penalty,
        logit_bias=_biases(body.logit_bias or {}),
        stop_token_ids=tuple(body.stop_token_ids or ()),
        bad_words=_bad_words(body.bad_words or []),
        allowed_token_ids=tuple(body.allowed_token_ids or ()),
        include_stop_str_in_output=bool(body.include_stop_str_in_output),
        skip_special_tokens=body.skip_special_tokens is not False,
        spaces_between_special_tokens=body.spaces_between_special_tokens is not False,
        prompt_logprobs=body.prompt_logprobs,
        logprob_token_ids=tuple(body.logprob_token_ids or ()),
        thinking_token_budget=None if body.thinking_token_budget == -1 else body.thinking_token_budget,
        repetition_detection=_repeating(body.repetition_detection),
        stream_interval=body.stream_interval,
        structured_outputs=constraint(body.response_format, body.structured_outputs),
    )


def truncation(body: Generation) -> Truncation | None:
    """Return how a body's prompt is to be shortened. Raises InvalidParameter."""
    if body.truncate_prompt_tokens is None:
        return None
    if body.truncate_prompt_tokens == 0:
        raise InvalidParameter(
            "truncate_prompt_tokens should leave something of the prompt.", param="truncate_prompt_tokens"
        )
    return Truncation(body.truncate_prompt_tokens, "beginning" if body.truncation_side == "right" else "end")


def _biases(given: Mapping[str, float]) -> dict[int, float]:
    biases: dict[int, float] = {}
    for token, bias in given.items():
        # Python takes 1_0 and the digits of other scripts for numbers too.
        if not (token.isascii() and token.isdigit() and len(token) < 11 and int(token) <= TOKENS_MAX):
            raise InvalidParameter("The names in logit_bias should be token ids.", param="logit_bias")
        biases[int(token)] = bias
    return biases


def _bad_words(given: list[str]) -> tuple[str, ...]:
    size = sum(len(word.encode()) for word in given)
    if size > BAD_WORDS_BYTES_MAX:
        raise InvalidParameter(
            f"bad_words should have at most {BAD_WORDS_BYTES_MAX} bytes together.",
            param="bad_words",
            limit=BAD_WORDS_BYTES_MAX,
            actual=size,
        )
    return tuple(given)


def _repeating(given: Repetition | None) -> Repeating | None:
    if given is None:
        return None
    parameters.check_extras(given.model_extra, {}, own=Repetition.model_fields, at="repetition_detection.")
    if given.max_pattern_size == 0:
        return None
    if given.min_pattern_size > given.max_pattern_size or given.min_count < 2:
        raise InvalidParameter(
            "repetition_detection needs min_pattern_size <= max_pattern_size and min_count >= 2.",
            param="repetition_detection",
        )
    return Repeating(given.max_pattern_size, given.min_pattern_size, given.min_count)
