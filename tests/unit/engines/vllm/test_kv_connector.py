"""What is mended of vLLM's KV connector."""

from __future__ import annotations

import os
import threading
from typing import Any

import pytest

from foveate.engines.vllm.config import VllmConfig
from foveate.engines.vllm.kv_connector import cores_kept, unfit

FIT: dict[str, Any] = {
    "do_remote_prefill": True,
    "remote_block_ids": [[4, 5]],
    "remote_engine_id": "e",
    "remote_request_id": "r",
    "remote_host": "127.0.0.1",
    "remote_port": 5600,
    "tp_size": 1,
    "remote_num_tokens": 200,
}


def test_what_fits_a_prompt_is_read() -> None:
    assert unfit(FIT, 200, 128) is None
    windowed = {**FIT, "remote_block_ids": ((4, 5), (6,))}
    assert unfit(windowed, 200, 128) is None


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"remote_num_tokens": 199}, "K/V of 199 tokens for a prompt of 200"),
        ({"remote_block_ids": [[4]]}, "1 blocks for a prompt of 2"),
        ({"remote_block_ids": []}, "remote_block_ids"),
        ({"remote_block_ids": [["4", "5"]]}, "not lists of numbers"),
        ({"remote_block_ids": "45"}, "remote_block_ids"),
        ({"remote_port": "5600"}, "remote_port"),
        ({"remote_engine_id": None}, "remote_engine_id"),
    ],
)
def test_what_does_not_is_prefilled_instead(changes: dict[str, Any], why: str) -> None:
    """Each of these would end the core that reads."""
    assert why in (unfit({**FIT, **changes}, 200, 128) or "")


def test_the_cores_of_threads_that_are_started_meanwhile_are_kept_too() -> None:
    before, ended = os.sched_getaffinity(0), threading.Event()
    narrow = {max(before)}
    threads = []
    try:
        with cores_kept():
            os.sched_setaffinity(0, narrow)
            threads.append(threading.Thread(target=ended.wait))
            threads[0].start()
            assert os.sched_getaffinity(threads[0].native_id or 0) == narrow
        assert os.sched_getaffinity(0) == before
        assert os.sched_getaffinity(threads[0].native_id or 0) == before
    finally:
        ended.set()
        for thread in threads:
            thread.join()


@pytest.mark.parametrize("step", [1.0, 8.0, 120.0, 3600.0])
def test_a_lease_outlasts_the_longest_step(step: float) -> None:
    lease = VllmConfig("dir", "m", "llava", step_seconds_max=step).lease_seconds
    assert lease * 2 // 3 > lease // 6 + step
