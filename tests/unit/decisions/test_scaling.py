"""The number of encode workers follows the queue, within bounds, and does not swing."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from foveate.decisions.scaling import FEWER_SECONDS, MORE_SECONDS, ScaleState, ScaleTerms, ScaleView, scale

TERMS = ScaleTerms(1, 8, 0.1)


def run(views: list[tuple[float, ScaleView]], terms: ScaleTerms = TERMS) -> list[int]:
    """Return the number after each look; each look is at a moment."""
    state, found = ScaleState(), []
    for now, view in views:
        number, state = scale(view, state, now, terms)
        found.append(number)
    return found


def constant(seconds: float, view: ScaleView, step: float = 0.5) -> list[tuple[float, ScaleView]]:
    return [(place * step, view) for place in range(int(seconds / step) + 1)]


def test_more_come_when_pictures_wait_too_long_and_not_at_once() -> None:
    found = run(constant(MORE_SECONDS, ScaleView(2, 0.15, 2.0)))
    assert found == [2] * (len(found) - 1) + [3]
    assert run(constant(MORE_SECONDS, ScaleView(4, 0.5, 4.0)))[-1] == 6


def test_fewer_stay_when_they_have_time_to_spare_for_long() -> None:
    found = run(constant(FEWER_SECONDS, ScaleView(3, 0.0, 1.0)))
    assert found == [3] * (len(found) - 1) + [2]


def test_one_fewer_that_would_be_too_busy_stays() -> None:
    assert set(run(constant(10 * FEWER_SECONDS, ScaleView(2, 0.0, 0.8)))) == {2}


def test_in_between_nothing_happens() -> None:
    assert set(run(constant(10 * FEWER_SECONDS, ScaleView(3, 0.06, 1.0)))) == {3}


def test_a_moment_without_waiting_starts_the_patience_anew() -> None:
    views = constant(MORE_SECONDS - 0.5, ScaleView(1, 1.0, 1.0))
    views += [(MORE_SECONDS, ScaleView(1, 0.0, 1.0)), (MORE_SECONDS + 0.5, ScaleView(1, 1.0, 1.0))]
    assert set(run(views)) == {1}


def test_what_is_outside_the_bounds_is_brought_inside_at_once() -> None:
    assert scale(ScaleView(9, 1.0, 9.0), ScaleState(), 0.0, TERMS)[0] == 8
    assert scale(ScaleView(0, 0.0, 0.0), ScaleState(), 0.0, TERMS)[0] == 1


@settings(deadline=None)
@given(arrivals=st.floats(0.1, 12.0))
def test_a_steady_load_settles(arrivals: float) -> None:
    """A queue in front of workers that each do one picture a second: after some minutes the number does not change any more."""
    state, workers, queue, numbers = ScaleState(), 1, 0.0, []
    for tick in range(2400):
        now = tick * 0.5
        done = min(queue + arrivals * 0.5, workers * 0.5)
        queue += arrivals * 0.5 - done
        view = ScaleView(workers, queue / workers, done / 0.5)
        workers, state = scale(view, state, now, TERMS)
        numbers.append(workers)
    assert 1 <= min(numbers) <= max(numbers) <= 8
    assert len(set(numbers[-600:])) == 1
