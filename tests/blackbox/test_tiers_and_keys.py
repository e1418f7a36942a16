"""Tiers by API key, and rules that change while the server runs: SIGHUP, the admin API, and files that are wrong."""

from __future__ import annotations

import hashlib
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from tests.blackbox.conftest import SMALL
from tests.blackbox.origins import Origin, body
from tests.blackbox.pictures import ask, chat, encoded, image, one, url_of, user
from tests.blackbox.replies import content, events, refused
from tests.blackbox.server import HTTP, Server, environment, eventually

CHAT = "/v1/chat/completions"
TIERS = """
multimodal_budget:
  default:
    max_images: 4
    max_image_width: 2048
    max_image_height: 2048
    max_video_frames: 32
  trusted_batch_job:
    max_images: 16
    max_video_frames: 96
"""
PLAIN, BATCH, ADMIN, LATER = (f"fov-test-key-{name}-0123456789" for name in ("plain", "batch", "admin", "later"))
KEYS: list[dict[str, Any]] = [
    {"tenant": "web", "tier": "default"},
    {"tenant": "acme", "tier": "trusted_batch_job", "may_use": ["default"]},
    {"tenant": "ops", "tier": "default", "admin": True},
]
DIGESTS = {key: hashlib.sha256(key.encode()).hexdigest() for key in (PLAIN, BATCH, ADMIN, LATER)}
for entry, key in zip(KEYS, (PLAIN, BATCH, ADMIN), strict=True):
    entry["sha256"] = DIGESTS[key]


class Operated:
    """A server and the files that its operator edits."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir()
        self.settings = directory / "foveate.yaml"
        self.keys = directory / "keys.yaml"
        self.write()
        self.server = Server(directory / "server", *SMALL, "--config", str(self.settings), ready=False)

    def write(self, more: str = "", keys: list[dict[str, Any]] | None = None, tiers: str = TIERS) -> None:
        self.settings.write_text(f"{tiers}\nauth: {{keys_file: {self.keys}}}\n{more}\n")
        self.keys.write_text(yaml.safe_dump(KEYS if keys is None else keys))

    def client(self, key: str | None, **headers: str) -> httpx.Client:
        sent = {"authorization": f"Bearer {key}"} if key else {}
        return httpx.Client(base_url=self.server.base_url, timeout=120, headers={**sent, **headers})

    def hang_up(self, then: str) -> None:
        """Send SIGHUP and wait until the server's log says what became of it."""
        seen = self.server.log_text().count(then)
        self.server.send_signal(signal.SIGHUP)
        eventually(f"the log to say {then!r}", lambda: self.server.log_text().count(then) > seen)

    def reload(self) -> httpx.Response:
        with self.client(ADMIN) as http:
            return http.post("/admin/reload")


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Operated]:
    made = Operated(tmp_path_factory.mktemp("operated") / "files")
    server = made.server

    def up() -> bool:
        try:
            return HTTP.get(f"{server.base_url}/health", timeout=5).status_code == 200
        except httpx.TransportError:
            return False

    try:
        eventually("the port to be open", up)
        server.send_signal(signal.SIGHUP)  # while it loads: neither its end nor forgotten
        server.wait_ready()
        eventually("the reload that was asked for", lambda: "reloaded" in server.log_text())
        yield made
        server.stop()
    finally:
        server.kill_all()


@pytest.fixture
def operated(running: Operated) -> Iterator[Operated]:
    """The server with its files as they were at its start."""
    yield running
    running.write()
    assert running.reload().status_code == 200


def pictures(number: int) -> dict[str, Any]:
    return chat(user(*(image(url_of(one("red", "circle", seed=seed))) for seed in range(number)), "Describe."))


def test_the_settings_print_every_tier_with_what_it_inherits(tmp_path: Path) -> None:
    file = tmp_path / "foveate.yaml"
    file.write_text(TIERS)
    command = (sys.executable, "-m", "foveate", "settings", "--config", str(file))
    printed = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True, env=environment())
    tiers = yaml.safe_load(printed.stdout)["multimodal_budget"]
    assert list(tiers) == ["default", "trusted_batch_job"]
    assert [tier["max_images"] for tier in tiers.values()] == [4, 16]
    assert [tier["max_video_frames"] for tier in tiers.values()] == [32, 96]
    assert [tier["max_image_width"] for tier in tiers.values()] == [2048, 2048]
    file.write_text(printed.stdout)
    again = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True, env=environment())
    assert again.stdout == printed.stdout


@pytest.mark.parametrize("key", [None, "fov-nobody-has-this-key-0123", BATCH[:-1], DIGESTS[BATCH]])
def test_every_request_of_the_api_needs_a_key(running: Operated, key: str | None) -> None:
    with running.client(key) as http:
        for method, path in (("POST", CHAT), ("POST", "/v1/completions"), ("GET", "/v1/models")):
            error = refused(http.request(method, path, json={} if method == "POST" else None), 401)
            assert error["code"] == "invalid_api_key"
            assert key is None or key not in error["message"]
        assert http.post("/admin/reload").status_code == 401
        for path in ("/health", "/ready", "/metrics", "/version"):
            assert http.get(path).status_code == 200


def test_the_key_chooses_the_tier(running: Operated) -> None:
    with running.client(PLAIN) as http:
        error = refused(http.post(CHAT, json=pictures(5)), 400)
        assert (error["code"], error["limit_name"], error["limit"], error["actual"]) == (
            *("too_many_images", "max_images"),
            *(4, 5),
        )
    with running.client(BATCH) as http:
        assert content(http.post(CHAT, json=pictures(5)))
    with running.client(None, **{"x-api-key": PLAIN}) as http:
        assert content(http.post(CHAT, json=pictures(1)))


def test_a_request_may_ask_for_another_tier_where_its_key_may(running: Operated) -> None:
    with running.client(BATCH, **{"x-foveate-tier": "default"}) as http:
        assert refused(http.post(CHAT, json=pictures(5)), 400)["limit"] == 4
    for key, tier in ((PLAIN, "trusted_batch_job"), (ADMIN, "trusted_batch_job"), (BATCH, "no_such_tier")):
        with running.client(key, **{"x-foveate-tier": tier}) as http:
            error = refused(http.post(CHAT, json=pictures(1)), 403)
            assert error["code"] == "not_permitted"
            assert error.get("limit_name") is None


def test_a_hangup_brings_tier_key_and_allowlist_while_a_stream_goes_on(operated: Operated, web: Origin) -> None:
    web.pages["/reloaded.png"] = body(encoded(one("blue", "star")))
    asked = ask(f"{web.url}/reloaded.png")
    endless = chat(user("Hello!"), max_tokens=400, ignore_eos=True, stream=True)
    with operated.client(PLAIN) as http, http.stream("POST", CHAT, json=endless) as streaming:
        lines = streaming.iter_lines()
        first = [next(lines) for _ in range(4)]
        with operated.client(LATER) as later:
            assert later.get("/v1/models").status_code == 401
        with operated.client(BATCH) as batch:
            assert refused(batch.post(CHAT, json=asked), 400)["code"] == "media_url_refused"
        operated.write(
            f"fetch: {{http_allowed: true, private_networks: [127.0.0.1/32], ports: [80, 443, {web.port}]}}",
            [*KEYS[1:], {"tenant": "late", "tier": "night", "sha256": DIGESTS[LATER]}],
            TIERS + "  night: {max_images: 1}\n",
        )
        operated.hang_up("reloaded")
        with operated.client(LATER) as later:
            assert content(later.post(CHAT, json=asked)) == "A blue star."
            assert refused(later.post(CHAT, json=pictures(2)), 400)["limit"] == 1
        with operated.client(PLAIN) as plain:
            assert plain.get("/v1/models").status_code == 401, "its key is gone"
        received = events([*first, *lines])
        assert received[-1]["choices"][0]["finish_reason"] == "length", "the stream under way was not disturbed"


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ("fetch: {http_alowed: true}", "Did you mean fetch.http_allowed?"),
        ("fetch: {private_networks: [10.0.0.0/99]}", "10.0.0.0/99"),
        ("server: [", "cannot be read"),
    ],
)
def test_a_bad_file_keeps_the_old_rules_and_says_why(operated: Operated, more: str, said: str) -> None:
    operated.write(more, tiers=TIERS.replace("max_images: 16", "max_images: 1"))
    reply = operated.reload()
    assert reply.status_code == 422
    assert reply.json()["error"]["code"] == "settings_refused"
    assert said in reply.json()["error"]["message"]
    operated.hang_up(said)
    assert operated.server.metrics().total("foveate_reloads_total", outcome="refused") >= 2
    with operated.client(BATCH) as http:
        assert content(http.post(CHAT, json=pictures(2)))


def test_a_bad_keys_file_names_the_entry_and_no_key(operated: Operated) -> None:
    operated.write(keys=[*KEYS, {"tenant": "acme", "sha256": BATCH}])
    message = operated.reload().json()["error"]["message"]
    assert "entry 4" in message
    assert "sha256" in message
    assert BATCH not in message
    operated.write(keys=[*KEYS, {"tenant": "acme", "tier": "trusted_batch", "sha256": DIGESTS[LATER]}])
    assert "Did you mean trusted_batch_job?" in operated.reload().json()["error"]["message"]
    operated.write(keys=[])
    assert "at least one key" in operated.reload().json()["error"]["message"]
    with operated.client(BATCH) as http:
        assert http.get("/v1/models").status_code == 200


def test_the_admin_api_is_for_admins(operated: Operated) -> None:
    with operated.client(BATCH) as http:
        for reply in (http.post("/admin/reload"), http.get("/admin/rules")):
            assert reply.status_code == 403
            assert "admin: true" in reply.json()["error"]["message"]
    with operated.client(ADMIN) as http:
        operated.write("server: {drain_seconds: 9}", tiers=TIERS.replace("max_images: 4", "max_images: 5"))
        assert http.post("/admin/reload").json() == {
            "tiers": ["default", "trusted_batch_job"],
            "keys": 3,
            "changed": ["multimodal_budget.default.max_images"],
            "restart_needed": ["server.drain_seconds"],
            "warnings": [],
        }
        rules = http.get("/admin/rules").json()
    assert rules["tiers"]["default"]["max_images"] == 5
    assert rules["keys"] == {"acme": 1, "ops": 1, "web": 1}
    assert rules["fetch"]["fetch.http_allowed"] is False
    assert not any(digest in str(rules) for digest in DIGESTS.values())


def test_no_log_holds_a_key_or_its_digest(running: Operated) -> None:
    logs = running.server.log_text() + running.server.request_log.read_text()
    assert "reloaded" in logs
    for key, digest in DIGESTS.items():
        assert key not in logs
        assert digest not in logs


def test_without_keys_nobody_is_an_admin_and_the_answer_says_what_to_do(server: Server) -> None:
    with server.client() as http:
        reply = http.post("/admin/reload")
        assert reply.status_code == 403
        assert "auth.keys_file" in reply.json()["error"]["message"]
        assert "SIGHUP" in reply.json()["error"]["message"]
        tier = http.get("/v1/models", headers={"x-foveate-tier": "trusted_batch_job"})
        assert refused(tier, 403)["code"] == "not_permitted"
        assert http.get("/v1/models", headers={"x-foveate-tier": "default"}).status_code == 200
