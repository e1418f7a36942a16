"""What one vLLM asks of itself to prefill a prompt for another, and what that other one is given of it.

vLLM's connector (:mod:`foveate.engines.vllm.kv_connector`) moves the keys and values; here are the parameters of requests by which it is
told. They are made in one process of ours and used in another: no client's values are among them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from vllm import SamplingParams
from vllm.outputs import RequestOutput
from vllm.sampling_params import RequestOutputKind

from foveate.core.clock import now
from foveate.core.errors import EngineFailed
from foveate.core.stages import Span
from foveate.engines.vllm.messages import Prefill, Prefilled, TokenDecode

KV_PARAMS: Final = "kv_transfer_params"
"""The member of a request's ``extra_args`` that vLLM gives to its KV connector."""

LET_GO: Final = "foveate_let_go"
"""Our own member of them: the request of ours whose K/V nobody will read."""


def prefill_params(extra: Mapping[str, Any]) -> SamplingParams:
    """Return what has vLLM prefill a prompt and hold its K/V. It cannot draw nothing: the one token is left to whoever goes on."""
    asked = {**extra, KV_PARAMS: {"do_remote_decode": True}}
    return SamplingParams(
        max_tokens=1, temperature=0, detokenize=False, output_kind=RequestOutputKind.FINAL_ONLY, extra_args=asked
    )


def fetch_params(extra: Mapping[str, Any], prefilled: Prefilled) -> SamplingParams:
    """Return what has vLLM fetch a prompt's K/V and do no more: several choices then start from what it caches of them."""
    params = prefill_params(extra)
    params.extra_args = with_prefilled(extra, prefilled)
    return params


def with_prefilled(extra: Mapping[str, Any], prefilled: Prefilled) -> dict[str, Any]:
    """Return ``extra_args`` by which vLLM fetches a prompt's K/V."""
    return {**extra, KV_PARAMS: dict(prefilled.params)}


def ending_lease(request_id: str) -> dict[str, Any]:
    """Return parameters by which :class:`foveate.engines.vllm.kv_connector.NixlConnector` gives up what it holds of a request."""
    return {LET_GO: request_id}


def prefilled_of(message: Prefill, output: RequestOutput | None) -> Prefilled:
    """Return what vLLM's last output of a prefill says. Raises EngineFailed where it holds no K/V."""
    params = dict((output.kv_transfer_params if output is not None else None) or {})
    # vLLM would report this in place of what was read, which is told by Prefilled.
    params.pop("remote_prefill_cached_tokens", None)
    if output is None or not params:
        reason = output.outputs[0].finish_reason if output is not None and output.outputs else None
        raise EngineFailed(detail=f"vLLM prefilled a prompt and holds no K/V of it (finish reason {reason})")
    ended = now()
    scheduled = output.metrics.scheduled_ts if output.metrics is not None else 0.0
    started = min(max(scheduled, message.submitted_at), ended)
    return Prefilled(message.work.request_id, started, ended, output.num_cached_tokens or 0, params)


def stages_before(message: TokenDecode) -> tuple[Span, ...]:
    """Return the stages of a request until its K/V were held: those of its prefill."""
    given = message.prefilled
    return (
        Span("llm_queue", message.submitted_at, given.started_at),
        Span("llm_prefill", given.started_at, given.ended_at),
    )
