"""Where the rows of a picture go that vLLM's own encoder encodes."""

from __future__ import annotations

import pytest

from foveate.core.errors import EngineFailed
from foveate.engines.vllm.pixels import ranges

P = 9
"""The picture token."""


def test_other_tokens_may_stand_between_a_pictures_rows() -> None:
    first, second = ranges([1, P, P, 2, P, 3, P, P, 4], P, [3, 2])
    assert (first.offset, first.length) == (1, 4)
    assert first.is_embed.tolist() == [True, True, False, True]
    assert (second.offset, second.length) == (6, 2)
    assert (first.get_num_embeds(), second.get_num_embeds()) == (3, 2)


@pytest.mark.parametrize("rows", [[], [1], [3], [2, 0], [1, 2]])
def test_the_prompt_has_the_rows_that_were_priced(rows: list[int]) -> None:
    with pytest.raises(EngineFailed):
        ranges([1, P, P, 2], P, rows)
