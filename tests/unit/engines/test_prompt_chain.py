"""What beginnings of prompts are taken to be equal."""

from __future__ import annotations

import pytest
from tests.unit.engines.played import BUNDLE

from foveate.core.request import Sampling
from foveate.engines.affinity import LINKS_MAX, Memory
from foveate.engines.port import EngineWork, PictureInput
from foveate.engines.prompt_chain import BLOCK_TOKENS, chain

PICTURE = 7


def work(*parts: list[int] | str, scope: str = "", rows: int = 50) -> EngineWork:
    """Return a prompt of token ids and pictures, these by their content."""
    ids: list[int] = []
    for part in parts:
        ids += [PICTURE] * rows if isinstance(part, str) else part
    pictures = [PictureInput(BUNDLE, rows, {}, part) for part in parts if isinstance(part, str)]
    return EngineWork("r", ids, pictures, Sampling(1), 0.0, scope)


def matched(first: EngineWork, second: EngineWork) -> int:
    memory = Memory()
    memory.note(chain(first, PICTURE))
    return memory.matched(chain(second, PICTURE))


HEAD, QUESTION, OTHER = [1, 2, 3], list(range(100, 170)), list(range(200, 400))


@pytest.mark.parametrize(
    ("first", "second", "tokens"),
    [
        (work(HEAD, "cat", QUESTION), work(HEAD, "cat", OTHER), 53),
        (work(HEAD, "cat", QUESTION), work(HEAD, "dog", QUESTION), 3),
        (work(HEAD, "cat", QUESTION, "dog", OTHER), work(HEAD, "cat", QUESTION, "dog"), 173),
        (work(HEAD, "cat", QUESTION), work(HEAD, "cat", QUESTION, "dog"), 53 + BLOCK_TOKENS),
        (work(HEAD, "cat"), work(OTHER, "cat"), 0),
        (work(OTHER), work([*OTHER, 5, 6]), 200 // BLOCK_TOKENS * BLOCK_TOKENS),
        (work(OTHER), work([9, *OTHER]), 0),
        (work(OTHER), work(OTHER, scope="another tenant"), 0),
        (work(HEAD, "", QUESTION), work(HEAD, "", QUESTION), 3),
        (work(QUESTION[:10]), work(QUESTION[:10]), 0),
    ],
)
def test_what_two_prompts_share(first: EngineWork, second: EngineWork, tokens: int) -> None:
    assert matched(first, second) == tokens


def test_a_picture_with_tokens_of_others_between_its_rows() -> None:
    """Some families put separators between a picture's tiles."""
    tiled = [PICTURE] * 10 + [3] + [PICTURE] * 10
    first = EngineWork("r", [*HEAD, *tiled, 9], [PictureInput(BUNDLE, 20, {}, "cat")], Sampling(1), 0.0)
    assert [link.tokens for link in chain(first, PICTURE)] == [3, 21]


def test_a_prompt_that_does_not_fit_its_pictures_is_like_no_other() -> None:
    wrong = EngineWork("r", [*HEAD, PICTURE, *OTHER], [PictureInput(BUNDLE, 2, {}, "cat")], Sampling(1), 0.0)
    assert chain(wrong, PICTURE) == ()


def test_a_long_prompt_is_cut() -> None:
    assert len(chain(work(list(range(100_000))), PICTURE)) == LINKS_MAX
