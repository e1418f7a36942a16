import pytest

from foveate.caches.bad_media import BadMedia
from foveate.core.errors import (
    ArenaFull,
    DeadlineExceeded,
    FoveateError,
    MediaCostly,
    MediaUndecodable,
    MediaWorkersUnavailable,
    QueueFull,
)

BAD = MediaUndecodable("Damaged.", detail="jpeg: OSError").record()


def test_a_refusal_is_kept_for_some_seconds_and_counted_when_it_is_found() -> None:
    kept = BadMedia(3.0)
    assert kept.find("a", 10.0) is None
    kept.note("a", BAD, 10.0)
    assert kept.find("a", 12.9) == BAD
    assert kept.find("b", 12.9) is None
    assert kept.find("a", 13.0) is None
    assert (len(kept), kept.refusals) == (0, 1)


def test_a_refusal_found_again_is_no_longer_kept_than_the_first_said() -> None:
    kept = BadMedia(3.0)
    kept.note("a", BAD, 10.0)
    for at in (11.0, 12.0):
        assert kept.find("a", at) == BAD
    assert kept.find("a", 13.5) is None


def test_their_number_is_bounded_and_the_oldest_goes_first() -> None:
    kept = BadMedia(3.0, contents_max=2)
    for number, key in enumerate(("a", "b", "a", "c")):
        kept.note(key, BAD, 10.0 + number / 10)
    assert len(kept) == 2
    assert kept.find("b", 10.5) is None
    assert kept.find("a", 10.5) is kept.find("c", 10.5) is BAD
    assert kept.find("a", 13.25) is None
    assert kept.find("c", 13.25) is BAD


@pytest.mark.parametrize(
    "error", [MediaCostly(), QueueFull(), DeadlineExceeded(), MediaWorkersUnavailable(), ArenaFull(), FoveateError()]
)
def test_what_may_go_better_next_time_is_not_kept(error: FoveateError) -> None:
    kept = BadMedia(3.0)
    kept.note("a", error.record(), 10.0)
    assert kept.find("a", 10.0) is None


def test_none_is_kept_for_no_time() -> None:
    kept = BadMedia(0.0)
    kept.note("a", BAD, 10.0)
    assert len(kept) == 0
