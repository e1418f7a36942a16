"""Training batches: several questions share one picture under a tree mask.

A sample is a trunk (optional system prompt, pictures) with question branches that see the trunk but not one
another, so the pictures are paid for once. A quarter of those are plain conversations instead
(text before the picture, or follow-up turns), and some samples have no picture. Where a stage asks for it, a share
of the samples puts every question before its pictures: each branch then repeats their tokens, encoded once.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
import questions
import scenes
import torch
from stages import Stage
from transformers import PreTrainedTokenizerFast

Grid = tuple[int, int]  # rows and columns of image tokens
TEXT_FIRST_TOKENS = 450  # image tokens of a sample whose branches each repeat the pictures after their question


class Encoder:
    """Text to token ids, remembered: the same few hundred sentences come again and again."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast) -> None:
        self.image_id: int = tokenizer.convert_tokens_to_ids("<|image_pad|>")
        self.encode = lru_cache(200_000)(lambda text: tokenizer(text, add_special_tokens=False)["input_ids"])


@dataclass
class Sample:
    """One sequence being written. Lists run over tokens; `branches` is 0 on the trunk."""

    encoder: Encoder
    ids: list[int] = field(default_factory=list)
    positions: list[tuple[int, int, int]] = field(default_factory=list)  # time, row, column
    branches: list[int] = field(default_factory=list)
    targets: list[bool] = field(default_factory=list)  # tokens the model must predict
    spans: list[tuple[str, int]] = field(default_factory=list)  # question type, number of target tokens
    pixels: list[tuple[int, np.ndarray]] = field(default_factory=list)  # which grid, patches
    shown: list[int] = field(default_factory=list)  # indices into `pixels`, in the order of the tokens
    labels: list[np.ndarray] = field(default_factory=list)

    def text(self, text: str, at: int, branch: int = 0, target: bool = False) -> int:
        """Append text from position `at`; returns the next position."""
        for token in self.encoder.encode(text):
            self.ids.append(token)
            self.positions.append((at, at, at))
            self.branches.append(branch)
            self.targets.append(target)
            at += 1
        return at

    def picture(self, number: int, grid: Grid, at: int, branch: int = 0) -> int:
        """Append the image tokens of picture `number` of this sample, placed as Qwen2.5-VL places them."""
        self.shown.append(number)
        at = self.text("<|vision_start|>", at, branch)
        rows, columns = grid
        for i in range(rows * columns):
            self.ids.append(self.encoder.image_id)
            self.positions.append((at, at + i // columns, at + i % columns))
            self.branches.append(branch)
            self.targets.append(False)
        return self.text("<|vision_end|>", at + max(rows, columns), branch)

    def answer(self, question: questions.Question, at: int, branch: int = 0) -> int:
        """Close the user's turn and append the answer, which is what is learnt."""
        at = self.text("<|im_end|>\n<|im_start|>assistant\n", at, branch)
        before = len(self.ids)
        at = self.text(question.answer, at, branch, target=True)
        at = self.text("<|im_end|>", at, branch, target=True)
        self.spans.append((question.type, len(self.ids) - before))
        return at


def two_picture_count(rng: random.Random) -> int:
    """Items in each of two pictures: more would make the joint description longer than a demonstration needs."""
    return rng.choice([1, 1, 2])


def _pictures(
    rng: random.Random, sample: Sample, grids: list[Grid], which: list[int], stage: Stage
) -> list[list[scenes.Item]]:
    """Draw one picture for each entry of `which` (an index into the batch's grids); returns their scenes."""
    drawn = []
    for index in which:
        rows, columns = grids[index]
        width, height = scenes.random_upload_size(rng, rows, columns)
        count = two_picture_count(rng) if len(which) == 2 else None
        scene = scenes.make_scene(rng, width, height, count, stage.objects)
        image = scenes.render(rng, scene, width, height)
        sample.pixels.append((index, scenes.patchify(image, rows, columns)))
        sample.labels.append(scenes.token_labels(scene, width, height, rows, columns))
        drawn.append(scene)
    return drawn


def make_sample(
    rng: random.Random, encoder: Encoder, grids: list[Grid], pictures: int, branches: int, stage: Stage
) -> Sample:
    """A sample with 0, 1 or 2 pictures; two pictures take the batch's two grids in either order."""
    sample = Sample(encoder)
    which = [[], [0], rng.sample([0, 1], 2)][pictures]
    drawn = _pictures(rng, sample, grids, which, stage)

    def question() -> questions.Question:
        picked = questions.pick(rng, drawn, stage.questions)
        return picked._replace(text=questions.vary(rng, picked.text))

    def all_pictures(at: int, branch: int = 0) -> int:
        for number, index in enumerate(which):
            at = sample.picture(number, grids[index], at, branch)
        return at

    at = 0
    if rng.random() < 0.2:
        at = sample.text(f"<|im_start|>system\n{rng.choice(questions.SYSTEM_PROMPTS)}<|im_end|>\n", at)
    user = "<|im_start|>user\n"
    if pictures == 0:
        for branch in range(1, branches + 1):
            asked = question()
            sample.answer(asked, sample.text(user + asked.text, at, branch), branch)
    elif stage.text_first and rng.random() < stage.text_first:
        tokens = sum(grids[index][0] * grids[index][1] for index in which)
        for branch in range(1, max(1, min(branches, TEXT_FIRST_TOKENS // tokens)) + 1):
            asked = question()
            sample.answer(asked, all_pictures(sample.text(user + asked.text, at, branch), branch), branch)
    elif rng.random() < 0.75:
        at = all_pictures(sample.text(user, at))
        for branch in range(1, branches + 1):
            asked = question()
            sample.answer(asked, sample.text(asked.text, at, branch), branch)
    else:
        asked = question()
        if rng.random() < 0.7:
            at = all_pictures(sample.text(user + asked.text, at))
        else:
            at = sample.text(asked.text, all_pictures(sample.text(user, at)))
        at = sample.answer(asked, at)
        for _ in range(rng.choice([0, 0, 1, 2])):
            asked = question() if rng.random() < 0.9 else questions.pick(rng, [], {})
            if asked.answer != questions.NO_IMAGE:
                at = sample.answer(asked, sample.text(f"\n{user}{asked.text}", at))
    return sample


@dataclass
class Batch:
    """B sequences of T tokens, and their pictures grouped by grid.

    `mask` is (B, 1, T, T), true where the row may see the column; `positions` is (3, B, T).
    `pixels[g]` is float32 (N, 4 * rows * columns, 588) for grid g; `picture_order` lists the pictures in
    the order of their tokens as (grid, index within it), a repeated one again; `labels[g]` is int64 (N, 7, rows * columns).
    """

    ids: torch.Tensor
    positions: torch.Tensor
    mask: torch.Tensor
    targets: torch.Tensor
    spans: list[tuple[str, int]]
    grids: list[Grid]
    pixels: dict[int, torch.Tensor]
    labels: dict[int, torch.Tensor]
    picture_order: list[tuple[int, int]]


def collate(samples: list[Sample], grids: list[Grid]) -> Batch:
    """Pad samples to one length, a multiple of 32 (fewer shapes); padding sees no sample and is no target."""
    rows, length = len(samples), -(-max(len(s.ids) for s in samples) // 32) * 32
    ids = torch.zeros(rows, length, dtype=torch.long)
    positions = torch.zeros(3, rows, length, dtype=torch.long)
    branches = torch.full((rows, length), -1)
    targets = torch.zeros(rows, length, dtype=torch.bool)
    pixels: dict[int, list[np.ndarray]] = {}
    labels: dict[int, list[np.ndarray]] = {}
    order = []
    for i, sample in enumerate(samples):
        n = len(sample.ids)
        ids[i, :n] = torch.tensor(sample.ids)
        positions[:, i, :n] = torch.tensor(sample.positions).T
        branches[i, :n] = torch.tensor(sample.branches)
        targets[i, :n] = torch.tensor(sample.targets)
        slots = []
        for (grid, patches), known in zip(sample.pixels, sample.labels, strict=True):
            slots.append((grid, len(pixels.setdefault(grid, []))))
            pixels[grid].append(patches)
            labels.setdefault(grid, []).append(known)
        order.extend(slots[number] for number in sample.shown)
    causal = torch.ones(length, length, dtype=torch.bool).tril()[None]
    related = (branches[:, None, :] == 0) | (branches[:, None, :] == branches[:, :, None])
    return Batch(
        ids=ids,
        positions=positions,
        mask=(causal & related)[:, None],
        targets=targets,
        spans=[span for sample in samples for span in sample.spans],
        grids=grids,
        pixels={g: torch.from_numpy(np.stack(p)) for g, p in pixels.items()},
        labels={g: torch.from_numpy(np.stack(p)) for g, p in labels.items()},
        picture_order=order,
    )
