"""A plug-in of vLLM's: its own NIXL connector, by which one vLLM reads what another prefilled, with three things mended and one
added.

- A request whose parameters do not fit its prompt would end the core that reads (an assertion in the worker). Here it prefills the prompt
  itself.
- On a CPU the connector pins its process's main thread to the last core; whatever else is busy there stops every request. It is given
  back the cores that it had.
- On a CPU NIXL's progress thread takes a whole core, though nothing moves. It rests between two looks.
- What is held of a prompt that nobody will read is given up at once, not when its lease runs out.

vLLM makes one in its scheduler and one in each worker, by the name of this class: some of its checks go by it.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import time
from collections.abc import Iterator, Mapping
from typing import Any, Final

from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole
from vllm.distributed.kv_transfer.kv_connector.v1.nixl.connector import NixlPullConnector
from vllm.distributed.kv_transfer.kv_connector.v1.nixl.utils import get_base_request_id
from vllm.logger import init_logger
from vllm.platforms import current_platform

from foveate.engines.vllm.handing_on import LET_GO

_LOG = init_logger("vllm.foveate")

REST_MICROSECONDS: Final = 100
"""Between two looks of NIXL's progress thread: 0.02 of a core, measured, against a whole one; a transfer of some milliseconds does not
show it."""


class NixlConnector(NixlPullConnector):  # type: ignore[misc]
    """See the module."""

    def __init__(self, vllm_config: Any, role: KVConnectorRole, kv_cache_config: Any) -> None:
        """See vLLM. Raises RuntimeError where NIXL is not installed, or vLLM's connector is another than this was made for."""
        if role == KVConnectorRole.WORKER and current_platform.is_cpu():
            with cores_kept(), resting_progress():
                super().__init__(vllm_config, role, kv_cache_config)
        else:
            super().__init__(vllm_config, role, kv_cache_config)
        self._held: dict[str, set[str]] = {}
        """Of each request of ours, what is held by vLLM's names."""
        leases = getattr(self.connector_scheduler, "_reqs_need_send", None)
        if role == KVConnectorRole.SCHEDULER and not isinstance(leases, dict):
            raise RuntimeError("vLLM's NIXL connector keeps no leases in _reqs_need_send")

    def on_new_request(self, request: Any) -> None:
        """See vLLM: once for each request, before anything else is asked about it."""
        params = request.kv_transfer_params or {}
        if LET_GO in params:
            self._end_lease(params[LET_GO])
        # One that ends at once has no prompt: it is only there for the holder to be told.
        if params.get("do_remote_prefill") and not request.abort_immediately:
            tokens, block = request.num_prompt_tokens, self.connector_scheduler.block_size
            if (why := unfit(params, tokens, block)) is not None:
                _LOG.error("request %s is prefilled here: %s", request.request_id, why)
                params["do_remote_prefill"] = False
        super().on_new_request(request)

    def request_finished_all_groups(self, request: Any, block_ids: Any) -> tuple[bool, dict[str, Any] | None]:
        """See vLLM."""
        held, params = super().request_finished_all_groups(request, block_ids)
        if held:
            self._held.setdefault(get_base_request_id(request.request_id), set()).add(request.request_id)
        return held, params

    def update_connector_output(self, connector_output: Any) -> None:
        """See vLLM: what is no longer held is among it."""
        for name in connector_output.finished_sending or ():
            ours = get_base_request_id(name)
            names = self._held.get(ours, set())
            names.discard(name)
            if not names:
                self._held.pop(ours, None)
        super().update_connector_output(connector_output)

    def _end_lease(self, request_id: str) -> None:
        """Have the workers find the lease of all that is held of a request run out, in the next step."""
        for name in self._held.get(request_id, ()):
            # What is put there goes to the workers with the next step.
            self.connector_scheduler._reqs_need_send[name] = time.perf_counter()


def unfit(params: Mapping[str, Any], tokens: int, block_size: int) -> str | None:
    """Return why K/V of these parameters cannot be those of a prompt of so many tokens; None where they can."""
    groups = params.get("remote_block_ids")
    if not isinstance(groups, (list, tuple)) or not groups:
        return f"remote_block_ids is {groups!r}"
    if not all(isinstance(group, (list, tuple)) and all(isinstance(one, int) for one in group) for group in groups):
        return "remote_block_ids are not lists of numbers"
    if params.get("remote_num_tokens") != tokens:
        return f"K/V of {params.get('remote_num_tokens')!r} tokens for a prompt of {tokens}"
    # Several groups are of layers with a window, which hold less.
    needed = -(-tokens // block_size)
    if len(groups) == 1 and len(groups[0]) < needed:
        return f"{len(groups[0])} blocks for a prompt of {needed}"
    words = ("remote_engine_id", "remote_request_id", "remote_host")
    numbers = ("remote_port", "tp_size")
    wrong = [name for name in words if not isinstance(params.get(name), str)]
    wrong += [name for name in numbers if not isinstance(params.get(name), int)]
    return f"{', '.join(wrong)} missing, or of another type" if wrong else None


@contextlib.contextmanager
def cores_kept() -> Iterator[None]:
    """Give this thread, and those that are started meanwhile, the cores back that this one had."""
    cores, before = os.sched_getaffinity(0), set(os.listdir("/proc/self/task"))
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)
        for thread in set(os.listdir("/proc/self/task")) - before:
            with contextlib.suppress(ProcessLookupError):  # it has ended
                os.sched_setaffinity(int(thread), cores)


@contextlib.contextmanager
def resting_progress() -> Iterator[None]:
    """Have agents that are made meanwhile rest: NIXL's own configuration has no such field, its binding has."""
    from nixl import _api

    quiet()
    bindings = _api.nixlBind
    plain = bindings.nixlAgent

    def rested(name: str, config: Any) -> Any:
        config.pthrDelay = REST_MICROSECONDS
        return plain(name, config)

    bindings.nixlAgent = rested
    try:
        yield
    finally:
        bindings.nixlAgent = plain


def quiet() -> None:
    """Have NIXL log to standard error: standard output is the gateway's alone."""
    for handler in logging.getLogger("nixl").handlers:
        if isinstance(handler, logging.StreamHandler):
            handler.setStream(sys.stderr)
