"""Loads for topologies: the same texts at the same moments with and without bursts, and no picture twice."""

import itertools
from typing import cast

from foveate.bench.visual_loads import ALBUM, BURST_PICTURES, Pictures, album, steady_texts


class Numbered:
    """Names pictures and makes none."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)

    def new(self, freshness: str = "") -> str:
        return f"http://origin/{next(self._numbers)}.jpg"


def test_bursts_come_beside_the_same_texts() -> None:
    pictures = cast(Pictures, Numbered())
    quiet, burst = (steady_texts(8, 0, pictures, bursts=bursts) for bursts in (False, True))
    texts = [ask for ask in burst.asks if ask.kind == "text"]
    assert [ask.at for ask in texts] == [ask.at for ask in quiet.asks]
    assert len({ask.body for ask in (*quiet.asks, *texts)}) == 2 * len(texts), "no prompt's KV helps another"
    shown = [ask.body for ask in burst.asks if ask.kind == "multimodal"]
    assert len(shown) == 8
    assert all(body.count(b"http://origin/") == BURST_PICTURES for body in shown)


def test_an_album_s_requests_follow_each_other() -> None:
    load = album(3, 0, cast(Pictures, Numbered()))
    (turns,) = load.conversations
    assert [ask.body.count(b"http://origin/") for ask in turns] == [ALBUM] * 3
    assert len({ask.body for ask in turns}) == 3
