"""An operator's own vision encoder in place of the checkpoint's (docs/encoder.md): the port it implements, and the faces made of it.

Importing this imports no torch. Does not cover families in which the prompt says more of a picture than how many embeddings it has, nor
those with DeepStack: they are refused."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from foveate.core.errors import EncodeFailed, ImageShapeRefused, StartupError
from foveate.core.media import Appearance, ImageOptions, ProcessorOptions
from foveate.models.asked import Takes, wanted
from foveate.models.families import Family, picture_token_id
from foveate.models.files import ModelFiles
from foveate.models.given import GivenPictures
from foveate.models.loading import EncoderFacts, VisionFacts, load_processor
from foveate.models.memory import held_dtype
from foveate.models.own_source import check_source, find_class, hashes, source_of
from foveate.models.port import ProcessedPicture, PromptSide, VisionTower, VisualEstimate
from foveate.models.prompt import TransformersPromptSide
from foveate.models.versions import encoder_version, own_version

if TYPE_CHECKING:
    import torch

_ITEM_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
_GAPS_BYTES = 8 * 64
"""Each array begins at a multiple of 64; room for some."""
KINDS = "biuf"
"""NumPy's kinds of dtype that arrays in shared memory may have."""


class VisionEncoder(Protocol):
    """What an operator's class is asked. It is made once in each process that needs a part of it; only :meth:`load` may read weights.

    ``version`` is a text that names what it computes. It is in the keys of the caches, together with hashes of the class's source
    (:mod:`foveate.models.own_source`), of the model's vision weights, and of ``files``: an attribute that may name weights of its own. A
    picture is never answered from embeddings of another version.

    ``input_bytes(width, height)``, where there is such a method, bounds the bytes of what :meth:`process` returns; it is called as
    :meth:`grid` is. Without it they are guessed from the picture's size, and a picture for which that is not enough is processed twice.
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
        """Return one picture's embeddings, [rows x columns, hidden size of the language model], row by row, of a floating-point dtype.

        ``inputs`` lie on the CPU, in shared memory: they are not to be written to, nor kept.
        """
        ...


def own_encoder(spec: str, directory: str) -> VisionEncoder:
    """Make an instance of ``package.module:Class``. Raises StartupError."""
    found = find_class(spec)
    try:
        made: VisionEncoder = found(directory)
    except Exception as error:  # Foreign code raises whatever it comes upon.
        raise StartupError(
            f"The encoder {spec} cannot be made for the model in {directory}: {type(error).__name__}: {str(error)[:200]}.",
            detail=repr(error),
        ) from error
    version = getattr(made, "version", None)
    if not isinstance(version, str) or not version:
        raise StartupError(f"The encoder {spec} lacks a version (docs/encoder.md).")
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
        """Return embeddings, replacement and meta of a picture. Raises ImageShapeRefused, EncodeFailed."""
        rows, columns = self._grid(width, height)
        return (rows * columns, *self._given.picture(rows * columns, self._patches(rows, columns)))

    def tokens(self, width: int, height: int) -> tuple[int, int]:
        """Return its prompt tokens, and those that carry an embedding. Raises ImageShapeRefused, EncodeFailed."""
        rows, columns = self._grid(width, height)
        return rows * columns + 2 * self._extra, rows * columns

    def input_bytes(self, width: int, height: int) -> int:
        """Return what inputs take, as far as is known: else float32 of the picture's pixels. Raises EncodeFailed."""
        told = getattr(self._encoder, "input_bytes", None)
        if told is None:
            return width * height * 3 * 4
        try:
            return max(0, operator.index(told(width, height)))
        except Exception as error:  # Foreign code raises whatever it comes upon.
            raise EncodeFailed(detail=f"input_bytes({width}, {height}): {type(error).__name__}: {error}") from error

    def _grid(self, width: int, height: int) -> tuple[int, int]:
        try:
            rows, columns = (operator.index(side) for side in self._encoder.grid(width, height))
        except ValueError as error:
            raise ImageShapeRefused(detail=f"{width}x{height}: {error}") from error
        except Exception as error:  # Foreign code raises whatever it comes upon.
            raise EncodeFailed(detail=f"grid({width}, {height}): {type(error).__name__}: {error}") from error
        if rows < 1 or columns < 1:
            raise EncodeFailed(detail=f"grid({width}, {height}) is {rows}x{columns}")
        return rows, columns

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
        """See the port. A media worker says when inputs need more bytes. Raises EncodeFailed, too."""
        tokens, rows = self._pictures.tokens(width, height)
        return VisualEstimate(tokens, rows, self._pictures.input_bytes(width, height) + _GAPS_BYTES)


class OwnPictureProcessor:
    """:class:`foveate.models.port.PictureProcessor` over the operator's encoder."""

    def __init__(self, encoder: VisionEncoder, family: Family, processor: Any, config: Any) -> None:
        self._encoder = encoder
        self._pictures = _Pictures(encoder, family, processor, config)

    def process(self, pixels: np.ndarray, options: ImageOptions) -> ProcessedPicture:
        """See the port. Raises EncodeFailed when the operator's code fails or returns no arrays."""
        height, width = pixels.shape[:2]
        rows, replacement, meta = self._pictures.of(width, height)
        try:
            found = dict(self._encoder.process(pixels))
        except MemoryError:
            raise
        except Exception as error:  # Foreign code raises whatever it comes upon.
            raise EncodeFailed(detail=f"process: {type(error).__name__}: {error}") from error
        wrong = [
            name for name, array in found.items() if not isinstance(array, np.ndarray) or array.dtype.kind not in KINDS
        ]
        if wrong or not found:
            raise EncodeFailed(detail=f"process returned no array of numbers as {wrong[0] if wrong else 'anything'}")
        arrays = {str(name): np.ascontiguousarray(array) for name, array in found.items()}
        return ProcessedPicture(replacement=replacement, rows=rows, arrays=arrays, meta=meta)


def load_own_prompt_side(files: ModelFiles, appearance: Appearance, spec: str) -> PromptSide:
    """As :func:`foveate.models.loading.load_prompt_side`. Raises StartupError."""
    encoder = own_encoder(spec, files.directory)
    family, processor, config = load_processor(files.directory)
    version = own_version(spec, encoder.version, source=source_of(spec), appearance=appearance)
    return OwnPromptSide(encoder, family, processor, config, version)


def load_own_processor(directory: str, spec: str, source: str) -> OwnPictureProcessor:
    """As :func:`foveate.models.loading.load_picture_processor`; ``source`` is the hash that it is to have. Raises StartupError."""
    check_source(spec, source)
    return OwnPictureProcessor(own_encoder(spec, directory), *load_processor(directory))


def own_facts(directory: str, spec: str, *, device: str, dtype: str) -> tuple[EncoderFacts, VisionFacts]:
    """Return what is known of it without its weights. Raises StartupError."""
    encoder = own_encoder(spec, directory)
    family, processor, config = load_processor(directory)
    _Pictures(encoder, family, processor, config)
    held = held_dtype(dtype, device)
    held = str(config.dtype).removeprefix("torch.") if held == "auto" else held
    hidden = int(config.get_text_config().hidden_size)
    version = own_version(
        spec,
        encoder.version,
        dtype=held,
        source=source_of(spec),
        files=hashes(getattr(encoder, "files", ())),
        # It may have been made of them, or for them.
        model=encoder_version(Path(directory), config, held),
    )
    facts = EncoderFacts(version, hidden * _ITEM_BYTES.get(held, 4), held, 1)
    merge = getattr(config.vision_config, "spatial_merge_size", None) if "image_grid_thw" in family.inputs else None
    return facts, VisionFacts(picture_token_id(config), merge)


def load_own_tower(directory: str, spec: str, *, device: str, dtype: str) -> tuple[VisionTower, VisionFacts]:
    """As :func:`foveate.models.loading.load_vision`. Raises StartupError."""
    from transformers.utils import logging

    from foveate.models.own_tower import OwnTower

    logging.disable_progress_bar()  # of what the encoder itself may load from a checkpoint: a server's log is no terminal
    facts, vision = own_facts(directory, spec, device=device, dtype=dtype)
    encoder = own_encoder(spec, directory)
    try:
        encoder.load(device, facts.embedding_dtype)
    except Exception as error:  # Foreign code raises whatever it comes upon.
        raise StartupError(f"The encoder {spec} cannot be loaded: {type(error).__name__}: {error}") from error
    return OwnTower(encoder, facts), vision
