"""A request's sampling as vLLM's ``SamplingParams``."""

from __future__ import annotations

from typing import Any

from vllm import SamplingParams
from vllm.exceptions import VLLMValidationError
from vllm.sampling_params import RequestOutputKind

from foveate.core.errors import InvalidParameter
from foveate.core.request import Sampling


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
        "logprobs": sampling.logprobs,
        "max_tokens": sampling.tokens_max,
        "min_tokens": sampling.tokens_min,
        "ignore_eos": sampling.ignore_eos,
        "output_kind": RequestOutputKind.DELTA,
    }
    try:
        return SamplingParams(**given)
    except (VLLMValidationError, ValueError, TypeError) as error:
        raise refusal(error) from error


def refusal(error: Exception) -> InvalidParameter:
    """Return vLLM's refusal of a request as ours. Its sentences speak of the request's own values only."""
    first = str(error).strip().partition("\n")[0][:300]
    return InvalidParameter(f"The engine refuses this request: {first}", detail=f"{type(error).__name__}: {error}")
