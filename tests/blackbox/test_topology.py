"""Encode workers: the same answers, each picture encoded there, and no request lost when one is killed or stopped under load."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest
from tests.blackbox.conftest import SMALL
from tests.blackbox.pictures import ask, one, url_of
from tests.blackbox.replies import content
from tests.blackbox.server import Server, eventually
from tests.blackbox.test_resilience import CHAT, assert_well, under_load


@pytest.fixture(scope="module")
def apart(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with two encode workers and no vision tower in its engine."""
    shared = Server(
        tmp_path_factory.mktemp("apart"), *SMALL, "--topology", "e-pd", "--encoders", "2", "--topology-fallback", "off"
    )
    try:
        yield shared
        shared.stop()
    finally:
        shared.kill_all()


def test_pictures_are_encoded_there_and_every_stage_is_timed(apart: Server) -> None:
    body = ask(url_of(one("red", "circle", seed=977)))
    with apart.client() as http:
        found = http.post(CHAT, json=body)
    assert content(found) == "A red circle."
    for stage in ("encoder_queue", "vision_encode", "embedding_transfer"):
        assert stage in found.headers["server-timing"]
    assert len(apart.titled("foveate: encoder 0")) == len(apart.titled("foveate: encoder 1")) == 1
    assert apart.metrics().total("foveate_ttft_seconds_count", modality="multimodal", topology="e-pd") >= 1


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_no_request_fails_when_a_worker_dies_or_hangs(how: signal.Signals, apart: Server) -> None:
    (before,) = apart.titled("foveate: encoder 0")
    load = under_load(apart, lambda: os.kill(before.pid, how))
    assert [ended.error for ended in load.ended if ended.error is not None] == []
    (again,) = eventually(
        "a new encoder 0", lambda: [one for one in apart.titled("foveate: encoder 0") if one.pid != before.pid]
    )
    assert again.pid != before.pid
    assert_well(apart)
