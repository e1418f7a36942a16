"""Measure a trained model: `python tools/demo_model/evaluate.py MODEL_DIR` writes eval.json and README.md there.

Greedy generation by the plain library on scenes that training never drew; an answer is right only when it
equals the expected sentence letter for letter.
"""

from __future__ import annotations

import argparse
import collections
import json
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import questions
import torch
from model_card import write_card
from packing import two_picture_count
from PIL import Image
from scenes import Item, make_scene, render
from transformers import AutoProcessor, Qwen2_5_VLForConditionalGeneration

# Width and height of the uploads. The processor shrinks the last two to at most 144 image tokens.
SIZES = [(112, 112), (168, 168), (224, 224), (336, 336), (200, 150), (150, 260), (640, 480), (1024, 1024)]
SECOND_SIZES = SIZES[:5]  # of the second of two pictures
ONE_OBJECT = ["colour", "shape", "describe"]
LONGEST_ANSWER = 48  # tokens

Counts = dict[str, list[int]]  # question type -> right, asked


@dataclass
class Case:
    """One question with its pictures; `label` is the row it counts in."""

    label: str
    question: str
    answer: str
    images: list[Image.Image] = field(default_factory=list)
    text_first: bool = False

    def messages(self) -> list[dict]:
        pictures = [{"type": "image"} for _ in self.images]
        text = [{"type": "text", "text": self.question}]
        return [{"role": "user", "content": text + pictures if self.text_first else pictures + text}]


def _case(rng: random.Random, kind: str, size: tuple[int, int], objects: int | None) -> Case:
    """A question of this type about new scenes; scenes are redrawn until the type fits them."""
    while True:
        sizes = [size]
        if kind in questions.TWO_PICTURES:
            sizes.append(rng.choice(SECOND_SIZES))
        scenes: list[list[Item]] = []
        for width, height in sizes:
            count = two_picture_count(rng) if len(sizes) == 2 else objects
            scenes.append(make_scene(rng, width, height, count))
        question = questions.ask(rng, kind, scenes)
        if question:
            break
    images = [render(rng, scene, *drawn) for scene, drawn in zip(scenes, sizes, strict=True)]
    label = kind if objects is None else f"{kind}, one object"
    return Case(label, question.text, question.answer, images, text_first=rng.random() < 0.3)


def held_out(size: tuple[int, int], count: int) -> Iterator[Case]:
    """`count` questions of every type about pictures of one size; training seeds are numbers, these are not."""
    rng = random.Random(f"held-out:{size[0]}x{size[1]}")
    for _ in range(count):
        for kind in [*questions.ONE_PICTURE, *questions.TWO_PICTURES]:
            yield _case(rng, kind, size, None)
        for kind in ONE_OBJECT:
            yield _case(rng, kind, size, 1)


def text_only(count: int) -> Iterator[Case]:
    """Messages without a picture. The phrases are those of training, except the made-up off-topic ones."""
    rng = random.Random("held-out:text")
    for _ in range(count):
        question = questions.ask(rng, "text", [])
        yield Case("text only", question.text, question.answer)


class Answerer:
    """The library's processor and model, in float32 on the CPU."""

    def __init__(self, folder: Path) -> None:
        self.processor = AutoProcessor.from_pretrained(folder)
        self.model = Qwen2_5_VLForConditionalGeneration.from_pretrained(folder, dtype=torch.float32).eval()

    def __call__(self, case: Case) -> str:
        prompt = self.processor.apply_chat_template(case.messages(), add_generation_prompt=True, tokenize=False)
        inputs = self.processor(text=[prompt], images=case.images or None, return_tensors="pt")
        with torch.no_grad():
            output = self.model.generate(**inputs, max_new_tokens=LONGEST_ANSWER, do_sample=False)
        answer = output[0, inputs["input_ids"].shape[1] :]
        return self.processor.tokenizer.decode(answer, skip_special_tokens=True)


def measure(answer: Answerer, cases: Iterator[Case], wrong: list[dict], where: str) -> Counts:
    """Right and asked for each type; wrong answers are appended to `wrong`."""
    counts: Counts = collections.defaultdict(lambda: [0, 0])
    for case in cases:
        said = answer(case)
        counts[case.label][0] += said == case.answer
        counts[case.label][1] += 1
        if said != case.answer:
            asked = {"size": where, "type": case.label, "question": case.question}
            wrong.append({**asked, "expected": case.answer, "said": said})
    return dict(counts)


def total(parts: list[Counts]) -> Counts:
    """Sum of the counts of all sizes."""
    summed: Counts = {}
    for part in parts:
        for kind, (right, asked) in part.items():
            summed.setdefault(kind, [0, 0])
            summed[kind][0] += right
            summed[kind][1] += asked
    return summed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path, help="folder of the model")
    parser.add_argument("--count", type=int, default=30, help="questions of each type for each of the 8 sizes")
    parser.add_argument("--wrong", type=Path, help="write the wrong answers to this file")
    parser.add_argument("--dry", action="store_true", help="print only: leave eval.json and README.md alone")
    args = parser.parse_args()
    torch.set_num_threads(1)
    answer = Answerer(args.model)
    by_size: dict[str, Counts] = {}
    wrong: list[dict] = []
    for size in SIZES:
        started, name = time.time(), f"{size[0]}x{size[1]}"
        by_size[name] = measure(answer, held_out(size, args.count), wrong, name)
        rates = " ".join(f"{kind} {right / asked:.2f}" for kind, (right, asked) in by_size[name].items())
        print(f"{name} {time.time() - started:.0f} s: {rates}", flush=True)
    result = {"all": total(list(by_size.values())), "by_size": by_size}
    result["all"] |= measure(answer, text_only(2 * args.count), wrong, "none")
    for kind, (right, asked) in result["all"].items():
        print(f"{kind}: {right}/{asked} = {right / asked:.3f}")
    if args.wrong:
        args.wrong.write_text(json.dumps(wrong, indent=1) + "\n")
    if not args.dry:
        (args.model / "eval.json").write_text(json.dumps(result, indent=1) + "\n")
        write_card(args.model, result)


if __name__ == "__main__":
    main()
