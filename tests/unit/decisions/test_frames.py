"""Which frames are looked at: numbers, places and limits, over even and uneven times."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foveate.core.budget import Budget
from foveate.decisions.frames import FrameSampling, choose_frames, sampling_of


def even(count: int, fps: float = 10.0) -> list[float]:
    return [place / fps for place in range(count)]


def test_uniform_takes_the_middle_of_equal_stretches_and_never_asks_for_too_much() -> None:
    chosen = choose_frames(even(200), 20.0, FrameSampling(4))

    assert chosen.places == (25, 75, 125, 175)
    assert chosen.wanted == 4


def test_uniform_takes_all_of_a_short_video() -> None:
    chosen = choose_frames(even(3), 0.3, FrameSampling(32))

    assert chosen.places == (0, 1, 2)
    assert chosen.wanted == 3


def test_fps_takes_the_frame_on_screen_at_each_moment() -> None:
    chosen = choose_frames(even(50), 5.0, FrameSampling(32, fps=1.0))

    assert chosen.places == (0, 10, 20, 30, 40)
    assert chosen.wanted == 5


def test_fps_beyond_the_limit_says_how_many_there_would_be_and_takes_as_many_as_allowed() -> None:
    chosen = choose_frames(even(610), 61.0, FrameSampling(8, fps=1.0))

    assert chosen.wanted == 61
    assert len(chosen.places) == 8


def test_fps_above_the_videos_own_takes_each_frame_once() -> None:
    chosen = choose_frames(even(20, fps=2.0), 10.0, FrameSampling(1000, fps=50.0))

    assert chosen.places == tuple(range(20))
    assert chosen.wanted == 20


def test_a_client_that_asks_for_fewer_gets_fewer_and_breaks_no_limit() -> None:
    times = even(610)

    assert choose_frames(times, 61.0, FrameSampling(32, fps=1.0, asked_max=16)).wanted == 16
    assert len(choose_frames(times, 61.0, FrameSampling(32, asked_max=5)).places) == 5


def test_a_client_that_asks_for_more_than_allowed_wants_more_than_allowed() -> None:
    chosen = choose_frames(even(610), 61.0, FrameSampling(32, asked_max=100))

    assert chosen.wanted == 100
    assert len(chosen.places) == 32


def test_a_number_that_is_refused_is_the_one_that_was_asked_for() -> None:
    assert choose_frames(even(60), 6.0, FrameSampling(32, asked_max=100)).wanted == 100
    assert len(choose_frames(even(60), 6.0, FrameSampling(32, asked_max=100)).places) == 32
    # Where the video itself keeps within the limit, nothing is refused and the number means "at most".
    assert choose_frames(even(20), 2.0, FrameSampling(32, asked_max=100)).wanted == 20
    # By time, the video says how many there would be.
    assert choose_frames(even(600), 60.0, FrameSampling(32, fps=1.0, asked_max=100)).wanted == 60


def test_uneven_times_are_sampled_by_time_and_a_frame_that_stands_long_is_taken_once() -> None:
    times = [0.0, 0.1, 0.2, 0.3, 9.0]

    chosen = choose_frames(times, 10.0, FrameSampling(4))

    assert chosen.places == (3,)
    assert choose_frames(times, 10.0, FrameSampling(32, fps=1.0)).places == (0, 3, 4)


@pytest.mark.parametrize(
    ("num_frames", "fps", "expected"),
    [
        (None, None, FrameSampling(32, 2.0)),
        (4, None, FrameSampling(32, 0.0, 4)),
        (None, 1.0, FrameSampling(32, 1.0)),
        (None, 30.0, FrameSampling(32, 2.0)),
        (16, 1.0, FrameSampling(32, 1.0, 16)),
    ],
)
def test_overrides_lower_what_the_budget_says(
    num_frames: int | None, fps: float | None, expected: FrameSampling
) -> None:
    budget = Budget(video_sampling="fps", video_fps=2.0, max_video_frames=32)

    assert sampling_of(budget, num_frames=num_frames, fps=fps) == expected


def test_under_a_uniform_budget_fps_is_the_clients() -> None:
    assert sampling_of(Budget(max_video_frames=8), num_frames=None, fps=3.0) == FrameSampling(8, 3.0)


@pytest.mark.parametrize(
    ("num_frames", "fps"), [(0, None), (-1, None), (None, 0.0), (None, -2.0), (None, float("nan"))]
)
def test_overrides_that_mean_nothing_are_refused(num_frames: int | None, fps: float | None) -> None:
    with pytest.raises(ValueError):
        sampling_of(Budget(), num_frames=num_frames, fps=fps)


@given(
    gaps=st.lists(st.floats(0.0, 100.0), min_size=1, max_size=60),
    frames_max=st.integers(1, 40),
    fps=st.sampled_from([0.0, 0.01, 0.5, 1.0, 7.3, 1e9]),
    asked=st.none() | st.integers(1, 100),
)
def test_never_more_than_allowed_never_none_always_rising(
    gaps: list[float], frames_max: int, fps: float, asked: int | None
) -> None:
    times = [sum(gaps[: place + 1]) - gaps[0] for place in range(len(gaps))]

    chosen = choose_frames(times, times[-1] + 0.1, FrameSampling(frames_max, fps, asked))

    assert 1 <= len(chosen.places) <= min(frames_max, len(times), asked or len(times))
    assert list(chosen.places) == sorted(set(chosen.places))
    assert chosen.places[-1] < len(times)
    assert chosen.wanted >= len(chosen.places)
