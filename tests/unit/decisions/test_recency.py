from __future__ import annotations

import random

import pytest

from foveate.decisions.recency import RecencyStack


def test_distances_are_those_of_a_plain_list() -> None:
    """Enough keys and uses that the places are renumbered often and the sums have three levels."""
    chooser = random.Random(5)
    stack: RecencyStack[int] = RecencyStack()
    plain: list[tuple[int, int]] = []
    for _ in range(12_000):
        key, size = chooser.randrange(400), chooser.randrange(50)
        found = next((number for number, (other, _) in enumerate(plain) if other == key), None)
        if chooser.random() < 0.1 and found is not None:
            stack.remove(key)
            del plain[found]
            continue
        expected = None if found is None else sum(each for _, each in plain[found + 1 :])
        assert stack.use(key, size) == expected
        if found is not None:
            del plain[found]
        plain.append((key, size))
        assert stack.oldest() == plain[0][0]
    assert len(stack) == len(plain)
    assert stack.bytes == sum(size for _, size in plain)


def test_memory_follows_the_keys_and_not_the_uses() -> None:
    stack: RecencyStack[int] = RecencyStack()
    for number in range(100_000):
        stack.use(number % 10, 1)
    assert len(stack._levels[0]) == 1024


def test_what_is_not_there_cannot_be_removed() -> None:
    stack: RecencyStack[str] = RecencyStack()
    with pytest.raises(KeyError):
        stack.remove("a")
    with pytest.raises(StopIteration):
        stack.oldest()
