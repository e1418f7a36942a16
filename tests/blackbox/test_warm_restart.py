"""The encoder cache over a restart: what was seen before is not encoded again, and nothing of another model, or damaged, is taken for it.

One server fills the cache and stops; others begin with a copy of the file that it left.
"""

from __future__ import annotations

import json
import shutil
import stat
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
from tests.blackbox.conftest import SMALL
from tests.blackbox.failing_starts import failing
from tests.blackbox.field_cases.marks import ANSWERED, field_case
from tests.blackbox.pictures import DESCRIBE, ask, one, url_of
from tests.blackbox.replies import content, server_timing
from tests.blackbox.server import Server
from tests.blackbox.test_startup import copy_of_demo
from tests.families import edit_json

FILE = "encoder.kept"
CHAT = "/v1/chat/completions"
WORK = {"media_decode", "mm_processor", "vision_encode"}
PICTURES = {
    ("red", "circle"): "A red circle.",
    ("blue", "square"): "A blue square.",
    ("green", "circle"): "A green circle.",
}

View = tuple[str, list[float], set[str]]
"""What is said, how surely, and the stages that it took."""


def view(http: httpx.Client, shape: tuple[str, str]) -> View:
    response = http.post(CHAT, json=ask(url_of(one(*shape)), DESCRIBE, logprobs=True))
    said = content(response)
    sure = [token["logprob"] for token in response.json()["choices"][0]["logprobs"]["content"]]
    return said, sure, set(server_timing(response))


def views(server: Server) -> dict[tuple[str, str], View]:
    with server.client() as http:
        return {shape: view(http, shape) for shape in PICTURES}


@dataclass(frozen=True)
class Before:
    """What a server said of the pictures, and the file that it left. ``model`` is a copy of the model that it served."""

    cold: dict[tuple[str, str], View]
    model: Path
    file: bytes


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory) -> Before:
    path = tmp_path_factory.mktemp("before")
    keep = path / "keep"
    flags = ("--model", str(copy_of_demo(path / "model")), "--cache-encoder-keep-dir", str(keep))
    server = Server(path, *SMALL, *flags, forked=True)
    try:
        cold = views(server)
        assert not (keep / FILE).exists()
        server.stop()
    finally:
        server.kill_all()
    assert {shape: said for shape, (said, _, _) in cold.items()} == PICTURES
    assert all(stages >= WORK for _, _, stages in cold.values())
    assert (stat.S_IMODE(keep.stat().st_mode), stat.S_IMODE((keep / FILE).stat().st_mode)) == (0o700, 0o600)
    return Before(cold, path / "model", (keep / FILE).read_bytes())


@pytest.fixture
def again(start: Callable[..., Server], before: Before, tmp_path: Path) -> Callable[..., Server]:
    """Start a server with ``file`` in its directory and the model as ``change`` leaves it."""

    def begin(file: bytes = before.file, change: Callable[[Path], None] = lambda model: None) -> Server:
        model, keep = Path(shutil.copytree(before.model, tmp_path / "model")), tmp_path / "keep"
        change(model)
        keep.mkdir(mode=0o700)
        (keep / FILE).write_bytes(file)
        return start("--model", str(model), "--cache-encoder-keep-dir", str(keep))

    return begin


def restored(server: Server) -> tuple[float, dict[str, float]]:
    """Return how many entries came back, and how many did not, by reason."""
    metrics = server.metrics()
    name = "foveate_restore_skipped_total"
    reasons = metrics.label_values(name, "reason")
    return metrics.total("foveate_restored_entries_total"), {one: metrics.total(name, reason=one) for one in reasons}


@field_case(97, "a cache kept over a restart; then another picture as the first request", "its own answer")
def test_what_was_seen_before_a_restart(again: Callable[..., Server], before: Before, tmp_path: Path) -> None:
    """One bit of one picture's embeddings was damaged on the disk: that one is made again, and all are answered to the bit as before."""
    at = len(before.file) * 5 // 6
    damaged = before.file[:at] + bytes([before.file[at] ^ 1]) + before.file[at + 1 :]
    server = again(damaged)
    assert restored(server) == (2, {"damaged": 1})
    assert "not all of the kept encoder cache is used" in server.log_text()
    assert "in use by another server" in failing("--cache-encoder-keep-dir", str(tmp_path / "keep"))
    with server.client() as http:
        said, _, stages = view(http, ("black", "star"))
    assert said == "A black star."
    assert stages >= WORK
    warm = views(server)
    assert {shape: seen[:2] for shape, seen in warm.items()} == {shape: seen[:2] for shape, seen in before.cold.items()}
    assert sorted(bool(WORK & stages) for _, _, stages in warm.values()) == [False, False, True]
    assert server.metrics().total("foveate_encoder_cache_hits_total") == 2
    server.process.kill()
    server.assert_ended(-9)
    assert (tmp_path / "keep" / FILE).read_bytes() == damaged, "a killed server leaves the file as it was"


def another_processor(model: Path) -> None:
    edit_json(model / "preprocessor_config.json", image_mean=[0.1, 0.2, 0.7])


def another_encoder(model: Path) -> None:
    """Turn the sign of a few hundred numbers of one of its tensors."""
    weights = model / "model.safetensors"
    data = bytearray(weights.read_bytes())
    start = 8 + int.from_bytes(data[:8], "little")
    first, _ = json.loads(data[8:start])["visual.patch_embed.proj.weight"]["data_offsets"]
    for at in range(start + first, start + first + 1024, 4):
        data[at + 3] ^= 0x80  # the high byte of every second bfloat16
    weights.write_bytes(data)


@field_case(
    99, "an encoder cache kept over a restart, `image_mean` or the encoder's weights changed: it is not used", ANSWERED
)
@pytest.mark.parametrize("change", [another_processor, another_encoder])
def test_nothing_of_another_model_is_used(
    again: Callable[..., Server], before: Before, change: Callable[[Path], None]
) -> None:
    server = again(change=change)
    assert restored(server) == (0, {"version": 3})
    for shape, (_, sure, stages) in views(server).items():
        assert stages >= WORK
        assert sure != before.cold[shape][1]
    server.stop()
