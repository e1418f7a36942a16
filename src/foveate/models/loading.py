"""From a model's files to its four faces.

Whatever is wrong with them raises StartupError with one sentence for the operator. Code from checkpoints is never run. Does not cover
where the files are (:mod:`foveate.models.files`), quantised weights, or formats other than safetensors.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from foveate.core.errors import StartupError
from foveate.core.media import AS_VIEWERS_SHOW, Appearance
from foveate.models.families import Family, family_of, picture_token_id, wrong_transformers
from foveate.models.files import ModelFiles, read_config
from foveate.models.memory import held_dtype, weight_bytes
from foveate.models.port import LanguageModel, PictureProcessor, PromptSide, VisionTower
from foveate.models.versions import encoder_version, is_language, processor_version, weight_files

_PROCESSOR_INTERFACE = ("_process_images", "_merge_kwargs", "valid_processor_kwargs")


def load_prompt_side(
    files: ModelFiles, appearance: Appearance = AS_VIEWERS_SHOW, *, pixels: bool = False
) -> PromptSide:
    """Load what the gateway needs: configuration, tokenizer, processor settings. Raises StartupError.

    ``appearance`` is how pictures are decoded; it is part of the processor version. ``pixels``: they are handed to the engine as pixels.
    """
    from foveate.models.prompt import TransformersPromptSide

    family, processor, config = load_processor(files.directory)
    with _foreign("processor", files.directory):
        version = processor_version(processor, picture_token_id(config), appearance, pixels=pixels)
        return TransformersPromptSide(family, processor, config, version, pixels=pixels)


def load_picture_processor(
    directory: str, appearance: Appearance = AS_VIEWERS_SHOW, *, pixels: bool = False
) -> PictureProcessor:
    """Load what a media worker needs: the processor, or its part where the engine is handed ``pixels``. Raises StartupError."""
    from foveate.models.picture import TransformersPictureProcessor
    from foveate.models.pixels import TransformersPixelProcessor

    family, processor, config = load_processor(directory)
    with _foreign("processor", directory):
        version = processor_version(processor, picture_token_id(config), appearance, pixels=pixels)
        made = TransformersPixelProcessor if pixels else TransformersPictureProcessor
        return made(family, processor, config, version)


def load_processor(directory: str) -> tuple[Family, Any, Any]:
    """Return the family, transformers' processor and configuration. Raises StartupError."""
    from transformers import AutoConfig, AutoProcessor

    family = family_of(read_config(Path(directory), directory), directory)
    with _foreign("processor", directory):
        config = AutoConfig.from_pretrained(directory, local_files_only=True)
        processor = AutoProcessor.from_pretrained(directory, local_files_only=True)
    missing = [name for name in _PROCESSOR_INTERFACE if not hasattr(processor, name)]
    if missing:
        raise wrong_transformers(f"the processor's {' and '.join(missing)}")
    image = getattr(processor, "image_processor", None)
    if image is None or getattr(image, "backend", None) != "torchvision" or image.do_resize is False:
        raise StartupError(f"The model in {directory} has no image processor that resizes pictures with torchvision.")
    return family, processor, config


def load_vision_and_language(
    directory: str, *, device: str, dtype: str, progress: Callable[[str], None] | None = None
) -> tuple[VisionTower, LanguageModel]:
    """Load the weights once, for both faces.

    ``device`` is a torch device (``cpu``, ``cuda:0``). ``dtype`` is ``float32``, ``bfloat16`` or ``auto``: the
    checkpoint's own on an accelerator, float32 on a CPU, where bfloat16 makes a sequence's tokens depend on its batch
    and is often slower. ``progress`` is given one line at a time. Raises StartupError when an accelerator's memory does
    not suffice (main memory is asked about in :mod:`foveate.models.memory`) or the weights cannot be read.
    """
    from foveate.models.language import TransformersLanguageModel
    from foveate.models.tower import TransformersVisionTower

    family, model, version = _load(directory, device, dtype, progress)
    return TransformersVisionTower(family, model, version), TransformersLanguageModel(family, model)


class VisionFacts(msgspec.Struct, frozen=True):
    """What an engine that is not ours needs to know of a model's pictures.

    ``picture_token`` is the id whose rows are embeddings; ``merge`` the side of the square of patches that one row stands for, None where
    the model has no grid of patches.
    """

    picture_token: int
    merge: int | None


def load_vision(
    directory: str, *, device: str, dtype: str, progress: Callable[[str], None] | None = None
) -> tuple[VisionTower, VisionFacts]:
    """Load the vision tower alone, for a process whose language model is another's. Arguments and errors as above.

    Of the language model nothing is read: it is made without layers and with one token, so that its weights have no place in it. What is
    left of it is let go.
    """
    import torch

    from foveate.models.tower import TransformersVisionTower

    family, model, version = _load(directory, device, dtype, progress, vision_only=True)
    tower = TransformersVisionTower(family, model, version)
    for owner, part in ((model.base_model, "language_model"), (model, "lm_head")):
        if hasattr(owner, part):
            setattr(owner, part, torch.nn.Module())
    merge = (
        getattr(model.config.vision_config, "spatial_merge_size", None) if "image_grid_thw" in family.inputs else None
    )
    return tower, VisionFacts(picture_token_id(model.config), merge)


class EncoderFacts(msgspec.Struct, frozen=True):
    """What a process without a vision tower has to know of the one that encodes for it (:class:`VisionTower`)."""

    encoder_version: str
    embedding_bytes_per_row: int
    embedding_dtype: str
    embedding_levels: int


def load_language(
    directory: str, *, device: str, dtype: str, progress: Callable[[str], None] | None = None
) -> tuple[EncoderFacts, LanguageModel]:
    """Load the language model alone, for a process whose pictures others encode. Arguments and errors as above.

    The vision tower is read too and let go at once.
    """
    import torch

    from foveate.models.language import TransformersLanguageModel
    from foveate.models.tower import TransformersVisionTower

    family, model, version = _load(directory, device, dtype, progress)
    tower = TransformersVisionTower(family, model, version)
    facts = EncoderFacts(
        tower.encoder_version, tower.embedding_bytes_per_row, tower.embedding_dtype, tower.embedding_levels
    )
    for name, _ in list(model.base_model.named_children()):
        if name != "language_model":
            setattr(model.base_model, name, torch.nn.Module())
    return facts, TransformersLanguageModel(family, model)


def read_vision(directory: str, *, dtype: str) -> tuple[str, int]:
    """Return the encoder version and the picture token for an engine that loads the tower itself, in ``dtype`` (``float32``). Reads the
    weights' bytes, and keeps none. Raises StartupError.
    """
    from transformers import AutoConfig

    with _foreign("configuration", directory):
        config = AutoConfig.from_pretrained(directory, local_files_only=True)
        return encoder_version(Path(directory), config, dtype), picture_token_id(config)


def _load(
    directory: str, device: str, dtype: str, progress: Callable[[str], None] | None, *, vision_only: bool = False
) -> tuple[Family, Any, str]:
    """Return the family, transformers' model and the encoder version."""
    import torch

    report = progress or (lambda text: None)
    family = family_of(read_config(Path(directory), directory), directory)
    if dtype not in ("auto", "float32", "bfloat16"):
        raise StartupError(f'"{dtype}" is not a dtype; choose auto, float32 or bfloat16.')
    if device != "cpu" and not device.startswith("cuda"):
        raise StartupError(f'"{device}" is not a device; choose cpu or cuda.')
    if device.startswith("cuda") and not torch.cuda.is_available():
        raise StartupError(f"There is no CUDA device here for {device}; choose the device cpu.")
    if device.startswith("cuda") and (torch.device(device).index or 0) >= torch.cuda.device_count():
        raise StartupError(
            f"There is no {device} here: CUDA devices are counted from 0, and there are {torch.cuda.device_count()}."
        )
    wanted = held_dtype(dtype, device)
    stored = sum(path.stat().st_size for path in weight_files(Path(directory)))
    report(f"loading weights ({stored / 1e6:.0f} MB on disk)")
    started = time.monotonic()
    model = _load_weights(directory, device, wanted, vision_only=vision_only)
    report(f"weights loaded in {time.monotonic() - started:.1f} s, hashing the vision tower")
    version = encoder_version(Path(directory), model.config, str(model.dtype).removeprefix("torch."))
    return family, model, version


def _load_weights(directory: str, device: str, dtype: str, *, vision_only: bool = False) -> Any:
    import torch
    from transformers import AutoModelForImageTextToText
    from transformers.utils import logging

    from foveate.models.patch_embed import as_products

    if device != "cpu" and not vision_only:
        _check_device_memory(directory, device, dtype)
    logging.disable_progress_bar()
    given: dict[str, Any] = {}
    try:
        if vision_only:
            given = {"config": _without_language(directory), "ignore_mismatched_sizes": True}
        with _no_report():
            model, found = AutoModelForImageTextToText.from_pretrained(
                directory, dtype=dtype, local_files_only=True, output_loading_info=True, **given
            )
        unfit = (name for name, *_ in found["mismatched_keys"] if not is_language(name))
        _check_complete(directory, (*found["missing_keys"], *unfit))
        as_products(model)
        return model.to(device).eval()
    except StartupError:
        raise
    except torch.OutOfMemoryError as error:
        raise StartupError(f"The model does not fit into the memory of {device}.", detail=str(error)) from error
    except Exception as error:  # Loaders of foreign files raise whatever they come upon.
        raise StartupError(
            f"The weights of the model in {directory} cannot be loaded: {_first_line(error)}", detail=str(error)
        ) from error


@contextmanager
def _no_report() -> Iterator[None]:
    """transformers prints a table of all weights that it has no place for, or lacks. What is lacking is judged here, by an error."""
    from transformers.utils import logging

    before = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(before)


def _without_language(directory: str) -> Any:
    """Return the model's configuration with a language model of no layers and one token."""
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(directory, local_files_only=True)
    text = config.get_text_config()
    text.num_hidden_layers, text.vocab_size, text.pad_token_id = 0, 1, None
    if getattr(text, "layer_types", None) is not None:
        text.layer_types = []
    return config


def _check_complete(directory: str, missing: Iterable[str]) -> None:
    """Raise StartupError for weights that the files lack: transformers makes them up at random, and only warns."""
    names = sorted(missing)
    if names:
        raise StartupError(
            f"The weights of the model in {directory} are incomplete: {names[0]}"
            f"{f' and {len(names) - 1} more are' if len(names) > 1 else ' is'} missing."
        )


def _check_device_memory(directory: str, device: str, dtype: str) -> None:
    """Raise StartupError when the weights do not fit into an accelerator's free memory."""
    import torch

    needed, free = weight_bytes(directory, dtype), int(torch.cuda.mem_get_info(torch.device(device))[0])
    if needed > free:
        raise StartupError(
            f"The model needs {needed / 1e9:.1f} GB on {device} and {free / 1e9:.1f} GB are free; "
            "free memory, choose bfloat16 or a smaller model."
        )


@contextmanager
def _foreign(what: str, directory: str) -> Iterator[None]:
    """Turn whatever foreign files bring about (a config.json of one family beside the processor of another) into StartupError."""
    try:
        yield
    except StartupError:
        raise
    except Exception as error:  # Loaders of foreign files raise whatever they come upon.
        raise StartupError(
            f"The {what} of the model in {directory} cannot be loaded: {_first_line(error)}", detail=str(error)
        ) from error


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0][:200] if lines else type(error).__name__
