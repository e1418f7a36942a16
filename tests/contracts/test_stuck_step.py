"""A step of the language model that never ends, in the real process of the embedded engine, which goes on answering pings."""

from __future__ import annotations

import asyncio

import pytest
from tests.contracts.bench import MODEL, Bench

from foveate.core.errors import EngineDied
from foveate.core.request import Sampling
from foveate.engines.embedded import client
from foveate.runtime.local.runtime import LocalRuntime

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(300)]


async def test_the_process_ends_and_its_successor_answers(
    runtime: LocalRuntime, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(client, "ENTRY", "tests.workers:sticking")
    bench = Bench("embedded", runtime, MODEL, step_seconds_max=1.0, encoder=False)
    engine = bench.engine
    await engine.start()
    try:
        # Many steps may take longer together than one may.
        sampling = Sampling(300, temperature=0, ignore_eos=True)
        _, _, (finish,) = await bench.answer(bench.work("Hello, who are you?", sampling=sampling))
        assert finish.output_tokens == 300
        others = asyncio.ensure_future(bench.answer(bench.work("Hello!", sampling=sampling)))
        with pytest.raises(EngineDied):
            await bench.answer(bench.work("#"))
        with pytest.raises(EngineDied):
            await others
        assert engine.ready is False
        assert "has answered nothing" not in caplog.text, "it answered pings to its end"
        await bench.restarted.wait()
        text, _, _ = await bench.answer(bench.work("Hello, who are you?"))
        assert text
        assert engine.restarts == 1
    finally:
        await engine.stop(seconds_max=10)
