"""What keeps an engine from being made."""

from __future__ import annotations

import pytest

from foveate.assembly import engines
from foveate.core.errors import StartupError


def test_what_hands_kv_on_is_named_where_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "find_spec", lambda name: None)
    with pytest.raises(StartupError) as refused:
        engines.check_nixl()
    assert "the package nixl" in refused.value.public
    assert "requirements/vllm-kv.txt" in refused.value.public
