"""What the vLLM engine's process is configured with."""

from __future__ import annotations

import math
from typing import Any, Final, Literal

import msgspec

FAMILIES: Final = frozenset(
    ("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "llava", "llava_next", "llava_onevision", "internvl")
)
"""Families of :data:`foveate.models.families.FAMILIES` whose embeddings vLLM takes (its own parsers refuse them for the others)."""

PIXEL_FAMILIES: Final = frozenset(("gemma3", "idefics3", "smolvlm", "pixtral", "mistral3"))
"""Families whose pictures go in as pixels: vLLM's own processor and encoder do the rest."""

CAUSAL_ON_CPU: Final = frozenset(("gemma3",))
"""Families whose pictures' tokens ought to see each other in both directions, which vLLM's attention on a CPU does not do (its
``cpu_attn`` has no ``supports_mm_prefix``), and says nothing of."""


class VllmConfig(msgspec.Struct, frozen=True):
    """The engine process's configuration; fields are the settings of the same names
    (:class:`foveate.settings.EngineSettings`, :class:`foveate.settings.VllmSettings`)."""

    model_dir: str
    model: str
    family: str
    device: str = "cpu"
    dtype: str = "float32"
    queue_depth_max: int = 256
    batch_size_max: int = 32
    encoder_queue_max: int = 256
    encoder_batch_max: int = 1
    encoder_batch_tokens_max: int = 0
    encoder: bool = True
    """Whether the process holds a vision tower."""
    role: Literal["", "p", "d"] = ""
    """With prefill and token decode apart: whether the process prefills prompts for others, or draws the tokens of what they prefilled."""
    own_encoder: str = ""
    """``package.module:Class`` of an operator's own vision encoder; empty: the checkpoint's."""
    kv_cache_bytes: int = 0
    """Bytes of KV cache; 0: 1 GiB on a CPU, elsewhere what vLLM takes by itself."""
    embeddings: Literal["inline", "connector"] = "connector"
    embeddings_bytes_max: int = 256 << 20
    step_seconds_max: float = 120.0
    eager: bool = True
    untested_version: bool = False
    tool_call_parser: str = ""
    reasoning_parser: str = ""
    args: dict[str, Any] = {}
    """Further fields of vLLM's ``AsyncEngineArgs``; they win over what Foveate would give."""

    @property
    def lease_seconds(self) -> int:
        """How long K/V are held for the process that is to read them, unless it says that it still will.

        It says so every sixth of this, but not within a step, and then gets two thirds of it (vLLM's connector). What is held no more may
        be another prompt's, and is read without a word: so two thirds must outlast a sixth and the longest step, after which a process
        counts as hung and is killed. What nobody will read is not left to this: its holder is told.
        """
        return math.ceil(2 * self.step_seconds_max) + 6

    @property
    def by_name(self) -> bool:
        """Whether embeddings go by name: not beside another connector, nor to workers that may be on another machine."""
        elsewhere = "nnodes" in self.args or self.args.get("distributed_executor_backend") == "ray"
        return self.embeddings == "connector" and "ec_transfer_config" not in self.args and not elsewhere
