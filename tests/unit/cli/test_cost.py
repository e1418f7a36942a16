"""``foveate cost``: of a log and of a server."""

from __future__ import annotations

import asyncio
import io
from pathlib import Path
from typing import Any

import msgspec
import pytest
from rich.console import Console
from tests.unit.api.fake import FakeService, serving
from typer.testing import CliRunner, Result

from foveate.cli.main import app
from foveate.core.budget import Budget, Caller
from foveate.core.errors import StartupError
from foveate.observe.cost import CostBook, Prices
from foveate.observe.ledger import RequestLedger
from foveate.observe.metrics import Metrics
from foveate.observe.observer import Observer
from foveate.observe.request_line import RequestLine


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["cost", *arguments])


def entry(request_id: str, **fields: Any) -> bytes:
    line = RequestLine(
        time="2026-11-30T11:00:00.000Z", id=request_id, modality="multimodal", outcome="answered", **fields
    )
    return msgspec.json.encode(line) + b"\n"


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "requests.jsonl"
    slow = entry("slow-1", tenant="acme", ttft_ms=90.0, vision_encode_ms=70.0, encoder_ms=3_600_000.0)
    path.write_bytes(slow + entry("quick-1", tenant="web", ttft_ms=20.0, cache_saved_ms=70.0))
    return path


def test_totals_of_a_log_with_prices(log: Path, tmp_path: Path) -> None:
    prices = tmp_path / "foveate.yaml"
    prices.write_text("cost: {encoder_gpu_hour: 2.5}")
    done = run("--by", "tenant", "--file", str(log), "--config", str(prices))
    head, first, second = done.stdout.splitlines()
    assert head.split()[:2] == ["tenant", "requests"]
    assert first.split()[0::8] == ["acme", "2.500000"]
    assert second.split()[0::8] == ["web", "0.000000"]
    assert "no prices" not in done.stderr
    assert "no prices" in run("--file", str(log)).stderr


def test_two_calls_side_by_side(log: Path) -> None:
    done = run("slow-1", "quick", "--file", str(log))
    assert done.exit_code == 0, done.output
    row = next(line for line in done.stdout.splitlines() if "vision_encode" in line)
    assert row.split() == ["vision_encode", "70.0", "ms", "-70.0", "ms"]
    assert "70.0 ms earlier: vision_encode -70.0" in done.stdout


@pytest.mark.parametrize("columns", [60, 80, 120, 200])
def test_a_narrow_terminal_loses_no_figure(log: Path, columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    out = Console(width=columns, file=io.StringIO(), highlight=False, markup=False)
    monkeypatch.setattr("foveate.cli.cost.console", lambda: out)
    log.write_bytes(
        b"".join(
            entry(
                f"r-{number}",
                tenant=f"tenant-{number}",
                model="foveate-demo",
                tier="default",
                encoder_ms=1e6 + number * 1e4,
            )
            for number in range(7)
        )
    )
    assert run("--file", str(log)).exit_code == 0
    shown = out.file.getvalue()  # type: ignore[attr-defined]
    assert max(map(len, shown.splitlines())) <= columns
    assert "…" not in shown
    for number in range(7):
        assert f"tenant-{number}" in shown
        assert f"{1000 + number * 10}.000" in shown
    assert shown.count("multimodal") == 7
    assert (shown.count("encoder s") == 1) == (columns == 200)


@pytest.mark.parametrize("arguments", [("nothing",), ("--by", "colour"), ("--url", "ftp://x")])
def test_what_cannot_be_asked(log: Path, arguments: tuple[str, ...]) -> None:
    assert isinstance(run(*arguments, "--file", str(log)).exception, StartupError)


async def test_of_a_server() -> None:
    observer = Observer(Metrics(), None, CostBook(Prices(llm_gpu_hour=3.6)))
    for number in range(2):
        ledger = RequestLedger(request_id=f"r-{number}", model="m", received_at=0.0, images=0, tenant="acme")
        ledger.spent.engine_token_ms = 1000.0 * (number + 1)
        observer.opened(ledger)
        observer.ended(ledger.end("answered", error_code=None, at=1.0))
    service = FakeService(
        callers={"admin": Caller("ops", Budget(), admin=True), "web": Caller("web", Budget())}, observer=observer
    )
    async with serving(service) as server:
        url = f"http://127.0.0.1:{server.port}"

        async def ask(*arguments: str) -> Result:
            return await asyncio.to_thread(run, *arguments, "--url", url)

        totals = await ask("--by", "tenant", "--key", "admin")
        assert totals.stdout.splitlines()[1].split() == [
            "acme",
            "2",
            "0.00",
            "0.000",
            "0.000",
            "0.000",
            "3.000",
            "0.000",
            "0.003000",
        ]
        compared = await ask("r-0", "r-1", "--key", "admin")
        assert "1000.0 ms more of processors and devices: language model" in compared.stdout
        refused = await ask("--key", "web")
        assert isinstance(refused.exception, StartupError)
        assert "403" in refused.exception.public
        unknown = await ask("r-7", "--key", "admin")
        assert isinstance(unknown.exception, StartupError)
        assert "404" in unknown.exception.public
