"""Which frames of a video are looked at. One function yields places and times together, so that they cannot disagree. Pure.

``times`` are when frames are shown, in seconds from the first, rising. Two ways to choose:

- *uniform*: the video's length is cut into as many equal stretches as frames are wanted, and the frame that is on screen in the middle of
  each is taken. The last frame is not sought: reaching it would mean to decode everything before it.
- *fps*: the frame on screen at 0, 1/fps, 2/fps … seconds is taken.

A frame that is on screen at two of these moments is taken once. When fps asks for more frames than allowed, as many as allowed are taken
uniformly, and ``wanted`` says how many there would have been: whether that is refused or reported is for the caller to decide.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from typing import Final

import msgspec

from foveate.core.budget import Budget

INSTANTS_MAX: Final = 1_000_000
"""More moments than this are not tried one by one; they are more than any budget allows and than any scan yields frames."""

_SLACK: Final = 1e-6
"""Rounding of time stamps: a length of 5.0000004 s holds five seconds' worth of frames, not one more."""


class FrameSampling(msgspec.Struct, frozen=True):
    """How frames are chosen. ``fps`` 0: uniform. ``asked_max`` is what the client asked for at most, ``frames_max`` what it may have."""

    frames_max: int
    fps: float = 0.0
    asked_max: int | None = None


class ChosenFrames(msgspec.Struct, frozen=True):
    """``places`` index into ``times``, rising. ``wanted`` frames would have been taken without the budget's limit; where that limit
    stands against a number that the client named, it is the number named, even of a video that has fewer.
    """

    places: tuple[int, ...]
    wanted: int


def sampling_of(budget: Budget, *, num_frames: int | None, fps: float | None) -> FrameSampling:
    """Return how a part's frames are chosen under ``budget``.

    The client's ``fps`` samples by time whatever the budget's way is, but never faster than a budget that samples by time itself;
    ``num_frames`` bounds the number. Raises ValueError for a number below one or an fps that is no positive number.
    """
    if num_frames is not None and num_frames < 1:
        raise ValueError("num_frames is 1 or more")
    if fps is not None and not (math.isfinite(fps) and fps > 0):
        raise ValueError("fps is a number above 0")
    by_time = budget.video_fps if budget.video_sampling == "fps" else 0.0
    if num_frames is not None and fps is None:
        by_time = 0.0
    if fps is not None:
        by_time = min(fps, by_time) if by_time else fps
    return FrameSampling(budget.max_video_frames, by_time, num_frames)


def choose_frames(times: Sequence[float], length: float, sampling: FrameSampling) -> ChosenFrames:
    """Choose frames of a video that lasts ``length`` seconds. Raises ValueError when there is none to choose from."""
    if not times:
        raise ValueError("a video without frames")
    asked = sampling.asked_max if sampling.asked_max is not None else len(times)
    if sampling.fps:
        places = _by_time(times, length, sampling.fps)
        wanted = min(len(places), asked)
    elif sampling.asked_max is not None:
        places = ()
        wanted = asked if min(asked, len(times)) > sampling.frames_max else min(asked, len(times))
    else:
        # Uniform sampling asks for what is allowed, never for more.
        places = ()
        wanted = min(len(times), sampling.frames_max)
    count = min(wanted, sampling.frames_max)
    if not places or count < len(places):
        places = _uniform(times, length, count)
    return ChosenFrames(places, wanted)


def _by_time(times: Sequence[float], length: float, fps: float) -> tuple[int, ...]:
    instants = max(1, math.ceil(length * fps - _SLACK))
    if instants >= INSTANTS_MAX:
        return tuple(range(len(times)))
    return _on_screen(times, [step / fps for step in range(instants)])


def _uniform(times: Sequence[float], length: float, count: int) -> tuple[int, ...]:
    if count >= len(times):
        return tuple(range(len(times)))
    return _on_screen(times, [(step + 0.5) * length / count for step in range(count)])


def _on_screen(times: Sequence[float], instants: Sequence[float]) -> tuple[int, ...]:
    """Return the places of the frames that are on screen at ``instants``, each once, rising."""
    places = {max(bisect_right(times, instant + _SLACK) - 1, 0) for instant in instants}
    return tuple(sorted(places))
