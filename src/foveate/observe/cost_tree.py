"""Why two calls differ: the contributions to the time and the cost of requests, side by side. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from foveate.core.stages import STAGES
from foveate.observe.cost import Prices, priced, spent_of
from foveate.observe.log_query import stages_of
from foveate.observe.request_line import ItemLine, RequestLine

Value = float | str | None
REASON_SHARE_MIN: Final = 0.05
"""A contribution is named as a reason where it is at least this share of all differences of its kind."""


class Node(msgspec.Struct, frozen=True):
    """One contribution: its depth in the tree, its name, and its value in each request (None: it has none)."""

    depth: int
    name: str
    values: tuple[Value, ...]
    unit: str = "ms"


_QUANTITIES: Final = (
    ("fetched", "fetch_bytes", "bytes"),
    ("media decode, processor time", "media_cpu_ms", "ms"),
    ("picture processor, processor time", "processor_cpu_ms", "ms"),
    ("vision encoder, its share of batches", "encoder_ms", "ms"),
    ("language model, its share of steps", "engine_token_ms", "token-ms"),
)
_TOKENS: Final = (
    ("text tokens", "text_tokens"),
    ("visual tokens", "visual_tokens"),
    ("of these in the engine's cache", "cached_tokens"),
    ("output tokens", "output_tokens"),
)


def tree(lines: Sequence[RequestLine], prices: Prices) -> list[Node]:
    """Return the tree of any number of requests, depth first."""

    def row(depth: int, name: str, read: Callable[[RequestLine], Value], unit: str = "ms") -> Node:
        return Node(depth, name, tuple(read(line) for line in lines), unit)

    nodes = [row(0, "time to first token", lambda line: line.ttft_ms)]
    nodes += [row(1, stage, lambda line, stage=stage: stages_of(line).get(stage)) for stage in STAGES]  # type: ignore[misc]
    nodes.append(row(1, "unattributed", lambda line: line.unattributed_ms))
    nodes.append(row(0, "after it", lambda line: None if line.ttft_ms is None else line.total_ms - line.ttft_ms))
    money = [priced(spent_of(line), prices) for line in lines]
    nodes.append(Node(0, "cost", tuple(each.total for each in money), "money"))
    for name in ("egress", "cpu", "encoder", "llm"):
        nodes.append(Node(1, name, tuple(getattr(each, name) for each in money), "money"))
    nodes.append(row(0, "what it took", lambda line: None, ""))
    for name, field, unit in _QUANTITIES:
        nodes.append(row(1, name, lambda line, field=field: getattr(line, field), unit))  # type: ignore[misc]
    for name, field in _TOKENS:
        nodes.append(row(2, name, lambda line, field=field: getattr(line, field), "tokens"))  # type: ignore[misc]
    nodes.append(row(1, "spared by caches and shared work", lambda line: line.cache_saved_ms))
    for place in range(max(len(line.items) for line in lines)):
        nodes += _item([line.items[place] if place < len(line.items) else None for line in lines], place)
    return [node for node in nodes if node.unit == "" or any(node.values) or node.depth == 0]


def _item(items: Sequence[ItemLine | None], place: int) -> list[Node]:
    def row(name: str, read: Callable[[ItemLine], Value], unit: str = "ms") -> Node:
        return Node(2, name, tuple(None if item is None else read(item) for item in items), unit)

    head = Node(1, f"item {next(item.index for item in items if item is not None)}", tuple(map(_found, items)), "text")
    return [
        head,
        row("fetched", lambda item: item.fetch_bytes, "bytes"),
        row("media decode", lambda item: item.media_cpu_ms),
        row("picture processor", lambda item: item.processor_cpu_ms),
        row("vision encoder", lambda item: item.encoder_ms),
        row("spared", lambda item: item.cache_saved_ms),
    ]


def _found(item: ItemLine | None) -> str | None:
    if item is None:
        return None
    return "made" if item.found is None else f"found: {item.found.replace('_', ' ')}"


def reasons(first: RequestLine, second: RequestLine) -> list[str]:
    """Return sentences on what makes the second request differ from the first, the largest contributions named."""
    said: list[str] = []
    if first.ttft_ms is not None and second.ttft_ms is not None:
        parts = {stage: _difference(first, second, f"{stage}_ms") for stage in (*STAGES, "unattributed")}
        late = second.ttft_ms - first.ttft_ms
        said.append(
            f"The second's first token came {abs(late):.1f} ms {'later' if late > 0 else 'earlier'}: {_named(parts)}."
        )
    work = {name: _difference(first, second, field) for name, field, unit in _QUANTITIES if unit != "bytes"}
    more = sum(work.values())
    said.append(
        f"It took {abs(more):.1f} ms {'more' if more > 0 else 'less'} of processors and devices: {_named(work)}."
    )
    return said


def _difference(first: RequestLine, second: RequestLine, field: str) -> float:
    return (getattr(second, field) or 0.0) - (getattr(first, field) or 0.0)


def _named(parts: dict[str, float]) -> str:
    whole = sum(map(abs, parts.values()))
    named = sorted(parts.items(), key=lambda part: -abs(part[1]))
    shown = [f"{name} {ms:+.1f}" for name, ms in named if whole and abs(ms) / whole >= REASON_SHARE_MIN]
    return ", ".join(shown) or "no contribution differs"
