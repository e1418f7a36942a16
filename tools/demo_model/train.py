"""Train the demonstration model from nothing: `python tools/demo_model/train.py --out DIR`.

One process, one thread, counted in steps: every step draws its own data from the seed and its number, so the
same command makes the same model, and `--resume` continues exactly where a checkpoint was written. Nothing
but the learning rate depends on the total number of steps, and that only in the last cycle, so
a run may be given another total as long as that has not begun.
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import random
import time
from pathlib import Path

# Batches come in thousands of shapes; 512 compiled kernels keep a run below 4 GB, 8,192 grow to 10 GB.
os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "512")

import architecture
import packing
import scenes
import torch
import torch.nn.functional as F
from auxiliary import AuxiliaryHeads, WordAlignment
from fast_forward import target_logits
from stages import stage_at
from torch import nn
from transformers import AutoTokenizer, PreTrainedTokenizerFast

STEPS = 11_400
FIRST_CYCLE = 7600  # the learning rate falls to FLOOR by this step
DECAY = 0.45  # the last part of the first cycle, over which the learning rate falls
FLOOR = 0.02
RESTARTS = [(FIRST_CYCLE, 0.5), (9000, 0.4)]  # from this step it falls to FLOOR again, from this factor
WARM_UP = 100
MUON_RATE, ADAM_RATE = 0.015, 1.3e-3
AUXILIARY_UNTIL, AUXILIARY_END = 2000, 0.1  # weight of the auxiliary losses: from 1 to END, linearly
FULL_SIZE_FROM = 900  # until then only pictures up to a growing size
TWO_PICTURES_FROM = 300
PATCHES = 2700  # in the first pictures of a batch, about
CHECKPOINT_EVERY, LOG_EVERY = 125, 25


def draw_grids(rng: random.Random, step: int) -> list[packing.Grid]:
    """The two grids of a batch. Small pictures first: objects are learnt sooner from many cheap ones.

    Later a quarter of the batches are large, because any ordinary photograph is scaled to the largest size.
    """
    if step < FULL_SIZE_FROM:
        smallest, largest = scenes.MIN_TOKENS, int(36 + 60 * step / FULL_SIZE_FROM)
    else:
        smallest = 100 if rng.random() < 0.25 else scenes.MIN_TOKENS
        largest = scenes.MAX_TOKENS
    first = scenes.random_grid(rng, smallest, largest)
    if rng.random() < 0.5:
        return [first, first]
    return [first, scenes.random_grid(rng, scenes.MIN_TOKENS, largest)]


def draw_batch(seed: int, step: int, encoder: packing.Encoder) -> packing.Batch:
    """The batch of one step, a function of seed and step alone."""
    rng = random.Random(f"{seed}:{step}")
    grids = draw_grids(rng, step)
    patches = 4 * grids[0][0] * grids[0][1]
    branches = 6 if patches <= 256 else 9  # large pictures are dearer: ask more about each
    stage = stage_at(step)
    two = 0.08 if step < TWO_PICTURES_FROM else stage.two_pictures
    samples = []
    for _ in range(-(-PATCHES // patches)):  # one number for each grid: fewer shapes to compile for
        chance = rng.random()
        pictures = 2 if chance < two else 0 if chance > 0.95 else 1
        samples.append(packing.make_sample(rng, encoder, grids, pictures, branches, stage))
    return packing.collate(samples, grids)


def learning_rate_factor(step: int, steps: int) -> float:
    """Warm-up, stable, linear decay to `FLOOR`; then lower cycles that only decay."""
    ends = [start for start, _ in RESTARTS[1:]] + [steps]
    for (start, peak), end in reversed(list(zip(RESTARTS, ends, strict=True))):
        if step >= start:
            return peak * max(FLOOR, (end - step) / (end - start))
    left = (FIRST_CYCLE - step) / (DECAY * FIRST_CYCLE)
    return min(1.0, (step + 1) / WARM_UP) * max(FLOOR, min(1.0, left))


def make_optimizers(model: nn.Module, heads: nn.Module) -> list[tuple[torch.optim.Optimizer, float]]:
    """Muon for the matrices, AdamW for embeddings, patch kernel, norms, biases and the auxiliary heads."""
    named = list(model.named_parameters())
    matrices = [p for name, p in named if p.ndim == 2 and "embed_tokens" not in name]
    kernel = [p for name, p in named if p.ndim > 2]
    rest = [p for name, p in named if p.ndim < 2 or "embed_tokens" in name] + list(heads.parameters())
    groups = [{"params": kernel, "weight_decay": 0.01}, {"params": rest, "weight_decay": 0.0}]
    muon = torch.optim.Muon(matrices, lr=MUON_RATE, weight_decay=0.01, momentum=0.95, nesterov=True)
    return [(muon, MUON_RATE), (torch.optim.AdamW(groups, lr=ADAM_RATE, betas=(0.9, 0.98)), ADAM_RATE)]


def answer_loss(
    logits: torch.Tensor, wanted: torch.Tensor, spans: list[tuple[str, int]], weights: dict[str, float]
) -> torch.Tensor:
    """Mean cross-entropy of the answer tokens, each weighing what its question's type weighs (else 1)."""
    if not weights:
        return F.cross_entropy(logits, wanted)
    each = torch.tensor([weights.get(kind, 1.0) for kind, n in spans for _ in range(n)])
    return (F.cross_entropy(logits, wanted, reduction="none") * each).sum() / each.sum()


class Progress:
    """Running means since the last report. Batches are never repeated, so accuracies here are on unseen data."""

    def __init__(self, log: Path) -> None:
        self.log = log
        self.reset()

    def reset(self) -> None:
        self.values: dict[str, list[float]] = collections.defaultdict(list)
        self.right: dict[str, list[bool]] = collections.defaultdict(list)
        self.since = time.time()

    def add(self, losses: dict[str, float], correct: torch.Tensor, spans: list[tuple[str, int]]) -> None:
        for name, value in losses.items():
            self.values[name].append(value)
        for (kind, _), tokens in zip(spans, correct.split([n for _, n in spans]), strict=True):
            self.right[kind].append(bool(tokens.all()))

    def say(self, text: str) -> None:
        print(text, flush=True)
        with self.log.open("a") as log:
            log.write(text + "\n")

    def report(self, step: int) -> None:
        means = " ".join(f"{name} {sum(v) / len(v):.3f}" for name, v in self.values.items())
        right = " ".join(f"{kind} {sum(v) / len(v):.2f}" for kind, v in sorted(self.right.items()))
        pace = (time.time() - self.since) / LOG_EVERY
        self.say(f"step {step} {pace:.2f} s/step | {means} | {right}")
        self.reset()


class Trainer:
    """Model, auxiliary heads, optimizers and the number of steps done."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast, seed: int, steps: int, work: Path) -> None:
        self.encoder = packing.Encoder(tokenizer)
        self.alignment = WordAlignment(tokenizer)
        self.seed, self.steps, self.work, self.step = seed, steps, work, 0
        config = architecture.configuration(tokenizer)
        self.model = architecture.random_model(config, seed)
        self.heads = AuxiliaryHeads(config.text_config.hidden_size)
        self.optimizers = make_optimizers(self.model, self.heads)
        self.progress = Progress(work / "train.log")

    def save(self) -> None:
        """Write everything that continuing needs; the rename keeps a crash from leaving half a file."""
        state = {
            "model": self.model.state_dict(),
            "heads": self.heads.state_dict(),
            "optimizers": [optimizer.state_dict() for optimizer, _ in self.optimizers],
            "step": self.step,
            "seed": self.seed,
        }
        for name in ["last.pt"] + ([f"step_{self.step:05d}.pt"] if self.step % 1000 == 0 else []):
            torch.save(state, self.work / "writing.pt")
            (self.work / "writing.pt").replace(self.work / name)

    def resume(self) -> None:
        state = torch.load(self.work / "last.pt", weights_only=True)
        if state["seed"] != self.seed:
            raise SystemExit(f"the checkpoint is of seed {state['seed']}, not {self.seed}")
        self.model.load_state_dict(state["model"])
        self.heads.load_state_dict(state["heads"])
        for (optimizer, _), saved in zip(self.optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)
        self.step = state["step"]
        if self.step > RESTARTS[-1][0]:
            self.progress.say(f"resumed within the last cycle of a run of {self.steps} steps: keep that total")

    def one_step(self) -> None:
        batch = draw_batch(self.seed, self.step, self.encoder)
        with torch.autocast("cpu", torch.bfloat16):
            logits, wanted, seen = target_logits(self.model, batch, self.encoder.image_id)
            auxiliary = self.heads.losses(seen, batch.labels) if seen else {}
        stage = stage_at(self.step)
        loss = answer_loss(logits, wanted, batch.spans, stage.loss)
        weight = max(AUXILIARY_END, 1 - (1 - AUXILIARY_END) * self.step / AUXILIARY_UNTIL)
        total = loss + weight * sum(auxiliary.values())
        if seen and stage.alignment:
            embeddings = self.model.model.language_model.embed_tokens.weight
            auxiliary["words"] = self.alignment.loss(seen, batch.labels, embeddings)
            total = total + stage.alignment * auxiliary["words"]
        for optimizer, _ in self.optimizers:
            optimizer.zero_grad(set_to_none=True)
        total.backward()
        nn.utils.clip_grad_norm_([*self.model.parameters(), *self.heads.parameters()], 1.0)
        factor = learning_rate_factor(self.step, self.steps)
        for optimizer, rate in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = rate * factor
            optimizer.step()
        self.step += 1
        losses = {"loss": loss.item(), **{name: value.item() for name, value in auxiliary.items()}}
        self.progress.add(losses, logits.argmax(-1) == wanted, batch.spans)

    def run(self) -> None:
        while self.step < self.steps:
            self.one_step()
            if self.step % LOG_EVERY == 0:
                self.progress.report(self.step)
            if self.step % CHECKPOINT_EVERY == 0 or self.step == self.steps:
                self.save()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="folder for the finished model")
    parser.add_argument("--work", type=Path, help="folder for checkpoints and log (default: OUT-training)")
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--resume", action="store_true", help="continue from the last checkpoint in WORK")
    args = parser.parse_args()
    work = args.work or args.out.with_name(args.out.name + "-training")
    args.out.mkdir(parents=True, exist_ok=True)
    work.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    if args.resume:  # the vocabulary must be the one the weights were trained with
        tokenizer = AutoTokenizer.from_pretrained(args.out)
    else:
        tokenizer = architecture.train_tokenizer()
        architecture.write_processor(args.out, tokenizer)
    trainer = Trainer(tokenizer, args.seed, args.steps, work)
    if args.resume:
        trainer.resume()
    parameters = sum(p.numel() for p in trainer.model.parameters())
    settings = {"steps": args.steps, "seed": args.seed, "start": trainer.step, "parameters": parameters}
    trainer.progress.say(json.dumps(settings))
    trainer.run()
    trainer.model.to(torch.bfloat16).save_pretrained(args.out)
    trainer.progress.say(f"done: {trainer.step} steps")


if __name__ == "__main__":
    main()
