"""Reading answers: what every answer must satisfy, and server-sent events."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

import httpx

STAGES = (
    "admission",
    "media_fetch",
    "media_decode",
    "mm_processor",
    "encoder_queue",
    "vision_encode",
    "embedding_transfer",
    "llm_queue",
    "llm_prefill",
)
TEXT_STAGES = {"admission", "llm_queue", "llm_prefill"}
_ADDRESS = re.compile(r"0x[0-9a-f]{6,}", re.IGNORECASE)
_PATH = re.compile(r"(?:^|[\s\"'(=])/(?:home|root|tmp|usr|opt|var|proc|mnt|srv)/|site-packages|\.py\b")
_TIMING = re.compile(r"([a-z_]+);dur=([0-9]+(?:\.[0-9]+)?)")


def content(response: httpx.Response) -> str:
    """Return the text of a chat answer."""
    assert response.status_code == 200, response.text
    return str(response.json()["choices"][0]["message"]["content"])


def assert_no_address(response: httpx.Response) -> None:
    """An answer never tells where something lies in memory."""
    assert not _ADDRESS.search(response.text), response.text
    assert not _ADDRESS.search(str(response.headers)), response.headers


def assert_no_path(response: httpx.Response) -> None:
    """A refusal never tells where something lies on the server's disk."""
    assert not _PATH.search(response.text), response.text


def inspect(response: httpx.Response) -> None:
    """Hold every error that any client of the tests meets to what all errors have in common."""
    if response.status_code >= 400 and response.request.url.path.startswith("/v1/"):
        response.read()
        assert_no_address(response)
        assert_no_path(response)
        assert_typed(response.json()["error"])
        assert "retry-after" in response.headers or response.status_code not in (429, 503)


def assert_typed(error: Mapping[str, Any]) -> None:
    assert {"message", "type", "param", "code"} <= error.keys(), error
    assert isinstance(error["message"], str)
    assert error["message"]
    assert isinstance(error["type"], str)
    assert error["param"] is None or isinstance(error["param"], str)
    assert isinstance(error["code"], str)
    assert "Traceback" not in error["message"]


def refused(response: httpx.Response, *statuses: int, param: str | None = None) -> dict[str, Any]:
    """Assert a client's fault in OpenAI's shape; return the error. ``param`` is what its param must begin with."""
    assert_no_address(response)
    assert 400 <= response.status_code < 500, f"{response.status_code} {response.text}"
    assert not statuses or response.status_code in statuses, f"{response.status_code} {response.text}"
    assert response.headers["content-type"].startswith("application/json")
    error = response.json()["error"]
    assert_typed(error)
    if param is not None:
        assert (error["param"] or "").startswith(param), error
    return dict(error)


def server_timing(response: httpx.Response) -> dict[str, float]:
    """Return the metrics of the Server-Timing header, in milliseconds. Fails if the header does not parse whole."""
    entries = [entry.strip() for entry in response.headers["server-timing"].split(",")]
    matches = [_TIMING.fullmatch(entry) for entry in entries]
    assert all(matches), entries
    timing = {match[1]: float(match[2]) for match in matches if match}
    assert len(timing) == len(entries), entries
    return timing


def assert_closes(timing: Mapping[str, float]) -> None:
    """Stages and the unattributed time add up to ttft."""
    assert set(timing) <= {*STAGES, "upstream", "tpot", "ttft", "unattributed", "prefill_overlap"}, timing
    covered = sum(timing[stage] for stage in (*STAGES, "upstream") if stage in timing)
    assert timing["unattributed"] >= 0
    assert abs(covered + timing["unattributed"] - timing["ttft"]) <= 0.01, timing


def events(lines: Iterable[str]) -> list[Any]:
    """Return the payloads of a whole stream of server-sent events; the final [DONE] is checked and left out."""
    data = [line.removeprefix("data:").strip() for line in lines if line.startswith("data:")]
    assert data, "an empty stream"
    assert data[-1] == "[DONE]", data[-1]
    return [json.loads(item) for item in data[:-1]]


def stream(
    client: httpx.Client, body: Mapping[str, Any], path: str = "/v1/chat/completions"
) -> tuple[httpx.Response, list[Any]]:
    """Send a streaming request and read it to its end; an answer that is not a stream has no events."""
    with client.stream("POST", path, json={**body, "stream": True}) as response:
        if response.status_code != 200:
            response.read()
            return response, []
        assert response.headers["content-type"].startswith("text/event-stream")
        return response, events(response.iter_lines())


def joined(chunks: Iterable[Any], index: int = 0) -> str:
    """Return the text that a stream's chunks add up to, for one choice."""
    return "".join(
        choice["delta"].get("content") or ""
        for chunk in chunks
        for choice in chunk.get("choices", ())
        if choice["index"] == index
    )


def but_for_kept_kv(usage: dict[str, Any]) -> dict[str, Any]:
    """Return ``usage`` without what it tells of the requests before: how much of the prompt's KV was still held."""
    details = {name: count for name, count in usage["prompt_tokens_details"].items() if name != "cached_tokens"}
    return {**usage, "prompt_tokens_details": details}
