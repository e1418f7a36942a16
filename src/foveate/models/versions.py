"""Versions of a processor and an encoder:

hashes of whatever changes their results. A changed file is a changed cache key.

The encoder's covers its weights, vision configuration and dtype; the processor's its configuration, backend and
libraries. Weights are read from disk in place, so nothing is loaded twice. Does not cover hardware: two devices may
differ in the last bits of an embedding.
"""

from __future__ import annotations

import json
import mmap
import re
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import msgspec
from blake3 import blake3

from foveate.core.errors import StartupError
from foveate.core.media import Appearance
from foveate.models.sizing import image_arguments

FORMAT = 2
"""Raise when this package itself comes to make something else of the same processor output."""

DECODERS = ("imagecodecs", "pillow", "simplejpeg")
"""The packages whose code turns encoded pictures into pixels."""

_LANGUAGE_ONLY = re.compile(r"(^|\.)(language_model|text_model|lm_head)\.|^(model\.)?(layers|embed_tokens|norm)\.")
_BOOKKEEPING = frozenset(
    {
        "_name_or_path", "name_or_path", "transformers_version", "architectures", "dtype", "torch_dtype", "tokenizer",
        "video_processor", "chat_template", "text_config", "auto_map", "processor_class",
    }
)  # fmt: skip


def processor_version(processor: Any, picture_token_id: int, appearance: Appearance, *, pixels: bool = False) -> str:
    """Return the hexadecimal version (64 characters) of a processor's image side, and of how the pictures it is given are decoded.

    ``pixels``: of what is handed over as pixels (:mod:`foveate.models.pixels`), which is never to be taken for model inputs.
    """
    import torchvision
    import transformers

    described = {
        "format": FORMAT,
        "appearance": msgspec.to_builtins(appearance),
        "decoders": {name: version(name) for name in DECODERS},
        "processor": type(processor).__name__,
        "settings": _meaning(processor.to_dict()),
        "image": _meaning(processor.image_processor.to_dict()),
        "fixed": image_arguments(processor, {}),
        "backend": processor.image_processor.backend,
        "token": processor.tokenizer.convert_ids_to_tokens(picture_token_id),
        "transformers": transformers.__version__,
        "torchvision": torchvision.__version__,
    }
    if pixels:
        described["form"] = "pixels"
    return _digest(described)


def own_version(spec: str, stated: str, **what: Any) -> str:
    """Return the hexadecimal version (64 characters) of an operator's own encoder, made of the one that it states; ``what`` else counts.

    With ``appearance`` it is that of its processor, which gets its pixels from our decoders.
    """
    described = {
        "format": FORMAT,
        "own": spec,
        "stated": stated,
        **{key: msgspec.to_builtins(value) for key, value in what.items()},
    }
    if "appearance" in what:
        described["decoders"] = {name: version(name) for name in DECODERS}
    return _digest(described)


def encoder_version(directory: Path, config: Any, dtype: str) -> str:
    """Return the hexadecimal version (64 characters) of a checkpoint's vision tower and projector run in ``dtype``.

    Every tensor is covered that is not the language model's own by its name, so one of an unknown name is covered too.
    Raises StartupError when the directory has no weights.
    """
    hasher = blake3(_digest({"format": FORMAT, "config": _meaning(config.to_dict()), "dtype": dtype}).encode())
    files = weight_files(directory)
    # Names are sorted over all files: sharding the same weights differently is the same encoder.
    places = sorted((name, path, entry) for path in files for name, entry in _entries(path).items())
    for name, path, (dtype_name, shape, start, end) in places:
        hasher.update(json.dumps([name, dtype_name, shape]).encode())
        with (
            path.open("rb") as file,
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped,
            memoryview(mapped) as view,
            view[start:end] as weights,
        ):
            hasher.update(weights)
    return hasher.hexdigest()


def is_language(name: str) -> bool:
    """Tell whether a weight is the language model's own, by its name."""
    return _LANGUAGE_ONLY.search(name) is not None


def weight_files(directory: Path) -> list[Path]:
    """Return a checkpoint's safetensors files. Raises StartupError when there is none."""
    files = sorted(directory.glob("model*.safetensors"))
    if not files:
        raise StartupError(
            f"The model in {directory} has no model*.safetensors; convert its weights to safetensors first."
        )
    return files


_Entry = tuple[str, list[int], int, int]


def _entries(path: Path) -> dict[str, _Entry]:
    """Read a safetensors header: dtype, shape and byte range in the file of each tensor that belongs to the encoder."""
    with path.open("rb") as file:
        size = int.from_bytes(file.read(8), "little")
        if size > 1 << 27:
            raise StartupError(f"{path.name} is not a safetensors file.")
        header: dict[str, Any] = json.loads(file.read(size))
    base = 8 + size
    return {
        name: (entry["dtype"], entry["shape"], base + entry["data_offsets"][0], base + entry["data_offsets"][1])
        for name, entry in header.items()
        if name != "__metadata__" and not is_language(name)
    }


def _meaning(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: _meaning(value) if isinstance(value, Mapping) else value
        for name, value in settings.items()
        if name not in _BOOKKEEPING
    }


def _digest(described: Mapping[str, Any]) -> str:
    return blake3(json.dumps(described, sort_keys=True, default=repr).encode()).hexdigest()
