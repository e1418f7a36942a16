"""What is said when a model is refused."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from foveate.core.errors import StartupError


def refusal(call: Callable[[], object]) -> str:
    """Return the sentence with which ``call`` refuses to start."""
    with pytest.raises(StartupError) as refused:
        call()
    assert "\n" not in refused.value.public
    assert refused.value.public.endswith((".", "}")) or ":" in refused.value.public
    return refused.value.public
