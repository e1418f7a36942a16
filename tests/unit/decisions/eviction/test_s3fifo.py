"""S3-FIFO's queues, by what they give up."""

from __future__ import annotations

import pytest

from foveate.decisions.eviction import SmallMainGhost, s3fifo


def policy(bytes_max: int = 100) -> SmallMainGhost[str]:
    return SmallMainGhost(bytes_max)


def add(queues: SmallMainGhost[str], *keys: str, size: int = 10) -> None:
    for key in keys:
        queues.add(key, size, 1.0)
        queues.admit(key)


def use(queues: SmallMainGhost[str], key: str, times: int = 1) -> None:
    for _ in range(times):
        queues.touch(key)
        queues.admit(key)


def given_up(queues: SmallMainGhost[str], count: int) -> list[str | None]:
    return [queues.evict() for _ in range(count)]


def test_what_is_used_once_leaves_in_the_order_it_came() -> None:
    queues = policy()
    add(queues, "a", "b", "c")
    use(queues, "a")
    assert given_up(queues, 4) == ["a", "b", "c", None]


def test_what_is_used_again_while_new_moves_to_the_main_queue() -> None:
    queues = policy()
    add(queues, "a", "b", "c", "d")
    use(queues, "a", 2)
    assert given_up(queues, 3) == ["b", "c", "d"], "a is in the main queue"
    add(queues, "e", size=9)
    assert given_up(queues, 2) == ["a", "e"], "the small queue is within its share, so the main one gives"


def test_a_scan_does_not_push_out_what_is_used() -> None:
    queues = policy()
    add(queues, *"abcdefgh")
    for key in "abcdefgh":
        use(queues, key, 2)
    add(queues, "x", "y")
    for number in range(100):
        assert queues.evict() in ("x", "y", *(f"scan-{count}" for count in range(number))), "the scan's own go first"
        add(queues, f"scan-{number}")


def test_a_ghost_comes_back_into_the_main_queue() -> None:
    queues = policy()
    add(queues, "a", "b", "c")
    assert queues.evict() == "a"
    add(queues, "a", "d")
    assert given_up(queues, 4) == ["b", "c", "d", "a"]


def test_main_is_a_clock() -> None:
    queues = policy()
    add(queues, "a", "b")
    use(queues, "a", 2)
    use(queues, "b", 2)
    add(queues, "c")
    assert queues.evict() == "c", "a and b move to the main queue and lose their counts"
    use(queues, "a", 9)
    assert given_up(queues, 3) == ["b", "a", None]


def test_what_is_in_use_is_passed_over_and_comes_back_as_new() -> None:
    queues = policy()
    queues.add("a", 10, 1.0)
    add(queues, "b", "c")
    assert given_up(queues, 3) == ["b", "c", None]
    queues.admit("a")
    add(queues, "d")
    assert given_up(queues, 3) == ["a", "d", None]


def test_what_is_in_use_in_the_main_queue_is_passed_over_too() -> None:
    queues = policy()
    add(queues, "a", "b", "c")
    use(queues, "a", 2)
    assert given_up(queues, 2) == ["b", "c"]
    queues.touch("a")
    assert given_up(queues, 1) == [None]
    queues.admit("a")
    assert given_up(queues, 2) == ["a", None]


def test_a_use_does_not_make_a_key_young() -> None:
    queues = policy()
    add(queues, "a", "b")
    use(queues, "a")
    assert queues.evict() == "a"


def test_ghosts_are_bounded_in_bytes_and_in_number(monkeypatch: pytest.MonkeyPatch) -> None:
    queues = policy()
    for number in range(1000):
        add(queues, f"key-{number}")
        queues.evict()
    assert len(queues._ghosts) == 9
    assert queues._ghost_bytes == 90
    monkeypatch.setattr(s3fifo, "GHOSTS_MAX", 20)
    for number in range(1000):
        add(queues, f"empty-{number}", size=0)
        queues.evict()
    assert len(queues._ghosts) == 20


def test_a_removed_key_is_neither_given_up_nor_a_ghost() -> None:
    queues = policy()
    add(queues, "a", "b", "c")
    use(queues, "b", 2)
    queues.remove("a")
    assert queues.evict() == "c"
    queues.remove("b")
    assert queues.evict() is None
    assert queues._small_bytes == 0
    add(queues, "a", "d")
    assert given_up(queues, 2) == ["a", "d"]
