"""What transformers makes of a picture, as a checkpoint's authors published it: the answer that Foveate's own path is held to.

Nothing of that path runs here: the processor is called whole, with a prompt, and what it returns goes to ``get_image_features`` and
``generate`` by the names that these take. In float32 on a CPU, so that whatever differs is the path's doing. Does not cover what is
compared, and how closely (:mod:`foveate.journey.self_check`).
"""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch

from foveate.core.errors import StartupError
from foveate.models.memory import available_bytes, weight_bytes
from foveate.models.port import Embeddings

_GiB = 2**30


class Answered(msgspec.Struct):
    """A greedy answer: its token ids and, for each, the natural logarithm of the probability of the ``TOP`` likeliest tokens by id."""

    token_ids: list[int]
    top: list[dict[int, float]]


class Reference(msgspec.Struct):
    """One picture by transformers: embeddings (float32 [rows, hidden]), the grid where the model has one, and what it says of the picture
    (None: not asked).
    """

    embeddings: Embeddings
    meta: dict[str, list[int]]
    answered: Answered | None = None


TOP = 5


def reference(directory: str, pixels: np.ndarray, question: str, *, tokens: int = 0) -> Reference:
    """Encode ``pixels`` (uint8 [height, width, 3]) and, with ``tokens`` above 0, also answer ``question`` about them in so many tokens.

    The language model is only loaded for an answer. Raises StartupError when memory does not suffice for it, or the files cannot be read.
    """
    from PIL import Image
    from transformers import AutoProcessor

    _check_memory(directory, whole=tokens > 0)
    model = _model(directory, whole=tokens > 0)
    processor = AutoProcessor.from_pretrained(directory, local_files_only=True)
    inputs = _inputs(processor, Image.fromarray(pixels), question)
    with torch.inference_mode():
        embeddings = _embeddings(model, inputs)
        answered = _answered(model, inputs, tokens) if tokens else None
    grid = inputs.get("image_grid_thw")
    meta = {} if grid is None else {"image_grid_thw": [int(side) for side in grid.reshape(-1)]}
    return Reference(embeddings, meta, answered)


def _model(directory: str, *, whole: bool) -> Any:
    from transformers import AutoConfig, AutoModelForImageTextToText
    from transformers.utils import logging

    logging.disable_progress_bar()
    config = AutoConfig.from_pretrained(directory, local_files_only=True)
    if not whole:
        # A language model without layers: their weights are not read.
        text = config.get_text_config()
        text.num_hidden_layers = 0
        if getattr(text, "layer_types", None):
            text.layer_types = []
        # transformers tells at length of every weight that it has no place for.
        logging.set_verbosity_error()
    model: Any = AutoModelForImageTextToText.from_pretrained(
        directory, config=config, dtype="float32", local_files_only=True
    )
    return model.eval()


def _inputs(processor: Any, image: Any, question: str) -> dict[str, torch.Tensor]:
    """Return what the processor makes of one turn with the picture, by its chat template where there is one."""
    if getattr(processor, "chat_template", None):
        parts = [{"type": "image", "image": image}, {"type": "text", "text": question}]
        made = processor.apply_chat_template(
            [{"role": "user", "content": parts}],
            add_generation_prompt=True,
            tokenize=True,
            return_dict=True,
            return_tensors="pt",
        )
    else:
        # The token that a text has for a picture; Gemma 3's is another than the one its embeddings replace.
        token = getattr(processor, "boi_token", None) or processor.image_token
        made = processor(images=[image], text=[f"{token}{question}"], return_tensors="pt")
    return dict(made)


def _embeddings(model: Any, inputs: dict[str, torch.Tensor]) -> Embeddings:
    taken = inspect.signature(model.get_image_features).parameters
    features = model.get_image_features(
        **{name: value for name, value in inputs.items() if name in taken}, return_dict=True
    )
    levels = getattr(features, "deepstack_features", None) or ()
    return Embeddings(_flat(features.pooler_output), tuple(_flat(level) for level in levels))


def _flat(found: Any) -> torch.Tensor:
    parts = [found] if isinstance(found, torch.Tensor) else list(found)
    return torch.cat([part.reshape(-1, part.shape[-1]) for part in parts])


def _answered(model: Any, inputs: dict[str, torch.Tensor], tokens: int) -> Answered:
    out = model.generate(
        **inputs,
        max_new_tokens=tokens,
        min_new_tokens=tokens,
        do_sample=False,
        output_logits=True,
        return_dict_in_generate=True,
    )
    drawn = out.sequences[0, inputs["input_ids"].shape[1] :].tolist()
    top: list[dict[int, float]] = []
    for logits in out.logits:
        values, ids = torch.log_softmax(logits[0].float(), dim=-1).topk(TOP)
        top.append(dict(zip(ids.tolist(), values.tolist(), strict=True)))
    return Answered(drawn, top)


def _check_memory(directory: str, *, whole: bool) -> None:
    needed, free = weight_bytes(directory, "float32", layers=whole), available_bytes()
    if needed > free:
        what = "model" if whole else "vision tower"
        raise StartupError(
            f"To compare embeddings the {what} of {Path(directory).name} is held once more: {needed / _GiB:.1f} GiB as float32, and "
            f"{free / _GiB:.1f} GiB are free (setting engine.self_check)."
        )
