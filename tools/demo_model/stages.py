"""What a training step asks: the mix of questions and scenes, by the number of the step.

First everything is asked, mostly of two or three objects: that teaches to describe. Looking things up
("Is there a red star?", "What colour is the star?") stays at chance then, because the simplest case, one
object, is a few per cent of the questions. From step 1,500 that case is asked often and its loss weighs more;
from 1,750 image tokens are also turned towards the words for what they show; from 2,400 the full mix is back,
with more pairs of pictures, because telling two apart is learnt late; from 7,600 the shape of a colour is asked
often, which is learnt last of all; from 9,000 questions often come before their pictures, as clients of the
OpenAI API like to send them: with one in thirty put so, the model looked things up right 50 times of 100 in that
order and 98 of 100 in the other. The vocabulary does not depend on any of this
(architecture.tokenizer_corpus).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from scenes import OBJECT_ODDS


@dataclass(frozen=True)
class Stage:
    """From step `start`: how often each type is asked, odds of 0 to 3 objects, loss weight of each type (else 1).

    The types about one picture and those about two are drawn apart, so each group's numbers add up to 1.
    """

    start: int
    questions: dict[str, float]
    objects: tuple[float, ...] = OBJECT_ODDS
    loss: dict[str, float] = field(default_factory=dict)
    alignment: float = 0.0  # weight of auxiliary.WordAlignment
    two_pictures: float = 0.27  # share of the samples that show two pictures
    text_first: float = 0.0  # share of the samples whose questions all come before their pictures


_LOOKUP = {
    "describe": 0.10, "colour": 0.24, "shape": 0.14, "count": 0.08, "yesno": 0.32, "position": 0.12,
    "two_which": 0.60, "two_describe": 0.15, "two_one": 0.25,
}  # fmt: skip
_FEWER_OBJECTS = (0.02, 0.42, 0.36, 0.20)
_LOOKUP_LOSS = {"yesno": 3.0, "two_which": 3.0, "colour": 2.0, "shape": 2.0}
STAGES = [
    Stage(
        start=0,
        questions={
            "describe": 0.16, "colour": 0.19, "shape": 0.11, "count": 0.13, "yesno": 0.17, "position": 0.24,
            "two_which": 0.40, "two_describe": 0.22, "two_one": 0.38,
        },
    ),
    Stage(start=1500, questions=_LOOKUP, objects=_FEWER_OBJECTS, loss=_LOOKUP_LOSS),
    Stage(start=1750, questions=_LOOKUP, objects=_FEWER_OBJECTS, loss=_LOOKUP_LOSS, alignment=0.5),
    Stage(
        start=2400,
        questions={
            "describe": 0.14, "colour": 0.19, "shape": 0.11, "count": 0.14, "yesno": 0.22, "position": 0.20,
            "two_which": 0.48, "two_describe": 0.20, "two_one": 0.32,
        },
        loss={**_LOOKUP_LOSS, "position": 1.5},
        alignment=0.5,
        two_pictures=0.36,
    ),
    Stage(
        start=7600,
        questions={
            "describe": 0.11, "colour": 0.12, "shape": 0.30, "count": 0.15, "yesno": 0.13, "position": 0.19,
            "two_which": 0.40, "two_describe": 0.25, "two_one": 0.35,
        },
        loss={**_LOOKUP_LOSS, "shape": 4.0, "position": 1.5},
        alignment=0.5,
        two_pictures=0.25,
    ),
    Stage(
        start=9000,
        questions={
            "describe": 0.12, "colour": 0.17, "shape": 0.17, "count": 0.14, "yesno": 0.20, "position": 0.20,
            "two_which": 0.40, "two_describe": 0.20, "two_one": 0.40,
        },
        loss={**_LOOKUP_LOSS, "shape": 3.0, "position": 2.0, "two_one": 2.0},
        alignment=0.5,
        two_pictures=0.36,
        text_first=0.5,
    ),
]  # fmt: skip


def stage_at(step: int) -> Stage:
    """The stage that this step belongs to."""
    return [stage for stage in STAGES if stage.start <= step][-1]
