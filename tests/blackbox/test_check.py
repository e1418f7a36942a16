"""``foveate check --embeddings``, as an operator types it."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from tests.blackbox.server import environment

CHECK = (sys.executable, "-m", "foveate", "check")


def _run(*flags: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*CHECK, *flags],
        env=environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )


@pytest.mark.timeout(300)
def test_the_shipped_models_path_agrees_with_transformers() -> None:
    ended = _run("--embeddings", "--json", "--media-workers", "1", "--engine-threads", "1")
    assert ended.returncode == 0, ended.stderr[-3000:]
    report = json.loads(ended.stdout)
    assert report["agrees"] is True
    (found,) = report["compared"]
    assert found["rows"] == found["rows_expected"] > 0
    assert found["cosine_min"] > report["tolerances"]["cosine_min"]
    assert found["logprob_difference"] < 0.001
    assert found["steps"] == 8


def test_what_cannot_be_told_ends_with_2_and_a_sentence() -> None:
    """Nobody listens at port 9."""
    sent = ("--embeddings", "--engine", "upstream", "--upstream", "http://127.0.0.1:9", "--upstream-mode", "embeds")
    ended = _run(*sent)
    assert ended.returncode == 2
    assert "name the model that they run" in ended.stderr
    assert "Traceback" not in ended.stderr
