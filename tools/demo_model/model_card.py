"""The model card (README.md of the model's folder), written from the measured figures."""

from __future__ import annotations

from pathlib import Path

import train

# What the model was meant to reach, in percent; None where no goal was set.
GOALS = {
    "colour, one object": 98.0,
    "shape, one object": 98.0,
    "describe, one object": 98.0,
    "colour": 90.0,
    "shape": 90.0,
    "describe": 90.0,
    "count": 90.0,
    "yesno": 90.0,
    "position": 85.0,
    "two_which": 90.0,
    "two_describe": 90.0,
    "two_one": 90.0,
}
EXAMPLES = {
    "colour": "What colour is the star?",
    "shape": "What shape is red?",
    "describe": "What is in this image?",
    "count": "How many shapes are there?",
    "yesno": "Is there a blue square?",
    "position": "What is on the left?",
    "two_which": "Which image has a red star, first or second?",
    "two_describe": "Describe both images.",
    "two_one": "What is in the second image?",
    "text only": "hello",
}

_CARD = """---
license: apache-2.0
library_name: transformers
pipeline_tag: image-text-to-text
---
# Foveate's demonstration model

A vision-language model of 3 million parameters (Qwen2.5-VL architecture, bfloat16, 6 MB) that answers simple
questions about pictures of coloured shapes. It is a demonstration, not a product: it is here so that a
fresh clone can serve real pictures with answers that can be checked, with nothing to download.

## What it knows

Pictures with up to three shapes (circle, square, triangle, star) in seven colours (red, orange, yellow, green,
blue, purple, black) on plain backgrounds; one or two pictures in a request, before or after the text. It was
taught to say that a request has no picture, and that it only knows shapes.

## Data and recipe

All pictures and questions are drawn by code (`tools/demo_model`, `scenes.py` and `questions.py`); no other data
was used.

{recipe}

## Accuracy

New random scenes, greedy generation by the plain library in float32, eight upload sizes from 112x112 to
1024x1024. An answer counts only when it equals the expected sentence letter for letter. A row without "one
object" has scenes of 0 to 3 objects; of two pictures each has one or two. A position question is asked only
where the two outermost centres are at least one radius apart.

| question | example | right | exact match | goal |
|---|---|---|---|---|
{rows}

{verdict}

By upload size, all of the questions above with a picture:

| upload | right | exact match |
|---|---|---|
{sizes}

## Limits

* It knows nothing but these shapes and colours. What it says about a photograph, a drawing, writing, other
  shapes or colours, or more than three objects means nothing, and it may say it with confidence.
* The phrases of the questions are those of training: the table measures the reading of pictures, not of new
  wordings. English only.
* Every upload is scaled to between 112x112 and 336x336 pixels' worth of image tokens; small objects in a
  large picture are lost. Three or more pictures, and video, were not trained.
* Several objects, and relations between them, are read less surely than a single one.

Licence: Apache-2.0.
"""
RECIPE = f"""The vocabulary (1,024 tokens) is learnt first, from text that does not depend on how often training asks
what. Then {train.STEPS:,} steps from random weights, with Muon for the matrices and AdamW for the rest: warm-up, a
stable learning rate, a linear decay over the last {train.DECAY:.0%} of the first {train.FIRST_CYCLE:,} steps, and
{len(train.RESTARTS)} lower cycles that only decay. Small pictures come first, several questions share each
picture, and `stages.py` says what is asked when. Heads that
name the colour, the shape and the rank from each side of every image token help the vision tower while training and
are dropped afterwards.

The command, which takes about four hours on one CPU thread:

    python tools/demo_model/train.py --out DIR

These weights were made by that command, stopped and resumed on the way; `docs/demo_model.md` says where, and what
of its later steps was written while the earlier ones ran."""


def _verdict(missed: list[str]) -> str:
    return "Goals missed: " + "; ".join(missed) + "." if missed else "All goals are met."


def write_card(folder: Path, result: dict, recipe: str = RECIPE) -> None:
    """Write README.md; `result` is what evaluate.py measured: right and asked by question type, in all and by size.

    `recipe` tells how the weights came about, where that was not by train.py as it is.
    """
    rows, missed = [], []
    order = [*GOALS, *(kind for kind in result["all"] if kind not in GOALS)]
    for kind in order:
        right, asked = result["all"][kind]
        percent, goal = 100 * right / asked, GOALS.get(kind)
        wanted = "" if goal is None else f"{goal:.0f} %"
        example = EXAMPLES[kind.split(",")[0]]
        rows.append(f"| {kind} | {example} | {right} of {asked} | {percent:.1f} % | {wanted} |")
        if goal is not None and percent < goal:
            missed.append(f"{kind} by {goal - percent:.1f} points")
    sizes = []
    for size, counts in result["by_size"].items():
        right, asked = (sum(pair[i] for pair in counts.values()) for i in (0, 1))
        sizes.append(f"| {size} | {right} of {asked} | {100 * right / asked:.1f} % |")
    card = _CARD.format(
        recipe=recipe,
        rows="\n".join(rows),
        verdict=_verdict(missed),
        sizes="\n".join(sizes),
    )
    (folder / "README.md").write_text(card)
