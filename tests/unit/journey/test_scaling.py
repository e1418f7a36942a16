"""From two moments' sums to what the decision is told."""

from __future__ import annotations

from foveate.decisions.scaling import FEWER_SECONDS, MORE_SECONDS, ScaleTerms
from foveate.encoders.seat import EncoderTotals
from foveate.journey.scaling import LOOK_SECONDS, Scaling

TERMS = ScaleTerms(1, 4, 0.1)


def looks(waited: float, busy: float, seconds: float, workers: int, oldest: float = 0.0, given: int = 10) -> list[int]:
    """Return the number after each look at workers that are steadily like this."""
    scaling, found = Scaling(TERMS), []
    for look in range(int(seconds / LOOK_SECONDS) + 2):
        now = 100.0 + look * LOOK_SECONDS
        totals = EncoderTotals(given * look, waited * given * look, oldest, busy * look * LOOK_SECONDS)
        found.append(scaling.look(workers, totals, now))
    return found


def test_the_wait_is_that_of_pictures_that_were_given_since_the_last_look() -> None:
    assert looks(0.15, 1.0, MORE_SECONDS, workers=1)[-1] == 2
    assert set(looks(0.05, 1.0, MORE_SECONDS, workers=1)) == {1}


def test_where_none_was_given_it_is_that_of_the_one_that_waits() -> None:
    assert looks(0.0, 1.0, MORE_SECONDS, workers=1, oldest=9.0, given=0)[-1] == 2


def test_workers_that_are_hardly_busy_become_fewer() -> None:
    assert looks(0.0, 0.5, FEWER_SECONDS, workers=3)[-1] == 2
    assert set(looks(0.0, 2.9, 2 * FEWER_SECONDS, workers=3)[60:]) == {3}
