"""Settings of the vLLM engine."""

from __future__ import annotations

import json
from typing import Any, Literal

from foveate.settings.declare import Bytes, MiB, Names, Section, setting


class VllmSettings(Section):
    """The vLLM engine (docs/vllm.md). What it shares with the embedded one is in the section engine."""

    kv_cache_bytes: Bytes = setting(
        0, "Bytes of KV cache; 0: 1 GiB on a CPU, elsewhere what vLLM takes by itself (gpu_memory_utilization).", low=0
    )
    embeddings: Literal["inline", "connector"] = setting(
        "connector",
        "How embeddings reach vLLM's workers: by name, from memory files that they map, or with the request (docs/vllm.md).",
    )
    embeddings_bytes_max: Bytes = setting(
        256 * MiB,
        "Bytes of these memory files, beside the arena; pictures that find no room go with their request.",
        low=0,
    )
    compile: Literal["auto", "on", "off"] = setting(
        "auto",
        "Whether vLLM compiles the model; auto: on an accelerator, not on a CPU, where it costs a minute at start.",
    )
    tool_call_parser: str = setting(
        "",
        "How the model writes calls of tools, by the name of vLLM's parser (hermes for Qwen's, as vLLM's --tool-call-parser). Empty: it "
        "cannot choose by itself to call one (tool_choice auto).",
    )
    reasoning_parser: str = setting(
        "", "How the model marks its reasoning, by the name of vLLM's parser. Empty: it is part of the answer's text."
    )
    args: Names = setting(
        (),
        "Further arguments of vLLM's AsyncEngineArgs, name=value with JSON values, comma-separated: tensor_parallel_size=2.",
    )
    untested_version: bool = setting(
        False,
        "Start with a version of vLLM that docs/vllm.md does not list as tested. Its interfaces are probed all the same.",
    )

    def arguments(self) -> dict[str, Any]:
        """Return ``args`` as a mapping; a value that is not JSON is text. Raises ValueError for one without a name."""
        found: dict[str, Any] = {}
        for entry in self.args:
            name, equals, value = entry.partition("=")
            if not equals or not name.strip().isidentifier():
                raise ValueError(f"{entry!r} is not name=value")
            try:
                found[name.strip()] = json.loads(value)
            except ValueError:
                found[name.strip()] = value.strip()
        return found
