"""What vLLM's worker tells of its encoder reaches the request that waited for it, and only that one."""

from __future__ import annotations

import os

from foveate.core.stages import Span
from foveate.engines.vllm.encoder_times import VARIABLE, EncoderTeller, EncoderTimes


def test_a_request_hears_of_its_own_runs() -> None:
    times = EncoderTimes()
    times.expect("one")
    times.expect("two-2")
    teller = EncoderTeller()
    assert teller.wanted
    teller.tell(["one-0a1b2c3d", "1_two-2-99999999", "gone-12345678"], 5.0, 5.5)
    teller.tell(["one-0a1b2c3d"], 3.0, 3.25)
    assert times.take("one") == [Span("vision_encode", 3.0, 3.25, 250.0), Span("vision_encode", 5.0, 5.5, 500 / 3)]
    assert times.take("two-2") == [Span("vision_encode", 5.0, 5.5, 500 / 3)]
    assert times.take("gone") == []
    assert times.take("one") == [], "it was forgotten"


def test_what_there_is_no_room_for_is_dropped_and_the_rest_goes_on() -> None:
    times = EncoderTimes()
    teller = EncoderTeller()
    name = "x" * 200
    for _ in range(1000):
        teller.tell([f"{name}-00000000"], 1.0, 2.0)
    times.expect("one")
    assert times.take("one") == []
    times.expect("one")
    teller.tell(["one-00000000"], 1.0, 2.0)
    assert len(times.take("one")) == 1


def test_nobody_asked() -> None:
    os.environ.pop(VARIABLE, None)
    teller = EncoderTeller()
    assert not teller.wanted
    teller.tell(["one-00000000"], 1.0, 2.0)
