from __future__ import annotations

import random

import numpy as np

from foveate.decisions.recency import RecencyStack


def test_distances_are_those_of_a_plain_list() -> None:
    """Batches of every length, members used several times in one, enough uses that gaps are closed often, and sizes that change."""
    chooser = random.Random(5)
    stack = RecencyStack(400, 32)
    plain: list[tuple[int, int]] = []
    for _ in range(1500):
        batch = [
            (chooser.randrange(400) if chooser.random() < 0.7 else chooser.randrange(5), chooser.randrange(50))
            for _ in range(chooser.randint(1, 32))
        ]
        expected = []
        for key, size in batch:
            found = next((number for number, (other, _) in enumerate(plain) if other == key), None)
            if found is None:
                expected.append(-1)
            else:
                expected.append(sum(each for _, each in plain[found + 1 :]))
                del plain[found]
            plain.append((key, size))
        members, sizes = zip(*batch, strict=True)
        assert stack.use(np.array(members), np.array(sizes)).tolist() == expected
        if chooser.random() < 0.2:
            doomed = chooser.sample(plain, min(len(plain), 20))
            stack.remove(np.array([key for key, _ in doomed]))
            plain = [each for each in plain if each not in doomed]
        members_left, sizes_left = stack.oldest_first()
        assert list(zip(members_left.tolist(), sizes_left.tolist(), strict=True)) == plain
        assert (len(stack), stack.bytes) == (len(plain), sum(size for _, size in plain))


def test_distances_of_many_terabytes_are_exact() -> None:
    stack = RecencyStack(3, 3)
    size = 2**51 + 1
    assert stack.use(np.array([0, 1, 2]), np.array([size] * 3)).tolist() == [-1, -1, -1]
    assert stack.use(np.array([0, 1, 0]), np.array([size] * 3)).tolist() == [2 * size, 2 * size, size]
