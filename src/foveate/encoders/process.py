"""The encode worker's process: a vision tower on a thread, and nothing of the language model.

The main thread receives, so that a ping is answered while a batch runs. The tower's thread takes the process with it when it ends
unexpectedly: the gateway then gives its pictures to another worker.
"""

from __future__ import annotations

import logging
from typing import Any, Final

import msgspec
import numpy as np
import torch

from foveate.core.errors import StartupError
from foveate.core.media import ImageOptions
from foveate.encoders.messages import CancelEncode, EncodeBatch, EncoderConfig, EncoderInfo
from foveate.encoders.worker import EncoderThread
from foveate.models.loading import load_picture_processor, load_vision
from foveate.models.own_encoder import load_own_processor, load_own_tower
from foveate.models.own_source import source_of
from foveate.models.port import PictureProcessor, VisionTower
from foveate.runtime.dying_threads import end_with_any_thread
from foveate.runtime.port import Progress, Ready, WorkerContext
from foveate.runtime.pulse import Ping, Pong

_LOG = logging.getLogger("foveate.encoder")

_CLOSE_SECONDS = 10.0
_SIDE: Final = 224
"""Pixels of a side of the picture that warms up, as of the one that a server takes through all its processes when it starts."""
_GREY: Final = 128


def main(context: WorkerContext) -> None:
    """Entry point of the worker. Raises StartupError when the model cannot be loaded, or cannot take a picture."""
    config = msgspec.convert(context.spec.config, EncoderConfig)
    end_with_any_thread(_LOG)
    tower = _load(config, context)
    encoder = EncoderThread(
        tower,
        context,
        queue_max=config.queue_max,
        batch_max=config.batch_max,
        batch_tokens_max=config.batch_tokens_max,
        threads=context.spec.threads,
    )
    context.send(Progress("warming up"))
    encoder.start(_grey_picture(config))
    info = EncoderInfo(tower.encoder_version, tower.embedding_bytes_per_row)
    context.send(Ready(msgspec.to_builtins(info)))
    try:
        while (message := context.receive()) is not None:
            dispatch(message, encoder, context)
    finally:
        encoder.close(_CLOSE_SECONDS)


def _load(config: EncoderConfig, context: WorkerContext) -> VisionTower:
    if config.own_encoder:
        return load_own_tower(config.model_dir, config.own_encoder, device=config.device, dtype=config.dtype)[0]
    return load_vision(
        config.model_dir, device=config.device, dtype=config.dtype, progress=lambda text: context.send(Progress(text))
    )[0]


def _grey_picture(config: EncoderConfig) -> dict[str, torch.Tensor]:
    """Return the inputs of a picture that nobody sent. A worker that replaces another has no time to be given one by a media worker."""
    own = config.own_encoder
    try:
        processor: PictureProcessor = (
            load_own_processor(config.model_dir, own, source_of(own))
            if own
            else load_picture_processor(config.model_dir)
        )
        pixels = np.full((_SIDE, _SIDE, 3), _GREY, np.uint8)
        processed = processor.process(pixels, ImageOptions())
    except StartupError:
        raise
    except Exception as error:  # Foreign code raises whatever it comes upon.
        raise StartupError(
            f"The model's processor failed on a picture of {_SIDE}x{_SIDE}: {type(error).__name__}.", detail=repr(error)
        ) from error
    return {name: torch.from_numpy(array) for name, array in processed.arrays.items()}


def dispatch(message: Any, encoder: EncoderThread, context: WorkerContext) -> None:
    """Hand a message to the thread, or answer it."""
    match message:
        case EncodeBatch():
            encoder.submit(*message.works)
        case CancelEncode():
            encoder.cancel(message)
        case Ping():
            context.send(Pong())
