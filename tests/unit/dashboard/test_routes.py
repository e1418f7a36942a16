"""The page's files are for anyone and its data for admins; in a real browser it asks for a key and keeps it in its tab."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest
from selenium.webdriver.common.by import By
from selenium.webdriver.support.wait import WebDriverWait
from tests.browser import browser
from tests.unit.api.fake import FakeService

from foveate.api.app import create_app
from foveate.api.server import HttpServer, bind
from foveate.core.budget import Budget, Caller
from foveate.dashboard.routes import DashboardRoutes, install

STATIC = Path(__file__).parents[3] / "src" / "foveate" / "dashboard" / "static"


def with_keys() -> FakeService:
    return FakeService(callers={"admin": Caller("ops", Budget(), admin=True), "other": Caller("acme", Budget())})


@asynccontextmanager
async def asking(service: FakeService) -> AsyncIterator[httpx.AsyncClient]:
    app = create_app(service)
    install(app, service)
    listener = bind("127.0.0.1", 0)
    address = f"http://127.0.0.1:{listener.getsockname()[1]}"
    async with HttpServer(app, listener), httpx.AsyncClient(base_url=address) as client:
        yield client


async def test_only_admins_see_the_data_where_there_are_keys() -> None:
    async with asking(with_keys()) as client:
        assert (await client.get("/dashboard/data")).status_code == 401
        refused = await client.get("/dashboard/data", headers={"x-api-key": "other"})
        assert refused.status_code == 403
        assert "admin: true" in refused.json()["error"]["message"]
        allowed = await client.get("/dashboard/data", headers={"authorization": "Bearer admin"})
        assert allowed.status_code == 200
        assert allowed.headers["cache-control"] == "no-store"
    async with asking(FakeService()) as client:
        assert (await client.get("/dashboard/data")).status_code == 200


async def test_the_page_and_all_that_it_names_are_there_and_may_load_nothing_else() -> None:
    async with asking(with_keys()) as client:
        page = await client.get("/dashboard")
        assert page.headers["content-type"] == "text/html; charset=utf-8"
        assert page.headers["content-security-policy"].startswith("default-src 'none'; script-src 'self';")
        named = re.findall(r'(?:src|href)="(dashboard/[^"]+)"', page.text)
        assert len(named) == 4
        for path in named:
            found = await client.get(f"/{path}")
            assert found.status_code == 200, path
            assert found.headers["x-content-type-options"] == "nosniff"
        assert (await client.get("/dashboard/files/../routes.py")).status_code == 404
        assert (await client.get("/dashboard/files/index.html")).status_code == 404


def test_every_file_is_served_and_the_chart_files_licence_is_kept() -> None:
    served = set(DashboardRoutes(with_keys())._files) | {"index.html"}
    assert served == {str(path.relative_to(STATIC)) for path in STATIC.rglob("*") if path.is_file()}
    assert "Permission is hereby granted" in (STATIC / "vendor" / "uPlot.LICENSE").read_text()


@pytest.mark.timeout(300)
async def test_a_browser_asks_for_the_key_and_keeps_it_in_the_tab(tmp_path: Path) -> None:
    def visit(url: str) -> None:
        with browser(tmp_path) as tab:
            wait = WebDriverWait(tab, 60)
            tab.get(url)
            field = tab.find_element(By.ID, "key-text")
            wait.until(lambda _: field.is_displayed())
            for key, said in (("wrong", "not known"), ("other", "admin: true"), ("admin", "")):
                field.send_keys(key)
                field.submit()
                if said:
                    wait.until(lambda _, said=said: said in tab.find_element(By.ID, "key-refused").text)
            wait.until(lambda _: tab.find_element(By.ID, "main").is_displayed())
            assert not field.is_displayed()
            assert tab.execute_script("return sessionStorage.length + ',' + localStorage.length") == "1,0"
            tab.refresh()
            wait.until(lambda _: tab.find_element(By.ID, "main").is_displayed())

    async with asking(with_keys()) as client:
        await asyncio.to_thread(visit, f"{client.base_url}/dashboard")
