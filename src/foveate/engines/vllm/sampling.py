"""A request's sampling as vLLM's ``SamplingParams``."""

from __future__ import annotations

from typing import Any

import msgspec
from vllm import SamplingParams
from vllm.exceptions import VLLMValidationError
from vllm.sampling_params import RepetitionDetectionParams, RequestOutputKind, StructuredOutputsParams

from foveate.core.constraint import Constraint
from foveate.core.errors import InvalidParameter
from foveate.core.request import Sampling

_DETAIL_CHARACTERS_MAX = 1000


def sampling_params(sampling: Sampling) -> SamplingParams:
    """Return vLLM's form; output comes as increments. Raises InvalidParameter for what vLLM itself refuses."""
    given: dict[str, Any] = {
        "n": sampling.n,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "min_p": sampling.min_p,
        "seed": sampling.seed,
        "stop": list(sampling.stop) or None,
        "presence_penalty": sampling.presence_penalty,
        "frequency_penalty": sampling.frequency_penalty,
        # Ids that are asked for take the place of the likeliest; vLLM wants one or the other.
        "logprobs": None if sampling.logprob_token_ids else sampling.logprobs,
        "max_tokens": sampling.tokens_max,
        "min_tokens": sampling.tokens_min,
        "ignore_eos": sampling.ignore_eos,
        "repetition_penalty": sampling.repetition_penalty,
        "logit_bias": sampling.logit_bias or None,
        "stop_token_ids": list(sampling.stop_token_ids) or None,
        "bad_words": list(sampling.bad_words) or None,
        "allowed_token_ids": list(sampling.allowed_token_ids) or None,
        "include_stop_str_in_output": sampling.include_stop_str_in_output,
        "skip_special_tokens": sampling.skip_special_tokens,
        "spaces_between_special_tokens": sampling.spaces_between_special_tokens,
        "prompt_logprobs": sampling.prompt_logprobs,
        "logprob_token_ids": list(sampling.logprob_token_ids) or None,
        "thinking_token_budget": sampling.thinking_token_budget,
        "stream_interval": sampling.stream_interval,
        "output_kind": RequestOutputKind.DELTA,
    }
    repeating, structured = sampling.repetition_detection, sampling.structured_outputs
    try:
        given["structured_outputs"] = None if structured is None else outputs_params(structured)
        if repeating is not None:
            given["repetition_detection"] = RepetitionDetectionParams(**msgspec.structs.asdict(repeating))
        return SamplingParams(**given)
    except (VLLMValidationError, ValueError, TypeError) as error:
        raise refusal(error) from error


def outputs_params(constraint: Constraint) -> StructuredOutputsParams:
    """Return vLLM's form of a constraint. Raises ValueError for what cannot be read."""
    match constraint.kind:
        case "json_object":
            return StructuredOutputsParams(json_object=True)
        case "choice":
            return StructuredOutputsParams(choice=msgspec.json.decode(constraint.spec))
        case kind:
            return StructuredOutputsParams(**{kind: constraint.spec})


def refusal(error: Exception) -> InvalidParameter:
    """Return vLLM's refusal of a request as ours. Its sentences speak of the request's own values only."""
    # Its own text, without the values that vLLM adds to it.
    words = str(error.args[0]) if error.args else str(error)
    first = words.strip().partition("\n")[0][:300]
    return InvalidParameter(
        f"The engine refuses this request: {first}",
        param=getattr(error, "parameter", None),
        detail=f"{type(error).__name__}: {error}"[:_DETAIL_CHARACTERS_MAX],
    )
