"""vLLM's own arguments as text."""

from __future__ import annotations

import pytest

from foveate.settings import VllmSettings


def test_values_are_json_where_they_can_be() -> None:
    args = VllmSettings(args="max_model_len=4096, quantization=fp8,enable_lora=true").arguments()  # type: ignore[arg-type]
    assert args == {"max_model_len": 4096, "quantization": "fp8", "enable_lora": True}


@pytest.mark.parametrize("entry", ["max_model_len", "=3", "a-b=1"])
def test_what_is_no_argument_is_refused(entry: str) -> None:
    with pytest.raises(ValueError, match="is not name=value"):
        VllmSettings(args=(entry,)).arguments()
