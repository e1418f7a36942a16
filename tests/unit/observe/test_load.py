"""What waits and how busy encoders are, as the gateway's sides of the processes tell it."""

from __future__ import annotations

import pytest

from foveate.observe.load import WINDOW_SECONDS, Load
from foveate.observe.metrics import Metrics


class Clock:
    def __init__(self) -> None:
        self.at = 1000.0

    def __call__(self) -> float:
        return self.at


def test_pictures_wait_until_a_batch_has_them() -> None:
    load = Load()
    encoder = load.encoder()
    for job in (1, 2, 3):
        encoder.submitted(job)
    assert load.encoder_waiting == 3
    encoder.began([1, 2])
    assert load.encoder_waiting == 1
    encoder.ended(3)  # cancelled before it began
    assert load.encoder_waiting == 0


def test_how_busy_counts_running_batches_and_those_of_a_minute() -> None:
    clock = Clock()
    metrics = Metrics()
    load = Load(metrics, clock)
    one, two = load.encoder(), load.encoder()
    for encoder in (one, two):
        encoder.began([1, 2])
    clock.at += 7
    two.ended(1)
    two.ended(2)
    assert load.encoders_busy() == pytest.approx(14 / 57), "the one that still runs counts as far as it came"
    one.gone()
    assert metrics.values("foveate_encoder_busy_seconds_total") == {(): pytest.approx(14)}
    text = metrics.exposition()[0].decode()
    assert "foveate_encoder_batch_pictures_sum 4.0" in text
    assert "foveate_encoder_batch_pictures_count 2.0" in text
    clock.at += WINDOW_SECONDS + 10
    assert load.encoders_busy() == 0


def test_an_encoder_that_never_pauses_is_wholly_busy() -> None:
    clock = Clock()
    load = Load(now=clock)
    encoder = load.encoder()
    for job in range(500):
        encoder.began([job])
        clock.at += 1.3
        encoder.ended(job)
    assert load.encoders_busy() == pytest.approx(1.0)
    assert len(load._cells) < 15, "whatever the run's length"
    load.forget(encoder)
    assert load.encoder_waiting == 0
