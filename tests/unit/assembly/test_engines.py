"""What keeps an engine from being made."""

from __future__ import annotations

import pytest

from foveate.assembly import engines
from foveate.core.errors import StartupError


def test_what_hands_kv_on_is_named_where_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "find_spec", lambda name: None)
    with pytest.raises(StartupError) as refused:
        engines.check_handing_on(())
    assert "the package nixl" in refused.value.public
    assert "requirements/vllm-kv.txt" in refused.value.public


def test_there_is_one_way_for_kv(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "find_spec", lambda name: "there")
    engines.check_handing_on(("max_model_len",))
    with pytest.raises(StartupError) as refused:
        engines.check_handing_on(("kv_transfer_config",))
    assert "kv_transfer_config" in refused.value.public
