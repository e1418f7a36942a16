"""Finds and starts the real Chromium, headless: on the PATH, or where ``make test`` unpacked it."""

from __future__ import annotations

import base64
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from selenium import webdriver
from selenium.webdriver.chrome.service import Service

ROOT = Path(__file__).parents[1]
UNPACKED = ROOT / ".venv" / "chromium"
PICTURES = ROOT / "artifacts"
"""Where screenshots are kept."""
_LIBRARIES = ("usr/lib/x86_64-linux-gnu", "usr/lib/x86_64-linux-gnu/pulseaudio", "lib/x86_64-linux-gnu")


def _programs() -> tuple[str, str, dict[str, str]]:
    """Return chromium, its driver and the environment they need; skip where there are none, but fail in CI, which must have them."""
    installed = shutil.which("chromium"), shutil.which("chromedriver")
    if installed[0] and installed[1]:
        return installed[0], installed[1], dict(os.environ)
    # Not usr/bin/chromium, a script that looks for the binary where Debian installs it.
    unpacked = UNPACKED / "usr/lib/chromium/chromium", UNPACKED / "usr/bin/chromedriver"
    if unpacked[0].exists() and unpacked[1].exists():
        libraries = ":".join(str(UNPACKED / path) for path in _LIBRARIES)
        return str(unpacked[0]), str(unpacked[1]), {**os.environ, "LD_LIBRARY_PATH": libraries}
    said = "no chromium with chromedriver: `make test` fetches them with tools/fetch_chromium.sh"
    if os.environ.get("CI"):
        pytest.fail(said)
    pytest.skip(said)


@contextmanager
def browser(profile: Path) -> Iterator[webdriver.Chrome]:
    """Run a browser with a profile of its own. It logs every request that its pages make (``performance``) and what their consoles say."""
    chromium, driver, environment = _programs()
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for flag in (
        "--headless=new",
        # Its sandbox needs rights that containers rarely give; it only meets the server under test.
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--disable-background-networking",
        "--no-first-run",
        f"--user-data-dir={profile}",
    ):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"performance": "ALL", "browser": "ALL"})
    running = webdriver.Chrome(options=options, service=Service(driver, env=environment))
    try:
        running.set_page_load_timeout(60)
        yield running
    finally:
        running.quit()


def look(running: webdriver.Chrome, *, width: int, height: int, dark: bool) -> None:
    """Give the page a size in CSS pixels and a colour scheme."""
    size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 800}
    running.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    scheme = {"features": [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]}
    running.execute_cdp_cmd("Emulation.setEmulatedMedia", scheme)


def keep_picture(running: webdriver.Chrome, name: str) -> Path:
    """Keep a picture of the whole page, and return where."""
    PICTURES.mkdir(exist_ok=True)
    running.execute_script("scrollTo(0, 0)")
    height = int(running.execute_script("return document.documentElement.scrollHeight"))
    width = int(running.execute_script("return innerWidth"))
    scale = {"x": 0, "y": 0, "width": width, "height": height, "scale": 1}
    taken = running.execute_cdp_cmd("Page.captureScreenshot", {"captureBeyondViewport": True, "clip": scale})
    path = PICTURES / name
    path.write_bytes(base64.b64decode(taken["data"]))
    return path
