"""Loads of texts and pictures that servers are compared under. The same seed gives the same requests; no two rounds share a picture."""

from __future__ import annotations

import random
from typing import Any, Final

import msgspec

from foveate.bench.client import chat_body
from foveate.bench.load import Ask, arrivals
from foveate.bench.origin import CACHEABLE, FETCHED_AGAIN, Origin
from foveate.bench.scenes import scene
from foveate.bench.systems import MODEL

TEXTS_PER_SECOND: Final = 5.0
MULTIMODAL_PER_SECOND: Final = 2.0
PICTURES: Final = 2
HOT: Final = 4
REPEATED: Final = 0.8
TURNS: Final = 8
WINDOW: Final = 5
STEADY_TEXTS_PER_SECOND: Final = 10
BURST_EVERY_SECONDS: Final = 4
BURST_REQUESTS: Final = 4
BURST_PICTURES: Final = 4
ALBUM: Final = 8
QUESTIONS: Final = ("Describe both images.", "What is in the second image?", "What is in the first image?")

LOADS: Final = {
    "a": "text only, 5 requests a second",
    "b": "the same, and 2 requests a second with 2 new 1080p JPEGs each by http",
    "c": "the same, 80 % of the pictures repeated; the origin allows caching",
    "c-again": "the same, 80 % of the pictures repeated; every URL must be fetched again",
    "d": "conversations of 8 turns, 5 pictures a turn, 4 of them from the turn before; the origin allows caching",
}


class Load(msgspec.Struct, frozen=True):
    """What a system is asked in one run: first, unmeasured, ``warm``; then ``asks`` as they are due, or ``conversations``."""

    name: str
    warm: tuple[Ask, ...]
    asks: tuple[Ask, ...] = ()
    conversations: tuple[tuple[Ask, ...], ...] = ()


class Pictures:
    """New pictures, one after the other, each offered at the origin."""

    def __init__(self, web: Origin) -> None:
        self._web = web
        self._made = 0

    def new(self, freshness: str = CACHEABLE) -> str:
        """Make one; return its URL."""
        self._made += 1
        return self._web.offer(f"{self._made}.jpg", scene(self._made), freshness)


def make_load(name: str, requests: int, round_: int, pictures: Pictures) -> Load:
    """Return the load of that name (:data:`LOADS`) for a round: ``requests`` of both kinds together, where both are in it."""
    chooser = random.Random(f"{name} {round_}")
    if name == "d":
        return _talks(max(1, round(requests / 28)), round_, pictures)
    texts = round(requests * TEXTS_PER_SECOND / (TEXTS_PER_SECOND + MULTIMODAL_PER_SECOND))
    asks = [
        Ask(at, "text", f"{round_} text {number}", _text(round_, number))
        for number, at in enumerate(arrivals(TEXTS_PER_SECOND, texts, chooser))
    ]
    warm = [Ask(0.2 * number, "text", "", _text(round_, -1 - number)) for number in range(3)]
    if name != "a":
        freshness = FETCHED_AGAIN if name == "c-again" else CACHEABLE
        hot = [pictures.new(freshness) for _ in range(HOT)]
        warm += [Ask(1.0 + 0.5 * number, "multimodal", "", _shown([url, url], 0)) for number, url in enumerate(hot)]
        moments = arrivals(MULTIMODAL_PER_SECOND, requests - texts, chooser)
        # Exactly that share of them in every round: drawn one by one, it would be the luck of the draw whether the median request is new.
        repeated = [
            number < (0 if name == "b" else REPEATED) * PICTURES * len(moments)
            for number in range(PICTURES * len(moments))
        ]
        chooser.shuffle(repeated)
        for number, at in enumerate(moments):
            again = repeated[PICTURES * number : PICTURES * (number + 1)]
            shown = [chooser.choice(hot) if each else pictures.new(freshness) for each in again]
            asks.append(Ask(at, "multimodal", f"{round_} {name} {number}", _shown(shown, number)))
    return Load(name, tuple(warm), tuple(asks))


def steady_texts(seconds: int, round_: int, pictures: Pictures, *, bursts: bool) -> Load:
    """Return texts at even distances, and with ``bursts`` also requests with several new pictures each, some at once every few seconds."""
    name, first = ("burst", 20_000) if bursts else ("quiet", 10_000)
    texts = [(number / STEADY_TEXTS_PER_SECOND, first + number) for number in range(seconds * STEADY_TEXTS_PER_SECOND)]
    asks = [Ask(at, "text", f"{round_} {name} text {number}", _text(round_, number)) for at, number in texts]
    for at in range(1, seconds, BURST_EVERY_SECONDS) if bursts else ():
        for number in range(BURST_REQUESTS):
            shown = _shown([pictures.new() for _ in range(BURST_PICTURES)], number)
            asks.append(Ask(at, "multimodal", f"{round_} {name} {at} {number}", shown))
    warm = (Ask(0.0, "text", "", _text(round_, -1)), Ask(0.3, "multimodal", "", _shown([pictures.new()], 0)))
    return Load(name, warm, tuple(asks))


def album(requests: int, round_: int, pictures: Pictures) -> Load:
    """Return requests with eight new pictures each, one after the other."""
    shown = (_shown([pictures.new() for _ in range(ALBUM)], number) for number in range(requests))
    turns = tuple(Ask(0.0, "multimodal", f"{round_} album {number}", body) for number, body in enumerate(shown))
    return Load("album", (Ask(0.0, "multimodal", "", _shown([pictures.new()], 0)),), conversations=(turns,))


def _talks(conversations: int, round_: int, pictures: Pictures) -> Load:
    made = []
    for number in range(conversations):
        urls = [pictures.new() for _ in range(WINDOW + TURNS - 1)]
        turns = [
            Ask(0.3 * number, "multimodal", f"{round_} talk {number} {turn}", _turn(urls[turn : turn + WINDOW], turn))
            for turn in range(TURNS)
        ]
        made.append(tuple(turns))
    warm = (Ask(0.0, "text", "", _text(round_, -1)), Ask(0.3, "multimodal", "", _shown([pictures.new()] * 2, 0)))
    return Load("d", warm, conversations=tuple(made))


def _text(round_: int, number: int) -> bytes:
    return chat_body(f"Hello! This is note {number} of day {round_}; who are you?", model=MODEL)


def _picture(url: str) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url}}


def _shown(urls: list[str], number: int) -> bytes:
    question = QUESTIONS[number % len(QUESTIONS)]
    return chat_body([*(_picture(url) for url in urls), {"type": "text", "text": question}], model=MODEL)


def _turn(urls: list[str], turn: int) -> bytes:
    """The window's pictures, one a user's turn, each but the last answered."""
    messages: list[dict[str, Any]] = []
    for place, url in enumerate(urls):
        content = [_picture(url), {"type": "text", "text": f"What is in this image? ({turn + place})"}]
        messages += [{"role": "user", "content": content}, {"role": "assistant", "content": "A shape."}]
    return chat_body(None, model=MODEL, messages=messages[:-1])
