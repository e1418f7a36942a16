"""The engine process: Foveate's vision encoder on a thread, vLLM's front end on the event loop, vLLM's core and workers as its children.
Where pictures go in as pixels there is no encoder of ours; vLLM's processor has a thread instead.

A thread that ends unexpectedly takes the process with it, and so does the death of vLLM's core, so that the gateway restarts the
engine instead of waiting for answers that never come.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import msgspec

from foveate.core.errors import EncodeFailed, StartupError
from foveate.encoders.messages import CancelEncode, Encode, EncodeRejected
from foveate.encoders.worker import EncoderThread, start_encoder
from foveate.engines.embedded.detokenize import Vocabulary
from foveate.engines.messages import Cancel, Generate
from foveate.engines.port import EngineInfo
from foveate.engines.vllm.config import PIXEL_FAMILIES, VllmConfig
from foveate.engines.vllm.environment import before_handing_on, before_import, before_start
from foveate.engines.vllm.messages import LetGo, Prefill, TokenDecode
from foveate.engines.vllm.socket_files import SocketFiles
from foveate.engines.vllm.versions import HANDING_ON, check_interfaces, check_version
from foveate.models.loading import load_vision, read_vision
from foveate.models.own_encoder import load_own_tower
from foveate.runtime.dying_threads import end_with_any_thread
from foveate.runtime.port import Progress, Ready, WorkerContext
from foveate.runtime.pulse import Ping, Pong

if TYPE_CHECKING:
    from foveate.engines.vllm.pixels import PixelPrompts

_LOG = logging.getLogger("foveate.engine")

_CLOSE_SECONDS = 1.0


def main(context: WorkerContext) -> None:
    """Entry point of the worker. Raises StartupError when the model cannot be loaded or vLLM cannot take it."""
    config = msgspec.convert(context.spec.config, VllmConfig)
    end_with_any_thread(_LOG)
    before_import()
    sockets = before_start(config, threads=context.spec.threads)
    kept = before_handing_on(config) if config.role else None
    try:
        asyncio.run(_serve(context, config, sockets))
    finally:
        sockets.remove()
        if kept is not None:
            kept.close()


async def _serve(context: WorkerContext, config: VllmConfig, sockets: SocketFiles) -> None:
    _check(config)
    from foveate.engines.vllm.encoder_times import EncoderTimes
    from foveate.engines.vllm.launch import launch

    context.send(Progress("starting vLLM"))
    times = EncoderTimes() if config.family in PIXEL_FAMILIES else None
    # First of all: vLLM's processes are forked from this one, which must not have computed anything yet.
    engine, grammars = launch(config)
    encoder: EncoderThread | None = None
    if times is None:
        prompts, encoder, info = _with_our_encoder(context, config, engine)
        host = _host(context, config, engine, grammars, prompts)
    else:
        prompts, pixels, info = _with_its_own(context, config, engine)
        host = _host(context, config, engine, grammars, prompts, pixels=(pixels, times))
    context.send(Ready(msgspec.to_builtins(info)))
    loop = asyncio.get_running_loop()
    watches = (
        loop.create_task(host.watch(), name="watch vLLM's core"),
        loop.create_task(host.watch_steps(config.step_seconds_max), name="watch vLLM's steps"),
    )
    try:
        await _receive(context, host, encoder)
    finally:
        for watch in watches:
            watch.cancel()
        if encoder is not None:
            encoder.close(_CLOSE_SECONDS)
    _end(sockets)


def _end(sockets: SocketFiles) -> NoReturn:
    """End this process now, and vLLM's others with it.

    Asked to stop, vLLM's core takes five seconds and more to free what the kernel frees as well, and letting go of its front end asks it.
    """
    logging.shutdown()
    sockets.remove()
    os._exit(0)


def _with_our_encoder(
    context: WorkerContext, config: VllmConfig, engine: Any
) -> tuple[Any, EncoderThread | None, EngineInfo]:
    """Load our encoder: pictures go in as embeddings."""
    from foveate.engines.vllm.handover import Handover
    from foveate.engines.vllm.launch import kv_bytes_per_token, rows_max
    from foveate.engines.vllm.pictures import Prompts

    if config.own_encoder:
        tower, vision = load_own_tower(config.model_dir, config.own_encoder, device=config.device, dtype=config.dtype)
    else:
        tower, vision = load_vision(
            config.model_dir,
            device=config.device,
            dtype=config.dtype,
            progress=lambda text: context.send(Progress(text)),
        )
    prompts = Prompts(
        context.arena,
        picture_token=vision.picture_token,
        merge=vision.merge,
        bytes_per_row=tower.embedding_bytes_per_row,
        rows_max=rows_max(engine),
        handover=Handover(bytes_max=config.embeddings_bytes_max) if config.by_name else None,
    )
    info = EngineInfo(
        config.model,
        tower.encoder_version,
        tower.embedding_bytes_per_row,
        int(engine.model_config.max_model_len),
        kv_bytes_per_token=kv_bytes_per_token(engine) if config.role else 0,
        picture_token_id=vision.picture_token,
        embedding_dtype=tower.embedding_dtype,
        embedding_levels=tower.embedding_levels,
    )
    encoder = start_encoder(tower, context, config) if config.encoder else None
    return prompts, encoder, info


def _with_its_own(context: WorkerContext, config: VllmConfig, engine: Any) -> tuple[Any, PixelPrompts, EngineInfo]:
    """Load no encoder: pictures go in as pixels."""
    from foveate.engines.vllm.launch import rows_max
    from foveate.engines.vllm.pictures import Prompts
    from foveate.engines.vllm.pixels import PixelPrompts

    dtype = str(engine.model_config.dtype).removeprefix("torch.")
    version, token = read_vision(config.model_dir, dtype=dtype)
    rows = rows_max(engine)
    texts = Prompts(context.arena, picture_token=token, merge=None, bytes_per_row=0, rows_max=rows)
    pixels = PixelPrompts(context.arena, engine.renderer.get_mm_processor(), picture_token=token, rows_max=rows)
    info = EngineInfo(config.model, version, 0, int(engine.model_config.max_model_len), picture_token_id=token)
    return texts, pixels, info


def _host(context: WorkerContext, config: VllmConfig, engine: Any, *given: Any, pixels: Any = None) -> Any:
    """``given``: what checks grammars, and what makes vLLM's inputs of prompts."""
    from foveate.engines.vllm.host import Host
    from foveate.engines.vllm.parsing import Parsers

    grammars, prompts = given
    return Host(
        engine,
        prompts,
        Vocabulary.load(Path(config.model_dir)),
        context,
        grammars=grammars,
        parsers=Parsers(engine, config),
        batch_size_max=config.batch_size_max,
        queue_depth_max=config.queue_depth_max,
        pixels=pixels,
    )


def _check(config: VllmConfig) -> None:
    """Raise StartupError for a vLLM that cannot be used."""
    try:
        import vllm
    except ImportError as error:
        raise StartupError(f"vLLM cannot be imported: {error}", detail=repr(error)) from error
    check_version(vllm.__version__, untested_accepted=config.untested_version)
    check_interfaces(vllm.__version__)
    if config.role:
        check_interfaces(vllm.__version__, HANDING_ON)


async def _receive(context: WorkerContext, host: Any, encoder: EncoderThread | None) -> None:
    """Hand messages to the thread or the loop they are for, until the gateway is gone or asks to stop."""
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()

    def hand_over(to: Callable[[Any], None], message: Any) -> None:
        loop.call_soon_threadsafe(to, message)

    def read() -> None:
        while (message := context.receive()) is not None:
            match message:
                case Ping():
                    context.send(Pong())
                case Generate() | Prefill() | TokenDecode():
                    hand_over(host.submit, message)
                case LetGo():
                    hand_over(host.let_go, message)
                case Cancel():
                    hand_over(host.cancel, message)
                case Encode() if encoder is not None:
                    encoder.submit(message)
                case CancelEncode() if encoder is not None:
                    encoder.cancel(message)
                case Encode():
                    error = EncodeFailed(detail="this engine takes pixels, and no encoder of ours is loaded")
                    context.send(EncodeRejected(message.job_id, error.record()))
        loop.call_soon_threadsafe(ended.set)

    threading.Thread(target=read, name="receive", daemon=True).start()
    await ended.wait()
