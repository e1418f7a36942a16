"""A model in our four faces beside transformers' own, and what the tests ask of both."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForImageTextToText, AutoProcessor

from foveate import models
from foveate.core.media import ImageOptions, UrlRef
from foveate.core.request import ImagePart, TextPart, Turn
from foveate.models.port import (
    Embeddings,
    LanguageModel,
    Picture,
    PictureProcessor,
    ProcessedPicture,
    PromptSide,
    VisionTower,
)

torch.set_num_threads(1)
QUESTION = "what is in this image?"


@dataclass(frozen=True)
class Loaded:
    """Our faces of a checkpoint, and transformers' processor and model of the same directory."""

    directory: Path
    prompt: PromptSide
    pictures: PictureProcessor
    tower: VisionTower
    language: LanguageModel
    their_processor: Any
    their_model: Any


def load(directory: Path) -> Loaded:
    """Load everything, float32 on the CPU."""
    files = models.resolve_model(str(directory))
    tower, language = models.load_vision_and_language(files.directory, device="cpu", dtype="float32")
    return Loaded(
        directory,
        models.load_prompt_side(files),
        models.load_picture_processor(files.directory),
        tower,
        language,
        AutoProcessor.from_pretrained(directory),
        AutoModelForImageTextToText.from_pretrained(directory, dtype=torch.float32).eval(),
    )


def pixels(width: int, height: int, seed: int = 0) -> np.ndarray:
    """Return a smooth random picture, uint8 [height, width, 3]."""
    noise = np.random.RandomState(seed).randint(0, 256, (1, 3, max(2, height // 8), max(2, width // 8)))
    smooth = torch.nn.functional.interpolate(torch.from_numpy(noise).float(), size=(height, width), mode="bilinear")
    return np.ascontiguousarray(smooth[0].permute(1, 2, 0).byte().numpy())


def conversation(count: int, question: str = QUESTION) -> list[Turn]:
    """Return a system turn, and a user turn with ``count`` pictures, text between them."""
    parts: list[Any] = []
    for index in range(count):
        parts += [ImagePart(index, f"p{index}", UrlRef("u")), TextPart(f" hello {index} ")]
    return [Turn("system", (TextPart("hello"),)), Turn("user", (*parts, TextPart(question)))]


def theirs(turns: Sequence[Turn]) -> list[dict[str, Any]]:
    """Return the conversation as transformers takes it."""
    return [
        {
            "role": turn.role,
            "content": [
                {"type": "text", "text": part.text} if isinstance(part, TextPart) else {"type": "image"}
                for part in turn.parts
            ],
        }
        for turn in turns
    ]


def joint_call(model: Loaded, turns: Sequence[Turn], images: Sequence[np.ndarray]) -> dict[str, Any]:
    """Return transformers' inputs for the whole conversation in one processor call."""
    from PIL import Image

    processor = model.their_processor
    text = processor.apply_chat_template(theirs(turns), add_generation_prompt=True)
    begins = processor.tokenizer.bos_token
    nested = [[Image.fromarray(image) for image in images]] if images else None
    added = not (begins and text.startswith(begins))
    return dict(processor(images=nested, text=[text], return_tensors="pt", add_special_tokens=added))


def process(model: Loaded, images: Sequence[np.ndarray]) -> list[ProcessedPicture]:
    """Put each picture alone through our processor."""
    options = ImageOptions(several=len(images) > 1)
    return [model.pictures.process(image, options) for image in images]


def encode(model: Loaded, processed: Sequence[ProcessedPicture], **arguments: bool) -> list[Picture]:
    """Put processed pictures through our vision tower."""
    inputs = [{name: torch.from_numpy(value) for name, value in one.arrays.items()} for one in processed]
    found: list[Picture] = []
    for one, embeddings in zip(processed, model.tower.encode(inputs, **arguments), strict=True):
        assert isinstance(embeddings, Embeddings), embeddings
        assert embeddings.rows.shape[0] == one.rows
        found.append(Picture(embeddings, one.meta))
    return found


def prompt_ids(model: Loaded, turns: Sequence[Turn], processed: Sequence[ProcessedPicture]) -> list[int]:
    """Render and tokenize."""
    return model.prompt.tokenize(model.prompt.render(turns), [one.replacement for one in processed])


def greedy(
    model: Loaded, ids: list[int], pictures: Sequence[Picture], count: int, chunks: Sequence[int] = ()
) -> tuple[list[int], list[torch.Tensor]]:
    """Return ``count`` greedy tokens and their logits; ``chunks`` are the prefill's inner borders."""
    positions = model.language.positions(ids, pictures)
    cache = model.language.new_cache()
    borders = [0, *chunks, len(ids)]
    for start, end in pairwise(borders):
        logits = model.language.prefill(ids, pictures, positions, cache, start, end)
    tokens, steps = [int(logits.argmax())], [logits]
    for step in range(count - 1):
        where = torch.tensor([positions.next + step])
        logits = model.language.decode(torch.tensor([tokens[-1]]), where, cache, None)[0]
        tokens.append(int(logits.argmax()))
        steps.append(logits)
    return tokens, steps


def generate(model: Loaded, inputs: dict[str, Any], count: int) -> tuple[list[int], list[torch.Tensor]]:
    """Return what ``model.generate`` makes of ``inputs``: greedy tokens and their logits."""
    result = model.their_model.generate(
        **inputs,
        max_new_tokens=count,
        do_sample=False,
        output_logits=True,
        return_dict_in_generate=True,
        pad_token_id=0,
    )
    return result.sequences[0, inputs["input_ids"].shape[1] :].tolist(), [logits[0] for logits in result.logits]
