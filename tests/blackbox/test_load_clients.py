"""A load client that people use completes its runs against the server: ``vllm bench serve``, as docs/load-clients.md has it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.blackbox.pictures import chat, user
from tests.blackbox.replies import events
from tests.blackbox.server import Server, environment

from foveate.models.files import resolve_model

ROOT = Path(__file__).parents[2]
PROMPTS, TOKENS = 4, 8
PICTURES = (
    *("--dataset-name", "random-mm", "--random-mm-base-items-per-request", "1"),
    *("--random-mm-num-mm-items-range-ratio", "0", "--random-mm-limit-mm-per-prompt", '{"image":1,"video":0}'),
    *("--random-mm-bucket-config", '{"(224,224,1)":1.0}'),
)


def _run(server: Server, model: str, directory: Path, name: str, *dataset: str) -> list[str]:
    return [
        *("--backend", "openai-chat", "--base-url", server.base_url, "--endpoint", "/v1/chat/completions"),
        *("--model", model, "--tokenizer", resolve_model(None).directory, "--num-prompts", str(PROMPTS)),
        *("--random-input-len", "16", "--random-output-len", str(TOKENS), "--temperature", "0", "--ignore-eos"),
        *("--ready-check-timeout-sec", "30", "--disable-tqdm", "--percentile-metrics", "ttft,tpot"),
        *("--save-result", "--save-detailed", "--result-dir", str(directory), "--result-filename", f"{name}.json"),
        *dataset,
    ]


@pytest.mark.timeout(400)
def test_vllm_bench_serve(server: Server, model: str, tmp_path: Path) -> None:
    before = server.metrics()
    ended = subprocess.run(
        [
            *(sys.executable, str(ROOT / "benchmarks" / "vllm_bench_serve.py")),
            *_run(server, model, tmp_path, "text", "--dataset-name", "random"),
            "--then",
            *_run(server, model, tmp_path, "pictures", *PICTURES),
        ],
        env=environment(VLLM_LOGGING_LEVEL="WARNING"),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=360,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr[-3000:]
    text, pictures = (json.loads((tmp_path / f"{name}.json").read_text()) for name in ("text", "pictures"))
    for result in (text, pictures):
        _all_answered(result)
    after = server.metrics()
    for modality in ("text", "multimodal"):
        name = "foveate_requests_total"
        asked = after.total(name, modality=modality) - before.total(name, modality=modality)
        assert asked >= PROMPTS, modality
    # Tokens of its prompts as the server counts them: with a picture there are more.
    assert pictures["total_input_tokens"] > text["total_input_tokens"]


def _all_answered(result: dict[str, Any]) -> None:
    assert (result["completed"], result["failed"]) == (PROMPTS, 0), result["errors"]
    assert result["output_lens"] == [TOKENS] * PROMPTS, "the usage that ends a stream"
    assert all(first > 0 for first in result["ttfts"])


def test_usage_so_far_in_every_chunk(http: httpx.Client) -> None:
    """GuideLLM asks for it, and without it fails."""
    options = {"include_usage": True, "continuous_usage_stats": True}
    body = chat(user("Hello!"), max_tokens=TOKENS, ignore_eos=True, stream=True, stream_options=options)
    with http.stream("POST", "/v1/chat/completions", json=body) as response:
        assert response.status_code == 200
        told = [chunk["usage"] for chunk in events(response.iter_lines())]
    counts = [usage["completion_tokens"] for usage in told]
    assert counts == sorted(counts)
    assert counts[-1] == TOKENS
    assert any(0 < count < TOKENS for count in counts)
    assert len({usage["prompt_tokens"] for usage in told}) == 1
