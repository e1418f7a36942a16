"""A real vLLM is not put to use with embeddings that are not its model's. The comparison itself: tests/journeys/test_self_check.py."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.journeys.versions import red_for_blue

from foveate.assembly import version
from foveate.assembly.supply import Shared
from foveate.assembly.version import find_model, load_version
from foveate.core.errors import StartupError
from foveate.encoders.reference_port import ReferenceConfig, ReferenceProcess
from foveate.observe.load import Load
from foveate.observe.metrics import Metrics
from foveate.runtime.local.runtime import LocalRuntime
from foveate.settings import load

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(300)]


async def test_vllm_does_not_start_on_embeddings_of_another_encoder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, runtime: LocalRuntime
) -> None:
    other = red_for_blue(tmp_path / "other")
    settings = load({"engine.kind": "vllm", "media.workers": "1", "engine.threads": "1"})
    files, name = await find_model(settings.model.path, settings, lambda text: None)
    found: list[ReferenceProcess] = []

    def of_the_other(*given: Any, runtime: LocalRuntime, **named: Any) -> ReferenceProcess:
        found.append(ReferenceProcess(runtime, ReferenceConfig(str(other)), index=0, threads=1))
        return found[0]

    monkeypatch.setattr(version, "reference_of", of_the_other)
    said: list[str] = []
    with pytest.raises(StartupError) as refused:
        await load_version(files, name, settings, Shared(settings, runtime, Load(Metrics()), said.append), number=0)
    assert "self-check of embeddings failed" in refused.value.public
    assert "cosine" in refused.value.public
    assert not any("agree" in line for line in said)
