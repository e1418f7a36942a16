"""Encode workers: the same answers, each picture encoded there, and no request lost when one is killed or stopped under load."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.blackbox.conftest import SMALL
from tests.blackbox.load import Load
from tests.blackbox.pictures import ask, one, url_of
from tests.blackbox.replies import content
from tests.blackbox.server import Server, eventually, title
from tests.blackbox.test_resilience import CHAT, assert_well, under_load


@contextmanager
def served(directory: Path, *flags: str, key: str = "") -> Iterator[Server]:
    """``key`` is an admin's, and everyone's."""
    keys = {"FOVEATE_AUTH__KEYS": f"ops:default:plain:{key}:admin"} if key else {}
    shared = Server(directory, *SMALL, *flags, forked=True, **keys)
    shared.key = key
    try:
        yield shared
        shared.stop()
    finally:
        shared.kill_all()


@pytest.fixture(scope="module")
def apart(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with two encode workers and no vision tower in its engine."""
    flags = ("--topology", "e-pd", "--encoders", "2", "--topology-fallback", "off")
    with served(tmp_path_factory.mktemp("apart"), *flags) as server:
        yield server


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


@pytest.fixture(scope="module")
def split(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server whose prompts are prefilled by one process and answered by another; the first stands in for encode workers too.

    The encoder is an operator's own, which answers as the model's does (the model's own in this topology: test_topologies_agree.py).
    """
    own = ("--encoder", "examples.int8_encoder:Int8Encoder")
    flags = ("--topology", "e-p-d", "--encoders", "1", "--engine-hang-seconds", "1", *own)
    with served(tmp_path_factory.mktemp("split"), *flags, key="fov-test-key-admin-0123456789") as server:
        yield server


def test_prefill_and_token_decode_apart(split: Server) -> None:
    body = ask(url_of(one("red", "circle", seed=978)))
    with split.client() as http:
        found = http.post(CHAT, json=body)
    assert content(found) == "A red circle."
    assert "pictures are encoded by examples.int8_encoder:Int8Encoder" in split.log_text()
    assert split.metrics().total("foveate_encoder_worker_pictures_total") >= 1
    assert {"llm_queue", "llm_prefill", "vision_encode"} <= {
        part.partition(";")[0].strip() for part in found.headers["server-timing"].split(",")
    }
    assert split.metrics().total("foveate_ttft_seconds_count", modality="multimodal", topology="e-p-d") >= 1
    assert split.metrics().total("foveate_kv_handed_on_total") >= 1
    assert split.metrics().total("foveate_kv_handed_on_bytes_total") > 0


@pytest.mark.parametrize(("engine", "how"), [(0, signal.SIGKILL), (0, signal.SIGSTOP), (1, signal.SIGSTOP)])
def test_what_has_no_token_outlives_its_process(engine: int, how: signal.Signals, split: Server) -> None:
    """A prefill worker costs nobody an answer; a token-decode worker those it had begun."""
    (before,) = split.titled(f"foveate: engine {engine}")
    load = under_load(split, lambda: os.kill(before.pid, how))
    errors = {ended.error["code"] for ended in load.ended if ended.error is not None}
    assert errors <= (set() if engine == 0 else {"engine_failed"})
    eventually(
        "a new engine", lambda: [one for one in split.titled(f"foveate: engine {engine}") if one.pid != before.pid]
    )
    assert_well(split)


STEPS: tuple[tuple[dict[str, Any], int], ...] = (
    ({"kind": "agg"}, 1),
    ({"kind": "e-pd", "encoders": 2}, 1),
    ({"kind": "e-p-d", "encoders": 1, "prefill": 1, "decode": 2}, 3),
    ({"kind": "e-p-d", "encoders": 1, "prefill": 2, "decode": 1}, 3),
    ({"kind": "e-pd", "encoders": 1}, 1),
    ({"kind": "e-p-d", "encoders": 1}, 2),
    ({"kind": "agg"}, 1),
)


def test_it_becomes_every_other_under_load_and_no_request_fails(split: Server) -> None:
    """Last, as it leaves another topology than there was."""
    with split.client(seconds=180) as http, Load(split, clients=6, seconds=120) as load:
        for wanted, engines in STEPS:
            found = http.put("/admin/topology", json=wanted)
            assert found.status_code == 200, found.text
            report = found.json()
            assert (report["kind"], len(report["workers"])) == (wanted["kind"], wanted.get("encoders", 0))
            assert sum(not one["leaving"] for one in report["engines"]) == engines
            enough = len(load.ended) + len(load.trouble) + 12
            eventually("requests to end so", lambda enough=enough: len(load.ended) + len(load.trouble) >= enough)
    assert load.trouble == []
    assert [ended.error for ended in load.ended if ended.error is not None] == []
    wrong = [ended for ended in load.ended if ended.expected is not None and not ended.right]
    assert len(wrong) <= len(load.ended) * 0.05, [(ended.expected, ended.said) for ended in wrong]
    assert_well(split)
    engines = [name for process in split.processes() if (name := title(process)).startswith("foveate: engine")]
    assert len(engines) == 1, engines
    now = split.metrics()
    assert now.total("foveate_kv_room_used_bytes") == now.total("foveate_engine_in_flight") == 0
    cached = now.total("foveate_encoder_cache_bytes") + now.total("foveate_processor_cache_bytes")
    assert now.total("foveate_arena_used_bytes") - cached <= 65536


def test_an_engine_is_drained_and_resumed(split: Server) -> None:
    with split.client() as http:
        assert http.post("/admin/engines/0/drain").json()["draining"]
        assert not split.ready()
        refused = http.post(CHAT, json=ask(url_of(one("red", "circle"))))
        assert (refused.status_code, "taken out of use" in refused.json()["error"]["message"]) == (503, True)
        assert http.post("/admin/engines/7/drain").json()["error"]["code"] == "engine_unknown"
        assert split.metrics().total("foveate_engine_draining") == 1
        assert not http.post("/admin/engines/0/resume").json()["draining"]
    assert_well(split)
