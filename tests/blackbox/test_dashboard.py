"""The dashboard over a running server, in a real browser: it names the stage of a slow request, asks no other host, fits a phone."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from selenium.webdriver.chrome.webdriver import WebDriver
from selenium.webdriver.common.by import By
from selenium.webdriver.support.wait import WebDriverWait
from tests.blackbox.conftest import SMALL
from tests.blackbox.origins import Origin, body, delayed
from tests.blackbox.pictures import ask, chat, encoded, image, one, url_of, user
from tests.blackbox.replies import content
from tests.blackbox.server import Server
from tests.browser import ROOT, browser, keep_picture, look

CHAT = "/v1/chat/completions"


@pytest.fixture
def watched(tmp_path_factory: pytest.TempPathFactory, web: Origin) -> Iterator[Server]:
    """A server of its own: of one that others ask too, the slowest requests may be theirs."""
    fetch = ("--fetch-http-allowed", "--fetch-private-networks", "127.0.0.1/32", "--fetch-ports", f"80,443,{web.port}")
    made = Server(tmp_path_factory.mktemp("watched"), *SMALL, *fetch, "--slo-text-ttft-p95-ms", "60000", forked=True)
    try:
        yield made
        made.stop()
    finally:
        made.kill_all()


def slow_request(http: httpx.Client, web: Origin) -> str:
    """Ask for text, a picture that comes at once and one that comes late; return the id of the last request."""
    content(http.post(CHAT, json=chat(user("Hello!"))))
    web.pages["/slow-star.png"] = delayed(4.0, body(encoded(one("red", "star", seed=91_001))))
    late = image(f"{web.url}/slow-star.png?signature=hush-hush")
    known = url_of(one("blue", "circle", seed=91_002))
    soon = image(known)
    content(
        http.post(CHAT, json=ask(known))
    )  # so that nothing is left to do for it when the late one comes, which is last then
    reply = http.post(CHAT, json=chat(user(soon, late, "Describe.")), headers={"authorization": "Bearer hush-key"})
    content(reply)
    return reply.headers["x-request-id"]


def requested(tab: WebDriver) -> set[str]:
    """Return the URLs that the browser was made to ask for by its pages."""
    messages = (json.loads(entry["message"])["message"] for entry in tab.get_log("performance"))
    found: list[dict[str, Any]] = [each["params"] for each in messages if each["method"] == "Network.requestWillBeSent"]
    return {each["request"]["url"] for each in found}


def test_the_dashboard_names_the_slow_stage_and_stays_at_home(watched: Server, web: Origin, tmp_path: Path) -> None:
    server = watched
    with server.client() as http:
        slow = slow_request(http, web)
        data = http.get("/dashboard/data")
    listed = {each["id"]: each for each in data.json()["modalities"]["multimodal"]["slowest"]}
    assert listed[slow]["stage"] == "media_fetch"
    assert slow not in {each["id"] for each in data.json()["modalities"]["text"]["slowest"]}
    for secret in ("hush", "base64", "slow-star.png", "signature"):
        assert secret not in data.text
    with browser(tmp_path) as tab:
        wait = WebDriverWait(tab, 60)
        look(tab, width=1280, height=900, dark=False)
        tab.get(f"{server.base_url}/dashboard")
        wait.until(lambda _: tab.find_elements(By.CSS_SELECTOR, "#slowest-multimodal details"))
        for chart in ("#ttft", "#stages-text", "#stages-multimodal", "#queues"):
            assert tab.find_element(By.CSS_SELECTOR, f"{chart} canvas").size["width"] > 200
        request = tab.find_element(By.CSS_SELECTOR, f'#slowest-multimodal details[data-id="{slow}"]')
        request.find_element(By.TAG_NAME, "summary").click()
        wait.until(lambda _: request.find_elements(By.CSS_SELECTOR, ".bar.critical"))
        bars = request.find_elements(By.CSS_SELECTOR, ".bar.critical[data-stage=media_fetch]")
        # Of the two pictures only the late one is on the path; its bar is the widest of all.
        assert [bar.find_element(By.CLASS_NAME, "name").text for bar in bars] == ["★ media_fetch"]
        widths = {
            bar.get_attribute("data-stage"): bar.find_element(By.CSS_SELECTOR, ".track i").size["width"]
            for bar in request.find_elements(By.CSS_SELECTOR, ".bar.critical")
        }
        assert max(widths, key=widths.__getitem__) == "media_fetch"
        assert "text" in tab.find_element(By.CSS_SELECTOR, "#ttft .lead").text
        assert "60.0 s" in tab.find_element(By.CSS_SELECTOR, "#slo").text, "the server's target for text"
        for width in (1280, 390):
            for dark in (False, True):
                look(tab, width=width, height=900, dark=dark)
                wait.until(lambda _, width=width: tab.execute_script("return innerWidth") == width)
                assert tab.execute_script("return document.documentElement.scrollWidth") <= width
                keep_picture(tab, f"dashboard-{width}-{'dark' if dark else 'light'}.png")
        urls = requested(tab)  # which empties the browser's log
        assert f"{server.base_url}/dashboard/data" in urls
        away = {url for url in urls if not url.startswith(server.base_url)}
        assert not {url for url in away if not url.startswith(("chrome://", "data:"))}, (
            "its own empty tab is no one's page"
        )
        assert not [entry for entry in tab.get_log("browser") if entry["level"] == "SEVERE"]


def test_a_browser_reads_server_timing_as_the_example_page_shows_it(server: Server, tmp_path: Path) -> None:
    page = (ROOT / "docs" / "server-timing.html").read_text()
    markup, _, script = page.partition("<script>")
    picture = tmp_path / "picture.png"
    picture.write_bytes(encoded(one("red", "circle", seed=91_003)))
    with browser(tmp_path / "profile") as tab:
        # A page of the server's own origin that becomes the example: browsers tell these figures to no other origin.
        tab.get(f"{server.base_url}/version")
        tab.execute_script("document.documentElement.innerHTML = arguments[0]", markup)
        tab.execute_script(script.partition("</script>")[0])
        tab.find_element(By.ID, "picture").send_keys(str(picture))
        tab.find_element(By.CSS_SELECTOR, "#form button").click()
        WebDriverWait(tab, 60).until(lambda _: tab.find_elements(By.CSS_SELECTOR, "#stages tr"))
        names = [row.get_attribute("data-stage") for row in tab.find_elements(By.CSS_SELECTOR, "#stages tr")]
        assert {"admission", "media_fetch", "vision_encode", "llm_prefill", "ttft", "unattributed"} <= set(names)
        assert tab.find_element(By.ID, "answer").text
