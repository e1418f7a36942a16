"""The engine process: loads the model, then hands messages to its two threads.

The main thread receives; the encoder's and the language model's threads work. A thread that ends unexpectedly, or is
stuck in one step, takes the process with it, so that the gateway restarts the engine instead of waiting for answers
that never come.
"""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import Any

import msgspec
import torch

from foveate.decisions.batching import BatchLimits
from foveate.encoders.messages import CancelEncode, Encode
from foveate.encoders.worker import EncoderThread, start_encoder
from foveate.engines.embedded.batch_kv import BatchKV
from foveate.engines.embedded.detokenize import Vocabulary
from foveate.engines.embedded.handover import handover_size
from foveate.engines.embedded.loop import GenerationLoop
from foveate.engines.embedded.messages import EmbeddedConfig, Prefill, TokenDecode
from foveate.engines.messages import Cancel, Generate, PictureReady
from foveate.engines.port import EngineInfo
from foveate.models.loading import EncoderFacts, load_language, load_vision_and_language
from foveate.models.own_encoder import load_own_tower, own_facts
from foveate.models.port import LanguageModel, VisionTower
from foveate.runtime.dying_threads import end_with_any_thread
from foveate.runtime.port import Progress, Ready, WorkerContext
from foveate.runtime.pulse import Ping, Pong
from foveate.runtime.stuck_threads import end_with_stuck_step

_LOG = logging.getLogger("foveate.engine")

_SWITCH_SECONDS = 0.0005
"""How long one thread may keep the interpreter from another; the default of 5 ms would show in every token."""

_CLOSE_SECONDS = 10.0

_WARM_TOKENS = 8


def main(context: WorkerContext) -> None:
    """Entry point of the worker. Raises StartupError when the model cannot be loaded."""
    config = msgspec.convert(context.spec.config, EmbeddedConfig)
    sys.setswitchinterval(_SWITCH_SECONDS)
    end_with_any_thread(_LOG)
    torch.set_num_threads(context.spec.threads)
    tower, model = _load(config, context)
    vocabulary = Vocabulary.load(Path(config.model_dir))
    device = torch.device(config.device)
    context.send(Progress("warming up"))
    kv_bytes = warm_up(model, device)
    encoder = None if isinstance(tower, EncoderFacts) else start_encoder(tower, context, config)
    loop = GenerationLoop(
        model,
        vocabulary,
        context,
        limits=BatchLimits(config.batch_size_max, config.prefill_chunk_tokens, config.kv_tokens_max),
        queue_depth_max=config.queue_depth_max,
        embedding_bytes_per_row=tower.embedding_bytes_per_row,
        device=device,
        threads=context.spec.threads,
        prefix_bytes_max=config.prefix_cache_bytes_max,
    )
    loop.start()
    end_with_stuck_step(_LOG, "language-model", loop.steps, config.step_seconds_max)
    info = EngineInfo(
        config.model,
        tower.encoder_version,
        tower.embedding_bytes_per_row,
        model.context_tokens_max,
        *kv_bytes,
        picture_token_id=model.picture_token_id,
        embedding_dtype=tower.embedding_dtype,
        embedding_levels=tower.embedding_levels,
    )
    context.send(Ready(msgspec.to_builtins(info)))
    try:
        while (message := context.receive()) is not None:
            if isinstance(message, Ping):
                context.send(Pong())
            else:
                dispatch(message, loop, encoder)
    finally:
        loop.close(_CLOSE_SECONDS)
        if encoder is not None:
            encoder.close(_CLOSE_SECONDS)


def _load(config: EmbeddedConfig, context: WorkerContext) -> tuple[VisionTower | EncoderFacts, LanguageModel]:
    own = config.own_encoder
    load = load_vision_and_language if config.encoder and not own else load_language
    tower, model = load(
        config.model_dir, device=config.device, dtype=config.dtype, progress=lambda text: context.send(Progress(text))
    )
    if own:
        load_own = load_own_tower if config.encoder else own_facts
        tower, _ = load_own(config.model_dir, own, device=config.device, dtype=config.dtype)
    return tower, model


def dispatch(message: Any, loop: GenerationLoop, encoder: EncoderThread | None) -> None:
    """Hand a message to the thread it is for."""
    match message:
        case Generate() | Prefill() | TokenDecode():
            loop.submit(message)
        case Cancel() | PictureReady():
            loop.tell(message)
        case Encode() if encoder is not None:
            encoder.submit(message)
        case CancelEncode() if encoder is not None:
            encoder.cancel(message)


def warm_up(model: LanguageModel, device: torch.device) -> tuple[int, int]:
    """Run a short prompt and batches of one and two rows, so that the first request does not pay for lazy initialisation.

    Returns what a prompt's K/V take when they are handed on: bytes for each token, and bytes once.
    """
    token = min(model.eos_token_ids, default=0)
    prompt = [token] * _WARM_TOKENS
    with torch.inference_mode():
        cache = model.new_cache()
        positions = model.positions(prompt, [])
        logits = model.prefill(prompt, [], positions, cache, 0, len(prompt))
        kv = BatchKV(tokens_max=4 * _WARM_TOKENS)
        for rows in (1, 2):
            kv.join(cache)
            kv.reserve()
            tokens = torch.full((rows,), token, device=device)
            model.decode(tokens, torch.full((rows,), positions.next, device=device), kv.cache, kv.mask(device))
            kv.advance()
    return handover_size(cache, logits)
