"""Fuzz target: any bytes as a data URL, as a large body that is unpacked, and as a body that is validated. Only refusals may come out."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

from blake3 import blake3

from foveate.api import convert
from foveate.api.app import parser
from foveate.api.schema import ChatRequest, CompletionRequest
from foveate.api.structure import check_structure
from foveate.core.errors import DataUrlInvalid, Refused
from foveate.core.request import Request
from foveate.media.data_url import decode_data_url
from foveate.media.unpack import InlineBlob, unpack

CASES = Path(__file__).parents[1] / "data" / "cases"
PARSERS = (parser(ChatRequest, convert.chat), parser(CompletionRequest, convert.completion))


def check(data: bytes) -> None:
    """Raise for anything but an answer or a refusal."""
    _as_url(data)
    _validate(data, 0)
    _as_large_body(data)


def _as_url(data: bytes) -> None:
    text = data.decode("utf-8", "replace")
    try:
        decoded = decode_data_url(text)
    except DataUrlInvalid as refused:
        _in_words(refused)
        return
    assert decoded
    assert len(decoded) <= 3 * len(text) // 4 + 3


def _in_words(refused: Refused) -> None:
    """What a client is told is a sentence, and never what it sent."""
    assert 0 < len(refused.public) < 400


def _as_large_body(data: bytes) -> None:
    out = memoryview(bytearray(len(data)))
    try:
        result = unpack(memoryview(data), out)
    except Refused:
        return
    end = 0
    for blob in result.blobs:
        if isinstance(blob, InlineBlob):
            assert blob.offset >= end
            end = blob.offset + blob.size
            assert blob.digest == blake3(out[blob.offset : end]).hexdigest()
        else:
            assert isinstance(blob.error(), Refused)
    assert end <= len(out)
    _validate(result.skeleton, len(result.blobs))


def _validate(body: bytes, inline: int) -> None:
    arrival = convert.Arrival("id", 0.0, ("model",), inline)
    for parse in PARSERS:
        try:
            check_structure(body)
            request = parse(body, arrival)
        except Refused as refused:
            _in_words(refused)
            continue
        assert isinstance(request, Request)


def ready() -> None:
    """There is nothing to load."""


def repaired(data: bytes) -> bytes:
    """Return what was mutated as it is."""
    return data


def seeds() -> list[bytes]:
    """Return bodies of every shape, data URLs of every kind, and the field cases."""
    url = "data:image/png;base64," + base64.b64encode(b"\x89PNG\r\n\x1a\n").decode()
    parts: list[Any] = [
        {"type": "text", "text": "hé\u2028 \U0001f600"},
        {"type": "image_url", "image_url": {"url": url, "detail": "low"}, "uuid": "u"},
        {"type": "image_url", "image_url": url},
        {"type": "image_url", "image_url": {"url": "https://h.example/x.png"}},
        {"type": "image_url", "image_url": {"url": "inline:0"}},
        {"type": "video_url", "video_url": {"url": url}},
        {"type": "input_video", "input_video": {"data": url}},
    ]
    knobs = {
        "model": "model", "max_tokens": 3, "temperature": 0.5, "top_p": 1, "top_k": 4, "seed": 1, "stop": ["a", "b"], "n": 2,
        "stream": True, "stream_options": {"include_usage": True}, "logprobs": True, "top_logprobs": 2, "min_tokens": 1,
        "frequency_penalty": 0.1, "presence_penalty": -0.1, "user": "u", "response_format": {"type": "text"},
    }  # fmt: skip
    bodies: list[Any] = [{"messages": [{"role": "user", "content": [part]}]} for part in parts]
    bodies += [
        {"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": parts}], **knobs},
        {"prompt": "hello", "model": "model", "max_tokens": 2, "logprobs": 1},
        {"prompt": ["hello"], "echo": False},
        [], {}, None, "text", 1e308,
    ]  # fmt: skip
    urls = [
        json.loads(line)["url"].encode("utf-8", "surrogatepass")
        for line in (CASES / "case036_data_urls.jsonl").read_text().splitlines()
    ]
    urls += [
        b"data:;base64,AAAA" + filler * 40 + b"AAAA" for filler in (b" ", b"\t\r\n", b"%20", b"%0a", b",AAAA", b"=")
    ]
    recorded = [
        line.encode()
        for name in ("case100_requests", "case108_part_shapes", "case109_detail_values")
        for line in (CASES / f"{name}.jsonl").read_text().splitlines()
    ]
    whole = [(CASES / f"{name}.json").read_bytes() for name in ("case102_five_images_limit4", "case106_tool_image")]
    return [*(json.dumps(body).encode() for body in bodies), *urls, *recorded, *whole]
