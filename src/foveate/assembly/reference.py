"""The reference that a version's embeddings are held to, where they are."""

from __future__ import annotations

from foveate.assembly.engines import spare_cores
from foveate.decisions.agreement import Comparison
from foveate.encoders.reference_port import ReferenceConfig, ReferenceProcess
from foveate.engines.port import Engine
from foveate.models.files import ModelFiles
from foveate.runtime.port import Runtime
from foveate.settings import Settings


def reference_of(
    settings: Settings, files: ModelFiles, engine: Engine, *, runtime: Runtime, number: int
) -> ReferenceProcess | None:
    """Return it, not started; None where nothing is compared at the start: the embedded engine with its own encoder computes as
    transformers does, and where pictures go in as pixels there is no path of ours that could differ.
    """
    split = settings.engine.kind == "vllm" or settings.topology.kind != "agg"
    if settings.model.encoder or not settings.engine.self_check or not split or "embeddings" not in engine.accepts:
        return None
    return ReferenceProcess(
        runtime, ReferenceConfig(files.directory), index=number, threads=settings.engine.threads or spare_cores()
    )


def agreed(found: Comparison, reference: ReferenceProcess) -> str:
    """Return the line of a comparison that went well. The reference is made while the engine starts, so its time is told apart."""
    return (
        f"embeddings agree with transformers': {found.rows} rows, cosine {found.cosine_mean:.5f} (least {found.cosine_min:.5f}), "
        f"log-probabilities within {found.logprob_difference:.4f}; {found.seconds:.2f} s, "
        f"and {reference.info.seconds:.2f} s beside the engine's start"
    )
