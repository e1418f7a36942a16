"""When embeddings go by name."""

from __future__ import annotations

from typing import Any

import pytest

from foveate.engines.vllm.config import VllmConfig


@pytest.mark.parametrize(
    ("embeddings", "args", "expected"),
    [
        ("inline", {}, False),
        ("connector", {"distributed_executor_backend": "mp"}, True),
        ("connector", {"ec_transfer_config": {"ec_connector": "another"}}, False),
        ("connector", {"distributed_executor_backend": "ray"}, False),
        ("connector", {"nnodes": 2}, False),
    ],
)
def test_by_name_only_where_it_can_work(embeddings: Any, args: dict[str, Any], expected: bool) -> None:
    assert VllmConfig("dir", "m", "llava", embeddings=embeddings, args=args).by_name is expected
