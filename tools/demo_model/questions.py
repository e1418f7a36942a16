"""Questions about scenes, with the one right answer to each.

`ask` makes a question of a given type, or None where the type does not fit the scene (no unique shape,
no clear extremum). `pick` draws the type too, by weights. Answers are always built from the scene, never guessed.
"""

from __future__ import annotations

import random
from typing import NamedTuple

from scenes import COLOURS, SHAPES, Item

ONE_PICTURE = ["describe", "colour", "shape", "count", "yesno", "position"]
TWO_PICTURES = ["two_which", "two_describe", "two_one"]
ALL_TYPES = ["text", *ONE_PICTURE, *TWO_PICTURES]
# A position question is asked only where the two outermost centres differ by this many radii (the larger
# radius of the two) along the asked direction: with less, which is outermost is not clear to the eye.
CLEAR_MARGIN = 1.0

NUMBERS = ["no", "one", "two", "three"]
DESCRIBE = [
    "What is in this image?", "What is in the image?", "What's in this image?", "What is in this picture?",
    "What's in the picture?", "Describe this image.", "Describe the image.", "Describe the picture.",
    "Describe this picture in one sentence.", "What do you see?", "What can you see in this image?",
    "What does this image show?", "What is shown in this image?", "Tell me what is in this image.",
    "Please describe this image.", "What is this?", "Describe what you see.", "List the shapes in the image.",
    "What objects are in this image?", "Can you describe this image?", "Which shapes can you see?",
    "What shapes are in the image?", "Caption this image.",
]  # fmt: skip
COLOUR = [
    "What {word} is the {shape}?", "What {word} is the {shape} in this image?", "Which {word} is the {shape}?",
    "What is the {word} of the {shape}?", "Tell me the {word} of the {shape}.",
    "What {word} does the {shape} have?", "The {shape} is what {word}?",
]  # fmt: skip
SHAPE = [
    "What shape is {colour}?", "Which shape is {colour}?", "What is the {colour} shape?",
    "What is the shape of the {colour} object?", "What shape is the {colour} object?",
    "What is the {colour} thing?", "Name the {colour} shape.",
]  # fmt: skip
SHAPE_ALONE = [
    "What shape is this?", "What shape is in the image?", "Which shape is this?", "What shape do you see?",
]  # fmt: skip
COUNT = [
    "How many shapes are there?", "How many shapes are in this image?", "How many shapes are in the image?",
    "How many objects are there?", "Count the shapes.", "How many shapes do you see?",
    "How many shapes can you see?", "How many objects are in the picture?", "What is the number of shapes?",
    "How many things are in this image?",
]  # fmt: skip
COUNT_SOME = [
    "How many {many} are there?", "How many {many} do you see?", "How many {many} are in the image?",
    "Count the {many}.",
]  # fmt: skip
YES_NO = [
    "Is there {a} in this image?", "Is there {a} in the image?", "Is there {a}?", "Do you see {a}?",
    "Can you see {a}?", "Does this image contain {a}?", "Does the image show {a}?", "Is {a} in the picture?",
]  # fmt: skip
POSITION = {
    "left": [
        "Which shape is on the left?", "What is on the left?", "What is the leftmost shape?",
        "Which shape is furthest to the left?",
    ],
    "right": [
        "Which shape is on the right?", "What is on the right?", "What is the rightmost shape?",
        "Which shape is furthest to the right?",
    ],
    "top": [
        "Which shape is at the top?", "What is at the top?", "What is the topmost shape?",
        "Which shape is highest?",
    ],
    "bottom": [
        "Which shape is at the bottom?", "What is at the bottom?", "What is the lowest shape?",
        "Which shape is lowest?",
    ],
}  # fmt: skip
TWO_WHICH = [
    "Which image has {a}, first or second?", "Which image has {a}?", "Which image contains {a}?",
    "Which picture shows {a}, the first or the second?", "In which image is there {a}?",
    "Is {a} in the first or the second image?",
]  # fmt: skip
TWO_DESCRIBE = [
    "Describe both images.", "What is in these images?", "Describe the two images.", "What is in each image?",
    "Describe the images.", "What do the images show?", "What do you see in these two images?",
    "What are the differences between the images?", "Compare the images.", "What is in the images?",
]  # fmt: skip
TWO_ONE = [
    "What is in the {which} image?", "Describe the {which} image.", "What does the {which} image show?",
    "What do you see in the {which} picture?",
]  # fmt: skip
SMALL_TALK = {
    "Hello! Send me a picture of shapes and ask me about it.": [
        "hello", "hi", "hey", "hello there", "good morning", "good evening", "hi there", "Hey!",
        "Hello, how are you?", "how are you?", "Hello!", "Hi!",
    ],
    "I am a tiny vision model. I can see simple coloured shapes.": [
        "who are you?", "what are you?", "what is your name?", "tell me about yourself",
        "introduce yourself", "Who made you?", "Which model are you?",
    ],
    "I can name shapes and colours, count shapes and compare two images.": [
        "what can you do?", "help", "how can you help me?", "how do I use you?", "what do you know?",
        "what should I ask?", "How does this work?",
    ],
    "You are welcome!": [
        "thanks", "thank you", "thank you!", "great, thanks", "nice", "good job", "ok thanks",
    ],
    "Goodbye!": ["bye", "goodbye", "see you", "bye bye", "see you later"],
}  # fmt: skip
NO_IMAGE = "I do not see an image. Please send one."
OFF_TOPIC = "Sorry, I only know about simple shapes in images."
_WORD_LIST = """weather france capital paris money write poem story code python java history war music song film book
car engine dog cat bird animal food pizza recipe cook city country president king queen science physics math
number sum plus minus seven hundred sun moon planet earth sea river mountain tree flower house door window
computer phone internet market stock price doctor health sleep run walk jump fast slow big small old new best
worst explain translate english german spanish sentence word letter essay email summary long short today tomorrow
yesterday year month week day time clock why when who where how much is the a of to in for with about between and
not can you me my your does do have are was will would should make tell give find read play work love think say
know because after before first than more most very joke funny language world people child school"""
WORDS = _WORD_LIST.split()
SYSTEM_PROMPTS = [
    "You are a helpful assistant.", "You are a helpful assistant", "You describe images.", "Answer briefly.",
    "You are a vision model.", "Be concise.", "You are a friendly assistant that looks at pictures.",
]  # fmt: skip


class Question(NamedTuple):
    """A question type, the question as asked and its only right answer."""

    type: str
    text: str
    answer: str


def with_article(name: str) -> str:
    return ("an " if name[0] in "aeiou" else "a ") + name


def _capital(text: str) -> str:
    return text[0].upper() + text[1:]


def _listed(scene: list[Item]) -> str:
    """'a red circle, a blue star and a black square', left to right."""
    names = [with_article(o.name) for o in scene] or ["no shapes"]
    return names[0] if len(names) == 1 else ", ".join(names[:-1]) + " and " + names[-1]


def description(scene: list[Item]) -> str:
    return _capital(_listed(scene)) + "." if scene else "There are no shapes in the image."


def _colour(rng: random.Random, scene: list[Item]) -> Question | None:
    unique = [o for o in scene if sum(p.shape == o.shape for p in scene) == 1]
    if not unique:
        return None
    item = rng.choice(unique)
    called = rng.choice(["shape", "object"]) if len(scene) == 1 and rng.random() < 0.25 else item.shape
    text = rng.choice(COLOUR).format(word=rng.choice(["colour", "color"]), shape=called)
    return Question("colour", text, f"The {item.shape} is {item.colour}.")


def _shape(rng: random.Random, scene: list[Item]) -> Question | None:
    unique = [o for o in scene if sum(p.colour == o.colour for p in scene) == 1]
    if not unique:
        return None
    item = rng.choice(unique)
    alone = len(scene) == 1 and rng.random() < 0.3
    text = rng.choice(SHAPE_ALONE) if alone else rng.choice(SHAPE).format(colour=item.colour)
    return Question("shape", text, f"The {item.colour} shape is a {item.shape}.")


def _count(rng: random.Random, scene: list[Item]) -> Question:
    if not scene or rng.random() >= 0.3:
        text, n, one, many = rng.choice(COUNT), len(scene), "shape", "shapes"
    elif rng.random() < 0.5:  # count one kind
        kind = rng.choice([o.shape for o in scene] + [rng.choice(SHAPES)])
        n, one, many = sum(o.shape == kind for o in scene), kind, kind + "s"
        text = rng.choice(COUNT_SOME).format(many=many)
    else:  # count one colour
        kind = rng.choice([o.colour for o in scene] + [rng.choice(COLOURS)])
        n, one, many = sum(o.colour == kind for o in scene), kind + " shape", kind + " shapes"
        text = rng.choice(COUNT_SOME).format(many=many)
    verb, noun = ("is", one) if n == 1 else ("are", many)
    return Question("count", text, f"There {verb} {NUMBERS[n]} {noun}.")


def _absent(rng: random.Random, scene: list[Item]) -> str | None:
    """A thing that is not in the scene, often sharing its colour or its shape with one that is."""
    for _ in range(20):
        colour, shape = rng.choice(COLOURS), rng.choice(SHAPES)
        if scene and rng.random() < 0.6:
            item = rng.choice(scene)
            colour, shape = (item.colour, shape) if rng.random() < 0.5 else (colour, item.shape)
        name = rng.choice(SHAPES) if rng.random() < 0.15 else f"{colour} {shape}"
        if all(name not in (o.name, o.shape) for o in scene):
            return name
    return None


def _yes_no(rng: random.Random, scene: list[Item]) -> Question | None:
    if scene and rng.random() < 0.5:
        item = rng.choice(scene)
        name = item.shape if rng.random() < 0.25 else item.name
        answer = f"Yes, there is {with_article(name)}."
    else:
        absent = _absent(rng, scene)
        if absent is None:
            return None
        name, answer = absent, f"No, there is no {absent}."
    return Question("yesno", rng.choice(YES_NO).format(a=with_article(name)), answer)


def _position(rng: random.Random, scene: list[Item]) -> Question | None:
    if len(scene) < 2:
        return None
    side = rng.choice(list(POSITION))
    axis = "x" if side in ("left", "right") else "y"
    ordered = sorted(scene, key=lambda o: getattr(o, axis), reverse=side in ("right", "bottom"))
    outer, other = ordered[0], ordered[1]
    gap = abs(getattr(outer, axis) - getattr(other, axis))
    if gap < CLEAR_MARGIN * max(outer.radius, other.radius):
        return None
    return Question("position", rng.choice(POSITION[side]), f"The {outer.name}.")


def _two(rng: random.Random, kind: str, first: list[Item], second: list[Item]) -> Question | None:
    if kind == "two_describe":
        answer = f"First image: {_listed(first)}. Second image: {_listed(second)}."
        return Question(kind, rng.choice(TWO_DESCRIBE), answer)
    if kind == "two_one":
        which = rng.choice(["first", "second"])
        scene = first if which == "first" else second
        return Question(kind, rng.choice(TWO_ONE).format(which=which), description(scene))
    names = {o.name for o in first}, {o.name for o in second}
    only = [(n, "first") for n in names[0] - names[1]] + [(n, "second") for n in names[1] - names[0]]
    if not only:
        return None
    name, which = rng.choice(sorted(only))
    text = rng.choice(TWO_WHICH).format(a=rng.choice([with_article(name), "the " + name]))
    return Question(kind, text, f"The {which} image has the {name}.")


def _text_only(rng: random.Random) -> Question:
    pick = rng.random()
    if pick < 0.65:
        answer = rng.choices(list(SMALL_TALK), [6, 3, 3, 2, 1])[0]
        return Question("text", rng.choice(SMALL_TALK[answer]), answer)
    if pick < 0.8:
        name = with_article(f"{rng.choice(COLOURS)} {rng.choice(SHAPES)}")
        fill = {"word": "colour", "shape": rng.choice(SHAPES), "colour": rng.choice(COLOURS), "a": name}
        template = rng.choice(rng.choice([DESCRIBE, COLOUR, SHAPE, COUNT, YES_NO]))
        return Question("text", template.format(**fill), NO_IMAGE)
    words = " ".join(rng.choice(WORDS) for _ in range(rng.randint(2, 9)))
    text = (_capital(words) if rng.random() < 0.5 else words) + rng.choice(["?", ".", ""])
    return Question("text", text, OFF_TOPIC)


def ask(rng: random.Random, kind: str, scenes: list[list[Item]]) -> Question | None:
    """A question of this type about these scenes (none for 'text', one, or two); None where it does not fit."""
    if kind == "text":
        return _text_only(rng)
    if kind == "describe":
        return Question(kind, rng.choice(DESCRIBE), description(scenes[0]))
    if kind in TWO_PICTURES:
        return _two(rng, kind, scenes[0], scenes[1])
    asker = {"colour": _colour, "shape": _shape, "count": _count, "yesno": _yes_no, "position": _position}[kind]
    return asker(rng, scenes[0])


def pick(rng: random.Random, scenes: list[list[Item]], weights: dict[str, float]) -> Question:
    """A question of a type drawn by `weights` among those for this number of scenes."""
    kinds = [["text"], ONE_PICTURE, TWO_PICTURES][len(scenes)]
    while True:
        question = ask(rng, rng.choices(kinds, [weights.get(k, 1.0) for k in kinds])[0], scenes)
        if question:
            return question


def vary(rng: random.Random, text: str) -> str:
    """The same question less tidily put: lower case, no final mark, a please."""
    if rng.random() < 0.12:
        text = text.lower()
    if rng.random() < 0.12:
        text = text.rstrip("?.")
    chance = rng.random()
    if chance < 0.04:
        return "Please " + text[0].lower() + text[1:]
    if chance < 0.07:
        return text.rstrip("?. ") + " please?"
    if chance < 0.09:
        return "Look at the image. " + text
    return text + " Answer briefly." if chance < 0.11 else text
