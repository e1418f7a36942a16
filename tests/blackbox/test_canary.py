"""A roll-out as an operator does it: the command against a running server, its metrics and its log."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.blackbox.pictures import chat, data_url, encoded, image, one, user
from tests.blackbox.replies import content
from tests.blackbox.server import Server, environment, eventually
from tests.journeys.versions import red_for_blue

ADMIN = "fov-test-key-admin-0123456789"
CHAT = "/v1/chat/completions"

pytestmark = pytest.mark.timeout(600)


def test_the_command_tries_promotes_and_rolls_back(start: Callable[..., Server], tmp_path: Path) -> None:
    server = start(FOVEATE_AUTH__KEYS=f"ops:default:plain:{ADMIN}:admin", FOVEATE_CANARY__COSINE_MIN="-1")
    new = red_for_blue(tmp_path / "new")

    def command(*words: str, key: str = ADMIN, code: int = 0) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [sys.executable, "-m", "foveate", "canary", *words, "--url", server.base_url],
            env=environment(FOVEATE_ADMIN_KEY=key),
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == code, done.stderr
        return done

    def report() -> dict[str, Any]:
        return dict(json.loads(command("status", "--json").stdout))

    body = chat(user(image(data_url(encoded(one("red", "circle")))), "What is in this image?"))

    def seen() -> tuple[str, str | None]:
        """The colour that the answer names, and which version the request log says gave it."""
        with httpx.Client(base_url=server.base_url, timeout=120, headers={"x-api-key": ADMIN}) as client:
            reply = client.post(CHAT, json=body)
        assert reply.status_code == 200, reply.text
        colour = "red" if "red" in content(reply) else "blue"
        return colour, server.record(reply.headers["x-request-id"])["version"]

    assert seen() == ("red", None)
    assert "none" in command("status").stdout
    assert "This API key is not known" in command("status", key="wrong", code=1).stderr
    assert "There is no directory" in command("start", "--model", str(tmp_path / "nothing"), code=1).stderr
    started = command("start", "--model", str(new), "--share", "100%")
    assert "on trial, 100 % of contents" in started.stdout
    assert str(new) in started.stdout
    assert seen() == ("blue", "canary")
    assert server.metrics().total("foveate_canary_share") == 1.0
    assert server.metrics().total("foveate_canary_requests_total", role="canary", outcome="answered") == 1
    command("share", "0%")
    assert seen() == ("red", "stable")

    server.kill("foveate: engine 1")  # that of the new version
    ended = eventually("the roll-back", lambda: (now := report())["state"] == "rolled_back" and now)
    assert "died" in ended["reason"]
    assert server.metrics().total("foveate_canary_ended_total", outcome="engine") == 1
    assert "rolled back" in server.log_text()
    assert seen() == ("red", None)
    eventually("its processes to end", lambda: server.metrics().total("foveate_canary_versions") == 1)

    command("start", "--model", str(new), "--share", "5%", "--warm", "10")
    assert "promoted" in command("promote").stdout
    eventually("the old version to end", lambda: server.metrics().total("foveate_canary_versions") == 1)
    assert not server.titled("foveate: engine 0")
    assert seen() == ("blue", None)
    assert report()["stable"]["model"] == str(new)
    assert "No new version is on trial" in command("rollback", code=1).stderr
    server.stop()
