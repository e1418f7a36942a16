"""No setting of whoever runs the tests reaches them."""

import os

import pytest


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("FOVEATE_"):
            monkeypatch.delenv(name)
