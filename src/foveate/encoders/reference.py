"""The process that makes reference embeddings, by transformers alone."""

from __future__ import annotations

from time import monotonic

import msgspec
import torch

from foveate.core.errors import StartupError
from foveate.encoders.reference_port import ReferenceConfig, ReferenceInfo, Referred
from foveate.encoders.tensors import write_embeddings
from foveate.models.check_picture import QUESTION, check_picture
from foveate.models.port import Embeddings
from foveate.models.reference import reference
from foveate.runtime.port import Ready, WorkerContext


def main(context: WorkerContext) -> None:
    """Entry point of the worker. Raises StartupError when the model cannot be loaded, or fails on the picture."""
    started = monotonic()
    config = msgspec.convert(context.spec.config, ReferenceConfig)
    torch.set_num_threads(context.spec.threads)
    try:
        made = reference(config.model_dir, check_picture(), QUESTION, tokens=config.tokens)
    except StartupError:
        raise
    except Exception as error:  # Foreign files and code raise whatever they come upon.
        raise StartupError(
            "The self-check of embeddings cannot be made: transformers fails on the model or on its picture; the log tells more, and "
            "engine.self_check off starts without it.",
            detail=f"{type(error).__name__}: {error}",
        ) from error
    found, answered = made.embeddings, made.answered
    info = ReferenceInfo(
        rows=found.rows.shape[0],
        levels=len(found.deep),
        values=found.rows.numel() * (1 + len(found.deep)),
        meta=made.meta,
        drawn=[] if answered is None else answered.token_ids,
        top=[] if answered is None else answered.top,
        seconds=monotonic() - started,
    )
    context.send(Ready(msgspec.to_builtins(info, str_keys=True)))
    while (message := context.receive()) is not None:
        dtype = getattr(torch, message.dtype)
        cast = Embeddings(found.rows.to(dtype), tuple(level.to(dtype) for level in found.deep))
        context.send(Referred(write_embeddings(context.arena, message.out, cast)))
