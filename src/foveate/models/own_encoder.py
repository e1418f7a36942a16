"""An operator's own vision encoder in place of the checkpoint's (docs/encoder.md): the port it implements, and the faces made of it.

Importing this imports no torch. Does not cover families in which the prompt says more of a picture than how many embeddings it has, nor
those with DeepStack: they are refused."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from foveate.core.errors import StartupError
from foveate.core.media import Appearance, ImageOptions, ProcessorOptions
from foveate.models.asked import Takes, wanted
from foveate.models.families import Family, picture_token_id
from foveate.models.given import GivenPictures
from foveate.models.loading import EncoderFacts, ModelFiles, VisionFacts, load_processor
from foveate.models.memory import held_dtype
from foveate.models.port import ProcessedPicture, PromptSide, VisionTower, VisualEstimate
from foveate.models.prompt import TransformersPromptSide
from foveate.models.versions import own_version

if TYPE_CHECKING:
    import torch

_ITEM_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


class VisionEncoder(Protocol):
    """What an operator's class is asked. It is made once in each process that needs a part of it; only :meth:`load` may read weights.

    ``version`` is any text that changes whenever :meth:`grid`, :meth:`process` or :meth:`encode` come to give something else: it is in the
    keys of the caches, and a picture is never answered from embeddings of another version.
    """

    version: str

    def __init__(self, model_dir: str) -> None:
        """``model_dir`` is the directory of the model that is served."""

    def grid(self, width: int, height: int) -> tuple[int, int]:
        """Return rows and columns of the grid of embeddings of a picture of so many pixels. Their product is its visual tokens.

        Called in the gateway, often: it must take microseconds. Raise ValueError for a size that cannot be.
        """
        ...

    def process(self, pixels: np.ndarray) -> Mapping[str, np.ndarray]:
        """Turn ``pixels`` (uint8, [height, width, 3], RGB, upright) into what :meth:`encode` is given. Called in media workers."""
        ...

    def load(self, device: str, dtype: str) -> None:
        """Get ready to encode on a torch device, in ``float32`` or ``bfloat16``. Called once, where pictures are encoded."""
        ...

    def encode(self, inputs: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Return one picture's embeddings, [rows x columns, hidden size of the language model], row by row. ``inputs`` lie on the CPU."""
        ...


def own_encoder(spec: str, directory: str) -> VisionEncoder:
    """Make an instance of ``package.module:Class``. Raises StartupError."""
    module, _, name = spec.partition(":")
    try:
        made: VisionEncoder = getattr(importlib.import_module(module), name)(directory)
        version = made.version
    except Exception as error:  # Foreign code raises whatever it comes upon.
        raise StartupError(
            f"The encoder {spec} cannot be made: {type(error).__name__}: {str(error)[:200]}. Give package.module:Class, from PYTHONPATH."
        ) from error
    missing = [part for part in ("grid", "process", "load", "encode") if not callable(getattr(made, part, None))]
    if missing or not isinstance(version, str) or not version:
        raise StartupError(f"The encoder {spec} lacks {', '.join(missing) or 'a version'} (docs/encoder.md).")
    return made


class _Pictures:
    """What stands in the prompt for its pictures."""

    def __init__(self, encoder: VisionEncoder, family: Family, processor: Any, config: Any) -> None:
        if not family.takes_given or getattr(config.vision_config, "deepstack_visual_indexes", None):
            raise StartupError(f"{family.title} models cannot have another vision encoder than their own.")
        token: str = processor.tokenizer.convert_ids_to_tokens(picture_token_id(config))
        self._encoder = encoder
        self._given = GivenPictures(family, processor, config, token)
        self._merge: int | None = getattr(config.vision_config, "spatial_merge_size", None)
        self._has_grid = "image_grid_thw" in family.inputs
        self._extra = self._given.picture(1, self._patches(1, 1))[0].replace(token, "", 1) != ""

    def of(self, width: int, height: int) -> tuple[int, str, dict[str, list[int]]]:
        """Return embeddings, replacement and meta of a picture. Raises ValueError."""
        rows, columns = self._encoder.grid(width, height)
        return (rows * columns, *self._given.picture(rows * columns, self._patches(rows, columns)))

    def tokens(self, width: int, height: int) -> tuple[int, int]:
        """Return its prompt tokens, and those that carry an embedding. Raises ValueError."""
        rows, columns = self._encoder.grid(width, height)
        return rows * columns + 2 * self._extra, rows * columns

    def _patches(self, rows: int, columns: int) -> tuple[int, ...]:
        merge = self._merge or 1
        return (1, rows * merge, columns * merge) if self._has_grid else ()


class OwnPromptSide(TransformersPromptSide):
    """The gateway's face: prices by the operator's encoder, all else by the checkpoint."""

    def __init__(self, encoder: VisionEncoder, family: Family, processor: Any, config: Any, version: str) -> None:
        super().__init__(family, processor, config, version)
        self._pictures = _Pictures(encoder, family, processor, config)

    def options(self, options: ImageOptions) -> ImageOptions:
        """See the port: only the size to fit makes a difference."""
        return ImageOptions(fit_width=options.fit_width, fit_height=options.fit_height)

    def wanted(self, asked: ProcessorOptions) -> ImageOptions:
        """See the port: it cannot be told anything."""
        return wanted(asked, Takes(), self._title)

    def estimate(self, width: int, height: int, options: ImageOptions) -> VisualEstimate:
        """See the port. The inputs' bytes are a guess; a media worker says when they need more."""
        try:
            tokens, rows = self._pictures.tokens(width, height)
        except ValueError as error:
            raise shape_refused(width, height, error) from error
        return VisualEstimate(tokens, rows, width * height * 3 * 4 + 64)


class OwnPictureProcessor:
    """:class:`foveate.models.port.PictureProcessor` over the operator's encoder."""

    def __init__(self, encoder: VisionEncoder, family: Family, processor: Any, config: Any) -> None:
        self._encoder = encoder
        self._pictures = _Pictures(encoder, family, processor, config)

    def process(self, pixels: np.ndarray, options: ImageOptions) -> ProcessedPicture:
        """See the port."""
        height, width = pixels.shape[:2]
        try:
            rows, replacement, meta = self._pictures.of(width, height)
        except ValueError as error:
            raise shape_refused(width, height, error) from error
        arrays = {name: np.ascontiguousarray(array) for name, array in self._encoder.process(pixels).items()}
        return ProcessedPicture(replacement=replacement, rows=rows, arrays=arrays, meta=meta)


def load_own_prompt_side(files: ModelFiles, appearance: Appearance, spec: str) -> PromptSide:
    """As :func:`foveate.models.loading.load_prompt_side`. Raises StartupError."""
    encoder = own_encoder(spec, files.directory)
    family, processor, config = load_processor(files.directory)
    return OwnPromptSide(encoder, family, processor, config, own_version(spec, encoder.version, appearance=appearance))


def load_own_processor(directory: str, spec: str) -> OwnPictureProcessor:
    """As :func:`foveate.models.loading.load_picture_processor`. Raises StartupError."""
    return OwnPictureProcessor(own_encoder(spec, directory), *load_processor(directory))


def own_facts(directory: str, spec: str, *, device: str, dtype: str) -> tuple[EncoderFacts, VisionFacts]:
    """Return what is known of it without its weights. Raises StartupError."""
    encoder = own_encoder(spec, directory)
    family, processor, config = load_processor(directory)
    _Pictures(encoder, family, processor, config)
    held = held_dtype(dtype, device)
    held = str(config.dtype).removeprefix("torch.") if held == "auto" else held
    hidden = int(config.get_text_config().hidden_size)
    version = own_version(spec, encoder.version, dtype=held, model=Path(directory).name)
    facts = EncoderFacts(version, hidden * _ITEM_BYTES.get(held, 4), held, 1)
    merge = getattr(config.vision_config, "spatial_merge_size", None) if "image_grid_thw" in family.inputs else None
    return facts, VisionFacts(picture_token_id(config), merge)


def load_own_tower(directory: str, spec: str, *, device: str, dtype: str) -> tuple[VisionTower, VisionFacts]:
    """As :func:`foveate.models.loading.load_vision`. Raises StartupError."""
    from foveate.models.own_tower import OwnTower

    facts, vision = own_facts(directory, spec, device=device, dtype=dtype)
    encoder = own_encoder(spec, directory)
    try:
        encoder.load(device, facts.embedding_dtype)
    except Exception as error:  # Foreign code raises whatever it comes upon.
        raise StartupError(f"The encoder {spec} cannot be loaded: {type(error).__name__}: {error}") from error
    return OwnTower(encoder, facts), vision


def shape_refused(width: int, height: int, error: ValueError) -> Exception:
    """Return the refusal of a size that the encoder cannot take."""
    from foveate.core.errors import ImageShapeRefused

    return ImageShapeRefused(detail=f"{width}x{height}: {error}")
