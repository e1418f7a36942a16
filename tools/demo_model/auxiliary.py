"""Auxiliary heads on the image tokens, used while training and dropped afterwards.

Answers reach the vision tower only through the language model, which at first cannot use what it sees. Heads
that name what every image token shows teach the tower directly; the ranks, counted from all four sides, put
into each token what "leftmost" and "lowest" ask for.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from scenes import COLOURS, LABEL_ROWS, SHAPES
from torch import nn
from transformers import PreTrainedTokenizerFast

_RANK = 4  # background, or first to third from that side
_SIZES = [len(COLOURS) + 1, len(SHAPES) + 1, _RANK, _RANK, _RANK, _RANK, 1]
_BACKGROUND_WEIGHT = 0.15  # most tokens show background, which is easy
_CENTRE_WEIGHT = 0.5
_SHARPNESS = 10.0  # cosines to logits


class AuxiliaryHeads(nn.Linear):
    """One linear map from an image token to the logits of every row of `scenes.LABEL_ROWS`."""

    def __init__(self, hidden: int) -> None:
        super().__init__(hidden, sum(_SIZES))

    def losses(self, seen: dict[int, torch.Tensor], labels: dict[int, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Mean loss of each row over all image tokens of the batch; both arguments are keyed by grid."""
        tokens = torch.cat([seen[g].flatten(0, 1) for g in sorted(seen)])
        facts = torch.cat([labels[g].transpose(1, 2).flatten(0, 1) for g in sorted(seen)])  # (tokens, rows)
        weight = torch.where(facts[:, 0] > 0, 1.0, _BACKGROUND_WEIGHT)
        result = {}
        for i, (name, logits) in enumerate(zip(LABEL_ROWS, self(tokens).float().split(_SIZES, -1), strict=True)):
            if name == "centre":
                wanted = facts[:, i].float()
                result[name] = _CENTRE_WEIGHT * F.binary_cross_entropy_with_logits(
                    logits[:, 0], wanted, pos_weight=torch.tensor(4.0)
                )
            else:
                each = F.cross_entropy(logits, facts[:, i], reduction="none")
                result[name] = (each * weight).sum() / weight.sum()
                if name.startswith("from_"):
                    result[name] = result[name] / 2  # four ranks count as two rows
        return result


class WordAlignment:
    """Turns image tokens towards the embeddings of the words for what they show (" red", " circle").

    Then a question's word and the image token it asks about are alike from the first layer on, and attention
    can match them; found by answers alone, that match comes late. The embeddings are targets, not moved.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerFast) -> None:
        self.words = [[self._token(tokenizer, word) for word in words] for words in (COLOURS, SHAPES)]

    @staticmethod
    def _token(tokenizer: PreTrainedTokenizerFast, word: str) -> int:
        [token] = tokenizer(" " + word, add_special_tokens=False)["input_ids"]  # as inside a sentence
        return token

    def loss(
        self, seen: dict[int, torch.Tensor], labels: dict[int, torch.Tensor], embeddings: torch.Tensor
    ) -> torch.Tensor:
        """Cross-entropy over the cosines of all tokens that show an item; `embeddings` is (vocabulary, hidden)."""
        tokens = torch.cat([seen[g].flatten(0, 1) for g in sorted(seen)]).float()
        facts = torch.cat([labels[g].transpose(1, 2).flatten(0, 1) for g in sorted(seen)])
        shown = facts[:, 0] > 0
        if not shown.any():
            return tokens.sum() * 0.0
        directions = F.normalize(tokens[shown], dim=-1)
        total = torch.zeros(())
        with torch.autocast("cpu", enabled=False):
            for row, words in enumerate(self.words):
                targets = F.normalize(embeddings[words].detach().float(), dim=-1)
                total = total + F.cross_entropy(_SHARPNESS * directions @ targets.T, facts[shown, row] - 1)
        return total
