"""The pause before a worker is started again."""

from __future__ import annotations

from foveate.runtime.restart_pause import SECONDS_MAX, restart_pause


def test_the_first_is_replaced_at_once_and_pauses_grow_to_a_bound() -> None:
    pauses = [restart_pause(failures) for failures in range(12)]
    assert pauses[:4] == [0.0, 0.0, 0.2, 0.4]
    assert pauses == sorted(pauses)
    assert pauses[-1] == SECONDS_MAX


def test_a_worker_that_fails_for_days_is_still_started_again() -> None:
    assert restart_pause(100_000) == SECONDS_MAX
