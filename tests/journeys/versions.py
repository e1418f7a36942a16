"""Changed copies of the model that ships: new versions for roll-outs, whose answers tell which version gave them."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from foveate.models.files import DEMO_DIRECTORY

PATCHES = "visual.patch_embed.proj.weight"
"""Convolution of a picture's patches: [width, colour channel, time, height, width]."""


def copy_of_demo(directory: Path) -> Path:
    """The model as it ships."""
    directory.mkdir(parents=True)
    for path in DEMO_DIRECTORY.iterdir():
        shutil.copy(path, directory / path.name)
    return directory


def changed(directory: Path, change: Callable[[dict[str, torch.Tensor]], None]) -> Path:
    """A copy with changed weights."""
    copy_of_demo(directory)
    weights = load_file(directory / "model.safetensors")
    change(weights)
    save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})
    return directory


def red_for_blue(directory: Path) -> Path:
    """A version that takes red for blue and blue for red: the same processor, another encoder."""

    def swap(weights: dict[str, torch.Tensor]) -> None:
        weights[PATCHES] = weights[PATCHES][:, [2, 1, 0]].contiguous()

    return changed(directory, swap)


def nearly_the_same(directory: Path) -> Path:
    """A version whose embeddings hardly differ."""

    def shift(weights: dict[str, torch.Tensor]) -> None:
        weights[PATCHES] = weights[PATCHES] * 1.01

    return changed(directory, shift)


def seeing_double(directory: Path) -> Path:
    """A version with another processor: it sees pictures of twice as many pixels."""
    copy_of_demo(directory)
    path = directory / "preprocessor_config.json"
    settings = json.loads(path.read_text())
    settings["size"]["longest_edge"] *= 2
    path.write_text(json.dumps(settings))
    return directory


def overflowing(directory: Path) -> Path:
    """A version that is well with grey pictures and gives NaN for coloured ones."""

    def blow_up(weights: dict[str, torch.Tensor]) -> None:
        patches = weights[PATCHES].float()
        # One pixel of a patch, the difference of its red and blue as the processor scales them: nothing for grey, too much for others.
        patches[0] = 0
        patches[0, 0, :, 7, 7] = 3e38 * 0.26862954
        patches[0, 2, :, 7, 7] = -3e38 * 0.27577711
        weights[PATCHES] = patches

    return changed(directory, blow_up)
